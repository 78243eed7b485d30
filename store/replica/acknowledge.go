package replica

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNotAcknowledged means that a commit is not known to be in the replica.
var ErrNotAcknowledged = errors.New("the replica does not have it yet")

// acknowledger tracks which commits are in the replica and wakes the callers that wait
// for them.
//
// An upload covers all commits before the copy of the WAL for it. Commits continue
// while it runs; their callers wait for the next upload. If the copy takes a large part
// of an upload, the next upload is staged while one runs: its copy is made ahead.
type acknowledger struct {
	timeout time.Duration // of a wait for an acknowledgement; 0 if commits are acknowledged without waiting
	pause   time.Duration // minimum pause between two uploads
	commits func() int64  // number of commits, see [sqlite.Writer.Commits]

	covered  atomic.Int64  // number of commits that are in the replica; -1 before the first upload
	requests chan struct{} // a caller waits for an upload; capacity 1

	// Owned by the upload loop: the time limit of a request. It begins at timeout,
	// because a hanging connection delays all callers, and doubles if the bucket is
	// slow.
	uploadLimit time.Duration

	mu        sync.Mutex
	uploading bool
	staged    bool // the WAL is copied, or being copied, for the next upload
	began     time.Time
	upTo      int64   // number of commits that the upload covers
	stagedTo  int64   // number of commits that the staged upload covers
	current   waiters // for the upload
	ahead     waiters // for the staged upload
	next      waiters // for the upload after it

	// The last upload.
	copyTook time.Duration
	ended    time.Time
	took     time.Duration // without the copy
	woken    int           // number of callers that it woke
	waited   int           // number of callers that waited for the next upload when it ended

	skip int // number of uploads for which linger returns immediately
}

// waiters are the callers that wait for one upload.
type waiters struct {
	done chan struct{} // closed when the upload ends; nil without waiters
	n    int
}

// add adds a waiter and returns the channel to wait on.
func (w *waiters) add() <-chan struct{} {
	if w.done == nil {
		w.done = make(chan struct{})
	}
	w.n++
	return w.done
}

// wake wakes all waiters.
func (w *waiters) wake() {
	if w.n > 0 {
		close(w.done)
		*w = waiters{}
	}
}

func newAcknowledger(timeout, pause time.Duration, commits func() int64) *acknowledger {
	a := &acknowledger{
		timeout: timeout, uploadLimit: requestTimeout, pause: pause,
		commits: commits, requests: make(chan struct{}, 1),
	}
	if timeout > 0 {
		a.uploadLimit = min(timeout, requestTimeout)
	}
	a.covered.Store(-1)
	return a
}

// wait waits until the given number of commits are in the replica. After the timeout
// it returns [ErrNotAcknowledged].
func (a *acknowledger) wait(ctx context.Context, commits int64) error {
	if a.covered.Load() >= commits {
		return nil
	}
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()
	return a.waitUntil(ctx, commits, timer.C)
}

// waitUntil is wait until timeout receives, which may be nil.
func (a *acknowledger) waitUntil(ctx context.Context, commits int64, timeout <-chan time.Time) error {
	for {
		uploaded := a.join(commits)
		if uploaded == nil {
			return nil
		}
		select {
		case <-uploaded:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout:
			if a.covered.Load() >= commits {
				continue
			}
			return ErrNotAcknowledged
		}
	}
}

// join returns a channel that is closed when the first upload that covers the given
// number of commits ends, or nil if they are covered already. It requests an upload if
// neither the running nor the staged one covers them.
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
		wake(a.requests)
	}
	return a.next.add()
}

// stage stages an upload that covers all commits so far. The caller must then copy the
// WAL and call copied. stage returns false if an upload is staged already.
func (a *acknowledger) stage() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.staged {
		return false
	}
	a.staged, a.stagedTo = true, a.commits()
	a.ahead, a.next = a.next, waiters{}
	select {
	case <-a.requests: // of the callers that this upload covers
	default:
	}
	return true
}

// copied records how long the copy for the staged upload took. After a failure, no
// upload is staged.
func (a *acknowledger) copied(took time.Duration, success bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.copyTook = took
	switch {
	case !success:
		a.staged = false
		a.ahead.wake()
	case a.ahead.n > 0 && !a.uploading: // the upload that ran during the copy has ended
		wake(a.requests)
	}
}

// copyAhead calls copyWAL, which stages the next upload, while an upload runs. It times
// the call so that both end together. It does nothing if that is not worthwhile or if
// no caller waits for the next upload. The returned function must be called when the
// upload has ended.
func (a *acknowledger) copyAhead(copyWAL func()) (ended func()) {
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
			copyWAL()
		}
	}()
	return func() { close(uploaded); <-done }
}

// The next upload is staged ahead if its copy takes more than 1/aheadShare of an
// upload. Callers that an upload wakes come too late for a staged upload. Below this
// share, lingering serves them better, unless linger found that few of them return in
// time.
const aheadShare = 4

// begin marks the staged upload as running. end must follow.
func (a *acknowledger) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uploading, a.staged, a.began, a.upTo = true, false, time.Now(), a.stagedTo
	a.current, a.ahead = a.ahead, waiters{}
	if a.next.n == 0 {
		select {
		case <-a.requests: // of the callers that this upload covers
		default:
		}
	}
}

// end ends the upload and wakes its waiters. If it failed, they join the next one.
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
		wake(a.requests)
	}
}

// linger waits briefly after an upload for the callers that it woke. A publisher that
// sends one event after the other is about to send the next, and would wait for almost
// two uploads if the next one began without it.
//
// linger returns when all of them have come back, when none came within a step, and at
// the latest after lingerShare of the duration of an upload. If fewer than two thirds
// come back, because publishers are independent, it is skipped for lingerSkip uploads.
func (a *acknowledger) linger(ctx context.Context) {
	for waiting := 0; ; {
		a.mu.Lock()
		limit := time.Duration(float64(a.took) * lingerShare)
		before, left := waiting, limit-time.Since(a.ended)
		waiting = a.next.n
		all, step := waiting >= a.woken+a.waited, limit/lingerSteps
		over := a.staged || a.skip > 0 || all || waiting == before || left <= 0
		switch {
		case a.skip > 0:
			a.skip--
		case a.staged:
		case over && 3*(waiting-a.waited) < 2*a.woken:
			a.skip = lingerSkip
		}
		a.mu.Unlock()
		if over {
			return
		}
		if sleep(ctx, min(step, left)) != nil {
			return
		}
	}
}

const (
	lingerShare = 0.4 // of the duration of an upload
	lingerSteps = 2
	lingerSkip  = 15
)

// awaited returns a channel that receives when a caller waits for an upload that has
// not begun.
func (a *acknowledger) awaited() <-chan struct{} { return a.requests }

// requestTimeout returns the timeout of the next upload, to which the caller adds time
// for its size.
func (a *acknowledger) requestTimeout() time.Duration { return a.uploadLimit }

// adapt adapts uploadLimit after an upload that succeeded or stalled.
func (a *acknowledger) adapt(took time.Duration, stalled bool) {
	switch {
	case a.timeout == 0:
	case stalled:
		a.uploadLimit = min(2*a.uploadLimit, requestTimeout)
	default:
		a.uploadLimit = min(max(a.timeout, 2*took), requestTimeout)
	}
}

// reset marks all commits as not covered and nothing as staged, because earlier
// uploads or local files may be lost.
func (a *acknowledger) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.covered.Store(-1)
	a.staged = false
	a.ahead.wake()
}

// UploadPause returns the minimum pause between two uploads for which callers wait: the
// sync-interval if the configuration sets it, else 0.
func (c *Config) UploadPause() time.Duration {
	if c.settings.syncIntervalSet {
		return c.settings.syncInterval
	}
	return 0
}

// Acknowledge makes uploads begin as soon as [Replication.Await] waits for one, with a
// pause of [Config.UploadPause] between two. timeout limits a wait. Acknowledge must be
// called at most once, before Run. Without it, uploads begin at once only for
// [Replication.AwaitUpload].
func (r *Replication) Acknowledge(timeout time.Duration) {
	r.acks = newAcknowledger(timeout, r.cfg.UploadPause(), r.writer.Commits)
}

// AcknowledgeTimeout returns the timeout passed to Acknowledge, or 0.
func (r *Replication) AcknowledgeTimeout() time.Duration { return r.acks.timeout }

// Await waits until the given number of commits of the writer are in the replica,
// uploaded while the lease was valid. With 0 it waits for the first upload, which
// covers everything from before the process started. The error wraps
// [ErrNotAcknowledged] after the timeout. Acknowledge must have been called.
func (r *Replication) Await(ctx context.Context, commits int64) error {
	return r.acks.wait(ctx, commits)
}

// AwaitUpload is Await without a timeout. Acknowledge need not have been called.
func (r *Replication) AwaitUpload(ctx context.Context, commits int64) error {
	return r.acks.waitUntil(ctx, commits, nil)
}

// Covered reports whether the given number of commits are in the replica.
func (r *Replication) Covered(commits int64) bool { return r.acks.covered.Load() >= commits }

// Measure registers f, which is called after each upload with the number of its files
// and its duration. It must be called at most once, before Run.
func (r *Replication) Measure(f func(files int, took time.Duration)) { r.measure = f }
