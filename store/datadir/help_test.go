package datadir_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"service/store"
	"service/store/datadir"
	"service/store/keyring"
	"service/store/replica"
	"service/test/harness"
	"service/webhook"
)

// fileReplica configures a replica in a directory, through a file in Litestream's format.
func fileReplica(t testing.TB, dir, target string) *replica.Config {
	t.Helper()
	text := "dbs:\n  - path: " + dir + "/service.db\n    monitor-interval: 20ms\n    replica:\n      path: " + target +
		"\n      sync-interval: 20ms\nshutdown-sync-timeout: 60s\n"
	name := filepath.Join(t.TempDir(), "litestream.yml")
	must(t, os.WriteFile(name, []byte(text), 0o600))
	cfg, err := replica.ReadConfig(name, func(string) (string, bool) { return "", false })
	must(t, err)
	return cfg
}

// replicated is a store that is being replicated.
type replicated struct {
	*store.Store
	t    testing.TB
	stop func() // stops Replicate; call once
	done chan struct{}
}

// openReplicated opens a store and replicates it, once it is prepared.
func openReplicated(t testing.TB, dir string, cfg *replica.Config, prepare ...func(*store.Store)) *replicated {
	t.Helper()
	s, err := store.Open(context.Background(), store.Config{Dir: dir, Replica: cfg, Logger: testLogger(t)})
	must(t, err)
	for _, do := range prepare {
		do(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &replicated{s, t, cancel, make(chan struct{})}
	go func() {
		defer close(r.done)
		if err := s.Replica().Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { r.close() })
	return r
}

// close stops replication and closes the store; the error is that of Close.
func (r *replicated) close() (err error) {
	select {
	case <-r.done:
		return nil
	default:
	}
	r.stop()
	<-r.done
	return r.Close()
}

// await waits until the status of the replica satisfies ok.
func (r *replicated) await(what string, ok func(store.ReplicaStatus) bool) store.ReplicaStatus {
	r.t.Helper()
	var y store.ReplicaStatus
	harness.WaitFor(r.t, "the replica to be "+what, func() bool {
		y = r.Replica().Status()
		return ok(y)
	})
	return y
}

func upToDate(y store.ReplicaStatus) bool { return y.State == store.ReplicaRunning && y.Lag == 0 }

// testLogger returns a logger whose output is printed if the test fails.
func testLogger(t testing.TB) *slog.Logger {
	var mu sync.Mutex
	var b bytes.Buffer
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Logf("the log:\n%s", &b)
		}
	})
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// restored restores a replica into a new data directory with the key of another one, and opens
// it.
func restored(t testing.TB, from *replica.Config, keyOf string, at time.Time) (*store.Store, datadir.Restored) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	y, _, err := restoreInto(dir, from, at, false)
	must(t, err)
	key, err := os.ReadFile(filepath.Join(keyOf, keyring.FileName))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, keyring.FileName), key, 0o600))
	s, err := store.Open(context.Background(), store.Config{Dir: dir}) // without a dictionary, like openReplicated
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, y
}

// restoreInto restores a data directory from a replica.
func restoreInto(dir string, from *replica.Config, at time.Time, force bool) (y datadir.Restored, aside string, err error) {
	r, err := datadir.Restore(dir, force)
	if err != nil {
		return y, "", err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if y, err = r.FromReplica(context.Background(), from, at); err != nil {
		return y, "", err
	}
	aside, err = r.Commit()
	return y, aside, err
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// events counts the events of the programs.
func events(t testing.TB, s *store.Store) int {
	t.Helper()
	all, _, err := s.Events().PageAll(t.Context(), &webhook.ListQuery{Sort: webhook.EventList.Default, Size: 100})
	must(t, err)
	return len(all)
}
