package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store/datadir"
	"service/store/sqlite"
	"service/webhook"
)

// Snapshot is a consistent copy of the database in a file next to it. The caller owns the file
// and calls Remove when done.
type Snapshot struct {
	Path   string
	Bytes  int64
	Schema int
	At     time.Time // includes everything written before
	Keys   []byte    // content of a secret.key that decrypts the copy's secrets; secret
}

// Remove removes the copy. Call it once.
func (s *Snapshot) Remove() error { return os.Remove(s.Path) }

// selectLiveBytes is the size of a copy of the database.
const selectLiveBytes = "SELECT (page_count - freelist_count) * page_size " +
	"FROM pragma_page_count, pragma_freelist_count, pragma_page_size"

// Snapshot makes a copy of the database and syncs it to disk. Writes go on; the WAL grows until
// the copy is complete. The error is a *webhook.Error if the disk has no room for this many
// copies in addition to the space reserved for events. A key rotation waits for the snapshot.
func (s *Store) Snapshot(ctx context.Context, copies int) (*Snapshot, error) {
	return s.snapshot(ctx, copies)
}

func (s *core) snapshot(ctx context.Context, copies int) (_ *Snapshot, err error) {
	keys, release, err := s.keys.Content()
	if err != nil {
		return nil, err
	}
	defer release()
	var live, schema int64
	if err := s.db.Scan(ctx, selectLiveBytes, nil, &live); err != nil {
		return nil, err
	}
	if err := s.db.Scan(ctx, "PRAGMA user_version", nil, &schema); err != nil {
		return nil, err
	}
	if err := s.roomFor(int64(copies) * live); err != nil {
		return nil, err
	}
	f, err := durable.CreateTemp(filepath.Join(s.dir, datadir.Database+".snapshot"))
	if err != nil {
		return nil, fmt.Errorf("store: snapshot: %w", err)
	}
	made := &Snapshot{Path: f.Name(), Schema: int(schema), At: s.clock.Now().UTC(), Keys: keys}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("store: snapshot: %w", s.db.NoteError(err)), made.Remove())
		}
	}()
	if err := f.Close(); err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, datadir.Database)
	if err := sqlite.Copy(ctx, path, made.Path); err != nil {
		return nil, err
	}
	made.Bytes, err = durable.SyncFile(made.Path)
	return made, err
}

// freeRoom returns the free bytes on the data directory's disk, and how many of them are
// reserved for events.
func (s *core) freeRoom() (room, minFree int64, err error) {
	if room, minFree, _ = s.disk.Check(s.scanNow); minFree == 0 {
		room, _, err = durable.FreeSpace(s.dir)
	}
	return room, minFree, err
}

// roomFor returns a *webhook.Error if writing this many bytes would leave less free space
// than is reserved for events.
func (s *core) roomFor(bytes int64) error {
	room, minFree, err := s.freeRoom()
	if err != nil {
		return nil // free space unknown: assume that there is room
	}
	if room-minFree >= bytes {
		return nil
	}
	return webhook.NewError(webhook.CodeUnavailable, fmt.Sprintf(
		"There is not enough room on the data directory's disk: %d bytes are needed, %d are free, and %d must stay free for events.",
		bytes, room, minFree))
}
