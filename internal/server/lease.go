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

// MinLease is the shortest lease. It leaves time for several renewals.
const MinLease = 5 * time.Second

// leaseReserve is how long before the expiry of its lease a service stops. It covers
// aborting attempts, and clocks that run at different rates.
const leaseReserve = time.Second

// errLeaseLost is the cause of a cancelled server context when another service has taken
// the lease.
var errLeaseLost = errors.New("the lease is lost")

// newLease returns the configured lease, nil for none.
func (cfg *Config) newLease(ctx context.Context) (*replica.Lease, error) {
	if cfg.Lease == 0 {
		return nil, nil
	}
	return replica.NewLease(ctx, replica.LeaseConfig{
		Replica: cfg.Replica, Dir: cfg.Dir, TTL: cfg.Lease, Reserve: leaseReserve, Logger: cfg.Logger,
	})
}

// checkUnleased returns an error if the service is configured without a lease but another
// service holds the lease of the replica. If the bucket is unreachable it returns nil: the
// replication checks again before it writes.
func (cfg *Config) checkUnleased(ctx context.Context) error {
	if cfg.Replica == nil || !cfg.Replica.IsS3() || cfg.Lease != 0 {
		return nil
	}
	err := whileStarting(ctx, cfg.Logger, func() error { return replica.AwaitUnleased(ctx, cfg.Replica, cfg.Logger) })
	target := cfg.Replica.Target()
	switch {
	case errors.Is(err, replica.ErrLeaseUnrenewed):
		return fmt.Errorf("%w, on the replica %s; if it is permanently gone, start this one with --lease to take over the lease; "+
			"otherwise configure a separate replica", err, target)
	case errors.Is(err, replica.ErrLeaseHeld):
		return fmt.Errorf("%w, on the replica %s; stop that service, follow it with service standby, "+
			"or configure a separate replica", err, target)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		cfg.Logger.Warn("failed to read the lease in the bucket", "error", err)
	}
	return nil
}

// acquireLease acquires the configured lease. known is the generation of the lease under
// which the local data was last written.
func (s *Server) acquireLease(ctx context.Context, known int64) error {
	l, err := s.cfg.newLease(ctx)
	if err != nil {
		return err
	}
	err = whileStarting(ctx, s.cfg.Logger, func() error { return l.Acquire(ctx, known) })
	switch {
	case errors.Is(err, replica.ErrLeaseHeld):
		return fmt.Errorf("%w; only one service may run: stop it, or follow it with service standby", err)
	case errors.Is(err, replica.ErrLeaseStale):
		return fmt.Errorf("%w: the data in %s is out of date; follow the replica with service standby --force, "+
			"or fetch it with service restore --force", err, s.cfg.Dir)
	case err == nil:
		s.lease = l
	}
	return err
}

// leaseForRestore returns the function that the store calls before it restores a missing
// database. That acquires the configured lease unless lease is not nil, because a primary
// must not run while its state is restored elsewhere. The lease is renewed until restored is
// called, which returns an error if the lease was lost.
func (s *Server) leaseForRestore(lease *replica.Lease) (before func(context.Context) error, restored func() error) {
	if lease != nil || s.cfg.Lease == 0 {
		return nil, func() error { return nil }
	}
	var renewal errgroup.Group
	stop := func() {}
	before = func(ctx context.Context) error {
		if err := s.acquireLease(ctx, math.MaxInt64); err != nil {
			return err
		}
		ctx, stop = context.WithCancel(ctx)
		renewal.Go(func() error { return s.lease.KeepAlive(ctx) })
		return nil
	}
	return before, func() error {
		stop()
		return renewal.Wait()
	}
}

// takeLease acquires the configured lease, if any and if it is not acquired yet, and fences
// the store with it.
func (s *Server) takeLease(ctx context.Context) error {
	if s.cfg.Lease == 0 {
		return nil
	}
	if s.lease == nil {
		known, err := s.store.Replica().Generation(ctx)
		if err != nil {
			return err
		}
		if err := s.acquireLease(ctx, known); err != nil {
			return err
		}
	}
	written, err := s.store.Replica().WrittenGeneration(ctx)
	if err != nil {
		return err
	}
	s.lease.Raise(written)
	return s.store.Replica().Fence(s.lease.Generation(), store.Lease{Valid: s.lease.Valid, Context: s.lease.Held})
}

// releaseLease releases the lease, if there is one, so that a standby can take over at once.
func (s *Server) releaseLease() error {
	if s.lease == nil {
		return nil
	}
	return s.lease.Release(context.Background())
}
