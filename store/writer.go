package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"service/store/replica"
	"service/webhook"
)

// maxCommit bounds how many writes share one commit, and so how long the first
// of them waits for the last.
const maxCommit = 512

// ErrUnavailable says that nothing could be written: the disk is full, say, or
// the store is closed. Nothing of the write is stored; the same one may succeed
// later.
var ErrUnavailable = errors.New("store: cannot write")

// Unavailable says whether an error is that of a store that cannot be written
// or read just now, and not that of one record.
func Unavailable(err error) bool { return errors.Is(err, ErrUnavailable) || isStorage(err) }

// errPanic is what the writes of a commit get in which something panicked.
var errPanic = errors.New("store: panic in a commit")

// errClosed is what a write gets after Close.
var errClosed = fmt.Errorf("%w: closed", ErrUnavailable)

// writer is the only connection that writes. Writing is a role, not a
// goroutine: whoever finds nobody committing leads. The leader runs every
// write that waits, commits once with one fsync, wakes their owners, and hands
// the role to the first write that has come meanwhile. So a lone write costs no
// switch of goroutines, and a crowd shares its fsyncs.
//
// A write that fails undoes itself alone. For that it has a savepoint, which
// costs a copy of each page that it changes; but where all writes of a commit
// may be run a second time, none has one, until one of them fails.
type writer struct {
	db     *sql.DB
	conn   *sql.Conn
	stmts  map[string]*sql.Stmt // owned by the leader
	ran    int64                // how many of them were run; the same
	heads  map[string]head      // of each program's log, owned by the leader
	fails  map[string]struct{}  // ids of all subscriptions that have a row of failures, and maybe more; owned by the leader; nil is not known
	failed atomic.Bool          // for want of the disk; until a check has written
	damage *damage              // once something was noticed, nothing is written
	last   int64                // the newest created_at of a delivery, owned by the leader; 0 is not known
	clock  *clock
	chores []chore                     // what the next commit does first when it is due; owned by the leader
	lease  atomic.Pointer[func() bool] // reports whether the lease that writing needs is valid; nil for none
	early  atomic.Pointer[earlyFormer]
	pace   func(*writer) // called by the leader before each commit, outside of a transaction; nil for nothing

	metrics  *metrics
	watchers *watchers // nil until the store is open
	logger   *slog.Logger
	trouble  trouble // owned by the leader

	mu     sync.Mutex
	queue  []*write
	led    bool // somebody leads
	closed bool
	idle   *sync.Cond // led has become false
}

// trouble is a time in which the disk does not take what is to be written. It is
// logged when it begins and when it is over, and not for each write.
type trouble struct {
	began, last time.Time // zero while there is none
	refused     int       // writes
}

// calm is how long all writes must succeed for a trouble to be over: on a full
// disk a little finds a place for a while where nothing else does.
const calm = 5 * time.Second

// heed takes down how a commit went: how many of its writes the disk has
// refused, and why.
func (t *trouble) heed(refused int, why error, now time.Time, logger *slog.Logger) {
	switch {
	case refused > 0:
		if t.began.IsZero() {
			t.began = now
			logger.Error("the disk does not take what is to be written: it is refused, and deliveries are held, until it does", "error", why)
		}
		t.last = now
		t.refused += refused
	case !t.began.IsZero() && now.Sub(t.last) >= calm:
		t.over(now, logger)
	}
}

// over ends a trouble.
func (t *trouble) over(now time.Time, logger *slog.Logger) {
	if !t.began.IsZero() {
		logger.Info("the disk takes what is written again", "refused", t.refused, "lasted", now.Sub(t.began).Round(time.Millisecond))
		*t = trouble{}
	}
}

// chore is work that waits for a commit that is made anyway. It is a write of
// its own: one that fails fails alone, and is due again. It may be run twice.
type chore struct {
	due func() bool
	run func(*tx) error
}

// write is one piece of work for the writer, owned by whoever submitted it.
type write struct {
	run   func(*tx) error
	again bool      // run may be called a second time, when what it did was undone
	after []func()  // run by the leader after the commit, in commit order
	err   error     // set before turn receives true
	turn  chan bool // true: done; false: lead
}

// tx is the writer's connection inside a transaction, valid during write.run.
type tx struct {
	w       *writer
	current *write
	touched []string // programs whose head this write has moved
	wrote   bool     // something may have been written since this was last reset
	ended   bool     // SQLite may have ended the transaction by itself

	accepted    []webhook.Event // what the writes have published so far
	many        bool            // it was more than that
	formed      []early         // of them, on its way with them
	formedAfter []func()        // run by the leader after the commit, before formed are told
	refused     int             // writes that failed for want of the disk
	why         error           // the last of them did
}

func newWriter(db *sql.DB, c *clock, d *damage, m *metrics, logger *slog.Logger) (*writer, error) {
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, err
	}
	w := &writer{db: db, conn: conn, stmts: make(map[string]*sql.Stmt), heads: make(map[string]head), clock: c, damage: d, metrics: m, logger: logger}
	w.idle = sync.NewCond(&w.mu)
	return w, nil
}

// do runs fn in the next commit. When it returns nil, what fn wrote is on disk
// (fsynced); otherwise none of it is. It does not heed a context: a write that
// has been taken is finished, so that nobody is left in doubt.
func (w *writer) do(fn func(*tx) error) error {
	return w.wait(w.submit(&write{run: fn}))
}

// doAgain is do for an fn that may be called a second time, when what it did
// was undone because another write of the same commit has failed.
func (w *writer) doAgain(fn func(*tx) error) error {
	return w.wait(w.submit(&write{run: fn, again: true}))
}

// submit puts a write in line. Writes are run in the order of their submission.
// The caller must call wait at once: the role of the leader may pass to it.
func (w *writer) submit(op *write) *write {
	op.turn = make(chan bool, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		op.err = errClosed
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

func (w *writer) wait(op *write) error {
	if done := <-op.turn; !done {
		// On one processor nobody else gets to submit anything while this one is
		// in SQLite: without this each write would have a commit to itself.
		runtime.Gosched()
		w.lead()
		<-op.turn
	}
	return op.err
}

// lead commits one batch, the leader's own write among it, and passes the role
// on, whatever happens to it.
func (w *writer) lead() {
	w.mu.Lock()
	n := min(len(w.queue), maxCommit)
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	w.mu.Unlock()
	var first []*write
	for _, c := range w.chores {
		if c.due() {
			first = append(first, &write{run: c.run, again: true, turn: make(chan bool, 1)})
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
	if w.pace != nil {
		w.pace(w)
	}
	w.commit(batch)
	committed = true
}

func (w *writer) commit(batch []*write) {
	began := time.Now()
	t := &tx{w: w}
	defer t.endEarly(errPanic) // of what has not come to its end by then
	err := w.refused()
	if err == nil {
		again := !slices.ContainsFunc(batch, func(op *write) bool { return !op.again })
		switch err = t.transaction(batch, again || len(batch) == 1, again); {
		case err == errUndone && again:
			t.endEarly(ErrStale)
			err = t.transaction(batch, false, false)
		case err == errUndone:
			err = nil // it was alone
		}
	}
	failed := err != nil || t.refused > 0
	if failed {
		w.failed.Store(true)
	}
	w.metrics.commit(len(batch), time.Since(began), failed)
	w.damage.notice(err)
	if err != nil {
		if !errors.Is(err, replica.ErrLeaseExpired) { // the lease logs it
			w.trouble.heed(len(batch), err, time.Now(), w.logger)
		}
		for _, op := range batch {
			op.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		t.endEarly(fmt.Errorf("%w: %w", ErrUnavailable, err))
		return
	}
	w.trouble.heed(t.refused, t.why, time.Now(), w.logger)
	for _, op := range batch {
		if op.err == nil {
			for _, fn := range op.after {
				fn()
			}
		}
	}
	t.endEarly(nil)
}

// errUndone says that a write has failed that had no savepoint, and that all of
// the transaction was undone.
var errUndone = errors.New("store: a write without a savepoint has failed")

// transaction runs writes and commits: without savepoints when it is plain, and
// with deliveries of what is published when early. When it returns an error
// nothing of them is stored.
func (t *tx) transaction(batch []*write, plain, early bool) error {
	t.refused, t.why, t.ended, t.accepted, t.many = 0, nil, false, t.accepted[:0], false
	err := t.exec("BEGIN IMMEDIATE")
	if err != nil {
		return err
	}
	run := t.savepoint
	if plain {
		run = t.plain
	}
	for _, op := range batch {
		if err = run(op); err != nil {
			break
		}
	}
	if err == nil && early {
		err = t.formEarly()
	}
	if err == nil {
		err = t.w.refused() // one of the writes may have noticed the damage
	}
	if err == nil {
		err = t.exec("COMMIT")
	}
	if err != nil {
		// A full disk may have ended the transaction already.
		_ = t.exec("ROLLBACK")
		t.w.forget()
		for _, op := range batch {
			op.after = nil
		}
	}
	return err
}

// savepoint runs one write so that its failure undoes itself alone. The error
// is the transaction's; the write's own goes to op.err.
func (t *tx) savepoint(op *write) error {
	if err := t.exec("SAVEPOINT op"); err != nil {
		return err
	}
	if !t.try(op) {
		if err := t.exec("ROLLBACK TO op"); err != nil {
			return errors.Join(op.err, err)
		}
	}
	return t.exec("RELEASE op")
}

// plain runs one write that cannot be undone alone: it returns errUndone when it
// fails and may have written something, and, whatever it says, when a statement of
// it may have ended the transaction.
func (t *tx) plain(op *write) error {
	t.wrote = false
	ok := t.try(op)
	if ok && t.ended {
		op.err = fmt.Errorf("%w: a statement has failed", ErrUnavailable)
	}
	if t.ended || !ok && t.wrote {
		return errUndone
	}
	return nil
}

// try runs one write, and says whether it went well. Its error goes to op.err.
func (t *tx) try(op *write) bool {
	t.current, t.touched = op, t.touched[:0]
	published := len(t.accepted)
	op.err = t.w.damage.notice(t.protect(op.run))
	t.current = nil
	if op.err == nil {
		return true
	}
	if isStorage(op.err) {
		t.refused, t.why = t.refused+1, op.err
		op.err = fmt.Errorf("%w: %w", ErrUnavailable, op.err)
	}
	for _, p := range t.touched {
		delete(t.w.heads, p)
	}
	t.accepted = t.accepted[:published]
	op.after = nil
	return false
}

// forget forgets what is known of the database by heart: it may not be so.
func (w *writer) forget() {
	clear(w.heads)
	w.fails = nil
}

// protect turns a panic of one write into its error: the other writes of the
// commit, and the role of the leader, are not its to take down.
func (t *tx) protect(run func(*tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: panic in a write: %v\n%s", p, debug.Stack())
		}
	}()
	return run(t)
}

// refused returns why nothing may be written for good, nil for nothing.
func (w *writer) refused() error {
	if w.damage.seen() != nil {
		return ErrDamaged
	}
	if !w.leased() {
		return replica.ErrLeaseExpired
	}
	return nil
}

// leased reports whether the lease that writing needs, if any, is valid.
func (w *writer) leased() bool {
	valid := w.lease.Load()
	return valid == nil || (*valid)()
}

// stop waits for the writes under way and refuses further ones.
func (w *writer) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for w.led {
		w.idle.Wait()
	}
}

// ended says whether the writer was stopped.
func (w *writer) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// close stops the writer and closes its connection.
func (w *writer) close() error {
	w.stop()
	for _, s := range w.stmts {
		s.Close()
	}
	return errors.Join(w.conn.Close(), w.db.Close())
}

// afterCommit has fn run once what the current write wrote is on disk, before
// its owner is woken. fn must be quick and must not write.
func (t *tx) afterCommit(fn func()) { t.current.after = append(t.current.after, fn) }

func (t *tx) stmt(query string) (*sql.Stmt, error) {
	t.w.ran++
	if s := t.w.stmts[query]; s != nil {
		return s, nil
	}
	s, err := t.w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	t.w.stmts[query] = s
	return s, nil
}

// exec runs a statement, prepared once. The query must be a constant.
func (t *tx) exec(query string, args ...any) error {
	_, err := t.execResult(query, args...)
	return err
}

// affected is exec; it returns how many rows were changed.
func (t *tx) affected(query string, args ...any) (int64, error) {
	r, err := t.execResult(query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (t *tx) execResult(query string, args ...any) (sql.Result, error) {
	s, err := t.stmt(query)
	if err != nil {
		return nil, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if t.heed(err); err == nil {
		n, err := r.RowsAffected()
		t.wrote = t.wrote || n != 0 || err != nil
	}
	return r, err
}

// scan reads the one row of a query; sql.ErrNoRows when there is none. The
// query may write and return a row.
func (t *tx) scan(query string, args []any, dest ...any) error {
	s, err := t.stmt(query)
	if err != nil {
		return err
	}
	t.read(query)
	err = s.QueryRowContext(context.Background(), args...).Scan(dest...)
	if !errors.Is(err, sql.ErrNoRows) {
		t.heed(err)
	}
	return err
}

// heed notes what the error of a statement, nil for none, means for the
// transaction: a disk that fails, for a read too, may have made SQLite end it.
// What is written from then on is written at once, and cannot be undone.
func (t *tx) heed(err error) {
	if err != nil {
		t.wrote = true // for all that is known
		t.ended = t.ended || isStorage(err)
	}
}

// read notes that a query that returns rows is run, which may write as well.
func (t *tx) read(query string) { t.wrote = t.wrote || !strings.HasPrefix(query, "SELECT ") }

// head is the newest end of a program's log; zero when it is empty.
type head struct {
	seq      int64
	received int64 // Unix milliseconds
}

// head returns the newest end of a program's log.
func (t *tx) head(programID string) (head, error) {
	if h, ok := t.w.heads[programID]; ok {
		return h, nil
	}
	var h head
	err := t.scan("SELECT seq, received_at FROM events WHERE program_id = ? ORDER BY seq DESC LIMIT 1", []any{programID}, &h.seq, &h.received)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return h, err
	}
	t.w.heads[programID] = h
	return h, nil
}

func (t *tx) setHead(programID string, h head) {
	t.touched = append(t.touched, programID)
	t.w.heads[programID] = h
}

// now returns the time to write as a delivery's created_at, in Unix
// milliseconds: never before that of an older delivery, so that a span of time
// is a run of deliveries though the clock was set back.
func (t *tx) now() (int64, error) {
	if t.w.last == 0 {
		err := t.scan("SELECT coalesce(max(created_at), 0) FROM (SELECT created_at FROM deliveries ORDER BY num DESC LIMIT 1)", nil, &t.w.last)
		if err != nil {
			return 0, err
		}
	}
	t.w.last = max(t.w.last, t.w.clock.now().UnixMilli())
	return t.w.last, nil
}
