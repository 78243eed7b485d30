package store

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"service/store/datadir"
	"service/webhook"
)

// begun opens a data directory, begins its hold, and returns the store and whether there is a
// hold.
func begun(t *testing.T, cfg Config) (s *Store, held bool) {
	t.Helper()
	cfg.Logger = testLogger(t)
	s, err := Open(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	must(t, s.Holds().Begin(t.Context()))
	_, held = s.Holds().Current()
	return s, held
}

// service restore pauses deliveries until they are released, whether it restores a replica or a
// backup. A service that restores into an empty directory, like a takeover, keeps the state in
// the data.
func TestHoldAfterRestore(t *testing.T) {
	lost, target := t.TempDir(), t.TempDir()
	r := openReplicated(t, lost, fileReplica(t, lost, target))
	program(t, r.Store, "acme")
	must(t, r.close())
	key, err := os.ReadFile(filepath.Join(lost, "secret.key"))
	must(t, err)
	empty := func() string {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "secret.key"), key, 0o600))
		return dir
	}

	dir := empty()
	s, held := begun(t, Config{Dir: dir, Replica: fileReplica(t, dir, target)})
	if held {
		t.Error("an empty directory was restored: deliveries are paused")
	}
	must(t, s.Close())

	dir = empty()
	_, _, err = restoreInto(dir, fileReplica(t, dir, target), time.Time{}, true)
	must(t, err)
	for range 2 { // the pause outlasts a restart
		if s, held = begun(t, Config{Dir: dir}); !held {
			t.Fatal("service restore: deliveries are not paused")
		}
		must(t, s.Close())
	}
	// A copy of data with a pause is paused as well.
	paused := t.TempDir()
	r = openReplicated(t, dir, fileReplica(t, dir, paused))
	must(t, r.close())
	dir = empty()
	if s, held = begun(t, Config{Dir: dir, Replica: fileReplica(t, dir, paused)}); !held {
		t.Error("an empty directory was restored from paused data: deliveries are not paused")
	}
	must(t, s.Close())
	// A restore that sends at once ends the pause.
	other := empty()
	restore, err := datadir.Restore(other, true)
	must(t, err)
	restore.SendAtOnce = true
	_, err = restore.FromReplica(t.Context(), fileReplica(t, other, paused), time.Time{})
	must(t, err)
	_, err = restore.Commit()
	must(t, err)
	must(t, restore.Close())
	if s, held = begun(t, Config{Dir: other}); held {
		t.Error("restored to send at once: deliveries are paused")
	}
	must(t, s.Close())
	s, _ = begun(t, Config{Dir: dir})
	must(t, s.write(t.Context(), func(w Write) error { return w.Release(webhook.AuditEntry{}) }))
	must(t, s.Close())
	if _, held = begun(t, Config{Dir: dir}); held {
		t.Error("after the release: deliveries are paused")
	}
}

// backUp returns the path of a backup. It is outside of the data directory, in which the next start
// removes unfinished files.
func backUp(t *testing.T, s *Store) (path string) {
	t.Helper()
	snapshot, err := s.Snapshot(t.Context(), 1)
	must(t, err)
	path = filepath.Join(t.TempDir(), "kept")
	must(t, os.Rename(snapshot.Path, path))
	return path
}

// restoreBackup replaces the database of a data directory by a backup, and moves the file of the backup.
func restoreBackup(t *testing.T, dir, backup string) {
	t.Helper()
	r, err := datadir.Restore(dir, true)
	must(t, err)
	must(t, os.Rename(backup, filepath.Join(r.Dir(), datadir.Database)))
	must(t, r.MarkBackup(t.Context(), "the backup", time.Now()))
	_, err = r.Commit()
	must(t, errors.Join(err, r.Close()))
}

// A restored backup is paused. It counts as the newest data until the first write under a lease,
// even if the pause lasts longer.
func TestRestoredIsNewest(t *testing.T) {
	from := filepath.Join(t.TempDir(), "data")
	s := opened(t, Config{Dir: from})
	backup := backUp(t, s)
	must(t, s.Close())
	restoreBackup(t, from, backup)
	if known, err := datadir.KnownLease(t.Context(), from); err != nil || known != math.MaxInt64 {
		t.Errorf("KnownLease of restored data: got %d, %v", known, err)
	}
	s, held := begun(t, Config{Dir: from})
	if !held {
		t.Error("restored backup: deliveries are not paused")
	}
	generation := func() int64 {
		known, err := s.Replica().Generation(t.Context())
		must(t, err)
		return known
	}
	if known := generation(); known != math.MaxInt64 {
		t.Errorf("restored data: got generation %d, want the newest", known)
	}
	must(t, s.Replica().Fence(5, Lease{Valid: func() bool { return true }}))
	if _, held := s.Holds().Current(); !held {
		t.Error("the first write under a lease has ended the pause")
	}
	if known := generation(); known != 5 {
		t.Errorf("after a write under a lease: got generation %d, want 5", known)
	}
}
