package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"service/store/replica"
)

// MinLease returns the shortest lease that can be kept with this attempt timeout.
func MinLease(attemptTimeout time.Duration) time.Duration {
	return leaseReserve(attemptTimeout) + leaseRoom
}

// leaseRoom is how much longer a lease must be than what is kept in reserve at
// its end: time to renew it in, several times.
const leaseRoom = 3 * time.Second

// leaseReserve is how long before the end of a lease nothing new is begun: an
// attempt that is under way then ends before it does.
func leaseReserve(attemptTimeout time.Duration) time.Duration {
	return attemptTimeout + 2*time.Second
}

// newLease returns the lease of the settings, nil when none is wanted.
func (cfg *Config) newLease(ctx context.Context) (*replica.Lease, error) {
	if cfg.Lease == 0 {
		return nil, nil
	}
	return replica.NewLease(ctx, replica.LeaseConfig{Replica: cfg.Replica, Dir: cfg.Dir, TTL: cfg.Lease, Reserve: leaseReserve(cfg.AttemptTimeout), Logger: cfg.Logger})
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

// takeLease makes the store depend on the lease of the settings, if there is to
// be one, which it takes unless it is held already.
func (s *Server) takeLease(ctx context.Context, held *replica.Lease) (err error) {
	s.lease = held
	if held == nil {
		if s.lease, err = s.cfg.newLease(ctx); err != nil || s.lease == nil {
			return err
		}
		known, err := s.store.LeaseGeneration(ctx)
		if err != nil {
			return err
		}
		err = whileStarting(ctx, s.cfg.Logger, func() error { return s.lease.Acquire(ctx, known) })
		switch {
		case errors.Is(err, replica.ErrLeaseHeld):
			return fmt.Errorf("%w; it serves, so this one may not; service standby follows it", err)
		case errors.Is(err, replica.ErrLeaseStale):
			return fmt.Errorf("%w: what is in %s is old; service standby --force follows the replica instead, service restore --force fetches it", err, s.cfg.Dir)
		case err != nil:
			return err
		}
	}
	return s.store.Fence(s.lease)
}

// releaseLease ends the lease, if there is one, so that a standby takes over at
// once.
func (s *Server) releaseLease() error {
	if s.lease == nil {
		return nil
	}
	return s.lease.Release(context.Background())
}
