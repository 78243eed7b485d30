package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"service/store/datadir"
	"service/store/replica"
	"service/webhook"
)

// promotion is a request of service promote.
type promotion struct {
	ctx      context.Context // ends with the command
	force    bool
	progress chan string          // buffered
	done     chan promotionResult // buffered, for one result
	initial  replica.LeaseState   // at the time of the request; generation 0 until the bucket could be read
}

// promotionResult is the result of a promotion.
type promotionResult struct {
	state time.Time // of the newest change that the standby has
	err   error
}

// requestPromotion makes the standby take over and waits for the result. With force, the standby
// takes the lease even from a service that still renews it.
func (b *Standby) requestPromotion(ctx context.Context, force bool, progress func(string)) (time.Time, error) {
	p := &promotion{ctx: ctx, force: force, progress: make(chan string, 8), done: make(chan promotionResult, 1)}
	requests := b.promotions
	for {
		select {
		case requests <- p:
			requests = nil
		case text := <-p.progress:
			progress(text)
		case result := <-p.done:
			for len(p.progress) > 0 {
				progress(<-p.progress)
			}
			return result.state, result.err
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// report sends progress to the command.
func (p *promotion) report(format string, args ...any) {
	select {
	case p.progress <- fmt.Sprintf(format, args...):
	default:
	}
}

// refuse sends the command the reason why the standby does not take over.
func (p *promotion) refuse(code webhook.Code, format string, args ...any) {
	p.done <- promotionResult{err: webhook.NewError(code, fmt.Sprintf(format, args...))}
}

// claim acquires the lease for the node's own database: at once if no other service holds it,
// otherwise once the holder has not renewed it for a whole period. On success the result is not
// nil. If another service has newer data or renews the lease, claim sets the database aside, so
// that the node can follow.
func (b *Standby) claim(ctx context.Context) ([]*promotion, error) {
	requests := []*promotion{}
	b.setWaiting("It has data, and checks whether another node holds the lease")
	for since := time.Now(); ; {
		known, err := b.data.Generation(ctx)
		if err == nil {
			err = b.data.CheckServable(ctx) // a node that cannot serve must not hold the lease
		}
		if err != nil {
			return nil, err
		}
		if err = b.prove(ctx); err == nil {
			err = b.acquireOwn(ctx, known, &requests)
		}
		if err == nil || ctx.Err() != nil {
			return requests, nil
		}
		held := errors.Is(err, replica.ErrLeaseHeld) || errors.Is(err, replica.ErrLeaseStale)
		if held {
			err = b.setAside(ctx, known, err, time.Since(since) < b.patience())
		}
		if held && err == nil {
			err = errors.New("another node holds the lease, and this node follows it now; promote it again")
		} else if held && !errors.Is(err, datadir.ErrRestored) && !errors.Is(err, replica.ErrUndecided) {
			return nil, err
		}
		for _, p := range requests {
			p.refuse(webhook.CodeConflict, "%s.", sentence(err.Error()))
		}
		requests = requests[:0]
		if !b.data.HasDatabase() {
			return nil, nil
		}
		b.wait(sentence(err.Error()))
		select {
		case <-ctx.Done():
			return requests, nil
		case <-time.After(time.Second):
		}
	}
}

// patience returns how long a node waits for the first term of the node that took its lease.
func (b *Standby) patience() time.Duration { return 2*b.cfg.Lease + 10*time.Second }

// sentence returns text with a capital first letter.
func sentence(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// acquireOwn acquires the lease for the node's own data. A promotion with force takes it from any
// holder; others wait in requests.
func (b *Standby) acquireOwn(ctx context.Context, known int64, requests *[]*promotion) error {
	acquiring, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		if state, err := b.lease.State(acquiring); err == nil {
			b.seen(state)
		}
		done <- b.lease.Acquire(acquiring, known)
	}()
	for {
		select {
		case err := <-done:
			return err
		case p := <-b.promotions:
			*requests = append(*requests, p)
			if !p.force {
				p.report("Waiting to see whether another node renews the lease.")
				continue
			}
			stop()
			if err := <-done; err == nil {
				return nil
			}
			b.cfg.Logger.Warn("taking the lease for this node's data, on command", "data", b.cfg.Dir)
			return b.lease.Seize(ctx)
		}
	}
}

// setAside moves the node's own database out of the way. why is why the node could not acquire the
// lease.
func (b *Standby) setAside(ctx context.Context, known int64, why error, patient bool) error {
	old, err := b.data.SetAside(ctx, errors.Is(why, replica.ErrLeaseStale), patient)
	switch {
	case errors.Is(err, datadir.ErrRestored):
		return fmt.Errorf("%w. %w: to serve this data, run service promote --force", err, why)
	case errors.Is(err, replica.ErrForeign):
		return fmt.Errorf("%w. %w: to follow that node, use another data directory", err, why)
	case errors.Is(err, replica.ErrUndecided):
		return fmt.Errorf("%w. %w", err, why)
	case err != nil:
		return fmt.Errorf("set aside the data of an earlier tenure: %w", err)
	}
	b.mu.Lock()
	b.noted = "" // a copy has replaced the recorded owner
	b.mu.Unlock()
	b.cfg.Logger.Warn("another node has taken over; following it", "reason", why, "generation_here", known)
	if old != nil {
		b.cfg.Logger.Error("data of this node is not in the replica: "+old.String(), "changes", old.Changes, "directory", old.Dir)
	}
	return nil
}

// takeoverWatch waits until a standby should take over: after the primary's lease has
// expired, or on a command.
type takeoverWatch struct {
	b           *Standby
	watch       *replica.LeaseWatch
	failedSince time.Time    // when reads of the lease began to fail; zero while they succeed
	told        bool         // the node has said that it may begin with an empty database
	waiting     []*promotion // until the lease expires
}

// awaitTakeover returns once this node has acquired the lease, with the promotions that requested
// it, or when ctx ends.
func (b *Standby) awaitTakeover(ctx context.Context) ([]*promotion, error) {
	v := &takeoverWatch{b: b, watch: b.lease.NewWatch()}
	tick := time.NewTicker(v.watch.Interval(replica.LeaseState{}))
	defer tick.Stop()
	checked, promotions := b.checked, (chan *promotion)(nil) // a promotion waits until the node knows whether it can take over
	for {
		takeover := false
		select {
		case <-checked:
			checked, promotions = nil, b.promotions
		case <-ctx.Done():
			for _, p := range v.waiting {
				p.refuse(webhook.CodeUnavailable, "The standby is shutting down.")
			}
			return nil, nil
		case p := <-promotions:
			takeover = v.promote(ctx, p)
		case <-tick.C:
			takeover = v.poll(ctx)
		}
		if takeover {
			return v.waiting, nil
		}
	}
}

// promote reports whether the standby takes over at once. Otherwise p waits or is refused.
func (v *takeoverWatch) promote(ctx context.Context, p *promotion) bool {
	if why := v.cannot(ctx); why != "" {
		p.refuse(webhook.CodeConflict, "%s.", why)
		return false
	}
	state, expired, err := v.readLease(ctx)
	switch {
	case errors.Is(err, replica.ErrLeaseDamaged) && p.force:
		v.waiting = append(v.waiting, p)
		return v.seize(ctx, state, p)
	case err != nil && p.force:
		p.refuse(webhook.CodeUnavailable, "Failed to read the lease, which a promotion needs: %v", err)
		return false
	case err != nil:
		p.report("Failed to read the lease, retrying: %v", err)
		v.waiting = append(v.waiting, p)
		return false
	}
	p.initial = state
	v.waiting = append(v.waiting, p)
	switch {
	case expired && (!p.force || !v.emptied(ctx)):
		return v.acquire(ctx, state)
	case p.force:
		return v.seize(ctx, state, p)
	case state.Generation == 0:
		p.report("There is no lease in the bucket. Waiting up to %s to see whether another service holds it.",
			v.watch.Remaining(state).Round(time.Second))
		return false
	}
	p.report("%s holds the lease (generation %d). Waiting up to %s to see whether it renews the lease.",
		state.Owner, state.Generation, v.watch.Remaining(state).Round(time.Second))
	return false
}

// cannot returns why this node cannot take over, "" if it can. A node without any copy can: the
// takeover copies the replica first, or begins with an empty database.
func (v *takeoverWatch) cannot(ctx context.Context) string {
	if proof := v.b.bucketProof(); proof == nil && !v.b.data.HasCopy() {
		return ""
	}
	return v.b.cannotTakeOver(ctx, true)
}

// seize takes the lease from a service that may be alive, and reports whether that
// succeeded.
func (v *takeoverWatch) seize(ctx context.Context, state replica.LeaseState, p *promotion) bool {
	added := v.b.data.State().Added
	if state.Generation == 0 {
		p.report("The lease in the bucket is missing or damaged; its holder may be alive.")
	} else {
		p.report("%s holds the lease (generation %d) and may be alive: it can accept and send until it notices, for up to %s.",
			state.Owner, state.Generation, v.watch.Period(state))
	}
	if added.IsZero() {
		p.report("This standby has no data yet and copies the replica first.")
	} else {
		p.report("This standby has all changes uploaded by %s, %s ago. Later changes are lost; "+
			"service salvage can publish later events from the old data directory.",
			webhook.FormatTime(added), time.Since(added).Round(time.Second))
	}
	if err := v.b.lease.Seize(ctx); err != nil {
		p.refuse(webhook.CodeUnavailable, "Failed to take the lease: %v", err)
		v.drop(p)
		return false
	}
	v.b.cfg.Logger.Warn("taking over from a primary that may still run, on command",
		"primary", state.Owner, "generation", state.Generation, "last_change", webhook.FormatTime(added))
	return true
}

// drop removes a refused promotion.
func (v *takeoverWatch) drop(p *promotion) {
	for i := range v.waiting {
		if v.waiting[i] == p {
			v.waiting = append(v.waiting[:i], v.waiting[i+1:]...)
			return
		}
	}
}

// readLease is [replica.LeaseWatch.Poll]. It logs when reads begin to fail and when they recover.
func (v *takeoverWatch) readLease(ctx context.Context) (state replica.LeaseState, expired bool, err error) {
	state, expired, err = v.watch.Poll(ctx)
	logger := v.b.cfg.Logger
	if err == nil {
		v.b.seen(state)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil && v.failedSince.IsZero():
		v.failedSince = time.Now()
		logger.Error("failed to read the primary's lease, will retry", "error", err)
	case err == nil && !v.failedSince.IsZero():
		v.failedSince = time.Time{}
		logger.Info("primary's lease is readable again")
	}
	return state, expired, err
}

// poll reports whether the standby takes over because the lease has expired. It refuses
// waiting promotions if the lease was renewed or stays unreadable.
func (v *takeoverWatch) poll(ctx context.Context) bool {
	state, expired, err := v.readLease(ctx)
	if ctx.Err() != nil {
		return false
	}
	if err == nil && expired && (state.Generation > 0 || len(v.waiting) > 0 || v.mayReplace(ctx) || v.mayBegin(ctx)) {
		return v.acquire(ctx, state)
	}
	switch {
	case err != nil:
	case state.Generation > 0:
		v.b.wait("")
	case v.emptied(ctx):
		v.b.wait(bucketEmptied)
	case !v.told && v.mayBegin(ctx):
		v.told = true
		v.b.wait(fmt.Sprintf("The replica is empty, and this node has no data. Unless a node with data claims the replica within %s, "+
			"this node begins with an empty database", v.watch.Remaining(state).Round(time.Second)))
	}
	waiting := v.waiting
	v.waiting = nil
	for _, p := range waiting {
		switch {
		case p.ctx.Err() != nil: // the command was interrupted
			continue
		case err != nil && time.Since(v.failedSince) > v.watch.Period(p.initial):
			p.refuse(webhook.CodeUnavailable, "Failed to read the lease, which a promotion needs: %v", err)
			continue
		case err != nil:
		case p.initial.Generation == 0:
			p.initial = state
		case state.Renewed(p.initial):
			p.refuse(webhook.CodeConflict, "%s holds the lease (generation %d) and renews it: "+
				"stop it first, or take the lease with service promote --force.", state.Owner, state.Generation)
			continue
		}
		v.waiting = append(v.waiting, p)
	}
	return false
}

// mayReplace reports whether the standby may take over a lease that was deleted: it has seen the
// lease, and its copy contains the newest term. Otherwise the primary may be running without a
// lease.
func (v *takeoverWatch) mayReplace(ctx context.Context) bool {
	if !v.watch.Seen() {
		return false
	}
	newest, err := v.b.data.HasNewestTerm(ctx)
	if err != nil {
		v.b.cfg.Logger.Debug("failed to compare the copy with the replica", "error", err)
	}
	return newest && err == nil
}

// mayBegin reports whether a node without data may begin with an empty database, once no other
// node has claimed the empty replica for a whole period.
func (v *takeoverWatch) mayBegin(ctx context.Context) bool {
	if v.b.data.HasCopy() {
		return false
	}
	empty, err := replica.Empty(ctx, v.b.cfg.Replica)
	return err == nil && empty
}

const bucketEmptied = "The replica is empty, although this node has a copy of it: somebody emptied the bucket. If no node with newer " +
	"data can be started, serve this copy with service promote --force"

// emptied reports whether the replica has lost what this node copied. The node then cannot prove
// that its copy is the newest data.
func (v *takeoverWatch) emptied(ctx context.Context) bool {
	if !v.b.data.HasCopy() {
		return false
	}
	empty, err := replica.Empty(ctx, v.b.cfg.Replica)
	return err == nil && empty
}

// acquire takes an expired lease, and reports whether that succeeded.
func (v *takeoverWatch) acquire(ctx context.Context, state replica.LeaseState) bool {
	logger := v.b.cfg.Logger
	if why := v.cannot(ctx); why != "" {
		v.b.wait(why)
		return false
	}
	if v.emptied(ctx) {
		v.b.wait(bucketEmptied)
		return false
	}
	err := v.watch.TakeOver(ctx, state)
	switch {
	case err == nil && state.Generation == 0:
		logger.Warn("the lease has been missing from the bucket for a whole period; taking over")
	case err == nil:
		logger.Warn("primary's lease has expired; taking over", "primary", state.Owner, "generation", state.Generation)
	case err != nil && !errors.Is(err, replica.ErrLeaseHeld):
		logger.Error("failed to acquire the lease; watching it for another period, in which the primary can renew it", "error", err)
	}
	return err == nil
}
