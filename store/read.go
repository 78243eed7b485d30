package store

import (
	"context"

	"service/store/sqlite"
)

// readers are the maximum numbers of concurrent reads of each class: of the dispatcher and other
// work of the service, by ID, and of lists.
var readers = [...]int{sqlite.Service: 2, sqlite.Lookup: 2, sqlite.List: 4}

// ErrBusy reports that too many requests of a program already wait to read a list.
var ErrBusy = sqlite.ErrBusy

// housekeeper is the name of the background reader. No program can have this name.
const housekeeper = "\x00"

// ForLookups returns a context for a request of a program that reads records by ID. Programs take
// turns with connections that neither deliveries nor lists use. "" is the operator: admins, and
// platform tokens without a program.
func ForLookups(ctx context.Context, programID string) context.Context {
	return sqlite.WithReader(ctx, sqlite.Lookup, programID)
}

// ForLists is ForLookups for lists, searches, counts and pages. If 64 requests of the program are
// waiting for such a read, another one fails with [ErrBusy].
func ForLists(ctx context.Context, programID string) context.Context {
	return sqlite.WithReader(ctx, sqlite.List, programID)
}

// asList returns a context for reads of many rows in the same request.
func asList(ctx context.Context) context.Context { return sqlite.WithClass(ctx, sqlite.List) }

// inBackground returns a context for housekeeping, whose reads take turns with the lists of programs.
func inBackground(ctx context.Context) context.Context {
	return sqlite.WithReader(ctx, sqlite.List, housekeeper)
}
