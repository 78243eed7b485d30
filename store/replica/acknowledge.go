package replica

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNotAcknowledged says that a commit is not known to be in the replica.
var ErrNotAcknowledged = errors.New("the replica does not have it yet")

// acknowledger knows which commits are in the replica, and wakes those who wait for
// one. An upload serves everybody whose commit was made before the write-ahead log was
// copied for it: commits continue while it runs, and those who made them wait for the
// next. Where copying takes a considerable part of an upload, the next is staged, that
// is copied, while one runs.
type acknowledger struct {
	timeout time.Duration // of a wait
	pause   time.Duration // the least pause between two uploads
	commits func() int64  // how many there are, see [sqlite.Writer.Commits]

	covered atomic.Int64  // the first so many commits are in the replica; -1: not even what was there at the start
	wanted  chan struct{} // somebody waits; has room for one

	// Owned by the upload loop: how long a request may take. A connection that hangs
	// holds up everybody, so it begins at the timeout, and doubles for a bucket that is
	// slow.
	patience time.Duration

	mu        sync.Mutex
	uploading bool
	staged    bool // the log is copied, or being copied, for the upload that begins next
	began     time.Time
	upTo      int64   // the commits that the upload covers
	stagedTo  int64   // the commits that the staged one covers
	current   waiters // for the upload
	ahead     waiters // for the staged one
	next      waiters // for the one after it

	// Of the last upload.
	copyTook time.Duration
	ended    time.Time
	took     time.Duration // without the copy
	woken    int           // by it
	waited   int           // for the next, when it ended

	skip int // how many uploads gather lets begin at once
}

// waiters are those who wait for one upload.
type waiters struct {
	done chan struct{} // closed when the upload ends; nil for nobody
	n    int
}

// add returns the channel to wait on.
func (w *waiters) add() <-chan struct{} {
	if w.done == nil {
		w.done = make(chan struct{})
	}
	w.n++
	return w.done
}

// wake has everybody go on.
func (w *waiters) wake() {
	if w.n > 0 {
		close(w.done)
		*w = waiters{}
	}
}

func newAcknowledger(timeout, pause time.Duration, commits func() int64) *acknowledger {
	a := &acknowledger{timeout: timeout, patience: min(timeout, requestTimeout), pause: pause, commits: commits, wanted: make(chan struct{}, 1)}
	a.covered.Store(-1)
	return a
}

// wait waits until the first so many commits are in the replica, for at most the
// timeout. The error wraps [ErrNotAcknowledged] after that.
func (a *acknowledger) wait(ctx context.Context, commits int64) error {
	if a.covered.Load() >= commits {
		return nil
	}
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	for {
		uploaded := a.join(commits)
		if uploaded == nil {
			return nil
		}
		select {
		case <-uploaded:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			if a.covered.Load() >= commits {
				continue
			}
			return ErrNotAcknowledged
		}
	}
}

// join returns a channel that is closed when the first upload ends that covers so
// many commits, nil when they are covered. It has an upload begin if none runs that
// does.
func (a *acknowledger) join(commits int64) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.covered.Load() >= commits {
		return nil
	}
	switch {
	case a.uploading && commits <= a.upTo:
		return a.current.add()
	case a.staged && commits <= a.stagedTo:
		return a.ahead.add()
	}
	if a.next.n == 0 {
		a.want()
	}
	return a.next.add()
}

// want has an upload begin. The mutex must be held.
func (a *acknowledger) want() {
	select {
	case a.wanted <- struct{}{}:
	default:
	}
}

// stage stages an upload, which covers all commits up to now: the write-ahead log must
// be copied after it, and copied called then. It reports false when one is staged.
func (a *acknowledger) stage() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.staged {
		return false
	}
	a.staged, a.stagedTo = true, a.commits()
	a.ahead, a.next = a.next, waiters{}
	select {
	case <-a.wanted: // by those whom this upload covers
	default:
	}
	return true
}

// copied says how long the copy of the staged upload took. After a failure none is
// staged.
func (a *acknowledger) copied(took time.Duration, success bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.copyTook = took
	switch {
	case !success:
		a.staged = false
		a.ahead.wake()
	case a.ahead.n > 0 && !a.uploading: // the upload that it was copied during ended before
		a.want()
	}
}

// copyAhead calls copyLog, which stages the next upload, while one runs: late enough
// that both end together. It does so only where that is worthwhile and somebody waits
// for it. The returned function must be called when the upload has ended.
func (a *acknowledger) copyAhead(copyLog func()) (ended func()) {
	a.mu.Lock()
	after, worthwhile := max(0, a.took-a.copyTook), a.pause == 0 && (a.skip > 0 || a.copyTook > a.took/aheadShare)
	a.mu.Unlock()
	if !worthwhile {
		return func() {}
	}
	done, uploaded := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-uploaded:
			return
		case <-timer.C:
		}
		a.mu.Lock()
		awaited := a.next.n > 0
		a.mu.Unlock()
		if awaited {
			copyLog()
		}
	}()
	return func() { close(uploaded); <-done }
}

// aheadShare is the part of an upload, as a fraction, that a copy must take for the
// next to be staged ahead. Those whom an upload wakes come too late for the one that
// is staged then; below it, they are better served by a moment's wait, unless gather
// has found that few of them come back in it.
const aheadShare = 4

// begin begins the staged upload. end must follow.
func (a *acknowledger) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uploading, a.staged, a.began, a.upTo = true, false, time.Now(), a.stagedTo
	a.current, a.ahead = a.ahead, waiters{}
	if a.next.n == 0 {
		select {
		case <-a.wanted: // by those whom this upload covers
		default:
		}
	}
}

// end ends the upload, and wakes those who wait for it. Without success they join
// the next.
func (a *acknowledger) end(success bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.uploading {
		return
	}
	if success {
		a.covered.Store(a.upTo)
	}
	a.uploading = false
	a.ended = time.Now()
	a.took, a.woken, a.waited = a.ended.Sub(a.began), a.current.n, a.next.n
	a.current.wake()
	if a.ahead.n+a.next.n > 0 {
		a.want()
	}
}

// gather waits a moment, after an upload, for those whom it has woken: a publisher
// that sends one event after the other is about to send the next, and would wait for
// almost two uploads if the next one began without it. The moment ends when all have
// come, when nobody came within half of it, and at the latest after two fifths of
// the time of an upload. Where fewer than two thirds of them come, as when publishers are
// independent of each other, most uploads begin at once.
func (a *acknowledger) gather(ctx context.Context) {
	for waiting := 0; ; {
		a.mu.Lock()
		moment := time.Duration(float64(a.took) * gatherShare)
		before, left := waiting, moment-time.Since(a.ended)
		waiting = a.next.n
		all, step := waiting >= a.woken+a.waited, moment/gatherSteps
		over := a.staged || a.skip > 0 || all || waiting == before || left <= 0
		switch {
		case a.skip > 0:
			a.skip--
		case a.staged:
		case over && 3*(waiting-a.waited) < 2*a.woken:
			a.skip = gatherSkip
		}
		a.mu.Unlock()
		if over {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(step, left)):
		}
	}
}

const (
	gatherShare = 0.4 // of an upload
	gatherSteps = 2   // in which somebody must come
	gatherSkip  = 15
)

// awaited receives when somebody waits for an upload that has not begun; never
// without an acknowledger.
func (a *acknowledger) awaited() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.wanted
}

// least returns the least pause between two uploads, which is the interval without
// an acknowledger.
func (a *acknowledger) least(interval time.Duration) time.Duration {
	if a == nil {
		return interval
	}
	return a.pause
}

// requestTimeout bounds the next upload, without what its size adds.
func (a *acknowledger) requestTimeout() time.Duration {
	if a == nil {
		return requestTimeout
	}
	return a.patience
}

// adapt adapts the patience to an upload that has ended, by success or by its
// timeout.
func (a *acknowledger) adapt(took time.Duration, stalled bool) {
	switch {
	case a == nil:
	case stalled:
		a.patience = min(2*a.patience, requestTimeout)
	default:
		a.patience = min(max(a.timeout, 2*took), requestTimeout)
	}
}

// forget takes nothing for covered or staged, until the next upload: what the replica
// held, or what waited on the disk, may be lost.
func (a *acknowledger) forget() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.covered.Store(-1)
	a.staged = false
	a.ahead.wake()
}

// UploadPause returns the least pause between two uploads that are waited for: the
// sync-interval, if the configuration sets one, else 0.
func (c *Config) UploadPause() time.Duration {
	if c.settings.paced {
		return c.settings.syncInterval
	}
	return 0
}

// Acknowledge has uploads begin as soon as [Replication.Await] waits for one, with a
// pause of [Config.UploadPause] between two. A wait lasts for the timeout at most. It
// is called once at most, before Run.
func (r *Replication) Acknowledge(timeout time.Duration) {
	r.acks = newAcknowledger(timeout, r.cfg.UploadPause(), r.writer.Commits)
}

// AcknowledgeTimeout returns the timeout that Acknowledge was called with, 0 when it
// was not.
func (r *Replication) AcknowledgeTimeout() time.Duration {
	if r.acks == nil {
		return 0
	}
	return r.acks.timeout
}

// Await waits until the first so many commits of the writer are in the replica,
// uploaded while the lease was valid. What was there before the process started
// counts from the first upload on. The error wraps [ErrNotAcknowledged] when that
// takes too long. Acknowledge must have been called.
func (r *Replication) Await(ctx context.Context, commits int64) error {
	return r.acks.wait(ctx, commits)
}

// Covered reports whether the first so many commits are in the replica.
// Acknowledge must have been called.
func (r *Replication) Covered(commits int64) bool { return r.acks.covered.Load() >= commits }

// Measure has f called after each upload with how many files it sent and how long
// that took. It is called once at most, before Run.
func (r *Replication) Measure(f func(files int, took time.Duration)) { r.measure = f }
