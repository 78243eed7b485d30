package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/test/harness"
)

// publishers waits for uploads on behalf of named groups of publishers.
type publishers struct {
	a       *acknowledger
	working sync.WaitGroup
	mu      sync.Mutex
	errs    map[string][]error // results of the waits that have ended
}

// wait starts another wait for n commits.
func (w *publishers) wait(name string, ctx context.Context, n int64) {
	w.working.Go(func() {
		err := w.a.wait(ctx, n)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.errs[name] = append(w.errs[name], err)
	})
	synctest.Wait()
}

// woken returns how many waits of a group have ended.
func (w *publishers) woken(name string) int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.errs[name])
}

// result returns the errors of the waits of a group that have ended.
func (w *publishers) result(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs[name]...)
}

// checkTimeouts checks that waits end by cancellation and by the timeout. The group
// "second" must be waiting for n commits.
func (w *publishers) checkTimeouts(t *testing.T, n int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w.wait("canceled", ctx, n)
	cancel()
	if w.woken("canceled") != 1 || !errors.Is(w.result("canceled"), context.Canceled) {
		t.Errorf("canceled wait: got %v, want %v", w.result("canceled"), context.Canceled)
	}
	began := time.Now()
	if err := w.a.wait(t.Context(), n+1); !errors.Is(err, ErrNotAcknowledged) || time.Since(began) != 5*time.Second {
		t.Errorf("got %v after %s, want %v after 5s", err, time.Since(began), ErrNotAcknowledged)
	}
	if w.woken("second") != 1 || !errors.Is(w.result("second"), ErrNotAcknowledged) {
		t.Errorf("second: got %v, want %v", w.result("second"), ErrNotAcknowledged)
	}
}

// An upload wakes all waiters for commits from before it began. Others wait for the next
// upload.
func TestAcknowledger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var commits atomic.Int64
		a := newAcknowledger(5*time.Second, 0, commits.Load)
		w := &publishers{a: a, errs: make(map[string][]error)}
		awaited := func() bool { return len(a.requests) == 1 }

		// Before the first upload, nothing is covered.
		w.wait("start", t.Context(), 0)
		if !awaited() {
			t.Error("first wait: got no request for an upload")
		}
		a.stage()
		a.begin()
		if awaited() {
			t.Error("a waiter that the upload covers requests another upload")
		}
		a.end(true)
		if w.woken("start") != 1 || a.wait(t.Context(), 0) != nil {
			t.Error("the first upload does not cover 0 commits")
		}

		for range 100 {
			commits.Add(1)
			w.wait("first", t.Context(), commits.Load())
		}
		a.stage()
		w.wait("first", t.Context(), commits.Load()) // during the copy of the WAL
		a.copied(time.Millisecond, true)
		a.begin()
		w.wait("first", t.Context(), commits.Load()) // during the upload, for a commit from before it
		commits.Add(1)
		w.wait("second", t.Context(), commits.Load())
		if w.woken("first") != 0 || !awaited() {
			t.Errorf("during the upload: got %d woken and a request %t, want 0 and true", w.woken("first"), awaited())
		}
		a.end(true)
		if w.woken("first") != 102 || w.woken("second") != 0 {
			t.Errorf("the first upload woke %d and %d, want 102 and 0", w.woken("first"), w.woken("second"))
		}
		a.stage()
		a.copied(time.Millisecond, false)
		synctest.Wait()
		if w.woken("second") != 0 || !awaited() {
			t.Errorf("failed copy: got %d woken and a request %t, want 0 and true", w.woken("second"), awaited())
		}
		a.stage()
		a.begin()
		a.end(false)
		synctest.Wait()
		if w.woken("second") != 0 || !awaited() {
			t.Errorf("failed upload: got %d woken and a request %t, want 0 and true", w.woken("second"), awaited())
		}
		w.checkTimeouts(t, commits.Load())
		w.working.Wait()
	})
}

// An upload that is staged while another runs has only the waiters that it covers.
func TestAcknowledgerStaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var commits atomic.Int64
		a := newAcknowledger(5*time.Second, 0, commits.Load)
		w := &publishers{a: a, errs: make(map[string][]error)}
		awaited := func() bool { return len(a.requests) == 1 }
		w.wait("first", t.Context(), commits.Load())
		a.stage()
		a.begin()
		commits.Add(1)
		w.wait("ahead", t.Context(), commits.Load())
		if !a.stage() || a.stage() {
			t.Error("stage: want true, then false")
		}
		commits.Add(1)
		w.wait("second", t.Context(), commits.Load())
		a.end(true)
		if w.woken("first") != 1 || w.woken("ahead") != 0 || !awaited() {
			t.Error("the staged upload is not requested, or its waiters are woken")
		}
		<-a.requests // as the upload loop does, once for both uploads
		a.begin()
		a.end(true)
		if w.woken("ahead") != 1 || w.woken("second") != 0 || !awaited() {
			t.Error("the staged upload covers too few or too many commits, or the next is not requested")
		}
		w.checkTimeouts(t, commits.Load())
		w.working.Wait()
	})
}

// uploader simulates the upload loop until ctx ends, and returns the number of uploads.
func uploader(ctx context.Context, a *acknowledger, took, copying time.Duration) (n int) {
	copyWAL := func() {
		if a.stage() {
			time.Sleep(copying)
			a.copied(copying, true)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return n
		case <-a.awaited():
		}
		a.linger(ctx)
		copyWAL()
		a.begin()
		ended := a.copyAhead(copyWAL)
		time.Sleep(took)
		a.end(true)
		ended()
		n++
	}
}

// Publishers that send one event after the other wait for little more than one upload,
// however many they are. Independent publishers wait for about one and a half.
func TestAcknowledgerLatency(t *testing.T) {
	const upload = 20 * time.Millisecond
	uniform := func(least, most time.Duration) func(*rand.Rand) time.Duration {
		return func(r *rand.Rand) time.Duration {
			return least + time.Duration(r.IntN(int((most-least)/time.Microsecond)))*time.Microsecond
		}
	}
	exponential := func(mean time.Duration) func(*rand.Rand) time.Duration {
		return func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) }
	}
	const us, ms = time.Microsecond, time.Millisecond
	for _, test := range []struct {
		name       string
		publishers int
		copying    time.Duration                  // duration of a copy of the WAL
		between    func(*rand.Rand) time.Duration // pause between two events of a publisher
		most       float64                        // maximum median, in uploads
	}{
		{"one publisher", 1, 0, uniform(0, 1500*us), 1.01},
		{"some publishers", 8, 0, uniform(0, 3*ms), 1.2},
		{"many publishers", 200, 0, uniform(0, 3*ms), 1.2},
		{"publishers on a busy machine", 64, 3 * ms, uniform(2*ms, 7*ms), 1.7},
		{"many slow publishers", 200, 0, exponential(200 * ms), 1.6},
		{"many publishers, slow copy", 1024, 16 * ms, uniform(0, 12*ms), 2.7},
		{"independent publishers, slow copy", 500, 10 * ms, exponential(200 * ms), 2.1},
		{"independent publishers, fast copy", 200, 4400 * us, exponential(360 * ms), 1.8},
		{"few independent publishers", 20, 0, exponential(500 * ms), 1.6},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var commits atomic.Int64
				a := newAcknowledger(5*time.Second, 0, commits.Load)
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
				defer stop()
				all := make([][]time.Duration, test.publishers)
				var working sync.WaitGroup
				for n := range all {
					r := rand.New(rand.NewPCG(1, uint64(n)))
					working.Go(func() { all[n] = publishTimes(ctx, a, &commits, func() time.Duration { return test.between(r) }) })
				}
				uploads := uploader(ctx, a, upload, test.copying)
				working.Wait()
				took := slices.Concat(all...)
				slices.Sort(took)
				p50, p99 := float64(took[len(took)/2])/float64(upload), float64(took[len(took)*99/100])/float64(upload)
				t.Logf("%d acknowledgements by %d uploads: p50 %.2f, p99 %.2f uploads", len(took), uploads, p50, p99)
				if p50 > test.most {
					t.Errorf("got p50 of %.2f uploads, want at most %.2f", p50, test.most)
				}
				if p99 > 3 {
					t.Errorf("got p99 of %.2f uploads, want at most 3: a requested upload did not begin", p99)
				}
			})
		})
	}
}

// publishTimes publishes events with pauses in between until ctx ends, and returns how long
// each waited for its acknowledgement.
func publishTimes(ctx context.Context, a *acknowledger, commits *atomic.Int64, pause func() time.Duration) (took []time.Duration) {
	for ctx.Err() == nil {
		time.Sleep(pause())
		began := time.Now()
		if err := a.wait(ctx, commits.Add(1)); err != nil {
			break
		}
		took = append(took, time.Since(began))
	}
	return took
}

// After reset, no commits are covered.
func TestAcknowledgerReset(t *testing.T) {
	a := newAcknowledger(time.Millisecond, 0, func() int64 { return 7 })
	a.stage()
	a.begin()
	a.end(true)
	if err := a.wait(t.Context(), 7); err != nil {
		t.Error(err)
	}
	a.reset()
	wantError(t, "after reset", a.wait(t.Context(), 0), ErrNotAcknowledged)
}

// One upload covers all commits from before it. Waits do not depend on the
// monitor-interval, nor on the sync-interval if the configuration does not set it.
func TestAwait(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	cfg := b.config(t, dir)
	cfg.MonitorInterval, cfg.settings.syncInterval, cfg.settings.syncIntervalSet = time.Hour, time.Hour, false
	r := openReplicatedWith(t, dir, cfg, func(r *Replication) { r.Acknowledge(harness.Timeout()) })
	must(t, r.Await(t.Context(), 0))
	var puts atomic.Int64
	const writers, each = 50, 4
	for range each {
		written := make(chan struct{})
		hold := func(request *http.Request) { // the first upload, until all have written
			if request.Method == http.MethodPut && strings.Contains(request.URL.Path, "/0000/") {
				puts.Add(1)
				<-written
			}
		}
		b.delay.Store(&hold)
		var writing, waiting sync.WaitGroup
		for range writers {
			writing.Add(1)
			waiting.Go(func() {
				r.insert(1)
				writing.Done()
				if err := r.Await(t.Context(), r.writer.Commits()); err != nil {
					t.Error(err)
				}
			})
		}
		writing.Wait()
		close(written)
		waiting.Wait()
	}
	if n := puts.Load(); n == 0 || n > writers*each/4 {
		t.Errorf("got %d uploads for %d writes of %d writers, want at most a quarter of the writes", n, writers*each, writers)
	}
	// A commit that changed nothing needs no upload.
	before := puts.Load()
	r.write("SELECT 1")
	if err := r.Await(t.Context(), r.writer.Commits()); err != nil || puts.Load() != before {
		t.Errorf("empty commit: got %v after %d uploads, want none", err, puts.Load()-before)
	}
	if n := restoredRows(t, cfg); n != writers*each { // while it runs: nothing else may upload it
		t.Errorf("got %d rows in the replica, want %d", n, writers*each)
	}
}

// While the bucket fails or the lease is not valid, nothing is acknowledged. Commits during
// an upload are covered by the next one.
func TestAwaitOutage(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	dir := t.TempDir()
	cfg := b.config(t, dir)
	var expired atomic.Bool
	r := openReplicatedWith(t, dir, cfg, func(r *Replication) {
		r.Acknowledge(300 * time.Millisecond)
		r.Fence(func() bool { return !expired.Load() })
	})
	acknowledge := func() error { return r.Await(t.Context(), r.writer.Commits()) }
	await := func(what string) {
		t.Helper()
		for n := 0; ; n++ {
			err := acknowledge()
			if err == nil {
				return
			}
			if n == 100 || !errors.Is(err, ErrNotAcknowledged) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	await("the start")
	b.down.Store(true)
	r.insert(1)
	wantError(t, "bucket down", acknowledge(), ErrNotAcknowledged)
	b.down.Store(false)
	await("the bucket is back")
	wantNumber(t, "rows in the replica", restoredRows(t, cfg), 1)

	// The lease ends during an upload. It may be that of earlier changes, so the test
	// repeats this.
	for range 4 {
		ended := make(chan struct{})
		end := sync.OnceFunc(func() {
			expired.Store(true)
			close(ended)
		})
		hook := func(request *http.Request) {
			if request.Method == http.MethodPut {
				end()
			}
		}
		b.delay.Store(&hook)
		r.insert(1)
		<-ended
		for range 3 { // until the upload is over
			if err := acknowledge(); !errors.Is(err, ErrNotAcknowledged) {
				t.Errorf("response after the end of the lease: got %v, want %v", err, ErrNotAcknowledged)
				break
			}
		}
		b.delay.Store(nil)
		expired.Store(false)
		await("the lease is back")
	}
}

// A sync-interval in the configuration is the minimum pause between uploads.
func TestAcknowledgePause(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]time.Duration{"": 0, "      sync-interval: 70ms\n": 70 * time.Millisecond} {
		cfg := mustParseConfig(t, "dbs:\n  - path: "+dir+"/service.db\n    replica:\n      path: /r\n"+text)
		r := NewReplication(cfg, dir+"/service.db", nil, testLogger(t))
		r.Acknowledge(time.Second)
		if got := r.acks.pause; got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// The timeout of requests grows for a slow bucket and shrinks again.
func TestAcknowledgeRequestTimeout(t *testing.T) {
	a := newAcknowledger(5*time.Second, 0, nil)
	for i, step := range []struct {
		took    time.Duration
		stalled bool
		want    time.Duration
	}{
		{time.Second, false, 5 * time.Second},
		{5 * time.Second, true, 10 * time.Second},
		{10 * time.Second, true, requestTimeout},
		{6 * time.Second, false, 12 * time.Second},
		{time.Second, false, 5 * time.Second},
	} {
		if a.adapt(step.took, step.stalled); a.requestTimeout() != step.want {
			t.Errorf("step %d: got %s, want %s", i, a.requestTimeout(), step.want)
		}
	}
}
