package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Acquire acquires the lease. From a process of this data directory that has ended, it
// takes the lease over immediately. It watches the lease of any other service for a whole
// period, and takes it over if that service does not renew it.
//
// known is the generation under which the data was last written: 0 for none,
// [math.MaxInt64] if the data is known to be the newest. The error wraps [ErrLeaseHeld]
// if another service renews the lease, and [ErrLeaseStale] if the last holder has newer
// data.
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
	// Without watching, only a process of the same data directory may take over, and
	// only from a process that has ended: a suspended process would still renew.
	ours := found.Owner == last.Owner && found.Generation > 0
	switch {
	case found.Generation > known && !ours:
		return fmt.Errorf("%w: %s, with generation %d of the lease, but the data here was last written with generation %d",
			ErrLeaseStale, found.Owner, found.Generation, known)
	case found.Generation == 0:
		if found, err = l.awaitMissing(ctx, known); err != nil {
			return err
		}
	case found.Released, ours && last.sameDir(now) && last.ended():
	default:
		w := &LeaseWatch{lease: l, margin: l.margin}
		if found, err = w.Await(ctx, found); err != nil {
			return err
		}
	}
	generation := found.Generation
	if known < math.MaxInt64 {
		generation = max(generation, known) // in case the object was deleted
	}
	return l.take(ctx, generation+1, found.etag)
}

// TakeOver acquires a lease that has ended according to [LeaseWatch.Poll]. If the lease
// has changed since, the error wraps [ErrLeaseHeld]. The caller must have the newest
// data.
func (l *Lease) TakeOver(ctx context.Context, ended LeaseState) error {
	return l.take(ctx, ended.Generation+1, ended.etag)
}

// Seize acquires the lease from any holder. A live holder serves until its next renewal
// fails or its lease expires.
func (l *Lease) Seize(ctx context.Context) (err error) {
	for range 5 { // the holder may renew the lease in between
		var found LeaseState
		var damaged *damagedLease
		if found, err = l.State(ctx); errors.As(err, &damaged) {
			found.etag = damaged.etag // the generation is unknown; see Raise
		} else if err != nil {
			return err
		}
		if err = l.take(ctx, found.Generation+1, found.etag); !errors.Is(err, ErrLeaseHeld) {
			return err
		}
	}
	return err
}

// take writes the lease object if the current object has the ETag old.
func (l *Lease) take(ctx context.Context, generation int64, old string) error {
	// The holder is recorded first. After a crash in between, the next process would
	// otherwise not recognize the lease as its own.
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
	l.raised.Store(taken.Generation)
	l.extend(asked)
	return nil
}

// renew renews the lease. It is valid from asked, the uptime before the object was read
// or written.
func (l *Lease) renew(ctx context.Context, found *leaseObject, asked time.Duration) error {
	renewed, err := l.put(ctx, leaseObject{Generation: found.Generation}, found.etag)
	if err != nil {
		return err
	}
	l.held = renewed
	l.extend(asked)
	return nil
}

// Generation returns the generation of the lease, which must be held. It is safe for
// concurrent use.
func (l *Lease) Generation() int64 { return l.raised.Load() }

// Raise makes the generation of the lease, which must be held, higher than that of the data.
// It is lower if the previous object was deleted or damaged. The object has the new
// generation from its next renewal on. Raise is safe for concurrent use with KeepAlive.
func (l *Lease) Raise(known int64) {
	if known >= l.raised.Load() {
		l.raised.Store(known + 1)
	}
}

// KeepAlive renews the lease several times in each TTL until ctx ends. While the bucket
// is unreachable it retries; [Lease.Valid] reports whether the service may work. If
// another service holds the lease, KeepAlive returns an error.
func (l *Lease) KeepAlive(ctx context.Context) error {
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	var cause Cause // of the last failure
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
		l.failed.Store(&err)
		if errors.Is(err, ErrLeaseHeld) {
			return err
		}
		before := cause
		switch cause = CauseOf(err); {
		case cause == before:
		case err != nil:
			l.cfg.Logger.Error("failed to renew the lease, will retry; the service pauses shortly before the lease expires", "cause", cause,
				"error", err)
		default:
			l.cfg.Logger.Info("lease is renewed again")
		}
	}
}

// Failure returns why the last renewal by KeepAlive failed, nil if it did not. It is for admins: see
// [CauseOf]. It is safe for concurrent use.
func (l *Lease) Failure() error {
	if err := l.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// renewOrLose renews the lease. If another service has taken it, the lease becomes
// invalid and the error wraps [ErrLeaseHeld].
func (l *Lease) renewOrLose(ctx context.Context) error {
	asked := uptime()
	err := l.renew(ctx, l.held, asked)
	if errors.Is(err, errLeaseChanged) {
		return l.recheck(ctx, asked)
	}
	return err
}

// recheck handles a failed precondition. If the object of a held lease was deleted, recheck
// recreates it. If this process wrote the current object, because
// the response to a write was lost, recheck renews the lease. Otherwise the lease becomes
// invalid and the error wraps [ErrLeaseHeld].
func (l *Lease) recheck(ctx context.Context, asked time.Duration) error {
	found, err := l.read(ctx)
	var damaged *damagedLease
	switch {
	case errors.As(err, &damaged) && l.held != nil:
		return l.recreate(ctx, damaged.etag)
	case err != nil:
		return err
	case found == nil && l.held != nil:
		return l.recreate(ctx, "")
	case found == nil: // it was deleted while it was taken
		return errLeaseChanged
	case !l.ours(found):
		l.lose()
		return LeaseState{Owner: found.Owner, Generation: found.Generation}.heldError(ErrLeaseHeld)
	}
	return l.renew(ctx, found, asked)
}

// Release releases the lease, so that another service can acquire it immediately. It does
// nothing if the lease is not valid.
func (l *Lease) Release(ctx context.Context) error {
	if l.held == nil || !l.Valid() {
		return nil
	}
	l.lose()
	err := l.release(ctx, l.held)
	if errors.Is(err, errLeaseChanged) {
		// An interrupted renewal may have been written.
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

// release marks the lease object as released. The object stays, to preserve the
// generation.
func (l *Lease) release(ctx context.Context, found *leaseObject) error {
	_, err := l.put(ctx, leaseObject{Generation: found.Generation, Released: true}, found.etag)
	return err
}
