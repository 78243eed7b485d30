package certificate

import "service/store/sqlite"

const (
	MaxFile     = maxFile
	LockLease   = lockLease
	SelectFiles = selectFiles
)

// DB returns the database that a storage reads.
func DB(c *Storage) *sqlite.DB { return c.db }
