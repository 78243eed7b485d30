package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxCommit bounds how many writes share one commit, and so how long the first
// of them waits for the last.
const maxCommit = 512

// ErrUnavailable says that nothing could be written: the disk is full, say, or
// the database is closed. Nothing of the write is stored; the same one may
// succeed later.
var ErrUnavailable = errors.New("store: cannot write")

// ErrClosed is what a write gets after Close. It wraps [ErrUnavailable].
var ErrClosed = fmt.Errorf("%w: closed", ErrUnavailable)

// ErrUndone says that a transaction was undone to run its writes again, each
// with a savepoint.
var ErrUndone = errors.New("store: a write without a savepoint has failed")

// errPanic is what the writes of a commit get in which something panicked.
var errPanic = errors.New("store: panic in a commit")

// Unavailable says whether an error is that of a database that cannot be
// written or read just now, and not that of one record.
func Unavailable(err error) bool { return errors.Is(err, ErrUnavailable) || isStorage(err) }

// Writer is the only connection that writes, and shares commits among its
// callers. There is no goroutine of its own: the first caller to arrive becomes
// the leader, commits every queued write in one transaction with one fsync,
// wakes their callers, and hands leadership to the first write that has come
// since. So a lone write costs no switch of goroutines, and many at a time share
// their fsyncs.
//
// A write that fails undoes itself alone. For that it has a savepoint, which
// costs a copy of each page that it changes; but where all writes of a commit
// are repeatable none has one, until one of them fails.
type Writer struct {
	db     *sql.DB
	conn   *sql.Conn
	hooks  Hooks
	damage *damage
	logger *slog.Logger
	fault  func(query string, write bool) Fault // Config.Fault
	failed atomic.Bool                          // the disk has refused a write, and EndOutage was not called since

	commits atomic.Int64 // transactions that were committed

	// Owned by the leader.
	queries    map[string]*sql.Stmt
	statements map[string]*statement
	ran        int64 // of both
	outage     outage
	last       Op // BeforeCommit of the present transaction

	mu     sync.Mutex
	queue  []*Op
	led    bool // there is a leader
	closed bool
	idle   *sync.Cond // led has become false
}

// Op is one write that was submitted to a Writer, owned by its caller.
type Op struct {
	run        func(*Tx) error
	repeatable bool
	after      []func()  // run by the leader after the commit, in commit order
	err        error     // set before turn receives true
	turn       chan bool // true: done; false: lead
}

func openWriter(cfg *Config, d *damage) (*Writer, error) {
	pragmas := writerPragmas
	if cfg.KeepLog {
		pragmas = keepingPragmas
	}
	if info, err := os.Stat(cfg.Path); err == nil && info.Size() == 0 {
		// Only an empty database takes it, and only before its first page is written.
		pragmas = append([]string{incrementalVacuum}, pragmas...)
	}
	db, err := openPool(cfg.Path, modeCreate, pragmas)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	w := &Writer{
		db: db, conn: conn, hooks: cfg.Hooks, damage: d, logger: cfg.Logger, fault: cfg.Fault,
		queries: make(map[string]*sql.Stmt), statements: make(map[string]*statement),
	}
	w.idle = sync.NewCond(&w.mu)
	return w, nil
}

// Do runs fn in the next commit. When it returns nil, what fn wrote is on disk
// (fsynced); otherwise none of it is. It takes no context: a write that was
// queued is finished, so that no caller is left in doubt. fn runs on the
// goroutine of some caller, and must not wait for another write.
func (w *Writer) Do(fn func(*Tx) error) error { return w.Wait(w.Submit(fn, false)) }

// DoRepeatable is [Writer.Do] for an fn that may be called a second time, when
// what it did was undone because another write of the same commit has failed.
// It costs less.
func (w *Writer) DoRepeatable(fn func(*Tx) error) error { return w.Wait(w.Submit(fn, true)) }

// Submit queues a write. Writes are run in the order of their submission. The
// caller must call Wait at once: leadership may pass to it.
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
	if !w.led {
		w.led = true
		op.turn <- false
	}
	return op
}

// Wait waits for a write that was submitted, and returns what [Writer.Do] does.
// It is called once.
func (w *Writer) Wait(op *Op) error {
	if done := <-op.turn; !done {
		// On one processor nobody else gets to submit anything while this one is
		// in SQLite: without this each write would have a commit to itself.
		runtime.Gosched()
		w.lead()
		<-op.turn
	}
	return op.err
}

// lead commits one batch, the leader's own write among it, and passes
// leadership on, whatever happens to it.
func (w *Writer) lead() {
	w.mu.Lock()
	n := min(len(w.queue), maxCommit)
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	w.mu.Unlock()
	var first []*Op
	for _, c := range w.hooks.Chores {
		if c.Due() {
			first = append(first, &Op{run: c.Run, repeatable: true, turn: make(chan bool, 1)})
		}
	}
	if first != nil {
		batch = append(first, batch...)
	}

	committed := false
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, op := range batch {
			if !committed && op.err == nil {
				op.err = errPanic // whether it is stored is not known: it must not be acknowledged
			}
			op.turn <- true
		}
		if len(w.queue) > 0 {
			w.queue[0].turn <- false
			return
		}
		w.queue = nil
		w.led = false
		w.idle.Broadcast()
	}()
	t := &Tx{w: w}
	if w.hooks.BeforeBatch != nil {
		w.hooks.BeforeBatch(t)
	}
	w.commit(t, batch)
	committed = true
}

// commit runs and commits a batch, and sets the error of each write.
func (w *Writer) commit(t *Tx, batch []*Op) {
	began := time.Now()
	told := false
	defer func() {
		if !told {
			w.rollback(errPanic)
		}
	}()
	err := w.refusal()
	if err == nil {
		repeatable := !slices.ContainsFunc(batch, func(op *Op) bool { return !op.repeatable })
		switch err = t.transaction(batch, repeatable || len(batch) == 1, repeatable); {
		case errors.Is(err, ErrUndone) && repeatable:
			err = t.transaction(batch, false, false)
		case errors.Is(err, ErrUndone):
			err = nil // it was alone
		}
	}
	failed := err != nil || t.refused > 0
	if failed {
		w.failed.Store(true)
	}
	if w.hooks.Measure != nil {
		w.hooks.Measure(len(batch), time.Since(began), failed)
	}
	w.damage.observe(err)
	if err != nil {
		if !errors.As(err, new(notPermitted)) {
			w.outage.record(len(batch), err, time.Now(), w.logger)
		}
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		for _, op := range batch {
			op.err = err
		}
		w.rollback(err) // last: the owner may ask Failed
		told = true
		return
	}
	w.outage.record(t.refused, t.cause, time.Now(), w.logger)
	for _, op := range batch {
		if op.err == nil {
			runAll(op.after)
		}
	}
	runAll(w.last.after)
	w.last.after = nil
	if w.hooks.AfterCommit != nil {
		w.hooks.AfterCommit()
	}
	told = true
}

func runAll(fns []func()) {
	for _, fn := range fns {
		fn()
	}
}

// transaction runs writes and commits: without savepoints when it is plain, and
// with the hook BeforeCommit when last. When it returns an error nothing of them
// is stored.
func (t *Tx) transaction(batch []*Op, plain, last bool) error {
	t.refused, t.cause, t.ended = 0, nil, false
	t.w.last = Op{run: t.w.hooks.BeforeCommit}
	err := t.Exec("BEGIN IMMEDIATE")
	if err != nil {
		return err
	}
	t.changed = false
	run := t.savepoint
	if plain {
		run = t.plain
	}
	for _, op := range batch {
		if err = run(op); err != nil {
			break
		}
	}
	if err == nil && last && t.w.last.run != nil {
		if !t.try(&t.w.last) {
			err = fmt.Errorf("%w: %w", ErrUndone, t.w.last.err)
		}
	}
	if err == nil && t.changed && t.w.hooks.Stamp != nil {
		err = t.w.hooks.Stamp(t)
	}
	if err == nil {
		err = t.w.refusal() // one of the writes may have observed damage
	}
	if err == nil {
		err = t.Exec("COMMIT")
	}
	if err == nil {
		t.w.commits.Add(1) // before any caller of its writes goes on
	}
	if err != nil {
		// A full disk may have ended the transaction already.
		_ = t.Exec("ROLLBACK")
		for _, op := range batch {
			op.after = nil
		}
		t.w.last.after = nil
	}
	if errors.Is(err, ErrUndone) {
		t.w.rollback(err)
	}
	return err
}

// rollback calls the hook Rollback.
func (w *Writer) rollback(err error) {
	if w.hooks.Rollback != nil {
		w.hooks.Rollback(err)
	}
}

// savepoint runs one write so that its failure undoes itself alone. The error
// is the transaction's; the write's own goes to op.err.
func (t *Tx) savepoint(op *Op) error {
	if err := t.Exec("SAVEPOINT op"); err != nil {
		return err
	}
	if !t.try(op) {
		if err := t.Exec("ROLLBACK TO op"); err != nil {
			return errors.Join(op.err, err)
		}
	}
	return t.Exec("RELEASE op")
}

// plain runs one write that cannot be undone alone: it returns ErrUndone when it
// fails and may have written something, and, whatever it says, when a statement of
// it may have ended the transaction.
func (t *Tx) plain(op *Op) error {
	t.wrote = false
	ok := t.try(op)
	if ok && t.ended {
		op.err = fmt.Errorf("%w: a statement has failed", ErrUnavailable)
	}
	if t.ended || !ok && t.wrote {
		return ErrUndone
	}
	return nil
}

// try runs one write, and says whether it went well. Its error goes to op.err.
func (t *Tx) try(op *Op) bool {
	t.current = op
	if t.w.hooks.BeforeWrite != nil {
		t.w.hooks.BeforeWrite(t)
	}
	op.err = t.w.damage.observe(t.protect(op.run))
	t.current = nil
	if op.err == nil {
		return true
	}
	if isStorage(op.err) {
		t.refused, t.cause = t.refused+1, op.err
		op.err = fmt.Errorf("%w: %w", ErrUnavailable, op.err)
	}
	if t.w.hooks.UndoWrite != nil {
		t.w.hooks.UndoWrite()
	}
	op.after = nil
	return false
}

// protect turns a panic of one write into its error: the other writes of the
// commit, and leadership, must survive it.
func (t *Tx) protect(run func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	return run(t)
}

// notPermitted is an error of the hook Permit.
type notPermitted struct{ error }

func (e notPermitted) Unwrap() error { return e.error }

// refusal returns why nothing may be written, nil for nothing.
func (w *Writer) refusal() error {
	if w.damage.observed() != nil {
		return ErrDamaged
	}
	if w.hooks.Permit != nil {
		if err := w.hooks.Permit(); err != nil {
			return notPermitted{err}
		}
	}
	return nil
}

// Failed says whether the disk has refused a write since [Writer.EndOutage] was
// last called.
func (w *Writer) Failed() bool { return w.failed.Load() }

// EndOutage says that the disk accepts writes again, as the caller has found
// out with writes of its own.
func (w *Writer) EndOutage() error {
	w.failed.Store(false)
	return w.Do(func(t *Tx) error {
		t.AfterCommit(func() { w.outage.end(time.Now(), w.logger) })
		return nil
	})
}

// Commits returns how many transactions the writer has committed. A write that has
// returned nil is in one of them.
func (w *Writer) Commits() int64 { return w.commits.Load() }

// Conn returns the writer's connection, for a PRAGMA of it. A statement of its
// own may run within the transaction of a commit.
func (w *Writer) Conn() *sql.Conn { return w.conn }

// stop waits for the writes under way and refuses further ones.
func (w *Writer) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for w.led {
		w.idle.Wait()
	}
}

// Closed says whether the writer refuses writes because the database is closed
// or about to be.
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
