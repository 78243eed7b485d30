package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// ErrLeaseDamaged means that the object in the place of the lease is not a lease. The error
// names its key.
var ErrLeaseDamaged = errors.New("the lease in the bucket is damaged")

// damagedLease is the error of a lease object that cannot be parsed.
type damagedLease struct {
	key, etag string
	reason    error
}

func (e *damagedLease) Error() string {
	return fmt.Sprintf("the object %s in the bucket is not a lease (%v): "+
		"its holder replaces it; if no service runs, take the lease with service promote --force on a standby, or delete the object",
		e.key, e.reason)
}

func (e *damagedLease) Is(target error) bool { return target == ErrLeaseDamaged }

// superseded reports whether the replica has a term that is newer than the local data, so
// that another service has held the lease since.
func (l *Lease) superseded(ctx context.Context) (bool, error) {
	current, last, err := l.compareTerms(ctx)
	return current.Number > last.Term, err
}

// compareTerms returns the current term of the replica, and the local record of the last.
func (l *Lease) compareTerms(ctx context.Context) (current term, last record, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	at, err := l.cfg.Replica.location(ctx)
	if err != nil {
		return term{}, record{}, err
	}
	if current, err = newestTerm(ctx, at); err != nil {
		return term{}, record{}, err
	}
	last, err = readRecord(l.database())
	return current, last, err
}

func (l *Lease) database() string { return filepath.Join(l.cfg.Dir, "service.db") }

// recreate writes the lease object of a held lease again after it was deleted, or replaced
// by another object with the ETag old. If another service has begun a term since, the lease
// becomes invalid and the error wraps [ErrLeaseHeld].
func (l *Lease) recreate(ctx context.Context, old string) error {
	asked := uptime()
	newer, err := l.superseded(ctx)
	if err != nil {
		return fmt.Errorf("recreate the lease: %w", err)
	}
	if newer {
		l.lose()
		return fmt.Errorf("%w: the lease was deleted from the bucket, and another service has begun a later term of the replica", ErrLeaseHeld)
	}
	taken, err := l.put(ctx, leaseObject{Generation: l.held.Generation}, old)
	if err != nil {
		return fmt.Errorf("recreate the lease: %w", err)
	}
	l.held = taken
	l.extend(asked)
	l.cfg.Logger.Warn("recreated the lease, which was deleted from the bucket or overwritten",
		"key", l.bucket.key, "generation", taken.Generation)
	return nil
}

// checkMissing checks whether this data directory may acquire a lease of which there is no
// object. It may acquire the lease at once if the replica is empty, or if it wrote the
// newest term itself. Otherwise the object may have been deleted under a live holder, which
// recreates it, and wait is true. The error wraps [ErrLeaseStale] if the data is not the
// newest.
func (l *Lease) checkMissing(ctx context.Context, known int64) (wait bool, err error) {
	current, last, err := l.compareTerms(ctx)
	if err != nil || current.none() {
		return false, err
	}
	if _, err := os.Stat(l.database()); errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%w: the replica has data, but the lease %s is missing from the bucket, "+
			"and there is no database here: start the service that has the newest data, or run service restore first",
			ErrLeaseStale, l.bucket.key)
	}
	same := last.Term == current.Number && last.Nonce == current.Nonce
	here, err := last.in(l.cfg.Dir)
	switch {
	case err != nil:
		return false, err
	case same && last.Own && here:
		return false, nil
	case !same && known > 0 && known < math.MaxInt64:
		return false, fmt.Errorf("%w: the lease %s is missing from the bucket, and the replica has term %d, but the data here is of term %d",
			ErrLeaseStale, l.bucket.key, current.Number, last.Term)
	}
	return true, nil
}

// awaitMissing waits, if necessary, until a lease without an object may be acquired. It returns
// the state of the lease after the wait.
func (l *Lease) awaitMissing(ctx context.Context, known int64) (found LeaseState, err error) {
	wait, err := l.checkMissing(ctx, known)
	if err != nil || !wait {
		return found, err
	}
	w := &LeaseWatch{lease: l, margin: l.margin}
	if found, err = w.Await(ctx, found); err == nil && found.Generation == 0 {
		_, err = l.checkMissing(ctx, known)
	}
	return found, err
}

// HasNewestTerm reports whether the copy follows the newest term of the replica. Only such a
// copy may take over a lease whose object was deleted.
func (f *Follower) HasNewestTerm(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	at, err := f.cfg.Replica.location(ctx)
	if err != nil {
		return false, err
	}
	current, err := newestTerm(ctx, at)
	if err != nil || current.none() || !f.exists() {
		return false, err
	}
	last, err := readRecord(f.cfg.Path)
	return last.Term == current.Number && last.Nonce == current.Nonce, err
}
