package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/webhook"
)

const (
	// paceLooked is how long the last look at the write-ahead log holds.
	paceLooked = 20 * time.Millisecond
	// paceAgain is the same when a sync could not shorten the log, for a reader
	// of it, say.
	paceAgain = 250 * time.Millisecond
	// paceTime bounds how long a sync may hold the writer up.
	paceTime = 2 * time.Second

	// A replica that cannot be reached is tried again after leastRetry, and twice
	// as long each time, up to mostRetry.
	leastRetry = time.Second
	mostRetry  = time.Minute
	// reachTime bounds one question to a replica.
	reachTime = 15 * time.Second
	// slowUpload is what an upload must do a second, in bytes, beside reachTime.
	slowUpload = 128 << 10
)

const (
	// autoCheckpoint is from how many frames on the log is shortened when there is
	// little to do; without a replica, always.
	autoCheckpoint = 1000
	// busy is how many frames a second more in the log are much to do.
	busy = 2000
)

// replicaLimits bound what the copy may cost, and how long it may be wrong.
type replicaLimits struct {
	// Lengths of the write-ahead log, in frames of a page each.
	pace    int64         // from here on the writer has Litestream shorten it
	giveUp  int64         // when it was longer for so long, the copy is given up for a while
	longFor time.Duration // the same
	refuse  int64         // beyond this no event is accepted

	// What waits on the disk to be sent may have so many bytes, or be so many
	// times as large as the database; a copy of that is sent sooner.
	pile      int64
	pileShare int64
	pileEvery time.Duration // how often it is looked at

	wholeEvery time.Duration // how often the replica is asked whether it can be restored from
}

var defaultReplicaLimits = replicaLimits{
	pace: 16_384, giveUp: 50_000, longFor: 5 * time.Second, refuse: 100_000,
	pile: 256 << 20, pileShare: 2, pileEvery: 10 * time.Second,
	wholeEvery: 10 * time.Minute,
}

// ReplicaState says how the copy of the database elsewhere does.
type ReplicaState string

const (
	ReplicaOff     ReplicaState = "off"     // none is configured
	ReplicaOpening ReplicaState = "opening" // it was not reached yet since the start
	ReplicaRunning ReplicaState = "running" // it follows the database
	ReplicaFailing ReplicaState = "failing" // it does not, and is tried again
)

// Replica is the state of the copy of the database elsewhere.
type Replica struct {
	State  ReplicaState
	Target string // where it is, without secrets; "" when it is off
	// Lag is how long ago the oldest change may have been made that is not in
	// the replica; 0 when all is. Changes are noticed every monitor-interval.
	Lag         time.Duration
	LastSuccess time.Time // when it was last known to hold all that had been noticed; zero for never
	Err         string    // why it fails; for admins
}

// replication keeps the replica up to date with Litestream, which runs in this
// process and on this process's SQLite library, see docs/decisions.
type replication struct {
	cfg    *ReplicaConfig
	path   string // of the database
	logger *slog.Logger
	writer *writer
	limits replicaLimits

	lease   atomic.Pointer[Lease]         // what is sent needs it to be good; nil for nothing
	running atomic.Pointer[litestream.DB] // what the writer may call; nil while it is not to
	paced   atomic.Pointer[time.Time]     // when the writer last had the log copied; nil for never
	frames  atomic.Int64                  // of the log, as the writer last saw it
	empty   atomic.Bool                   // the writer is to empty the log before its next commit, and has not yet
	soon    chan struct{}                 // the writer is about to have the log shortened

	// Owned by the leader of the writer.
	looked time.Time
	wait   time.Duration
	told   bool // that it will have the log shortened soon

	mu    sync.Mutex
	begun bool      // Replicate was called
	open  *follower // nil while Litestream is not open
	state ReplicaState
	err   error
	since time.Time // all that was committed before this is in the replica
	last  time.Time // when that was found out
	marks []mark    // what is not known to be in it, oldest first
	sent  ltx.TXID  // the newest transaction that is known to have been sent
}

// follower is Litestream with the database open.
type follower struct {
	store   *litestream.Store
	db      *litestream.DB
	replica *litestream.Replica

	began time.Time // what was committed before this is in what was copied first

	// Owned by upload.
	whole time.Time // when the replica could last be restored from; zero while that is not known
}

// mark is a change that was noticed: all that is in the transaction was
// committed after since.
type mark struct {
	since time.Time
	tx    ltx.TXID
}

// maxMarks bounds how many are kept apart; more are taken for as old as the
// last of them.
const maxMarks = 1_024

func newReplication(cfg *ReplicaConfig, path string, w *writer, logger *slog.Logger) *replication {
	return &replication{cfg: cfg, path: path, logger: logger, writer: w, limits: defaultReplicaLimits, soon: make(chan struct{}, 1), state: ReplicaOpening, since: time.Now()}
}

// checkReplica refuses a replica that is another database's.
func checkReplica(cfg *Config, path string) error {
	if cfg.Replica == nil || cfg.Replica.Database == "" {
		return nil
	}
	named := cfg.Replica.Database
	ours, err := os.Stat(cfg.Dir)
	if err != nil {
		return err
	}
	theirs, err := os.Stat(filepath.Dir(named))
	if err != nil || !os.SameFile(ours, theirs) || filepath.Base(named) != databaseFile {
		return fmt.Errorf("the replica's configuration is for the database %s, and this one is %s: the path under dbs must name it", named, path)
	}
	return nil
}

// Replica returns the state of the replica. It asks nobody.
func (s *Store) Replica() Replica {
	if s.replication == nil {
		return Replica{State: ReplicaOff}
	}
	r := s.replication
	r.mu.Lock()
	defer r.mu.Unlock()
	y := Replica{State: r.state, Target: r.cfg.Target(), LastSuccess: r.last}
	if r.err != nil {
		y.Err = r.err.Error()
	}
	switch {
	case len(r.marks) > 0:
		y.Lag = time.Since(r.marks[0].since)
	case r.state != ReplicaRunning:
		y.Lag = time.Since(r.since)
	}
	return y
}

// Replicate keeps the replica up to date until ctx ends. It returns nil: a
// replica that fails is tried again, and holds nothing else up. [Store.Close]
// brings it up to date a last time.
func (s *Store) Replicate(ctx context.Context) error {
	if r := s.replication; r != nil {
		r.mu.Lock()
		r.begun = true
		r.mu.Unlock()
		r.run(ctx)
	}
	return nil
}

func (r *replication) run(ctx context.Context) {
	wait := leastRetry
	for ctx.Err() == nil {
		began := time.Now()
		o, err := r.start(ctx)
		if err == nil {
			err = r.follow(ctx, o)
			if ctx.Err() != nil {
				return // it stays open: Close needs it
			}
			r.failed(err)
			r.giveUp(o, err)
		}
		if ctx.Err() != nil {
			return
		}
		r.failed(err)
		if time.Since(began) > mostRetry {
			wait = leastRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, mostRetry)
	}
}

// failed remembers why the replica is not up to date, and logs when that is new.
func (r *replication) failed(err error) {
	r.mu.Lock()
	news := r.state != ReplicaFailing
	r.state, r.err = ReplicaFailing, err
	r.mu.Unlock()
	if news {
		r.logger.Error("the replica fails; the service goes on without, and tries again", "replica", r.cfg.Target(), "error", err)
	}
}

// succeeded remembers that all up to a transaction is in the replica.
func (r *replication) succeeded(tx ltx.TXID) {
	now := time.Now()
	r.mu.Lock()
	news := r.state != ReplicaRunning
	r.state, r.err, r.sent = ReplicaRunning, nil, tx
	for len(r.marks) > 0 && r.marks[0].tx <= tx {
		r.marks = r.marks[1:]
	}
	if len(r.marks) == 0 {
		r.last, r.since = now, now
	}
	r.mu.Unlock()
	if news {
		r.logger.Info("the replica is up to date", "replica", r.cfg.Target())
	}
}

// noticed remembers a transaction, all of which was committed after since.
func (r *replication) noticed(since time.Time, tx ltx.TXID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.marks); n == maxMarks {
		r.marks[n-1].tx = tx
		return
	}
	r.marks = append(r.marks, mark{since, tx})
}

// start opens Litestream and syncs once. The replica is asked first: what cannot
// be reached is not opened, so that the log stays SQLite's own to shorten.
func (r *replication) start(ctx context.Context) (_ *follower, err error) {
	db := litestream.NewDB(r.path)
	replica := litestream.NewReplica(db)
	client, err := r.cfg.replica.client(replica)
	if err != nil {
		return nil, err
	}
	replica.Client = &spooled{client, r.path}
	db.Replica = replica
	// What is done when is decided here, where failures are seen.
	db.MonitorInterval, replica.MonitorEnabled = 0, false
	db.CheckpointInterval = r.cfg.CheckpointInterval
	db.MinCheckpointPageN = int(r.limits.pace) // see shorten
	replica.SyncInterval = r.cfg.replica.syncInterval

	asking, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := replica.Client.Init(asking); err != nil {
		return nil, err
	}
	newest, err := replica.MaxLTXFileInfo(asking, 0)
	if err != nil {
		return nil, fmt.Errorf("the replica cannot be read: %w", err)
	}

	levels := litestream.CompactionLevels{{Level: 0}}
	for i, interval := range r.cfg.CompactionIntervals {
		levels = append(levels, &litestream.CompactionLevel{Level: i + 1, Interval: interval})
	}
	o := &follower{store: litestream.NewStore([]*litestream.DB{db}, levels), db: db, replica: replica}
	logger := slog.New(&replicaLog{Handler: r.logger.Handler(), r: r})
	o.store.Logger = logger
	db.SetLogger(logger)
	o.store.SnapshotInterval, o.store.SnapshotRetention = r.cfg.SnapshotInterval, r.cfg.SnapshotRetention
	o.store.SetL0Retention(r.cfg.L0Retention)
	o.store.L0RetentionCheckInterval = r.cfg.L0RetentionInterval
	o.store.SetShutdownSyncTimeout(r.cfg.ShutdownSyncTimeout)
	o.store.SetShutdownSyncInterval(200 * time.Millisecond)

	if err := r.handOver(); err != nil {
		return nil, err
	}
	var pos ltx.Pos
	copying, cancel := context.WithTimeoutCause(ctx, reachTime+r.duration(), errStuck)
	defer cancel()
	o.began = time.Now()
	if err = o.store.Open(copying); err == nil {
		err = db.Sync(copying)
	}
	if err == nil {
		pos, err = db.Pos()
	}
	if err != nil {
		r.giveUp(o, err)
		return nil, err
	}
	r.mu.Lock()
	r.open, r.sent = o, newest.MaxTXID
	since := r.since
	if len(r.marks) > 0 {
		since = r.marks[0].since
	}
	r.marks = []mark{{since, pos.TXID}}
	r.mu.Unlock()
	r.running.Store(db)
	return o, nil
}

// duration is how long a copy of the whole database may take.
func (r *replication) duration() time.Duration {
	info, err := os.Stat(r.path)
	if err != nil {
		return 0
	}
	return time.Duration(info.Size()) * time.Second / slowUpload
}

// handOver leaves it to Litestream alone to move the log into the database, and
// makes its two tables, which it would have to wait for under load.
//
// Before that the log is emptied. Litestream goes on from the last frame that it
// has copied if it finds that in the file, even if the log was begun anew since:
// frames behind it that were moved into the database meanwhile, by SQLite or by
// a process that ran without a replica, would never be copied, and a restored
// database would be malformed. An empty log has it copy the whole database.
func (r *replication) handOver() error {
	r.empty.Store(true)
	err := r.write(
		"PRAGMA wal_autocheckpoint = 0",
		"CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)",
		"CREATE TABLE IF NOT EXISTS _litestream_lock (id INTEGER)")
	if err == nil && r.empty.Load() {
		err = r.emptyLog()
	}
	if err == nil && r.empty.Swap(false) {
		err = errors.New("the write-ahead log is being read, and cannot be emptied")
	}
	if err != nil {
		return errors.Join(err, r.takeBack())
	}
	return nil
}

// emptyLog empties the log when there is no writer any more.
func (r *replication) emptyLog() error {
	if !r.writer.ended() {
		return nil
	}
	db, err := openDB(r.path, false, writerPragmas)
	if err != nil {
		return err
	}
	var busy, frames, moved int64
	err = db.QueryRow(truncateLog).Scan(&busy, &frames, &moved)
	r.empty.Store(err != nil || busy != 0)
	return errors.Join(err, db.Close())
}

// truncateLog moves all of the log into the database and empties its file; it
// waits for readers. It cannot be done within a transaction.
const truncateLog = "PRAGMA wal_checkpoint(TRUNCATE)"

// emptyTime bounds how long the writer waits for readers of the log, in
// milliseconds.
const emptyTime = "500"

// takeBack leaves it to SQLite again.
func (r *replication) takeBack() error { return r.write("PRAGMA wal_autocheckpoint = 1000") }

// write runs statements on the writer's connection, unless it is closed: then
// there is nobody to wait for.
func (r *replication) write(queries ...string) error {
	err := r.writer.do(func(t *tx) error {
		for _, q := range queries {
			if err := t.exec(q); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// giveUp closes Litestream without a last sync, so that the log can be shortened
// without it, and forgets what waited to be copied when that is too much: the
// next start copies the whole database.
func (r *replication) giveUp(o *follower, why error) {
	r.running.Store(nil)
	r.mu.Lock()
	r.open = nil
	r.mu.Unlock()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = o.store.Close(ended) // that its last sync fails is meant
	if errors.Is(why, errPile) {
		if err := os.RemoveAll(o.db.MetaPath()); err != nil {
			r.logger.Error("what waits to be copied cannot be removed", "error", err)
		}
	}
	if err := r.takeBack(); err != nil {
		r.logger.Error("the write-ahead log cannot be given back to SQLite", "error", err)
	}
}

// Why the copy is given up for a while.
var (
	errPile   = errors.New("too much waits on the disk to be copied")
	errLong   = errors.New("the write-ahead log became too long")
	errStuck  = errors.New("the replica does not take what is copied")
	errHollow = errors.New("the replica has lost what was sent to it before, and cannot be restored from until the whole database is copied again")
)

// follow copies what is committed, and sends it to the replica, until ctx ends
// or it must be given up.
func (r *replication) follow(ctx context.Context, o *follower) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	more := make(chan struct{}, 1)
	more <- struct{}{}
	var uploading sync.WaitGroup
	defer uploading.Wait()
	uploading.Go(func() {
		if err := r.upload(ctx, o, more); err != nil {
			cancel(err)
		}
	})
	defer cancel(nil)
	err := r.copy(ctx, o, more)
	if cause := context.Cause(ctx); errors.Is(cause, errHollow) {
		return cause
	}
	return err
}

// copy looks at the log every monitor-interval and copies what is new.
func (r *replication) copy(ctx context.Context, o *follower, more chan<- struct{}) error {
	tick := time.NewTicker(r.cfg.MonitorInterval)
	defer tick.Stop()
	before := o.began
	var frames int64 // of the log
	var last ltx.TXID
	var long, piled time.Time
	for {
		soon := false
		select {
		case <-ctx.Done():
			return nil
		case <-r.soon:
			soon = true // the writer does not wait for what is copied now
			tick.Reset(r.cfg.MonitorInterval)
		case <-tick.C:
		}
		began := time.Now()
		copied := began
		// Under load the writer has it copied often enough.
		if paced := r.paced.Load(); !soon && paced != nil && began.Sub(*paced) < r.cfg.MonitorInterval {
			copied = *paced
		} else {
			err := o.db.Sync(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("the write-ahead log cannot be copied: %w", err)
			}
		}
		pos, err := o.db.Pos()
		if err != nil {
			return fmt.Errorf("the write-ahead log cannot be copied: %w", err)
		}
		if pos.TXID != last {
			r.noticed(before, pos.TXID)
			last = pos.TXID
			select {
			case more <- struct{}{}:
			default:
			}
		}
		before = copied

		if frames, err = r.shorten(ctx, o, frames); err != nil {
			return fmt.Errorf("the write-ahead log cannot be read: %w", err)
		}
		switch {
		case frames < r.limits.giveUp:
			long = time.Time{}
		case long.IsZero():
			long = began
		case began.Sub(long) > r.limits.longFor:
			return errLong
		}
		if began.Sub(piled) > r.limits.pileEvery {
			piled = began
			if r.pile(o) {
				return errPile
			}
		}
	}
}

// shorten has the log shortened while there is little to do: Litestream gets the
// moment that it needs by itself then. Otherwise it would fight the writer for
// one, and the writer gives it one when it is time, see pace. It takes how many
// frames the log had a monitor-interval before, and returns how many it has.
func (r *replication) shorten(ctx context.Context, o *follower, before int64) (int64, error) {
	frames, err := r.lookBeside(ctx, o)
	grown := frames - before
	if grown < 0 {
		grown = frames // it was begun anew
	}
	if err != nil || frames < autoCheckpoint || float64(grown) > busy*r.cfg.MonitorInterval.Seconds() {
		return frames, err
	}
	// Its error comes again where the log is copied, unless it is that somebody else writes or reads.
	_ = o.db.Checkpoint(ctx, litestream.CheckpointModePassive)
	return r.lookBeside(ctx, o)
}

// pile says whether too much waits on the disk to be sent. What was sent stays
// there for l0-retention, and does not count.
func (r *replication) pile(o *follower) bool {
	r.mu.Lock()
	sent := r.sent
	r.mu.Unlock()
	most := r.limits.pile
	if info, err := os.Stat(r.path); err == nil {
		most = max(most, r.limits.pileShare*info.Size())
	}
	files, err := os.ReadDir(o.db.LTXLevelDir(0))
	if err != nil {
		return false // copy meets the same
	}
	var size int64
	for _, f := range files {
		if _, tx, err := ltx.ParseFilename(f.Name()); err != nil || tx <= sent {
			continue
		}
		if info, err := f.Info(); err == nil { // what is removed meanwhile does not count
			size += info.Size()
		}
	}
	return size > most
}

// upload sends what was copied to the replica, every sync-interval at the most,
// and after a failure when some time has passed. It returns nil when ctx has
// ended, and errHollow when the copy must be begun anew.
func (r *replication) upload(ctx context.Context, o *follower, more <-chan struct{}) error {
	wait := r.cfg.replica.syncInterval
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		case <-time.After(max(10*time.Second, wait)): // it is asked how it is now and then
		}
		for {
			err := r.send(ctx, o)
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, errHollow) && !o.whole.IsZero() {
				return err
			}
			if err == nil {
				wait = r.cfg.replica.syncInterval
				break
			}
			r.failed(err)
			wait = min(max(2*wait, leastRetry), mostRetry/2)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.cfg.replica.syncInterval):
		}
	}
}

// send sends all that was copied, in as much time as it may need.
func (r *replication) send(ctx context.Context, o *follower) error {
	if r.fenced() {
		return errFenced
	}
	pos, err := o.db.Pos()
	if err != nil {
		return err
	}
	may := reachTime
	if at := o.replica.Pos().TXID; at > 0 && at < pos.TXID {
		for tx := at + 1; tx <= pos.TXID; tx++ {
			if info, err := os.Stat(o.db.LTXPath(0, tx, tx)); err == nil {
				may += time.Duration(info.Size()) * time.Second / slowUpload
			}
		}
	} else {
		may += r.duration()
	}
	sending, cancel := context.WithTimeoutCause(ctx, may, errStuck)
	defer cancel()
	if err := o.replica.Sync(sending); err != nil {
		return err
	}
	if err := r.ask(ctx, o); err != nil {
		return err
	}
	r.succeeded(o.replica.Pos().TXID)
	return nil
}

// ask asks the replica now and then whether all that was sent is still there:
// somebody may have emptied the bucket, or have it forget what is old. Then what
// is new is taken without complaint, and is of no use. The first time it is given
// a copy of the whole database in that case; later the error is errHollow, since
// Litestream, as it is open, goes on from what it knows to be there.
func (r *replication) ask(ctx context.Context, o *follower) error {
	if !o.whole.IsZero() && time.Since(o.whole) < r.limits.wholeEvery {
		return nil
	}
	whole, err := r.restorable(ctx, o)
	if err == nil && !whole && o.whole.IsZero() {
		r.failed(errHollow)
		copying, cancel := context.WithTimeoutCause(ctx, reachTime+r.duration(), errStuck)
		defer cancel()
		if _, err = o.db.Snapshot(copying); err == nil {
			whole, err = r.restorable(ctx, o)
		}
	}
	switch {
	case err != nil:
		return err
	case !whole:
		return errHollow
	}
	o.whole = time.Now()
	return nil
}

// restorable says whether all that was sent can be restored. It asks twice before
// it denies that: what was merged meanwhile may have been missed in both places.
func (r *replication) restorable(ctx context.Context, o *follower) (bool, error) {
	asking, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	sent := o.replica.Pos().TXID
	for range 2 {
		_, err := litestream.CalcRestorePlan(asking, o.replica.Client, sent, time.Time{}, slog.New(slog.DiscardHandler))
		if err == nil || !errors.Is(err, litestream.ErrTxNotAvailable) {
			return err == nil, err
		}
		// A copy of the whole that has more than what was sent is in no such plan.
		copied, err := o.replica.MaxLTXFileInfo(asking, litestream.SnapshotLevel)
		if err != nil || copied.MaxTXID >= sent {
			return err == nil, err
		}
	}
	return false, nil
}

// fenced says whether the replica may be another service's by now.
func (r *replication) fenced() bool {
	l := r.lease.Load()
	return l != nil && !l.Good()
}

// pace keeps the log short while the writer does not rest: Litestream needs a
// moment without writes for that, and gets it here. The leader of the writer
// calls it between two commits.
func (r *replication) pace(w *writer) {
	if r.empty.Load() {
		t := &tx{w: w}
		var busy, frames, moved int64
		err := errors.Join(t.exec("PRAGMA busy_timeout = "+emptyTime), t.scan(truncateLog, nil, &busy, &frames, &moved), t.exec("PRAGMA busy_timeout = 10000"))
		r.empty.Store(err != nil || busy != 0)
	}
	now := time.Now()
	if now.Sub(r.looked) < max(r.wait, paceLooked) {
		return
	}
	r.looked, r.wait = now, 0
	frames := r.look(w)
	db := r.running.Load()
	soon := frames > r.limits.pace/8*7
	if soon && !r.told && db != nil {
		select {
		case r.soon <- struct{}{}:
		default:
		}
	}
	r.told = soon
	if db == nil || frames < r.limits.pace {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), paceTime)
	defer cancel()
	// Its error comes again where the log is copied, and is told there.
	if err := db.Sync(ctx); err == nil {
		r.paced.Store(&now)
	}
	if r.look(w) >= r.limits.pace {
		r.wait = paceAgain
	}
	r.looked = time.Now()
}

const lookAtLog = "PRAGMA wal_checkpoint(NOOP)"

// look returns how many frames the log has.
func (r *replication) look(w *writer) int64 {
	var busy, frames, moved int64
	t := &tx{w: w}
	if err := t.scan(lookAtLog, nil, &busy, &frames, &moved); err != nil {
		return r.frames.Load()
	}
	r.frames.Store(frames)
	return frames
}

// lookBeside is look without the writer, which may have nothing to do.
func (r *replication) lookBeside(ctx context.Context, o *follower) (int64, error) {
	var busy, frames, moved int64
	err := o.db.SQLDB().QueryRowContext(ctx, lookAtLog).Scan(&busy, &frames, &moved)
	if err == nil {
		r.frames.Store(frames)
	}
	return frames, err
}

// full returns an error for publishers while the log is too long.
func (r *replication) full() error {
	if r != nil && r.frames.Load() > r.limits.refuse {
		return webhook.NewError(webhook.CodeUnavailable, "The write-ahead log of the service is too long, since its copying cannot keep up: no event is accepted until it is shorter. Try again later.")
	}
	return nil
}

// close brings the replica up to date a last time, within the time that the
// configuration gives it, and closes Litestream. Nobody writes any more. When
// replication has never begun nothing is done. The error says that the replica may not hold what was committed last.
func (r *replication) close() error {
	r.running.Store(nil)
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.ShutdownSyncTimeout+time.Second)
	defer cancel()
	r.mu.Lock()
	o, begun := r.open, r.begun
	r.open = nil
	r.mu.Unlock()
	if !begun {
		return nil
	}
	if r.fenced() {
		if o != nil {
			r.giveUp(o, errFenced)
		}
		return nil // what was written last is not to be mixed with another's
	}
	var err error
	if o == nil {
		if o, err = r.start(ctx); err == nil {
			r.running.Store(nil)
		}
	}
	if err == nil {
		err = o.store.Close(ctx)
	}
	if err == nil {
		if whole, asked := r.restorable(ctx, o); asked == nil && !whole {
			err = errHollow
		}
	}
	if err != nil {
		r.failed(err)
		return fmt.Errorf("the replica %s does not hold what was written last; the data directory does: %w", r.cfg.Target(), err)
	}
	return nil
}

// replicaLog is the log of Litestream: its news are ours to debug with, and while
// the replica is known to fail its complaints are as well.
type replicaLog struct {
	slog.Handler
	r *replication
}

func (l *replicaLog) level(level slog.Level) slog.Level {
	if level < slog.LevelWarn {
		return slog.LevelDebug
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if l.r.state != ReplicaRunning {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// Enabled implements [slog.Handler].
func (l *replicaLog) Enabled(ctx context.Context, level slog.Level) bool {
	return l.Handler.Enabled(ctx, l.level(level))
}

// Handle implements [slog.Handler].
func (l *replicaLog) Handle(ctx context.Context, record slog.Record) error {
	record.Level = l.level(record.Level)
	record.Message = "litestream: " + record.Message
	return l.Handler.Handle(ctx, record)
}

// WithAttrs implements [slog.Handler].
func (l *replicaLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &replicaLog{l.Handler.WithAttrs(attrs), l.r}
}

// WithGroup implements [slog.Handler].
func (l *replicaLog) WithGroup(name string) slog.Handler {
	return &replicaLog{l.Handler.WithGroup(name), l.r}
}
