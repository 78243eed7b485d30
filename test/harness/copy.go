package harness

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// copies is the variable of the environment that makes a test binary copy files, and nothing else.
const copies = "SERVICE_TEST_COPIES"

func init() {
	if os.Getenv(copies) == "" {
		return
	}
	if err := copyTree(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Copy copies a file or a folder with what it contains, except sockets. Files that exist are written
// in place. It does so in another process: closing a database in a process that has it open drops
// SQLite's locks.
func Copy(tb testing.TB, from, to string) {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(self, from, to)
	cmd.Env = append(os.Environ(), copies+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("copying %s to %s: %v\n%s", from, to, err, out)
	}
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := to + path[len(from):]
		switch {
		case d.IsDir():
			return os.MkdirAll(target, info.Mode().Perm())
		case info.Mode().IsRegular():
			return copyFile(path, target, info)
		case info.Mode().Type() == fs.ModeSocket:
			return nil
		}
		return fmt.Errorf("%s is neither a file nor a folder", path)
	})
}

func copyFile(from, to string, info fs.FileInfo) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer out.Close()
	n, err := io.Copy(out, in)
	if err != nil {
		return err
	}
	if err := out.Truncate(n); err != nil {
		return err
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}
