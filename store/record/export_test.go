package record

import (
	"service/store/list"
	"service/store/sqlite"
)

const (
	ListSubscriptions = listSubscriptions
	MaxNamed          = maxNamed
	MaxNamedLogs      = maxNamedLogs
	NamedAmong        = namedAmong
	SearchStep        = searchStep
)

// DB returns the database that lists and pages read.
func DB(s *Reads) *sqlite.DB { return s.lists.DB }

// Limits returns the limits of lists.
func Limits(s *Reads) *list.Limits { return &s.lists.Limits }
