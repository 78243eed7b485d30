package sqlite

import "time"

// Hooks are what the owner of a database adds to its commits. Any of them may
// be nil.
//
// The leader of the [Writer] calls them: the goroutine of one of the callers,
// one at a time. All other writes wait for it, so a hook must be quick, and
// must not wait for a write of the same Writer.
type Hooks struct {
	// Permit returns why nothing may be committed now, nil for nothing. It is
	// called before each transaction and again before its COMMIT. All writes of
	// the commit get its error, under [ErrUnavailable]; it is not logged as an
	// outage. It must not use the database.
	Permit func() error

	// Chores are run before the other writes of a commit, where they are due.
	Chores []Chore

	// BeforeBatch is called before the transaction of each commit, outside of
	// any: it is the place for a checkpoint. It must not begin a transaction.
	BeforeBatch func(t *Tx)

	// BeforeWrite is called inside the transaction before each write, chores and
	// BeforeCommit included. It must not run statements.
	BeforeWrite func(t *Tx)

	// UndoWrite is called inside the transaction when the write that
	// BeforeWrite announced has failed or panicked, before its statements are
	// undone: what the owner remembers of that write is void. It must not run
	// statements.
	UndoWrite func()

	// BeforeCommit is a last write of each transaction all of whose writes are
	// repeatable. When it fails, the other writes are run again in another
	// transaction, without it.
	BeforeCommit func(t *Tx) error

	// Stamp is called inside each transaction that has changed something, as its
	// last write. When it fails, nothing of the transaction is stored.
	Stamp func(t *Tx) error

	// AfterCommit is called when the commit is on disk, after all functions
	// given to [Tx.AfterCommit] and before the callers of the writes go on. It
	// must not use the database.
	AfterCommit func()

	// Rollback is called when a commit has failed: what the owner remembers of
	// its writes, and whatever it keeps in memory of the database, is void. When
	// err wraps [ErrUndone], only this transaction was undone: the writes are run
	// again, or the only write has failed. When it wraps [ErrUnavailable], nothing
	// is stored, and Measure and [Writer.Failed] have the failure already. Any
	// other error is that of a panic: the writes may be stored. It must not use
	// the database.
	Rollback func(err error)

	// Measure is called after each commit with how many writes it had, how long
	// it took, and whether it or one of its writes failed for want of the disk.
	Measure func(writes int, took time.Duration, failed bool)
}

// Chore is work that waits for a commit that is made anyway. It is a write of
// its own, so that it fails alone; it is due again then. It may be run twice.
type Chore struct {
	Due func() bool // called by the leader before each commit
	Run func(t *Tx) error
}
