package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"service/store"
	"service/store/replica"
)

// MinLease is the shortest lease. It can be renewed several times before it ends.
const MinLease = 5 * time.Second

// leaseReserve is how long before a lease ends its holder stops: time for attempts
// to be cut off, by clocks that do not run at quite the same rate.
const leaseReserve = time.Second

// errLeaseLost is the cause of the end of a server's context when another service
// holds the lease.
var errLeaseLost = errors.New("the lease is lost")

// newLease returns the lease of the settings, nil when none is wanted.
func (cfg *Config) newLease(ctx context.Context) (*replica.Lease, error) {
	if cfg.Lease == 0 {
		return nil, nil
	}
	return replica.NewLease(ctx, replica.LeaseConfig{Replica: cfg.Replica, Dir: cfg.Dir, TTL: cfg.Lease, Reserve: leaseReserve, Logger: cfg.Logger})
}

// checkUnleased refuses to serve without a lease on a replica of which another
// service holds the lease. When the bucket cannot be reached that is not known:
// the replication checks it again before it writes.
func (cfg *Config) checkUnleased(ctx context.Context) error {
	if cfg.Replica == nil || !cfg.Replica.IsS3() || cfg.Lease != 0 {
		return nil
	}
	err := whileStarting(ctx, cfg.Logger, func() error { return replica.AwaitUnleased(ctx, cfg.Replica, cfg.Logger) })
	target := cfg.Replica.Target()
	switch {
	case errors.Is(err, replica.ErrLeaseUnrenewed):
		return fmt.Errorf("%w, on the replica %s; if it is gone for good, start this one with --lease, which takes the lease over; otherwise configure a replica of its own", err, target)
	case errors.Is(err, replica.ErrLeaseHeld):
		return fmt.Errorf("%w, on the replica %s; stop that service, follow it with service standby, or configure a replica of its own", err, target)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		cfg.Logger.Warn("the bucket's lease cannot be read", "error", err)
	}
	return nil
}

// acquireLease acquires the lease of the settings for data that was last written
// under the generation known.
func (s *Server) acquireLease(ctx context.Context, known int64) error {
	l, err := s.cfg.newLease(ctx)
	if err != nil {
		return err
	}
	err = whileStarting(ctx, s.cfg.Logger, func() error { return l.Acquire(ctx, known) })
	switch {
	case errors.Is(err, replica.ErrLeaseHeld):
		return fmt.Errorf("%w; it serves, so this one may not; service standby follows it", err)
	case errors.Is(err, replica.ErrLeaseStale):
		return fmt.Errorf("%w: what is in %s is old; service standby --force follows the replica instead, service restore --force fetches it", err, s.cfg.Dir)
	case err == nil:
		s.lease = l
	}
	return err
}

// leaseForRestore returns what the store calls before it restores a missing
// database. It acquires the lease, if there is to be one and it is not held: a
// primary that is alive must not go on while its state is being restored. The lease is renewed until the
// second function is called, which returns an error if it was lost.
func (s *Server) leaseForRestore(held *replica.Lease) (before func(context.Context) error, restored func() error) {
	if held != nil || s.cfg.Lease == 0 {
		return nil, func() error { return nil }
	}
	var keeping errgroup.Group
	stop := func() {}
	before = func(ctx context.Context) error {
		if err := s.acquireLease(ctx, math.MaxInt64); err != nil {
			return err
		}
		ctx, stop = context.WithCancel(ctx)
		keeping.Go(func() error { return s.lease.KeepAlive(ctx) })
		return nil
	}
	return before, func() error {
		stop()
		return keeping.Wait()
	}
}

// takeLease makes the store depend on the lease of the settings, if there is to
// be one, which it takes unless it is held already.
func (s *Server) takeLease(ctx context.Context) error {
	if s.cfg.Lease == 0 {
		return nil
	}
	if s.lease == nil {
		known, err := s.store.LeaseGeneration(ctx)
		if err != nil {
			return err
		}
		if err := s.acquireLease(ctx, known); err != nil {
			return err
		}
	}
	return s.store.Fence(s.lease.Generation(), store.Lease{Valid: s.lease.Valid, Context: s.lease.Held})
}

// releaseLease ends the lease, if there is one, so that a standby takes over at
// once.
func (s *Server) releaseLease() error {
	if s.lease == nil {
		return nil
	}
	return s.lease.Release(context.Background())
}
