package datadir_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/store/datadir"
	"service/store/keyring"
	"service/store/replica"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// follow runs a standby until stop is called.
func follow(t *testing.T, s *datadir.Standby) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Follow(ctx) }()
	return func() {
		t.Helper()
		cancel()
		must(t, <-done)
	}
}

func awaitStandby(t *testing.T, s *datadir.Standby, what string, ok func(replica.FollowerState) bool) {
	t.Helper()
	harness.WaitFor(t, "the standby to be "+what, func() bool { return ok(s.State()) })
}

// takeAway makes a replica in a directory fail until back is called.
func takeAway(t *testing.T, target string) (back func()) {
	t.Helper()
	must(t, errors.Join(os.Rename(target, target+".away"), os.WriteFile(target, nil, 0o600)))
	return func() {
		t.Helper()
		must(t, errors.Join(os.Remove(target), os.Rename(target+".away", target)))
	}
}

// A promoted standby contains everything that the replica contains, even if it was stopped in
// between, and continues from there.
func TestStandby(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	dir, warm := t.TempDir(), t.TempDir()
	target := filepath.Join(t.TempDir(), "replica")
	primary := openReplicated(t, dir, fileReplica(t, dir, target))
	storetest.Program(t, primary.Store, "p")
	sub := storetest.Subscribe(t, primary.Store, "p", "content_updated")
	publish := func(n int) {
		t.Helper()
		for range n {
			_, err := primary.Events().Publish(t.Context(), "p", []webhook.Event{storetest.Event("content_updated")})
			must(t, err)
		}
	}
	keys, err := datadir.ReadKeys(dir, "")
	must(t, err)
	open := func() *datadir.Standby {
		t.Helper()
		s, err := datadir.OpenStandby(warm, fileReplica(t, warm, target), "", testLogger(t))
		must(t, err)
		return s
	}
	publish(10)
	primary.await("up to date", upToDate)
	standby := open()
	if _, err := datadir.OpenStandby(warm, fileReplica(t, warm, target), "", testLogger(t)); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second standby on the data directory: got %v, want %v", err, store.ErrLocked)
	}
	stop := follow(t, standby)
	awaitStandby(t, standby, "following", func(y replica.FollowerState) bool { return y.Following })
	added := standby.State().Added
	publish(10)
	awaitStandby(t, standby, "brought up to date", func(y replica.FollowerState) bool { return y.Added.After(added) })
	back := takeAway(t, target)
	awaitStandby(t, standby, "failing", func(y replica.FollowerState) bool { return y.Err != "" })
	back()
	readers := metricsTokens(t, primary.Store)
	publish(1)
	awaitStandby(t, standby, "following again", func(y replica.FollowerState) bool { return y.Following && y.Added.After(added) })
	checkMetricsTokens(t, standby, readers)
	stop()
	must(t, standby.Close())
	publish(10)
	standby = open() // continues with the existing copy
	stop = follow(t, standby)
	awaitStandby(t, standby, "following", func(y replica.FollowerState) bool { return y.Following })
	publish(10)
	must(t, primary.close())
	stop()
	checkNeedsKey(t, standby, keys)
	y, err := standby.Promote(t.Context())
	if err != nil || y.State.Before(began) {
		t.Fatalf("promote: %+v, %v", y, err)
	}
	s := openReplicated(t, warm, fileReplica(t, warm, target))
	if n := events(t, s.Store); n != 41 {
		t.Errorf("the promoted standby has %d events, want 41", n)
	}
	if l, err := s.Queues().Get(t.Context(), sub.ID); err != nil || l.Wanted == 0 {
		t.Error("the subscription has no waiting events")
	}
	if known, err := s.Replica().Generation(t.Context()); err != nil || known != 0 {
		t.Errorf("generation after promotion: got %d, %v, want 0", known, err)
	}
	if _, err := s.Events().Publish(t.Context(), "p", []webhook.Event{storetest.Event("content_updated")}); err != nil {
		t.Error(err)
	}
	s.await("up to date", upToDate)
	must(t, s.close())
	again, _ := restored(t, fileReplica(t, dir, target), dir, time.Time{})
	if n := events(t, again); n != 42 {
		t.Errorf("its replica has %d events, want 42", n)
	}
}

// checkNeedsKey checks that a standby can only serve with the key of the primary, and that it
// rereads the file. It leaves the key in the directory.
func checkNeedsKey(t *testing.T, s *datadir.Standby, keys []byte) {
	t.Helper()
	for _, test := range []struct {
		keys []byte
		want error
	}{{nil, store.ErrKey}, {[]byte(strings.Repeat("5f", 32) + "\n"), store.ErrKey}, {keys, nil}} {
		if test.keys != nil {
			must(t, os.WriteFile(filepath.Join(datadir.Dir(s), keyring.FileName), test.keys, 0o600))
		}
		if err := s.CheckServable(t.Context()); !errors.Is(err, test.want) {
			t.Errorf("with the key %q: got %v, want %v", test.keys, err, test.want)
		}
	}
}

// metricsTokens creates tokens, and returns their secrets with whether they may read the metrics of a
// standby.
func metricsTokens(t *testing.T, s *store.Store) map[string]bool {
	t.Helper()
	all := map[string]bool{"": false, "not a token": false}
	create := func(n webhook.NewToken, may bool) webhook.Token {
		t.Helper()
		token, secret, err := storetest.CreateToken(t.Context(), s, n)
		must(t, err)
		all[secret] = may
		return token
	}
	metrics := webhook.NewToken{UserID: "prometheus", Scopes: []webhook.Scope{webhook.ScopeMetricsRead}}
	create(metrics, true)
	revoked := create(metrics, false)
	_, err := storetest.RevokeToken(t.Context(), s, revoked.ID)
	must(t, err)
	create(webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()}, false)
	return all
}

// checkMetricsTokens checks which tokens may read the metrics, once the copy contains them.
func checkMetricsTokens(t *testing.T, s *datadir.Standby, want map[string]bool) {
	t.Helper()
	may := func(secret string) bool {
		datadir.ForgetReader(s) // without its pause
		return s.MayReadMetrics(t.Context(), secret)
	}
	for secret, allowed := range want {
		if allowed {
			harness.WaitFor(t, "the token in the copy", func() bool { return may(secret) })
			if !s.MayReadMetrics(t.Context(), secret) {
				t.Error("a known token is refused")
			}
		}
	}
	for secret, allowed := range want {
		if may(secret) != allowed {
			t.Errorf("got that a token may read the metrics: %v, want %v", !allowed, allowed)
		}
	}
}

// A database that another node has replaced becomes the copy if the replica contains it, and is
// kept otherwise.
func TestSetAside(t *testing.T) {
	for _, test := range []struct {
		name    string
		changes int // that only the old primary contains
	}{{"contained", 0}, {"with changes of its own", 3}} {
		t.Run(test.name, func(t *testing.T) {
			dir, warm := t.TempDir(), t.TempDir()
			target := filepath.Join(t.TempDir(), "replica")
			// With a lease, no node waits for another's signs of life.
			leased := func(s *store.Store) {
				must(t, s.Replica().Fence(1, store.Lease{Valid: func() bool { return true }, Context: t.Context}))
			}
			primary := openReplicated(t, dir, fileReplica(t, dir, target), leased)
			storetest.Program(t, primary.Store, "p")
			publish := func(s *store.Store) {
				t.Helper()
				_, err := s.Events().Publish(t.Context(), "p", []webhook.Event{storetest.Event("content_updated")})
				must(t, err)
			}
			publish(primary.Store)
			primary.await("up to date", upToDate)
			must(t, primary.close())
			keys, err := datadir.ReadKeys(dir, "")
			must(t, err)
			must(t, os.WriteFile(filepath.Join(warm, keyring.FileName), keys, 0o600))
			successor, err := datadir.OpenStandby(warm, fileReplica(t, warm, target), "", testLogger(t))
			must(t, err)
			_, err = successor.Promote(t.Context())
			must(t, err)
			if test.changes > 0 { // accepted, and not uploaded
				old, err := store.Open(t.Context(), store.Config{Dir: dir, Logger: testLogger(t)})
				must(t, err)
				for range test.changes {
					publish(old)
				}
				must(t, old.Close())
			}
			undecided, err := datadir.OpenStandby(dir, fileReplica(t, dir, target), "", testLogger(t))
			must(t, err)
			if _, err := undecided.SetAside(t.Context(), true, true); !errors.Is(err, replica.ErrUndecided) {
				t.Errorf("before the successor has begun its term: got %v, want %v", err, replica.ErrUndecided)
			}
			must(t, undecided.Close())
			next := openReplicated(t, warm, fileReplica(t, warm, target), leased)
			publish(next.Store)
			next.await("up to date", upToDate)

			s, err := datadir.OpenStandby(dir, fileReplica(t, dir, target), "", testLogger(t))
			must(t, err)
			defer s.Close()
			old, err := s.SetAside(t.Context(), true, true)
			must(t, err)
			all, err := datadir.ListReplaced(dir)
			must(t, err)
			if contained := test.changes == 0; contained != (old == nil) || contained != (len(all) == 0) || contained != s.HasCopy() {
				t.Fatalf("got %v and %v, copy %v, want the copy: %v", old, all, s.HasCopy(), contained)
			}
			if s.HasDatabase() {
				t.Error("the database is still there")
			}
			if old != nil {
				o, err := datadir.OpenOldData(t.Context(), old.Dir)
				must(t, err)
				must(t, o.Close())
			}
			stop := follow(t, s)
			awaitStandby(t, s, "following", func(y replica.FollowerState) bool { return y.Following && !y.Current.IsZero() })
			stop()
			must(t, next.close())
		})
	}
}

// Data that was restored, or that belongs to no replica, is never set aside.
func TestSetAsideRefuses(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "replica")
	primary := openReplicated(t, dir, fileReplica(t, dir, target))
	storetest.Program(t, primary.Store, "p")
	must(t, primary.Replica().Fence(1, store.Lease{Valid: func() bool { return true }, Context: t.Context}))
	primary.await("up to date", upToDate)
	must(t, primary.close())
	refuse := func(dir, target string, want error) {
		t.Helper()
		s, err := datadir.OpenStandby(dir, fileReplica(t, dir, target), "", testLogger(t))
		must(t, err)
		defer s.Close()
		if _, err := s.SetAside(t.Context(), false, false); !errors.Is(err, want) || !s.HasDatabase() {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	other := filepath.Join(t.TempDir(), "other")
	elsewhere := t.TempDir()
	second := openReplicated(t, elsewhere, fileReplica(t, elsewhere, other))
	second.await("up to date", upToDate)
	must(t, second.close())
	refuse(dir, other, replica.ErrForeign)
	restored := t.TempDir()
	_, _, err := restoreInto(restored, fileReplica(t, restored, target), time.Time{}, false)
	must(t, err)
	refuse(restored, target, datadir.ErrRestored)
}
