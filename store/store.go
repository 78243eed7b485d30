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
	"io/fs"
	"log/slog"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"service/internal/durable"
	"service/store/replica"
	"service/webhook"
)

// Config says where the data is.
type Config struct {
	Dir    string // the data directory; made (0700) when it is not there
	Logger *slog.Logger
	// MinFreeDisk is how many bytes of the disk must be free for events to be
	// accepted; AutoFreeDisk, or 0 for no limit.
	MinFreeDisk int64
	// SendAlerts has alerts sent, and not only remembered and logged.
	SendAlerts bool
	// Now is the wall clock; time.Now unless a test sets a clock of its own.
	Now func() time.Time
	// SecretKeyFile holds the key of the secrets, "" is secret.key in Dir. It
	// lies outside of Dir, exists, and belongs to this data directory alone.
	SecretKeyFile string
	// Replica is the copy of the database elsewhere that [Store.Replicate] keeps;
	// nil for none. A database that is not there is restored from it.
	Replica *replica.Config
	// Metrics is where the store's metrics are registered; nil is nowhere.
	Metrics *prometheus.Registry
}

// Store is an open data directory. Its methods may be called from any
// goroutine until Close.
type Store struct {
	dir     string
	logger  *slog.Logger
	lock    *os.File
	guard   *guard
	clock   *clock
	disk    disk
	damage  *damage
	writer  *writer
	readers *sql.DB
	seal    *sealer
	tail    *tail
	lists   listLimits
	metrics *metrics

	replication *replica.Replication // nil without a replica
	hold        *hold
	closeOnce   sync.Once
	closed      error // what the first Close returned

	sendAlerts bool
	alerts     map[webhook.AlertName]*atomic.Int64 // since Open; the map is not written to

	stats   stats
	uses    tokenUses
	sweptMu sync.Mutex
	swept   Swept // since Open

	stmts    sync.Map // query → *sql.Stmt on readers
	tokens   tokenCache
	watchers watchers
}

// readers is how many reads can be under way at once.
const readers = 6

// The files of a data directory that the store keeps.
const (
	databaseFile = "service.db" // and beside it SQLite's -wal and -shm
	keyFile      = "secret.key"
)

// Open takes the data directory for this process, brings its schema up to date
// and opens it. The error wraps [ErrLocked] when another process has it.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s := &Store{dir: cfg.Dir, logger: cfg.Logger, clock: newClock(cfg.Now), disk: disk{dir: cfg.Dir, least: cfg.MinFreeDisk}, tail: newTail(tailBytes), lists: defaultListLimits, metrics: newMetrics(), hold: newHold(), sendAlerts: cfg.SendAlerts}
	s.alerts = make(map[webhook.AlertName]*atomic.Int64)
	for _, name := range webhook.AlertNames() {
		s.alerts[name] = new(atomic.Int64)
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.damage = newDamage()
	path := filepath.Join(cfg.Dir, databaseFile)
	defer func() {
		if seen := s.damage.seen(); err != nil && seen != nil {
			err = damaged(path, seen.Error())
		}
		if err != nil {
			s.Close()
		}
	}()
	if s.lock, err = lockDir(cfg.Dir); err != nil {
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
	// SQLite would make it readable for others, and its WAL after its likeness.
	// Once it exists it is never opened or closed by anything but SQLite, whose
	// locks any other close would drop.
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := durable.WriteFile(path, nil, 0o600); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	if err := check(ctx, path); err != nil {
		return nil, err
	}
	db, err := openDB(path, false, writerPragmas)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	if s.writer, err = newWriter(db, s.clock, s.damage, s.metrics, s.logger); err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s.writer.watchers = &s.watchers
	if err := s.migrate(ctx, path); err != nil {
		return nil, err
	}
	if s.guard, err = newGuard(path); err != nil {
		return nil, err
	}
	if cfg.Replica != nil {
		s.openReplication(cfg.Replica, path)
	}
	if err := s.openSealer(&cfg); err != nil {
		return nil, err
	}
	if err := s.writer.do(s.recoverClock); Unavailable(err) {
		// What is there can be read meanwhile; nothing is claimed before.
		s.logger.Error("the clock cannot be looked after before the store can be written", "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if s.readers, err = openDB(path, true, readerPragmas); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s.readers.SetMaxOpenConns(readers)
	s.readers.SetMaxIdleConns(readers) // a closed connection would take its page cache with it
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(collector{s})
	}
	return s, nil
}

// chores are what the next commit does first when it is due.
func (s *Store) chores() []chore {
	return []chore{
		s.chore("the clock", s.clock.due, s.heedClock),
		s.chore("statistics", s.stats.due, func(t *tx) error { return s.writeStats(t, statRows) }),
		s.chore("uses of tokens", s.uses.due, func(t *tx) error { return s.writeTokenUses(t, usesRows) }),
	}
}

// chore returns a chore that is logged when it begins to fail, for another
// reason than the disk, of which all writes tell.
func (s *Store) chore(what string, due func() bool, run func(*tx) error) chore {
	failing := false // owned by the leader of the writer
	return chore{due, func(t *tx) error {
		err := run(t)
		if err != nil && !Unavailable(err) && !failing {
			s.logger.Error("what is written beside cannot be, and is tried again", "what", what, "error", err)
		}
		failing = err != nil
		return err
	}}
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
	if s.damage.seen() != nil {
		// SQLite would move its log into the database and remove it. The
		// connections go with the process.
		s.writer.stop()
		return s.lock.Close()
	}
	if s.readers != nil {
		s.stmts.Range(func(_, stmt any) bool { stmt.(*sql.Stmt).Close(); return true })
		errs = append(errs, s.readers.Close())
	}
	if s.writer != nil {
		if s.writer.chores != nil {
			// What was counted last; a store that cannot be written loses it.
			_ = s.writer.do(func(t *tx) error { return errors.Join(s.writeStats(t, math.MaxInt), s.writeTokenUses(t, math.MaxInt)) })
		}
		s.writer.stop()
		if s.guard != nil && s.replication == nil {
			errs = append(errs, s.guard.release())
		}
		errs = append(errs, s.writer.close())
		if s.replication != nil {
			errs = append(errs, s.replication.Close())
		}
	}
	if s.guard != nil {
		errs = append(errs, s.guard.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Dir returns the data directory.
func (s *Store) Dir() string { return s.dir }

var (
	// synchronous is set in so many words: both drivers are compiled to NORMAL
	// in WAL mode, which a power cut can tell from FULL.
	writerPragmas = []string{
		"PRAGMA busy_timeout = 10000",
		"PRAGMA journal_mode = WAL",
		"PRAGMA synchronous = FULL",
		"PRAGMA foreign_keys = ON",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -16000",
		"PRAGMA wal_autocheckpoint = 1000", // replica.AutoCheckpointFrames
	}
	readerPragmas = []string{
		"PRAGMA busy_timeout = 10000",
		"PRAGMA query_only = ON",
		"PRAGMA trusted_schema = OFF",
		"PRAGMA cache_size = -4000",
	}
)

func dsn(path string, readOnly bool) string {
	mode := "rwc"
	if readOnly {
		mode = "ro"
	}
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path}).String() + "?mode=" + mode
}

// checkTime bounds the check of a large database at start, which is to take less
// than two seconds in all.
const checkTime = time.Second

// check refuses a damaged database, untouched: its connection is one that reads
// alone, since the last of those that write moves the log into the database
// when it is closed. A database that cannot be read through in checkTime passes
// unless something was found until then.
func check(ctx context.Context, path string) (err error) {
	if _, err := os.Stat(path + "-journal"); err == nil {
		return nil // it was being made when the process ended: there is nothing in it yet
	}
	db, err := openDB(path, true, readerPragmas)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var found string
	err = db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && !isCorrupt(err):
		return fmt.Errorf("check %s: %w", path, err)
	case err != nil:
		return damaged(path, err.Error())
	case found != "ok":
		return damaged(path, found)
	}
	return nil
}

// Check says whether the store can be read and written: nil, or why not; a
// *webhook.Error when the cause is known and not the store's: no room on the disk,
// a log that is too long, a lease that has ended. After a failure
// it writes, to see whether the cause is gone.
func (s *Store) Check(ctx context.Context) error {
	if !s.writer.leased() {
		return webhook.NewError(webhook.CodeUnavailable, "The lease of this service has ended, since the bucket of its replica does not take its renewal: another may have taken over, so nothing is accepted or sent until it has the lease again.")
	}
	var one int
	if err := s.scan(ctx, "SELECT 1", nil, &one); err != nil {
		return err
	}
	if s.writer.failed.Load() {
		if err := s.probe(); err != nil {
			return err
		}
	} else if err := s.writer.do(func(*tx) error { return nil }); err != nil {
		return err
	}
	if _, _, low := s.disk.look(s.scanNow); low {
		return errLowDisk()
	}
	return s.rejectLongWAL()
}

// probe writes as much as the largest event, since on a full disk a little finds
// a place for a while where nothing else does, and then the time in its stead.
// When it could, no failure is remembered any more.
func (s *Store) probe() error {
	for _, value := range [][]byte{make([]byte, webhook.MaxEventBytes), []byte(webhook.FormatTime(s.clock.now()))} {
		err := s.writer.do(func(t *tx) error {
			return t.exec("INSERT INTO settings (name, value) VALUES ('checked_at', ?1) ON CONFLICT DO UPDATE SET value = ?1", value)
		})
		if err != nil {
			return err
		}
	}
	s.writer.failed.Store(false)
	return s.writer.do(func(t *tx) error {
		t.afterCommit(func() { t.w.trouble.over(time.Now(), t.w.logger) })
		return nil
	})
}

// SQLiteVersion returns the version of the SQLite library in use.
func SQLiteVersion() (string, error) {
	db, err := openDB(":memory:", false, nil)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var v string
	return v, db.QueryRow("SELECT sqlite_version()").Scan(&v)
}

// stmt returns a prepared statement of the readers. The query must be a
// constant, or one of few.
func (s *Store) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if st, ok := s.stmts.Load(query); ok {
		return st.(*sql.Stmt), nil
	}
	st, err := s.readers.PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("store: prepare %q: %w", query, s.damage.notice(err))
	}
	if old, loaded := s.stmts.LoadOrStore(query, st); loaded {
		st.Close()
		return old.(*sql.Stmt), nil
	}
	return st, nil
}

// scan reads the one row of a query; sql.ErrNoRows when there is none.
func (s *Store) scan(ctx context.Context, query string, args []any, dest ...any) error {
	st, err := s.stmt(ctx, query)
	if err != nil {
		return err
	}
	return s.damage.notice(st.QueryRowContext(ctx, args...).Scan(dest...))
}

// each calls row for every row of a query.
func (s *Store) each(ctx context.Context, query string, args []any, row func(scan func(...any) error) error) error {
	st, err := s.stmt(ctx, query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return s.damage.notice(err)
	}
	return s.damage.notice(drain(rows, row))
}

// each is the same inside a write.
func (t *tx) each(query string, args []any, row func(scan func(...any) error) error) error {
	st, err := t.stmt(query)
	if err != nil {
		return err
	}
	t.read(query)
	rows, err := st.QueryContext(context.Background(), args...)
	if err == nil {
		err = drain(rows, row)
	}
	t.heed(err)
	return err
}

func drain(rows *sql.Rows, row func(scan func(...any) error) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
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
