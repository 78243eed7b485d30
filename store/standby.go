package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

const (
	standbyFolder = "standby" // in the data directory: the copy
	// followPace is how often the replica is asked for what is new.
	followPace = time.Second
	// watchPace is how often it is asked whether it can be followed at all.
	watchPace = 2 * time.Minute
)

// Standby is a copy of a replica that is kept up to date in a data directory,
// until it becomes the database there. It holds the directory's lock.
type Standby struct {
	dir    string
	cfg    *ReplicaConfig
	keys   []byte
	logger *slog.Logger
	r      *Restoration
	path   string // of the copy

	mu    sync.Mutex
	state StandbyState
}

// StandbyState says how far the copy is.
type StandbyState struct {
	Following bool      // the copy is there, and what is new is added to it
	Added     time.Time // when something was last added to it
	Err       string    // why it is not kept up to date just now
}

// OpenStandby takes a data directory for a copy of the replica. Keys are the
// primary's secret keys, which the replica does not hold, see [ReadKeys]. The
// error wraps [ErrNotEmpty] when there is a database and force is not set; with
// it that database is put aside when the standby is promoted. The caller must
// call Close.
func OpenStandby(dir string, cfg *ReplicaConfig, keys []byte, force bool, logger *slog.Logger) (*Standby, error) {
	if _, err := os.Lstat(filepath.Join(dir, databaseFile)); err == nil && !force {
		return nil, fmt.Errorf("%w: there is %s in %s", ErrNotEmpty, databaseFile, dir)
	}
	r, err := Restore(dir, true)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(dir, standbyFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &Standby{dir: dir, cfg: cfg, keys: keys, logger: logger, r: r, path: filepath.Join(folder, databaseFile)}, nil
}

// Close gives the data directory up. The copy stays for the next standby.
func (s *Standby) Close() error { return s.r.Close() }

// State says how far the copy is.
func (s *Standby) State() StandbyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *Standby) set(change func(*StandbyState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// follows remembers that the copy is kept up to date, and when something was last
// added to it, and tells when that is new.
func (s *Standby) follows(added time.Time) {
	var news bool
	s.set(func(y *StandbyState) {
		news = !y.Following
		y.Following, y.Err = true, ""
		if added.After(y.Added) {
			y.Added = added
		}
	})
	if news {
		s.logger.Info("the replica is followed", "replica", s.cfg.Target())
	}
}

// Follow keeps the copy up to date until ctx ends. A replica that is empty or
// cannot be reached is tried again; a copy that cannot be continued is made
// anew. The error is that of a key that does not fit, or of the disk.
func (s *Standby) Follow(ctx context.Context) error {
	wait := leastRetry
	for {
		began := time.Now()
		err := s.begin(ctx)
		if err == nil {
			err = s.follow(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrUnfit), errors.Is(err, ErrKey):
			return err
		}
		news := s.State().Err == ""
		s.set(func(y *StandbyState) { y.Following, y.Err = false, err.Error() })
		if news {
			s.logger.Error("the replica cannot be followed; it is tried again", "replica", s.cfg.Target(), "error", err)
		}
		if time.Since(began) > mostRetry {
			wait = leastRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, mostRetry)
	}
}

// begin makes the copy when it is not there.
func (s *Standby) begin(ctx context.Context) error {
	if at, err := litestream.ReadTXIDFile(s.path); err == nil && at > 0 {
		if _, err := os.Stat(s.path); err == nil {
			return nil
		}
	}
	if err := s.forget(); err != nil {
		return err
	}
	fetched, tx, err := fetch(ctx, s.cfg, s.path, time.Time{})
	if err != nil {
		return err
	}
	if err := checkKeys(ctx, s.path, s.keys); err != nil {
		return errors.Join(err, s.forget())
	}
	s.set(func(y *StandbyState) { y.Added = fetched })
	return litestream.WriteTXIDFile(s.path, tx)
}

func (s *Standby) forget() error {
	err := os.Remove(litestream.TXIDPath(s.path))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, removeDatabase(s.path))
}

// follow adds what is new to the copy until ctx ends.
func (s *Standby) follow(ctx context.Context) error {
	replica, err := s.replica(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		if err := s.watch(ctx, replica); err != nil {
			cancel(err)
		}
	})
	o := litestream.NewRestoreOptions()
	o.OutputPath, o.Follow, o.FollowInterval = s.path, true, followPace
	err = replica.Restore(ctx, o)
	if cause := context.Cause(ctx); errors.Is(cause, errUnfollowed) {
		err = errors.Join(cause, s.forget())
	}
	return err
}

// replica returns the replica, whose log is heard by followLog.
func (s *Standby) replica(ctx context.Context) (*litestream.Replica, error) {
	client, err := s.cfg.replica.client(nil)
	if err != nil {
		return nil, err
	}
	db := litestream.NewDB(s.path) // it is not opened
	logger := slog.New(&followLog{s})
	db.SetLogger(logger)
	client.SetLogger(logger)
	return litestream.NewReplicaWithClient(db, client), client.Init(ctx)
}

// errUnfollowed says that what the replica has cannot be added to the copy.
var errUnfollowed = errors.New("the copy cannot be continued, and is made anew")

// watch returns when the copy cannot be continued: it is newer than the newest
// change in the replica, which is another's by now, or so old that the next one
// is not there any more.
func (s *Standby) watch(ctx context.Context, replica *litestream.Replica) error {
	tick := time.NewTicker(watchPace)
	defer tick.Stop()
	var last ltx.TXID
	for {
		at, err := litestream.ReadTXIDFile(s.path)
		if err == nil {
			newest, added, err := newestOf(ctx, replica)
			switch {
			case err != nil:
			case at > newest, at == last && at < newest:
				return errUnfollowed
			case at == newest:
				s.follows(added)
			}
		}
		last = at
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// newestOf returns the newest change that a replica has, and when it was copied.
func newestOf(ctx context.Context, r *litestream.Replica) (tx ltx.TXID, at time.Time, err error) {
	for level := 0; level <= litestream.SnapshotLevel; level++ {
		info, err := r.MaxLTXFileInfo(ctx, level)
		if err != nil {
			return 0, at, err
		}
		if info.MaxTXID > tx {
			tx, at = info.MaxTXID, info.CreatedAt
		}
	}
	return tx, at, nil
}

// Promote adds all that the replica has to the copy, and makes it the database
// of the data directory, which is given up then: it can be opened. Follow must
// have returned. Nobody may write to the replica any more.
func (s *Standby) Promote(ctx context.Context) (y Restored, aside string, err error) {
	y.From = s.cfg.Target()
	replica, err := s.replica(ctx)
	if err != nil {
		return y, "", err
	}
	newest, state, err := newestOf(ctx, replica)
	if err != nil {
		return y, "", err
	}
	y.State = state
	if err := s.reach(ctx, newest); err != nil {
		return y, "", err
	}
	if err := prepare(ctx, s.path, restoredMark{At: time.Now().UTC(), State: state, From: y.From}, false); err != nil {
		return y, "", err
	}
	info, err := os.Stat(s.path)
	if err != nil {
		return y, "", err
	}
	y.Bytes = info.Size()
	if err := os.Rename(s.path, filepath.Join(s.r.Dir(), databaseFile)); err != nil {
		return y, "", err
	}
	if aside, err = s.r.Commit(); err != nil {
		return y, aside, err
	}
	return y, aside, errors.Join(os.RemoveAll(filepath.Join(s.dir, standbyFolder)), s.r.Close())
}

// reach follows until the copy has a change.
func (s *Standby) reach(ctx context.Context, tx ltx.TXID) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reached := func() bool {
		at, err := litestream.ReadTXIDFile(s.path)
		return err == nil && at >= tx
	}
	ended := make(chan error, 1)
	for !reached() {
		go func() { ended <- errors.Join(s.begin(ctx), s.follow(ctx)) }()
		tick := time.NewTicker(50 * time.Millisecond)
		for done := false; !done; {
			select {
			case err := <-ended:
				tick.Stop()
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil {
					s.logger.Error("the copy cannot be brought up to date; it is tried again", "error", err)
				}
				done = true
			case <-tick.C:
				if reached() {
					tick.Stop()
					cancel()
					<-ended
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(leastRetry):
		}
	}
	return nil
}

// checkKeys refuses a database whose secrets other keys were used for.
func checkKeys(ctx context.Context, path string, keys []byte) (err error) {
	parsed, ok := parseKeys(keys)
	if !ok {
		return fmt.Errorf("%w: what should be its key is none", ErrUnfit)
	}
	sl := &sealer{}
	if err := sl.use(parsed); err != nil {
		return err
	}
	db, err := openDB(path, true, readerPragmas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var sealed []byte
	err = db.QueryRowContext(ctx, "SELECT value FROM settings WHERE name = ?", keyCheck).Scan(&sealed)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // nothing was ever sealed
	} else if err != nil {
		return err
	}
	if got, err := sl.open(sealed, keyCheck); err != nil || string(got) != keyCheckText {
		return fmt.Errorf("%w: its secrets are sealed with another key than the one here: copy secret.key from the primary", ErrUnfit)
	}
	return nil
}

// followLog hears from Litestream how following goes, which it tells nobody else.
type followLog struct{ s *Standby }

func (l *followLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *followLog) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *followLog) WithGroup(string) slog.Handler { return l }

// Handle takes an error for a replica that cannot be followed, and news of what
// was added for one that is.
func (l *followLog) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "err" || a.Key == "error" {
				text = a.Value.String()
			}
			return true
		})
		news := l.s.State().Err == ""
		l.s.set(func(y *StandbyState) { y.Following, y.Err = false, text })
		if news {
			l.s.logger.Error("the replica cannot be followed; it is tried again", "replica", l.s.cfg.Target(), "error", text)
		}
		return nil
	}
	switch r.Message {
	case "entering follow mode", "follow: applied updates":
		l.s.follows(r.Time)
	}
	return nil
}
