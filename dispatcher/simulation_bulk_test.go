package dispatcher

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"service/store"
	"service/webhook"
)

// bulkRun is a bulk run that two requests try to create from the same form.
type bulkRun struct {
	id            string
	action        webhook.BulkAction
	matchedBefore map[string]webhook.Delivery // deliveries that matched the filter before it was planned
	matchedAfter  map[string]webhook.Delivery // deliveries that matched after that
	at            time.Time
	openRequests  int  // requests without a response yet
	created       int  // requests that created the run
	ended         bool // the run has ended; read before the deliveries
	missing       bool // it was not stored
}

// workBulkRuns lets the store work on bulk runs, and do its housekeeping in some plans, until
// endBulkRuns is called.
func (s *simulation) workBulkRuns() {
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	st := s.d.store
	all.Go(func() { st.BulkRuns().Run(ctx) })
	if s.housekeeps {
		all.Go(func() { st.Housekeep(ctx) })
	}
	s.endBulkRuns = func() {
		stop()
		all.Wait()
	}
}

// cancel cancels one delivery of a subscription.
func (s *simulation) cancel(sub *modelSubscription, n int) {
	s.mu.Lock()
	if len(sub.received) == 0 {
		s.mu.Unlock()
		return
	}
	id := sub.received[n%len(sub.received)].id
	s.changes.cancellable[id], s.changes.dirty = true, true
	s.mu.Unlock()
	s.allowRefusal(s.d.store.Write(context.Background(), func(w store.Write) error {
		return w.Deliveries().Cancel(sub.program, sub.id, id, webhook.AuditEntry{})
	}))
}

// bulk plans a bulk run, publishes an event, and creates the run with two requests from the
// same form, and for some n from a second form.
func (s *simulation) bulk(sub *modelSubscription, n int) {
	if sub.id == "" {
		return // the subscription could not be created
	}
	b := &bulkRun{action: webhook.BulkCancel, at: time.Now(), openRequests: 2}
	values := url.Values{"filter[subscription_id]": {sub.id}}
	if n&1 != 0 {
		b.action = webhook.BulkRedeliver
		if n&4 != 0 {
			values.Set("filter[status]", string(webhook.StatusFailed))
		}
	}
	if n&2 != 0 {
		values.Del("filter[subscription_id]")
		values.Set("filter[program_id]", sub.program)
	}
	query, invalid := webhook.AllDeliveryList.Parse(values)
	if invalid != nil {
		s.violate(promiseOperates, "%v", invalid)
		return
	}
	var plan store.BulkPlan
	var err error
	for _, do := range []func(){
		func() { b.matchedBefore, err = s.matching(sub, n) },
		func() { plan, err = s.d.store.BulkRuns().Plan(context.Background(), b.action, &query, 0, 0, nil) },
		func() { b.matchedAfter, err = s.matching(sub, n) },
	} {
		if do(); err != nil {
			s.allowRefusal(err)
			return
		}
	}
	if plan.Newest == 0 {
		return // 0 would mean the newest when the run is created
	}
	s.publish(sub.program, n)
	run := store.NewBulkRun{ID: webhook.NewID(), Action: b.action, Query: &query, Newest: plan.Newest,
		Audit: webhook.AuditEntry{Admin: "a@example.com"}}
	if n&4 != 0 { // another admin creates the same run
		other, second := *b, run
		second.ID = webhook.NewID()
		s.createBulkRun(&other, &second)
	}
	s.createBulkRun(b, &run)
}

// matching returns the deliveries of the subscription, or of its program.
func (s *simulation) matching(sub *modelSubscription, n int) (picks map[string]webhook.Delivery, err error) {
	picks = make(map[string]webhook.Delivery)
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, other := range s.subs {
			if other.settings.deleted || other != sub && (n&2 == 0 || other.program != sub.program) {
				continue
			}
			var all map[string]webhook.Delivery
			if all, err = s.deliveries(other.program, other.id); err != nil {
				return
			}
			maps.Copy(picks, all)
		}
	})
	return picks, err
}

// createBulkRun creates a bulk run with two requests.
func (s *simulation) createBulkRun(b *bulkRun, run *store.NewBulkRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.id = run.ID
	if b.action == webhook.BulkCancel {
		for id := range b.matchedAfter {
			s.changes.cancellable[id] = true
		}
	}
	s.changes.runs = append(s.changes.runs, b)
	s.changes.pending++
	s.changes.bulkCreated = true
	st, gen := s.d.store, s.generation
	for range b.openRequests {
		go func() {
			err := st.Write(context.Background(), func(w store.Write) error {
				_, err := w.BulkRuns().Create(run)
				return err
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			var refused *webhook.Error // too many are running
			switch {
			case err == nil:
				b.created++
			case !errors.Is(err, store.ErrBegun) && !errors.As(err, &refused) && s.generation == gen:
				s.unexpected(err)
			}
			if b.openRequests--; b.openRequests == 0 {
				s.changes.pending--
				s.changes.dirty = true
			}
		}()
	}
}

// learnRuns reads which bulk runs have ended. The caller holds s.mu.
func (s *simulation) learnRuns() {
	for _, b := range s.changes.runs {
		if b.openRequests > 0 {
			continue
		}
		run, err := s.d.store.BulkRuns().Get(context.Background(), "", b.id)
		var missing *webhook.Error
		switch {
		case errors.As(err, &missing):
			b.missing = true
		case err != nil:
			s.violate(promiseOperates, "%v", err)
		case run.Status == webhook.BulkCancelled:
			s.violate(promiseBulk, "a run stopped itself: %s", run.Stopped)
		}
		b.ended = err == nil && run.Status == webhook.BulkDone
	}
}

// checkRuns checks the bulk runs that have ended. The caller holds s.mu.
func (s *simulation) checkRuns(stored map[string]*webhook.Delivery) {
	c := &s.changes
	redelivered := make(map[string]int)
	for _, d := range stored {
		redelivered[d.RedeliveryOf]++
	}
	c.runs = slices.DeleteFunc(c.runs, func(b *bulkRun) bool {
		if b.created > 1 {
			s.violate(promiseBulk, "one form created two runs")
		}
		if b.ended {
			s.checkRun(b, stored, redelivered)
		}
		return b.ended || b.missing
	})
}

// checkBulkRedelivery checks a redelivery made by a bulk run. The caller holds
// s.mu.
func (s *simulation) checkBulkRedelivery(sub *modelSubscription, d *webhook.Delivery) {
	picked := slices.ContainsFunc(s.changes.runs, func(b *bulkRun) bool {
		_, ok := b.matchedAfter[d.RedeliveryOf]
		return ok && b.action == webhook.BulkRedeliver
	})
	if !picked || s.changes.redelivered[d.RedeliveryOf] {
		s.violate(promiseBulk, "subscription %d: a delivery was redelivered twice, or does not match the plan", sub.index)
	}
	s.changes.redelivered[d.RedeliveryOf] = true
}

// checkRun checks that a bulk run has handled all deliveries of its plan. The
// caller holds s.mu.
func (s *simulation) checkRun(b *bulkRun, stored map[string]*webhook.Delivery, redelivered map[string]int) {
	for id, before := range b.matchedBefore {
		now := stored[id]
		if now == nil {
			continue
		}
		switch sub := s.modelOf(now.SubscriptionID); {
		case b.action == webhook.BulkCancel:
			if !now.Status.Final() && !before.NextAttemptAt.IsZero() && !now.NextAttemptAt.IsZero() && now.AttemptsMade == before.AttemptsMade {
				s.violate(promiseBulk, "subscription %d: a waiting delivery was not cancelled", sub.index)
			}
		case before.Status == webhook.StatusFailed && before.Events[0].Name != webhook.EventPing && sub.settings.active &&
			!s.isDisabled(sub) && sub.changedAt.Before(b.at):
			if redelivered[id] == 0 && now.RecoveredAt.IsZero() && !before.Splitting && sub.dropped == 0 && !s.sentAgain(stored, now) {
				s.violate(promiseBulk, "subscription %d: a failed delivery was not redelivered", sub.index)
			}
		}
	}
}

// sentAgain reports whether newer deliveries of the subscription contain all undelivered events of a
// delivery, so that a bulk run skips it. The caller holds s.mu.
func (s *simulation) sentAgain(stored map[string]*webhook.Delivery, d *webhook.Delivery) bool {
	newer := make(map[string]bool)
	for _, other := range stored {
		if other.SubscriptionID == d.SubscriptionID && other.ID > d.ID {
			for _, e := range other.Events {
				newer[e.ID] = true
			}
		}
	}
	return !slices.ContainsFunc(d.Events, func(e webhook.EventRef) bool { return !newer[e.ID] && !s.isErasing(e) })
}

func (s *simulation) modelOf(id string) *modelSubscription {
	return s.subs[slices.IndexFunc(s.subs, func(sub *modelSubscription) bool { return sub.id == id })]
}

// isRedelivery reports whether a delivery is a redelivery.
func (sub *modelSubscription) isRedelivery(d *modelDelivery) bool {
	_, ok := sub.redeliveries[d.id]
	return ok
}
