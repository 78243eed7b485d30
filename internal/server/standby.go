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

// Standby follows the replica of a primary until it takes over: when it is promoted
// by a command, or the primary's lease has ended.
type Standby struct {
	cfg     *Config
	copied  *store.Standby
	lease   *replica.Lease // nil: only a command promotes it
	promote chan *promotion
}

// OpenStandby prepares the data directory of a standby. Without force a directory
// that has a database is an error that wraps [store.ErrNotEmpty]. What it returns
// must be run.
func OpenStandby(ctx context.Context, cfg *Config, force bool) (*Standby, error) {
	if _, err := LoadCatalog(cfg.Dir); err != nil {
		return nil, err
	}
	keys, err := store.ReadKeys(cfg.Dir, cfg.SecretKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: a standby needs the primary's secret.key, which the replica does not hold: put a copy into %s", err, cfg.Dir)
	} else if err != nil {
		return nil, err
	}
	b := &Standby{cfg: cfg, promote: make(chan *promotion)}
	if b.copied, err = store.OpenStandby(cfg.Dir, cfg.Replica, keys, force, cfg.Logger); err != nil {
		return nil, err
	}
	if b.lease, err = cfg.newLease(ctx); err != nil {
		return nil, errors.Join(err, b.copied.Close())
	}
	return b, nil
}

// Run follows the replica until it is time to take over, and returns the service
// that has taken over, which must be run. It returns nil if ctx ends first.
func (b *Standby) Run(ctx context.Context) (*Server, error) {
	tell, err := b.wait(ctx)
	if err != nil || tell == nil {
		return nil, errors.Join(err, b.copied.Close())
	}
	// Promoting a large copy takes time: systemd must not end the process until then.
	taking, taken := context.WithCancel(ctx)
	alive := make(chan error, 1)
	go func() { alive <- notifyReady(taking, "Taking over", b.cfg.Logger) }()
	s, err := b.takeOver(ctx, tell)
	taken()
	if err := errors.Join(err, <-alive); err != nil {
		return nil, err
	}
	return s, nil
}

// wait follows the replica until it is time to take over, with the lease if
// there is one, and returns how to report the result; nil when ctx ends.
func (b *Standby) wait(ctx context.Context) (tell func(promoted), err error) {
	admin, err := control.Listen(ctx, b.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var asked []*promotion
	g, waiting := errgroup.WithContext(ctx)
	waiting, done := context.WithCancel(waiting)
	answered, over := context.WithCancel(context.WithoutCancel(ctx))
	commands := &control.Standby{Promote: b.promotion, Examine: b.examine, Logger: b.cfg.Logger}
	server := &http.Server{Handler: commands.Handler()}
	served := make(chan error, 1)
	go func() { served <- Serve(answered, server, admin, 10*time.Second) }()
	g.Go(func() error { return b.copied.Follow(waiting) })
	g.Go(func() error {
		defer done()
		asked = b.awaitTakeover(waiting)
		return nil
	})
	g.Go(func() error { return notifyReady(waiting, "Following "+b.cfg.Replica.Target(), b.cfg.Logger) })
	err = g.Wait()
	if err != nil || ctx.Err() != nil {
		over()
		return nil, errors.Join(err, <-served)
	}
	// A command that asks for the takeover while it is under way gets its result.
	var result promoted // set before decided is closed
	decided, ended := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			select {
			case late := <-b.promote:
				<-decided
				late.done <- result
			case <-ended:
				return
			}
		}
	}()
	return func(r promoted) {
		result = r
		close(decided)
		for _, p := range asked {
			p.done <- r
		}
		over()
		err := <-served
		close(ended)
		if err != nil {
			b.cfg.Logger.Warn("the admin socket of the standby", "error", err)
		}
	}, nil
}

// takeOver makes the copy the database, tells what came of that, and opens it,
// with the lease kept.
func (b *Standby) takeOver(ctx context.Context, tell func(promoted)) (s *Server, err error) {
	logger := b.cfg.Logger
	if b.lease != nil {
		keeping, kept := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- b.lease.KeepAlive(keeping) }()
		defer func() {
			kept()
			if lost := <-ended; lost != nil && err == nil {
				s.Close()
				s, err = nil, lost
			}
		}()
	}
	began := time.Now()
	y, aside, err := b.copied.Promote(ctx)
	tell(promoted{y.State, err})
	if err != nil {
		return nil, errors.Join(err, b.copied.Close())
	}
	// What the primary accepted after this is lost, but for what it holds itself.
	logger.Warn("the standby is the primary now", "state", webhook.FormatTime(y.State), "seconds_ago", int(time.Since(y.State).Seconds()),
		"bytes", y.Bytes, "took", time.Since(began).Round(time.Millisecond), "replaced", aside)
	return b.openPromoted(ctx)
}

// lockWait is how long a takeover waits for a command that has the data
// directory open.
const lockWait = 30 * time.Second

// openPromoted opens the service. The directory was unlocked with the promotion,
// so a command such as token list may have it for a moment.
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

// StandbyCheck is the check of a standby's own finding.
const StandbyCheck = "standby"

// examine returns a finding about the copy.
func (b *Standby) examine() []store.Finding {
	from := b.cfg.Replica.Target()
	f := store.Finding{Check: StandbyCheck, Level: store.LevelOK}
	switch y := b.copied.State(); {
	case y.Err != "":
		f.Level, f.Advice = store.LevelFail, "See to the replica: a standby that takes over now begins with what it has."
		f.Detail = fmt.Sprintf("one runs, and cannot follow %s: %s", from, y.Err)
	case !y.Following:
		f.Level, f.Advice = store.LevelWarn, "Wait until it has the whole copy."
		f.Detail = "one runs, and has just begun to follow " + from
	default:
		f.Detail = fmt.Sprintf("one runs, and follows %s; the last change was added at %s", from, webhook.FormatTime(y.Added))
	}
	return []store.Finding{f}
}

// notifyReady tells systemd that the process has started and is alive, until ctx
// ends.
func notifyReady(ctx context.Context, status string, logger *slog.Logger) error {
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady+"\nSTATUS="+terminal.Line(status)); err != nil {
		logger.Warn("systemd cannot be told", "error", err)
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
				logger.Warn("systemd cannot be told", "error", err)
			}
		}
	}
}
