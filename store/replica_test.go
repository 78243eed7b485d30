package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/internal/durable"
	"service/webhook"
)

// fileReplica configures a replica in a folder, in a file of Litestream's
// format, for the database of a data directory.
func fileReplica(t testing.TB, dir, replica string) *ReplicaConfig {
	t.Helper()
	return readReplica(t, "dbs:\n  - path: "+dir+"/service.db\n    monitor-interval: 20ms\n    replica:\n      path: "+replica+"\n      sync-interval: 20ms\nshutdown-sync-timeout: 5s\n")
}

func readReplica(t testing.TB, text string) *ReplicaConfig {
	t.Helper()
	cfg, err := parseReplica(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func parseReplica(t testing.TB, text string) (*ReplicaConfig, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "litestream.yml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return ReadReplicaConfig(name, func(name string) (string, bool) {
		value, ok := map[string]string{"BUCKET": "b", "SECRET": "s3cr3t: #x", "EMPTY": ""}[name]
		return value, ok
	})
}

// replicated is a store with a replica that follows it.
type replicated struct {
	*Store
	t    testing.TB
	stop func() // Replicate; once
	done chan struct{}
}

func openReplicated(t testing.TB, dir string, cfg *ReplicaConfig, limits ...replicaLimits) *replicated {
	t.Helper()
	s, err := Open(context.Background(), Config{Dir: dir, Replica: cfg, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range limits {
		s.replication.limits = l
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &replicated{s, t, cancel, make(chan struct{})}
	go func() {
		defer close(r.done)
		if err := s.Replicate(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { r.close() })
	return r
}

// close ends replication and closes the store; the error is Close's.
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

// await waits until the replica is as wanted.
func (r *replicated) await(what string, ok func(Replica) bool) Replica {
	r.t.Helper()
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		y := r.Replica()
		if ok(y) {
			tick.Stop()
			return y
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("the replica is not %s: %+v", what, y)
		}
	}
}

// awaitSent waits until all that was committed is in the replica. For a moment
// after a commit it is said to be up to date, since nobody has looked yet.
func (r *replicated) awaitSent() {
	r.t.Helper()
	r.replication.mu.Lock()
	db := r.replication.open.db
	r.replication.mu.Unlock()
	if err := db.Sync(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	pos, err := db.Pos()
	if err != nil {
		r.t.Fatal(err)
	}
	r.await("sent", func(Replica) bool {
		r.replication.mu.Lock()
		defer r.replication.mu.Unlock()
		return r.replication.sent >= pos.TXID
	})
}

func upToDate(y Replica) bool { return y.State == ReplicaRunning && y.Lag == 0 }

// testLogger writes the log to the test's when it has failed.
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

var _ io.Writer = writerFunc(nil)

// restored restores a replica into a new data directory with the key of another,
// and opens it.
func restored(t testing.TB, from *ReplicaConfig, keyOf string, at time.Time) (*Store, Restored) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	y, _, err := restoreInto(dir, from, at, false)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(keyOf, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), key, 0o600); err != nil {
		t.Fatal(err)
	}
	return openDir(t, dir), y
}

// restoreInto fills a data directory from a replica.
func restoreInto(dir string, from *ReplicaConfig, at time.Time, force bool) (y Restored, aside string, err error) {
	r, err := Restore(dir, force)
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
	if err := s.scan(context.Background(), "SELECT count(*) FROM events", nil, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestReplicaHoldsEverything writes with and without replication, kills nothing,
// and restores: what was committed when the store was closed is there, whatever
// happened in between.
func TestReplicaHoldsEverything(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated", "content_updated")
	r.await("up to date", upToDate)
	if y := r.Replica(); y.Target != "file://"+replica || y.LastSuccess.IsZero() || y.Err != "" {
		t.Errorf("got %+v, want the target and a success", y)
	}
	publish(t, r.Store, "acme", "content_updated")
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	s, y := restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != 3 {
		t.Errorf("got %d events, want 3", n)
	}
	if time.Since(y.State) > time.Minute || y.Bytes == 0 {
		t.Errorf("got %+v", y)
	}

	// Without replication: what is written then is copied the next time.
	plain, err := Open(context.Background(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, plain, "acme", "content_updated")
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	// So short that it is Close that has to open it.
	r = openReplicated(t, dir, cfg)
	publish(t, r.Store, "acme", "content_updated")
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	s, _ = restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != 5 {
		t.Errorf("got %d events, want 5", n)
	}
}

// TestRestoreMissing loses the database: the next Open has it again. One that
// cannot ask its replica must not begin with nothing.
func TestRestoreMissing(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated")
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, databaseFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"-wal", []byte("a log of another database"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = openReplicated(t, dir, cfg)
	if n := events(t, r.Store); n != 1 {
		t.Errorf("got %d events, want 1", n)
	}
	publish(t, r.Store, "acme", "content_updated")
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	s, _ := restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != 2 {
		t.Errorf("after another restore: got %d events, want 2", n)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	deaf := readReplica(t, "dbs: [{path: "+path+", replica: {bucket: b, endpoint: 'http://127.0.0.1:1', access-key-id: a, secret-access-key: hidden}}]")
	_, err := Open(context.Background(), Config{Dir: dir, Replica: deaf})
	if err == nil || !strings.Contains(err.Error(), "there is no database") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("a replica that cannot be asked: got %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Open(ended, Config{Dir: dir, Replica: cfg}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "was cut off; the next start begins it anew") {
		t.Errorf("a restoration that is cut off: got %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a database was made all the same")
	}
}

func TestReplicaRestoreRefuses(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	_, _, err := restoreInto(dir, cfg, time.Time{}, false)
	if !errors.Is(err, ErrNoReplica) {
		t.Errorf("an empty replica: got %v", err)
	}
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated")
	r.await("up to date", upToDate)
	if _, _, err := restoreInto(dir, cfg, time.Time{}, true); !errors.Is(err, ErrLocked) {
		t.Errorf("an open store: got %v, want %v", err, ErrLocked)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := restoreInto(dir, cfg, time.Time{}, false); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a database that is there: got %v, want %v", err, ErrNotEmpty)
	}
	before := time.Now().Add(-time.Hour)
	if _, _, err := restoreInto(dir, cfg, before, true); !errors.Is(err, ErrNoReplica) {
		t.Errorf("a time before all: got %v, want %v", err, ErrNoReplica)
	}
	s := openDir(t, dir)
	if n := events(t, s); n != 1 {
		t.Errorf("what was refused has changed the database: got %d events, want 1", n)
	}
	if err := s.Write(context.Background(), Write.Release); err == nil {
		t.Error("a database that was not restored: the hold could be ended")
	}
}

// TestRestoreForced puts another state in the place of a database, which is kept.
func TestRestoreForced(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated")
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	plain, err := Open(context.Background(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, plain, "acme", "content_updated", "content_updated")
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	_, aside, err := restoreInto(dir, cfg, time.Time{}, true)
	if err != nil {
		t.Fatal(err)
	}
	s := openDir(t, dir)
	if n := events(t, s); n != 1 {
		t.Errorf("got %d events, want 1", n)
	}
	db, err := openDB(filepath.Join(aside, databaseFile), true, readerPragmas)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRow("SELECT count(*) FROM events").Scan(&n); err != nil || n != 3 {
		t.Errorf("what was kept: got %d events, %v; want 3", n, err)
	}
}

// TestPointInTime restores the states between changes.
func TestPointInTime(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	var times []time.Time
	for range 4 {
		publish(t, r.Store, "acme", "content_updated")
		r.await("up to date", upToDate)
		<-time.After(60 * time.Millisecond) // the replica's files differ in time by milliseconds
		times = append(times, time.Now())
		<-time.After(60 * time.Millisecond)
	}
	for i, at := range times {
		s, y := restored(t, cfg, dir, at)
		if n := events(t, s); n != i+1 {
			t.Errorf("at %s: got %d events, want %d", webhook.FormatTime(at), n, i+1)
		}
		if y.State.After(at) {
			t.Errorf("got a state of %s, want one before %s", y.State, at)
		}
	}
}

// TestReplicaUnreachable has a replica that comes only later, and goes again.
func TestReplicaUnreachable(t *testing.T) {
	dir := t.TempDir()
	replica := filepath.Join(t.TempDir(), "replica")
	if err := os.WriteFile(replica, []byte("no folder"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := fileReplica(t, dir, replica)
	s, err := Open(context.Background(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	program(t, s, "acme")
	publish(t, s, "acme", "content_updated")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	r := openReplicated(t, dir, cfg)
	y := r.await("failing", func(y Replica) bool { return y.State == ReplicaFailing })
	if y.Err == "" || y.Lag <= 0 {
		t.Errorf("got %+v, want an error and a lag", y)
	}
	publish(t, r.Store, "acme", "content_updated")
	if err := r.Check(context.Background()); err != nil {
		t.Errorf("with a replica that fails the store is not ready: %v", err)
	}
	if err := os.Remove(replica); err != nil {
		t.Fatal(err)
	}
	r.await("up to date", upToDate)

	if err := os.Rename(replica, replica+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(replica, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	publish(t, r.Store, "acme", "content_updated")
	if y := r.await("failing", func(y Replica) bool { return y.State == ReplicaFailing }); y.Lag <= 0 {
		t.Errorf("got %+v, want a lag", y)
	}
	if err := errors.Join(os.Remove(replica), os.Rename(replica+".away", replica)); err != nil {
		t.Fatal(err)
	}
	publish(t, r.Store, "acme", "content_updated")
	r.await("up to date", upToDate)
	restoredStore, _ := restored(t, cfg, dir, time.Time{})
	if n := events(t, restoredStore); n != 4 {
		t.Errorf("got %d events, want 4", n)
	}
}

// TestCloseTellsOfWhatIsNotCopied closes a store whose replica cannot be written.
func TestCloseTellsOfWhatIsNotCopied(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(context.Background(), Config{Dir: dir})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	r := openReplicated(t, dir, readReplica(t, "shutdown-sync-timeout: 300ms\ndbs: [{path: "+dir+"/service.db, replica: {bucket: b, endpoint: 'http://127.0.0.1:1', access-key-id: a, secret-access-key: hidden}}]"))
	began := time.Now()
	err = r.close()
	if err == nil || !strings.Contains(err.Error(), "does not hold what was written last") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestReplicaConfig reads files in Litestream's format.
func TestReplicaConfig(t *testing.T) {
	cfg := readReplica(t, `
access-key-id: AK
secret-access-key: ${SECRET}
snapshot: {interval: 12h, retention: 168h}
l0-retention: 1h
levels: [{interval: 10s}, {interval: 1m}]
dbs:
  - path: /data/service.db
    monitor-interval: 250ms
    replicas:
      - type: s3
        bucket: $BUCKET
        path: copies/service
        endpoint: http://127.0.0.1:9000
        region: eu-central-1
        sync-interval: 2s
`)
	if cfg.Database != "/data/service.db" || cfg.Target() != "s3://b/copies/service at 127.0.0.1:9000" || cfg.replica.secretAccessKey != "s3cr3t: #x" ||
		cfg.SnapshotInterval != 12*time.Hour || cfg.SnapshotRetention != 168*time.Hour || cfg.L0Retention != time.Hour || len(cfg.CompactionIntervals) != 2 ||
		cfg.MonitorInterval != 250*time.Millisecond || cfg.replica.syncInterval != 2*time.Second {
		t.Errorf("got %+v, target %s", cfg, cfg.Target())
	}
	for _, text := range []string{"", "# nothing\n", "dbs:\n", "dbs: []\n", "snapshot:\n  interval: 1h\n"} {
		if cfg, err := parseReplica(t, text); cfg != nil || err != nil {
			t.Errorf("%q: got %v, %v; want that it names no database", text, cfg, err)
		}
	}
	for text, want := range map[string]string{
		"dbs:\n  - path: a\n    replica:\n      urk: x\n": "litestream.yml:4: urk is not supported here",
		"addr: ':9090'\n": "litestream.yml:1: addr is not supported here; the service's own /metrics",
		"dbs: [{path: a, replica: {path: r}}, {path: b, replica: {path: r}}]": "dbs must name one database",
		"dbs: [{path: a}]": "one replica, not 0",
		"dbs: [{path: a, replicas: [{path: r}, {path: q}]}]":            "one replica, not 2",
		"dbs: [{replica: {path: r}}]":                                   "path must name the database",
		"dbs: [{path: a, replica: {type: sftp, path: r}}]":              `must be file or s3, not "sftp"`,
		"dbs: [{path: a, replica: {url: 'gs://b/p'}}]":                  "must begin with file:// or s3://",
		"dbs: [{path: a, replica: {url: 's3://b/p', path: x}}]":         "either a url, or a path",
		"dbs: [{path: a, replica: {path: 's3://b/p'}}]":                 "that belongs into url",
		"dbs: [{path: a, replica: {type: s3}}]":                         "needs a bucket",
		"dbs: [{path: a, replica: {bucket: b, access-key-id: hidden}}]": "belong together",
		"dbs: [{path: a, replica: {path: r, sync-interval: 1}}]":        "sync-interval must be a duration from 10ms",
		"dbs: [{path: a, replica: {path: r, skip-verify: maybe}}]":      `skip-verify must be true or false, not "maybe"`,
		"dbs: [{path: a, monitor-interval: 0s, replica: {path: r}}]":    "monitor-interval must be a duration from 10ms",
		"dbs: [{path: a, replica: {path: '${NO_SUCH}'}}]":               "environment variable NO_SUCH, which is not set",
		"dbs: [{path: a, path: b, replica: {path: r}}]":                 "path is given twice",
		"dbs: {path: a}":                         "dbs must be a list",
		"dbs: [{path: [a], replica: {path: r}}]": "path must be a single value",
		"levels: [{interval: 1m}, {interval: 1m}]\ndbs: [{path: a, replica: {path: r}}]": "longer than that of the one before",
		"dbs: [\n": "litestream.yml: yaml:",
		"- 1\n":    "the file must be a mapping",
	} {
		_, err := parseReplica(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
	// All at once.
	_, err := parseReplica(t, "exec: x\ndbs: [{path: a, monitor-interval: x, replica: {nope: 1, path: r}}]")
	if err == nil || strings.Count(err.Error(), "litestream.yml:") != 3 {
		t.Errorf("got %v, want three faults", err)
	}
	if _, err := ParseReplicaURL("s3://bucket/path?endpoint=http://127.0.0.1:9000"); err != nil {
		t.Error(err)
	}
	if _, err := ParseReplicaURL("/some/path"); err == nil {
		t.Error("a path is no URL: got no error")
	}
}

// TestReplicaOfAnotherDatabase has the configuration name another database.
func TestReplicaOfAnotherDatabase(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(context.Background(), Config{Dir: dir, Replica: fileReplica(t, t.TempDir(), t.TempDir())})
	if err == nil || !strings.Contains(err.Error(), "the path under dbs must name it") {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 1 {
		t.Errorf("it left %v behind", entries)
	}
}

// bigEvent returns an event of some size.
func bigEvent(size int) webhook.Event {
	e := event("content_updated")
	e.JSON = append(e.JSON[:len(e.JSON)-1], `,"padding":"`+strings.Repeat("x", size)+`"}`...)
	return e
}

// TestLogStaysShort publishes without rest: Litestream gets its moments, and the
// log stays short.
func TestLogStaysShort(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	cfg.MonitorInterval = time.Minute // so that it is the writer that does it
	limits := defaultReplicaLimits
	limits.pace = 1_100
	r := openReplicated(t, dir, cfg, limits)
	program(t, r.Store, "acme")
	r.await("running", func(y Replica) bool { return y.State == ReplicaRunning })
	const each, frames = 400, 5 // of an event
	var publishing sync.WaitGroup
	for range 4 {
		publishing.Go(func() {
			for range each {
				if _, err := r.Publish(context.Background(), "acme", []webhook.Event{bigEvent(20_000)}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	publishing.Wait()
	// The file does not become smaller: it tells of the longest log.
	info, err := os.Stat(filepath.Join(dir, databaseFile+"-wal"))
	if err != nil {
		t.Fatal(err)
	}
	longest := info.Size() / (4096 + walFrameHeader)
	t.Logf("at least %d frames were written; the log had at most %d", 4*each*frames, longest)
	if longest > 4*each*frames/2 {
		t.Errorf("the log had %d frames of %d", longest, 4*each*frames)
	}
}

// The log is shortened when there is little to do, as it would be without a
// replica, long before the writer would have it done.
func TestLogIsShortenedAtRest(t *testing.T) {
	dir := t.TempDir()
	cfg := fileReplica(t, dir, t.TempDir())
	cfg.MonitorInterval = 50 * time.Millisecond
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	r.await("up to date", upToDate)
	for range 300 {
		if _, err := r.Publish(context.Background(), "acme", []webhook.Event{bigEvent(20_000)}); err != nil {
			t.Fatal(err)
		}
	}
	r.await("of a short log", func(Replica) bool { return r.replication.frames.Load() < autoCheckpoint/2 })
	r.await("up to date again", upToDate)
}

// Shortly before the writer has the log shortened, most of it is copied.
func TestLogIsCopiedBeforeItIsShortened(t *testing.T) {
	dir := t.TempDir()
	cfg := fileReplica(t, dir, t.TempDir())
	cfg.MonitorInterval = time.Hour
	limits := defaultReplicaLimits
	limits.pace = 1_000
	r := openReplicated(t, dir, cfg, limits)
	program(t, r.Store, "acme")
	r.await("up to date", upToDate)
	copied := func() ltx.TXID {
		r.replication.mu.Lock()
		defer r.replication.mu.Unlock()
		pos, err := r.replication.open.db.Pos()
		if err != nil {
			t.Error(err)
		}
		return pos.TXID
	}
	before := copied()
	for r.replication.frames.Load() <= limits.pace/8*7 { // which the writer looks at now and then, before a commit
		for range 10 {
			if _, err := r.Publish(context.Background(), "acme", []webhook.Event{bigEvent(20_000)}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(paceLooked)
	}
	r.await("copied", func(Replica) bool { return copied() > before })
	if r.replication.paced.Load() != nil {
		t.Error("the writer has had the log shortened, and not only copied")
	}
}

// TestLogTooLong has a reader that does not end keep the log from being
// shortened: the copy is given up, events are refused, and all comes back when
// the reader has ended.
func TestLogTooLong(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	limits := defaultReplicaLimits
	limits.pace, limits.giveUp, limits.longFor, limits.refuse = 200, 400, 50*time.Millisecond, 1_000
	r := openReplicated(t, dir, cfg, limits)
	program(t, r.Store, "acme")
	r.await("up to date", upToDate)
	read, err := r.readers.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Rollback()
	var n int
	if err := read.QueryRow("SELECT count(*) FROM events").Scan(&n); err != nil {
		t.Fatal(err)
	}
	var refused *webhook.Error
	for i := 0; refused == nil; i++ {
		_, err := r.Publish(context.Background(), "acme", []webhook.Event{bigEvent(20_000)})
		if err != nil && !errors.As(err, &refused) || i > 5_000 {
			t.Fatalf("event %d: got %v", i, err)
		}
	}
	if refused.Code != webhook.CodeUnavailable || !strings.Contains(refused.Detail, "write-ahead log") {
		t.Errorf("got %+v", refused)
	}
	wantCode(t, r.Check(context.Background()), webhook.CodeUnavailable)
	r.await("given up", func(y Replica) bool { return y.State == ReplicaFailing && strings.Contains(y.Err, "too long") })
	if err := read.Rollback(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for tick := time.NewTicker(25 * time.Millisecond); ; <-tick.C {
		if r.Check(context.Background()) == nil {
			tick.Stop()
			break
		}
		select {
		case <-deadline:
			t.Fatalf("the log stays too long: %d frames", r.replication.frames.Load())
		default:
		}
	}
	publish(t, r.Store, "acme", "content_updated")
	r.await("up to date", upToDate)
	want := events(t, r.Store)
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	s, _ := restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != want {
		t.Errorf("got %d events, want %d", n, want)
	}
}

// TestLooksMoveNothing asks for the length of the log as the writer does: a
// library that does not know how takes it for the order to shorten the log.
func TestLooksMoveNothing(t *testing.T) {
	s := open(t)
	program(t, s, "acme")
	err := s.Write(context.Background(), func(w Write) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	var busy, frames, moved int64
	if err := s.writer.conn.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(NOOP)").Scan(&busy, &frames, &moved); err != nil || frames == 0 || moved != 0 {
		t.Errorf("got %d frames, %d of them moved, %v; want some, and none moved", frames, moved, err)
	}
}

// TestLogBegunAnewWithoutLitestream has SQLite move the log into the database and
// begin it anew while Litestream is not open: after a crash, say, and before it is
// open again. The frames that Litestream had not seen must reach the replica all
// the same.
func TestLogBegunAnewWithoutLitestream(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	cfg.MonitorInterval = time.Minute
	r := openReplicated(t, dir, cfg)
	program(t, r.Store, "acme")
	r.await("running", func(y Replica) bool { return y.State == ReplicaRunning })
	for range 20 {
		if _, err := r.Publish(context.Background(), "acme", []webhook.Event{bigEvent(20_000)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.replication.open.db.SyncAndWait(context.Background()); err != nil {
		t.Fatal(err)
	}
	// Not seen by Litestream.
	publish(t, r.Store, "acme", "content_updated")
	r.replication.giveUp(r.replication.open, nil)
	var busy, frames, moved int64
	if err := r.writer.conn.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(RESTART)").Scan(&busy, &frames, &moved); err != nil || busy != 0 || frames != moved {
		t.Fatalf("got %d of %d frames moved, busy %d, %v", moved, frames, busy, err)
	}
	publish(t, r.Store, "acme", "content_updated") // begins the log anew
	want := events(t, r.Store)
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	s, _ := restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != want {
		t.Errorf("got %d events, want %d", n, want)
	}
}

// TestReplicaEmptied removes what is in the replica while it is followed: a
// bucket that was made anew, say. What is sent afterwards is of no use alone, so
// it is noticed and told, and the whole database is copied.
func TestReplicaEmptied(t *testing.T) {
	dir, replica := t.TempDir(), t.TempDir()
	cfg := fileReplica(t, dir, replica)
	cfg.CompactionIntervals = []time.Duration{time.Hour} // so that nothing is in two places
	limits := defaultReplicaLimits
	limits.wholeEvery = 0
	lose := func(folder string) { // at one stroke, though it is written to
		t.Helper()
		if err := os.Rename(filepath.Join(replica, folder), filepath.Join(t.TempDir(), "lost")); err != nil {
			t.Fatal(err)
		}
	}
	r := openReplicated(t, dir, cfg, limits)
	program(t, r.Store, "acme")
	publish(t, r.Store, "acme", "content_updated")
	r.await("up to date", upToDate)
	r.awaitSent() // nothing may be on its way: Litestream begins anew by itself when that fails
	r.await("given the day's copy of the whole", func(Replica) bool {
		copies, err := os.ReadDir(filepath.Join(replica, "ltx", "9"))
		return err == nil && len(copies) > 0 && !strings.HasSuffix(copies[0].Name(), ".tmp")
	})
	lose("ltx")
	publish(t, r.Store, "acme", "content_updated")
	r.await("known to be empty", func(y Replica) bool {
		return y.State == ReplicaFailing && strings.Contains(y.Err, "cannot be restored from")
	})
	publish(t, r.Store, "acme", "content_updated")
	r.await("up to date", upToDate)
	s, _ := restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != 3 {
		t.Errorf("got %d events, want 3", n)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}

	// Nor does it say at its end that the replica has everything, when that was
	// not asked for a while; and the next start sees to it.
	r = openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	lose("ltx/0")
	publish(t, r.Store, "acme", "content_updated")
	if err := r.close(); !errors.Is(err, errHollow) {
		t.Errorf("at the end: got %v, want %v", err, errHollow)
	}
	r = openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	s, _ = restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != 4 {
		t.Errorf("after the next start: got %d events, want 4", n)
	}
}

// source is a copy of the whole database as Litestream makes it: a header, and
// much behind it.
type source struct {
	io.Reader
	closed chan struct{}
}

func (s source) Close() error {
	close(s.closed)
	return nil
}

// TestSlowBucket has a bucket that takes nothing of a copy of the whole database:
// it is read to its end all the same, since the log is not shortened before.
func TestSlowBucket(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	r := openReplicated(t, dir, b.replica(t, dir))
	r.await("up to date", upToDate)
	r.replication.mu.Lock()
	c, ok := r.replication.open.replica.Client.(*spooled)
	r.replication.mu.Unlock()
	if !ok {
		t.Fatal("it is sent as it is made")
	}

	ctx, cancel := context.WithCancel(context.Background())
	delay := func(*http.Request) { <-ctx.Done() }
	b.delay.Store(&delay)
	header, err := (&ltx.Header{Version: ltx.Version, Flags: ltx.HeaderFlagNoChecksum, PageSize: 4096, Commit: 1, MinTXID: 1, MaxTXID: 7, Timestamp: time.Now().UnixMilli()}).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20 // more than the client of S3 holds in memory
	copied := source{io.MultiReader(bytes.NewReader(header), io.LimitReader(zeros{}, size)), make(chan struct{})}
	sent := make(chan error, 1)
	go func() {
		_, err := c.WriteLTXFile(ctx, litestream.SnapshotLevel, 1, 7, copied)
		sent <- err
	}()
	select {
	case <-copied.closed:
	case <-time.After(20 * time.Second):
		t.Error("the copy is read no faster than the bucket takes it")
	}
	cancel()
	if err := <-sent; err == nil {
		t.Error("it is said to be sent")
	}
	b.delay.Store(nil)
	left, err := filepath.Glob(filepath.Join(metaPath(filepath.Join(dir, databaseFile)), "*"+durable.TempSuffix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestPile has a replica that takes nothing for so long that too much waits for
// it: that is dropped, the service goes on, and the replica has everything when
// it can be reached again.
func TestPile(t *testing.T) {
	dir := t.TempDir()
	replica := filepath.Join(t.TempDir(), "replica")
	cfg := fileReplica(t, dir, replica)
	limits := defaultReplicaLimits
	limits.pile, limits.pileEvery = 1<<20, 10*time.Millisecond
	r := openReplicated(t, dir, cfg, limits)
	program(t, r.Store, "acme")
	big := func() { // the database does not grow, but what is copied of it does
		t.Helper()
		value := make([]byte, 100_000)
		rand.Read(value)
		err := r.writer.do(func(t *tx) error {
			return t.exec("INSERT INTO settings (name, value) VALUES ('checked_at', ?1) ON CONFLICT DO UPDATE SET value = ?1", value)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	waits := func() (size int64) {
		t.Helper()
		err := filepath.WalkDir(metaPath(filepath.Join(dir, databaseFile)), func(_ string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				size += info.Size()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return size
	}

	// What was sent is still on the disk, and does not count.
	r.await("running", func(y Replica) bool { return y.State == ReplicaRunning })
	for waits() < 3*limits.pile {
		big()
		r.replication.mu.Lock()
		o := r.replication.open
		r.replication.mu.Unlock()
		if o == nil {
			t.Fatalf("it was given up with %d bytes on the disk that were sent", waits())
		}
		db := o.db
		err := db.Sync(context.Background())
		pos, posErr := db.Pos()
		if err := errors.Join(err, posErr); err != nil {
			t.Fatal(err)
		}
		r.await("sent", func(Replica) bool {
			r.replication.mu.Lock()
			defer r.replication.mu.Unlock()
			return r.replication.sent >= pos.TXID
		})
	}
	sent := waits()

	if err := errors.Join(os.Rename(replica, replica+".away"), os.WriteFile(replica, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	big()
	r.await("failing", func(y Replica) bool { return y.State == ReplicaFailing })
	for waits() < sent+limits.pile/2 {
		big()
		<-time.After(limits.pileEvery)
		if y := r.Replica(); strings.Contains(y.Err, "too much waits") {
			t.Fatalf("it was given up with less than %d bytes waiting beside %d that were sent", limits.pile, sent)
		}
	}
	for n := 0; !strings.Contains(r.Replica().Err, "too much waits"); n++ {
		if n == 1_000 {
			t.Fatalf("it is not given up, with %d bytes waiting: %+v", waits()-sent, r.Replica())
		}
		big()
		<-time.After(limits.pileEvery)
	}
	publish(t, r.Store, "acme", "content_updated", "content_updated")
	if err := r.Check(context.Background()); err != nil {
		t.Errorf("the store is not ready: %v", err)
	}
	for n := 0; waits() > limits.pile/2; n++ {
		if n == 1_000 {
			t.Fatalf("%d bytes wait on the disk after it was given up", waits())
		}
		<-time.After(limits.pileEvery)
	}
	if err := errors.Join(os.Remove(replica), os.Rename(replica+".away", replica)); err != nil {
		t.Fatal(err)
	}
	r.await("up to date", upToDate)
	s, _ := restored(t, cfg, dir, time.Time{})
	if n := events(t, s); n != 2 {
		t.Errorf("got %d events, want 2", n)
	}
}
