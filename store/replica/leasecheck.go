package replica

import "context"

// CheckAcquire returns nil if [Lease.Acquire] with the same argument would acquire the
// lease immediately. The error wraps [ErrLeaseStale] if Acquire would fail, and
// [ErrLeaseHeld] if Acquire would watch the lease first. CheckAcquire changes nothing.
func (l *Lease) CheckAcquire(ctx context.Context, known int64) error {
	found, err := l.State(ctx)
	if err != nil {
		return err
	}
	last, err := readHolder(l.cfg.Dir)
	if err != nil {
		return err
	}
	ours := found.Generation > 0 && found.Owner == last.Owner
	switch {
	case found.Generation > known && !ours:
		return found.heldError(ErrLeaseStale)
	case found.Generation == 0:
		_, err := l.checkMissing(ctx, known)
		return err
	case found.Released:
		return nil
	case !ours:
		return found.heldError(ErrLeaseHeld)
	}
	now, err := currentHolder(l.cfg.Dir, l.owner)
	if err != nil {
		return err
	}
	if last.sameDir(now) && last.ended() {
		return nil
	}
	return found.heldError(ErrLeaseHeld)
}
