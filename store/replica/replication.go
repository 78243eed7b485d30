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
	// A replica that fails is retried after minRetry, then after twice the time
	// before, up to maxRetry.
	minRetry = time.Second
	maxRetry = time.Minute
	// minUploadRate is the slowest upload that is not aborted, in bytes a second.
	minUploadRate = 128 << 10
)

// limits bound the resources that replication uses, and the time until an
// incomplete replica is noticed.
type limits struct {
	// Lengths of the write-ahead log in frames of a page each.
	throttle     int64         // from here on the writer waits for a checkpoint
	abandon      int64         // above this for longer than abandonAfter, replication is interrupted
	abandonAfter time.Duration // see abandon
	reject       int64         // above this no event is accepted

	// The files on the disk that are not uploaded yet may have backlog bytes, or
	// backlogRatio times the size of the database when that is more. When they
	// have more, they are replaced by one snapshot.
	backlog         int64
	backlogRatio    int64
	backlogInterval time.Duration // between two checks

	verifyInterval time.Duration // between two checks that the replica can be restored
}

var defaultLimits = limits{
	throttle: 16_384, abandon: 50_000, abandonAfter: 5 * time.Second, reject: 100_000,
	backlog: 256 << 20, backlogRatio: 2, backlogInterval: 10 * time.Second,
	verifyInterval: 10 * time.Minute,
}

// Why replication is interrupted.
var (
	errBacklog           = errors.New("too much waits on the disk to be copied")
	errWALTooLong        = errors.New("the write-ahead log became too long")
	errUploadStalled     = errors.New("the replica does not take what is copied")
	errReplicaIncomplete = errors.New("the replica has lost what was sent to it before, and cannot be restored from until the whole database is copied again")
)

// Replication keeps a replica up to date with Litestream. Its methods may be
// called from any goroutine unless they say otherwise.
type Replication struct {
	cfg    *Config
	path   string // of the database
	writer *sqlite.Writer
	logger *slog.Logger
	limits limits

	acks    *acknowledger                       // nil unless acknowledgements wait for uploads; see Acknowledge
	measure func(files int, took time.Duration) // see Measure; may be nil

	content *contentVerifier // nil unless the content is compared; see VerifyContent

	lease    atomic.Pointer[func() bool]   // reports whether the lease that uploading needs is valid; nil for none
	running  atomic.Pointer[litestream.DB] // what the writer may sync; nil for nothing
	copied   atomic.Pointer[time.Time]     // when the writer or an upload last copied the log; nil for never
	frames   atomic.Int64                  // length of the write-ahead log when it was last measured
	truncate atomic.Bool                   // the writer must truncate the write-ahead log before its next commit
	// autoCheckpoint is set while SQLite shortens the write-ahead log by itself.
	autoCheckpoint atomic.Bool
	logHeld        atomic.Bool   // SQLite must not do so: Litestream is being opened
	syncNow        chan struct{} // the writer is about to wait for a checkpoint; has room for one

	// Owned by the goroutine that calls BeforeBatch.
	measured      time.Time     // when the write-ahead log was last measured
	pause         time.Duration // the least time until the next measurement
	syncRequested bool          // syncNow was sent since the log was last short

	onTerm func(number int64) // nil for none
	term   atomic.Int64       // the last that this process began or continued; 0 for none

	claimed map[string]bool // nonces of the terms that this process tried to begin; owned by takeTerm

	mu      sync.Mutex
	begun   bool     // Run was called
	session *session // nil while Litestream is not open
	state   State
	err     error
	since   time.Time // everything committed before this is in the replica
	last    time.Time // when since was determined
	pending []change  // not known to be in the replica, oldest first
	sent    ltx.TXID  // the newest transaction known to be in the replica
}

// session is Litestream with the database open.
type session struct {
	store   *litestream.Store
	db      *litestream.DB
	replica *litestream.Replica

	own   *ownTerm
	began time.Time // everything committed before this is in the first sync
	// snapshot is set while the term needs a snapshot before anything else.
	snapshot atomic.Bool
	// superseded is set when another service has begun a later term.
	superseded atomic.Bool

	// Owned by upload.
	verified time.Time // when the replica was last known to be restorable; zero for never
}

// change is a transaction of Litestream, all of which was committed after since.
type change struct {
	since time.Time
	tx    ltx.TXID
}

// maxPending is the most changes that are counted separately; newer ones are
// merged into the last.
const maxPending = 1_024

// NewReplication returns a replication of the database at path. The writer must
// call [Replication.BeforeBatch]. Nothing is sent before Run.
func NewReplication(cfg *Config, path string, w *sqlite.Writer, logger *slog.Logger) *Replication {
	return &Replication{cfg: cfg, path: path, writer: w, logger: logger, limits: defaultLimits, syncNow: make(chan struct{}, 1), state: StateOpening, since: time.Now()}
}

// Fence stops uploads while valid reports false. It is called once at most.
func (r *Replication) Fence(valid func() bool) { r.lease.Store(&valid) }

// OnTerm has report called with the number of each term that the replication
// begins or continues. It is called once at most, before Run.
func (r *Replication) OnTerm(report func(number int64)) { r.onTerm = report }

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
		s.Err = r.err.Error()
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

// Run keeps the replica up to date until ctx ends. It retries after a failure. It
// is called once at most.
func (r *Replication) Run(ctx context.Context) {
	r.mu.Lock()
	r.begun = true
	r.mu.Unlock()
	wait := minRetry
	for ctx.Err() == nil {
		began := time.Now()
		s, err := r.start(ctx)
		if err == nil {
			err = r.follow(ctx, s)
			if ctx.Err() != nil {
				return // the session stays open for Close
			}
			r.failed(err)
			r.abandon(s, err)
		}
		if ctx.Err() != nil {
			return
		}
		r.failed(err)
		if time.Since(began) > maxRetry {
			wait = minRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, maxRetry)
	}
}

// failed records why the replica is not up to date, and logs the first failure.
func (r *Replication) failed(err error) {
	r.mu.Lock()
	first := r.state != StateFailing
	r.state, r.err = StateFailing, err
	r.mu.Unlock()
	if first {
		r.logger.Error("the replica fails; the service goes on without, and tries again", "replica", r.cfg.Target(), "error", err)
	}
}

// succeeded records that every transaction up to tx is in the replica.
func (r *Replication) succeeded(tx ltx.TXID) {
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
		r.logger.Info("the replica is up to date", "replica", r.cfg.Target())
	}
}

// noticed records a transaction, all of which was committed after since.
func (r *Replication) noticed(since time.Time, tx ltx.TXID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.pending); n == maxPending {
		r.pending[n-1].tx = tx
		return
	}
	r.pending = append(r.pending, change{since, tx})
}

// start opens Litestream and syncs once. It contacts the replica first: while
// that cannot be reached Litestream stays closed.
func (r *Replication) start(ctx context.Context) (*session, error) {
	connecting, cancel := context.WithTimeout(ctx, 2*requestTimeout) // of some twenty requests
	defer cancel()
	if r.lease.Load() == nil {
		if err := CheckUnleased(connecting, r.cfg); errors.Is(err, ErrLeaseHeld) {
			return nil, err
		} else if err != nil {
			r.logger.Warn("the bucket's lease cannot be read", "error", err)
		}
	}
	defer r.logHeld.Store(false)
	t, err := r.takeTerm(connecting)
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
		err = t.log.checkNext(s.db)
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

// newSession configures Litestream to write to a term, and opens nothing.
func (r *Replication) newSession(t *ownTerm) (*session, error) {
	db := litestream.NewDB(r.path)
	replica := litestream.NewReplica(db)
	replica.Client = &spoolClient{&fencedClient{r.checked(t.client), r.fenced}, r.path}
	db.Replica = replica
	// Litestream's own loops are off: this package syncs, so that it sees
	// the errors.
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
	// This package compacts, and removes what is old: see maintain.
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

// abandon closes Litestream without a last sync. When the backlog is too large, or
// misses something, it is removed, and the next start makes a snapshot of the whole
// database.
func (r *Replication) abandon(s *session, why error) {
	r.running.Store(nil)
	r.mu.Lock()
	r.session = nil
	r.mu.Unlock()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.store.Close(ended) // its last sync must fail
	if errors.Is(why, errBacklog) || errors.Is(why, errLogChanged) {
		if err := os.RemoveAll(s.db.MetaPath()); err != nil {
			r.logger.Error("what waits to be copied cannot be removed", "error", err)
		}
	}
}

// follow syncs and uploads until ctx ends, or until replication must be
// interrupted. The error says why.
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
	err := r.syncWAL(ctx, s, changed)
	if cause := context.Cause(ctx); errors.Is(cause, errReplicaIncomplete) || errors.Is(cause, errTermEnded) {
		return cause
	}
	return err
}

// Close brings the replica up to date, within the shutdown timeout of the
// configuration, and closes Litestream. Run must have returned, and the writer be
// closed. It does nothing when Run was never called. The error says that the
// replica may not have the newest changes.
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
		r.failed(err)
		return fmt.Errorf("the replica %s does not hold what was written last; the data directory does: %w", r.cfg.Target(), err)
	}
	return nil
}

// finish uploads what is left, and closes Litestream.
func (r *Replication) finish(ctx context.Context, s *session) error {
	for {
		err := s.db.Sync(ctx)
		if err == nil {
			err = r.send(ctx, s)
		}
		if err == nil {
			return s.store.Close(ctx)
		}
		select {
		case <-ctx.Done():
			r.abandon(s, err)
			return err
		case <-time.After(minRetry / 5):
		}
	}
}

// logHandler is Litestream's log. Information goes to the debug level, and so do
// warnings and errors while the replica is known to fail.
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
