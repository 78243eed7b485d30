package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"service/webhook"
)

// writerReleaseTimeout limits how long a stop waits to mark the sign of life as released.
const writerReleaseTimeout = 2 * time.Second

// writerSign renews the sign of life of a replication without a lease.
type writerSign struct {
	mu       sync.Mutex // held while the object is written
	object   writerObject
	released bool
	failing  bool // the last renewal failed

	// ended is set while another service has begun a later term.
	ended atomic.Bool
	// confirmed is the uptime in nanoseconds before the last check that no service has begun a
	// later term.
	confirmed atomic.Int64
}

// signs reports whether the replication shows a sign of life and watches those of others. With a
// lease, which proves more, it does not.
func (r *Replication) signs() bool { return r.lease.Load() == nil && r.limits.writerPeriod > 0 }

// keepSign renews the sign of life until ctx ends, even while Litestream is closed.
func (r *Replication) keepSign(ctx context.Context) {
	for r.signs() && ctx.Err() == nil {
		r.renewSign(ctx)
		_ = sleep(ctx, r.limits.writerPeriod/3)
	}
}

// renewSign renews the sign of life in the term of this replication. After a failure the next
// renewal follows; replication does not depend on it.
func (r *Replication) renewSign(ctx context.Context) {
	r.sign.mu.Lock()
	defer r.sign.mu.Unlock()
	if r.sign.released || r.sign.ended.Load() {
		return
	}
	number, err := r.signedTerm()
	if err == nil && number > 0 {
		err = r.writeSign(ctx, number)
	}
	if ctx.Err() != nil {
		return
	}
	before := r.sign.failing
	switch r.sign.failing = err != nil; {
	case r.sign.failing == before:
	case err != nil:
		r.logger.Warn("failed to renew this service's sign of life in the replica, will retry; "+
			"a service that starts on another machine cannot see that this one is alive", "error", err)
	default:
		r.logger.Info("this service's sign of life in the replica is renewed again")
	}
}

// signedTerm returns the number of the term of this replication. Before it has one, that is the
// term that this directory wrote last, or 0.
func (r *Replication) signedTerm() (int64, error) {
	if number := r.term.Load(); number > 0 {
		return number, nil
	}
	last, err := readRecord(r.path)
	if err != nil || !last.Own || last.Replica != r.cfg.Target() {
		return 0, err
	}
	if here, err := last.in(filepath.Dir(r.path)); err != nil || !here {
		return 0, err
	}
	return last.Term, nil
}

// writeSign writes the sign of life to a term. The caller holds r.sign.mu.
func (r *Replication) writeSign(ctx context.Context, number int64) error {
	o := &r.sign.object
	if o.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		o.Owner, o.Since, o.writerProcess = host+" "+webhook.NewID(), time.Now().UTC(), currentProcess()
	}
	o.Generation, o.Released, o.PeriodMS = number, r.sign.released, r.limits.writerPeriod.Milliseconds()
	o.Writes++
	if o.Expires = time.Now().UTC(); !o.Released {
		o.Expires = o.Expires.Add(r.limits.writerPeriod)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, maxLeaseTimeout)
	defer cancel()
	at, err := r.cfg.location(ctx)
	if err == nil {
		err = at.write(ctx, number, writerName, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s/%s of the replica: %w", termPath("", number), writerName, err)
	}
	return nil
}

// releaseSign marks the sign of life as released, so that a service with another directory starts
// at once. Otherwise that service watches for writerPeriod.
func (r *Replication) releaseSign() {
	r.sign.mu.Lock()
	defer r.sign.mu.Unlock()
	number := r.term.Load()
	if !r.signs() || r.sign.released || r.sign.ended.Load() || number == 0 {
		return
	}
	r.sign.released = true
	ctx, cancel := context.WithTimeout(context.Background(), writerReleaseTimeout)
	defer cancel()
	if err := r.writeSign(ctx, number); err != nil {
		r.logger.Warn("failed to mark this service as stopped in the replica; a service with another data directory waits before it starts",
			"period", r.limits.writerPeriod, "error", err)
	}
}

// checkWriter checks that a term may begin after current: no other service writes to current.
// With a lease, a later term than that of this process ends the replication; without one, only for
// as long as the other shows signs of life.
func (r *Replication) checkWriter(ctx context.Context, current term) error {
	began := r.term.Load()
	if current.none() || r.claimed[current.Nonce] || began == current.Number {
		return nil
	}
	if !r.signs() {
		if began > 0 && current.Number > began {
			return errTermEnded
		}
		return nil
	}
	y, gone, err := r.watch.poll(ctx)
	if err != nil || gone {
		return err
	}
	r.sign.ended.Store(true)
	return fmt.Errorf("%w; both services send, and nothing is uploaded from here until that one has stopped, or has shown no sign of life "+
		"for %s: stop one of the two, or give one a path of its own", y.error(ErrWriting), r.limits.writerPeriod)
}

// supersede closes a session whose term another service has ended.
func (r *Replication) supersede(s *session, err error) {
	r.mu.Lock()
	r.state = StateFailing // Litestream cannot upload, and need not warn about it
	r.mu.Unlock()
	r.abandon(s, err)
}

// awaitTurn returns when the service that ended this replication's term is gone, or when ctx ends.
func (r *Replication) awaitTurn(ctx context.Context) {
	for ctx.Err() == nil {
		if sleep(ctx, r.limits.writerPeriod/6) != nil {
			return
		}
		if _, gone, err := r.watch.poll(ctx); err == nil && gone {
			return
		}
	}
}

// confirmTerm checks before an upload that no other service has begun a later term, unless that
// was checked recently: a service that saw no sign of life of this one may have, while this
// machine was suspended or the replica unreachable. Uploads after that are not in the newest
// state.
func (r *Replication) confirmTerm(ctx context.Context, s *session) error {
	if !r.signs() || uptime()-time.Duration(r.sign.confirmed.Load()) < r.limits.writerPeriod*2/3 {
		return nil
	}
	return r.checkNewest(ctx, s)
}

// checkNewest checks that no other service has begun a later term. Otherwise the error is
// errTermEnded, and the session is superseded. If the session's term is gone, because the bucket was
// emptied, the error is errReplicaIncomplete: uploads to it cannot be found.
func (r *Replication) checkNewest(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	asked := uptime()
	current, err := newestTerm(ctx, s.own.at)
	if err != nil {
		return err
	}
	if current.Number > s.own.term.Number {
		s.superseded.Store(true)
		return errTermEnded
	}
	if current.Number < s.own.term.Number {
		return errReplicaIncomplete
	}
	r.sign.confirmed.Store(int64(asked))
	return nil
}

// watchTerms ends the session when a later term begins or its own is gone, until ctx ends.
func (r *Replication) watchTerms(ctx context.Context, s *session, end context.CancelCauseFunc) {
	r.every(ctx, func(now time.Time) time.Time {
		if err := r.checkNewest(ctx, s); errors.Is(err, errTermEnded) || errors.Is(err, errReplicaIncomplete) {
			end(err)
		}
		return now.Add(r.limits.termInterval)
	})
}
