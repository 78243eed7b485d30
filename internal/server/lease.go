package server

import (
	"context"
	"errors"
	"fmt"
	"time"

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
		return fmt.Errorf("%w, on the replica %s; stop that service, follow it by starting this one with --lease, "+
			"or configure a separate replica", err, target)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		cfg.Logger.Warn("failed to read the lease in the bucket", "error", err)
	}
	return nil
}

// takeLease fences the store with the acquired lease, if there is one.
func (s *Server) takeLease(ctx context.Context) error {
	if s.lease == nil {
		return nil
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
