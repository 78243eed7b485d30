package sqlite

import "context"

// Fault is a failure that a test injects into a statement.
type Fault int

const (
	NoFault          Fault = iota
	FaultStatement         // the statement does nothing and returns an I/O error
	FaultTransaction       // in addition, SQLite rolls back and ends the transaction
)

// inject returns the error that a test injects into a statement of the writer, or
// nil. No fault is injected into ROLLBACK, which needs no disk.
func (t *Tx) inject(query string) error {
	if t.w.fault == nil || query == "ROLLBACK" {
		return nil
	}
	switch t.w.fault(query, true) {
	case NoFault:
		return nil
	case FaultTransaction:
		// Fails if no transaction has begun; there is nothing to roll back then.
		_, _ = t.w.conn.ExecContext(context.Background(), "ROLLBACK")
	}
	return errDisk
}

// inject is like [Tx.inject], for the statements of readers.
func (db *DB) inject(query string) error {
	if db.fault == nil || db.fault(query, false) == NoFault {
		return nil
	}
	return errDisk
}
