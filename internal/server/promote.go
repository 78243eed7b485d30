package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"service/store/replica"
	"service/webhook"
)

// promotion is a command that asks the standby to take over.
type promotion struct {
	ctx      context.Context // ends when the command does
	force    bool
	progress chan string        // what is waited for; has room
	done     chan promoted      // has room for one
	found    replica.LeaseState // when it was asked; of generation 0 until the bucket could be read
}

// promoted is the result of a promotion.
type promoted struct {
	state time.Time // of the newest change that the standby has
	err   error
}

// promotion makes the standby take over, and waits for the result. With
// force it takes the lease from a service that renews it.
func (b *Standby) promotion(ctx context.Context, force bool, progress func(string)) (time.Time, error) {
	p := &promotion{ctx: ctx, force: force, progress: make(chan string, 8), done: make(chan promoted, 1)}
	asking := b.promote
	for {
		select {
		case asking <- p:
			asking = nil
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

// say reports progress to the command.
func (p *promotion) say(format string, args ...any) {
	select {
	case p.progress <- fmt.Sprintf(format, args...):
	default:
	}
}

// refuse tells the command why the standby does not take over.
func (p *promotion) refuse(code webhook.Code, format string, args ...any) {
	p.done <- promoted{err: webhook.NewError(code, fmt.Sprintf(format, args...))}
}

// vigil waits until it is time for a standby to take over: until the primary's
// lease has ended, or a command says so.
type vigil struct {
	b       *Standby
	watch   *replica.LeaseWatch // nil without a lease
	failed  time.Time           // when looks began to fail; zero while they succeed
	waiting []*promotion        // for the end of the lease
}

// awaitTakeover returns when it is time to take over, with the lease, and the
// commands that asked for it.
func (b *Standby) awaitTakeover(ctx context.Context) []*promotion {
	v := &vigil{b: b}
	var look <-chan time.Time
	if b.lease != nil {
		v.watch = b.lease.NewWatch()
		tick := time.NewTicker(v.watch.Interval(replica.LeaseState{}))
		defer tick.Stop()
		look = tick.C
	}
	for {
		over := false
		select {
		case <-ctx.Done():
			for _, p := range v.waiting {
				p.refuse(webhook.CodeUnavailable, "The standby was told to end.")
			}
			return nil
		case p := <-b.promote:
			over = v.promote(ctx, p)
		case <-look:
			over = v.lookAgain(ctx)
		}
		if over {
			return v.waiting
		}
	}
}

// promote reports whether the standby takes over at once for p. Otherwise p waits
// or is refused.
func (v *vigil) promote(ctx context.Context, p *promotion) bool {
	if v.watch == nil {
		err := replica.CheckUnleased(ctx, v.b.cfg.Replica)
		switch {
		case errors.Is(err, replica.ErrLeaseHeld):
			p.refuse(webhook.CodeConflict, "%v: start the standby with --lease, and promote it then.", err)
			return false
		case err != nil:
			p.refuse(webhook.CodeUnavailable, "The replica %s cannot be read, which a promotion needs: %v", v.b.cfg.Replica.Target(), err)
			return false
		}
		v.waiting = append(v.waiting, p)
		return true
	}
	state, ended, err := v.look(ctx)
	switch {
	case err != nil && p.force:
		p.refuse(webhook.CodeUnavailable, "The lease cannot be read, which a promotion needs: %v", err)
		return false
	case err != nil:
		p.say("The lease cannot be read, and is tried again: %v", err)
		v.waiting = append(v.waiting, p)
		return false
	}
	p.found = state
	v.waiting = append(v.waiting, p)
	switch {
	case ended || state.Generation == 0:
		return v.take(ctx, state)
	case p.force:
		return v.seize(ctx, state, p)
	}
	p.say("%s holds the lease (generation %d). Watching for up to %s whether it renews it.",
		state.Owner, state.Generation, v.watch.Remaining(state).Round(time.Second))
	return false
}

// seize takes the lease from a service that may be alive, and reports whether it
// could.
func (v *vigil) seize(ctx context.Context, state replica.LeaseState, p *promotion) bool {
	added := v.b.copied.State().Added
	p.say("%s holds the lease (generation %d), and may be alive: it can accept and send until it notices, for up to %s.",
		state.Owner, state.Generation, v.watch.Period(state))
	if added.IsZero() {
		p.say("This standby has nothing yet. It copies what is in the replica.")
	} else {
		p.say("This standby has what was uploaded until %s, %s ago. What was accepted after that is lost unless service salvage publishes it from the old data directory.",
			webhook.FormatTime(added), time.Since(added).Round(time.Second))
	}
	if err := v.b.lease.Seize(ctx); err != nil {
		p.refuse(webhook.CodeUnavailable, "The lease cannot be taken: %v", err)
		v.drop(p)
		return false
	}
	v.b.cfg.Logger.Warn("a command made this standby take over by force", "primary", state.Owner, "generation", state.Generation, "last_change", webhook.FormatTime(added))
	return true
}

// drop removes a promotion that has its answer.
func (v *vigil) drop(p *promotion) {
	for i := range v.waiting {
		if v.waiting[i] == p {
			v.waiting = append(v.waiting[:i], v.waiting[i+1:]...)
			return
		}
	}
}

// look is [replica.LeaseWatch.Look], and logs when the lease can no longer be
// read.
func (v *vigil) look(ctx context.Context) (state replica.LeaseState, ended bool, err error) {
	state, ended, err = v.watch.Poll(ctx)
	logger := v.b.cfg.Logger
	switch {
	case ctx.Err() != nil:
	case err != nil && v.failed.IsZero():
		v.failed = time.Now()
		logger.Error("the primary's lease cannot be read", "error", err)
	case err == nil && !v.failed.IsZero():
		v.failed = time.Time{}
		logger.Info("the primary's lease is read again")
	}
	return state, ended, err
}

// lookAgain reports whether the standby takes over because the lease has ended.
// It answers commands that wait for that.
func (v *vigil) lookAgain(ctx context.Context) bool {
	state, ended, err := v.look(ctx)
	if ctx.Err() != nil {
		return false
	}
	if err == nil && (ended || state.Generation == 0 && len(v.waiting) > 0) {
		return v.take(ctx, state)
	}
	waiting := v.waiting
	v.waiting = nil
	for _, p := range waiting {
		switch {
		case p.ctx.Err() != nil: // the command was ended
			continue
		case err != nil && time.Since(v.failed) > v.watch.Period(p.found):
			p.refuse(webhook.CodeUnavailable, "The lease cannot be read, which a promotion needs: %v", err)
			continue
		case err != nil:
		case p.found.Generation == 0:
			p.found = state
		case state.Renewed(p.found):
			p.refuse(webhook.CodeConflict, "%s holds the lease (generation %d) and renews it: stop it first, or take the lease from it by service promote --force.", state.Owner, state.Generation)
			continue
		}
		v.waiting = append(v.waiting, p)
	}
	return false
}

// take acquires a lease that has ended, and reports whether it could.
func (v *vigil) take(ctx context.Context, state replica.LeaseState) bool {
	logger := v.b.cfg.Logger
	err := v.b.lease.TakeOver(ctx, state)
	switch {
	case err == nil && state.Generation > 0:
		logger.Warn("the primary's lease has ended: this standby takes over", "primary", state.Owner, "generation", state.Generation)
	case err != nil && !errors.Is(err, replica.ErrLeaseHeld):
		logger.Error("the lease cannot be taken", "error", err)
	}
	return err == nil
}
