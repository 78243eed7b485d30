package dispatcher

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"service/store/record"
	"service/webhook"
)

// audit compares the store with the requests received. end is true after the last
// step, when everything must be completed.
func (s *simulation) audit(end bool) {
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.auditAll(end)
	})
}

// auditAll is audit without injected faults. The caller holds s.mu.
func (s *simulation) auditAll(end bool) {
	for _, sub := range s.subs {
		if sub.settings.deleted {
			continue
		}
		stored, err := s.deliveries(sub.program, sub.id)
		if err != nil {
			s.violate(promiseOperates, "%v", err)
			return
		}
		formed := make(map[int]int)
		for _, d := range stored {
			if len(d.Events) == 0 {
				s.violate(promiseLost, "subscription %d: retention removed the events of a delivery", sub.index)
				return
			}
			s.auditDelivery(sub, &d, end)
			if d.RedeliveryOf == "" && d.SplitOf == "" && sub.replayDeliveries[d.ID] == nil {
				s.countFormed(sub, &d, formed)
			}
		}
		for id := range sub.byID {
			if _, ok := stored[id]; !ok && !sub.byID[id].ended {
				s.violate(promiseCounted, "subscription %d: a delivery was sent but is not stored", sub.index)
			}
		}
		s.auditEvents(sub, formed, end)
		if end {
			s.auditSplits(sub, stored)
		}
		s.auditIncidents(sub, stored)
		s.auditCounts(sub, stored, end)
		if end {
			s.auditLosses(sub)
			s.auditReplays(sub)
		}
	}
}

// countFormed counts the events of a delivery in formed.
func (s *simulation) countFormed(sub *modelSubscription, d *webhook.Delivery, formed map[int]int) {
	for _, e := range d.Events {
		if e.Name != webhook.EventPing {
			formed[s.events[e.ID]]++
			sub.inDelivery[s.events[e.ID]] = true
		}
	}
}

// auditDelivery compares a stored delivery with its attempts.
func (s *simulation) auditDelivery(sub *modelSubscription, d *webhook.Delivery, end bool) {
	m := sub.byID[d.ID]
	if m != nil && len(m.attempts) > d.AttemptsMade {
		s.violate(promiseCounted, "subscription %d: %d attempts were made, %d counted", sub.index, len(m.attempts), d.AttemptsMade)
	}
	if end && !d.Status.Final() {
		s.violate(promiseEnds, "subscription %d: a delivery is %s in the end", sub.index, d.Status)
	}
	if m != nil && !s.crashed && (end || s.dial == 0) && len(m.attempts) < d.AttemptsMade {
		s.violate(promiseKept, "subscription %d: %d attempts were counted, %d made", sub.index, d.AttemptsMade, len(m.attempts))
	}
	s.checkStatus(sub, m, d)
}

// auditSplits checks that each event of a failed delivery of several events was delivered
// otherwise, or failed alone, and that a split sends several events together only after a 429.
func (s *simulation) auditSplits(sub *modelSubscription, stored map[string]webhook.Delivery) {
	if !s.changes.removedBefore.IsZero() {
		return // retention may have removed the deliveries that followed
	}
	alone := make(map[string]bool) // events that were delivered, or whose own delivery has ended
	for id, d := range stored {
		for _, e := range d.Events {
			alone[e.ID] = alone[e.ID] || d.Status == webhook.StatusSuccess || len(d.Events) == 1 || s.changes.cancellable[id] ||
				d.FailureReason == webhook.FailureExpired
		}
		if m := sub.byID[d.SplitOf]; m != nil && len(d.Events) > 1 && !slices.ContainsFunc(m.attempts, func(a *modelAttempt) bool {
			return a.status == http.StatusTooManyRequests
		}) {
			s.violate(promiseBatch, "subscription %d: a split sent %d events together", sub.index, len(d.Events))
		}
	}
	for id, d := range stored {
		if d.Status != webhook.StatusFailed || len(d.Events) == 1 || s.changes.cancellable[id] {
			continue
		}
		if d.Splitting && sub.settings.active {
			s.violate(promiseEnds, "subscription %d: a split is open in the end", sub.index)
		}
		for _, e := range d.Events {
			name := s.log[s.events[e.ID]].name
			if !alone[e.ID] && !d.Splitting && sub.dropped&(1<<name) == 0 && !s.isErasing(e) {
				s.violate(promiseBatch, "subscription %d: event %d failed only with others", sub.index, s.events[e.ID])
			}
		}
	}
}

// auditEvents checks the number of deliveries that each event is in.
func (s *simulation) auditEvents(sub *modelSubscription, formed map[int]int, end bool) {
	for _, want := range sub.expected {
		n := formed[want.event]
		if n > 1 && !sub.unknownReplay {
			s.violate(promiseOnce, "subscription %d: event %d is in %d deliveries, want 1", sub.index, want.event, n)
		}
		if end && n == 0 && !want.uncertain && !want.mayBeRemoved && !sub.inDelivery[want.event] {
			s.violate(promiseKept, "subscription %d: event %d is in no delivery", sub.index, want.event)
		}
		delete(formed, want.event)
	}
	if len(formed) > 0 && !sub.unknownReplay {
		s.violate(promiseOwed, "subscription %d: got unwanted events %v", sub.index, slices.Sorted(maps.Keys(formed)))
	}
}

// auditCounts compares the service's counts for a subscription with its deliveries. The caller
// holds s.mu.
func (s *simulation) auditCounts(sub *modelSubscription, stored map[string]webhook.Delivery, end bool) {
	view, err := s.d.store.Subscriptions().View(context.Background(), sub.id, 1)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
		return
	}
	attempts, succeeded := 0, 0
	for _, d := range stored {
		if d.Events[0].Name == webhook.EventPing {
			continue // no attempt of a ping is counted
		}
		attempts += d.AttemptsMade
		if d.Status == webhook.StatusSuccess {
			succeeded++
		}
	}
	waiting := waitingIn(stored)
	if n := view.WaitingDeliveries; n != min(waiting, record.CountLimit) {
		// A retry may have been claimed between the two readings.
		if again, err := s.deliveries(sub.program, sub.id); err != nil || waitingIn(again) == waiting {
			s.violate(promiseCounts, "subscription %d: %d deliveries are said to wait, %d do: %v", sub.index, n, waiting, err)
		}
	}
	if n := view.WaitingEvents; end && n > 0 {
		s.violate(promiseCounts, "subscription %d: %d events are said to wait in the end", sub.index, n)
	}
	if s.crashed || !end || !s.changes.removedBefore.IsZero() || !s.faults.last().IsZero() {
		return // counts in memory were lost, count removed deliveries, or an attempt has no result
	}
	stats, err := s.d.store.Figures().Stats(context.Background(), sub.program, sub.id, record.StatHour,
		time.UnixMilli(0), s.wall().AddDate(9, 0, 0))
	var counted webhook.Stat
	for i := range stats {
		counted.Add(&stats[i])
	}
	if n := counted.Success + counted.Failed + counted.Retryable; err != nil || int(n) != attempts || int(counted.Success) != succeeded {
		s.violate(promiseCounts, "subscription %d: %d attempts are counted, %d with success, want %d and %d: %v",
			sub.index, n, counted.Success, attempts, succeeded, err)
	}
}

// waitingIn counts the deliveries that wait for their next attempt.
func waitingIn(stored map[string]webhook.Delivery) (n int) {
	for _, d := range stored {
		if !d.NextAttemptAt.IsZero() {
			n++
		}
	}
	return n
}

// checkStatus compares the status of a delivery with the responses of its
// receiver. The caller holds s.mu.
func (s *simulation) checkStatus(sub *modelSubscription, m *modelDelivery, d *webhook.Delivery) {
	var final []int
	if m != nil {
		for _, r := range m.attempts {
			if r.final() {
				final = append(final, r.status)
			}
		}
	}
	succeeded := slices.Contains(final, http.StatusOK)
	ok := true
	switch d.Status {
	case webhook.StatusSuccess:
		ok = succeeded
	case webhook.StatusFailed:
		switch d.FailureReason {
		case webhook.FailureAttemptsExhausted:
			ok = d.AttemptsMade == webhook.MaxAttempts && (!succeeded || s.crashed)
		case webhook.FailureRejected:
			ok = slices.ContainsFunc(final, func(status int) bool { return status != http.StatusOK })
		case webhook.FailureExpired:
			// Once the clock has jumped, the model does not know when the delivery was created.
			ok = (s.jumped || d.CreatedAt.Before(s.changes.removedBefore)) && !s.changes.removedBefore.IsZero() && s.mayEnd(m, final)
		case webhook.FailureUnsubscribed:
			ok = sub.dropped != 0 && (m == nil || !m.last().settled || !m.last().final() || m.last().interrupted)
		case webhook.FailureCancelled:
			ok = (s.changes.cancellable[d.ID] || slices.ContainsFunc(d.Events, s.isErasing)) && s.mayEnd(m, final)
		default:
			ok = false
		}
	default:
		ok = m == nil || !m.last().settled || !m.last().final() || m.last().interrupted
	}
	if !ok || len(final) > 1 && !s.crashed {
		s.violate(promiseEnds, "subscription %d: a delivery is %s %s after %d attempts and the final responses %v",
			sub.index, d.Status, d.FailureReason, d.AttemptsMade, final)
	}
}

// deliveries returns the stored deliveries of a subscription by ID.
func (w *testbed) deliveries(programID, subscriptionID string) (map[string]webhook.Delivery, error) {
	all := make(map[string]webhook.Delivery)
	values := url.Values{"page[size]": {"100"}}
	for {
		query, invalid := webhook.DeliveryList.Parse(values)
		if invalid != nil {
			return nil, invalid
		}
		page, next, err := w.d.store.Deliveries().Page(context.Background(), programID, subscriptionID, &query)
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			all[d.ID] = d
		}
		if next == "" {
			return all, nil
		}
		values.Set("page[cursor]", next)
	}
}
