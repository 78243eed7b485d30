package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/commits"
	"service/store/datadir"
	"service/store/doctor"
)

// counted returns the commit count in the file of a data directory.
func counted(t *testing.T, dir string) int64 {
	t.Helper()
	n, err := commits.Read(filepath.Join(dir, datadir.Commits))
	must(t, err)
	return n
}

// A database whose WAL was removed is refused, and no file is changed. It opens again when the
// WAL is back, or when the count file is removed.
func TestMissingCommits(t *testing.T) {
	dir := killed(t, 5)
	log := filepath.Join(dir, datadir.Database+"-wal")
	must(t, os.Rename(log, log+".moved"))
	before := contents(t, dir)
	if err := openError(t, Config{Dir: dir}); !errors.Is(err, commits.ErrMissing) || !strings.Contains(err.Error(), "has 0 of ") {
		t.Errorf("without the WAL: got %v, want %v", err, commits.ErrMissing)
	}
	found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir}, time.Minute)
	must(t, err)
	missing := false
	for _, f := range found {
		missing = missing || f.Check == "database" && f.Level == doctor.LevelFail && strings.Contains(f.Detail, commits.ErrMissing.Error())
	}
	if !missing {
		t.Errorf("Examine does not report the missing commits: %+v", found)
	}
	after := contents(t, dir)
	delete(after, datadir.Database+"-wal") // any reader creates an empty one
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the refused Open changed files: %s", diff)
	}
	must(t, os.Rename(log+".moved", log))
	must(t, openError(t, Config{Dir: dir}))

	dir = killed(t, 5)
	must(t, errors.Join(os.Remove(filepath.Join(dir, datadir.Database+"-wal")), os.Remove(filepath.Join(dir, datadir.Commits))))
	must(t, openError(t, Config{Dir: dir}))
}

// A database that was removed while its WAL and commit count stayed is not replaced by an empty
// one, which would destroy the commits in the WAL.
func TestOrphanedWAL(t *testing.T) {
	dir := killed(t, 5)
	path := filepath.Join(dir, datadir.Database)
	must(t, os.Rename(path, path+".moved"))
	before := contents(t, dir)
	err := openError(t, Config{Dir: dir})
	if !errors.Is(err, commits.ErrMissing) || !strings.Contains(err.Error(), path+"-wal") {
		t.Errorf("got %v, want %v and the name of the WAL", err, commits.ErrMissing)
	}
	if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
		t.Errorf("the refused Open changed files: %s", diff)
	}
	found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir}, time.Minute)
	must(t, err)
	if !slices.ContainsFunc(found, func(f doctor.Finding) bool {
		return f.Check == "database" && f.Level == doctor.LevelFail && strings.Contains(f.Detail, path+"-wal")
	}) {
		t.Errorf("Examine does not report the WAL without a database: %+v", found)
	}
	must(t, os.Rename(path+".moved", path))
	must(t, openError(t, Config{Dir: dir}))
}

// The files after a kill, a power loss or a shutdown never count as a loss.
func TestCommitsFile(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(path string) error
	}{
		{"whole", func(string) error { return nil }},
		{"gone", os.Remove},
		{"older", func(path string) error { return os.WriteFile(path, commits.Record(nil, 2), 0o600) }},
		{"torn", func(path string) error {
			return os.WriteFile(path, append(commits.Record(nil, 987654321)[:12], commits.Record(nil, 0)[12:]...), 0o600)
		}},
		{"empty", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		{"zeros", func(path string) error { return os.WriteFile(path, make([]byte, len(commits.Record(nil, 0))), 0o600) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := killed(t, 5)
			must(t, c.harm(filepath.Join(dir, datadir.Commits)))
			var last int64
			for range 2 { // killed, and then closed
				s := opened(t, Config{Dir: dir})
				publish(t, s, "p", "content_updated")
				must(t, s.Close())
				n := counted(t, dir)
				if n <= last {
					t.Errorf("the file has %d commits after %d", n, last)
				}
				last = n
			}
		})
	}
}

// The file counts only stored commits: no failed, refused or empty writes.
func TestCommitsCounted(t *testing.T) {
	s := openProgram(t)
	stored := func() int64 {
		t.Helper()
		n, err := commits.Stored(func(query string, dest ...any) error { return s.db.Scan(t.Context(), query, nil, dest...) })
		must(t, err)
		return n
	}
	step := func(what string, more int64, do func() error) {
		t.Helper()
		before := stored()
		err := do()
		if got := stored(); got != before+more || counted(t, s.Dir()) != got {
			t.Errorf("%s (%v): got %d commits in the database and %d in the file, want %d", what, err, got, counted(t, s.Dir()), before+more)
		}
	}
	insert := func(t *tx) error {
		return t.Exec("INSERT INTO programs (id, created_at, updated_at) VALUES (random(), 0, 0)")
	}
	step("a write", 1, func() error { return s.writer.do(insert) })
	step("nothing", 0, func() error { return s.writer.do(func(*tx) error { return nil }) })
	step("a read", 0, func() error { return s.Check(t.Context()) })
	step("a failure", 0, func() error {
		return s.writer.do(func(t *tx) error { return errors.Join(insert(t), errors.New("no")) })
	})
	leased := true
	must(t, s.Replica().Fence(1, Lease{Valid: func() bool { return leased }, Context: t.Context}))
	step("a lease that ends", 0, func() error {
		return s.writer.do(func(t *tx) error { leased = false; return insert(t) })
	})
	leased = true
	step("another write", 1, func() error { return s.writer.doRepeatable(insert) })
}

// A restore replaces the count along with the database.
func TestCommitsAfterRestore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := opened(t, Config{Dir: dir})
	program(t, s, "p")
	backup := backUp(t, s)
	for range 9 {
		publish(t, s, "p", "content_updated")
	}
	must(t, s.Close())
	r, err := datadir.Restore(dir, true)
	must(t, err)
	must(t, os.Rename(backup, filepath.Join(r.Dir(), datadir.Database)))
	aside, err := r.Commit()
	must(t, errors.Join(err, r.Close()))
	must(t, openError(t, Config{Dir: dir}))
	if counted(t, aside) <= counted(t, dir) {
		t.Errorf("%d commits set aside, %d restored", counted(t, aside), counted(t, dir))
	}
	// Without a database the count is ignored.
	must(t, os.WriteFile(filepath.Join(dir, datadir.Commits), commits.Record(nil, 1000), 0o600))
	must(t, errors.Join(os.Remove(filepath.Join(dir, datadir.Database)), os.Remove(filepath.Join(dir, "secret.key"))))
	must(t, openError(t, Config{Dir: dir}))
}
