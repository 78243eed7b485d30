// Package store is the truth: everything the service remembers, in one SQLite
// file, and the only SQL.
//
// It guarantees that what a method has reported as written is on disk
// (fsynced), also after a power cut; that a method either did all it says or
// nothing; and that no method returns a record of another program than the one
// it was asked about. Writes share commits; reads never wait for the writer.
//
// Rooms hear of each other's changes here, see [Store.Watch].
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"service/store/keyring"
	"service/store/replica"
	"service/store/sqlite"
	"service/webhook"
)

// Config says where the data is.
type Config struct {
	Dir    string // the data directory; made (0700) when it is not there
	Logger *slog.Logger
	// MinFreeDisk is how many bytes of the disk must be free for events to be
	// accepted; AutoFreeDisk, or 0 for no limit.
	MinFreeDisk int64
	// Retention is what [Store.Retain] is called with, for the forecast of the
	// database's size; without it there is none.
	Retention Retention
	// SendAlerts has alerts sent, and not only remembered and logged.
	SendAlerts bool
	// Dictionary is what events have in common, the newest and most frequent last:
	// it compresses what is published. Nil: one that an earlier Open was given.
	Dictionary []byte
	// Now is the wall clock; time.Now unless a test sets a clock of its own.
	Now func() time.Time
	// SecretKeyFile holds the key of the secrets, "" is secret.key in Dir. It
	// lies outside of Dir, exists, and belongs to this data directory alone.
	SecretKeyFile string
	// Replica is the copy of the database elsewhere that [Store.Replicate] keeps;
	// nil for none. A database that is not there is restored from it.
	Replica *replica.Config
	// BeforeRestore is called before a database that is not there is looked for in
	// the replica; nil for nothing. After an error nothing is restored.
	BeforeRestore func(context.Context) error
	// AcknowledgeTimeout is how long [Store.Acknowledge] waits for the replica,
	// which is needed then; 0: it does not wait, as a write is on disk when it returns.
	AcknowledgeTimeout time.Duration
	// VerifyReplica is the time between two comparisons of the replica's content with
	// the database; 0: there are none.
	VerifyReplica time.Duration
	// Metrics is where the store's metrics are registered; nil is nowhere.
	Metrics *prometheus.Registry
	// Fault makes statements fail in a test; nil for none.
	Fault func(query string, write bool) sqlite.Fault
}

// Store is an open data directory. Its methods, and those of the handles that it
// returns, are safe for concurrent use until Close. What belongs to one noun is
// on its handle, see [Store.Deliveries].
type Store struct {
	*core

	closeOnce sync.Once
	closed    error // what the first Close returned
}

// core is the state that the handles of a store share.
type core struct {
	dir     string
	logger  *slog.Logger
	lock    *sqlite.DirLock
	clock   *clock
	disk    disk
	db      *sqlite.DB // nil until it is open
	writer  *writer
	keys    *keyring.Keyring
	macKey  []byte // authenticates cursors and devices; no rotation changes it
	tail    *tail
	lists   listLimits
	metrics *metrics

	replication *replica.Replication // nil without a replica
	hold        *hold

	sendAlerts bool
	alerts     map[webhook.AlertName]*atomic.Int64 // since Open; the map is not written to

	retention    Retention // Config.Retention
	dictionaries dictionaries
	housekeeping housekeeping
	quotas       quotas
	afterStep    func() // called after each step of a sweep; of a test, nil for none

	stats   stats
	uses    tokenUses
	sweptMu sync.Mutex
	swept   Swept // since Open
	// Up to this num, no delivery is to be removed because it succeeded.
	deliveredFrom atomic.Int64

	tokens   tokenCache
	watchers watchers
}

// readers is how many reads can be under way at once.
const readers = 6

// The files of a data directory that the store keeps.
const (
	databaseFile = "service.db" // and beside it SQLite's -wal and -shm
)

// Open takes the data directory for this process, brings its schema up to date
// and opens it. The error wraps [ErrLocked] when another process has it.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s := &Store{core: &core{dir: cfg.Dir, logger: cfg.Logger, clock: newClock(cfg.Now), disk: disk{dir: cfg.Dir, min: cfg.MinFreeDisk}, tail: newTail(tailBytes), lists: defaultListLimits, metrics: newMetrics(), hold: newHold(), retention: cfg.Retention, housekeeping: newHousekeeping(), quotas: defaultQuotas, sendAlerts: cfg.SendAlerts}}
	s.alerts = make(map[webhook.AlertName]*atomic.Int64)
	for _, name := range webhook.AlertNames() {
		s.alerts[name] = new(atomic.Int64)
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.writer = newWriter(s.clock, s.metrics, &s.watchers, &s.dictionaries, s.logger)
	s.writer.incidents = s.housekeeping.incidents
	path := filepath.Join(cfg.Dir, databaseFile)
	defer func() {
		if err == nil {
			return
		}
		if s.db != nil {
			if found := s.db.Damaged(); found != nil {
				err = found
			}
		}
		s.Close()
	}()
	if s.lock, err = sqlite.LockDir(cfg.Dir); err != nil {
		return nil, err
	}
	if err := tidy(cfg.Dir); err != nil {
		s.logger.Warn("what a process that was killed has left cannot be removed", "error", err)
	}
	if err := finishRestore(cfg.Dir, s.logger); err != nil {
		return nil, err
	}
	if err := checkFiles(cfg.Dir); err != nil {
		return nil, err
	}
	if cfg.Replica != nil {
		if err := cfg.Replica.CheckDatabase(path); err != nil {
			return nil, err
		}
	}
	if err := restoreMissing(ctx, &cfg); err != nil {
		return nil, err
	}
	if err = s.openDatabase(ctx, path, &cfg); err != nil {
		return nil, err
	}
	if err := s.openClock(ctx); err != nil {
		return nil, err
	}
	s.replication = s.newReplication(&cfg, path)
	if err := s.openKeyring(&cfg); err != nil {
		return nil, err
	}
	if err := s.writer.do(s.recoverClock); Unavailable(err) {
		// What is there can be read meanwhile; nothing is claimed before.
		s.logger.Error("the clock cannot be looked after before the store can be written", "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := s.openDictionaries(ctx, cfg.Dictionary); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(collector{s})
	}
	return s, nil
}

// openDatabase opens the database for the store's writer.
func (s *core) openDatabase(ctx context.Context, path string, cfg *Config) (err error) {
	check := func(ctx context.Context, db *sql.DB) error { return checkCommits(ctx, path, db) }
	s.db, err = sqlite.Open(ctx, sqlite.Config{
		Path: path, Migrations: migrations, Readers: readers, NoAutoCheckpoint: cfg.Replica != nil,
		Check: check, Hooks: s.hooks(), Logger: s.logger, Fault: cfg.Fault,
	})
	if err != nil {
		return err
	}
	s.writer.Writer = s.db.Writer()
	s.writer.commits, err = openCommits(path, func(query string, dest ...any) error { return s.db.Scan(ctx, query, nil, dest...) }, s.logger)
	return err
}

// hooks are what the store adds to every commit.
func (s *core) hooks() sqlite.Hooks {
	return sqlite.Hooks{
		Permit: s.writer.permit,
		Chores: []sqlite.Chore{
			s.chore("the clock", s.clock.due, s.recordClock),
			s.chore("statistics", s.stats.due, func(t *tx) error { return s.writeStats(t, statRows) }),
			s.chore("uses of tokens", s.uses.due, func(t *tx) error { return s.writeTokenUses(t, usesRows) }),
		},
		BeforeBatch:  s.beforeBatch,
		BeforeWrite:  s.writer.beforeWrite,
		UndoWrite:    s.writer.undoWrite,
		BeforeCommit: s.writer.beforeCommit,
		Stamp:        s.writer.stamp,
		AfterCommit:  s.writer.afterCommit,
		Rollback:     s.writer.rollback,
		Measure:      s.metrics.commit,
	}
}

// chore returns a chore, which is logged when it begins to fail for another
// reason than the disk, of which all writes tell. None is due before the clock
// has been recovered.
func (s *core) chore(what string, due func() bool, run func(*tx) error) sqlite.Chore {
	failing := false // owned by the leader of the writer
	return sqlite.Chore{
		Due: func() bool { return s.writer.running && due() },
		Run: func(*sqlite.Tx) error {
			err := run(&s.writer.tx)
			if err != nil && !Unavailable(err) && !failing {
				s.logger.Error("what is written beside cannot be, and is tried again", "what", what, "error", err)
			}
			failing = err != nil
			return err
		},
	}
}

// Close waits for writes under way, closes the database, brings the replica up
// to date if there is one, and gives the data directory up. No other method may
// be running a read, nor [Store.Replicate]. Further calls wait for the first, and
// return what it did.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Store) close() error {
	var errs []error
	switch {
	case s.db == nil:
	case s.db.Damaged() != nil:
		s.db.Abandon()
	default:
		if s.writer.running {
			// What was counted last; a store that cannot be written loses it.
			_ = s.writer.do(func(t *tx) error { return errors.Join(s.writeStats(t, math.MaxInt), s.writeTokenUses(t, math.MaxInt)) })
		}
		var last func() error
		if s.replication != nil {
			last = s.replication.Close
		}
		errs = append(errs, s.db.Close(last))
	}
	errs = append(errs, s.writer.commits.close())
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Dir returns the data directory.
func (s *Store) Dir() string { return s.dir }

// Check says whether the store can be read and written: nil, or why not; a
// *webhook.Error when the cause is known and not the store's: no room on the disk,
// a log that is too long, a lease that has ended. After a failure
// it writes, to see whether the cause is gone.
func (s *Store) Check(ctx context.Context) error {
	if !s.writer.leased() {
		return webhook.NewError(webhook.CodeUnavailable, "The lease of this service has ended, since the bucket of its replica does not take its renewal: another may have taken over, so nothing is accepted or sent until it has the lease again.")
	}
	var one int
	if err := s.db.Scan(ctx, "SELECT 1", nil, &one); err != nil {
		return err
	}
	if s.writer.Failed() {
		if err := s.probe(); err != nil {
			return err
		}
	} else if err := s.writer.do(func(*tx) error { return nil }); err != nil {
		return err
	}
	if _, _, low := s.disk.check(s.scanNow); low {
		return errLowDisk()
	}
	return s.rejectLongWAL()
}

// probe writes as much as the largest event, since on a full disk a little finds
// a place for a while where nothing else does, and then the time in its stead.
// When it could, no failure is remembered any more.
func (s *core) probe() error {
	for _, value := range [][]byte{make([]byte, webhook.MaxEventBytes), []byte(webhook.FormatTime(s.clock.now()))} {
		err := s.writer.do(func(t *tx) error {
			return t.Exec("INSERT INTO settings (name, value) VALUES ('checked_at', ?1) ON CONFLICT DO UPDATE SET value = ?1", value)
		})
		if err != nil {
			return err
		}
	}
	return s.db.Writer().EndOutage()
}

// Guard waits until ctx ends, and returns nil, or until the database is found
// damaged. The error then wraps [ErrDamaged], and the process must end: nothing
// is written any more, and Close leaves the files as they are.
func (s *Store) Guard(ctx context.Context) error { return s.db.WaitDamaged(ctx) }

// checkFiles is [sqlite.CheckFiles] for the database of a data directory.
func checkFiles(dir string) error {
	_, err := os.Stat(filepath.Join(dir, keyring.FileName)) // it is made after the schema
	return sqlite.CheckFiles(filepath.Join(dir, databaseFile), err == nil)
}

// notFound turns the lack of a row into the caller's error.
func notFound(err error, noun string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return webhook.NotFound(noun)
	}
	return err
}

// ignoreNoRows takes the lack of a row for no error.
func ignoreNoRows(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}

// millis and fromMillis convert times at the edge of the database; zero is NULL.
func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// orNull binds a value; the zero value is NULL.
func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// blob binds bytes; nil is NULL, which not every driver makes of it.
func blob(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func fromMillis(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMilli(n.Int64).UTC()
}
