package sqlite

import "context"

// Fault is how a statement fails in a test.
type Fault int

const (
	NoFault          Fault = iota
	FaultStatement         // it does nothing and returns the error of a disk that fails
	FaultTransaction       // SQLite undoes and ends the transaction as well
)

// inject returns the error that a test has a statement of the writer fail with, nil
// for none. A ROLLBACK needs no disk.
func (t *Tx) inject(query string) error {
	if t.w.fault == nil || query == "ROLLBACK" {
		return nil
	}
	switch t.w.fault(query, true) {
	case NoFault:
		return nil
	case FaultTransaction:
		// It fails before BEGIN, where there is nothing to undo.
		_, _ = t.w.conn.ExecContext(context.Background(), "ROLLBACK")
	}
	return errDisk
}

// inject is [Tx.inject] for a statement of the readers.
func (db *DB) inject(query string) error {
	if db.fault == nil || db.fault(query, false) == NoFault {
		return nil
	}
	return errDisk
}
