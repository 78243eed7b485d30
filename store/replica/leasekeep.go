package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Acquire acquires the lease. It takes it over at once from a process of this
// data directory that has ended. It watches the lease of any other service for a
// whole period, and takes it over if that service does not renew it. known is the
// generation that the data was last written under: 0 for none, [math.MaxInt64]
// for data that is known to be the newest. The error wraps [ErrLeaseHeld] when
// another service renews the lease, and [ErrLeaseStale] when the data is older
// than that of the last holder.
func (l *Lease) Acquire(ctx context.Context, known int64) error {
	found, err := l.State(ctx)
	if err != nil {
		return err
	}
	last, err := readHolder(l.cfg.Dir)
	if err != nil {
		return err
	}
	now, err := currentHolder(l.cfg.Dir, l.owner)
	if err != nil {
		return err
	}
	// A holder that is known to have ended is not waited for. Neither a copy of
	// the data directory nor a process that is only stopped may do that.
	ours := found.Owner == last.Owner && found.Generation > 0
	switch {
	case found.Generation > known && !ours:
		return fmt.Errorf("%w: %s, under the lease of generation %d, and the data here was last written under %d", ErrLeaseStale, found.Owner, found.Generation, known)
	case found.Generation == 0, found.Released, ours && last.sameDir(now) && last.ended():
	default:
		w := &LeaseWatch{lease: l, margin: l.margin}
		if found, err = w.Await(ctx, found); err != nil {
			return err
		}
	}
	generation := found.Generation
	if known < math.MaxInt64 {
		generation = max(generation, known) // the object may have been deleted
	}
	return l.take(ctx, generation+1, found.etag)
}

// TakeOver acquires the lease that [LeaseWatch.Look] found to have ended. It
// fails when that has changed since, with an error that wraps [ErrLeaseHeld]. The
// data must be the newest.
func (l *Lease) TakeOver(ctx context.Context, ended LeaseState) error {
	return l.take(ctx, ended.Generation+1, ended.etag)
}

// Seize acquires the lease from any holder. A holder that is alive serves until
// it tries to renew its lease, or that has ended.
func (l *Lease) Seize(ctx context.Context) (err error) {
	for range 5 { // the holder may renew it in between
		var found LeaseState
		if found, err = l.State(ctx); err != nil {
			return err
		}
		if err = l.take(ctx, found.Generation+1, found.etag); !errors.Is(err, ErrLeaseHeld) {
			return err
		}
	}
	return err
}

// take writes the lease object in place of the one with the ETag old.
func (l *Lease) take(ctx context.Context, generation int64, old string) error {
	// The holder goes first: a crash in between must not leave a lease that
	// nobody recognizes.
	now, err := currentHolder(l.cfg.Dir, l.owner)
	if err == nil {
		err = now.write(l.cfg.Dir)
	}
	if err != nil {
		return err
	}
	asked := uptime()
	taken, err := l.put(ctx, leaseObject{Generation: generation}, old)
	if errors.Is(err, errLeaseChanged) {
		return l.recheck(ctx, asked)
	} else if err != nil {
		return err
	}
	l.held = taken
	l.extend(asked)
	return nil
}

// renew renews a lease of this service. It is valid from asked, the uptime before
// the object was read or written.
func (l *Lease) renew(ctx context.Context, found *leaseObject, asked time.Duration) error {
	renewed, err := l.put(ctx, leaseObject{Generation: found.Generation}, found.etag)
	if err != nil {
		return err
	}
	l.held = renewed
	l.extend(asked)
	return nil
}

// Generation returns the generation of the lease that is held.
func (l *Lease) Generation() int64 { return l.held.Generation }

// SetTerm has the next renewals name the term of the replica that this service
// writes to. It may be called from any goroutine.
func (l *Lease) SetTerm(number int64) { l.term.Store(number) }

// KeepAlive renews the lease several times in each TTL until ctx ends. It returns
// an error when another service holds the lease: then nothing may be sent any
// more. It retries while the bucket cannot be reached; [Lease.Valid] reports
// whether the service may work until then.
func (l *Lease) KeepAlive(ctx context.Context) error {
	tick := time.NewTicker(max((l.cfg.TTL-l.cfg.Reserve)/4, 100*time.Millisecond))
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := l.renewOrLose(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrLeaseHeld) {
			return err
		}
		if bad := err != nil; bad != failing {
			failing = bad
			if bad {
				l.cfg.Logger.Error("the lease cannot be renewed; before it ends nothing is accepted or sent any more", "error", err)
			} else {
				l.cfg.Logger.Info("the lease is renewed again")
			}
		}
	}
}

// renewOrLose renews the lease. The error wraps [ErrLeaseHeld] when it is
// another's, and the lease is not valid then.
func (l *Lease) renewOrLose(ctx context.Context) error {
	asked := uptime()
	err := l.renew(ctx, l.held, asked)
	if errors.Is(err, errLeaseChanged) {
		return l.recheck(ctx, asked)
	}
	return err
}

// recheck renews the lease if this process wrote the object that is in the
// bucket: the response to a write may have been lost. Otherwise the lease is not
// valid, and the error wraps [ErrLeaseHeld].
func (l *Lease) recheck(ctx context.Context, asked time.Duration) error {
	found, err := l.read(ctx)
	switch {
	case err != nil:
		return err
	case found == nil:
		l.lose()
		return fmt.Errorf("%w: it was removed from the bucket", ErrLeaseHeld)
	case !l.ours(found):
		l.lose()
		return LeaseState{Owner: found.Owner, Generation: found.Generation, Term: found.Term}.heldError(ErrLeaseHeld)
	}
	return l.renew(ctx, found, asked)
}

// Release ends the lease, so that another service can acquire it at once. It
// does nothing when the lease is not valid.
func (l *Lease) Release(ctx context.Context) error {
	if l.held == nil || !l.Valid() {
		return nil
	}
	l.lose()
	err := l.release(ctx, l.held)
	if errors.Is(err, errLeaseChanged) {
		// A renewal that was cut off may have been written all the same.
		var found *leaseObject
		if found, err = l.read(ctx); err == nil && found != nil && l.ours(found) {
			err = l.release(ctx, found)
		}
	}
	if err != nil {
		return fmt.Errorf("release the lease: %w", err)
	}
	return nil
}

// release writes that the lease is given up. The object stays, and preserves the
// generation.
func (l *Lease) release(ctx context.Context, found *leaseObject) error {
	_, err := l.put(ctx, leaseObject{Generation: found.Generation, Released: true}, found.etag)
	return err
}
