// Package store persists everything that the service stores, in one SQLite database. It and the
// packages below it are the only ones with SQL.
//
// It guarantees:
//
//   - When a write method returns without an error, its writes are on disk (fsynced)
//     and survives a power loss.
//   - A write method does everything it documents, or nothing.
//   - A method for one program never returns a record of another.
//
// Writes share commits. Reads never wait for the writer. Packages learn of each other's
// changes through [Store.Watch].
package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"service/internal/ratelimit"
	"service/store/clock"
	"service/store/commits"
	"service/store/counters"
	"service/store/datadir"
	"service/store/dictionary"
	"service/store/doctor"
	"service/store/erasure"
	"service/store/keyring"
	"service/store/list"
	"service/store/pending"
	"service/store/people"
	"service/store/record"
	"service/store/rekey"
	"service/store/replica"
	"service/store/schema"
	"service/store/sqlite"
	"service/store/tail"
	"service/store/watch"
	"service/webhook"
)

// Config configures a store.
type Config struct {
	Dir    string // the data directory; created with mode 0700 if it does not exist
	Logger *slog.Logger
	// MinFreeDisk is the minimum number of free bytes on the disk for events to be
	// accepted; AutoFreeDisk, or 0 for no minimum.
	MinFreeDisk int64
	// Retention is that of [Store.Retain], for the forecast of the database's size and the limit
	// of a counted clock jump; zero for no forecast, and a day at most.
	Retention webhook.Retention
	// SendAlerts makes alerts be sent; otherwise they are only stored and logged.
	SendAlerts bool
	// Catalog contains the event types of the binary and of files. Open adds those of the
	// database; later changes are in it as soon as they are stored. Nil for a store whose event
	// types are not used. Two stores must not share it.
	Catalog *webhook.Catalog
	// Dictionary is text that events have in common, the newest and most frequent last.
	// It compresses new events. Nil uses that of Catalog, or
	// of an earlier Open.
	Dictionary []byte
	// Now is the wall clock; nil for time.Now. Tests set it.
	Now func() time.Time
	// SecretKeyFile contains the secret key, "" for secret.key in Dir. It must exist
	// outside of Dir, and belong to this data directory only.
	SecretKeyFile string
	// Replica is where [Replica.Run] keeps a copy of the database, nil for nowhere. A
	// missing database is restored from it.
	Replica *replica.Config
	// AcknowledgeTimeout is how long [Replica.Acknowledge] waits for the replica, which
	// must be set then; 0 to acknowledge what is on the local disk.
	AcknowledgeTimeout time.Duration
	// VerifyReplica is the time between two comparisons of the replica's content with
	// the database, 0 for none.
	VerifyReplica time.Duration
	// TokenPrefix begins the secrets of new tokens, see [webhook.CheckTokenPrefix]; "" is
	// [webhook.TokenPrefix].
	TokenPrefix string
	// Metrics is where the store registers its metrics; nil for nowhere.
	Metrics *prometheus.Registry
	// Fault makes statements fail in tests; nil for none.
	Fault func(query string, write bool) sqlite.Fault
}

// Store is an open data directory. Its methods, and those of its handles, are safe for
// concurrent use until Close. The methods of one noun are on its handle, see
// [Store.Deliveries].
type Store struct {
	*core

	closeOnce sync.Once
	closed    error // result of the first Close
}

// core is the state that the handles of a store share.
type core struct {
	dir         string
	logger      *slog.Logger
	lock        *sqlite.DirLock
	clock       *clock.Clock
	disk        doctor.FreeSpace
	diskChecked diskChecked
	db          *sqlite.DB // nil until opened
	writer      *writer
	keys        *keyring.Keyring
	tail        *tail.Tail
	lists       *list.Reader
	people      people.Reads
	records     *record.Reads
	metrics     *counters.Counters

	replication *replica.Replication // nil without a replica
	hold        *hold

	tokenPrefix string // Config.TokenPrefix

	sendAlerts bool
	alerts     map[webhook.AlertName]*atomic.Int64 // counts since Open; the map is read-only

	catalog     *webhook.Catalog    // Config.Catalog
	unusedTypes []record.UnusedType // set by Open

	retention    webhook.Retention // Config.Retention
	replicaKeeps time.Duration     // how long the replica keeps removed records, 0 without a replica
	dictionaries dictionary.Set
	housekeeping housekeeping
	quotas       quotas
	dryRuns      ratelimit.Slots[string] // by program
	rejected     *ratelimit.Limiter      // by program
	afterStep    func()                  // called after each step of a sweep in tests; nil for none

	walLimit sqlite.WALLimit // used by the leader of the writer
	truncate atomic.Bool     // the next commit truncates the WAL first, and resets this if it could

	stats   pending.Stats
	uses    pending.TokenUses
	sweptMu sync.Mutex
	swept   Swept // since Open
	// No delivery up to this num needs to be examined by removeEarly again.
	deliveredFrom atomic.Int64

	programStates programStates
	erasing       sync.Mutex // held while programs are erased
	clearing      sync.Mutex // held while the copies of erased events are removed
	blanked       bool       // nothing was cleared since free pages were overwritten; guarded by clearing
	// erasures changes when an event is erased, before and after it leaves the tail.
	erasures       atomic.Int64
	erasedInFlight erasure.InFlight
	sweeping       *semaphore.Weighted // of 1: held by retention while it removes records, and by an import

	tokens   cache[[sha256.Size]byte, webhook.Token] // by hash
	programs cache[string, webhook.Program]          // by ID
	watchers watch.Watchers
	pulled   replica.LogHeads // of the logs that are pulled
}

// Open locks the data directory, migrates the database if necessary and opens it. The error
// wraps [ErrLocked] if another process has the directory open.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s := &Store{core: &core{
		dir: cfg.Dir, logger: cfg.Logger, disk: doctor.FreeSpace{Dir: cfg.Dir, Min: cfg.MinFreeDisk},
		tail: tail.New(tail.Bytes), lists: &list.Reader{Limits: list.DefaultLimits}, metrics: counters.New(), hold: newHold(),
		retention:    cfg.Retention,
		housekeeping: newHousekeeping(), quotas: defaultQuotas, rejected: ratelimit.New(maxRejected), sweeping: semaphore.NewWeighted(1),
		sendAlerts: cfg.SendAlerts, catalog: cfg.Catalog,
		tokens: cache[[sha256.Size]byte, webhook.Token]{size: 4 << 10}, programs: cache[string, webhook.Program]{size: 16 << 10},
		tokenPrefix: cmp.Or(cfg.TokenPrefix, webhook.TokenPrefix),
	}}
	s.alerts = make(map[webhook.AlertName]*atomic.Int64)
	for _, name := range webhook.AlertNames() {
		s.alerts[name] = new(atomic.Int64)
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.clock = clock.New(cfg.Now, maxStep(cfg.Retention), s.logger, s.watchers.SubscriptionChanged)
	s.records = record.NewReads(s.lists, s.clock, &s.dictionaries, s.use, s.stats.FailedSince)
	s.people = people.NewReads(s.lists, s.clock.Now)
	s.writer = newWriter(s.core)
	path := filepath.Join(cfg.Dir, datadir.Database)
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
	if err := s.prepareFiles(ctx, path, &cfg); err != nil {
		return nil, err
	}
	if err = s.openDatabase(ctx, path, &cfg); err != nil {
		return nil, err
	}
	scan, _ := s.db.Reads(ctx)
	if err := errors.Join(s.clock.Open(scan), s.openProgramStates(ctx), s.lists.Imported.Open(ctx, s.db)); err != nil {
		return nil, err
	}
	s.replication = s.newReplication(&cfg, path)
	if cfg.Replica != nil {
		s.replicaKeeps = cfg.Replica.SnapshotRetention + cfg.Replica.SnapshotInterval
	}
	if err := s.openKeyring(&cfg); err != nil {
		return nil, err
	}
	if err := s.writer.do(s.recoverClock); Unavailable(err) {
		// The store is readable. Nothing is claimed before the clock is recovered.
		s.logger.Error("storage is not writable; checking the clock later", "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := s.continueAudit(); err != nil && !Unavailable(err) { // else the next start does it
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := s.openEventTypes(ctx); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if cfg.Dictionary == nil && s.catalog != nil {
		cfg.Dictionary = s.catalog.Dictionary()
	}
	if err := s.openDictionaries(ctx, cfg.Dictionary); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(collector{s})
	}
	return s, nil
}

// prepareFiles locks the data directory, completes the unfinished work of a killed process,
// and restores the database from the replica if it is missing.
func (s *core) prepareFiles(ctx context.Context, path string, cfg *Config) (err error) {
	if s.lock, err = sqlite.LockDir(cfg.Dir); err != nil {
		return err
	}
	if err := datadir.Tidy(cfg.Dir); err != nil {
		s.logger.Warn("failed to remove unfinished files of a killed process", "error", err)
	}
	if err := datadir.FinishLocked(cfg.Dir, s.logger); err != nil {
		return err
	}
	if err := datadir.CheckFiles(cfg.Dir); err != nil {
		return err
	}
	if cfg.Replica != nil {
		if err := cfg.Replica.CheckDatabase(path); err != nil {
			return err
		}
	}
	return datadir.RestoreMissing(ctx, cfg.Dir, cfg.Replica, s.logger)
}

// openDictionaries reads the dictionaries, and adds one with the given content unless it exists. Without
// content the newest one stays.
func (s *core) openDictionaries(ctx context.Context, content []byte) error {
	_, each := s.db.Reads(ctx)
	if err := s.dictionaries.Read(each); err != nil {
		return err
	}
	num, text, err := s.dictionaries.Propose(content)
	if err != nil || text == nil {
		return err
	}
	err = s.writer.do(func(t *tx) error {
		return t.Exec("INSERT INTO dictionaries (num, content) VALUES (?, ?)", int64(num), text)
	})
	if Unavailable(err) {
		return nil // for example a full disk: the next start adds it
	}
	if err == nil {
		s.dictionaries.Accept(num, text)
	}
	return err
}

// openDatabase opens the database.
func (s *core) openDatabase(ctx context.Context, path string, cfg *Config) (err error) {
	check := func(ctx context.Context, db *sql.DB) error { return commits.Check(ctx, path, db) }
	s.db, err = sqlite.Open(ctx, sqlite.Config{
		Path: path, Schema: schema.Current, Readers: readers, NoAutoCheckpoint: cfg.Replica != nil,
		Functions: []sqlite.Function{{Name: "event_matches", Call: s.eventMatches}},
		Overwrite: rekey.Tables(), Check: check, Hooks: s.hooks(), Logger: s.logger, Fault: cfg.Fault,
	})
	if err != nil {
		return err
	}
	s.lists.DB = s.db
	s.writer.Writer = s.db.Writer()
	s.writer.commits, err = commits.Open(path, func(query string, dest ...any) error { return s.db.Scan(ctx, query, nil, dest...) }, s.logger)
	return err
}

// hooks returns the store's additions to every commit.
func (s *core) hooks() sqlite.Hooks {
	return sqlite.Hooks{
		Permit: s.writer.permit,
		Chores: []sqlite.Chore{
			s.chore("clock", s.clock.Due, func(t *tx) error { return s.clock.Record(t.Tx) }),
			s.chore("statistics", s.stats.Due, func(t *tx) error { return s.stats.Write(t.Tx, pending.StatKeys, t.counted()) }),
			s.chore("token uses", s.uses.Due, func(t *tx) error { return s.uses.Write(t.Tx, pending.TokenRows) }),
		},
		BeforeBatch:  s.beforeBatch,
		BeforeWrite:  s.writer.beforeWrite,
		UndoWrite:    s.writer.undoWrite,
		BeforeCommit: s.writer.beforeCommit,
		Stamp:        s.writer.stamp,
		AfterCommit:  s.writer.afterCommit,
		Rollback:     s.writer.rollback,
		Measure:      s.metrics.Commit,
	}
}

// chore returns a chore. When it starts to fail, it is logged, unless the whole store is
// unavailable, which the writes report. No chore is due before the clock is recovered.
func (s *core) chore(what string, due func() bool, run func(*tx) error) sqlite.Chore {
	failing := false // owned by the leader of the writer
	return sqlite.Chore{
		Due: func() bool { return s.writer.running && due() },
		Run: func(*sqlite.Tx) error {
			err := run(&s.writer.tx)
			if err != nil && !Unavailable(err) && !failing {
				s.logger.Error("background write failed, will retry", "what", what, "error", err)
			}
			failing = err != nil
			return err
		},
	}
}

// recoverClock compares the clock with the last saved time, once per process. From then on commits
// record the clock.
func (s *core) recoverClock(t *tx) error {
	if t.w.running {
		return nil
	}
	t.AfterCommit(func() { t.w.running = true })
	return s.clock.Recover(t.Tx)
}

// Close waits for running writes, closes the database, uploads the last changes to the replica,
// and releases the data directory. No read and no [Replica.Run] may still run. Further
// calls wait for the first and return its result.
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
			// Write the last counts, which are lost if the store is not writable.
			_ = s.writeCounts()
		}
		var last func() error
		if s.replication != nil {
			last = s.replication.Close
		}
		errs = append(errs, s.db.Close(last))
	}
	errs = append(errs, s.writer.commits.Close())
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Dir returns the data directory.
func (s *Store) Dir() string { return s.dir }

// Check reports whether the store can be read and written: nil, or the reason. The error is a
// *webhook.Error if the cause is not the store itself: the disk is nearly full, the WAL is too
// long, or the lease has ended. During an outage, it writes to see whether the outage is over.
func (s *Store) Check(ctx context.Context) error {
	if l := s.writer.lease.Load(); l != nil && !l.Valid() {
		return l.errExpired()
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
	if _, _, low := s.disk.Check(s.scanNow); low {
		return errLowDisk()
	}
	return s.rejectLongWAL()
}

// probe writes as much as the largest event, since small writes may succeed for a while on a
// full disk, and replaces it with the time. If it succeeds, the outage is over.
func (s *core) probe() error {
	for _, value := range [][]byte{make([]byte, webhook.MaxEventBytes), []byte(webhook.FormatTime(s.clock.Now()))} {
		err := s.writer.do(func(t *tx) error {
			return t.Exec(schema.Set, "checked_at", value)
		})
		if err != nil {
			return err
		}
	}
	return s.db.Writer().EndOutage()
}

// Guard waits until ctx ends and returns nil, or until the database is found damaged. Then the
// error wraps [ErrDamaged], nothing is written any more, Close leaves the files as they are,
// and the process must end.
func (s *Store) Guard(ctx context.Context) error { return s.db.WaitDamaged(ctx) }
