package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/superfly/ltx"
	"service/store/sqlite"
	"service/test/harness"
)

func TestMain(m *testing.M) {
	os.Unsetenv("AWS_CA_BUNDLE") // the S3 client fails with it
	os.Exit(m.Run())
}

func parseConfig(t testing.TB, text string) (*Config, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "litestream.yml")
	must(t, os.WriteFile(name, []byte(text), 0o600))
	return ReadConfig(name, func(name string) (string, bool) {
		value, ok := map[string]string{"BUCKET": "b", "SECRET": "s3cr3t: #x", "EMPTY": ""}[name]
		return value, ok
	})
}

func mustParseConfig(t testing.TB, text string) *Config {
	t.Helper()
	cfg, err := parseConfig(t, text)
	must(t, err)
	return cfg
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantNumber checks that got is want; what names the things that were counted.
func wantNumber[N int | int64](t testing.TB, what string, got, want N) {
	t.Helper()
	if got != want {
		t.Errorf("got %d %s, want %d", got, what, want)
	}
}

// wantError checks that err is want, nil for no error.
func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// fileConfig configures a replica in the directory target, for the database in dir.
func fileConfig(t testing.TB, dir, target string) *Config {
	t.Helper()
	return mustParseConfig(t, "dbs:\n  - path: "+dir+"/service.db\n    monitor-interval: 20ms\n"+
		"    replica:\n      path: "+target+"\n      sync-interval: 20ms\nshutdown-sync-timeout: 60s\n")
}

// bucket is an S3 server with the bucket b.
type bucket struct {
	url   string
	down  atomic.Bool                         // respond 503 to every request
	delay atomic.Pointer[func(*http.Request)] // called before each response; may be nil
	plain atomic.Bool                         // respond 501 to conditional writes
	// refuses reports whether to respond 403, which clients do not retry; may be nil.
	refuses atomic.Pointer[func(*http.Request) bool]
}

func newBucket(t testing.TB) *bucket {
	t.Helper()
	backend := s3mem.New()
	must(t, backend.CreateBucket("b"))
	b := &bucket{}
	s3 := gofakes3.New(backend).Server()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if b.plain.Load() && r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotImplemented)
			return
		}
		if refuses := b.refuses.Load(); refuses != nil && (*refuses)(r) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if delay := b.delay.Load(); delay != nil {
			(*delay)(r)
		}
		s3.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

// put writes an object of the replica that config configures.
func (b *bucket) put(t testing.TB, name, content string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.url+"/b/copy/"+name, strings.NewReader(content))
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
}

// config configures a replica in the bucket for the database in dir.
func (b *bucket) config(t testing.TB, dir string) *Config {
	t.Helper()
	return mustParseConfig(t, fmt.Sprintf(`dbs:
  - path: %s/service.db
    monitor-interval: 20ms
    replica:
      type: s3
      bucket: b
      path: copy
      endpoint: %s
      access-key-id: id
      secret-access-key: secret
      sync-interval: 20ms
shutdown-sync-timeout: 60s
`, dir, b.url))
}

// replicated is a database with one table, data, and a running replication.
type replicated struct {
	*Replication
	t    testing.TB
	db   *sqlite.DB
	stop func() // ends Run
	done chan struct{}
}

// schema is the schema of a replicated database.
var schema = &sqlite.Schema{Version: 1, Script: "CREATE TABLE data (id INTEGER PRIMARY KEY, value BLOB) STRICT;"}

func openReplicated(t testing.TB, dir string, cfg *Config, with ...limits) *replicated {
	t.Helper()
	return openReplicatedWith(t, dir, cfg, func(r *Replication) {
		for _, l := range with {
			r.limits = l
		}
	})
}

// openReplicatedWith is openReplicated with a function that configures the
// replication before it runs.
func openReplicatedWith(t testing.TB, dir string, cfg *Config, configure func(*Replication)) *replicated {
	t.Helper()
	return openWriter(t, dir, cfg, func(r *Replication) {
		configure(r)
		r.limits.termInterval = 24 * time.Hour // tests set superseded themselves
		r.limits.writerPeriod = 0              // and replace a live service
	})
}

// openWriter is openReplicatedWith for a service that shows a sign of life.
func openWriter(t testing.TB, dir string, cfg *Config, configure func(*Replication)) *replicated {
	t.Helper()
	path := filepath.Join(dir, "service.db")
	r := &replicated{t: t, done: make(chan struct{})}
	logger := testLogger(t)
	hooks := sqlite.Hooks{BeforeBatch: func(tx *sqlite.Tx) { r.BeforeBatch(tx) }}
	var err error
	r.db, err = sqlite.Open(context.Background(), sqlite.Config{
		Path: path, Schema: schema, Readers: [...]int{2, 1, 1}, NoAutoCheckpoint: true, Hooks: hooks, Logger: logger,
	})
	must(t, err)
	r.Replication = NewReplication(cfg, path, r.db.Writer(), logger)
	configure(r.Replication)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() {
		defer close(r.done)
		r.Run(ctx)
	}()
	t.Cleanup(func() { r.close() })
	return r
}

// write commits one statement.
func (r *replicated) write(query string, args ...any) {
	r.t.Helper()
	if err := r.db.Writer().Do(func(tx *sqlite.Tx) error { return tx.Exec(query, args...) }); err != nil {
		r.t.Error(err)
	}
}

// insert commits a row of the given size.
func (r *replicated) insert(size int) {
	r.t.Helper()
	r.write("INSERT INTO data (value) VALUES (zeroblob(?))", size)
}

// close ends Run, closes the database and the replication, and returns their errors.
// Further calls do nothing.
func (r *replicated) close() error {
	select {
	case <-r.done:
		return nil
	default:
	}
	r.stop()
	<-r.done
	return r.db.Close(r.Close)
}

// mustClose is close without an error.
func (r *replicated) mustClose() {
	r.t.Helper()
	must(r.t, r.close())
}

// await waits until ok reports true for the status.
func (r *replicated) await(what string, ok func(Status) bool) {
	r.t.Helper()
	harness.WaitFor(r.t, "the replica to be "+what, func() bool { return ok(r.Status()) })
}

func running(s Status) bool { return s.State == StateRunning }

func upToDate(s Status) bool { return s.State == StateRunning && s.Lag == 0 }

// current returns the open session, or nil.
func (r *replicated) current() *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

// awaitSent syncs and waits until everything is in the replica. Without the sync, the
// replica would count as up to date although there are new changes.
func (r *replicated) awaitSent(s *session) {
	r.t.Helper()
	err := s.db.Sync(context.Background())
	var pos ltx.Pos
	if err == nil {
		pos, err = s.db.Pos()
	}
	must(r.t, err)
	r.await("sent", func(Status) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.sent >= pos.TXID
	})
}

// restoredRows restores the newest state of a replica and counts its rows.
func restoredRows(t testing.TB, cfg *Config) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "restored.db")
	_, err := Restore(context.Background(), cfg, path, time.Time{})
	must(t, err)
	return countRows(t, path)
}

func countRows(t testing.TB, path string) (n int) {
	t.Helper()
	db, err := sqlite.OpenReadOnly(path)
	must(t, err)
	defer db.Close()
	var found string
	if err := db.QueryRow("PRAGMA quick_check(1)").Scan(&found); err != nil || found != "ok" {
		t.Fatalf("restored database: got %q, %v, want ok", found, err)
	}
	must(t, db.QueryRow("SELECT count(*) FROM data").Scan(&n))
	return n
}

// testLogger returns a logger whose output is shown if the test fails.
func testLogger(t testing.TB) *slog.Logger {
	var mu sync.Mutex
	var b bytes.Buffer
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Logf("log:\n%s", &b)
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
