package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"time"

	"github.com/alecthomas/kong"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/store/replica"
	"service/webhook"
)

// leaseRoom is how much longer a lease must be than what is kept in reserve at
// its end: time to renew it in, several times.
const leaseRoom = 3 * time.Second

// leaseReserve is how long before the end of a lease nothing new is begun: an
// attempt that is under way then ends before it does, by any clock.
func leaseReserve(attemptTimeout time.Duration) time.Duration {
	return attemptTimeout + replica.MaxClockSkew
}

// lease reads how long a lease is good for; 0 is none.
func (f *faults) lease(flag, value string, attemptTimeout time.Duration, cfg *replica.Config) time.Duration {
	d := f.duration(flag, value, 0, 24*time.Hour)
	least := leaseReserve(attemptTimeout) + leaseRoom
	switch {
	case d == 0:
	case d < least:
		f.add(flag, "must be at least %s with this --attempt-timeout, not %q: an attempt that is under way must have ended before the lease does", formatDuration(least), value)
	case cfg == nil || !cfg.IsS3():
		f.add(flag, "is kept in the bucket of the replica, and so needs --litestream with a replica of the type s3")
	}
	return d
}

// newLease returns the lease of the settings, nil when none is wanted.
func (s *settings) newLease(ctx context.Context) (*replica.Lease, error) {
	if s.lease == 0 {
		return nil, nil
	}
	return replica.NewLease(ctx, replica.LeaseConfig{Replica: s.replica, Dir: s.data, TTL: s.lease, Reserve: leaseReserve(s.attemptTimeout), Logger: s.logger})
}

// takeLease makes the store depend on the lease of the settings, if there is to
// be one, which it takes unless it is held already.
func (svc *service) takeLease(ctx context.Context, held *replica.Lease) (err error) {
	svc.lease = held
	if held == nil {
		if svc.lease, err = svc.settings.newLease(ctx); err != nil || svc.lease == nil {
			return err
		}
		known, err := svc.store.LeaseGeneration(ctx)
		if err != nil {
			return err
		}
		err = svc.lease.Acquire(ctx, known)
		switch {
		case errors.Is(err, replica.ErrLeaseHeld):
			return fmt.Errorf("%w; it serves, and this one may not: service standby follows it", err)
		case errors.Is(err, replica.ErrLeaseStale):
			return fmt.Errorf("%w: what is in %s is old; service standby --force follows the replica instead, service restore --force fetches it", err, svc.settings.data)
		case err != nil:
			return err
		}
	}
	return svc.store.Fence(svc.lease)
}

// releaseLease ends the lease, if there is one, so that a standby takes over at
// once.
func (svc *service) releaseLease() error {
	if svc.lease == nil {
		return nil
	}
	return svc.lease.Release(context.Background())
}

type standbyCmd struct {
	serveFlags
	Force bool `help:"Also where there is a database already: it is put aside when the standby takes over."`
}

// Run follows the replica of a primary, and is its successor once it is told to
// be or the primary's lease has ended.
func (c *standbyCmd) Run(ctx context.Context, std streams, conf *configuration, line *kong.Context) error {
	s, err := c.settings(std.err)
	if err != nil {
		return err
	}
	if s.replica == nil {
		f := faults{{"litestream", "is required: the configuration of the replica that the primary keeps"}}
		return f.err()
	}
	s.begin(conf.shown(line))
	if _, err := loadCatalog(s.data); err != nil {
		return err
	}
	keys, err := store.ReadKeys(s.data, s.key.SecretKeyFile)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: a standby needs the primary's secret.key, which the replica does not hold: put a copy into %s", err, s.data)
	} else if err != nil {
		return err
	}
	copied, err := store.OpenStandby(s.data, s.replica, keys, c.Force, s.logger)
	switch {
	case errors.Is(err, store.ErrNotEmpty):
		return fmt.Errorf("%w; --force puts that aside when the standby takes over", err)
	case err != nil:
		return err
	}
	b := &standby{settings: s, copied: copied, promote: make(chan chan error)}
	if b.lease, err = s.newLease(ctx); err != nil {
		return errors.Join(err, copied.Close())
	}
	fmt.Fprintf(std.out, "Standby   follows %s\n", terminal.Escape(s.replica.Target()))
	if b.lease == nil {
		fmt.Fprintf(std.out, "          and takes over when it is told to: %s promote --data %s\n", s.program, shellQuote(s.data))
	} else {
		fmt.Fprintf(std.out, "          and takes over when the primary's lease has ended, or is told to: %s promote --data %s\n", s.program, shellQuote(s.data))
	}
	told, err := b.wait(ctx)
	if err != nil || told == nil {
		return errors.Join(err, copied.Close())
	}
	// A large copy takes its time, and systemd is not to end this meanwhile.
	taking, taken := context.WithCancel(ctx)
	alive := make(chan error, 1)
	go func() { alive <- stayReady(taking, "Taking over", s.logger) }()
	svc, err := b.takeOver(ctx, told)
	taken()
	if err := errors.Join(err, <-alive); err != nil {
		return err
	}
	return svc.announceAndRun(ctx, std)
}

// standby waits to be promoted.
type standby struct {
	settings *settings
	copied   *store.Standby
	lease    *replica.Lease // nil: it is promoted by a command alone
	promote  chan chan error
}

// wait follows the replica until it is time to take over, with the lease if
// there is one, and returns whom to tell what came of it; nil when ctx ends.
func (b *standby) wait(ctx context.Context) (told func(error), err error) {
	admin, err := control.Listen(ctx, b.settings.data)
	if err != nil {
		return nil, err
	}
	var asked chan error
	g, waiting := errgroup.WithContext(ctx)
	waiting, done := context.WithCancel(waiting)
	answered, over := context.WithCancel(context.WithoutCancel(ctx))
	commands := &control.Standby{Promote: b.promotion, Examine: b.examine, Logger: b.settings.logger}
	server := &http.Server{Handler: commands.Handler()}
	served := make(chan error, 1)
	go func() { served <- serveHTTP(answered, server, admin, 10*time.Second) }()
	g.Go(func() error { return b.copied.Follow(waiting) })
	g.Go(func() (err error) {
		defer done()
		asked, err = b.time(waiting)
		return err
	})
	g.Go(func() error { return stayReady(waiting, "Following "+b.settings.replica.Target(), b.settings.logger) })
	err = g.Wait()
	if err != nil || ctx.Err() != nil {
		over()
		return nil, errors.Join(err, <-served)
	}
	return func(err error) {
		if asked != nil {
			asked <- err
		}
		over()
		if err := <-served; err != nil {
			b.settings.logger.Warn("the admin socket of the standby", "error", err)
		}
	}, nil
}

// time returns when it is time to take over, with the lease; and who asked for
// it, nil for nobody.
func (b *standby) time(ctx context.Context) (chan error, error) {
	var look <-chan time.Time
	if b.lease != nil {
		tick := time.NewTicker(min(b.settings.lease/10, time.Second))
		defer tick.Stop()
		look = tick.C
	}
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case asked := <-b.promote:
			if b.lease == nil {
				return asked, nil
			}
			err := b.lease.Acquire(ctx, math.MaxInt64)
			if err == nil {
				return asked, nil
			}
			asked <- err
		case <-look:
			y, err := b.lease.State(ctx)
			if ctx.Err() != nil {
				return nil, nil
			}
			if bad := err != nil; bad != failing {
				failing = bad
				if bad {
					b.settings.logger.Error("the primary's lease cannot be read", "error", err)
				} else {
					b.settings.logger.Info("the primary's lease is read again")
				}
			}
			if err != nil || y.Generation == 0 || time.Now().Before(y.Expires.Add(replica.MaxClockSkew)) {
				continue
			}
			if err := b.lease.Acquire(ctx, math.MaxInt64); err == nil {
				b.settings.logger.Warn("the primary's lease has ended: this standby takes over", "primary", y.Owner, "ended", webhook.FormatTime(y.Expires))
				return nil, nil
			} else if !errors.Is(err, replica.ErrLeaseHeld) {
				b.settings.logger.Error("the lease cannot be taken", "error", err)
			}
		}
	}
}

// takeOver makes the copy the database, tells what came of that, and opens it,
// with the lease kept.
func (b *standby) takeOver(ctx context.Context, told func(error)) (svc *service, err error) {
	logger := b.settings.logger
	if b.lease != nil {
		keeping, kept := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- b.lease.KeepAlive(keeping) }()
		defer func() {
			kept()
			if lost := <-ended; lost != nil && err == nil {
				svc.close()
				svc, err = nil, lost
			}
		}()
	}
	began := time.Now()
	y, aside, err := b.copied.Promote(ctx)
	told(err)
	if err != nil {
		return nil, errors.Join(err, b.copied.Close())
	}
	// What the primary accepted after this is lost, but for what it holds itself.
	logger.Warn("the standby is the primary now", "state", webhook.FormatTime(y.State), "seconds_ago", int(time.Since(y.State).Seconds()),
		"bytes", y.Bytes, "took", time.Since(began).Round(time.Millisecond), "replaced", aside)
	return open(ctx, b.settings, b.lease)
}

// promotion asks that the standby takes over, and waits for what came of it.
func (b *standby) promotion(ctx context.Context) error {
	asked := make(chan error, 1)
	select {
	case b.promote <- asked:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-asked:
		if errors.Is(err, replica.ErrLeaseHeld) {
			err = webhook.NewError(webhook.CodeConflict, terminal.Line(err.Error())+": stop it first, or wait until its lease has ended.")
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// standbyCheck is what a standby's own finding is about, by which the doctor
// knows that it has no doors yet.
const standbyCheck = "standby"

// examine says how the copy does.
func (b *standby) examine() []store.Finding {
	var d diagnosis
	from := b.settings.replica.Target()
	switch y := b.copied.State(); {
	case y.Err != "":
		d.add(store.LevelFail, standbyCheck, "See to the replica: a standby that takes over now begins with what it has.", "one runs, and cannot follow %s: %s", from, y.Err)
	case !y.Following:
		d.add(store.LevelWarn, standbyCheck, "Wait until it has the whole copy.", "one runs, and has just begun to follow %s", from)
	default:
		d.ok(standbyCheck, "one runs, and follows %s; the last change was added at %s", from, webhook.FormatTime(y.Added))
	}
	return d
}

// stayReady tells systemd that the process has started and is alive, until ctx
// ends.
func stayReady(ctx context.Context, status string, logger *slog.Logger) error {
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

type promoteCmd struct{ dataFlag }

func (c *promoteCmd) Run(ctx context.Context, std streams) error {
	server, err := control.Dial(ctx, c.Data)
	if errors.Is(err, control.ErrNoServer) {
		return errors.New("no standby runs on " + c.Data)
	} else if err != nil {
		return err
	}
	defer server.Close()
	if err := server.Promote(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, "The standby is the primary now.")
	return err
}
