package dispatcher

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"time"

	"service/store"
	"service/webhook"
)

// bulkRun is a bulk run that was begun with the same form by two requests.
type bulkRun struct {
	id     string
	action webhook.BulkAction
	sure   map[string]webhook.Delivery // what its filter let through before it was planned
	picks  map[string]webhook.Delivery // and after that
	at     time.Time
	open   int  // requests that are not answered
	begun  int  // requests that have begun it
	ended  bool // it is done, which was found before the deliveries were read
	gone   bool // it was not stored
}

// workBulkRuns has the store work on bulk runs until endBulkRuns is called.
func (s *simulation) workBulkRuns() {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	runs := s.d.store.BulkRuns()
	go func() {
		defer close(ended)
		runs.Run(ctx)
	}()
	s.endBulkRuns = func() {
		stop()
		<-ended
	}
}

// cancel cancels one delivery of a subscription.
func (s *simulation) cancel(h *subject, n int) {
	s.mu.Lock()
	if len(h.order) == 0 {
		s.mu.Unlock()
		return
	}
	id := h.order[n%len(h.order)].id
	s.changes.cancellable[id], s.changes.unread = true, true
	s.mu.Unlock()
	s.refused(s.d.store.Write(context.Background(), func(w store.Write) error { return w.Cancel(h.program, h.id, id) }))
}

// bulk plans a bulk action, has an event published, and runs the action, for two
// requests with the same form, and for some n for another form of the same.
func (s *simulation) bulk(h *subject, n int) {
	if h.id == "" {
		return // it could not be created
	}
	b := &bulkRun{action: webhook.BulkCancel, at: time.Now(), open: 2}
	values := url.Values{"filter[subscription_id]": {h.id}}
	if n&1 != 0 {
		b.action = webhook.BulkRedeliver
		if n&4 != 0 {
			values.Set("filter[status]", string(webhook.StatusFailed))
		}
	}
	if n&2 != 0 {
		values.Del("filter[subscription_id]")
		values.Set("filter[program_id]", h.program)
	}
	query, invalid := webhook.AllDeliveryList.Parse(values)
	if invalid != nil {
		s.violate(promiseOperates, "%v", invalid)
		return
	}
	var plan store.BulkPlan
	var err error
	for _, do := range []func(){
		func() { b.sure, err = s.picked(h, n) },
		func() { plan, err = s.d.store.BulkRuns().Plan(context.Background(), b.action, &query, 0, 0, nil) },
		func() { b.picks, err = s.picked(h, n) },
	} {
		if do(); err != nil {
			s.refused(err)
			return
		}
	}
	if plan.Newest == 0 {
		return // which asks for the newest of then
	}
	s.publish(h.program, n)
	run := store.NewBulkRun{ID: webhook.NewID(), Action: b.action, Query: &query, Newest: plan.Newest, Audit: webhook.AuditEntry{Admin: "a@example.com"}}
	if n&4 != 0 { // another admin asks for the same
		other, again := *b, run
		again.ID = webhook.NewID()
		s.begin(&other, &again)
	}
	s.begin(b, &run)
}

// picked returns the deliveries of the subscription, or of its program.
func (s *simulation) picked(h *subject, n int) (picks map[string]webhook.Delivery, err error) {
	picks = make(map[string]webhook.Delivery)
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, other := range s.subs {
			if other.now.deleted || other != h && (n&2 == 0 || other.program != h.program) {
				continue
			}
			var all map[string]webhook.Delivery
			if all, err = s.deliveries(other); err != nil {
				return
			}
			maps.Copy(picks, all)
		}
	})
	return picks, err
}

// begin begins a bulk run for two requests.
func (s *simulation) begin(b *bulkRun, run *store.NewBulkRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.id = run.ID
	if b.action == webhook.BulkCancel {
		for id := range b.picks {
			s.changes.cancellable[id] = true
		}
	}
	s.changes.runs = append(s.changes.runs, b)
	s.changes.pending++
	s.changes.bulk = true
	st, gen := s.d.store, s.gen
	for range b.open {
		go func() {
			err := st.Write(context.Background(), func(w store.Write) error {
				_, err := w.CreateBulkRun(run)
				return err
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			var refused *webhook.Error // too many are running
			switch {
			case err == nil:
				b.begun++
			case !errors.Is(err, store.ErrBegun) && !errors.As(err, &refused) && s.gen == gen:
				s.failed(err)
			}
			if b.open--; b.open == 0 {
				s.changes.pending--
				s.changes.unread = true
			}
		}()
	}
}

// learnRuns finds out which bulk runs have ended. Owns s.mu.
func (s *simulation) learnRuns() {
	for _, b := range s.changes.runs {
		if b.open > 0 {
			continue
		}
		run, err := s.d.store.BulkRuns().Get(context.Background(), "", b.id)
		var missing *webhook.Error
		switch {
		case errors.As(err, &missing):
			b.gone = true
		case err != nil:
			s.violate(promiseOperates, "%v", err)
		case run.Status == webhook.BulkCancelled:
			s.violate(promiseBulk, "a run was cancelled by itself: %s", run.Stopped)
		}
		b.ended = err == nil && run.Status == webhook.BulkDone
	}
}

// checkRuns checks the results of the bulk runs that have ended. Owns s.mu.
func (s *simulation) checkRuns(stored map[string]*webhook.Delivery) {
	c := &s.changes
	redelivered := make(map[string]int)
	for _, d := range stored {
		redelivered[d.RedeliveryOf]++
	}
	c.runs = slices.DeleteFunc(c.runs, func(b *bulkRun) bool {
		if b.begun > 1 {
			s.violate(promiseBulk, "a form that was submitted twice has begun two runs")
		}
		if b.ended {
			s.checkRun(b, stored, redelivered)
		}
		return b.ended || b.gone
	})
}

// checkBulkCopy checks a redelivery that a bulk run has made. Owns s.mu.
func (s *simulation) checkBulkCopy(h *subject, d *webhook.Delivery) {
	picked := slices.ContainsFunc(s.changes.runs, func(b *bulkRun) bool {
		_, ok := b.picks[d.RedeliveryOf]
		return ok && b.action == webhook.BulkRedeliver
	})
	if !picked || s.changes.redelivered[d.RedeliveryOf] {
		s.violate(promiseBulk, "subscription %d: a delivery was redelivered that the plan does not have, or twice", h.i)
	}
	s.changes.redelivered[d.RedeliveryOf] = true
}

// checkRun checks that a bulk run has left nothing that its plan says. Owns s.mu.
func (s *simulation) checkRun(b *bulkRun, stored map[string]*webhook.Delivery, redelivered map[string]int) {
	for id, before := range b.sure {
		now := stored[id]
		if now == nil {
			continue
		}
		switch h := s.subjectOf(now.SubscriptionID); {
		case b.action == webhook.BulkCancel:
			if !now.Status.Final() && !before.NextAttemptAt.IsZero() && !now.NextAttemptAt.IsZero() && now.AttemptsMade == before.AttemptsMade {
				s.violate(promiseBulk, "subscription %d: a delivery that waits was not cancelled", h.i)
			}
		case before.Status == webhook.StatusFailed && before.Events[0].Name != webhook.EventPing && h.now.active && h.changed.Before(b.at):
			if redelivered[id] == 0 {
				s.violate(promiseBulk, "subscription %d: a delivery that failed was not redelivered", h.i)
			}
		}
	}
}

func (s *simulation) subjectOf(id string) *subject {
	return s.subs[slices.IndexFunc(s.subs, func(h *subject) bool { return h.id == id })]
}

// copied says whether a delivery is a redelivery.
func (h *subject) copied(d *sending) bool {
	_, ok := h.copies[d.id]
	return ok
}
