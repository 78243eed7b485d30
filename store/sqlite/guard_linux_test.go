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

// otherProcessEnv is the environment variable with the database that TestOtherProcess
// opens.
const otherProcessEnv = "SQLITE_TEST_OTHER_PROCESS"

// TestOtherProcess runs in a second process, see lastToClose. Like SQLite before 3.51
// when it closes a database, it tries the lock that excludes all other processes, to
// find out whether it is the last.
func TestOtherProcess(t *testing.T) {
	path := os.Getenv(otherProcessEnv)
	if path == "" {
		return // not started by lastToClose
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	exclusive := sharedRange
	exclusive.Type = syscall.F_WRLCK
	switch err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &exclusive); {
	case err == nil:
		t.Log("exclusive")
	case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EACCES):
		t.Fatal(err)
	}
}

// lastToClose reports whether another process that closes the database would believe
// that it is the last, and delete the WAL.
func lastToClose(t *testing.T, path string) bool {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOtherProcess$", "-test.v")
	cmd.Env = append(os.Environ(), otherProcessEnv+"="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("other process: %v\n%s", err, out)
	}
	return strings.Contains(string(out), "exclusive")
}

// TestGuard closes the database file in this process, which drops the locks of a
// driver that uses POSIX locks. The guard must still protect the WAL.
func TestGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := openPath(t, path, Hooks{})
	f, err := os.Open(path)
	must(t, err)
	f.Close()
	if lastToClose(t, path) {
		t.Error("another process can lock the database exclusively while it is open")
	}
	must(t, db.Writer().Do(insertItem("a")))
	must(t, db.Close(nil))
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("Close left the WAL: it did not release the guard first")
	}
	if !lastToClose(t, path) {
		t.Error("Close did not release the guard")
	}

	// While the function passed to Close runs, the guard is held and the WAL exists.
	db = openPath(t, path, Hooks{})
	must(t, db.Writer().Do(insertItem("b")))
	err = db.Close(func() error {
		if lastToClose(t, path) {
			t.Error("the guard is released before the last function returned")
		}
		_, err := os.Stat(path + "-wal")
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
