package datadir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/store"
	"service/store/datadir"
	"service/store/keyring"
	"service/store/sqlite"
	"service/store/storetest"
	"service/webhook"
)

const (
	movingOut, movingIn = datadir.MovingOut, datadir.MovingIn
	newFiles, oldFiles  = datadir.NewFiles, datadir.OldFiles
	aside               = datadir.AsidePrefix
)

// dataOf creates a data directory with one program.
func dataOf(t *testing.T, dir, name string) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Dir: dir})
	must(t, err)
	_, _, err = storetest.CreateToken(t.Context(), s, webhook.NewToken{ProgramID: name, UserID: "u", Scopes: webhook.Scopes()})
	must(t, errors.Join(err, s.Close()))
}

// onlyProgram returns the ID of that program.
func onlyProgram(t *testing.T, dir string) string {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Dir: dir})
	must(t, err)
	all, err := s.Tokens().List(t.Context())
	if err := errors.Join(err, s.Close()); err != nil || len(all) != 1 {
		t.Fatalf("%d tokens, %v", len(all), err)
	}
	return all[0].ProgramID
}

// If a restore is interrupted at any step, the next process finds either all old files or all
// new ones.
func TestRestoreInterrupted(t *testing.T) {
	names := []string{datadir.Database, keyring.FileName}
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
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), datadir.Database), os.Rename(folder, filepath.Join(dir, movingOut)))
		}, "new"},
		{"when the old is out", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), os.Rename(folder, filepath.Join(dir, movingOut)))
		}, "new"},
		{"before the new moves in", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"while the new moves in", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, datadir.Database),
				os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"when the new is in", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"when the old has its name", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(filepath.Join(folder, oldFiles), filepath.Join(dir, aside+"x")), os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
		{"while it is tidied up", func(dir, folder string) error {
			return errors.Join(move(dir, filepath.Join(folder, oldFiles), names...), move(filepath.Join(folder, newFiles), dir, names...),
				os.Rename(filepath.Join(folder, oldFiles), filepath.Join(dir, aside+"x")), os.Remove(filepath.Join(folder, newFiles)),
				os.Rename(folder, filepath.Join(dir, movingIn)))
		}, "new"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "da[t]a")
			dataOf(t, dir, "old")
			r, err := datadir.Restore(dir, true)
			must(t, err)
			dataOf(t, r.Dir(), "new")
			must(t, errors.Join(os.Remove(filepath.Join(r.Dir(), "lock")), os.Remove(filepath.Join(r.Dir(), datadir.Commits))))
			must(t, test.cut(dir, datadir.Folder(r)))
			if err := datadir.Unlock(r); err != nil { // as when the process ends
				t.Fatal(err)
			}
			if got := onlyProgram(t, dir); got != test.want {
				t.Errorf("got the data of %q, want %q", got, test.want)
			}
			left, err := fs.Glob(os.DirFS(dir), datadir.Restoring+"*")
			if err != nil || len(left) > 0 {
				t.Errorf("left-over files: got %v, %v", left, err)
			}
			aside, err := fs.Glob(os.DirFS(dir), datadir.AsidePrefix+"*")
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
	r, err := datadir.Restore(dir, false)
	must(t, err)
	if _, err := store.Open(t.Context(), store.Config{Dir: dir}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("Open during a restore: got %v, want %v", err, store.ErrLocked)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory created for the restore still exists: %v", err)
	}
	dataOf(t, dir, "old")
	if _, err := datadir.Restore(dir, false); !errors.Is(err, datadir.ErrNotEmpty) {
		t.Errorf("existing data: got %v, want %v", err, datadir.ErrNotEmpty)
	}
	if got := onlyProgram(t, dir); got != "old" {
		t.Errorf("got %q", got)
	}
	s, err := store.Open(t.Context(), store.Config{Dir: dir})
	must(t, err)
	defer s.Close()
	if _, err := datadir.Restore(dir, true); !errors.Is(err, store.ErrLocked) {
		t.Errorf("open store: got %v, want %v", err, store.ErrLocked)
	}
}

// Malformed keys are refused even if the database contains no secret.
func TestMalformedKeysAreRefused(t *testing.T) {
	dir := t.TempDir()
	dataOf(t, dir, "p")
	path := filepath.Join(dir, datadir.Database)
	db, err := sqlite.OpenWritable(path)
	must(t, err)
	_, err = db.Exec("DELETE FROM settings WHERE name = ?", keyring.CheckPlace)
	must(t, errors.Join(err, db.Close()))
	for _, test := range []struct {
		keys string
		want error
	}{{"no key", datadir.ErrUnusable}, {strings.Repeat("5f", 32), nil}} {
		if _, err := datadir.Inspect(t.Context(), path, []byte(test.keys)); !errors.Is(err, test.want) {
			t.Errorf("Inspect with %q: got %v, want %v", test.keys, err, test.want)
		}
	}
}
