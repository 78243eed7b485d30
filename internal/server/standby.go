package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/store/replica"
	"service/webhook"
)

// Standby follows the replica of a primary. It takes over on a command, or after the
// primary's lease has expired.
type Standby struct {
	cfg        *Config
	follower   *store.Standby
	lease      *replica.Lease // nil if it only takes over on a command
	promotions chan *promotion
}

// OpenStandby prepares the data directory of a standby. Without force, a directory with a
// database is an error that wraps [store.ErrNotEmpty]. The caller must call Run.
func OpenStandby(ctx context.Context, cfg *Config, force bool) (*Standby, error) {
	if _, err := LoadCatalog(cfg.Dir); err != nil {
		return nil, err
	}
	keys, err := store.ReadKeys(cfg.Dir, cfg.SecretKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: a standby needs the primary's secret.key, which is not in the replica: copy it into %s", err, cfg.Dir)
	} else if err != nil {
		return nil, err
	}
	b := &Standby{cfg: cfg, promotions: make(chan *promotion)}
	if b.follower, err = store.OpenStandby(cfg.Dir, cfg.Replica, keys, force, cfg.Logger); err != nil {
		return nil, err
	}
	if b.lease, err = cfg.newLease(ctx); err != nil {
		return nil, errors.Join(err, b.follower.Close())
	}
	return b, nil
}

// Run follows the replica until it is time to take over. It returns the promoted server, on
// which the caller must call Run, or nil if ctx ends first.
func (b *Standby) Run(ctx context.Context) (*Server, error) {
	report, err := b.follow(ctx)
	if err != nil || report == nil {
		return nil, errors.Join(err, b.follower.Close())
	}
	// Promoting a large copy takes time. Feed the systemd watchdog until it is done.
	notifying, stopNotifying := context.WithCancel(ctx)
	notified := make(chan error, 1)
	go func() { notified <- notifyReady(notifying, "Taking over", b.cfg.Logger) }()
	s, err := b.takeOver(ctx, report)
	stopNotifying()
	if err := errors.Join(err, <-notified); err != nil {
		return nil, err
	}
	return s, nil
}

// follow follows the replica until it is time to take over. By then it has the lease, if
// one is configured. The caller must call report with the result of the takeover. report is
// nil if ctx ends first.
func (b *Standby) follow(ctx context.Context) (report func(promotionResult), err error) {
	admin, err := control.Listen(ctx, b.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var requests []*promotion
	g, waiting := errgroup.WithContext(ctx)
	waiting, stopWaiting := context.WithCancel(waiting)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	commands := &control.Standby{Promote: b.requestPromotion, Examine: b.examine, Logger: b.cfg.Logger}
	server := &http.Server{Handler: commands.Handler()}
	served := make(chan error, 1)
	go func() { served <- Serve(serving, server, admin, 10*time.Second) }()
	g.Go(func() error { return b.follower.Follow(waiting) })
	g.Go(func() error {
		defer stopWaiting()
		requests = b.awaitTakeover(waiting)
		return nil
	})
	g.Go(func() error { return notifyReady(waiting, "Following "+b.cfg.Replica.Target(), b.cfg.Logger) })
	err = g.Wait()
	if err != nil || ctx.Err() != nil {
		stopServing()
		return nil, errors.Join(err, <-served)
	}
	// A promotion that is requested during the takeover gets the same result.
	var result promotionResult // set before decided is closed
	decided, closed := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			select {
			case late := <-b.promotions:
				<-decided
				late.done <- result
			case <-closed:
				return
			}
		}
	}()
	return func(r promotionResult) {
		result = r
		close(decided)
		for _, p := range requests {
			p.done <- r
		}
		stopServing()
		err := <-served
		close(closed)
		if err != nil {
			b.cfg.Logger.Warn("failed to serve the admin socket of the standby", "error", err)
		}
	}, nil
}

// takeOver makes the copy the database, reports the result, and opens the server. It renews
// the lease meantime.
func (b *Standby) takeOver(ctx context.Context, report func(promotionResult)) (s *Server, err error) {
	logger := b.cfg.Logger
	if b.lease != nil {
		renewing, stopRenewing := context.WithCancel(ctx)
		renewed := make(chan error, 1)
		go func() { renewed <- b.lease.KeepAlive(renewing) }()
		defer func() {
			stopRenewing()
			if lost := <-renewed; lost != nil && err == nil {
				s.Close()
				s, err = nil, lost
			}
		}()
	}
	began := time.Now()
	y, aside, err := b.follower.Promote(ctx)
	report(promotionResult{y.State, err})
	if err != nil {
		return nil, errors.Join(err, b.follower.Close())
	}
	// Only the old primary's disk has the changes that it accepted after this state.
	logger.Warn("standby is now the primary", "state", webhook.FormatTime(y.State), "seconds_ago", int(time.Since(y.State).Seconds()),
		"bytes", y.Bytes, "took", time.Since(began).Round(time.Millisecond), "replaced", aside)
	return b.openPromoted(ctx)
}

// lockWait limits how long a takeover waits for a command that has locked the data
// directory.
const lockWait = 30 * time.Second

// openPromoted opens the server. The promotion unlocks the data directory, so a command such
// as token list may lock it briefly.
func (b *Standby) openPromoted(ctx context.Context) (*Server, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(lockWait); ; {
		s, err := open(ctx, b.cfg, b.lease)
		if !errors.Is(err, store.ErrLocked) || time.Now().After(deadline) {
			return s, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// StandbyCheck is the name of the check that only a standby reports.
const StandbyCheck = "standby"

// examine returns a finding about the standby's copy of the database.
func (b *Standby) examine() []store.Finding {
	from := b.cfg.Replica.Target()
	f := store.Finding{Check: StandbyCheck, Level: store.LevelOK}
	switch y := b.follower.State(); {
	case y.Err != "":
		f.Level, f.Advice = store.LevelFail, "Check the replica. A takeover now would start with the data that the "+
			"standby has; if objects are damaged, it does not take over."
		f.Detail = fmt.Sprintf("running, but failed to follow the replica %s: %s", from, y.Err)
	case !y.Following:
		f.Level, f.Advice = store.LevelWarn, "Wait until the copy is complete."
		f.Detail = "running, copying the replica " + from
	default:
		f.Detail = fmt.Sprintf("running, following the replica %s; newest change copied at %s", from, webhook.FormatTime(y.Added))
	}
	return []store.Finding{f}
}

// notifyReady notifies systemd that the process has started, and feeds its watchdog until
// ctx ends.
func notifyReady(ctx context.Context, status string, logger *slog.Logger) error {
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady+"\nSTATUS="+terminal.Line(status)); err != nil {
		logger.Warn("failed to notify systemd", "error", err)
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval <= 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
				logger.Warn("failed to notify systemd", "error", err)
			}
		}
	}
}
