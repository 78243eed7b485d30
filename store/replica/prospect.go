package replica

import "context"

// Prospect reports, without a change, whether [Lease.Acquire] with the same
// argument could take the lease now: nil, or an error that wraps [ErrLeaseStale],
// or one that wraps [ErrLeaseHeld], in which case Acquire watches the lease first.
func (l *Lease) Prospect(ctx context.Context, known int64) error {
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
	case !found.held():
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
