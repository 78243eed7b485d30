package dispatcher

import (
	"context"
	"net/url"
	"slices"
	"time"

	"service/webhook"
)

// replaying is a replay, and what a model knows of it.
type replaying struct {
	id      string
	only    webhook.ReplayOnly
	edge    time.Time       // of retention when it was begun
	may     map[int]bool    // the events that it may send
	must    []int           // of those it must, in the order of the log, unless something else sends them
	before  map[string]bool // the subscription's deliveries when it was begun
	sent    map[int]bool
	newest  int64           // seq of the event that it has sent last
	known   map[string]bool // its deliveries
	settled bool
	limit   int64 // how many events it had sent when it was cancelled, -1 for not
}

// replay begins a replay of the last hour, of all, or of what was received since an
// event in the log and before another one.
func (s *simulation) replay(h *subject, n int) {
	f := &webhook.ReplayFields{From: s.wall().Add(-time.Hour).Truncate(time.Millisecond), Only: []webhook.ReplayOnly{webhook.ReplayAll, webhook.ReplayMissed, webhook.ReplayFailed}[n%3]}
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
	var r *replaying
	var err error
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r, err = s.expectReplay(h, f)
	})
	if s.refused(err); err != nil {
		return
	}
	created, err := s.d.store.Replays().Create(context.Background(), h.program, h.id, f)
	s.refused(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.id = created.ID; {
	case err == nil:
		h.replays = append(h.replays, r)
	case s.down:
		h.replayed = true // perhaps
	}
}

// expectReplay returns what a replay has to send that is begun now. Owns s.mu.
func (s *simulation) expectReplay(h *subject, f *webhook.ReplayFields) (*replaying, error) {
	r := &replaying{only: f.Only, edge: s.changes.edge, may: make(map[int]bool), before: make(map[string]bool), sent: make(map[int]bool), known: make(map[string]bool), limit: -1}
	stored, err := s.deliveries(h)
	if err != nil {
		return nil, err
	}
	// Of each event, in how many deliveries of which status it is.
	in, failed, succeeded := make(map[int]int), make(map[int]int), make(map[int]int)
	for id, d := range stored {
		r.before[id] = true
		for _, e := range d.Events {
			event, ok := s.events[e.ID]
			switch {
			case !ok: // a ping
				continue
			case d.Status == webhook.StatusFailed:
				failed[event]++
			case d.Status == webhook.StatusSuccess:
				succeeded[event]++
			}
			in[event]++
		}
	}
	s.learnRemoved(h, stored)
	gone := h.gone()
	owed := make(map[int]bool)
	for _, o := range h.debts {
		owed[o.event] = true
	}
	for i, e := range s.log {
		if e.program != h.program || h.now.names&(1<<e.name) == 0 || !e.within(f) {
			continue
		}
		may, must := true, !owed[i] || in[i] > 0
		switch f.Only {
		case webhook.ReplayMissed:
			may = in[i] == 0 && !h.accepted[i]
			must = !owed[i] && in[i] == 0 && !gone[i]
		case webhook.ReplayFailed:
			may = succeeded[i] == 0 && !h.accepted[i]
			must = in[i] > 0 && in[i] == failed[i] && !gone[i]
		}
		if may {
			r.may[i] = true
		}
		if must && !e.received.IsZero() {
			r.must = append(r.must, i)
		}
	}
	return r, nil
}

// gone returns the events that were in a delivery which retention has removed.
func (h *subject) gone() map[int]bool {
	gone := make(map[int]bool)
	for _, m := range h.sent {
		for _, event := range m.events {
			gone[event] = gone[event] || m.removed
		}
	}
	return gone
}

// within says whether a replay may send the event by when that was received.
func (e *logged) within(f *webhook.ReplayFields) bool {
	return e.received.IsZero() || !e.received.Before(f.From) && (f.To.IsZero() || e.received.Before(f.To))
}

// cancelReplay cancels the newest replay of a subscription that may be running.
func (s *simulation) cancelReplay(h *subject) {
	s.mu.Lock()
	var r *replaying
	for _, other := range h.replays {
		if !other.settled {
			r = other
		}
	}
	s.mu.Unlock()
	if r == nil {
		return
	}
	is, err := s.d.store.Replays().Cancel(context.Background(), h.program, h.id, r.id)
	if s.refused(err); err == nil && is.Status == webhook.ReplayCancelled {
		r.limit = is.EventsSent
	}
}

// learnReplays reads what the running replays have formed since the last time.
// Owns s.mu.
func (s *simulation) learnReplays() {
	for _, h := range s.subs {
		if h.now.deleted {
			continue
		}
		for _, r := range h.replays {
			if !r.settled {
				s.learnReplay(h, r)
			}
		}
	}
}

func (s *simulation) learnReplay(h *subject, r *replaying) {
	values := url.Values{"filter[replay_id]": {r.id}, "filter[subscription_id]": {h.id}, "page[size]": {"100"}, "sort": {"created_at"}}
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
			if !r.known[d.ID] && d.RedeliveryOf == "" {
				r.known[d.ID], h.again[d.ID] = true, r
				s.checkReplayed(h, r, &d)
			}
		}
		if next == "" {
			break
		}
		values.Set("page[cursor]", next)
	}
	is, err := s.d.store.Replays().Get(context.Background(), h.program, h.id, r.id)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
		return
	}
	switch r.settled = is.Status != webhook.ReplayRunning; {
	case is.EventsSent != int64(len(r.sent)) || r.limit >= 0 && is.EventsSent != r.limit:
		s.violate(promiseReplay, "subscription %d: %d events were sent, %d are counted, and %d were when it was cancelled", h.i, len(r.sent), is.EventsSent, r.limit)
	case is.Status == webhook.ReplayDone:
		s.checkReplayDone(h, r)
	case is.Status == webhook.ReplayCancelled && r.limit < 0 && s.faults.calm() && !s.crashed:
		s.violate(promiseReplay, "subscription %d: a replay was cancelled", h.i)
	}
}

// checkReplayed checks a delivery that a replay has formed. Owns s.mu.
func (s *simulation) checkReplayed(h *subject, r *replaying, d *webhook.Delivery) {
	swept := !r.edge.Equal(s.changes.edge)
	for _, e := range d.Events {
		event := s.events[e.ID]
		seq := s.published[event]
		if r.sent[event] || seq != 0 && seq <= r.newest || !r.may[event] && !swept {
			s.violate(promiseReplay, "subscription %d: a replay of %s has sent event %d, at %d of the log, after %d", h.i, r.only, event, seq, r.newest)
		}
		r.sent[event] = true
		r.newest = max(r.newest, seq)
	}
}

// checkReplayDone checks that a replay that is done has sent all that it had to.
// Owns s.mu.
func (s *simulation) checkReplayDone(h *subject, r *replaying) {
	var since map[int]bool // in deliveries that something else has formed since
	for _, event := range r.must {
		if r.sent[event] || s.log[event].received.Before(s.changes.edge) {
			continue
		}
		if r.only != webhook.ReplayAll && since == nil {
			since = s.formedSince(h, r)
		}
		if !since[event] {
			s.violate(promiseReplay, "subscription %d: a replay of %s has not sent event %d, at %d of the log", h.i, r.only, event, s.published[event])
		}
	}
}

// formedSince returns the events in deliveries that were formed since a replay was
// begun. Owns s.mu.
func (s *simulation) formedSince(h *subject, r *replaying) map[int]bool {
	since := make(map[int]bool)
	stored, err := s.deliveries(h)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
	}
	for id, d := range stored {
		for _, e := range d.Events {
			if event, ok := s.events[e.ID]; ok && !r.before[id] {
				since[event] = true
			}
		}
	}
	for id, m := range h.sent { // and removed since
		for _, event := range m.events {
			since[event] = since[event] || !r.before[id]
		}
	}
	return since
}

// auditReplays checks that every replay is at its end. Owns s.mu.
func (s *simulation) auditReplays(h *subject) {
	if i := slices.IndexFunc(h.replays, func(r *replaying) bool { return !r.settled }); i >= 0 {
		s.violate(promiseReplay, "subscription %d: a replay still runs", h.i)
	}
}
