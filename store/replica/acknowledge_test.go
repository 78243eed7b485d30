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
)

// publishers wait for uploads, under names.
type publishers struct {
	a       *acknowledger
	working sync.WaitGroup
	mu      sync.Mutex
	errs    map[string][]error // what those who wait no more have got
}

// wait has one more wait for commit n.
func (w *publishers) wait(name string, ctx context.Context, n int64) {
	w.working.Go(func() {
		err := w.a.wait(ctx, n)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.errs[name] = append(w.errs[name], err)
	})
	synctest.Wait()
}

// woken returns how many of a name wait no more.
func (w *publishers) woken(name string) int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.errs[name])
}

// result returns the errors of those of a name who wait no more.
func (w *publishers) result(name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs[name]...)
}

// leave has the waits of "second" for commit n, and of others, end without an upload.
func (w *publishers) leave(t *testing.T, n int64) {
	t.Helper()
	gone, leave := context.WithCancel(t.Context())
	w.wait("gone", gone, n)
	leave()
	if w.woken("gone") != 1 || !errors.Is(w.result("gone"), context.Canceled) {
		t.Errorf("got %v for one who has left", w.result("gone"))
	}
	began := time.Now()
	if err := w.a.wait(t.Context(), n+1); !errors.Is(err, ErrNotAcknowledged) || time.Since(began) != 5*time.Second {
		t.Errorf("got %v after %s", err, time.Since(began))
	}
	if w.woken("second") != 1 || !errors.Is(w.result("second"), ErrNotAcknowledged) {
		t.Errorf("got %v after the timeout", w.result("second"))
	}
}

// An upload wakes those whose commit was made before it began, all at once; the
// others wait for the next.
func TestAcknowledger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var commits atomic.Int64
		a := newAcknowledger(5*time.Second, 0, commits.Load)
		w := &publishers{a: a, errs: make(map[string][]error)}
		awaited := func() bool { return len(a.wanted) == 1 }

		// What was there before the process started is not covered.
		w.wait("start", t.Context(), 0)
		if !awaited() {
			t.Error("no upload is asked for")
		}
		a.stage()
		a.begin()
		if awaited() {
			t.Error("another upload is asked for by one whom this one covers")
		}
		a.end(true)
		if w.woken("start") != 1 || a.wait(t.Context(), 0) != nil {
			t.Error("the first upload does not cover what was there")
		}

		for range 100 {
			commits.Add(1)
			w.wait("first", t.Context(), commits.Load())
		}
		a.stage()
		w.wait("first", t.Context(), commits.Load()) // the log is being copied
		a.copied(time.Millisecond, true)
		a.begin()
		w.wait("first", t.Context(), commits.Load()) // committed before it, though it waits only now
		commits.Add(1)
		w.wait("second", t.Context(), commits.Load())
		if w.woken("first") != 0 || !awaited() {
			t.Error("somebody was woken before the upload ended, or no second is asked for")
		}
		a.end(true)
		if w.woken("first") != 102 || w.woken("second") != 0 {
			t.Errorf("the first upload woke %d and %d, want 102 and 0", w.woken("first"), w.woken("second"))
		}
		a.stage()
		a.copied(time.Millisecond, false)
		synctest.Wait()
		if w.woken("second") != 0 || !awaited() {
			t.Error("a copy that failed woke somebody, or the upload is not asked for again")
		}
		a.stage()
		a.begin()
		a.end(false)
		synctest.Wait()
		if w.woken("second") != 0 || !awaited() {
			t.Error("an upload that failed woke somebody, or is not asked for again")
		}
		w.leave(t, commits.Load())
		w.working.Wait()
	})
}

// An upload that is staged while another runs begins with those alone whom it covers.
func TestAcknowledgerStaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var commits atomic.Int64
		a := newAcknowledger(5*time.Second, 0, commits.Load)
		w := &publishers{a: a, errs: make(map[string][]error)}
		awaited := func() bool { return len(a.wanted) == 1 }
		w.wait("first", t.Context(), commits.Load())
		a.stage()
		a.begin()
		commits.Add(1)
		w.wait("ahead", t.Context(), commits.Load())
		if !a.stage() || a.stage() {
			t.Error("not exactly one upload can be staged")
		}
		commits.Add(1)
		w.wait("second", t.Context(), commits.Load())
		a.end(true)
		if w.woken("first") != 1 || w.woken("ahead") != 0 || !awaited() {
			t.Error("the staged upload is not asked for, or has ended before it began")
		}
		<-a.wanted // as the upload loop does, once for both
		a.begin()
		a.end(true)
		if w.woken("ahead") != 1 || w.woken("second") != 0 || !awaited() {
			t.Error("the staged upload does not cover what was committed before it, covers more, or no other is asked for")
		}
		w.leave(t, commits.Load())
		w.working.Wait()
	})
}

// uploader uploads what a waits for, as the upload loop does, until ctx ends. It
// returns how many uploads there were.
func uploader(ctx context.Context, a *acknowledger, took, copying time.Duration) (n int) {
	copyLog := func() {
		if a.stage() {
			<-time.After(copying)
			a.copied(copying, true)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return n
		case <-a.awaited():
		}
		a.gather(ctx)
		copyLog()
		a.begin()
		ended := a.copyAhead(copyLog)
		<-time.After(took)
		a.end(true)
		ended()
		n++
	}
}

// Publishers that send one event after the other wait for little more than one
// upload, however many they are; those that come at any time for one and a half.
func TestAcknowledgerTimes(t *testing.T) {
	const upload = 20 * time.Millisecond
	for _, test := range []struct {
		name       string
		publishers int
		copying    time.Duration                  // the log
		between    func(*rand.Rand) time.Duration // two events of a publisher
		most       float64                        // the median, in uploads
	}{
		{"one publisher", 1, 0, func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(1500)) * time.Microsecond }, 1.01},
		{"some publishers", 8, 0, func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(3000)) * time.Microsecond }, 1.2},
		{"many publishers", 200, 0, func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(3000)) * time.Microsecond }, 1.2},
		{"publishers of a busy machine", 64, 3 * time.Millisecond, func(r *rand.Rand) time.Duration { return time.Duration(2000+r.IntN(5000)) * time.Microsecond }, 1.7},
		{"many slow publishers", 200, 0, func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(200*time.Millisecond)) }, 1.6},
		{"many publishers, much to copy", 1024, 16 * time.Millisecond, func(r *rand.Rand) time.Duration { return time.Duration(r.IntN(12000)) * time.Microsecond }, 2.7},
		{"much to copy at any time", 500, 10 * time.Millisecond, func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(200*time.Millisecond)) }, 2.1},
		{"a little to copy at any time", 200, 4400 * time.Microsecond, func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(360*time.Millisecond)) }, 1.8},
		{"few at any time", 20, 0, func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(500*time.Millisecond)) }, 1.6},
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
					t.Errorf("p50 is %.2f uploads, want at most %.2f", p50, test.most)
				}
				if p99 > 3 {
					t.Errorf("p99 is %.2f uploads, want at most 3: an upload that somebody waited for did not begin", p99)
				}
			})
		})
	}
}

// publishTimes publishes events with pauses between them, until ctx ends, and returns
// how long each waited for its acknowledgement.
func publishTimes(ctx context.Context, a *acknowledger, commits *atomic.Int64, pause func() time.Duration) (took []time.Duration) {
	for ctx.Err() == nil {
		<-time.After(pause())
		began := time.Now()
		if err := a.wait(ctx, commits.Add(1)); err != nil {
			break
		}
		took = append(took, time.Since(began))
	}
	return took
}

// A new session takes nothing for covered.
func TestAcknowledgerForgets(t *testing.T) {
	a := newAcknowledger(time.Millisecond, 0, func() int64 { return 7 })
	a.stage()
	a.begin()
	a.end(true)
	if err := a.wait(t.Context(), 7); err != nil {
		t.Error(err)
	}
	a.forget()
	if err := a.wait(t.Context(), 0); !errors.Is(err, ErrNotAcknowledged) {
		t.Errorf("got %v for what it has forgotten", err)
	}
}

// One upload serves all who have committed before it. Nobody waits for the
// monitor-interval, nor for the sync-interval if the configuration sets none.
func TestAwait(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	cfg := b.config(t, dir)
	cfg.MonitorInterval, cfg.settings.syncInterval, cfg.settings.paced = time.Hour, time.Hour, false
	r := openReplicatedWith(t, dir, cfg, func(r *Replication) { r.Acknowledge(20 * time.Second) })
	if err := r.Await(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	var puts atomic.Int64
	slow := func(request *http.Request) {
		if request.Method == http.MethodPut && strings.Contains(request.URL.Path, "/0000/") {
			puts.Add(1)
			<-time.After(50 * time.Millisecond)
		}
	}
	b.delay.Store(&slow)
	const writers, each = 50, 4
	var working sync.WaitGroup
	for range writers {
		working.Go(func() {
			for range each {
				r.insert(1)
				if err := r.Await(t.Context(), r.writer.Commits()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	working.Wait()
	if n := puts.Load(); n == 0 || n > writers*each/4 {
		t.Errorf("%d uploads for %d writes of %d writers", n, writers*each, writers)
	}
	// Nothing is uploaded for a commit that changed nothing.
	before := puts.Load()
	r.write("SELECT 1")
	if err := r.Await(t.Context(), r.writer.Commits()); err != nil || puts.Load() != before {
		t.Errorf("got %v after %d uploads for an empty commit", err, puts.Load()-before)
	}
	if n := restoredRows(t, cfg); n != writers*each { // while it runs: nothing else may upload it
		t.Errorf("%d rows are in the replica, want %d", n, writers*each)
	}
}

// While the bucket does not answer, and while the lease is not valid, nothing is
// acknowledged. What was written during an upload is covered by the next upload.
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
	if err := acknowledge(); !errors.Is(err, ErrNotAcknowledged) {
		t.Errorf("got %v while the bucket is away", err)
	}
	b.down.Store(false)
	await("the bucket is back")
	if n := restoredRows(t, cfg); n != 1 {
		t.Errorf("%d rows are in the replica, want 1", n)
	}

	// The lease ends while an upload is under way: of the row, or of something that was
	// to be uploaded before it, which is why it is done more than once.
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
		for range 3 { // it takes as long as it takes until the upload is over
			if err := acknowledge(); !errors.Is(err, ErrNotAcknowledged) {
				t.Errorf("got %v for an upload whose answer came after the lease", err)
				break
			}
		}
		b.delay.Store(nil)
		expired.Store(false)
		await("the lease is back")
	}
}

// A sync-interval that the configuration sets is the least pause between uploads.
func TestAcknowledgePause(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]time.Duration{"": 0, "      sync-interval: 70ms\n": 70 * time.Millisecond} {
		cfg := mustParseConfig(t, "dbs:\n  - path: "+dir+"/service.db\n    replica:\n      path: /r\n"+text)
		r := NewReplication(cfg, dir+"/service.db", nil, testLogger(t))
		r.Acknowledge(time.Second)
		if got := r.acks.least(cfg.settings.syncInterval); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// A bucket that is slow gets more time, and one that hangs does not hold up others
// for long.
func TestAcknowledgePatience(t *testing.T) {
	a := newAcknowledger(5*time.Second, 0, nil)
	for i, step := range []struct {
		took    time.Duration
		stalled bool
		want    time.Duration
	}{{time.Second, false, 5 * time.Second}, {5 * time.Second, true, 10 * time.Second}, {10 * time.Second, true, requestTimeout}, {6 * time.Second, false, 12 * time.Second}, {time.Second, false, 5 * time.Second}} {
		if a.adapt(step.took, step.stalled); a.requestTimeout() != step.want {
			t.Errorf("step %d: got %s, want %s", i, a.requestTimeout(), step.want)
		}
	}
}
