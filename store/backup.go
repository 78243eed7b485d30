package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store/keyring"
	"service/store/sqlite"
	"service/webhook"
)

// Snapshot is a consistent copy of the database in a file next to it. The caller owns the file
// and calls Remove when done.
type Snapshot struct {
	Path   string
	Bytes  int64
	Schema int
	At     time.Time // everything written before is included
	Keys   []byte    // content of a secret.key that decrypts its secrets; secret
}

// Remove removes the copy. Call it once.
func (s *Snapshot) Remove() error { return os.Remove(s.Path) }

// selectLiveBytes is the size of a copy of the database.
const selectLiveBytes = "SELECT (page_count - freelist_count) * page_size " +
	"FROM pragma_page_count, pragma_freelist_count, pragma_page_size"

// Snapshot makes a copy of the database and syncs it to disk. Writes go on; the WAL grows until
// the copy is complete. The error is a *webhook.Error if the disk has no room for so many
// copies in addition to what must stay free for events. A key rotation waits for the snapshot.
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
	f, err := durable.CreateTemp(filepath.Join(s.dir, databaseFile+".snapshot"))
	if err != nil {
		return nil, fmt.Errorf("store: snapshot: %w", err)
	}
	made := &Snapshot{Path: f.Name(), Schema: int(schema), At: s.clock.now().UTC(), Keys: keys}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("store: snapshot: %w", s.db.NoteError(err)), made.Remove())
		}
	}()
	if err := f.Close(); err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, databaseFile)
	if err := sqlite.Copy(ctx, path, made.Path); err != nil {
		return nil, err
	}
	made.Bytes, err = durable.SyncFile(made.Path)
	return made, err
}

// freeRoom returns the free bytes on the disk of the data directory, and how many of them must
// stay free for events.
func (s *core) freeRoom() (room, minFree int64, err error) {
	if room, minFree, _ = s.disk.check(s.scanNow); minFree == 0 {
		room, _, err = free(s.dir)
	}
	return room, minFree, err
}

// roomFor returns a *webhook.Error if writing so many bytes would leave less free disk than
// events need.
func (s *core) roomFor(bytes int64) error {
	room, minFree, err := s.freeRoom()
	if err != nil {
		return nil // free space unknown: assume that there is room
	}
	if room-minFree >= bytes {
		return nil
	}
	return webhook.NewError(webhook.CodeUnavailable, fmt.Sprintf(
		"There is not enough room on the disk of the data directory: %d bytes are needed, %d are free, and %d must stay free for events.",
		bytes, room, minFree))
}

// Contents counts the records in a copy of a database.
type Contents struct {
	Schema        int       `json:"schema"`
	Programs      int       `json:"programs"`
	Subscriptions int       `json:"subscriptions"` // not deleted
	Events        int       `json:"events"`
	Deliveries    int       `json:"deliveries"`
	Incomplete    int       `json:"unended"` // deliveries that have not completed and would be sent, possibly again
	Newest        time.Time `json:"newest"`  // when the newest event was accepted; zero if there is none
}

// ErrUnusable reports that a copy of a database cannot be used: it is damaged, has a schema that this
// binary does not support, or is encrypted with another key.
var ErrUnusable = errors.New("the database cannot be used")

// Inspect checks the integrity of a copy of a database, however long that takes, and counts its
// records. If keys, the content of a secret.key, is not nil, it also checks that they decrypt
// its secrets. The error wraps [ErrUnusable] if the copy is unusable. Inspect changes nothing; no
// process may have the file open.
func Inspect(ctx context.Context, path string, keys []byte) (c Contents, err error) {
	unfit := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", ErrUnusable, fmt.Errorf(format, args...))
	}
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	scan := func(query string, args []any, dest ...any) error {
		err := db.QueryRowContext(ctx, query, args...).Scan(dest...)
		if err != nil && sqlite.IsCorrupt(err) {
			return unfit("it is damaged: %w", err)
		}
		return err
	}
	var found string
	if err := scan("PRAGMA integrity_check(1)", nil, &found); err != nil {
		return c, err
	}
	if found != "ok" {
		return c, unfit("it is damaged: %s", found)
	}
	if err := scan("PRAGMA user_version", nil, &c.Schema); err != nil {
		return c, err
	}
	if err := schema.Check("it", c.Schema); err != nil {
		return c, unfit("%w", err)
	}
	var newest sql.NullInt64
	for query, dest := range map[string]any{
		"SELECT count(*) FROM programs":                                                      &c.Programs,
		"SELECT count(*) FROM subscriptions WHERE deleted_at IS NULL":                        &c.Subscriptions,
		"SELECT count(*) FROM events":                                                        &c.Events,
		"SELECT count(*) FROM deliveries":                                                    &c.Deliveries,
		"SELECT count(*) FROM deliveries WHERE status <> 'success' AND completed_at IS NULL": &c.Incomplete,
		"SELECT max(received_at) FROM events":                                                &newest,
	} {
		if err := scan(query, nil, dest); err != nil {
			return c, err
		}
	}
	c.Newest = sqlite.FromMillis(newest)
	if keys == nil {
		return c, nil
	}
	ring, err := parseKeyring(keys)
	if err != nil {
		return c, unfit("%w", err)
	}
	var check []byte
	err = scan("SELECT value FROM settings WHERE name = ?", []any{keyCheck}, &check)
	if errors.Is(err, sql.ErrNoRows) {
		return c, nil // nothing has been encrypted yet
	} else if err != nil {
		return c, err
	}
	if !ring.Fits(check) {
		return c, unfit("its secrets are encrypted with another key")
	}
	return c, nil
}

// parseKeyring returns the keyring of a key file's content. It has no file, so its keys cannot
// be rotated.
func parseKeyring(content []byte) (*keyring.Keyring, error) {
	keys, ok := keyring.Parse(content)
	if !ok {
		return nil, errors.New("the content of its key file is not a key")
	}
	return keyring.New(nil, keys)
}
