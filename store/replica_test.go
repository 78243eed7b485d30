package store

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"service/store/datadir"
	"service/store/keyring"
	"service/store/replica"
	"service/store/sqlite"
	"service/test/harness"
	"service/webhook"
)

// fileReplica configures a replica in a directory, through a file in Litestream's format.
func fileReplica(t testing.TB, dir, target string) *replica.Config {
	t.Helper()
	return readReplica(t,
		"dbs:\n  - path: "+dir+"/service.db\n    monitor-interval: 20ms\n    replica:\n      path: "+target+"\n      sync-interval: "+
			"20ms\nshutdown-sync-timeout: 60s\n")
}

func readReplica(t testing.TB, text string) *replica.Config {
	t.Helper()
	name := filepath.Join(t.TempDir(), "litestream.yml")
	must(t, os.WriteFile(name, []byte(text), 0o600))
	cfg, err := replica.ReadConfig(name, func(string) (string, bool) { return "", false })
	must(t, err)
	return cfg
}

// replicated is a store that is being replicated.
type replicated struct {
	*Store
	t    testing.TB
	stop func() // stops Replicate; call once
	done chan struct{}
}

// openReplicated opens a store and replicates it, once it is prepared.
func openReplicated(t testing.TB, dir string, cfg *replica.Config, prepare ...func(*Store)) *replicated {
	t.Helper()
	s := opened(t, Config{Dir: dir, Replica: cfg, Logger: testLogger(t)})
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
func (r *replicated) await(what string, ok func(ReplicaStatus) bool) ReplicaStatus {
	r.t.Helper()
	var y ReplicaStatus
	harness.WaitFor(r.t, "the replica to be "+what, func() bool {
		y = r.Replica().Status()
		return ok(y)
	})
	return y
}

func upToDate(y ReplicaStatus) bool { return y.State == ReplicaRunning && y.Lag == 0 }

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
func restored(t testing.TB, from *replica.Config, keyOf string, at time.Time) (*Store, datadir.Restored) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	y, _, err := restoreInto(dir, from, at, false)
	must(t, err)
	key, err := os.ReadFile(filepath.Join(keyOf, keyring.FileName))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, keyring.FileName), key, 0o600))
	s, err := Open(context.Background(), Config{Dir: dir}) // without a dictionary, like openReplicated
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

func events(t testing.TB, s *Store) (n int) {
	t.Helper()
	must(t, s.db.Scan(context.Background(), "SELECT count(*) FROM events", nil, &n))
	return n
}

// TestReplicaIsComplete writes with and without replication: everything committed before Close
// is in the replica.
func TestReplicaIsComplete(t *testing.T) {
	began := time.Now().Truncate(time.Second)
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, target)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated", "content_updated")
	r.await("up to date", upToDate)
	if y := r.Replica().Status(); y.Target != "file://"+target || y.LastSuccess.IsZero() || y.Err != "" {
		t.Errorf("got %+v, want the target and a success", y)
	}
	publish(t, r.Store, "acme", "content_updated")
	must(t, r.close())
	s, y := restored(t, cfg, dir, time.Time{})
	wantNumber(t, "events", events(t, s), 3)
	if y.State.Before(began) || y.Bytes == 0 {
		t.Errorf("got %+v", y)
	}

	// Changes written without replication are copied the next time.
	plain := opened(t, Config{Dir: dir})
	publish(t, plain, "acme", "content_updated")
	must(t, plain.Close())
	// So short that Close has to open the replica.
	r = openReplicated(t, dir, cfg)
	publish(t, r.Store, "acme", "content_updated")
	must(t, r.close())
	s, _ = restored(t, cfg, dir, time.Time{})
	wantNumber(t, "events", events(t, s), 5)
}

// TestRestoreMissing removes the database: the next Open restores it. If the replica is not
// reachable, Open must not start with an empty database.
func TestRestoreMissing(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, target)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated")
	must(t, r.close())
	path := filepath.Join(dir, datadir.Database)
	must(t, os.Remove(path))
	if err := os.Remove(filepath.Join(dir, datadir.Commits)); err != nil { // otherwise the WAL may have the newest commits
		t.Fatal(err)
	}
	must(t, os.WriteFile(path+"-wal", []byte("a log of another database"), 0o600))
	r = openReplicated(t, dir, cfg)
	wantNumber(t, "events", events(t, r.Store), 1)
	publish(t, r.Store, "acme", "content_updated")
	must(t, r.close())
	s, _ := restored(t, cfg, dir, time.Time{})
	wantNumber(t, "events after another restore", events(t, s), 2)

	must(t, errors.Join(os.Remove(path), os.Remove(filepath.Join(dir, datadir.Commits))))
	unreachable := readReplica(t,
		"dbs: [{path: "+path+", replica: {bucket: b, endpoint: 'http://127.0.0.1:1', access-key-id: a, secret-access-key: hidden}}]")
	_, err := Open(context.Background(), Config{Dir: dir, Replica: unreachable})
	if err == nil || !strings.Contains(err.Error(), "there is no database") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("unreachable replica: got %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Open(ended, Config{Dir: dir, Replica: cfg}); !errors.Is(err, context.Canceled) ||
		!strings.Contains(err.Error(), "was interrupted; the next start begins it again") {
		t.Errorf("interrupted restore: got %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a database was created")
	}
}

func TestReplicaRestoreRefuses(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, target)
	_, _, err := restoreInto(dir, cfg, time.Time{}, false)
	if !errors.Is(err, replica.ErrEmpty) {
		t.Errorf("empty replica: got %v", err)
	}
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated")
	r.await("up to date", upToDate)
	if _, _, err := restoreInto(dir, cfg, time.Time{}, true); !errors.Is(err, ErrLocked) {
		t.Errorf("open store: got %v, want %v", err, ErrLocked)
	}
	must(t, r.close())
	if _, _, err := restoreInto(dir, cfg, time.Time{}, false); !errors.Is(err, datadir.ErrNotEmpty) {
		t.Errorf("existing database: got %v, want %v", err, datadir.ErrNotEmpty)
	}
	before := time.Now().Add(-time.Hour)
	if _, _, err := restoreInto(dir, cfg, before, true); !errors.Is(err, replica.ErrEmpty) {
		t.Errorf("time before the first state: got %v, want %v", err, replica.ErrEmpty)
	}
	s := openDir(t, dir)
	wantNumber(t, "events after refused restores", events(t, s), 1)
	if err := s.Write(context.Background(), func(w Write) error { return w.Release(webhook.AuditEntry{}) }); err == nil {
		t.Error("Release succeeded without a hold")
	}
}

// TestRestoreForced replaces a database, which is set aside.
func TestRestoreForced(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, target)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated")
	must(t, r.close())
	plain := opened(t, Config{Dir: dir})
	publish(t, plain, "acme", "content_updated", "content_updated")
	must(t, plain.Close())
	_, aside, err := restoreInto(dir, cfg, time.Time{}, true)
	must(t, err)
	s := openDir(t, dir)
	wantNumber(t, "events", events(t, s), 1)
	db, err := sqlite.OpenReadOnly(filepath.Join(aside, datadir.Database))
	must(t, err)
	defer db.Close()
	var n int
	if err := db.QueryRow("SELECT count(*) FROM events").Scan(&n); err != nil || n != 3 {
		t.Errorf("old database: got %d events, %v; want 3", n, err)
	}
}

// TestPointInTime restores the states between writes.
func TestPointInTime(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, target)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	var times []time.Time
	for range 4 {
		publish(t, r.Store, "acme", "content_updated")
		must(t, r.Replica().Await(t.Context()))
		times = append(times, time.Now())
		harness.WaitForFileTime(t, times[len(times)-1])
	}
	for i, at := range times {
		s, y := restored(t, cfg, dir, at)
		wantNumber(t, "events at "+webhook.FormatTime(at), events(t, s), i+1)
		if y.State.After(at) {
			t.Errorf("got a state of %s, want one before %s", y.State, at)
		}
	}
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

// TestReplicaUnreachable makes a replica available later, and removes it again.
func TestReplicaUnreachable(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "replica")
	must(t, os.WriteFile(target, []byte("no folder"), 0o600))
	cfg := fileReplica(t, dir, target)
	s := opened(t, Config{Dir: dir})
	program(t, s, "acme")
	publish(t, s, "acme", "content_updated")
	must(t, s.Close())

	r := openReplicated(t, dir, cfg)
	y := r.await("failing", func(y ReplicaStatus) bool { return y.State == ReplicaFailing })
	if y.Err == "" || y.Lag <= 0 {
		t.Errorf("got %+v, want an error and a lag", y)
	}
	publish(t, r.Store, "acme", "content_updated")
	wantError(t, "Check with a failing replica", r.Check(context.Background()), nil)
	must(t, os.Remove(target))
	r.await("up to date", upToDate)

	back := takeAway(t, target)
	publish(t, r.Store, "acme", "content_updated")
	if y := r.await("failing", func(y ReplicaStatus) bool { return y.State == ReplicaFailing }); y.Lag <= 0 {
		t.Errorf("got %+v, want a lag", y)
	}
	back()
	publish(t, r.Store, "acme", "content_updated")
	r.await("up to date", upToDate)
	restoredStore, _ := restored(t, cfg, dir, time.Time{})
	wantNumber(t, "events", events(t, restoredStore), 4)
}

// TestCloseReportsMissingChanges closes a store whose replica is not writable.
func TestCloseReportsMissingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, err := Open(context.Background(), Config{Dir: dir})
		if err == nil {
			err = s.Close()
		}
		must(t, err)
		r := openReplicated(t, dir,
			readReplica(t,
				"shutdown-sync-timeout: 300ms\ndbs: [{path: "+dir+"/service.db, replica: {bucket: b, endpoint: 'http://127.0.0.1:1', "+
					"access-key-id: a, secret-access-key: hidden}}]"))
		began := time.Now()
		err = r.close()
		if err == nil || !strings.Contains(err.Error(), "lacks the newest changes") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 2*time.Second { // with the check for a lease
			t.Errorf("Close took %s", took)
		}
	})
}

// TestReplicaOfAnotherDatabase configures a replica for a different database.
func TestReplicaOfAnotherDatabase(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(context.Background(), Config{Dir: dir, Replica: fileReplica(t, t.TempDir(), t.TempDir())})
	if err == nil || !strings.Contains(err.Error(), "set path under dbs") {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 1 {
		t.Errorf("left-over files: %v", entries)
	}
}

// TestWALLengthDoesNotCheckpoint reads the length of the WAL like the writer: a library without
// this mode of the pragma would run a checkpoint.
func TestWALLengthDoesNotCheckpoint(t *testing.T) {
	s := open(t)
	program(t, s, "acme")
	err := s.Write(context.Background(), func(w Write) error { return nil })
	must(t, err)
	var busy, frames, moved int64
	if err := s.db.Writer().Conn().QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(NOOP)").Scan(&busy, &frames,
		&moved); err != nil || frames == 0 || moved != 0 {
		t.Errorf("got %d frames, %d checkpointed, %v; want some, and 0 checkpointed", frames, moved, err)
	}
}
