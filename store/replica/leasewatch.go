package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// watchMargin is how much longer than the period a starting service watches a lease. A
// standby, which has at least as new data, takes over first.
const watchMargin = 2 * time.Second

// LeaseWatch watches the lease of another service. It does not compare the clocks of two
// machines: a lease has ended when this machine has seen it unchanged for a whole TTL
// (the holder's or its own, whichever is longer), with the bucket readable all the time.
// After an outage of the bucket, the holder therefore has a whole TTL to renew it.
type LeaseWatch struct {
	lease  *Lease
	margin time.Duration // how much longer than the TTL the lease is watched
	polled bool          // Poll has succeeded since the watch began
	etag   string        // last seen ETag; "" if there is no object
	period time.Duration // last seen TTL of a holder; 0 for none
	since  time.Duration // uptime when etag was first seen
	asked  time.Duration // uptime before the last successful poll
}

// NewWatch returns a watch of l, which this process must not hold.
func (l *Lease) NewWatch() *LeaseWatch { return &LeaseWatch{lease: l} }

// Poll reads the lease and reports whether it has ended: it was released or not renewed. A
// lease whose object is missing has ended after a period and a margin, in which a live holder
// would have recreated it; the caller must check that it has the newest data. One goroutine must call Poll every
// [LeaseWatch.Interval].
func (w *LeaseWatch) Poll(ctx context.Context) (state LeaseState, ended bool, err error) {
	asked := uptime()
	if state, err = w.lease.State(ctx); err != nil {
		return state, false, err
	}
	return state, w.observe(state, asked, uptime()), nil
}

// Period returns how long a lease must be seen unchanged to count as ended.
func (w *LeaseWatch) Period(state LeaseState) time.Duration {
	period := cmp.Or(max(w.lease.cfg.TTL, state.period, w.period), defaultPeriod) + w.margin
	if state.Generation == 0 {
		period += watchMargin
	}
	return period
}

// Seen reports whether the watch has seen a lease, which may have been deleted since.
func (w *LeaseWatch) Seen() bool { return w.period > 0 }

// Remaining returns how much of the period remains after the last poll.
func (w *LeaseWatch) Remaining(state LeaseState) time.Duration {
	return max(w.Period(state)-(w.asked-w.since), 0)
}

// Interval returns the time between two polls.
func (w *LeaseWatch) Interval(state LeaseState) time.Duration {
	return min(w.Period(state)/10, time.Second)
}

// observe evaluates a state. asked and answered are the uptimes of the request and the
// response.
func (w *LeaseWatch) observe(state LeaseState, asked, answered time.Duration) bool {
	w.period = max(w.period, state.period)
	period := w.Period(state)
	if !w.polled || state.etag != w.etag || answered-w.asked > period/3 {
		w.etag, w.since = state.etag, answered
	}
	w.asked, w.polled = asked, true
	return state.Released || asked-w.since >= period
}

// TakeOver is [Lease.TakeOver] for a lease that has ended according to Poll. If it fails, the
// watch begins again: the holder may have been unable to renew the lease for the same
// reason, such as a bucket that refuses writes, and then gets a whole period to renew it.
func (w *LeaseWatch) TakeOver(ctx context.Context, ended LeaseState) error {
	err := w.lease.TakeOver(ctx, ended)
	if err != nil {
		w.polled = false
	}
	return err
}

// Await watches a lease, which was found in the given state, until it has ended, and
// returns its last state. As soon as the lease is renewed, Await returns an error that
// wraps [ErrLeaseHeld] and names the holder.
func (w *LeaseWatch) Await(ctx context.Context, found LeaseState) (LeaseState, error) {
	logger := w.lease.cfg.Logger
	if found.Generation == 0 {
		logger.Warn("the lease is missing from the bucket; waiting to see whether another service holds it", "key", w.lease.bucket.key,
			"period", w.Period(found))
	} else {
		logger.Warn("another service holds the lease; waiting to see whether it renews the lease",
			"owner", found.Owner, "generation", found.Generation, "period", w.Period(found))
	}
	tick := time.NewTicker(w.Interval(found))
	defer tick.Stop()
	failing := false
	for {
		state, ended, err := w.Poll(ctx)
		if ctx.Err() != nil {
			return state, ctx.Err()
		}
		if bad := err != nil; bad != failing {
			failing = bad
			if bad {
				logger.Error("failed to read the lease, will retry", "error", err)
			} else {
				logger.Info("lease is readable again")
			}
		}
		switch {
		case err != nil:
		case ended:
			return state, nil
		case state.Generation > 0 && state.etag != found.etag:
			return state, state.heldError(ErrLeaseHeld)
		}
		select {
		case <-ctx.Done():
			return state, ctx.Err()
		case <-tick.C:
		}
	}
}

// CheckUnleased checks whether a service without a lease may write to a replica. The error
// wraps [ErrLeaseHeld] if there is a lease in the bucket that was not released. After any
// other error this is unknown. A replica in a directory has no lease.
func CheckUnleased(ctx context.Context, cfg *Config) error {
	_, found, err := findLease(ctx, cfg, nil)
	if err == nil && found.held() {
		err = found.heldError(ErrLeaseHeld)
	}
	return err
}

// AwaitUnleased is like [CheckUnleased], for a service that starts. It watches a lease that
// was not released for a whole period, to find out whether its holder is alive. If the
// holder does not renew the lease, the error wraps [ErrLeaseUnrenewed].
//
// It then watches the service without a lease that wrote the newest term, unless that service
// has shut down cleanly, or has the data directory dir. If that service is alive, the error
// wraps [ErrWriting]. After any other error this is unknown.
func AwaitUnleased(ctx context.Context, cfg *Config, dir string, logger *slog.Logger) error {
	w, found, err := findLease(ctx, cfg, logger)
	if err != nil || !found.held() {
		if errors.Is(err, ErrLeaseDamaged) {
			logger.Warn("failed to read the lease in the bucket", "error", err)
			err = nil
		}
		return awaitWriter(ctx, cfg, dir, logger, err)
	}
	state, err := w.Await(ctx, found)
	if err != nil || !state.held() {
		return err
	}
	return fmt.Errorf("%w, for %s", state.heldError(ErrLeaseUnrenewed), w.Period(state))
}

// findLease reads the lease in the bucket of cfg and returns a watch of it.
func findLease(ctx context.Context, cfg *Config, logger *slog.Logger) (w *LeaseWatch, found LeaseState, err error) {
	if !cfg.IsS3() {
		return nil, found, nil
	}
	l, err := NewLease(ctx, LeaseConfig{Replica: cfg, Logger: logger})
	if err != nil {
		return nil, found, err
	}
	found, err = l.State(ctx)
	return &LeaseWatch{lease: l, margin: l.margin}, found, err
}
