package sqlite

import "time"

// Hooks are functions that the owner of a database adds to its commits. Each may be
// nil.
//
// The leader of the [Writer] calls them, one at a time, on the goroutine of one of
// the callers. All other writes wait for them: a hook must be quick and must not wait
// for a write of the same Writer.
type Hooks struct {
	// Permit returns the reason why nothing may be committed now, or nil. It is
	// called before the writes of a commit run and again before each COMMIT. All
	// writes of the commit fail with its error, wrapped in [ErrUnavailable]. The
	// failure is not logged as an outage. Permit must not use the database.
	Permit func() error

	// Chores run before the other writes of a commit, if they are due.
	Chores []Chore

	// BeforeBatch is called before the transaction of each commit begins, for
	// example to checkpoint. It must not begin a transaction.
	BeforeBatch func(t *Tx)

	// BeforeWrite is called inside the transaction before each write, including
	// chores and BeforeCommit. It must not run statements.
	BeforeWrite func(t *Tx)

	// UndoWrite is called inside the transaction after a write failed or panicked, before its
	// statements are rolled back. The owner discards its cached state of that write. UndoWrite
	// must not run statements.
	UndoWrite func()

	// BeforeCommit runs inside the transaction, after its writes and before Stamp and
	// COMMIT, if all of the writes are repeatable (see [Writer.DoRepeatable]). If it
	// fails, the writes run again without it, in a new transaction.
	BeforeCommit func(t *Tx) error

	// Stamp runs at the end of each transaction that changed something, for example
	// to count commits in the database. If it fails, the transaction is rolled back.
	Stamp func(t *Tx) error

	// AfterCommit is called once the commit is on disk, after the functions passed
	// to [Tx.AfterCommit] and before the callers of the writes continue. It must
	// not use the database.
	AfterCommit func()

	// Rollback is called after a transaction was rolled back, even if its writes then run again,
	// and after a commit failed without one. The owner discards its cached state of the writes
	// and of the database.
	//
	// err says what happened. If it wraps [ErrRolledBack], the writes run again, or
	// the only write failed. If it wraps [ErrUnavailable], nothing is stored, and
	// Measure and [Writer.Failed] already report the failure. Otherwise a hook or
	// an AfterCommit function panicked, and the writes may be stored. Rollback must
	// not use the database.
	Rollback func(err error)

	// Measure is called after each commit, successful or not, with the number of its
	// writes, its duration, and whether it failed (for any reason, such as Permit) or
	// one of its writes failed with a storage error.
	Measure func(writes int, took time.Duration, failed bool)
}

// Chore is work that runs along with the next commit, instead of causing a commit
// of its own. It is a separate write: if it fails, it fails alone and is due again.
// It may run twice.
type Chore struct {
	Due func() bool // called by the leader before each commit
	Run func(t *Tx) error
}
