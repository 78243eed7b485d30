package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/internal/durable"
	"service/store/keyring"
	"service/webhook"
)

// dataOf creates a data directory with one program.
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

// onlyProgram returns the id of that program.
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

// If a restore is interrupted at any step, the next process finds either all old files or all
// new ones.
func TestRestoreInterrupted(t *testing.T) {
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
		cut  func(dir, folder string) error // the steps before the interruption
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
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, databaseFile),
				os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"when the new is in", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"when the old has its name", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(filepath.Join(folder, oldFiles), filepath.Join(dir, replaced+"x")), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"while it is tidied up", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(filepath.Join(folder, oldFiles), filepath.Join(dir, replaced+"x")), os.Remove(filepath.Join(folder, newFiles)),
				os.Rename(folder, filepath.Join(dir, movingIn)))
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
			if err := r.lock.Close(); err != nil { // as when the process ends
				t.Fatal(err)
			}
			if got := onlyProgram(t, dir); got != test.want {
				t.Errorf("got the data of %q, want %q", got, test.want)
			}
			left, err := fs.Glob(os.DirFS(dir), restoring+"*")
			if err != nil || len(left) > 0 {
				t.Errorf("left-over files: got %v, %v", left, err)
			}
			aside, err := fs.Glob(os.DirFS(dir), replaced+"*")
			if err != nil || len(aside) != strings.Count(test.want, "new") {
				t.Fatalf("set aside: got %v, %v", aside, err)
			}
			for _, old := range aside {
				if got := onlyProgram(t, filepath.Join(dir, old)); got != "old" {
					t.Errorf("set aside: got %q, want old", got)
				}
			}
		})
	}
}

// A restore locks the data directory, and leaves nothing behind after a failure.
func TestRestoreRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	r, err := Restore(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("Open during a restore: got %v, want %v", err, ErrLocked)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory created for the restore still exists: %v", err)
	}
	dataOf(t, dir, "old")
	if _, err := Restore(dir, false); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("existing data: got %v, want %v", err, ErrNotEmpty)
	}
	if got := onlyProgram(t, dir); got != "old" {
		t.Errorf("got %q", got)
	}
	s := openDir(t, dir)
	if _, err := Restore(dir, true); !errors.Is(err, ErrLocked) {
		t.Errorf("open store: got %v, want %v", err, ErrLocked)
	}
	_ = s
}

// Malformed keys are refused even if the database contains no secret.
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
	}
}

// A snapshot contains everything written before it. It is refused if the disk has no room.
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
		t.Errorf("file: got %v, %v, want mode 0600 and %d bytes", info, err, snapshot.Bytes)
	}
	c, err := Inspect(t.Context(), snapshot.Path, snapshot.Keys)
	if err != nil || c.Events != 1 || c.Programs != 1 || c.Schema != snapshot.Schema {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := Inspect(t.Context(), snapshot.Path, []byte(strings.Repeat("5f", 32))); !errors.Is(err, ErrUnusable) {
		t.Errorf("wrong key: got %v, want %v", err, ErrUnusable)
	}
	if _, err := Inspect(t.Context(), snapshot.Path, []byte("no key")); !errors.Is(err, ErrUnusable) {
		t.Errorf("malformed key: got %v, want %v", err, ErrUnusable)
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
		t.Errorf("damaged: got %v, want %v", err, ErrUnusable)
	}
	if err := snapshot.Remove(); err != nil {
		t.Error(err)
	}

	var refused *webhook.Error
	if _, err := s.Snapshot(t.Context(), 1<<40); !errors.As(err, &refused) || refused.Code != webhook.CodeUnavailable {
		t.Errorf("no room: got %v, want an error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Snapshot(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*"+durable.TempSuffix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left-over files: got %v, %v", left, err)
	}
}
