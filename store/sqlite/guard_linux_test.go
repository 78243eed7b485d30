package sqlite

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// visited names, in the environment, the database that TestVisitor comes to.
const visited = "SQLITE_TEST_VISITED"

// TestVisitor is another process with the database open, that closes it; see
// visit. It does the one thing that matters of what SQLite before 3.51 does
// then: it asks whether it is the last, by the lock that excludes all others.
func TestVisitor(t *testing.T) {
	path := os.Getenv(visited)
	if path == "" {
		return // not called by visit
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	alone := sharedRange
	alone.Type = syscall.F_WRLCK
	switch err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &alone); {
	case err == nil:
		t.Log("alone")
	case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EACCES):
		t.Fatal(err)
	}
}

// visit has another process ask whether it alone has a database open.
func visit(t *testing.T, path string) (alone bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestVisitor$", "-test.v")
	cmd.Env = append(os.Environ(), visited+"="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the visitor: %v\n%s", err, out)
	}
	return strings.Contains(string(out), "alone")
}

// TestGuard closes the database's file in this process, which drops the locks
// of a driver that uses POSIX locks. A visitor must not take itself for the only
// one all the same: it would remove the log when it leaves.
func TestGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := openPath(t, path, Hooks{})
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if visit(t, path) {
		t.Error("a visitor has the database for itself while it is open")
	}
	if err := db.Writer().Do(insertItem("a")); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("Close has left the log: the guard was still held")
	}
	if !visit(t, path) {
		t.Error("the guard is held when the database is closed")
	}

	// What runs last still finds the guard held, and the log.
	db = openPath(t, path, Hooks{})
	if err := db.Writer().Do(insertItem("b")); err != nil {
		t.Fatal(err)
	}
	err = db.Close(func() error {
		if visit(t, path) {
			t.Error("a visitor has the database for itself before the last function has ended")
		}
		_, err := os.Stat(path + "-wal")
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
