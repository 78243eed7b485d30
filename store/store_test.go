package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"service/store/doctor"
	"service/store/sqlite"
	"service/test/harness"
	"service/webhook"
)

// open opens an empty store in a new directory, see [memoryDir].
func open(t testing.TB) *Store {
	t.Helper()
	return openDir(t, memoryDir(t))
}

var memoryDir = harness.MemoryDir

func openDir(t testing.TB, dir string) *Store {
	t.Helper()
	s := opened(t, Config{Dir: dir, Dictionary: commonText()})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// commonText is the dictionary of the embedded event types.
var commonText = sync.OnceValue(func() []byte {
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		panic(err)
	}
	return catalog.Dictionary()
})

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program creates a program with a token.
func program(t testing.TB, s *Store, id string) {
	t.Helper()
	_, _, err := s.Tokens().Create(context.Background(), webhook.NewToken{ProgramID: id, UserID: "u", Scopes: webhook.Scopes()})
	must(t, err)
}

func subscribe(t testing.TB, s *Store, programID string, names ...string) webhook.Subscription {
	t.Helper()
	sub, err := create(s, programID, names...)
	must(t, err)
	return sub
}

func create(s *Store, programID string, names ...string) (webhook.Subscription, error) {
	url := "https://partner.example/hook"
	sub, _, err := s.Subscriptions().Create(context.Background(), programID, "u", &webhook.SubscriptionFields{URL: &url, Events: &names}, 0)
	return sub, err
}

// event returns an event with a new ID.
func event(name string) webhook.Event {
	id := webhook.NewID()
	return webhook.Event{
		ID: id, Name: name, Version: "1", ReceivedAt: time.Now(), TimestampGiven: true,
		JSON: fmt.Appendf(nil, `{"id":%q,"timestamp":"2026-01-02T03:04:05.000Z","name":%q,"version":"1","content_id":7}`, id, name),
	}
}

// publish publishes one event of each name, and returns them with their seqs.
func publish(t testing.TB, s *Store, programID string, names ...string) []webhook.Event {
	t.Helper()
	events := make([]webhook.Event, len(names))
	for i, name := range names {
		events[i] = event(name)
	}
	added, err := s.Events().Publish(context.Background(), programID, events)
	if err != nil || added != len(names) {
		t.Fatalf("Publish: added %d of %d: %v", added, len(names), err)
	}
	return events
}

func queue(t testing.TB, s *Store, id string) *Queue {
	t.Helper()
	l, err := s.Queues().Get(context.Background(), id)
	must(t, err)
	return l
}

// form forms the next delivery of a queue, nil if nothing waits.
func form(t testing.TB, s *Store, l *Queue, count int) *Claim {
	t.Helper()
	w, err := s.Queues().waiting(context.Background(), l, l.Wanted, count, webhook.MaxDeliveryBytes)
	must(t, err)
	if len(w.Seqs) == 0 {
		return nil
	}
	c, err := s.Queues().form(&Credit{Queue: l}, &w).Wait()
	must(t, err)
	return c
}

// wantCode checks that err is a *webhook.Error with a code.
func wantCode(t *testing.T, err error, code webhook.Code) {
	t.Helper()
	var e *webhook.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("got error %v, want one with code %s", err, code)
	}
}

func TestSettingsOfEveryConnection(t *testing.T) {
	s := open(t)
	ctx := context.Background()
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"} {
		var got string
		if err := s.db.Writer().Conn().QueryRowContext(ctx, "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("writer: %s is %s (%v), want %s", pragma, got, err, want)
		}
	}
	if _, err := s.db.Readers().ExecContext(ctx, "DELETE FROM programs"); err == nil {
		t.Error("a reader can write")
	}
	version, err := SQLiteVersion()
	must(t, err)
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil || major*1_000_000+minor*1000+patch < 3_051_003 {
		t.Errorf("got SQLite %s (%v), want 3.51.3 or newer: older ones can corrupt a WAL database", version, err)
	}
}

// The data directory and its files are accessible only to their owner.
func TestFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	openDir(t, dir)
	for name, want := range map[string]os.FileMode{"": 0o700, "service.db": 0o600, "secret.key": 0o600, "lock": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v (%v), want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

func TestOneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir)
	_, err := Open(context.Background(), Config{Dir: dir})
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("got %v, want ErrLocked with the process id", err)
	}
	must(t, os.Remove(filepath.Join(dir, sqlite.LockFile)))
	if _, err := Open(context.Background(), Config{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("without its lock file: got %v, want %v", err, ErrLocked)
	}
	if _, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir}, time.Minute); !errors.Is(err, ErrLocked) {
		t.Errorf("Examine without the lock file: got %v, want %v", err, ErrLocked)
	}
	wantError(t, "the open store after the refused Open", s.Check(context.Background()), nil)
}

func TestOpenRefuses(t *testing.T) {
	fill := func(t *testing.T) string {
		dir := t.TempDir()
		s := opened(t, Config{Dir: dir})
		program(t, s, "p")
		subscribe(t, s, "p", "content_updated")
		must(t, s.Close())
		return dir
	}
	for _, c := range []struct {
		name  string
		spoil func(dir string) error
		want  string
	}{
		{"key missing", func(dir string) error { return os.Remove(filepath.Join(dir, "secret.key")) }, "secret.key is missing"},
		{"key of another", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "secret.key"), []byte(strings.Repeat("ab", 32)), 0o600)
		}, "does not contain the key"},
		{"key garbled", func(dir string) error { return os.WriteFile(filepath.Join(dir, "secret.key"), []byte("hello"), 0o600) },
			"64 hexadecimal digits"},
		{"not a database", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "service.db"), []byte(strings.Repeat("not a database. ", 512)), 0o600)
		}, "is damaged"},
		{"a page overwritten", func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, "service.db"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			info, err := f.Stat()
			if err == nil {
				junk := strings.Repeat("junk", 1024)
				for at := int64(4096); err == nil && at < info.Size(); at += 4096 {
					_, err = f.WriteAt([]byte(junk), at)
				}
			}
			return errors.Join(err, f.Close())
		}, "is damaged"},
		{"newer schema", func(dir string) error {
			db, err := sqlite.OpenWritable(filepath.Join(dir, "service.db"))
			if err != nil {
				return err
			}
			_, err = db.Exec("PRAGMA user_version = 99")
			return errors.Join(err, db.Close())
		}, "schema 99"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := fill(t)
			must(t, c.spoil(dir))
			before, err := os.ReadFile(filepath.Join(dir, "service.db"))
			must(t, err)
			if _, err := Open(context.Background(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			after, err := os.ReadFile(filepath.Join(dir, "service.db"))
			if err != nil || string(before) != string(after) {
				t.Errorf("the refused database was changed (%v)", err)
			}
		})
	}
}

func TestReopenKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, Config{Dir: dir})
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	events := publish(t, s, "p", "content_updated", "content_deleted", "content_updated")
	must(t, s.Close())
	s = openDir(t, dir)
	l := queue(t, s, sub.ID)
	if l.Wanted != 3 || l.NextPing.IsZero() {
		t.Errorf("got wanted %d, next ping %v; want 3 and a ping", l.Wanted, l.NextPing)
	}
	c := form(t, s, l, 100)
	if c == nil || len(c.Events) != 2 || string(c.Events[1]) != string(events[2].JSON) {
		t.Fatalf("got %+v, want a delivery of events 1 and 3", c)
	}
	if more := publish(t, s, "p", "content_updated"); more[0].Seq != 4 {
		t.Errorf("next seq: got %d, want 4", more[0].Seq)
	}
}

// Secrets are stored encrypted, and are removed with their subscription.
func TestSecretsAreEncrypted(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir)
	program(t, s, "p")
	url, names, canary := "https://partner.example", []string{"content_updated"}, "Bearer canary-5f1d"
	header := &canary
	sub, secret, err := s.Subscriptions().Create(context.Background(), "p", "u",
		&webhook.SubscriptionFields{URL: &url, Events: &names, AuthorizationHeader: &header}, 0)
	must(t, err)
	l := queue(t, s, sub.ID)
	if l.Authorization != canary || string(l.Secrets[0]) != string(secret) {
		t.Error("the secrets in the queue differ from the given ones")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		must(t, err)
		if strings.Contains(string(b), "canary-5f1d") || strings.Contains(string(b), string(secret)) {
			t.Errorf("%s contains an unencrypted secret", filepath.Base(f))
		}
	}
	unsubscribe(t, s, "p", sub.ID)
	var kept int
	err = s.db.Readers().QueryRow("SELECT count(*) FROM subscriptions WHERE authorization_header IS NOT NULL OR " +
		"length(signing_secret) > 0").Scan(&kept)
	if err != nil || kept != 0 {
		t.Errorf("%d deleted subscriptions have secrets (%v)", kept, err)
	}
}
