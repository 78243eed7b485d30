package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"service/test/harness"
	"service/webhook"
)

// audit compares what the service has stored with the ledger.
type audit struct {
	*Chaos
	faults  []string
	stored  map[string]map[string]int // by program, the seq of each event
	known   map[string]bool           // IDs of stored deliveries
	slowest time.Duration             // longest time from a restart to the repetition of an interrupted attempt
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
	if !testing.Short() && !c.UnreliableDisk && a.slowest > ResumeWithin() {
		a.fault("an interrupted attempt was repeated %s after the service was ready again, want within %s", a.slowest, ResumeWithin())
	}
	n := a.count
	c.tb.Logf("%d processes; %d events acknowledged, %d stored but not acknowledged; %d subscriptions and tokens",
		len(c.Instance.Processes()), n.acked, n.inDoubt, len(c.registered))
	c.tb.Logf("%d deliveries, %d with more than one attempt, %d failed, %d arrived again after a 200, %d of these after an interruption",
		n.deliveries, n.repeated, n.exhausted, n.again, n.afterInterruption)
	c.tb.Logf("%d attempts interrupted, repeated within %s of the restart", n.interrupted, a.slowest.Round(time.Millisecond))
	return a.faults
}

func (a *audit) fault(format string, args ...any) {
	a.faults = append(a.faults, fmt.Sprintf(format, args...))
}

// readLog reads a program's log, and checks that it has no gaps, only published events,
// and every event complete.
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
			a.fault("program %s has event %s, which it did not publish", p.ID, e.ID)
			continue
		}
		if want := bytes.TrimSuffix(sent.json(e.ID), []byte("}")); !bytes.HasPrefix(raw, want) {
			a.fault("event %s is wrong:\n got %s\nwant %s…", e.ID, raw, want)
		}
	}
}

// checkAcknowledged checks that every acknowledged event is stored.
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
		a.fault("%d of %d acknowledged events are missing", lost, lost+a.count.acked)
	}
}

// checkBatches checks that of the events published in one array either all or none are stored.
func (a *audit) checkBatches() {
	for _, ids := range a.batches {
		there := 0
		for _, id := range ids {
			if _, ok := a.stored[a.events[id].program][id]; ok {
				there++
			}
		}
		if there != 0 && there != len(ids) {
			a.fault("%d of %d events published together are stored, want all or none", there, len(ids))
		}
	}
}

// checkSubscription checks that every event is in exactly one delivery of each
// subscription to it, and that each delivery is right.
func (a *audit) checkSubscription(p *Program, kind, subscription string) {
	path := "/v2/webhooks/subscriptions/" + subscription + "/deliveries"
	deliveries, err := harness.Feed[harness.Delivery](a.Instance, p.Token, path)
	if err != nil {
		a.fault("an acknowledged subscription to the %s receiver: %v", kind, err)
	}
	a.count.deliveries += len(deliveries)
	in := make(map[string]int)   // event ID → number of deliveries with it
	interrupted := map[int]int{} // process number → its interrupted attempts
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

// checkEnd checks that a delivery has ended as its receiver determines, with no more attempts than
// allowed.
func (a *audit) checkEnd(d *harness.Delivery, kind string, seen *arrival) {
	if d.AttemptsMade > webhook.MaxAttempts || seen.times > d.AttemptsMade {
		a.fault("delivery %s arrived %d times, in %d attempts", d.ID, seen.times, d.AttemptsMade)
	}
	switch {
	case !d.Status.Final():
		a.fault("delivery %s to the %s receiver is still %s after %d attempts", d.ID, kind, d.Status, d.AttemptsMade)
	case d.Status == webhook.StatusSuccess && !seen.answered:
		a.fault("delivery %s is a success, but its receiver never responded 200", d.ID)
	case d.Status == webhook.StatusFailed && d.FailureReason != webhook.FailureAttemptsExhausted:
		a.fault("delivery %s failed: %s", d.ID, d.FailureReason)
	case d.Status == webhook.StatusFailed:
		a.count.exhausted++
	}
}

// checkEvents checks that a delivery's events are in log order and equal to the events that
// arrived. It counts them in in, unless the delivery failed with several events, which the service
// sends again one by one in new deliveries.
func (a *audit) checkEvents(p *Program, d *harness.Delivery, subscription string, seen *arrival, in map[string]int) {
	last := 0
	var ids []string
	for _, e := range d.Events {
		ids = append(ids, e.ID)
		if e.Name == webhook.EventPing {
			continue
		}
		if !sentAgain(d) {
			in[e.ID]++
		}
		if seq := a.stored[p.ID][e.ID]; seq <= last {
			a.fault("delivery %s has event %s out of accept order", d.ID, e.ID)
		} else {
			last = seq
		}
	}
	if seen.events != nil && (!slices.Equal(seen.events, ids) || seen.subscription != subscription) {
		a.fault("delivery %s: arrived for subscription %s with %s, but is stored for %s with %s",
			d.ID, seen.subscription, seen.events, subscription, ids)
	}
}

// sentAgain reports whether a delivery failed with several events, which the service sends again
// one by one in new deliveries.
func sentAgain(d *harness.Delivery) bool {
	return d.Status == webhook.StatusFailed && len(d.Events) > 1
}

// checkAttempts checks that all attempts of a delivery are stored, and that it arrived
// again after a 200 only if the service could not know of the 200. It counts
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
	// A delivery may arrive again after a 200 once for each attempt that was
	// interrupted or timed out.
	if seen.ok > 1+unanswered {
		a.fault("delivery %s: the receiver responded 200 %d times, but only %d attempts had no response", d.ID, seen.ok, unanswered)
	}
	if seen.ok > 1 {
		a.count.again += seen.ok - 1
		a.count.afterInterruption += min(seen.ok-1, cut)
	}
}

// checkInterrupted checks that attempts were interrupted only by a strike, and no more
// than may be in flight.
func (a *audit) checkInterrupted(kind string, interrupted map[int]int) {
	for process, n := range interrupted {
		if process < 0 || process == len(a.Instance.Processes())-1 {
			a.fault("%d attempts to the %s receiver were interrupted without a strike", n, kind)
		}
		if n > maxInFlight+maxPings {
			a.fault("process %d: got %d attempts to the %s receiver in flight, want at most %d", process, n, kind, maxInFlight+maxPings)
		}
	}
}

// checkRegistrations checks that acknowledged subscriptions and tokens are stored, and
// that each subscription has one ping.
func (a *audit) checkRegistrations() {
	for _, r := range a.registered {
		if r.subscription != "" {
			path := "/v2/webhooks/subscriptions/" + r.subscription
			s, _, err := harness.Get[struct{ URL string }](a.Instance, r.program.Token, path)
			if err != nil || s.URL != r.url {
				a.fault("acknowledged subscription %s: got %q, %v; want %q", r.subscription, s.URL, err, r.url)
			}
			pings, _, err := harness.Get[[]harness.Delivery](a.Instance, r.program.Token, path+"/deliveries")
			if err != nil || len(pings) != 1 || len(pings[0].Events) != 1 || pings[0].Events[0].Name != webhook.EventPing {
				a.fault("pings of the acknowledged subscription %s: got %+v, %v; want one", r.subscription, pings, err)
			}
			for _, d := range pings {
				a.known[d.ID] = true
				if seen := a.arrivals[d.ID]; d.Status == webhook.StatusSuccess && (seen == nil || !seen.answered) {
					a.fault("ping %s is a success, but its receiver never responded 200", d.ID)
				}
			}
		}
		if r.token != "" {
			if _, _, err := harness.Get[json.RawMessage](a.Instance, r.token, "/v2/webhooks/subscriptions"); err != nil {
				a.fault("an acknowledged token: %v", err)
			}
		}
	}
}

// checkArrivals checks that everything that arrived is stored and arrived at most five
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

// processAt returns the number of the process that ran at a time, or -1.
func (c *Chaos) processAt(at time.Time) int {
	return slices.IndexFunc(c.Instance.Processes(), func(p *harness.Process) bool {
		// The service stores milliseconds.
		return at.After(p.Started.Add(-time.Millisecond)) && (p.Ended.IsZero() || at.Before(p.Ended))
	})
}

// waited returns how long after the restart that followed one attempt the service made
// the next attempt.
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

// RunningFaults returns every broken promise that can be seen during the load: every
// acknowledged event must be stored, and every arrival must be stored as an attempt.
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
					fault("delivery %s arrived %d times, but only %d attempts are stored", d.ID, times[d.ID], d.AttemptsMade)
				}
				delete(times, d.ID)
			}
		}
	}
	for id := range acked {
		fault("acknowledged event %s is missing", id)
	}
	for id := range times {
		fault("delivery %s arrived, but is not stored", id)
	}
	return faults
}

// snapshot returns how often each delivery of the subscriptions has arrived, and the
// acknowledged events.
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
