package store

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"service/internal/durable"
	"service/store/keyring"
	"service/webhook"
)

// dataOf makes a data directory whose only program has that name.
func dataOf(t *testing.T, dir, name string) {
	t.Helper()
	s, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.Tokens().Create(t.Context(), webhook.NewToken{ProgramID: name, UserID: "u", Scopes: webhook.Scopes()})
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
}

// onlyProgram returns it.
func onlyProgram(t *testing.T, dir string) string {
	t.Helper()
	s, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Tokens().List(t.Context())
	if err := errors.Join(err, s.Close()); err != nil || len(all) != 1 {
		t.Fatalf("%d tokens, %v", len(all), err)
	}
	return all[0].ProgramID
}

// Wherever a restoration is cut off, what opens the data directory next finds
// all that was there before, or all that is new.
func TestRestoreCutOff(t *testing.T) {
	names := []string{databaseFile, keyring.FileName}
	move := func(from, to string, names ...string) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, os.Rename(filepath.Join(from, name), filepath.Join(to, name)))
		}
		return errors.Join(errs...)
	}
	for _, test := range []struct {
		name string
		cut  func(dir, folder string) error // what was done of it
		want string
	}{
		{"while it is filled", func(string, string) error { return nil }, "old"},
		{"after it was decided", func(dir, folder string) error { return os.Rename(folder, filepath.Join(dir, movingOut)) }, "new"},
		{"while the old moves out", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), databaseFile), os.Rename(folder, filepath.Join(dir, movingOut)))
		}, "new"},
		{"when the old is out", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), os.Rename(folder, filepath.Join(dir, movingOut)))
		}, "new"},
		{"before the new moves in", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"while the new moves in", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, databaseFile), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"when the new is in", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"when the old has its name", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(filepath.Join(folder, oldFiles), filepath.Join(dir, replaced+"x")), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"while it is tidied up", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(filepath.Join(folder, oldFiles), filepath.Join(dir, replaced+"x")), os.Remove(filepath.Join(folder, newFiles)), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(memoryDir(t), "da[t]a")
			dataOf(t, dir, "old")
			r, err := Restore(dir, true)
			must(t, err)
			dataOf(t, r.Dir(), "new")
			must(t, errors.Join(os.Remove(filepath.Join(r.Dir(), "lock")), os.Remove(filepath.Join(r.Dir(), commitsFile))))
			must(t, test.cut(dir, r.folder))
			if err := r.lock.Close(); err != nil { // as the end of a process does
				t.Fatal(err)
			}
			if got := onlyProgram(t, dir); got != test.want {
				t.Errorf("got the data of %q, want %q", got, test.want)
			}
			left, err := fs.Glob(os.DirFS(dir), restoring+"*")
			if err != nil || len(left) > 0 {
				t.Errorf("left are %v, %v", left, err)
			}
			aside, err := fs.Glob(os.DirFS(dir), replaced+"*")
			if err != nil || len(aside) != strings.Count(test.want, "new") {
				t.Fatalf("put aside are %v, %v", aside, err)
			}
			for _, old := range aside {
				if got := onlyProgram(t, filepath.Join(dir, old)); got != "old" {
					t.Errorf("put aside is %q, want old", got)
				}
			}
		})
	}
}

// A restoration takes the data directory for itself, and what fails leaves no
// trace.
func TestRestoreRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	r, err := Restore(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("open meanwhile: %v, want %v", err, ErrLocked)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory that was made for it is there: %v", err)
	}
	dataOf(t, dir, "old")
	if _, err := Restore(dir, false); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("over data: %v, want %v", err, ErrNotEmpty)
	}
	if got := onlyProgram(t, dir); got != "old" {
		t.Errorf("got %q", got)
	}
	s := openDir(t, dir)
	if _, err := Restore(dir, true); !errors.Is(err, ErrLocked) {
		t.Errorf("over an open store: %v, want %v", err, ErrLocked)
	}
	_ = s
}

// Malformed keys are refused even when the database has no encrypted secret.
func TestMalformedKeysAreRefused(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir)
	if err := s.writer.do(func(t *tx) error { return t.Exec("DELETE FROM settings WHERE name = ?", keyCheck) }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, databaseFile)
	for _, test := range []struct {
		keys string
		want error
	}{{"no key", ErrUnusable}, {strings.Repeat("5f", 32), nil}} {
		if _, err := Inspect(t.Context(), path, []byte(test.keys)); !errors.Is(err, test.want) {
			t.Errorf("Inspect with %q: got %v, want %v", test.keys, err, test.want)
		}
		if err := checkKeys(t.Context(), path, []byte(test.keys)); !errors.Is(err, test.want) {
			t.Errorf("checkKeys with %q: got %v, want %v", test.keys, err, test.want)
		}
	}
}

// A snapshot holds what was written before it, and stays as it is; a disk
// without room for it is not touched.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir)
	if _, _, err := s.Tokens().Create(t.Context(), webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()}); err != nil {
		t.Fatal(err)
	}
	publish := func() {
		t.Helper()
		id := webhook.NewID()
		e := webhook.Event{ID: id, Name: "content_updated", ReceivedAt: time.Now(), JSON: []byte(`{"id":"` + id + `"}`)}
		if _, err := s.Events().Publish(t.Context(), "p", []webhook.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	snapshot, err := s.Snapshot(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	publish()
	if info, err := os.Stat(snapshot.Path); err != nil || info.Mode().Perm() != 0o600 || info.Size() != snapshot.Bytes {
		t.Errorf("the file: %v, %v, want mode 0600 and %d bytes", info, err, snapshot.Bytes)
	}
	c, err := Inspect(t.Context(), snapshot.Path, snapshot.Keys)
	if err != nil || c.Events != 1 || c.Programs != 1 || c.Schema != snapshot.Schema {
		t.Errorf("it holds %+v, %v", c, err)
	}
	if _, err := Inspect(t.Context(), snapshot.Path, []byte(strings.Repeat("5f", 32))); !errors.Is(err, ErrUnusable) {
		t.Errorf("with another key: %v, want %v", err, ErrUnusable)
	}
	if _, err := Inspect(t.Context(), snapshot.Path, []byte("no key")); !errors.Is(err, ErrUnusable) {
		t.Errorf("with a malformed key: %v, want %v", err, ErrUnusable)
	}
	damagedCopy, err := os.ReadFile(snapshot.Path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 5 * 4096; i < 6*4096; i++ {
		damagedCopy[i] ^= 0xff
	}
	bad := filepath.Join(t.TempDir(), "bad.db")
	if err := os.WriteFile(bad, damagedCopy, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(t.Context(), bad, nil); !errors.Is(err, ErrUnusable) {
		t.Errorf("damaged: %v, want %v", err, ErrUnusable)
	}
	if err := snapshot.Remove(); err != nil {
		t.Error(err)
	}

	var refused *webhook.Error
	if _, err := s.Snapshot(t.Context(), 1<<40); !errors.As(err, &refused) || refused.Code != webhook.CodeUnavailable {
		t.Errorf("without room: %v, want a refusal", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Snapshot(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("called off: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*"+durable.TempSuffix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// Before a migration the database is copied; the log says where; the newest two
// of the copies are kept.
func TestMigrationSnapshots(t *testing.T) {
	dir := t.TempDir()
	schema1(t, dir)
	older := []string{"service.db.schema-1.20200101T000000Z", "service.db.schema-2.20210101T000000Z", "service.db.schema-9.20190101T000000Z"}
	for _, name := range append(older, "service.db.schema-1"+durable.TempSuffix+"123") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	s, err := Open(t.Context(), Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	copies, err := filepath.Glob(filepath.Join(dir, "service.db.schema-*"))
	if err != nil || len(copies) != 2 || !slices.Contains(copies, filepath.Join(dir, older[1])) {
		t.Fatalf("kept are %v, %v, want the newest two", copies, err)
	}
	made := copies[slices.IndexFunc(copies, func(c string) bool { return c != filepath.Join(dir, older[1]) })]
	c, err := Inspect(t.Context(), made, nil)
	if err != nil || c.Schema != 1 || c.Events != 4 {
		t.Errorf("%s holds %+v, %v, want what was there before", made, c, err)
	}
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info, err)
	}
	for _, want := range []string{`msg="migrating the schema, with a snapshot of the old database" from=1 to=`, "snapshot=" + made, "snapshot=" + filepath.Join(dir, older[0])} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, &log)
		}
	}
}
