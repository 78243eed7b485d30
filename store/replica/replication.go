package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/store/sqlite"
)

const (
	// Exponential backoff of a failing replica.
	minRetry = time.Second
	maxRetry = time.Minute
	// minUploadRate is the rate in bytes per second below which an upload is aborted.
	minUploadRate = 128 << 10
)

// limits bounds the resources that replication uses, and the time until an incomplete
// replica is detected.
type limits struct {
	// Lengths of the WAL in frames of one page each.
	throttle int64 // from here on, the writer waits for a checkpoint
	abandon  int64 // above this for abandonAfter, replication is interrupted
	reject   int64 // above this, no events are accepted

	abandonAfter    time.Duration
	throttleTimeout time.Duration // the maximum time for which a sync may block the writer

	// The local files that are not uploaded yet may have backlog bytes or
	// backlogRatio times the size of the database, whichever is more. Above that,
	// they are replaced by one snapshot.
	backlog         int64
	backlogRatio    int64
	backlogInterval time.Duration // time between two checks

	verifyInterval time.Duration // time between two checks that the replica can be restored
	termInterval   time.Duration // time between two checks whether a later term has begun
	writerPeriod   time.Duration // of the sign of life without a lease; 0 in tests without one
}

var defaultLimits = limits{
	throttle: 16_384, abandon: 50_000, abandonAfter: 5 * time.Second, reject: 100_000,
	throttleTimeout: 2 * time.Second,
	backlog:         256 << 20, backlogRatio: 2, backlogInterval: 10 * time.Second,
	verifyInterval: 10 * time.Minute, termInterval: 15 * time.Second, writerPeriod: writerPeriod,
}

// Reasons for which replication is interrupted.
var (
	errBacklog           = errors.New("too much data is waiting to be uploaded")
	errWALTooLong        = errors.New("the WAL became too long")
	errUploadStalled     = errors.New("the upload to the replica stalled")
	errReplicaIncomplete = errors.New("the replica has lost earlier uploads, " +
		"and cannot be restored from until the whole database is uploaded again")
)

// Replication keeps a replica up to date with Litestream. It is safe for concurrent
// use unless a method says otherwise.
type Replication struct {
	cfg    *Config
	path   string // of the database
	writer *sqlite.Writer
	logger *slog.Logger
	limits limits

	acks    *acknowledger                       // see Acknowledge
	measure func(files int, took time.Duration) // see Measure; may be nil

	content *contentVerifier // nil unless the content is compared; see VerifyContent

	lease    atomic.Pointer[func() bool]   // reports whether the lease is valid; nil without a lease
	running  atomic.Pointer[litestream.DB] // the database that the writer may sync; nil for none
	copied   atomic.Pointer[time.Time]     // when the writer or an upload last copied the WAL; nil for never
	frames   atomic.Int64                  // length of the WAL when it was last measured
	truncate atomic.Bool                   // the writer must truncate the WAL before its next commit

	autoCheckpoint    atomic.Bool   // SQLite checkpoints the WAL by itself
	autoCheckpointOff atomic.Bool   // SQLite must not, because Litestream is being opened
	syncNow           chan struct{} // the writer is about to wait for a checkpoint; has room for one

	// Owned by the goroutine that calls BeforeBatch.
	measured      time.Time     // when the WAL was last measured
	pause         time.Duration // minimum time until the next measurement
	syncRequested bool          // syncNow was sent since the WAL was last short

	term atomic.Int64 // the last term that this process began or continued; 0 for none

	sign  writerSign   // of this service, without a lease
	watch *writerWatch // of the service that wrote the newest term; used by Run, then by Close

	claimed map[string]bool // nonces of the terms that this process tried to begin; owned by acquireTerm

	mu      sync.Mutex
	begun   bool     // Run was called
	session *session // nil while Litestream is closed
	state   State
	err     error
	since   time.Time // everything committed before this is in the replica
	last    time.Time // when since was determined
	pending []change  // changes not known to be in the replica, oldest first
	sent    ltx.TXID  // the newest transaction known to be in the replica
}

// session is a period in which Litestream has the database open.
type session struct {
	store   *litestream.Store
	db      *litestream.DB
	replica *litestream.Replica

	own   *ownTerm
	began time.Time // the first sync contains everything committed before this
	// snapshot is set while the term needs a snapshot before anything else.
	snapshot atomic.Bool
	// superseded is set when another service has begun a later term.
	superseded atomic.Bool

	// Owned by upload.
	verified time.Time // when the replica was last known to be restorable; zero for never
}

// change is a Litestream transaction. All of it was committed after since.
type change struct {
	since time.Time
	tx    ltx.TXID
}

// maxPending is the maximum number of changes that are tracked separately. Newer ones
// are merged into the last.
const maxPending = 1_024

// NewReplication returns a replication of the database at path. The writer must
// call [Replication.BeforeBatch]. Nothing is uploaded before Run.
func NewReplication(cfg *Config, path string, w *sqlite.Writer, logger *slog.Logger) *Replication {
	return &Replication{
		cfg: cfg, path: path, writer: w, logger: logger, limits: defaultLimits,
		syncNow: make(chan struct{}, 1), state: StateOpening, since: time.Now(), acks: newAcknowledger(0, 0, w.Commits),
		watch: newWriterWatch(cfg, path),
	}
}

// Fence stops uploads while valid returns false. It must be called at most once.
func (r *Replication) Fence(valid func() bool) { r.lease.Store(&valid) }

// fenced reports whether another service may write to the replica.
func (r *Replication) fenced() bool {
	valid := r.lease.Load()
	return valid != nil && !(*valid)()
}

// Status returns the status of the replica. It does no I/O.
func (r *Replication) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{
		State: r.state, Target: r.cfg.Target(), LastSuccess: r.last, AcknowledgeTimeout: r.AcknowledgeTimeout(),
		VerifyInterval: r.content.interval(), Verified: r.content.status(),
	}
	if r.err != nil {
		s.Err, s.Cause = r.err.Error(), CauseOf(r.err)
	} else if s.Verified.Failing && s.State == StateRunning {
		s.State, s.Err = StateFailing, s.Verified.Err
	}
	if r.session != nil {
		own := r.session.own
		s.Term, s.TermPath, s.TermComplete = own.term.Number, termPath("", own.term.Number), own.complete.Load()
	}
	switch {
	case len(r.pending) > 0:
		s.Lag = time.Since(r.pending[0].since)
	case r.state != StateRunning:
		s.Lag = time.Since(r.since)
	}
	return s
}

// Run keeps the replica up to date until ctx ends. It retries after failures. It must
// be called at most once.
func (r *Replication) Run(ctx context.Context) {
	r.mu.Lock()
	r.begun = true
	r.mu.Unlock()
	var signing sync.WaitGroup
	defer signing.Wait()
	signing.Go(func() { r.keepSign(ctx) })
	wait := minRetry
	for ctx.Err() == nil {
		began := time.Now()
		s, err := r.start(ctx)
		if err == nil {
			err = r.follow(ctx, s)
			if ctx.Err() != nil {
				return // the session stays open for Close
			}
			if errors.Is(err, errTermEnded) && r.signs() {
				r.supersede(s, err)
				continue // the next start names the other service
			}
			r.recordFailure(err)
			r.abandon(s, err)
		}
		if ctx.Err() != nil {
			return
		}
		r.recordFailure(err)
		if errors.Is(err, ErrWriting) {
			r.awaitTurn(ctx)
			continue
		}
		if time.Since(began) > maxRetry {
			wait = minRetry
		}
		_ = sleep(ctx, wait)
		wait = min(2*wait, maxRetry)
	}
}

// recordFailure records why the replica is not up to date, and logs the first failure of each cause.
func (r *Replication) recordFailure(err error) {
	cause := CauseOf(err)
	r.mu.Lock()
	if errors.Is(err, ErrLeaseExpired) && r.state == StateFailing {
		r.mu.Unlock() // earlier responses of the bucket tell why it expired
		return
	}
	first := r.state != StateFailing || CauseOf(r.err) != cause
	r.state, r.err = StateFailing, err
	r.mu.Unlock()
	if first {
		r.logger.Error("replication failed; the service continues and will retry", "replica", r.cfg.Target(), "cause", cause, "error", err)
	}
}

// recordSuccess records that every transaction up to tx is in the replica.
func (r *Replication) recordSuccess(tx ltx.TXID) {
	now := time.Now()
	r.mu.Lock()
	first := r.state != StateRunning
	r.state, r.err, r.sent = StateRunning, nil, tx
	for len(r.pending) > 0 && r.pending[0].tx <= tx {
		r.pending = r.pending[1:]
	}
	if len(r.pending) == 0 {
		r.last, r.since = now, now
	}
	r.mu.Unlock()
	if first {
		r.logger.Info("replica is up to date", "replica", r.cfg.Target())
	}
}

// addPending records a transaction that is not uploaded yet. All of it was committed
// after since.
func (r *Replication) addPending(since time.Time, tx ltx.TXID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.pending); n == maxPending {
		r.pending[n-1].tx = tx
		return
	}
	r.pending = append(r.pending, change{since, tx})
}

// start opens Litestream and syncs once. It contacts the replica first, so that
// Litestream stays closed while the replica cannot be reached.
func (r *Replication) start(ctx context.Context) (*session, error) {
	connecting, cancel := context.WithTimeout(ctx, 2*requestTimeout) // about twenty requests
	defer cancel()
	if r.lease.Load() == nil {
		if err := CheckUnleased(connecting, r.cfg); errors.Is(err, ErrLeaseHeld) {
			return nil, err
		} else if err != nil {
			r.logger.Warn("failed to read the lease in the bucket", "error", err)
		}
	}
	defer r.autoCheckpointOff.Store(false)
	t, err := r.acquireTerm(connecting)
	if err != nil {
		return nil, err
	}
	s, err := r.newSession(t)
	if err != nil {
		return nil, err
	}
	var pos ltx.Pos
	syncing, cancel := context.WithTimeoutCause(ctx, requestTimeout+r.uploadTimeout(), errUploadStalled)
	defer cancel()
	s.began = time.Now()
	if err = s.store.Open(syncing); err == nil {
		err = s.db.Sync(syncing)
	}
	if err == nil {
		pos, err = s.db.Pos()
	}
	if err == nil {
		err = t.wal.checkNext(s.db)
	}
	if err == nil {
		_, err = removeBaseline(s.db)
	}
	if err != nil {
		r.abandon(s, err)
		return nil, err
	}
	r.mu.Lock()
	r.session, r.sent = s, t.sent
	since := r.since
	if len(r.pending) > 0 {
		since = r.pending[0].since
	}
	r.pending = []change{{since, pos.TXID}}
	r.mu.Unlock()
	r.running.Store(s.db)
	return s, nil
}

// newSession configures Litestream to write to a term. It opens nothing.
func (r *Replication) newSession(t *ownTerm) (*session, error) {
	db := litestream.NewDB(r.path)
	replica := litestream.NewReplica(db)
	replica.Client = &spoolClient{&fencedClient{r.checked(t.client), r.fenced}, r.path}
	db.Replica = replica
	// Litestream's own loops are off: this package syncs itself, to see the errors.
	db.MonitorInterval, replica.MonitorEnabled = 0, false
	db.CheckpointInterval = r.cfg.CheckpointInterval
	db.MinCheckpointPageN = int(r.limits.throttle) // below it, see checkpointIdle
	replica.SyncInterval = r.cfg.settings.syncInterval

	levels := litestream.CompactionLevels{{Level: 0}}
	for i, interval := range r.cfg.CompactionIntervals {
		levels = append(levels, &litestream.CompactionLevel{Level: i + 1, Interval: interval})
	}
	s := &session{store: litestream.NewStore([]*litestream.DB{db}, levels), db: db, replica: replica, own: t}
	s.snapshot.Store(t.snapshot)
	if !t.snapshot {
		s.verified = time.Now() // findSent has planned a restore
	}
	// This package compacts and prunes, see maintain.
	s.store.CompactionMonitorEnabled = false
	s.store.SetRetentionEnabled(false)
	s.store.L0RetentionCheckInterval = 0
	s.store.SetL0Retention(0)
	logger := slog.New(&logHandler{Handler: r.logger.Handler(), r: r})
	s.store.Logger = logger
	db.SetLogger(logger)
	s.store.SnapshotInterval = r.cfg.SnapshotInterval
	s.store.SetShutdownSyncTimeout(r.cfg.ShutdownSyncTimeout)
	s.store.SetShutdownSyncInterval(200 * time.Millisecond)
	return s, nil
}

// uploadTimeout returns how long an upload of the whole database may take.
func (r *Replication) uploadTimeout() time.Duration {
	info, err := os.Stat(r.path)
	if err != nil {
		return 0
	}
	return time.Duration(info.Size()) * time.Second / minUploadRate
}

// abandon closes Litestream without a last sync. If the backlog is too large or
// incomplete, abandon deletes it, and the next start uploads a snapshot of the whole
// database.
func (r *Replication) abandon(s *session, why error) {
	r.running.Store(nil)
	r.mu.Lock()
	r.session = nil
	r.mu.Unlock()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.store.Close(ended) // its last sync must fail
	if errors.Is(why, errBacklog) || errors.Is(why, errWALChanged) {
		if err := os.RemoveAll(s.db.MetaPath()); err != nil {
			r.logger.Error("failed to delete the changes that wait for upload to the replica", "error", err)
		}
	}
}

// follow syncs and uploads until ctx ends or replication must be interrupted. The
// error gives the reason.
func (r *Replication) follow(ctx context.Context, s *session) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	var uploading sync.WaitGroup
	defer uploading.Wait()
	uploading.Go(func() {
		if err := r.upload(ctx, s, changed); err != nil {
			cancel(err)
		}
	})
	if r.content != nil {
		uploading.Go(func() { r.content.run(ctx, s) })
	}
	defer cancel(nil)
	uploading.Go(func() { r.maintain(ctx, s) })
	uploading.Go(func() { r.watchTerms(ctx, s, cancel) })
	err := r.syncWAL(ctx, s, changed)
	if cause := context.Cause(ctx); errors.Is(cause, errReplicaIncomplete) || errors.Is(cause, errTermEnded) {
		return cause
	}
	return err
}

// Close uploads the last changes, within the configured shutdown timeout, and closes
// Litestream. Run must have returned and the writer must be closed. Close does nothing
// if Run was never called. An error means that the replica may lack the newest
// changes.
func (r *Replication) Close() error {
	r.running.Store(nil)
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.ShutdownSyncTimeout+time.Second)
	defer cancel()
	r.mu.Lock()
	s, begun := r.session, r.begun
	r.session = nil
	r.mu.Unlock()
	if !begun {
		return nil
	}
	defer r.releaseSign()
	if r.fenced() {
		if s != nil {
			r.abandon(s, ErrLeaseExpired)
		}
		return nil // another service may write to the replica
	}
	var err error
	if s == nil {
		if s, err = r.start(ctx); err == nil {
			r.running.Store(nil)
		}
	}
	if err == nil {
		err = r.finish(ctx, s)
	}
	if err == nil {
		err = r.checkEnd(s)
	}
	if err != nil {
		r.recordFailure(err)
		return fmt.Errorf("the replica %s lacks the newest changes, which are in the data directory: %w", r.cfg.Target(), err)
	}
	return nil
}

// finish uploads the remaining changes and closes Litestream.
func (r *Replication) finish(ctx context.Context, s *session) error {
	for {
		err := s.db.Sync(ctx)
		if err == nil {
			err = r.send(ctx, s)
		}
		if err == nil {
			return s.store.Close(ctx)
		}
		if sleep(ctx, minRetry/5) != nil {
			r.abandon(s, err)
			return err
		}
	}
}

// logHandler receives Litestream's log. It logs warnings and errors as warnings while
// the replica works, and everything else at the debug level.
type logHandler struct {
	slog.Handler
	r *Replication
}

func (h *logHandler) level(level slog.Level) slog.Level {
	if level < slog.LevelWarn {
		return slog.LevelDebug
	}
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	if h.r.state != StateRunning {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// Enabled implements [slog.Handler].
func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.Handler.Enabled(ctx, h.level(level))
}

// Handle implements [slog.Handler].
func (h *logHandler) Handle(ctx context.Context, record slog.Record) error {
	record.Level = h.level(record.Level)
	record.Message = "litestream: " + record.Message
	return h.Handler.Handle(ctx, record)
}

// WithAttrs implements [slog.Handler].
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.Handler.WithAttrs(attrs), h.r}
}

// WithGroup implements [slog.Handler].
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.Handler.WithGroup(name), h.r}
}
