package dispatcher

import (
	"context"
	"net/url"
	"slices"
	"time"

	"service/store/storetest"
	"service/webhook"
)

// modelReplay is the model of a replay.
type modelReplay struct {
	id               string
	only             webhook.ReplayOnly
	removedBefore    time.Time       // of retention, when the replay was created
	allowed          map[int]bool    // events that it may send
	required         []int           // events that it must send, in log order, unless another delivery contains them
	deliveriesBefore map[string]bool // the subscription's deliveries when it was created
	sent             map[int]bool
	lastSeq          int64           // seq of the last event that it sent
	deliveries       map[string]bool // its deliveries
	ended            bool
	sentAtCancel     int64 // events sent when it was cancelled, -1 if it was not
}

// replay creates a replay of the last hour, of everything, or of the events
// received between two events in the log.
func (s *simulation) replay(sub *modelSubscription, n int) {
	f := &webhook.ReplayFields{From: s.wall().Add(-time.Hour).Truncate(time.Millisecond),
		Only: []webhook.ReplayOnly{webhook.ReplayAll, webhook.ReplayMissed, webhook.ReplayFailed}[n%3]}
	if n >= 3 {
		f.From = time.UnixMilli(0)
	}
	s.mu.Lock()
	if n == 6 && len(s.log) > 3 {
		if e := s.log[len(s.log)*3/4]; e.received.After(f.From) {
			f.To = e.received
		}
	}
	s.mu.Unlock()
	var r *modelReplay
	var err error
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r, err = s.expectReplay(sub, f)
	})
	if s.allowRefusal(err); err != nil {
		return
	}
	created, err := storetest.CreateReplay(context.Background(), s.d.store, sub.program, sub.id, f)
	s.allowRefusal(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.id = created.ID; {
	case err == nil:
		sub.replays = append(sub.replays, r)
	case s.down:
		sub.unknownReplay = true // the replay may have been created
	}
}

// expectReplay returns what a replay that is created now must send. The caller
// holds s.mu.
func (s *simulation) expectReplay(sub *modelSubscription, f *webhook.ReplayFields) (*modelReplay, error) {
	r := &modelReplay{only: f.Only, removedBefore: s.changes.removedBefore, allowed: make(map[int]bool),
		deliveriesBefore: make(map[string]bool), sent: make(map[int]bool), deliveries: make(map[string]bool), sentAtCancel: -1}
	stored, err := s.deliveries(sub.program, sub.id)
	if err != nil {
		return nil, err
	}
	// For each event, the number of deliveries it is in, by status.
	in, failed, succeeded := make(map[int]int), make(map[int]int), make(map[int]int)
	splitting := make(map[int]bool)
	for id, d := range stored {
		r.deliveriesBefore[id] = true
		for _, e := range d.Events {
			event, ok := s.events[e.ID]
			switch {
			case !ok: // a ping
				continue
			case d.Splitting:
				splitting[event] = true
				failed[event]++
			case d.Status == webhook.StatusFailed:
				failed[event]++
			case d.Status == webhook.StatusSuccess:
				succeeded[event]++
			}
			in[event]++
		}
	}
	s.learnRemoved(sub, stored)
	gone := sub.removedEvents()
	want := make(map[int]bool)
	for _, o := range sub.expected {
		want[o.event] = true
	}
	for i, e := range s.log {
		if e.program != sub.program || !sub.settings.wants(&e) || !e.within(f) {
			continue
		}
		may, must := true, !want[i] || in[i] > 0
		switch f.Only {
		case webhook.ReplayMissed:
			may = in[i] == 0 && !sub.accepted[i]
			must = !want[i] && in[i] == 0 && !gone[i]
		case webhook.ReplayFailed:
			may = succeeded[i] == 0 && !sub.accepted[i]
			must = in[i] > 0 && in[i] == failed[i] && !gone[i] && !splitting[i]
		}
		if may {
			r.allowed[i] = true
		}
		if must && !e.received.IsZero() && !e.erasing {
			r.required = append(r.required, i)
		}
	}
	return r, nil
}

// removedEvents returns the events of deliveries that retention has removed.
func (sub *modelSubscription) removedEvents() map[int]bool {
	gone := make(map[int]bool)
	for _, m := range sub.byID {
		for _, event := range m.events {
			gone[event] = gone[event] || m.removed
		}
	}
	return gone
}

// within reports whether the event was received in the range of a replay.
func (e *loggedEvent) within(f *webhook.ReplayFields) bool {
	return e.received.IsZero() || !e.received.Before(f.From) && (f.To.IsZero() || e.received.Before(f.To))
}

// cancelReplay cancels the newest replay of a subscription that may be running.
func (s *simulation) cancelReplay(sub *modelSubscription) {
	s.mu.Lock()
	var r *modelReplay
	for _, other := range sub.replays {
		if !other.ended {
			r = other
		}
	}
	s.mu.Unlock()
	if r == nil {
		return
	}
	is, err := storetest.CancelReplay(context.Background(), s.d.store, sub.program, sub.id, r.id)
	if s.allowRefusal(err); err == nil && is.Status == webhook.ReplayCancelled {
		r.sentAtCancel = is.EventsSent
	}
}

// learnReplays reads which deliveries the running replays have formed since the last call.
// The caller holds s.mu.
func (s *simulation) learnReplays() {
	for _, sub := range s.subs {
		if sub.settings.deleted {
			continue
		}
		for _, r := range sub.replays {
			if !r.ended {
				s.learnReplay(sub, r)
			}
		}
	}
}

func (s *simulation) learnReplay(sub *modelSubscription, r *modelReplay) {
	values := url.Values{"filter[replay_id]": {r.id}, "filter[subscription_id]": {sub.id}, "page[size]": {"100"}, "sort": {"created_at"}}
	for {
		query, invalid := webhook.AllDeliveryList.Parse(values)
		if invalid != nil {
			s.violate(promiseOperates, "%v", invalid)
			return
		}
		page, next, err := s.d.store.Deliveries().PageAll(context.Background(), &query)
		if err != nil {
			s.violate(promiseOperates, "%v", err)
			return
		}
		for _, d := range page {
			if !r.deliveries[d.ID] && d.RedeliveryOf == "" {
				r.deliveries[d.ID], sub.replayDeliveries[d.ID] = true, r
				s.checkReplayed(sub, r, &d)
			}
		}
		if next == "" {
			break
		}
		values.Set("page[cursor]", next)
	}
	is, err := s.d.store.Replays().Get(context.Background(), sub.program, sub.id, r.id)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
		return
	}
	switch r.ended = is.Status != webhook.ReplayRunning; {
	case is.EventsSent != int64(len(r.sent)) || r.sentAtCancel >= 0 && is.EventsSent != r.sentAtCancel:
		s.violate(promiseReplay, "subscription %d: a replay sent %d events, counted %d, and had counted %d when it was cancelled",
			sub.index, len(r.sent), is.EventsSent, r.sentAtCancel)
	case is.Status == webhook.ReplayDone:
		s.checkReplayDone(sub, r)
	case is.Status == webhook.ReplayCancelled && r.sentAtCancel < 0 && s.faults.recovered() && !s.crashed:
		s.violate(promiseReplay, "subscription %d: a replay was cancelled", sub.index)
	}
}

// checkReplayed checks a delivery that a replay has formed. The caller holds s.mu.
func (s *simulation) checkReplayed(sub *modelSubscription, r *modelReplay, d *webhook.Delivery) {
	retentionRan := !r.removedBefore.Equal(s.changes.removedBefore)
	for _, e := range d.Events {
		event := s.events[e.ID]
		seq := s.published[event]
		if r.sent[event] || seq != 0 && seq <= r.lastSeq || !r.allowed[event] && !retentionRan {
			s.violate(promiseReplay, "subscription %d: a replay of %s sent event %d with seq %d after seq %d",
				sub.index, r.only, event, seq, r.lastSeq)
		}
		r.sent[event] = true
		r.lastSeq = max(r.lastSeq, seq)
	}
}

// checkReplayDone checks that a completed replay has sent all required events. The
// caller holds s.mu.
func (s *simulation) checkReplayDone(sub *modelSubscription, r *modelReplay) {
	var since map[int]bool // events in later deliveries that the replay did not form
	for _, event := range r.required {
		e := &s.log[event]
		if r.sent[event] || e.erasing || e.counted.Before(s.changes.removedBefore) || sub.dropped&(1<<e.name) != 0 {
			continue
		}
		if r.only != webhook.ReplayAll && since == nil {
			since = s.formedSince(sub, r)
		}
		if !since[event] {
			s.violate(promiseReplay, "subscription %d: a replay of %s did not send event %d with seq %d",
				sub.index, r.only, event, s.published[event])
		}
	}
}

// formedSince returns the events in deliveries that were formed after a replay was
// created. The caller holds s.mu.
func (s *simulation) formedSince(sub *modelSubscription, r *modelReplay) map[int]bool {
	since := make(map[int]bool)
	stored, err := s.deliveries(sub.program, sub.id)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
	}
	for id, d := range stored {
		for _, e := range d.Events {
			if event, ok := s.events[e.ID]; ok && !r.deliveriesBefore[id] {
				since[event] = true
			}
		}
	}
	for id, m := range sub.byID { // deliveries that were removed since
		for _, event := range m.events {
			since[event] = since[event] || !r.deliveriesBefore[id]
		}
	}
	return since
}

// auditReplays checks that every replay has ended. The caller holds s.mu.
func (s *simulation) auditReplays(sub *modelSubscription) {
	if i := slices.IndexFunc(sub.replays, func(r *modelReplay) bool { return !r.ended }); i >= 0 {
		s.violate(promiseReplay, "subscription %d: a replay is still running", sub.index)
	}
}
