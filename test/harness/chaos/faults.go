package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"service/test/harness"
	"service/webhook"
)

// audit compares what the service has stored with the ledger.
type audit struct {
	*Chaos
	faults  []string
	stored  map[string]map[string]int // by program, the seq of each event
	known   map[string]bool           // deliveries that the service has stored
	slowest time.Duration             // from ready to the next attempt, of interrupted attempts to healthy receivers
	count   struct {
		acked, inDoubt, deliveries, repeated, interrupted, exhausted, again, afterInterruption int
	}
}

// Faults compares what the service has stored with the ledger, after Settle, and
// returns every broken promise.
func (c *Chaos) Faults() []string {
	c.tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &audit{Chaos: c, faults: slices.Clone(c.violations), stored: make(map[string]map[string]int), known: make(map[string]bool)}
	for _, p := range c.Programs {
		a.readLog(p)
	}
	a.checkAcknowledged()
	a.checkBatches()
	for _, p := range c.Programs {
		for kind, subscription := range p.Subscriptions {
			a.checkSubscription(p, kind, subscription)
		}
	}
	a.checkRegistrations()
	a.checkArrivals()
	if !c.UnreliableDisk && a.slowest > ResumeWithin() {
		a.fault("an interrupted attempt was made again only %s after the service was ready again", a.slowest)
	}
	c.tb.Logf("%d processes; %d events acknowledged, %d stored but not acknowledged; %d deliveries, %d of them in more than one attempt, %d attempts interrupted, %d deliveries failed for good, %d times one arrived again after a 200, %d of these after an interruption; %d subscriptions and tokens; interrupted attempts to the healthy receivers were made again at most %s after the service was ready again",
		len(c.Instance.Processes()), a.count.acked, a.count.inDoubt, a.count.deliveries, a.count.repeated, a.count.interrupted, a.count.exhausted, a.count.again, a.count.afterInterruption, len(c.registered), a.slowest.Round(time.Millisecond))
	return a.faults
}

func (a *audit) fault(format string, args ...any) {
	a.faults = append(a.faults, fmt.Sprintf(format, args...))
}

// readLog reads a program's log: it has no gaps, and nothing that was not
// published, and every event is whole.
func (a *audit) readLog(p *Program) {
	events, err := harness.Feed[json.RawMessage](a.Instance, p.Token, "/v2/events")
	if err != nil {
		a.fault("%v", err)
	}
	seqs := make(map[string]int)
	a.stored[p.ID] = seqs
	for i, raw := range events {
		var e struct {
			ID  string
			Seq int
		}
		if err := json.Unmarshal(raw, &e); err != nil {
			a.tb.Fatal(err)
		}
		if want := len(events) - i; e.Seq != want {
			a.fault("program %s: event %s has seq %d at position %d of the log", p.ID, e.ID, e.Seq, want)
		}
		seqs[e.ID] = e.Seq
		sent := a.events[e.ID]
		if sent == nil || sent.program != p.ID {
			a.fault("program %s has event %s, which was not published to it", p.ID, e.ID)
			continue
		}
		if want := bytes.TrimSuffix(sent.json(e.ID), []byte("}")); !bytes.HasPrefix(raw, want) {
			a.fault("event %s is not whole:\n got %s\nwant %s…", e.ID, raw, want)
		}
	}
}

// checkAcknowledged: every acknowledged event is stored.
func (a *audit) checkAcknowledged() {
	lost := 0
	for id, e := range a.events {
		_, found := a.stored[e.program][id]
		switch {
		case e.acked && !found:
			lost++
		case e.acked:
			a.count.acked++
		case found:
			a.count.inDoubt++
		}
	}
	if lost > 0 {
		a.fault("of the %d events that were acknowledged, %d are not there", lost+a.count.acked, lost)
	}
}

// checkBatches: of the events that were published in one array all are stored,
// or none.
func (a *audit) checkBatches() {
	for _, ids := range a.batches {
		there := 0
		for _, id := range ids {
			if _, ok := a.stored[a.events[id].program][id]; ok {
				there++
			}
		}
		if there != 0 && there != len(ids) {
			a.fault("of %d events that were published together, %d are there", len(ids), there)
		}
	}
}

// checkSubscription: every event is in exactly one delivery of a subscription
// that wants it, and each delivery is right.
func (a *audit) checkSubscription(p *Program, kind, subscription string) {
	path := "/v2/webhooks/subscriptions/" + subscription + "/deliveries"
	deliveries, err := harness.Feed[harness.Delivery](a.Instance, p.Token, path)
	if err != nil {
		a.fault("an acknowledged subscription to the %s receiver: %v", kind, err)
	}
	a.count.deliveries += len(deliveries)
	in := make(map[string]int)   // in how many deliveries each event is
	interrupted := map[int]int{} // attempts, by the number of the process that made them
	for i := range deliveries {
		d := &deliveries[i]
		a.known[d.ID] = true
		seen := a.arrivals[d.ID]
		if seen == nil {
			seen = &arrival{}
		}
		a.checkEnd(d, kind, seen)
		a.checkEvents(p, d, subscription, seen, in)
		if d.AttemptsMade != 1 || seen.times > 1 || d.Status != webhook.StatusSuccess {
			a.checkAttempts(p, path, kind, d, seen, interrupted)
		}
	}
	a.checkInterrupted(kind, interrupted)
	for id, seq := range a.stored[p.ID] {
		want := 0
		if e := a.events[id]; e != nil && slices.Contains(wantedBy[kind], e.name) {
			want = 1
		}
		if in[id] != want {
			a.fault("event %d of program %s is in %d deliveries to the %s receiver, want %d", seq, p.ID, in[id], kind, want)
		}
	}
}

// checkEnd: a delivery has ended in a way that its receiver explains, after no
// more attempts than are allowed.
func (a *audit) checkEnd(d *harness.Delivery, kind string, seen *arrival) {
	if d.AttemptsMade > webhook.MaxAttempts || seen.times > d.AttemptsMade {
		a.fault("delivery %s arrived %d times, in %d attempts", d.ID, seen.times, d.AttemptsMade)
	}
	switch {
	case !d.Status.Final():
		a.fault("delivery %s to the %s receiver is still %s after %d attempts", d.ID, kind, d.Status, d.AttemptsMade)
	case d.Status == webhook.StatusSuccess && !seen.answered:
		a.fault("delivery %s is a success, but was never answered 200", d.ID)
	case d.Status == webhook.StatusFailed && d.FailureReason != webhook.FailureAttemptsExhausted:
		a.fault("delivery %s failed: %s", d.ID, d.FailureReason)
	case d.Status == webhook.StatusFailed:
		a.count.exhausted++
	}
}

// checkEvents: a delivery's events are in the order of the log, and are those
// that arrived. It counts them in in.
func (a *audit) checkEvents(p *Program, d *harness.Delivery, subscription string, seen *arrival, in map[string]int) {
	last := 0
	var ids []string
	for _, e := range d.Events {
		ids = append(ids, e.ID)
		if e.Name == webhook.EventPing {
			continue
		}
		in[e.ID]++
		if seq := a.stored[p.ID][e.ID]; seq <= last {
			a.fault("delivery %s has event %s out of accept order", d.ID, e.ID)
		} else {
			last = seq
		}
	}
	if seen.events != nil && (!slices.Equal(seen.events, ids) || seen.subscription != subscription) {
		a.fault("delivery %s arrived for subscription %s with %s, and is stored for %s with %s", d.ID, seen.subscription, seen.events, subscription, ids)
	}
}

// checkAttempts: all attempts of a delivery are stored, and it arrived again
// after a 200 only where the service could not know of the 200. It counts
// interrupted attempts in interrupted.
func (a *audit) checkAttempts(p *Program, path, kind string, d *harness.Delivery, seen *arrival, interrupted map[int]int) {
	a.count.repeated++
	one, _, err := harness.Get[harness.Delivery](a.Instance, p.Token, path+"/"+d.ID)
	if err != nil {
		a.fault("%v", err)
		return
	}
	unanswered, cut := 0, 0
	for i, at := range one.Attempts {
		if at.Number != i+1 {
			a.fault("delivery %s: attempt %d is at position %d", d.ID, at.Number, i+1)
		}
		if at.Error.Code != webhook.ErrorNone {
			unanswered++
		}
		if at.Error.Code != webhook.ErrorInterrupted {
			continue
		}
		cut++
		interrupted[a.processAt(at.StartedAt)]++
		if kind == Healthy && i+1 < len(one.Attempts) {
			a.slowest = max(a.slowest, a.waited(at.StartedAt, one.Attempts[i+1].StartedAt))
		}
	}
	if len(one.Attempts) != one.AttemptsMade {
		a.fault("delivery %s has %d attempts, of which %d are stored", d.ID, one.AttemptsMade, len(one.Attempts))
	}
	a.count.interrupted += cut
	// It may arrive again after a 200 no more often than attempts were
	// interrupted, which is bounded by what was in flight, or timed out.
	if seen.ok > 1+unanswered {
		a.fault("delivery %s was answered 200 %d times, with %d attempts that had no answer", d.ID, seen.ok, unanswered)
	}
	if seen.ok > 1 {
		a.count.again += seen.ok - 1
		a.count.afterInterruption += min(seen.ok-1, cut)
	}
}

// checkInterrupted: attempts were interrupted only when the service was struck,
// and no more than may be in flight.
func (a *audit) checkInterrupted(kind string, interrupted map[int]int) {
	for process, n := range interrupted {
		if process < 0 || process == len(a.Instance.Processes())-1 {
			a.fault("%d attempts to the %s receiver were interrupted although nothing struck", n, kind)
		}
		if n > maxInFlight+maxPings {
			a.fault("process %d: %d attempts to the %s receiver were in flight, want at most %d", process, n, kind, maxInFlight+maxPings)
		}
	}
}

// checkRegistrations: acknowledged subscriptions and tokens are stored, and each
// subscription has one ping.
func (a *audit) checkRegistrations() {
	for _, r := range a.registered {
		if r.subscription != "" {
			path := "/v2/webhooks/subscriptions/" + r.subscription
			s, _, err := harness.Get[struct{ URL string }](a.Instance, r.program.Token, path)
			if err != nil || s.URL != r.url {
				a.fault("the acknowledged subscription %s: got %q, %v; want %q", r.subscription, s.URL, err, r.url)
			}
			pings, _, err := harness.Get[[]harness.Delivery](a.Instance, r.program.Token, path+"/deliveries")
			if err != nil || len(pings) != 1 || len(pings[0].Events) != 1 || pings[0].Events[0].Name != webhook.EventPing {
				a.fault("the pings of the acknowledged subscription %s: got %+v, %v; want one", r.subscription, pings, err)
			}
			for _, d := range pings {
				a.known[d.ID] = true
				if seen := a.arrivals[d.ID]; d.Status == webhook.StatusSuccess && (seen == nil || !seen.answered) {
					a.fault("ping %s is a success, but was never answered 200", d.ID)
				}
			}
		}
		if r.token != "" {
			if _, _, err := harness.Get[json.RawMessage](a.Instance, r.token, "/v2/webhooks/subscriptions"); err != nil {
				a.fault("a token that was acknowledged: %v", err)
			}
		}
	}
}

// checkArrivals: everything that arrived is stored, and arrived at most five
// times.
func (a *audit) checkArrivals() {
	for id, seen := range a.arrivals {
		if seen.times > webhook.MaxAttempts {
			a.fault("delivery %s arrived %d times", id, seen.times)
		}
		if !a.known[id] && seen.times > 0 && a.acknowledged(seen.subscription) {
			a.fault("delivery %s arrived, but is not stored", id)
		}
	}
}

// acknowledged reports whether a subscription's creation was acknowledged.
func (c *Chaos) acknowledged(subscription string) bool {
	for _, p := range c.Programs {
		for _, id := range p.Subscriptions {
			if id == subscription {
				return true
			}
		}
	}
	return slices.ContainsFunc(c.registered, func(r *registration) bool { return r.subscription == subscription })
}

// processAt returns the number of the process that ran at a time, -1 for none.
func (c *Chaos) processAt(at time.Time) int {
	return slices.IndexFunc(c.Instance.Processes(), func(p *harness.Process) bool {
		// The service stores milliseconds.
		return at.After(p.Started.Add(-time.Millisecond)) && (p.Ended.IsZero() || at.Before(p.Ended))
	})
}

// waited returns for how long the service had been ready again, after the
// process of one attempt had ended, when it made the next.
func (c *Chaos) waited(attempt, next time.Time) (d time.Duration) {
	for _, p := range c.Instance.Processes() {
		if p.Started.Before(attempt) || p.Ready.IsZero() || next.Before(p.Ready) {
			continue
		}
		end := next
		if !p.Ended.IsZero() && p.Ended.Before(next) {
			end = p.Ended
		}
		d += end.Sub(p.Ready)
	}
	return d
}

// RunningFaults returns every broken promise that can be seen while the
// publishers are at work: every acknowledged event is stored, and what has
// arrived is stored as an attempt.
func (c *Chaos) RunningFaults() (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	subscriptions := make(map[string]bool)
	for _, p := range c.Programs {
		for _, id := range p.Subscriptions {
			subscriptions[id] = true
		}
	}
	times, acked := c.snapshot(subscriptions)
	for _, p := range c.Programs {
		stored, err := harness.Feed[struct{ ID string }](c.Instance, p.Token, "/v2/events")
		if err != nil {
			fault("%v", err)
		}
		for _, e := range stored {
			delete(acked, e.ID)
		}
		for _, subscription := range p.Subscriptions {
			deliveries, err := harness.Feed[harness.Delivery](c.Instance, p.Token, "/v2/webhooks/subscriptions/"+subscription+"/deliveries")
			if err != nil {
				fault("%v", err)
			}
			for _, d := range deliveries {
				if times[d.ID] > d.AttemptsMade {
					fault("delivery %s has arrived %d times, and %d attempts are stored", d.ID, times[d.ID], d.AttemptsMade)
				}
				delete(times, d.ID)
			}
		}
	}
	for id := range acked {
		fault("event %s is not there, which was acknowledged", id)
	}
	for id := range times {
		fault("delivery %s has arrived, and is not stored", id)
	}
	return faults
}

// snapshot returns how often each delivery of the subscriptions has arrived, and
// the events that were acknowledged.
func (c *Chaos) snapshot(subscriptions map[string]bool) (times map[string]int, acked map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	times, acked = make(map[string]int), make(map[string]bool)
	for id, a := range c.arrivals {
		if subscriptions[a.subscription] {
			times[id] = a.times
		}
	}
	for id, e := range c.events {
		if e.acked {
			acked[id] = true
		}
	}
	return times, acked
}
