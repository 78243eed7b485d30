package sqlite

import (
	"os"
	"path/filepath"
	"testing"

	"service/test/harness"
)

// copyOpen returns a copy of an open database, as a killed process leaves it: with
// commits in the WAL only.
func copyOpen(t *testing.T) (path string) {
	t.Helper()
	live := filepath.Join(t.TempDir(), "test.db")
	db := openPath(t, live, Hooks{})
	must(t, db.Writer().Do(insertItem("a")))
	path = filepath.Join(t.TempDir(), "old", "test.db")
	must(t, os.Mkdir(filepath.Dir(path), 0o700))
	for _, suffix := range []string{"", "-wal"} {
		must(t, copyFile(live+suffix, path+suffix))
	}
	must(t, db.Close(nil))
	return path
}

func TestOpenOffline(t *testing.T) {
	path := copyOpen(t)
	names := func() (names []string) {
		all, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(path)), "*", "*"))
		must(t, err)
		return all
	}
	for _, wal := range []bool{true, false} {
		before := names()
		u, err := OpenOffline(path)
		must(t, err)
		var n int
		err = u.QueryRow("SELECT count(*) FROM items").Scan(&n)
		if wal && (err != nil || n != 1) {
			t.Errorf("with WAL: got %d items, %v, want 1", n, err)
		}
		if err := u.Close(); err != nil {
			t.Error(err)
		}
		if after := names(); len(after) != len(before) {
			t.Errorf("got files %q afterwards, want %q", after, before)
		}
		os.Remove(path + "-wal")
	}
}

// A hard link to another file system is impossible, so the database is copied.
func TestOpenOfflineCopy(t *testing.T) {
	path := copyOpen(t)
	other := otherFileSystem(t, path)
	scratch, err := newScratch(path, 1, other)
	must(t, err)
	defer os.RemoveAll(scratch)
	info, err := os.Stat(filepath.Join(scratch, filepath.Base(path)))
	if want, wantErr := os.Stat(path); err != nil || wantErr != nil || info.Size() != want.Size() {
		t.Errorf("copy: got %v, %v, want the size of %v, %v", info, err, want, wantErr)
	}
	if _, err := newScratch(path, 1<<60, other); err == nil {
		t.Error("a copy larger than the free space: got no error")
	}
}

// otherFileSystem returns a folder on another file system than path, whether temporary files are on
// disk or in memory.
func otherFileSystem(t *testing.T, path string) string {
	t.Helper()
	for _, dir := range []string{"/dev/shm", "/var/tmp"} {
		probe := filepath.Join(dir, filepath.Base(t.TempDir())+"-offline-test")
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if os.Link(path, probe) != nil {
			return dir
		}
		os.Remove(probe)
	}
	harness.Unavailable(t, "tmpfs", "neither /dev/shm nor /var/tmp is on another file system")
	return ""
}
