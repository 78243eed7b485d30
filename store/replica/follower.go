package replica

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
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
func NewFollower(cfg FollowerConfig) *Follower { return &Follower{cfg: cfg} }

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

// copyOnce makes the copy unless it exists.
func (f *Follower) copyOnce(ctx context.Context) error {
	if at, err := litestream.ReadTXIDFile(f.cfg.Path); err == nil && at > 0 {
		if _, err := os.Stat(f.cfg.Path); err == nil {
			return nil
		}
	}
	if err := f.remove(); err != nil {
		return err
	}
	newest, damaged, err := restore(ctx, f.cfg.Replica, f.cfg.Path, time.Time{})
	if err != nil {
		return err
	}
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
	replica, err := f.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var checking sync.WaitGroup
	defer checking.Wait()
	defer cancel(nil)
	checking.Go(func() {
		if err := f.checkContinuity(ctx, replica); err != nil {
			cancel(err)
		}
	})
	o := litestream.NewRestoreOptions()
	o.OutputPath, o.Follow, o.FollowInterval = f.cfg.Path, true, followInterval
	err = replica.Restore(ctx, o)
	if cause := context.Cause(ctx); errors.Is(cause, errDiscontinuous) {
		err = errors.Join(cause, f.remove())
	}
	return err
}

// open connects to the replica. Litestream reports its progress in the log
// alone: it goes to a followerLog.
func (f *Follower) open(ctx context.Context) (*litestream.Replica, error) {
	client, err := f.cfg.Replica.settings.newClient(nil)
	if err != nil {
		return nil, err
	}
	db := litestream.NewDB(f.cfg.Path) // never opened
	logger := slog.New(&followerLog{f})
	db.SetLogger(logger)
	client.SetLogger(logger)
	return litestream.NewReplicaWithClient(db, client), client.Init(ctx)
}

// errDiscontinuous says that the copy cannot be continued.
var errDiscontinuous = errors.New("the copy cannot be continued, and is made anew")

// checkContinuity returns an error when the copy cannot be continued: when it is
// newer than the replica, which was replaced then, or so old that the replica has
// deleted the change that follows.
func (f *Follower) checkContinuity(ctx context.Context, replica *litestream.Replica) error {
	tick := time.NewTicker(followCheckInterval)
	defer tick.Stop()
	var last ltx.TXID
	for {
		at, err := litestream.ReadTXIDFile(f.cfg.Path)
		if err == nil {
			newest, added, err := newestChange(ctx, replica)
			switch {
			case err != nil:
			case at > newest, at == last && at < newest:
				return errDiscontinuous
			case at == newest:
				f.followed(added)
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

// newestChange returns the newest change in a replica, and its time.
func newestChange(ctx context.Context, r *litestream.Replica) (tx ltx.TXID, at time.Time, err error) {
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
// to any more, and returns the time of its newest change.
func (f *Follower) CatchUp(ctx context.Context) (time.Time, error) {
	replica, err := f.open(ctx)
	if err != nil {
		return time.Time{}, err
	}
	newest, at, err := newestChange(ctx, replica)
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
