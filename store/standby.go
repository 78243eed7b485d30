package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"service/store/replica"
	"service/store/sqlite"
)

// standbyFolder is the directory in the data directory that contains the copy.
const standbyFolder = "standby"

// Standby is a locked data directory with a copy of a replica that is kept up to date until it
// becomes the database.
type Standby struct {
	dir      string
	cfg      *replica.Config
	path     string // of the copy
	follower *replica.Follower
	r        *Restoration
}

// OpenStandby locks a data directory for a copy of the replica. keys are the primary's secret
// keys, see [ReadKeys], which the replica does not contain. The error wraps [ErrNotEmpty] if
// there is a database and force is false; with force, that database is set aside when the
// standby is promoted. The caller must call Close.
func OpenStandby(dir string, cfg *replica.Config, keys []byte, force bool, logger *slog.Logger) (*Standby, error) {
	if _, err := os.Lstat(filepath.Join(dir, databaseFile)); err == nil && !force {
		return nil, fmt.Errorf("%w: %s exists in %s", ErrNotEmpty, databaseFile, dir)
	}
	r, err := Restore(dir, true)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(dir, standbyFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	path := filepath.Join(folder, databaseFile)
	follower := replica.NewFollower(replica.FollowerConfig{Replica: cfg, Path: path, Logger: logger,
		Check: func(ctx context.Context, path string) (retry bool, err error) {
			err = checkKeys(ctx, path, keys)
			return !errors.Is(err, ErrUnusable) && !errors.Is(err, ErrKey), err
		}})
	return &Standby{dir: dir, cfg: cfg, path: path, follower: follower, r: r}, nil
}

// Close unlocks the data directory. The copy stays for the next standby.
func (s *Standby) Close() error { return s.r.Close() }

// State returns the state of the copy.
func (s *Standby) State() replica.FollowerState { return s.follower.State() }

// Follow keeps the copy up to date until ctx ends. It retries while the replica is empty or not
// reachable, and makes a new copy if the current one cannot be continued. The error wraps
// [ErrUnusable] or [ErrKey] if the keys are not the primary's.
func (s *Standby) Follow(ctx context.Context) error { return s.follower.Follow(ctx) }

// HasNewestTerm is [replica.Follower.HasNewestTerm].
func (s *Standby) HasNewestTerm(ctx context.Context) (bool, error) { return s.follower.HasNewestTerm(ctx) }

// Promote brings the copy up to date with the replica, makes it the database of the data
// directory, and unlocks the directory. Follow must have returned, and no other process may
// still write to the replica. The second result is the directory with what was replaced, see
// [Restoration.Commit].
func (s *Standby) Promote(ctx context.Context) (y Restored, aside string, err error) {
	y.From = s.cfg.Target()
	origin, state, err := s.follower.CatchUp(ctx)
	if err != nil {
		return y, "", err
	}
	y.State = state
	path := filepath.Join(s.r.Dir(), databaseFile)
	if err := os.Rename(s.path, path); err != nil {
		return y, "", err
	}
	if err := markRestored(ctx, path, origin, restoredMark{At: time.Now().UTC(), State: y.State, From: y.From}, false); err != nil {
		return y, "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return y, "", err
	}
	y.Bytes = info.Size()
	if aside, err = s.r.Commit(); err != nil {
		return y, aside, err
	}
	return y, aside, errors.Join(os.RemoveAll(filepath.Join(s.dir, standbyFolder)), s.r.Close())
}

// checkKeys checks that keys, the content of a key file, decrypt the secrets of the database at
// path. The error wraps [ErrUnusable] if they do not, or are malformed.
func checkKeys(ctx context.Context, path string, keys []byte) (err error) {
	ring, err := parseKeyring(keys)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var check []byte
	err = db.QueryRowContext(ctx, "SELECT value FROM settings WHERE name = ?", keyCheck).Scan(&check)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // nothing has been encrypted yet
	} else if err != nil {
		return err
	}
	if !ring.Fits(check) {
		return fmt.Errorf("%w: its secrets are encrypted with a different key: copy secret.key from the primary", ErrUnusable)
	}
	return nil
}
