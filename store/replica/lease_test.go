package replica

import (
	"bytes"
	"context"
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
)

func newLease(t testing.TB, b *bucket, dir string, ttl time.Duration) *Lease {
	t.Helper()
	l, err := NewLease(t.Context(), LeaseConfig{Replica: b.config(t, dir), Dir: dir, TTL: ttl, Reserve: ttl / 10, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLease(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	one, other := t.TempDir(), t.TempDir()
	const long = time.Hour
	first := newLease(t, b, one, long)
	if y, err := first.State(t.Context()); err != nil || y != (LeaseState{}) {
		t.Errorf("a lease that nobody has held: %+v, %v", y, err)
	}
	if first.Valid() {
		t.Error("a lease that was not taken is good")
	}
	if err := first.Acquire(t.Context(), 0); err != nil || !first.Valid() || first.Generation() != 1 {
		t.Fatalf("take: %v, generation %d", err, first.Generation())
	}
	if left := first.left(); left > long-first.cfg.Reserve {
		t.Errorf("the lease is valid for %s, want %s at most: the reserve is for attempts in flight", left, long-first.cfg.Reserve)
	}
	second := newLease(t, b, other, long)
	if err := acquireBeside(t, second, math.MaxInt64, first); !errors.Is(err, ErrLeaseHeld) || second.Valid() {
		t.Errorf("a lease that another holds: %v, want %v", err, ErrLeaseHeld)
	}
	// A process that is started in place of one that has crashed has the lease at once.
	crash(t, one)
	again := newLease(t, b, one, long)
	if err := again.Acquire(t.Context(), 1); err != nil || again.Generation() != 2 {
		t.Errorf("after a crash: %v, generation %d", err, again.Generation())
	}
	if err := again.Release(t.Context()); err != nil || again.Valid() {
		t.Errorf("release: %v", err)
	}
	// Data that knows of an older lease alone is older.
	if err := second.Acquire(t.Context(), 1); !errors.Is(err, ErrLeaseStale) {
		t.Errorf("with data that is older than the last holder's: %v, want %v", err, ErrLeaseStale)
	}
	if err := second.Acquire(t.Context(), 2); err != nil || second.Generation() != 3 || !second.Valid() {
		t.Errorf("once it was released: %v, generation %d", err, second.Generation())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := newLease(t, b, one, long).Acquire(t.Context(), 2); !errors.Is(err, ErrLeaseStale) {
		t.Errorf("the first again: %v, want %v", err, ErrLeaseStale)
	}
	restored := newLease(t, b, one, long)
	if err := restored.Acquire(t.Context(), math.MaxInt64); err != nil || restored.Generation() != 4 {
		t.Errorf("the first, restored: %v, generation %d", err, restored.Generation())
	}
	if y, err := second.State(t.Context()); err != nil || y.Generation != 4 || y.Ours || time.Until(y.Expires) < 50*time.Minute {
		t.Errorf("look: %+v, %v", y, err)
	}
	if _, err := NewLease(t.Context(), LeaseConfig{Replica: fileConfig(t, one, filepath.Join(other, "copy")), Dir: one}); err == nil {
		t.Error("a lease in a folder was not refused")
	}
}

// acquireBeside acquires a lease. Its holder, if there is one, renews it once it is
// watched: a renewal before that would hide that the lease is taken at once.
func acquireBeside(t *testing.T, l *Lease, known int64, holder *Lease) error {
	t.Helper()
	var watched atomic.Bool
	l.cfg.Logger = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("checking whether it renews the lease")) {
			watched.Store(true)
		}
		return len(p), nil
	}), nil))
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
				t.Errorf("the holder renews its lease: %v", err)
				holder = nil
			}
		case <-deadline:
			t.Fatal("the lease is neither acquired nor refused")
		}
	}
}

// TestLeaseClocks acquires a lease whose holder's clock is wrong. It is taken over
// from one that does not renew it, and from no other.
func TestLeaseClocks(t *testing.T) {
	t.Parallel()
	const ttl = 400 * time.Millisecond
	for _, clock := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		b := newBucket(t)
		write := func(generation, writes int) {
			t.Helper()
			text := fmt.Sprintf(`{"generation":%d,"expires_at":%q,"owner":"other","period_ms":%d,"writes":%d}`,
				generation, time.Now().Add(ttl+clock).Format(time.RFC3339Nano), ttl.Milliseconds(), writes)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.url+"/b/copy/lock.json", strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status)
			}
		}
		write(7, 1)
		began := time.Now()
		dead := newLease(t, b, t.TempDir(), ttl)
		dead.margin /= 10
		if err := dead.Acquire(t.Context(), 7); err != nil || dead.Generation() != 8 {
			t.Errorf("clock %s: a lease that is not renewed: %v, want it taken over", clock, err)
		}
		if took := time.Since(began); took < ttl+dead.margin {
			t.Errorf("clock %s: it was taken over after %s, want at least %s", clock, took, ttl+dead.margin)
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
			t.Errorf("clock %s: a lease that is renewed: got %v, want %v that names the owner and the generation", clock, err, ErrLeaseHeld)
		}
		b.delay.Store(nil)
	}
}

// TestAwaitUnleased has a service without a lease start beside a primary that is
// dead, alive, and gone.
func TestAwaitUnleased(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	cfg := b.config(t, t.TempDir())
	l := newLease(t, b, t.TempDir(), time.Second)
	await := func() error { return AwaitUnleased(t.Context(), cfg, testLogger(t)) }
	if err := await(); err != nil {
		t.Errorf("without a lease: %v", err)
	}
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := await(); !errors.Is(err, ErrLeaseUnrenewed) || !strings.Contains(err.Error(), l.owner) {
		t.Errorf("a primary that is dead: got %v, want %v", err, ErrLeaseUnrenewed)
	}
	if err := CheckUnleased(t.Context(), cfg); !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("a lease that was not released: got %v, want %v", err, ErrLeaseHeld)
	}
	keeping, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- l.KeepAlive(keeping) }()
	if err := await(); !errors.Is(err, ErrLeaseHeld) || errors.Is(err, ErrLeaseUnrenewed) {
		t.Errorf("a primary that is alive: got %v, want %v", err, ErrLeaseHeld)
	}
	stop()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	if err := l.renewOrLose(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := await(); err != nil {
		t.Errorf("a lease that was released: %v", err)
	}
}

// TestHeld has a lease end, be renewed and be lost. Its context lasts as long as
// the lease is valid, over renewals.
func TestHeld(t *testing.T) {
	b := newBucket(t)
	l := newLease(t, b, t.TempDir(), time.Second)
	if l.Held().Err() == nil {
		t.Error("a lease that was not acquired is held")
	}
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	first := l.Held()
	for until := uptime() + 1500*time.Millisecond; uptime() < until; {
		if err := l.renewOrLose(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l.Held() != first && first.Err() == nil {
			t.Fatal("a renewal has another context")
		}
	}
	if first.Err() == nil { // not so on a machine that stops this test for a second
		select {
		case <-first.Done():
		case <-time.After(time.Minute):
			t.Fatal("the context does not end with the lease")
		}
		if l.Valid() {
			t.Error("the context ended before the lease")
		}
	}
	if err := l.renewOrLose(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := l.Held()
	if second == first {
		t.Error("the lease is valid again, with the context that has ended")
	}
	if err := l.Release(t.Context()); err != nil || second.Err() == nil {
		t.Errorf("release: %v; the context has ended: %t", err, second.Err() != nil)
	}
}

// A lease is kept for as long as the bucket can be reached, and is good for no
// longer than that and its time; KeepAlive reports its loss.
func TestLeaseKept(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	one, other := t.TempDir(), t.TempDir()
	l := newLease(t, b, one, 2*time.Second)
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	kept := make(chan error, 1)
	go func() { kept <- l.KeepAlive(t.Context()) }()
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline, tick := time.After(20*time.Second), time.Tick(2*time.Millisecond); !ok(); {
			select {
			case <-tick:
			case err := <-kept:
				t.Fatalf("keeping ended: %v", err)
			case <-deadline:
				t.Fatal(what)
			}
		}
	}
	began := time.Now()
	await("it is not kept", func() bool { return !l.Valid() || time.Since(began) > 4*time.Second })
	if !l.Valid() {
		t.Fatalf("it was lost after %s", time.Since(began))
	}
	b.down.Store(true)
	await("it is good for ever", func() bool { return !l.Valid() })
	b.down.Store(false)
	await("it is not good again", l.Valid)
	b.down.Store(true)
	await("it is good for ever", func() bool { return !l.Valid() })
	next := newLease(t, b, other, time.Hour)
	await("it cannot be taken over", func() bool {
		b.down.Store(false)
		found, err := next.State(t.Context())
		if err == nil {
			err = next.TakeOver(t.Context(), found)
		}
		b.down.Store(err != nil) // so that it is not renewed first
		return err == nil
	})
	if err := <-kept; !errors.Is(err, ErrLeaseHeld) || l.Valid() {
		t.Errorf("keeping one that another has: %v, want %v", err, ErrLeaseHeld)
	}
}

// crash makes the last holder of a data directory a process that has ended.
func crash(t *testing.T, dir string) {
	t.Helper()
	changeHolder(t, dir, func(h *holder) {
		cmd := exec.Command("true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		h.PID, h.Started = cmd.Process.Pid, processStart(cmd.Process.Pid)
		if h.Started == "" {
			h.Started = "1" // it has ended already
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	})
}

func changeHolder(t *testing.T, dir string, change func(*holder)) {
	t.Helper()
	h, err := readHolder(dir)
	if err == nil {
		change(&h)
		err = h.write(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Only a process of the same directory, on the same machine since its last boot,
// takes a lease over before its expiry, and only from a process that has ended.
func TestLeaseTakenOver(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(t *testing.T, dir string) (from string) // returns the directory that the next process has
		ok     bool
	}{
		{"the holder has ended", func(t *testing.T, dir string) string { crash(t, dir); return dir }, true},
		{"the holder is a zombie", func(t *testing.T, dir string) string { holdByZombie(t, dir); return dir }, true},
		{"the process id is used again", func(t *testing.T, dir string) string {
			changeHolder(t, dir, func(h *holder) { h.Started += "1" })
			return dir
		}, true},
		{"the holder lives", func(_ *testing.T, dir string) string { return dir }, false},
		{"the holder is stopped", func(t *testing.T, dir string) string { holdByStopped(t, dir); return dir }, false},
		{"the machine was started again", func(t *testing.T, dir string) string {
			crash(t, dir)
			changeHolder(t, dir, func(h *holder) { h.Boot = "another" })
			return dir
		}, false},
		{"the directory is a copy", func(t *testing.T, dir string) string {
			crash(t, dir)
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			return copied
		}, false},
		{"the file is of an earlier version", func(t *testing.T, dir string) string {
			if err := os.WriteFile(filepath.Join(dir, holderFile), []byte("0198f3a1-0000-7000-8000-000000000000"), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := newBucket(t)
			dir := t.TempDir()
			first := newLease(t, b, dir, time.Hour)
			if err := first.Acquire(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			second := newLease(t, b, test.change(t, dir), time.Hour)
			var holder *Lease
			if !test.ok {
				holder = first
			}
			err := acquireBeside(t, second, 1, holder)
			if test.ok && (err != nil || !second.Valid()) || !test.ok && (!errors.Is(err, ErrLeaseHeld) || second.Valid()) {
				t.Errorf("got %v, valid: %t; want it taken over: %t", err, second.Valid(), test.ok)
			}
			// The first must not renew what the second has.
			if err := first.renewOrLose(t.Context()); test.ok != errors.Is(err, ErrLeaseHeld) {
				t.Errorf("the first renews: %v", err)
			}
		})
	}
}

// holdByZombie makes the last holder of a data directory a process that has ended and
// that its parent has not waited for.
func holdByZombie(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Wait() })
	pid := cmd.Process.Pid
	changeHolder(t, dir, func(h *holder) { h.PID, h.Started = pid, processStart(pid) })
	in.Close()
	for deadline := time.Now().Add(time.Minute); processStart(pid) != ""; {
		if time.Now().After(deadline) {
			t.Fatal("cat does not end")
		}
		runtime.Gosched()
	}
}

// holdByStopped makes the last holder of a data directory a process that is stopped.
func holdByStopped(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	changeHolder(t, dir, func(h *holder) { h.PID, h.Started = cmd.Process.Pid, processStart(cmd.Process.Pid) })
}

// TestLeaseWatch plays looks of a standby at a lease of 9 s. Only a lease that it
// has seen unchanged for a whole TTL, without a gap of more than a third of it,
// has ended.
func TestLeaseWatch(t *testing.T) {
	const s = time.Second
	type look struct {
		asked, answered time.Duration
		etag            string
		released        bool
	}
	every := func(from, to time.Duration, etag string) (looks []look) {
		for at := from; at < to; at += s {
			looks = append(looks, look{at, at + s/10, etag, false})
		}
		return looks
	}
	tests := []struct {
		name  string
		looks []look
		want  time.Duration // when the lease has ended, 0 for never
	}{
		{"a dead primary", every(0, 20*s, "a"), 10 * s},
		{"a primary that renews", slices.Concat(every(0, 8*s, "a"), every(8*s, 16*s, "b"), every(16*s, 24*s, "c")), 0},
		{"it dies after a renewal", slices.Concat(every(0, 8*s, "a"), every(8*s, 30*s, "b")), 18 * s},
		{"it gives the lease up", slices.Concat(every(0, 3*s, "a"), []look{{3 * s, 3 * s, "b", true}}), 3 * s},
		// The primary could not renew it either.
		{"an outage of the bucket", slices.Concat(every(0, 5*s, "a"), every(60*s, 68*s, "a"), every(68*s, 76*s, "b")), 0},
		{"a dead primary and an outage", slices.Concat(every(0, 5*s, "a"), every(60*s, 80*s, "a")), 70 * s},
		{"a short outage", slices.Concat(every(0, 5*s, "a"), every(6*s, 20*s, "a")), 10 * s},
		{"a slow answer", []look{{0, 0, "a", false}, {2 * s, 6 * s, "a", false}, {9 * s, 9 * s, "a", false}, {12 * s, 12 * s, "a", false}, {15 * s, 15 * s, "a", false}, {18 * s, 18 * s, "a", false}}, 18 * s},
	}
	for _, test := range tests {
		w := &LeaseWatch{lease: &Lease{cfg: LeaseConfig{TTL: 9 * s}}}
		var got time.Duration
		for _, l := range test.looks {
			if w.observe(LeaseState{Generation: 1, Released: l.released, etag: l.etag}, l.asked, l.answered) {
				got = l.asked
				break
			}
		}
		if got != test.want {
			t.Errorf("%s: it has ended at %s, want %s", test.name, got, test.want)
		}
	}
	// The holder counts on its own TTL.
	w := &LeaseWatch{lease: &Lease{cfg: LeaseConfig{TTL: 9 * s}}}
	for at := time.Duration(0); at < 40*s; at += s {
		ended := w.observe(LeaseState{Generation: 1, period: 30 * s, etag: "a"}, at, at)
		if ended != (at >= 30*s) {
			t.Fatalf("a lease of 30 s, seen for %s by a watch with 9 s, has ended: %t", at, ended)
		}
	}
	if (&LeaseWatch{lease: &Lease{}}).observe(LeaseState{}, s, s) {
		t.Error("a lease that nobody held has ended")
	}
}

// TestTakeOver has a standby take over a lease that it saw, and not one that was
// renewed since.
func TestTakeOver(t *testing.T) {
	b := newBucket(t)
	primary, standby := newLease(t, b, t.TempDir(), time.Hour), newLease(t, b, t.TempDir(), time.Hour)
	if err := primary.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	seen, err := standby.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := primary.renewOrLose(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.TakeOver(t.Context(), seen); !errors.Is(err, ErrLeaseHeld) || standby.Valid() {
		t.Errorf("a lease that was renewed: got %v, want %v", err, ErrLeaseHeld)
	}
	if seen, err = standby.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := standby.TakeOver(t.Context(), seen); err != nil || !standby.Valid() || standby.Generation() != 2 {
		t.Errorf("a lease that was not: %v", err)
	}
	if err := primary.renewOrLose(t.Context()); !errors.Is(err, ErrLeaseHeld) || primary.Valid() {
		t.Errorf("the primary renews what it has lost: got %v, want %v", err, ErrLeaseHeld)
	}
}

// TestReleaseAfterALostRenewal cuts a renewal off that the bucket has received. The
// lease is released all the same.
func TestReleaseAfterALostRenewal(t *testing.T) {
	b := newBucket(t)
	l := newLease(t, b, t.TempDir(), time.Hour)
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	before := *l.held
	if err := l.renewOrLose(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.held = &before // the response was lost
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if state, err := l.State(t.Context()); err != nil || !state.Released {
		t.Errorf("the lease after its release: %+v, %v", state, err)
	}
}
