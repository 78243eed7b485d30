package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/store/datadir"
	"service/store/doctor"
	"service/store/keyring"
	"service/store/sqlite"
)

// levels are the levels of findings, by check.
type levels = map[string]doctor.Level

// TestExamineDir makes one change at a time to a data directory, and checks that only the
// matching check reports it. Open also refuses a newer schema and names both versions.
func TestExamineDir(t *testing.T) {
	tests := []struct {
		name   string
		open   func(t *testing.T, s *Store)   // called with the open store
		closed func(t *testing.T, dir string) // called after Close
		want   levels                         // levels other than OK, except of the check of admins
		detail string                         // part of the finding's detail
		opens  bool                           // Open succeeds
	}{
		{name: "no change", opens: true},
		{name: "readable directory", closed: chmod("", 0o755), want: levels{"data directory": doctor.LevelWarn}, detail: "mode 0755",
			opens: true},
		{name: "readable database", closed: chmod(datadir.Database, 0o644), want: levels{"data directory": doctor.LevelWarn},
			detail: "service.db is readable", opens: true},
		{name: "readable key", closed: chmod(keyring.FileName, 0o644), want: levels{"secret key": doctor.LevelFail}, detail: "mode 0644"},
		{name: "missing key", closed: func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, keyring.FileName))) },
			want: levels{"secret key": doctor.LevelFail}, detail: "is missing: it is the key of the secrets in this database; put it back"},
		{name: "wrong key", closed: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, keyring.FileName), keyring.Format([]keyring.Key{keyring.NewKey()}), 0o600))
		}, want: levels{"secret key": doctor.LevelFail}, detail: "does not contain the key"},
		{name: "two keys", closed: func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, keyring.FileName), os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			_, err = f.Write(keyring.Format([]keyring.Key{keyring.NewKey()}))
			must(t, errors.Join(err, f.Close()))
		}, want: levels{"secret key": doctor.LevelWarn}, detail: "a rotation is incomplete", opens: true},
		{name: "newer schema", open: func(t *testing.T, s *Store) { execute(t, s, "PRAGMA user_version = 9999") },
			want: levels{"schema": doctor.LevelFail}, detail: "schema 9999, but this binary supports schemas up to "},
		{name: "clock set back", open: func(t *testing.T, s *Store) {
			execute(t, s, "UPDATE settings SET value = ? WHERE name = 'clock'", fmt.Append(nil, time.Now().Add(time.Hour).UnixMilli()))
			s.writer.running = false // so that Close does not save the clock
		}, want: levels{"clock since last run": doctor.LevelWarn}, detail: " behind the time at which", opens: true},
		{name: "damaged page", closed: func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, datadir.Database), os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte(strings.Repeat("damage", 2000)), 4096)
			must(t, errors.Join(err, f.Close()))
		}, want: levels{"database": doctor.LevelFail}},
		{name: "empty database", closed: func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, datadir.Database), 0)) },
			want: levels{"database": doctor.LevelFail}, detail: "the file is empty"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			s := opened(t, Config{Dir: dir})
			execute(t, s, "UPDATE settings SET value = value WHERE name = 'clock'")
			if test.open != nil {
				test.open(t, s)
			}
			must(t, s.Close())
			if test.closed != nil {
				test.closed(t, dir)
			}
			before := listing(t, dir)
			found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir, MinFreeDisk: 0}, time.Minute)
			must(t, err)
			compare(t, found, test.want, test.detail)
			if after := listing(t, dir); after != before {
				t.Errorf("Examine changed the directory from\n%sto\n%s", before, after)
			}
			s, err = Open(t.Context(), Config{Dir: dir})
			if (err == nil) != test.opens {
				t.Errorf("Open: got %v, want success %v", err, test.opens)
			}
			if err != nil && test.want["schema"] != "" && !strings.Contains(err.Error(), "has schema 9999") {
				t.Errorf("Open: %v", err)
			}
			if err == nil {
				must(t, s.Close())
			}
		})
	}
}

// TestExamineCountedTime checks that a wall clock that differs from the time that retention counts
// is reported, whether the service runs or not.
func TestExamineCountedTime(t *testing.T) {
	umask(t)
	for detail, ahead := range map[string]time.Duration{
		"more than the service has counted": 3 * time.Hour,
		"less than the service has counted": -3 * time.Hour,
	} {
		dir := filepath.Join(t.TempDir(), "d")
		s := opened(t, Config{Dir: dir})
		execute(t, s, "INSERT INTO retention_marks VALUES (0, ?, 0, 0, 0)", time.Now().Add(-ahead).UnixMilli())
		compare(t, s.Examine(t.Context(), time.Minute), levels{"age of records": doctor.LevelWarn}, detail)
		must(t, s.Close())
		found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir}, time.Minute)
		must(t, err)
		compare(t, found, levels{"age of records": doctor.LevelWarn}, detail)
	}
}

// compare compares findings with the expected levels other than OK.
func compare(t *testing.T, found []doctor.Finding, want levels, detail string) {
	t.Helper()
	said := false
	seen := make(map[string]bool)
	for _, f := range found {
		seen[f.Check] = true
		level := doctor.LevelOK
		if w, ok := want[f.Check]; ok {
			level = w
			said = said || strings.Contains(f.Detail, detail)
		}
		if f.Check == "admins" || f.Check == "file system" || f.Check == "replica" && want["replica"] == "" {
			continue // depends on the machine, or not configured
		}
		if f.Level != level {
			t.Errorf("%s: %s (%s), want %s", f.Check, f.Level, f.Detail, level)
		}
		if (f.Level == doctor.LevelOK) != (f.Advice == "") {
			t.Errorf("%s: %s has the advice %q", f.Check, f.Level, f.Advice)
		}
	}
	for check := range want {
		if !seen[check] {
			t.Errorf("no finding about %s: %v", check, found)
		}
	}
	if len(want) > 0 && !said {
		t.Errorf("no finding contains %q: %v", detail, found)
	}
}

// umask sets the umask of the binary during a test. The driver in pure Go needs it for the files next to
// a database.
func umask(t *testing.T) {
	t.Helper()
	before := syscall.Umask(0o077)
	t.Cleanup(func() { syscall.Umask(before) })
}

// TestExamineStates examines directories that are missing, empty or in use.
func TestExamineStates(t *testing.T) {
	umask(t)
	dir := filepath.Join(t.TempDir(), "d")
	found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir}, time.Minute)
	must(t, err)
	compare(t, found, levels{"data directory": doctor.LevelWarn}, "does not exist")
	must(t, os.Mkdir(dir, 0o700))
	found, err = doctor.Examine(t.Context(), doctor.Config{Dir: dir}, time.Minute)
	must(t, err)
	compare(t, found, levels{"database": doctor.LevelWarn}, "does not exist")

	s := opened(t, Config{Dir: dir})
	if _, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir}, time.Minute); !errors.Is(err, ErrLocked) {
		t.Errorf("directory in use: got %v, want %v", err, ErrLocked)
	}
	// The process that has the directory open can examine it.
	compare(t, s.Examine(t.Context(), time.Minute), nil, "")
	must(t, os.Chmod(filepath.Join(dir, keyring.FileName), 0o644))
	compare(t, s.Examine(t.Context(), 0), levels{"secret key": doctor.LevelFail}, "mode 0644")
	s.disk.Min = 1 << 60
	compare(t, s.Examine(t.Context(), 0)[2:], levels{"disk": doctor.LevelFail, "secret key": doctor.LevelFail, "database": doctor.LevelFail},
		"MiB required")
	must(t, s.Close())
}

func chmod(name string, mode os.FileMode) func(*testing.T, string) {
	return func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, name), mode)) }
}

// listing lists the files of a directory with sizes and modes, except those that any reader may
// change: the WAL index and the lock file.
func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var b strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		if e.Name() != sqlite.LockFile && !strings.HasSuffix(e.Name(), "-shm") && !strings.HasSuffix(e.Name(), "-wal") {
			fmt.Fprintf(&b, "%s %v %d\n", e.Name(), info.Mode(), info.Size())
		}
	}
	return b.String()
}

// TestExamineReplica examines the replica of a directory.
func TestExamineReplica(t *testing.T) {
	dir, target := filepath.Join(t.TempDir(), "d"), filepath.Join(t.TempDir(), "replica")
	must(t, os.Mkdir(dir, 0o700))
	reach := func(want doctor.Level, detail string) {
		t.Helper()
		found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir, Replica: fileReplica(t, dir, target)}, time.Minute)
		must(t, err)
		last := found[len(found)-1]
		if last.Check != "replica" || last.Level != want || !strings.Contains(last.Detail, detail) {
			t.Errorf("got %v, want %s and %q", last, want, detail)
		}
	}
	reach(doctor.LevelWarn, "but empty")
	r := openReplicated(t, dir, fileReplica(t, dir, target))
	r.await("up to date", upToDate)
	must(t, r.close())
	reach(doctor.LevelOK, "its newest state is of "+time.Now().UTC().Format("2006-"))
	must(t, os.RemoveAll(target))
	must(t, os.WriteFile(target, nil, 0o600))
	reach(doctor.LevelFail, "cannot be read (unreachable): ")
	found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir, Replica: fileReplica(t, dir, target)}, time.Minute)
	must(t, err)
	if got := found[len(found)-1].Advice; !strings.Contains(got, "starts without the replica") {
		t.Errorf("got advice %q with a database, want that the service starts", got)
	}
	empty := t.TempDir()
	found, err = doctor.Examine(t.Context(), doctor.Config{Dir: empty, Replica: fileReplica(t, empty, target)}, time.Minute)
	must(t, err)
	if got := found[len(found)-1].Advice; !strings.Contains(got, "does not start until") {
		t.Errorf("got advice %q without a database, want that the service does not start", got)
	}
	restores := func(f doctor.Finding) bool {
		return f.Check == "database" && strings.Contains(f.Advice, "restores it from the replica")
	}
	if !slices.ContainsFunc(found, restores) {
		t.Errorf("got %v without a database, want that the service restores it", found)
	}
}
