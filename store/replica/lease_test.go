package replica

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

func newLease(t testing.TB, b *bucket, dir string, ttl time.Duration) *Lease {
	t.Helper()
	l, err := NewLease(t.Context(), LeaseConfig{Replica: b.config(t, dir), Dir: dir, TTL: ttl, Reserve: ttl / 10, Logger: testLogger(t)})
	must(t, err)
	l.timeout = harness.Timeout() // a short TTL does not need a fast bucket
	return l
}

func TestLease(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	one, other := t.TempDir(), t.TempDir()
	const long = time.Hour
	first := newLease(t, b, one, long)
	if y, err := first.State(t.Context()); err != nil || y != (LeaseState{}) {
		t.Errorf("no lease: got %+v, %v, want a zero state", y, err)
	}
	if first.Valid() {
		t.Error("before Acquire: got a valid lease")
	}
	if err := first.Acquire(t.Context(), 0); err != nil || !first.Valid() || first.Generation() != 1 {
		t.Fatalf("Acquire: got %v, generation %d, want generation 1", err, first.Generation())
	}
	if left := first.left(); left > long-first.cfg.Reserve {
		t.Errorf("got a lease for %s, want at most %s, because of the reserve", left, long-first.cfg.Reserve)
	}
	second := newLease(t, b, other, long)
	if err := acquireWhileHeld(t, second, math.MaxInt64, first); !errors.Is(err, ErrLeaseHeld) || second.Valid() {
		t.Errorf("held by another: got %v, want %v", err, ErrLeaseHeld)
	}
	// The next process of the same directory acquires the lease of a crashed one immediately.
	crash(t, one)
	again := newLease(t, b, one, long)
	if err := again.Acquire(t.Context(), 1); err != nil || again.Generation() != 2 {
		t.Errorf("after a crash: got %v, generation %d, want generation 2", err, again.Generation())
	}
	if err := again.Release(t.Context()); err != nil || again.Valid() {
		t.Errorf("Release: got %v, want no error", err)
	}
	// Data from an earlier generation is older.
	wantError(t, "older data", second.Acquire(t.Context(), 1), ErrLeaseStale)
	if err := second.Acquire(t.Context(), 2); err != nil || second.Generation() != 3 || !second.Valid() {
		t.Errorf("after the release: got %v, generation %d, want generation 3", err, second.Generation())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
	wantError(t, "first service again", newLease(t, b, one, long).Acquire(t.Context(), 2), ErrLeaseStale)
	restored := newLease(t, b, one, long)
	if err := restored.Acquire(t.Context(), math.MaxInt64); err != nil || restored.Generation() != 4 {
		t.Errorf("first service, restored: got %v, generation %d, want generation 4", err, restored.Generation())
	}
	if y, err := second.State(t.Context()); err != nil || y.Generation != 4 || y.Ours || time.Until(y.Expires) < 50*time.Minute {
		t.Errorf("State: got %+v, %v, want generation 4 of another service", y, err)
	}
	if _, err := NewLease(t.Context(), LeaseConfig{Replica: fileConfig(t, one, filepath.Join(other, "copy")), Dir: one}); err == nil {
		t.Error("lease in a directory: got no error")
	}
}

// onLog returns a logger that calls f for each line with the given text.
func onLog(text string, f func()) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte(text)) {
			f()
		}
		return len(p), nil
	}), nil))
}

// acquireWhileHeld acquires a lease. Its holder, if not nil, renews it once it is watched: an
// earlier renewal would hide that the lease is acquired immediately.
func acquireWhileHeld(t *testing.T, l *Lease, known int64, holder *Lease) error {
	t.Helper()
	var watched atomic.Bool
	l.cfg.Logger = onLog("waiting to see whether it renews the lease", func() { watched.Store(true) })
	acquired := make(chan error, 1)
	go func() { acquired <- l.Acquire(t.Context(), known) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		select {
		case err := <-acquired:
			return err
		case <-tick.C:
			if holder == nil || !watched.Load() {
				continue
			}
			if err := holder.renewOrLose(t.Context()); err != nil {
				t.Errorf("renewal by the holder: got %v, want no error", err)
				holder = nil
			}
		case <-deadline:
			t.Fatal("Acquire has not returned")
		}
	}
}

// TestLeaseWithoutPeriod checks that a lease object without a period is not taken over.
func TestLeaseWithoutPeriod(t *testing.T) {
	t.Parallel()
	for _, period := range []string{"", `,"period_ms":0`, `,"period_ms":-1`} {
		b := newBucket(t)
		b.put(t, "lock.json", fmt.Sprintf(`{"generation":7,"expires_at":%q,"owner":"other"%s}`, time.Now().Format(time.RFC3339Nano), period))
		l := newLease(t, b, t.TempDir(), time.Second)
		l.margin = 0
		if err := l.Acquire(t.Context(), 7); err == nil || !strings.Contains(err.Error(), "has no period_ms") || l.Valid() {
			t.Errorf("%q: got %v, valid: %t", period, err, l.Valid())
		}
	}
}

// TestLeaseClocks acquires the lease of a holder whose clock is wrong. It must succeed if and
// only if the holder does not renew the lease.
func TestLeaseClocks(t *testing.T) {
	t.Parallel()
	const ttl = 1200 * time.Millisecond
	for _, clock := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		b := newBucket(t)
		write := func(generation, writes int) {
			t.Helper()
			text := fmt.Sprintf(`{"generation":%d,"expires_at":%q,"owner":"other","period_ms":%d,"writes":%d}`,
				generation, time.Now().Add(ttl+clock).Format(time.RFC3339Nano), ttl.Milliseconds(), writes)
			b.put(t, "lock.json", text)
		}
		write(7, 1)
		var reads atomic.Int64
		count := func(r *http.Request) {
			if r.Method == http.MethodGet {
				reads.Add(1)
			}
		}
		b.delay.Store(&count)
		dead := newLease(t, b, t.TempDir(), ttl)
		dead.margin /= 10
		if err := dead.Acquire(t.Context(), 7); err != nil || dead.Generation() != 8 {
			t.Errorf("clock %s, not renewed: got %v, want the lease acquired", clock, err)
		}
		// The watch may pause reads for at most a third of the period, see LeaseWatch.observe.
		if n := reads.Load(); n < 4 {
			t.Errorf("clock %s: acquired after %d reads, want at least 4", clock, n)
		}
		write(9, 1)
		var renewed atomic.Int64
		renew := func(r *http.Request) {
			if r.Method == http.MethodGet && renewed.Add(1) == 3 {
				write(9, 2)
			}
		}
		b.delay.Store(&renew)
		alive := newLease(t, b, t.TempDir(), ttl)
		if err := alive.Acquire(t.Context(), 9); !errors.Is(err, ErrLeaseHeld) || !strings.Contains(err.Error(), "other, generation 9") {
			t.Errorf("clock %s, renewed: got %v, want %v with the owner and the generation", clock, err, ErrLeaseHeld)
		}
		b.delay.Store(nil)
	}
}

// TestAwaitUnleased starts a service without a lease while a primary is dead, alive, and
// stopped.
func TestAwaitUnleased(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	cfg := b.config(t, t.TempDir())
	l := newLease(t, b, t.TempDir(), time.Second)
	await := func() error { return AwaitUnleased(t.Context(), cfg, t.TempDir(), testLogger(t)) }
	wantError(t, "no lease", await(), nil)
	must(t, l.Acquire(t.Context(), 0))
	if err := await(); !errors.Is(err, ErrLeaseUnrenewed) || !strings.Contains(err.Error(), l.owner) {
		t.Errorf("dead primary: got %v, want %v", err, ErrLeaseUnrenewed)
	}
	wantError(t, "lease not released", CheckUnleased(t.Context(), cfg), ErrLeaseHeld)
	var reads atomic.Int64
	renew := func(r *http.Request) {
		if r.Method == http.MethodGet && reads.Add(1) == 3 {
			if err := l.renewOrLose(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	b.delay.Store(&renew)
	if err := await(); !errors.Is(err, ErrLeaseHeld) || errors.Is(err, ErrLeaseUnrenewed) {
		t.Errorf("live primary: got %v, want %v", err, ErrLeaseHeld)
	}
	b.delay.Store(nil)
	l.cfg.TTL = time.Hour // Release needs a valid lease
	if err := l.renewOrLose(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	wantError(t, "lease released", await(), nil)
}

// The context of a lease lasts as long as the lease is valid, including renewals.
func TestHeld(t *testing.T) {
	b := newBucket(t)
	l := newLease(t, b, t.TempDir(), time.Hour)
	if l.Held().Err() == nil {
		t.Error("before Acquire: got a context that has not ended")
	}
	must(t, l.Acquire(t.Context(), 0))
	first, timer := l.Held(), l.tenure.Load()
	for range 3 {
		must(t, l.renewOrLose(t.Context()))
		l.check(timer) // as when the timer fires
		if l.Held() != first || first.Err() != nil {
			t.Fatal("after a renewal: got another context, or one that has ended")
		}
	}
	l.extend(uptime() - l.cfg.TTL) // it was renewed a whole TTL ago
	if l.Valid() {
		t.Error("the lease is valid for longer than its TTL")
	}
	select {
	case <-first.Done():
	case <-time.After(harness.Timeout()):
		t.Fatal("the context does not end with the lease")
	}
	must(t, l.renewOrLose(t.Context()))
	second := l.Held()
	if second == first {
		t.Error("renewed after its end: got the old context")
	}
	if err := l.Release(t.Context()); err != nil || second.Err() == nil {
		t.Errorf("Release: got %v and an ended context: %t, want nil and true", err, second.Err() != nil)
	}
}

// KeepAlive renews the lease while the bucket is reachable. Failed renewals do not extend it. It
// reports the loss of the lease.
func TestLeaseKept(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	one, other := t.TempDir(), t.TempDir()
	l := newLease(t, b, one, time.Hour)
	l.interval = 20 * time.Millisecond
	must(t, l.Acquire(t.Context(), 0))
	var down atomic.Bool
	var refused atomic.Int64
	refuses := func(*http.Request) bool {
		if down.Load() {
			refused.Add(1)
		}
		return down.Load()
	}
	b.refuses.Store(&refuses)
	kept := make(chan error, 1)
	go func() { kept <- l.KeepAlive(t.Context()) }()
	await := func(what string, ok func() bool) {
		t.Helper()
		harness.WaitFor(t, what, func() bool {
			select {
			case err := <-kept:
				t.Fatalf("KeepAlive returned %v", err)
			default:
			}
			return ok()
		})
	}
	// fail waits for renewals that begin after the call and fail before its return.
	fail := func() {
		t.Helper()
		before := refused.Load()
		await("renewals that fail", func() bool { return refused.Load() >= before+3 })
	}
	for range 3 {
		before := l.expiry.Load()
		await("a renewal", func() bool { return l.expiry.Load() > before })
	}
	down.Store(true)
	fail()
	before := l.expiry.Load()
	fail()
	if after := l.expiry.Load(); after != before || !l.Valid() {
		t.Errorf("renewals that fail have moved the end of the lease by %s, valid: %t", time.Duration(after-before), l.Valid())
	}
	l.extend(uptime() - l.cfg.TTL)
	if l.Valid() {
		t.Error("the lease is valid for longer than its TTL")
	}
	down.Store(false)
	await("the lease to be renewed", l.Valid)
	next := newLease(t, b, other, time.Hour)
	await("the lease to be taken over", func() bool {
		found, err := next.State(t.Context())
		if err == nil {
			err = next.TakeOver(t.Context(), found) // fails after a renewal in between
		}
		return err == nil
	})
	if err := harness.Receive(t, "the end of KeepAlive", kept); !errors.Is(err, ErrLeaseHeld) || l.Valid() {
		t.Errorf("KeepAlive after a takeover: got %v, want %v", err, ErrLeaseHeld)
	}
}

// crash records a process that has ended as the holder of a data directory.
func crash(t *testing.T, dir string) {
	t.Helper()
	changeHolder(t, dir, func(h *holder) {
		cmd := exec.Command("sh", "-c", ":")
		must(t, cmd.Start())
		h.PID, h.Started = cmd.Process.Pid, processStart(cmd.Process.Pid)
		if h.Started == "" {
			h.Started = "1" // the process has ended already
		}
		must(t, cmd.Wait())
	})
}

func changeHolder(t *testing.T, dir string, change func(*holder)) {
	t.Helper()
	h, err := readHolder(dir)
	if err == nil {
		change(&h)
		err = h.write(dir)
	}
	must(t, err)
}

// Only a process of the same directory on the same machine, without a reboot in between,
// acquires a lease before its expiry, and only from a process that has ended.
func TestLeaseTakenOver(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(t *testing.T, dir string) (from string) // returns the directory of the next process
		ok     bool
	}{
		{"holder ended", func(t *testing.T, dir string) string { crash(t, dir); return dir }, true},
		{"holder is a zombie", func(t *testing.T, dir string) string { holdByZombie(t, dir); return dir }, true},
		{"process id reused", func(t *testing.T, dir string) string {
			changeHolder(t, dir, func(h *holder) { h.Started += "1" })
			return dir
		}, true},
		{"holder alive", func(_ *testing.T, dir string) string { return dir }, false},
		{"holder suspended", func(t *testing.T, dir string) string { holdByStopped(t, dir); return dir }, false},
		{"reboot", func(t *testing.T, dir string) string {
			crash(t, dir)
			changeHolder(t, dir, func(h *holder) { h.Boot = "another" })
			return dir
		}, false},
		{"copied directory", func(t *testing.T, dir string) string {
			crash(t, dir)
			copied := t.TempDir()
			must(t, os.CopyFS(copied, os.DirFS(dir)))
			return copied
		}, false},
		{"file of another format", func(t *testing.T, dir string) string {
			must(t, os.WriteFile(filepath.Join(dir, holderFile), []byte("0198f3a1-0000-7000-8000-000000000000"), 0o600))
			return dir
		}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBucket(t)
			dir := t.TempDir()
			first := newLease(t, b, dir, time.Hour)
			must(t, first.Acquire(t.Context(), 0))
			second := newLease(t, b, test.change(t, dir), time.Hour)
			var holder *Lease
			if !test.ok {
				holder = first
			}
			err := acquireWhileHeld(t, second, 1, holder)
			if test.ok && (err != nil || !second.Valid()) || !test.ok && (!errors.Is(err, ErrLeaseHeld) || second.Valid()) {
				t.Errorf("got %v, valid: %t; want the lease acquired: %t", err, second.Valid(), test.ok)
			}
			// After that, the first process must not renew the lease.
			if err := first.renewOrLose(t.Context()); test.ok != errors.Is(err, ErrLeaseHeld) {
				t.Errorf("renewal by the first process: got %v", err)
			}
		})
	}
}

// holdByZombie records a zombie process as the holder of a data directory.
func holdByZombie(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read -r line")
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Wait() })
	pid := cmd.Process.Pid
	changeHolder(t, dir, func(h *holder) { h.PID, h.Started = pid, processStart(pid) })
	in.Close()
	for deadline := time.Now().Add(time.Minute); processStart(pid) != ""; {
		if time.Now().After(deadline) {
			t.Fatal("the process has not ended")
		}
		runtime.Gosched()
	}
}

// holdByStopped records a suspended process as the holder of a data directory.
func holdByStopped(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read -r line")
	_, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	changeHolder(t, dir, func(h *holder) { h.PID, h.Started = cmd.Process.Pid, processStart(cmd.Process.Pid) })
}

// TestLeaseWatch replays the polls of a standby that watches a lease of 9 s. The lease has ended
// only if it was unchanged for a whole TTL, without a gap of more than a third of it.
func TestLeaseWatch(t *testing.T) {
	const s = time.Second
	type poll struct {
		asked, answered time.Duration
		etag            string
		released        bool
	}
	every := func(from, to time.Duration, etag string) (polls []poll) {
		for at := from; at < to; at += s {
			polls = append(polls, poll{at, at + s/10, etag, false})
		}
		return polls
	}
	tests := []struct {
		name  string
		polls []poll
		want  time.Duration // uptime at which the lease has ended, 0 for never
	}{
		{"dead primary", every(0, 20*s, "a"), 10 * s},
		{"renewals", slices.Concat(every(0, 8*s, "a"), every(8*s, 16*s, "b"), every(16*s, 24*s, "c")), 0},
		{"dead after a renewal", slices.Concat(every(0, 8*s, "a"), every(8*s, 30*s, "b")), 18 * s},
		{"release", slices.Concat(every(0, 3*s, "a"), []poll{{3 * s, 3 * s, "b", true}}), 3 * s},
		// During an outage the primary could not renew the lease either.
		{"outage of the bucket", slices.Concat(every(0, 5*s, "a"), every(60*s, 68*s, "a"), every(68*s, 76*s, "b")), 0},
		{"dead primary and outage", slices.Concat(every(0, 5*s, "a"), every(60*s, 80*s, "a")), 70 * s},
		{"short outage", slices.Concat(every(0, 5*s, "a"), every(6*s, 20*s, "a")), 10 * s},
		{"slow response", []poll{
			{0, 0, "a", false}, {2 * s, 6 * s, "a", false}, {9 * s, 9 * s, "a", false},
			{12 * s, 12 * s, "a", false}, {15 * s, 15 * s, "a", false}, {18 * s, 18 * s, "a", false},
		}, 18 * s},
	}
	for _, test := range tests {
		w := &LeaseWatch{lease: &Lease{cfg: LeaseConfig{TTL: 9 * s}}}
		var got time.Duration
		for _, l := range test.polls {
			if w.observe(LeaseState{Generation: 1, Released: l.released, etag: l.etag}, l.asked, l.answered) {
				got = l.asked
				break
			}
		}
		if got != test.want {
			t.Errorf("%s: got the end at %s, want %s", test.name, got, test.want)
		}
	}
	// The TTL of the holder applies if it is longer.
	w := &LeaseWatch{lease: &Lease{cfg: LeaseConfig{TTL: 9 * s}}}
	for at := time.Duration(0); at < 40*s; at += s {
		ended := w.observe(LeaseState{Generation: 1, period: 30 * s, etag: "a"}, at, at)
		if ended != (at >= 30*s) {
			t.Fatalf("lease of 30 s after %s: got ended %t", at, ended)
		}
	}
	if (&LeaseWatch{lease: &Lease{}}).observe(LeaseState{}, s, s) {
		t.Error("no lease: got ended")
	}
}

// A standby takes over a lease only if it was not renewed since the standby read it.
func TestTakeOver(t *testing.T) {
	b := newBucket(t)
	primary, standby := newLease(t, b, t.TempDir(), time.Hour), newLease(t, b, t.TempDir(), time.Hour)
	must(t, primary.Acquire(t.Context(), 0))
	seen, err := standby.State(t.Context())
	must(t, err)
	must(t, primary.renewOrLose(t.Context()))
	if err := standby.TakeOver(t.Context(), seen); !errors.Is(err, ErrLeaseHeld) || standby.Valid() {
		t.Errorf("renewed lease: got %v, want %v", err, ErrLeaseHeld)
	}
	if seen, err = standby.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.TakeOver(t.Context(), seen); err != nil || !standby.Valid() || standby.Generation() != 2 {
		t.Errorf("lease not renewed: got %v, want no error", err)
	}
	if err := primary.renewOrLose(t.Context()); !errors.Is(err, ErrLeaseHeld) || primary.Valid() {
		t.Errorf("renewal by the primary: got %v, want %v", err, ErrLeaseHeld)
	}
}

// A bucket that refuses writes prevents the primary from renewing its lease. A standby whose
// takeover fails for the same reason must give the primary a whole period to renew it.
func TestTakeOverRefused(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	primary, standby := newLease(t, b, t.TempDir(), time.Hour), newLease(t, b, t.TempDir(), time.Hour)
	must(t, primary.Acquire(t.Context(), 0))
	w := standby.NewWatch()
	if _, ended, err := w.Poll(t.Context()); err != nil || ended {
		t.Fatalf("first poll: ended %t, %v", ended, err)
	}
	later := func() (LeaseState, bool) { // polls a whole period later
		t.Helper()
		w.since -= time.Hour
		state, ended, err := w.Poll(t.Context())
		must(t, err)
		return state, ended
	}
	refuses := func(r *http.Request) bool { return r.Method == http.MethodPut }
	b.refuses.Store(&refuses)
	state, ended := later()
	if !ended {
		t.Fatal("lease not renewed for a period: got not ended")
	}
	if err := w.TakeOver(t.Context(), state); err == nil || standby.Valid() {
		t.Fatalf("takeover with refused writes: got %v, want an error", err)
	}
	b.refuses.Store(nil)
	if _, ended, err := w.Poll(t.Context()); err != nil || ended {
		t.Errorf("first poll after the refusal: got ended %t, %v, want a new period", ended, err)
	}
	if state, ended = later(); !ended {
		t.Fatal("lease not renewed for another period: got not ended")
	}
	if err := w.TakeOver(t.Context(), state); err != nil || !standby.Valid() {
		t.Errorf("takeover after another period: got %v, want no error", err)
	}
}

// Release works even if the response to the last renewal was lost.
func TestReleaseAfterLostRenewal(t *testing.T) {
	b := newBucket(t)
	l := newLease(t, b, t.TempDir(), time.Hour)
	must(t, l.Acquire(t.Context(), 0))
	before := *l.held
	must(t, l.renewOrLose(t.Context()))
	l.held = &before // the response was lost
	wantError(t, "Release", l.Release(t.Context()), nil)
	if state, err := l.State(t.Context()); err != nil || !state.Released {
		t.Errorf("after Release: got %+v, %v, want a released lease", state, err)
	}
}
