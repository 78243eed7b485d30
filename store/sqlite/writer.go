package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxWrites is the maximum number of writes in one commit, excluding each [Chore]. It
// bounds how long the first of them waits for the last.
const maxWrites = 512

// ErrUnavailable means that a write failed because the database cannot be written,
// for example because the disk is full or the database is closed. Nothing of the
// write is stored; the same write may succeed later.
var ErrUnavailable = errors.New("storage is not writable")

// ErrClosed is the error of a write after Close. It wraps [ErrUnavailable].
var ErrClosed = fmt.Errorf("%w: closed", ErrUnavailable)

// ErrRolledBack means that a transaction was rolled back because a write without a
// savepoint, or the hook BeforeCommit, failed. Its writes run again, each in a savepoint,
// if they are repeatable. Otherwise the transaction had only one write, which fails.
var ErrRolledBack = errors.New("store: a write without a savepoint failed")

// errPanic is the error of a commit's writes if the code around them panicked, such as a
// hook. They may or may not be stored.
var errPanic = errors.New("store: panic in a commit")

// Unavailable reports whether err means that the database cannot be read or written
// now, rather than that a statement or one record is faulty.
func Unavailable(err error) bool { return errors.Is(err, ErrUnavailable) || isStorage(err) }

// Writer owns the only connection that writes, and commits the writes of its callers in
// groups (group commit). It has no goroutine of its own: the first caller to arrive
// becomes the leader, commits every queued write in one transaction with one fsync,
// wakes the followers, and hands leadership to the first write that arrived in between.
// A lone write therefore costs no goroutine switch, and concurrent writes share one
// fsync.
//
// A write that fails is rolled back alone. This needs a savepoint, which copies each
// page that the write changes. To avoid the copies, a commit of a single write, or of
// repeatable writes only (see [Writer.DoRepeatable]), runs without savepoints. If a write
// fails after it may have changed something, the transaction is rolled back, and
// repeatable writes run again, each in a savepoint.
type Writer struct {
	db     *sql.DB
	conn   *sql.Conn
	hooks  Hooks
	logger *slog.Logger
	// overwrite matches writes to the tables of Config.Overwrite; nil for none.
	overwrite *regexp.Regexp
	fault     func(query string, write bool) Fault // Config.Fault
	failed    atomic.Bool                          // see Failed

	corruption *corruption  // shared with the DB
	commits    atomic.Int64 // number of committed transactions
	committing sync.Mutex   // held from the beginning of a COMMIT until it is counted

	// Owned by the leader.
	queries      map[string]*sql.Stmt  // prepared, with result rows
	statements   map[string]*statement // prepared, without result rows
	ran          int64                 // number of statements of both kinds that ran
	transactions uint64                // number of transactions that began
	outage       outage
	pages        pages
	beforeCommit Op // Hooks.BeforeCommit as a write of the current transaction

	mu        sync.Mutex // guards the fields below
	queue     []*Op      // writes that wait for the next commit; the first may lead it
	hasLeader bool
	closed    bool
	idle      *sync.Cond // signals that hasLeader became false
}

// Op is a write that was submitted to a Writer. Only its caller may wait for it.
type Op struct {
	run        func(*Tx) error
	repeatable bool
	after      []func()  // the leader calls these after the commit, in order
	err        error     // set before turn receives true
	turn       chan bool // receives false to lead, and true when the write is completed
}

func openWriter(cfg *Config, c *corruption) (*Writer, error) {
	pragmas := writerPragmas
	if cfg.NoAutoCheckpoint {
		pragmas = noCheckpointPragmas
	}
	if info, err := os.Stat(cfg.Path); err == nil && info.Size() == 0 {
		// The pragma has no effect once the first page is written.
		pragmas = append([]string{incrementalVacuum}, pragmas...)
	}
	db, err := openPool(cfg.Path, modeCreate, pragmas, nil, cfg.Functions...)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	w := &Writer{
		db: db, conn: conn, hooks: cfg.Hooks, corruption: c, logger: cfg.Logger, fault: cfg.Fault,
		queries: make(map[string]*sql.Stmt), statements: make(map[string]*statement),
	}
	if len(cfg.Overwrite) > 0 {
		w.overwrite = regexp.MustCompile(`^(INSERT (OR \w+ )?INTO|UPDATE|DELETE FROM) (` + strings.Join(cfg.Overwrite, "|") + `)\b`)
	}
	w.idle = sync.NewCond(&w.mu)
	return w, nil
}

// Do runs fn in the next commit. If it returns nil, the changes of fn are fsynced;
// otherwise none of them are stored, except that after a panic in a hook or in an
// AfterCommit function (errPanic) they may be. It takes no context: a queued write always
// completes, so its caller always learns the outcome. fn runs on the leader's
// goroutine, and must not wait for another write.
func (w *Writer) Do(fn func(*Tx) error) error { return w.Wait(w.Submit(fn, false)) }

// DoRepeatable is like [Writer.Do], but cheaper. fn is called a second time if its
// first call was rolled back because a write of the same commit failed, which may be fn
// itself.
func (w *Writer) DoRepeatable(fn func(*Tx) error) error { return w.Wait(w.Submit(fn, true)) }

// Submit queues a write. Writes run in the order of submission. The caller must call
// Wait immediately, because it may have become the leader.
func (w *Writer) Submit(fn func(*Tx) error, repeatable bool) *Op {
	op := &Op{run: fn, repeatable: repeatable, turn: make(chan bool, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		op.err = ErrClosed
		op.turn <- true
		return op
	}
	w.queue = append(w.queue, op)
	if !w.hasLeader {
		w.hasLeader = true
		op.turn <- false
	}
	return op
}

// Wait waits for a submitted write and returns its error, as [Writer.Do] does. It
// must be called exactly once for each write.
func (w *Writer) Wait(op *Op) error {
	if done := <-op.turn; !done {
		// With one processor, no other goroutine can submit while this one is inside
		// SQLite. Without Gosched each write would then have a commit of its own.
		runtime.Gosched()
		w.lead()
		<-op.turn
	}
	return op.err
}

// lead commits one batch, which includes the leader's own write. It hands leadership
// on even if the commit panics.
func (w *Writer) lead() {
	w.mu.Lock()
	n := min(len(w.queue), maxWrites)
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	w.mu.Unlock()
	var chores []*Op
	for _, c := range w.hooks.Chores {
		if c.Due() {
			chores = append(chores, &Op{run: c.Run, repeatable: true, turn: make(chan bool, 1)})
		}
	}
	if chores != nil {
		batch = append(chores, batch...)
	}

	returned := false
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, op := range batch {
			if !returned && op.err == nil {
				op.err = errPanic // it may or may not be stored, so it must not be acknowledged
			}
			op.turn <- true
		}
		if len(w.queue) > 0 {
			w.queue[0].turn <- false
			return
		}
		w.queue = nil
		w.hasLeader = false
		w.idle.Broadcast()
	}()
	t := &Tx{w: w}
	if w.hooks.BeforeBatch != nil {
		w.hooks.BeforeBatch(t)
	}
	w.commit(t, batch)
	returned = true
}

// commit runs and commits a batch, and sets the error of each write.
func (w *Writer) commit(t *Tx, batch []*Op) {
	began := time.Now()
	panicked := true
	defer func() {
		if panicked {
			_ = t.Exec("ROLLBACK") // fails if the panic came after COMMIT
			w.rollback(errPanic)
		}
	}()
	err := w.refusal()
	if err == nil {
		repeatable := !slices.ContainsFunc(batch, func(op *Op) bool { return !op.repeatable })
		switch err = t.transaction(batch, !repeatable && len(batch) > 1, repeatable); {
		case errors.Is(err, ErrRolledBack) && repeatable:
			err = t.transaction(batch, true, false)
		case errors.Is(err, ErrRolledBack):
			err = nil // the batch is a single write, which has its error
		}
	}
	failed := err != nil || t.failures > 0
	if failed {
		w.failed.Store(true)
	}
	if w.hooks.Measure != nil {
		w.hooks.Measure(len(batch), time.Since(began), failed)
	}
	w.corruption.record(err)
	if err != nil {
		if !errors.As(err, new(notPermitted)) {
			w.outage.record(len(batch), err, time.Now(), w.logger)
		}
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		for _, op := range batch {
			op.err = err
		}
		w.rollback(err) // after failed is set: the hook may call Failed
		panicked = false
		return
	}
	w.outage.record(t.failures, t.cause, time.Now(), w.logger)
	for _, op := range batch {
		if op.err == nil {
			runAll(op.after)
		}
	}
	runAll(w.beforeCommit.after)
	w.beforeCommit.after = nil
	if w.hooks.AfterCommit != nil {
		w.hooks.AfterCommit()
	}
	panicked = false
}

func runAll(fns []func()) {
	for _, fn := range fns {
		fn()
	}
}

// transaction runs a batch of writes and commits them. With savepoints each write runs in
// one; with hook it calls the hook BeforeCommit. If it returns an error, nothing of the
// batch is stored.
func (t *Tx) transaction(batch []*Op, savepoints, hook bool) error {
	t.failures, t.cause, t.ended = 0, nil, nil
	t.w.transactions++
	t.number = t.w.transactions
	t.w.beforeCommit = Op{run: t.w.hooks.BeforeCommit}
	err := t.Exec("BEGIN IMMEDIATE")
	if err != nil {
		return err
	}
	// Only now: BEGIN, like SAVEPOINT and RELEASE, may report the changes of an earlier
	// statement. With savepoints, Stamp may therefore run although nothing changed.
	t.changed = false
	run := t.runWithoutSavepoint
	if savepoints {
		run = t.runInSavepoint
	}
	for _, op := range batch {
		if err = run(op); err != nil {
			break
		}
	}
	if err == nil && hook && t.w.beforeCommit.run != nil {
		if !t.try(&t.w.beforeCommit) {
			err = fmt.Errorf("%w: %w", ErrRolledBack, t.w.beforeCommit.err)
		}
	}
	if err == nil && t.changed && t.w.hooks.Stamp != nil {
		err = t.w.hooks.Stamp(t)
	}
	if err == nil {
		err = t.w.refusal() // a write may have found damage
	}
	if err == nil {
		err = t.commit()
	}
	if err != nil {
		// Fails if a storage error has ended the transaction already.
		_ = t.Exec("ROLLBACK")
		for _, op := range batch {
			op.after = nil
		}
		t.w.beforeCommit.after = nil
	}
	if t.overwrites {
		_ = t.setOverwrite(false) // the next transaction that turns it on tries again
	}
	if errors.Is(err, ErrRolledBack) {
		t.w.rollback(err)
	}
	return err
}

// commit ends the transaction, and counts it before any caller continues, see [Writer.Commits].
func (t *Tx) commit() error {
	t.w.committing.Lock()
	defer t.w.committing.Unlock()
	err := t.Exec("COMMIT")
	if err == nil {
		t.w.commits.Add(1)
	}
	return err
}

// rollback calls the hook Rollback.
func (w *Writer) rollback(err error) {
	if w.hooks.Rollback != nil {
		w.hooks.Rollback(err)
	}
}

// runInSavepoint runs a write in a savepoint, so that its failure rolls back only
// itself. It sets op.err to the error of the write, and returns the error of the
// transaction.
func (t *Tx) runInSavepoint(op *Op) error {
	if err := t.Exec("SAVEPOINT op"); err != nil {
		return err
	}
	if !t.try(op) {
		if err := t.Exec("ROLLBACK TO op"); err != nil {
			return errors.Join(op.err, err)
		}
		t.ended = nil // the savepoint exists, and so does the transaction
	}
	return t.Exec("RELEASE op")
}

// runWithoutSavepoint runs a write that cannot be rolled back alone. It
// returns ErrRolledBack if the write failed and may have changed the database.
func (t *Tx) runWithoutSavepoint(op *Op) error {
	t.wrote = false
	if !t.try(op) && t.wrote {
		return ErrRolledBack
	}
	return nil
}

// try runs a write, sets op.err and reports whether the write succeeded. It fails if one
// of its statements may have ended the transaction, even when the write ignored that
// error.
func (t *Tx) try(op *Op) bool {
	t.current = op
	if t.w.hooks.BeforeWrite != nil {
		t.w.hooks.BeforeWrite(t)
	}
	err := t.recoverPanic(op.run)
	if err == nil {
		err = t.ended
	}
	op.err = t.w.corruption.record(err)
	t.current = nil
	if op.err == nil {
		return true
	}
	if isStorage(op.err) {
		t.failures, t.cause = t.failures+1, op.err
		op.err = fmt.Errorf("%w: %w", ErrUnavailable, op.err)
	}
	if t.w.hooks.UndoWrite != nil {
		t.w.hooks.UndoWrite()
	}
	op.after = nil
	return false
}

// recoverPanic runs a write and turns a panic into its error, so that the other
// writes of the commit and the leader continue.
func (t *Tx) recoverPanic(run func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	return run(t)
}

// notPermitted wraps an error of the hook Permit, which is not logged as an outage.
type notPermitted struct{ error }

func (e notPermitted) Unwrap() error { return e.error }

// refusal returns the reason why nothing may be written, or nil.
func (w *Writer) refusal() error {
	if w.corruption.recorded() != nil {
		return ErrDamaged
	}
	if w.hooks.Permit != nil {
		if err := w.hooks.Permit(); err != nil {
			return notPermitted{err}
		}
	}
	return nil
}

// Failed reports whether, since the last call of [Writer.EndOutage], a commit failed (for
// any reason, such as the hook Permit) or a write failed with a storage error.
func (w *Writer) Failed() bool { return w.failed.Load() }

// EndOutage ends the outage, a period of failed writes that is logged as one: Failed
// reports false again, and the log says that the storage is writable. The caller must
// have checked with writes of its own that the disk accepts them. An outage in the log
// also ends after outageQuiet; Failed is reset only here.
func (w *Writer) EndOutage() error {
	w.failed.Store(false)
	return w.Do(func(t *Tx) error {
		t.AfterCommit(func() { w.outage.end(time.Now(), w.logger) })
		return nil
	})
}

// Commits returns the number of committed transactions. A transaction is counted before
// the calls of its writes return.
func (w *Writer) Commits() int64 { return w.commits.Load() }

// VisibleCommits is Commits for a caller that has read the database: it includes every transaction
// that the read has seen. A reader sees a transaction shortly before COMMIT returns, so this waits for
// one in progress.
func (w *Writer) VisibleCommits() int64 {
	w.committing.Lock()
	defer w.committing.Unlock()
	return w.commits.Load()
}

// Conn returns the writer's connection, for PRAGMA statements. A statement on it may
// run inside the transaction of a commit.
func (w *Writer) Conn() *sql.Conn { return w.conn }

// stop waits for writes in flight and rejects later ones.
func (w *Writer) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for w.hasLeader {
		w.idle.Wait()
	}
}

// Closed reports whether the writer rejects writes because the database is closed
// or closing.
func (w *Writer) Closed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// close stops the writer and closes its connection.
func (w *Writer) close() error {
	w.stop()
	for _, s := range w.queries {
		s.Close()
	}
	return errors.Join(closeAll(w.statements), w.conn.Close(), w.db.Close())
}
