package replica

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

const (
	// followInterval is the time between two requests for new changes.
	followInterval = time.Second
	// followCheckInterval is the time between two checks that the copy can be
	// continued.
	followCheckInterval = 2 * time.Minute
	// damagedCheckInterval is the same while an object is known to be damaged.
	damagedCheckInterval = 5 * time.Second
)

// FollowerConfig is the configuration of a Follower.
type FollowerConfig struct {
	Replica *Config
	Path    string // of the copy; a file that is there is continued
	// Check checks a new copy. After an error the copy is removed, and made again
	// when retry is true; otherwise Follow returns the error.
	Check  func(ctx context.Context, path string) (retry bool, err error)
	Logger *slog.Logger
}

// Follower keeps a copy of a replica's database up to date in a file. Follow and
// CatchUp must not run at the same time; no process may have the copy open.
type Follower struct {
	cfg FollowerConfig

	// Owned by the goroutine that copies and follows.
	stale       bool   // the copy cannot be continued, and a new one replaces it
	unreachable string // why the newest state cannot be reached, as it was logged last

	damagedCheck time.Duration // damagedCheckInterval

	mu    sync.Mutex
	state FollowerState
}

// FollowerState is the state of a copy.
type FollowerState struct {
	Following bool      // the copy exists, and new changes are added to it
	Added     time.Time // of the newest change that was added
	Err       string    // why new changes are not added; for admins
}

// NewFollower returns a follower. It does no I/O.
func NewFollower(cfg FollowerConfig) *Follower {
	return &Follower{cfg: cfg, damagedCheck: damagedCheckInterval}
}

// State returns the state of the copy.
func (f *Follower) State() FollowerState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// followed records that the copy is up to date with a change that was made at
// added, and logs when it was not followed before.
func (f *Follower) followed(added time.Time) {
	f.mu.Lock()
	first := !f.state.Following
	f.state.Following, f.state.Err = true, ""
	if added.After(f.state.Added) {
		f.state.Added = added
	}
	f.mu.Unlock()
	if first {
		f.cfg.Logger.Info("the replica is followed", "replica", f.cfg.Replica.Target())
	}
}

// failed records why the replica cannot be followed, and logs the first failure.
func (f *Follower) failed(reason string) {
	f.mu.Lock()
	first := f.state.Err == ""
	f.state.Following, f.state.Err = false, reason
	f.mu.Unlock()
	if first {
		f.cfg.Logger.Error("the replica cannot be followed; it is tried again", "replica", f.cfg.Replica.Target(), "error", reason)
	}
}

// rejectedError is an error of Check that ends Follow.
type rejectedError struct{ error }

// Follow keeps the copy up to date until ctx ends. It retries while the replica is
// empty or cannot be reached, and makes a new copy when the present one cannot be
// continued. The error is that of FollowerConfig.Check.
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
		var rejected rejectedError
		if errors.As(err, &rejected) {
			return rejected.error
		}
		f.failed(err.Error())
		if errors.As(err, new(*unreachableError)) && err.Error() != f.unreachable {
			f.unreachable = err.Error()
			f.cfg.Logger.Error("the newest changes of the replica cannot be added; the primary's next snapshot will have them", "replica", f.cfg.Replica.Target(), "error", err)
		}
		if time.Since(began) > maxRetry {
			wait = minRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, maxRetry)
	}
}

// copyOnce makes the copy unless it exists and can be continued. A copy that
// cannot stays until there is a new one.
func (f *Follower) copyOnce(ctx context.Context) error {
	path := f.cfg.Path
	if f.exists() {
		if !f.stale {
			return nil
		}
		path += ".new"
		if err := RemoveDatabase(path); err != nil {
			return err
		}
	} else if err := f.remove(); err != nil {
		return err
	}
	newest, damaged, err := restore(ctx, f.cfg.Replica, path, time.Time{})
	if err == nil && path != f.cfg.Path {
		err = errors.Join(f.remove(), os.Rename(path, f.cfg.Path))
	} else if errors.Is(err, syscall.ENOSPC) && path != f.cfg.Path {
		// There is no room for two copies.
		err = errors.Join(err, RemoveDatabase(path), f.remove())
	}
	if err != nil {
		return err
	}
	f.stale = false
	for _, d := range damaged {
		f.cfg.Logger.Warn("an object of the replica is damaged; the copy was made from others", "replica", f.cfg.Replica.Target(), "error", d)
	}
	if retry, err := f.cfg.Check(ctx, f.cfg.Path); err != nil {
		err = errors.Join(err, f.remove())
		if !retry {
			err = rejectedError{err}
		}
		return err
	}
	f.mu.Lock()
	f.state.Added = newest.CreatedAt
	f.mu.Unlock()
	return litestream.WriteTXIDFile(f.cfg.Path, newest.MaxTXID)
}

// exists reports whether there is a copy, and its position is known.
func (f *Follower) exists() bool {
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	if err == nil && at > 0 {
		_, err = os.Stat(f.cfg.Path)
	}
	return err == nil && at > 0
}

// remove removes the copy.
func (f *Follower) remove() error {
	err := os.Remove(litestream.TXIDPath(f.cfg.Path))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, RemoveDatabase(f.cfg.Path))
}

// follow adds new changes to the copy until ctx ends.
func (f *Follower) follow(ctx context.Context) error {
	replica, client, err := f.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var checking sync.WaitGroup
	defer checking.Wait()
	defer cancel(nil)
	checking.Go(func() {
		if err := f.checkContinuity(ctx, client); err != nil {
			cancel(err)
		}
	})
	o := litestream.NewRestoreOptions()
	o.OutputPath, o.Follow, o.FollowInterval = f.cfg.Path, true, followInterval
	err = replica.Restore(ctx, o)
	var unreachable *unreachableError
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errDiscontinuous):
		f.stale = true
		return cause
	case errors.As(cause, &unreachable):
		return cause
	}
	return err
}

// open connects to the replica. Litestream reports its progress in the log
// alone: it goes to a followerLog.
func (f *Follower) open(ctx context.Context) (*litestream.Replica, *checkedClient, error) {
	client, err := f.cfg.Replica.settings.newClient(nil)
	if err != nil {
		return nil, nil, err
	}
	db := litestream.NewDB(f.cfg.Path) // never opened
	logger := slog.New(&followerLog{f})
	db.SetLogger(logger)
	client.SetLogger(logger)
	checked := newCheckedClient(client, func(err error) {
		f.cfg.Logger.Error("an object of the replica is damaged; the copy is continued from others if they have its changes", "replica", f.cfg.Replica.Target(), "error", err)
		f.failed(err.Error())
	})
	return litestream.NewReplicaWithClient(db, checked), checked, client.Init(ctx)
}

// errDiscontinuous says that the copy cannot be continued.
var errDiscontinuous = errors.New("the copy cannot be continued, and is made anew")

// checkContinuity returns an error when the copy cannot be continued:
// errDiscontinuous when it is newer than the replica, which was replaced then, or
// when the change that follows was deleted or is damaged and a new copy would have
// more; an *unreachableError when it would not.
func (f *Follower) checkContinuity(ctx context.Context, client *checkedClient) error {
	tick := time.NewTicker(f.damagedCheck)
	defer tick.Stop()
	var last ltx.TXID
	var checked time.Time
	for {
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
		case <-tick.C:
		}
	}
}

// checkPosition is a step of checkContinuity: at is the position of the copy, and
// last that of the step before.
func (f *Follower) checkPosition(ctx context.Context, client *checkedClient, at, last ltx.TXID) error {
	// The client itself lists no damaged object.
	newest, added, err := newestChange(ctx, client.ReplicaClient)
	switch {
	case err != nil:
		return err
	case at > newest:
		return errDiscontinuous
	case at == newest:
		f.followed(added)
	case at == last:
		if err := client.continues(ctx, at, newest); err != nil {
			return err
		}
		return errDiscontinuous
	}
	return nil
}

// newestChange returns the newest change in a replica, and its time.
func newestChange(ctx context.Context, client litestream.ReplicaClient) (tx ltx.TXID, at time.Time, err error) {
	r := litestream.NewReplicaWithClient(nil, client)
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

// CatchUp brings the copy up to date with the replica, which no process may write
// to any more, and returns the time of its newest change. It fails when the newest
// changes are in damaged objects alone; the error names these, and the state that
// can be restored.
func (f *Follower) CatchUp(ctx context.Context) (time.Time, error) {
	_, client, err := f.open(ctx)
	if err != nil {
		return time.Time{}, err
	}
	newest, at, err := newestChange(ctx, client)
	if err != nil {
		return time.Time{}, err
	}
	return at, f.followTo(ctx, newest)
}

// followTo follows until the copy has a transaction.
func (f *Follower) followTo(ctx context.Context, tx ltx.TXID) error {
	for !f.has(tx) {
		done, err := f.followOnceTo(ctx, tx)
		if done || ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.As(err, new(*unreachableError)) {
			return err
		}
		if err != nil {
			f.cfg.Logger.Error("the copy cannot be brought up to date; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(minRetry):
		}
	}
	return nil
}

// followOnceTo follows until the copy has a transaction, and reports whether it
// has, or until following fails.
func (f *Follower) followOnceTo(ctx context.Context, tx ltx.TXID) (done bool, err error) {
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
			if f.has(tx) {
				cancel()
				<-ended
				return true, nil
			}
		}
	}
}

func (f *Follower) has(tx ltx.TXID) bool {
	at, err := litestream.ReadTXIDFile(f.cfg.Path)
	return err == nil && at >= tx
}

// followerLog receives Litestream's log while it follows, and updates the state
// of the follower. It writes nothing.
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
		l.f.failed(text)
		return nil
	}
	switch r.Message {
	case "entering follow mode", "follow: applied updates":
		l.f.followed(r.Time)
	}
	return nil
}
