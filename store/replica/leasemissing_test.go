package replica

import (
	"errors"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// remove deletes an object of the replica that config configures.
func (b *bucket) remove(t testing.TB, name string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, b.url+"/b/copy/"+name, nil)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	response.Body.Close()
}

// beginTerm begins a term of the replica, for the data in dir unless that is "".
func (b *bucket) beginTerm(t testing.TB, number int64, dir string) {
	t.Helper()
	at, err := b.config(t, t.TempDir()).location(t.Context())
	if err == nil {
		err = claim(t.Context(), at, term{Number: number, Nonce: "n", Began: time.Now()})
	}
	if err == nil && dir != "" {
		here, dirErr := identifyDir(dir)
		path := filepath.Join(dir, "service.db")
		err = errors.Join(dirErr, os.WriteFile(path, nil, 0o600), writeRecord(path, record{
			Term: number, Nonce: "n", Own: true, dirID: here,
		}))
	}
	must(t, err)
}

// The holder recreates a lease that was deleted or overwritten, unless another service has begun
// a term since.
func TestLeaseRecreated(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		damage func(*bucket)
	}{
		{"deleted", func(b *bucket) { b.remove(t, leaseName) }},
		{"garbage", func(b *bucket) { b.put(t, leaseName, "\x00 not JSON") }},
		{"empty", func(b *bucket) { b.put(t, leaseName, "") }},
	} {
		b := newBucket(t)
		dir := t.TempDir()
		l := newLease(t, b, dir, time.Hour)
		must(t, l.Acquire(t.Context(), 6))
		b.beginTerm(t, 1, dir)
		test.damage(b)
		if err := l.renewOrLose(t.Context()); err != nil || !l.Valid() {
			t.Errorf("%s: renewal: got %v, valid: %t", test.name, err, l.Valid())
		}
		if y, err := l.State(t.Context()); err != nil || !y.Ours || y.Generation != 7 {
			t.Errorf("%s: got %+v, %v, want the lease of this process with generation 7", test.name, y, err)
		}
		wantError(t, test.name+": next renewal", l.renewOrLose(t.Context()), nil)
		b.beginTerm(t, 2, "")
		test.damage(b)
		if err := l.renewOrLose(t.Context()); !errors.Is(err, ErrLeaseHeld) || l.Valid() {
			t.Errorf("%s after a later term has begun: got %v, valid: %t", test.name, err, l.Valid())
		}
	}
}

// A service that starts and finds no lease acquires it at once if the replica is empty or the
// service wrote the newest term. Otherwise it waits for a period, and needs the newest data.
func TestAcquireMissingLease(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	own := t.TempDir()
	b.beginTerm(t, 1, own)
	l := newLease(t, b, own, time.Hour)
	if err := l.Acquire(t.Context(), 3); err != nil || l.Generation() != 4 {
		t.Errorf("wrote the newest term: got %v, generation %d, want 4", err, l.Generation())
	}
	b.remove(t, leaseName)
	if err := newLease(t, b, t.TempDir(), time.Hour).Acquire(t.Context(), math.MaxInt64); !errors.Is(err, ErrLeaseStale) ||
		!strings.Contains(err.Error(), "service restore") {
		t.Errorf("empty directory: got %v, want %v", err, ErrLeaseStale)
	}
	stale := t.TempDir()
	must(t, os.WriteFile(filepath.Join(stale, "service.db"), nil, 0o600))
	wantError(t, "older data", newLease(t, b, stale, time.Hour).Acquire(t.Context(), 3), ErrLeaseStale)
	restored := newLease(t, b, stale, time.Hour)
	recreate := func(r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, leaseName) {
			b.delay.Store(nil)
			if err := l.renewOrLose(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	restored.cfg.Logger = onLog("the lease is missing from the bucket", func() { b.delay.Store(&recreate) })
	if err := restored.Acquire(t.Context(), math.MaxInt64); !errors.Is(err, ErrLeaseHeld) || restored.Valid() {
		t.Errorf("deleted lease of a live holder: got %v, want %v", err, ErrLeaseHeld)
	}
}

// A lease whose object is missing has ended after a period and a margin.
func TestWatchMissingLease(t *testing.T) {
	const s = time.Second
	w := &LeaseWatch{lease: &Lease{cfg: LeaseConfig{TTL: 9 * s}}}
	if w.observe(LeaseState{Generation: 1, period: 9 * s, etag: "a"}, 0, 0) || !w.Seen() {
		t.Error("first poll: got ended or not seen")
	}
	for at := s; at < 20*s; at += s {
		if ended := w.observe(LeaseState{}, at, at); ended != (at >= s+9*s+watchMargin) {
			t.Errorf("missing for %s: got ended %t", at-s, ended)
		}
	}
}

// A damaged lease names its key, and can be seized. The new generation is above that of the data.
func TestSeizeDamagedLease(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	b.put(t, leaseName, "{}")
	l := newLease(t, b, t.TempDir(), time.Hour)
	for _, err := range []error{l.Acquire(t.Context(), 1), l.CheckAcquire(t.Context(), 1)} {
		if !errors.Is(err, ErrLeaseDamaged) ||
			!strings.Contains(err.Error(), "copy/lock.json") || !strings.Contains(err.Error(), "promote --force") {
			t.Errorf("got %v, want %v, the key and what to do", err, ErrLeaseDamaged)
		}
	}
	if err := l.Seize(t.Context()); err != nil || !l.Valid() {
		t.Fatalf("Seize: got %v", err)
	}
	l.Raise(41)
	must(t, l.renewOrLose(t.Context()))
	if y, err := l.State(t.Context()); err != nil || y.Generation != 42 || l.Generation() != 42 {
		t.Errorf("after Raise: got %+v, %v, want generation 42", y, err)
	}
}
