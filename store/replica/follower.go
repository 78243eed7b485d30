package replica

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

const (
	// followInterval is the time between two polls for new changes.
	followInterval = time.Second
	// followCheckInterval is the time between two checks that the copy can be
	// continued, and damagedCheckInterval while an object is known to be damaged.
	followCheckInterval  = 2 * time.Minute
	damagedCheckInterval = 5 * time.Second
	// listTermsEvery says that every nth check for a new term lists all terms.
	listTermsEvery = 10
)

// FollowerConfig is the configuration of a Follower.
type FollowerConfig struct {
	Replica *Config
	Path    string // of the copy; an existing copy is continued
	Logger  *slog.Logger
}

// Follower keeps a copy of a replica's database up to date in a file. Follow and CatchUp
// must not run at the same time, and only Read may open the copy.
type Follower struct {
	cfg FollowerConfig

	copying sync.RWMutex // held while the copy is written

	// Owned by the goroutine that copies and follows.
	stale       bool      // the copy cannot be continued and must be replaced
	unreachable string    // the last logged reason why the newest state cannot be reached
	listed      time.Time // before the last listing of changes

	damagedCheck time.Duration // damagedCheckInterval

	damaged   atomic.Bool   // the copy must be replaced, see Discard
	discarded chan struct{} // buffered; wakes checkContinuity

	mu    sync.Mutex
	state FollowerState
}

// FollowerState is the state of a copy.
type FollowerState struct {
	Following bool      // the copy exists and receives new changes
	Added     time.Time // time of the newest change in the copy
	Current   time.Time // when the copy was last known to contain every change; zero for never
	Err       string    // why new changes are not added; for admins
}

// NewFollower returns a follower. It does no I/O.
func NewFollower(cfg FollowerConfig) *Follower {
	return &Follower{cfg: cfg, damagedCheck: damagedCheckInterval, discarded: make(chan struct{}, 1)}
}

// State returns the state of the copy.
func (f *Follower) State() FollowerState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// recordFollowing records that the copy contains a change that was made at added. It logs
// when following begins.
func (f *Follower) recordFollowing(added time.Time) {
	f.mu.Lock()
	first := !f.state.Following
	f.state.Following, f.state.Err = true, ""
	if added.After(f.state.Added) {
		f.state.Added = added
	}
	f.mu.Unlock()
	if first {
		f.cfg.Logger.Info("following the replica", "replica", f.cfg.Replica.Target())
	}
}

// recordListed records that the changes of the replica were listed by a request at the given
// time. If none was newer than the copy, the copy is current.
func (f *Follower) recordListed(asked time.Time, none bool) {
	f.listed = asked
	if none {
		f.recordCurrent()
	}
}

// recordCurrent records that the copy contains everything in the last listing.
func (f *Follower) recordCurrent() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Current = f.listed
}

// recordFailure records why the replica cannot be followed, and logs the first failure.
func (f *Follower) recordFailure(reason string) {
	f.mu.Lock()
	first := f.state.Err == ""
	f.state.Following, f.state.Err = false, reason
	f.mu.Unlock()
	if first {
		f.cfg.Logger.Error("failed to follow the replica, will retry", "replica", f.cfg.Replica.Target(), "error", reason)
	}
}

// ErrNoCopy means that there is no complete copy of the replica.
var ErrNoCopy = errors.New("there is no complete copy of the replica yet")

// Discard makes Follow and CatchUp replace the copy, because its file is damaged; why is logged. Until
// then there is no copy for Read.
func (f *Follower) Discard(why error) {
	if !f.damaged.Swap(true) {
		wake(f.discarded)
		f.cfg.Logger.Error("the standby's copy of the database is damaged; making a new one", "error", why)
	}
}

// Read calls read with the path of the copy, which does not change until read returns. It
// returns the error of read, or [ErrNoCopy]. read must not write to the copy.
func (f *Follower) Read(read func(path string) error) error {
	f.copying.RLock()
	defer f.copying.RUnlock()
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	if err != nil || at == 0 || f.damaged.Load() {
		return ErrNoCopy
	}
	// An interrupted write leaves parts of a change.
	if last, err := readRecord(f.cfg.Path); err != nil || last.Applied > at {
		return ErrNoCopy
	}
	if _, err := os.Stat(f.cfg.Path); err != nil {
		return ErrNoCopy
	}
	return read(f.cfg.Path)
}

// Follow keeps the copy up to date until ctx ends. It retries while the replica is empty
// or unreachable, and makes a new copy if the current one cannot be continued. It always
// returns nil.
func (f *Follower) Follow(ctx context.Context) error {
	wait := minRetry
	for {
		began := time.Now()
		err := f.copyOnce(ctx)
		if err == nil {
			err = f.follow(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errTermChanged) {
			continue
		}
		f.recordFailure(err.Error())
		if errors.As(err, new(*unreachableError)) && err.Error() != f.unreachable {
			f.unreachable = err.Error()
			f.cfg.Logger.Error("failed to apply the newest changes of the replica; waiting for the primary's next snapshot",
				"replica", f.cfg.Replica.Target(), "error", err)
		}
		if time.Since(began) > maxRetry {
			wait = minRetry
		}
		if sleep(ctx, wait) != nil {
			return nil
		}
		wait = min(2*wait, maxRetry)
	}
}

// copyOnce makes the copy unless it exists and can be continued. A stale copy is kept
// until the new one is complete.
func (f *Follower) copyOnce(ctx context.Context) error {
	path := f.cfg.Path
	if f.exists() {
		if !f.stale && !f.damaged.Load() {
			return nil
		}
		path += ".new"
		if err := RemoveDatabase(path); err != nil {
			return err
		}
	} else {
		f.damaged.Store(false)
		if err := f.remove(); err != nil {
			return err
		}
	}
	found, err := Restore(ctx, f.cfg.Replica, path, time.Time{})
	if err == nil && path != f.cfg.Path {
		f.copying.Lock()
		err = errors.Join(f.remove(), os.Rename(path, f.cfg.Path))
		f.damaged.Store(false)
		f.copying.Unlock()
	} else if errors.Is(err, syscall.ENOSPC) && path != f.cfg.Path {
		// There is no space for two copies.
		err = errors.Join(err, RemoveDatabase(path), f.remove())
	}
	if err != nil {
		return err
	}
	f.stale = false
	for _, d := range found.Damaged {
		f.cfg.Logger.Warn("found a damaged object in the replica; copied its changes from other objects",
			"replica", f.cfg.Replica.Target(), "error", d)
	}
	f.mu.Lock()
	f.state.Added = found.State
	f.mu.Unlock()
	if err := f.writeTerm(found.Origin.term, 0); err != nil {
		return err
	}
	return litestream.WriteTXIDFile(f.cfg.Path, found.Origin.at)
}

// exists reports whether there is a copy with a known position.
func (f *Follower) exists() bool {
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	if err == nil && at > 0 {
		_, err = os.Stat(f.cfg.Path)
	}
	return err == nil && at > 0
}

// remove deletes the copy.
func (f *Follower) remove() error {
	return errors.Join(ignoreNoFile(os.Remove(litestream.TXIDPath(f.cfg.Path))), RemoveDatabase(f.cfg.Path))
}

// writeTerm records the term that the copy follows, and the newest transaction of which the
// copy may contain a part.
func (f *Follower) writeTerm(t term, applied ltx.TXID) error {
	return writeRecord(f.cfg.Path, record{Replica: f.cfg.Replica.Target(), Term: t.Number, Nonce: t.Nonce, Applied: applied})
}

// noteApplying records that the changes from first to last are about to be written to the
// copy, which contains all earlier changes. If the write is interrupted, the copy contains
// more than its position says, and cannot follow a term that lacks those changes.
//
// It also advances the position to first-1. Litestream records the position only after
// it has applied everything it found, so an interrupted copy would start a long backlog
// from the beginning.
func (f *Follower) noteApplying(first, last ltx.TXID) error {
	r, err := readRecord(f.cfg.Path)
	if err != nil {
		return err
	}
	if r.Applied < last {
		r.Applied = last
		if err := writeRecord(f.cfg.Path, r); err != nil {
			return err
		}
	}
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	if err != nil || at == first-1 || first <= 1 {
		return err
	}
	return litestream.WriteTXIDFile(f.cfg.Path, first-1)
}

// errDiscontinuous means that the copy cannot be continued.
var errDiscontinuous = errors.New("the copy cannot be continued and will be replaced")

// errTermChanged means that another term has begun.
var errTermChanged = errors.New("another term of the replica has begun")

// follow adds new changes to the copy until ctx ends. It returns errTermChanged
// when another term begins.
func (f *Follower) follow(ctx context.Context) error {
	source, err := f.open(ctx)
	if errors.Is(err, errDiscontinuous) {
		f.stale = true
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var checking sync.WaitGroup
	defer checking.Wait()
	defer cancel(nil)
	replica, client := f.replica(source.client)
	checking.Go(func() {
		if err := f.checkContinuity(ctx, client); err != nil {
			cancel(err)
		}
	})
	checking.Go(func() { f.watchTerm(ctx, source, cancel) })
	o := litestream.NewRestoreOptions()
	o.OutputPath, o.Follow, o.FollowInterval = f.cfg.Path, true, followInterval
	err = replica.Restore(ctx, o)
	var unreachable *unreachableError
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errDiscontinuous):
		f.stale = true
		return cause
	case errors.Is(cause, errTermChanged), errors.As(cause, &unreachable):
		return cause
	}
	return err
}

// watchTerm calls changed once when another term begins.
func (f *Follower) watchTerm(ctx context.Context, source termSource, changed func(error)) {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for ticks := 0; ; ticks++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if f.termChanged(ctx, source, ticks%listTermsEvery == 0) {
			changed(errTermChanged)
			return
		}
	}
}

// termChanged reports whether another term is known to have begun. Unless list is set, it
// only checks the next number, which costs a tenth of a listing.
func (f *Follower) termChanged(ctx context.Context, source termSource, list bool) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if !list {
		_, err := readTerm(ctx, source.at, source.term.Number+1)
		return err == nil
	}
	current, err := newestTerm(ctx, source.at)
	return err == nil && (current.Number != source.term.Number || current.Nonce != source.term.Nonce)
}

// open opens the current term of the replica. The error wraps errDiscontinuous if the
// copy is not a state of that term.
func (f *Follower) open(ctx context.Context) (termSource, error) {
	connecting, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	source, err := openSource(connecting, f.cfg.Replica, noTime, true)
	if err != nil {
		return source, err
	}
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	if err != nil {
		return source, err
	}
	last, err := readRecord(f.cfg.Path)
	if err != nil {
		return source, err
	}
	upTo, err := commonPosition(connecting, source.at, source.term, last)
	if err != nil {
		return source, err
	}
	if max(at, last.Applied) > upTo {
		return source, errDiscontinuous
	}
	return source, f.writeTerm(source.term, last.Applied)
}

// commonPosition returns the last transaction that t has in common with the term of a
// record, or 0.
func commonPosition(ctx context.Context, at location, t term, last record) (ltx.TXID, error) {
	upTo := ltx.TXID(math.MaxInt64)
	for t.Number > last.Term {
		if t.Snapshot {
			return 0, nil
		}
		upTo = min(upTo, t.ParentTXID)
		var err error
		if t, err = readTerm(ctx, at, t.Parent); errors.Is(err, errNoTerm) {
			return 0, nil
		} else if err != nil {
			return 0, err
		}
	}
	if t.Number != last.Term || t.Nonce != last.Nonce {
		return 0, nil
	}
	return upTo, nil
}

// replica returns a Litestream replica for a client, and the client that it uses.
// Litestream reports its progress only in its log, which goes to a followerLog.
func (f *Follower) replica(client litestream.ReplicaClient) (*litestream.Replica, *checkedClient) {
	db := litestream.NewDB(f.cfg.Path) // never opened
	logger := slog.New(&followerLog{f})
	db.SetLogger(logger)
	checked := newCheckedClient(client, func(err error) {
		f.cfg.Logger.Error("found a damaged object in the replica; using other objects with the same changes, if any",
			"replica", f.cfg.Replica.Target(), "error", err)
		f.recordFailure(err.Error())
	})
	applying := func(first, last ltx.TXID) error {
		f.copying.Lock()
		if err := f.noteApplying(first, last); err != nil {
			f.copying.Unlock()
			return err
		}
		return nil
	}
	return litestream.NewReplicaWithClient(db, newMergingClient(checked, applying, f.copying.Unlock, f.recordListed)), checked
}

// checkContinuity checks periodically that the copy can be continued, until it cannot or
// ctx ends. The error is errDiscontinuous if a new copy helps: because the copy is newer
// than the replica, which was replaced, or because the next change was deleted or is
// damaged. It is an *unreachableError if a new copy would not be newer.
func (f *Follower) checkContinuity(ctx context.Context, client *checkedClient) error {
	tick := time.NewTicker(f.damagedCheck)
	defer tick.Stop()
	var last ltx.TXID
	var checked time.Time
	for {
		if f.damaged.Load() {
			return errDiscontinuous
		}
		if checked.IsZero() || client.hasDamage() || time.Since(checked) >= followCheckInterval {
			at, err := litestream.ReadTXIDFile(f.cfg.Path)
			if err == nil {
				err = f.checkPosition(ctx, client, at, last)
			}
			if errors.Is(err, errDiscontinuous) || errors.As(err, new(*unreachableError)) {
				return err
			}
			last, checked = at, time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.discarded:
		case <-tick.C:
		}
	}
}

// checkPosition is one check of checkContinuity. at is the position of the copy, and last
// its position in the previous check.
func (f *Follower) checkPosition(ctx context.Context, client *checkedClient, at, last ltx.TXID) error {
	// The checkedClient would not list damaged objects.
	newest, added, err := newestChange(ctx, client.ReplicaClient, litestream.SnapshotLevel)
	switch {
	case err != nil:
		return err
	case at > newest:
		return errDiscontinuous
	case at == newest:
		f.recordFollowing(added)
	case at == last:
		if err := client.continues(ctx, at, newest); err != nil {
			return err
		}
		return errDiscontinuous
	}
	return nil
}

// newestChange returns the newest change in the levels 0 to top of a replica, and its
// time.
func newestChange(ctx context.Context, client litestream.ReplicaClient, top int) (tx ltx.TXID, at time.Time, err error) {
	r := litestream.NewReplicaWithClient(nil, client)
	for level := 0; level <= top; level++ {
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

// CatchUp adds the last changes of the replica to the copy and returns its position and the time
// of its newest change. No process may write to the replica any more. Afterwards the follower
// cannot continue the copy. If the newest changes are only in damaged objects, the error names
// these and the state that can be restored. If the replica is empty, the copy stays as it is.
func (f *Follower) CatchUp(ctx context.Context) (Origin, time.Time, error) {
	source, err := openSource(ctx, f.cfg.Replica, noTime, false)
	if errors.Is(err, ErrEmpty) && f.exists() {
		return f.finishAlone()
	} else if err != nil {
		return Origin{}, time.Time{}, err
	}
	newest, added, err := newestChange(ctx, source.client, litestream.SnapshotLevel)
	if err != nil {
		return Origin{}, time.Time{}, err
	}
	// If the primary ended between a snapshot and the upload of the changes before it,
	// the changes do not lead to the snapshot.
	changes, _, err := newestChange(ctx, source.client, litestream.SnapshotLevel-1)
	if err != nil {
		return Origin{}, time.Time{}, err
	}
	f.stale = f.stale || changes < newest && !f.has(source.term, newest)
	if err := f.followTo(ctx, source.term, newest); err != nil {
		return Origin{}, time.Time{}, err
	}
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	if err == nil {
		err = os.Remove(litestream.TXIDPath(f.cfg.Path))
	}
	return Origin{f.cfg.Replica.Target(), source.term, at}, added, err
}

// finishAlone is CatchUp for a replica that was emptied. The position of the copy has no meaning in
// the replica any more, so the whole database is uploaded.
func (f *Follower) finishAlone() (Origin, time.Time, error) {
	info, err := os.Stat(f.cfg.Path)
	if err == nil {
		err = f.Read(func(string) error { return nil }) // an incomplete copy is none
	}
	if err == nil {
		err = os.Remove(litestream.TXIDPath(f.cfg.Path))
	}
	if err != nil {
		return Origin{}, time.Time{}, err
	}
	return Origin{replica: f.cfg.Replica.Target()}, info.ModTime(), nil
}

// followTo follows until the copy contains the given transaction of a term.
func (f *Follower) followTo(ctx context.Context, t term, tx ltx.TXID) error {
	for !f.has(t, tx) {
		done, err := f.followOnceTo(ctx, t, tx)
		if done || ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.As(err, new(*unreachableError)) {
			return err
		}
		if err != nil {
			f.cfg.Logger.Error("failed to update the standby's copy of the database, will retry", "error", err)
		}
		if err := sleep(ctx, minRetry); err != nil {
			return err
		}
	}
	return nil
}

// followOnceTo follows until the copy contains the given transaction, or until following
// fails. It reports whether the copy contains the transaction.
func (f *Follower) followOnceTo(ctx context.Context, t term, tx ltx.TXID) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(f.copyOnce(ctx), f.follow(ctx)) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return false, err
		case <-tick.C:
			if f.has(t, tx) {
				cancel()
				<-ended
				return true, nil
			}
		}
	}
}

// has reports whether the copy is a state of a term and contains the given transaction.
func (f *Follower) has(t term, tx ltx.TXID) bool {
	last, err := readRecord(f.cfg.Path)
	if err != nil || last.Term != t.Number || last.Nonce != t.Nonce {
		return false
	}
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	return err == nil && at >= max(tx, last.Applied) && !f.damaged.Load()
}

// followerLog receives Litestream's log while it follows, and updates the follower's
// state. It logs nothing.
type followerLog struct{ f *Follower }

// Enabled implements [slog.Handler].
func (l *followerLog) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements [slog.Handler].
func (l *followerLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements [slog.Handler].
func (l *followerLog) WithGroup(string) slog.Handler { return l }

// Handle implements [slog.Handler].
func (l *followerLog) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "err" || a.Key == "error" {
				text = a.Value.String()
			}
			return true
		})
		l.f.recordFailure(text)
		return nil
	}
	switch r.Message {
	case "follow: applied updates":
		l.f.recordCurrent()
		l.f.recordFollowing(r.Time)
	case "entering follow mode":
		l.f.recordFollowing(r.Time)
	}
	return nil
}
