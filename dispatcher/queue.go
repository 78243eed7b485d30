package dispatcher

import (
	"net/http"
	"slices"
	"time"

	"service/dispatcher/client"
	"service/store"
	"service/webhook"
)

// subscriptionQueue is what the dispatcher knows of one subscription: how far
// its cursor is, what is in flight, and what is due when. Its fields are guarded
// by Dispatcher.mu, with two exceptions: the cursor in store.Queue belongs in
// phaseReading to the worker that reads, and in phaseOffered to the store; and the
// rest of store.Queue is never written to, only replaced.
//
// Its window is how many attempts at a time its server has shown to respond to.
// It goes by responses as the window of a sender on a network goes by
// acknowledgements, but multiplies both ways, where AIMD adds: each response
// doubles it, from 2 up to the slots that the subscription may use, and each
// retryable attempt halves it, down to 1. An attempt beyond the window is not
// forbidden, but comes after what others want; see priority. The ramp is a limit:
// after the subscription was failing or rejected an attempt it may use one slot,
// after a 429 or 503 half of those that it could, and twice as many after each
// success.
type subscriptionQueue struct {
	*store.Queue
	phase phase // changed by Dispatcher.move alone

	// Slots, and the run queues in which it waits for them.
	inFlight      int // slots in use, pings aside
	pingsInFlight int
	ready         [priorities]bool // in which of Dispatcher.ready it is
	pingReady     bool             // it is in Dispatcher.pings

	// What its server has shown.
	lastFailed  bool      // the last attempt was retryable: the next may keep its slot for long
	respondedAt time.Time // when the last attempt ended that was not retryable
	window      int       // 0 before the first attempt
	ramp        int       // after a recovery or a rejection: the slots it may use; 0 is all
	rejected    bool      // an attempt was rejected since the last that succeeded
	rejectedAt  time.Time // when one was last
	pace        pace

	// While it is failing, or attempts are rejected.
	spared        bool     // what is due has one attempt left, and no probe may take it
	rejectedNames []string // of events that were rejected since the last success, the last one last
	probeEarly    bool     // a probe is to be made now, for an event of another type
	probedEarly   bool     // one was since the last success
	probed        bool     // while it is failing: one probe has failed at least

	// The log.
	seen, wanted int64     // events wait when seen < wanted
	notBefore    time.Time // the end of the batch window of the waiting events
	forming      int       // deliveries being stored, with the one being read and the one on offer
	credit       store.Credit
	hasReplay    bool // a replay is running
	replaying    bool // a delivery of it is being formed

	// When something is due next; zero when nothing is, or while a claim is
	// finding out.
	nextDue, nextPing time.Time
	suspendedUntil    time.Time // nothing is claimed before: a record of the subscription could not be used

	timer timer

	target *client.Target // of store.Queue.URL, nil until an attempt needs it
}

// phase is how a queue stands to its subscription as it is stored.
//
//	from              | when                                        | to
//	------------------|---------------------------------------------|--------------
//	current           | nothing waits, and nothing is in flight     | offered
//	offered           | the offer is withdrawn, or what came of it  | current
//	                  | is known                                    |
//	current           | a slot is taken for waiting events          | reading
//	reading           | they were read, and are being stored        | current
//	current, offered, | the subscription has changed, or a delivery | stale; listed
//	reading           | of it could not be stored                   | if none is being formed
//	stale             | no delivery of it is being formed any more  | listed
//	listed            | the loop comes to it                        | loading
//	loading           | it was read                                 | current
//	loading           | the store cannot be read                    | listed
//	loading           | its record cannot be used                   | unusable
//	loading           | the subscription has changed                | changed
//	changed           | it was read, or could not be                | listed
//	loading, changed  | the subscription was deleted                | gone
//	unusable          | suspendedUntil, or the subscription changed | listed
//
// The cursor in the store moves while a delivery is being formed: a queue is read
// again only when none is. A queue that is listed, loading or changed and changes
// again stays as it is, apart from loading. A queue is stale until it is read
// first.
type phase uint8

const (
	phaseStale          phase = iota // the subscription is not known as it is: nothing is claimed but what is being formed already
	phaseCurrent                     // it is: jobs are taken
	phaseOffered                     // the same, and the store forms its next delivery together with an event
	phaseReading                     // the same, and a worker reads what waits in the log: it owns the cursor
	phaseReloadPending               // it is in Dispatcher.reloads
	phaseReloading                   // the loop reads it
	phaseReloadingStale              // the loop reads what is not as it is any more
	phaseUnusable                    // its record cannot be used for now
	phaseDeleted                     // the subscription was deleted
)

// next returns the phase in which a queue is that is to go to another.
func (q *subscriptionQueue) transition(to phase, now time.Time) phase {
	switch {
	case q.phase == phaseDeleted:
		return phaseDeleted
	case q.phase == phaseReloadingStale && (to == phaseCurrent || to == phaseUnusable):
		return phaseReloadPending
	case to == phaseUnusable && !now.Before(q.suspendedUntil):
		return phaseReloadPending
	case to != phaseStale:
		return to
	case q.phase == phaseReloading || q.phase == phaseReloadingStale:
		return phaseReloadingStale
	case q.phase == phaseReloadPending || q.forming == 0:
		return phaseReloadPending
	}
	return phaseStale
}

// current reports whether the queue is as its subscription: that is neither
// deleted nor changed since it was read.
func (q *subscriptionQueue) current() bool {
	return q.phase == phaseCurrent || q.phase == phaseOffered || q.phase == phaseReading
}

// work returns what the queue would do with a slot at a time if the events up to
// newest waited that it wants, false if nothing. It changes nothing.
func (q *subscriptionQueue) runnable(now time.Time, newest int64, cfg *Config) (store.CreditKind, bool) {
	if q.phase != phaseCurrent && q.phase != phaseReading || !q.Active || q.inFlight >= q.slots(cfg) || now.Before(q.suspendedUntil) {
		return 0, false
	}
	if now.Before(q.pace.readyAt()) || q.Failing && !q.probeDue(now) {
		return 0, false
	}
	kind, ok := q.pendingWork(now, newest)
	if q.Failing && q.needsPing(kind) {
		return 0, false
	}
	return kind, ok
}

// probeDue reports whether a failing queue may be probed.
func (q *subscriptionQueue) probeDue(now time.Time) bool {
	return q.probeEarly || !now.Before(q.NextProbe)
}

// waits returns what of the queue's waiting work comes first, false if nothing
// waits. What is due again comes first; but a probe spares a delivery that it
// could end. A probe that has nothing else to send repeats a delivery before its
// time.
func (q *subscriptionQueue) pendingWork(now time.Time, newest int64) (store.CreditKind, bool) {
	isDue, unfinished := due(q.nextDue, now), !q.nextDue.IsZero()
	switch {
	case isDue && !(q.Failing && (q.Rejecting || q.spared)):
		return store.CreditDue, true
	case q.Ordered && unfinished && !isDue && !q.Failing:
		return 0, false // the last delivery has not completed
	case q.Ordered && unfinished:
		return store.CreditDue, true
	case q.phase == phaseCurrent && q.seen < newest && !now.Before(q.notBefore):
		return store.CreditEvents, true
	case q.hasReplay && !q.replaying:
		return store.CreditReplay, true
	case isDue, q.Failing && unfinished:
		return store.CreditDue, true
	}
	return 0, false
}

// needsPing reports whether a probe by such work waits until a ping has succeeded:
// a rejecting server's, since it would end a delivery as failed, and the last
// attempt of a delivery.
func (q *subscriptionQueue) needsPing(kind store.CreditKind) bool {
	return !q.Pinged && (q.Rejecting || q.spared && kind == store.CreditDue)
}

// pingFirst reports whether the next probe is due, and is a ping.
func (q *subscriptionQueue) pingProbeDue(now time.Time) bool {
	if !q.Failing || !q.Active || q.inFlight > 0 || !q.probeDue(now) {
		return false
	}
	kind, ok := q.pendingWork(now, q.wanted)
	return ok && q.needsPing(kind)
}

// oneByOne reports whether a delivery carries one event: a probe does, and what
// follows a rejection for a while, so that an event which is rejected takes no
// others with it.
func (q *subscriptionQueue) singleEvent(now time.Time) bool {
	return q.Failing || q.rejected || q.pace.onTrial() || now.Sub(q.rejectedAt) < singleEventFor
}

// priority decides which queue gets a slot when slots are short: the lower, the
// more slots it may compete for (see shares). The number of slots that hanging
// servers can occupy is thereby bounded, and a server that responds finds one
// free. It goes by the last attempts alone; a subscription's status, healthy or
// failing, is [webhook.HealthPolicy]'s.
type priority int

const (
	priorityProven  priority = iota // its server responded in the last 2 s, and has shown to respond to one more attempt at a time
	priorityIdle                    // nothing is in flight; the last attempt got a response
	priorityNew                     // nothing is in flight; no attempt has been made yet
	priorityFailing                 // nothing is in flight; the last attempt was retryable
	priorityGreedy                  // it has slots already, and wants more than its server has shown to respond to
	priorities
)

// oneByOneFor is for how long after a rejection each delivery carries one event.
const singleEventFor = time.Minute

// probeMoved is by how much the time of a probe must differ to be another: each
// reading of the same one differs by the course of the wall clock.
const probeTolerance = time.Second

// provenFor is how long after a response a server counts as responding.
const provenFor = 2 * time.Second

func (q *subscriptionQueue) priority(now time.Time) priority {
	switch {
	case !q.lastFailed && q.inFlight < q.window && now.Sub(q.respondedAt) < provenFor:
		return priorityProven
	case q.inFlight > 0:
		return priorityGreedy
	case q.lastFailed:
		return priorityFailing
	case q.respondedAt.IsZero():
		return priorityNew
	}
	return priorityIdle
}

// shares returns, for each priority, how many slots may be in use when a queue
// of that priority gets one more.
func shares(slots int) [priorities]int {
	return [priorities]int{
		priorityProven: slots, priorityIdle: slots - slots/32, priorityNew: slots - slots/16,
		priorityFailing: slots - slots/8, priorityGreedy: slots - slots/8,
	}
}

// slots returns how many slots the queue may use now.
func (q *subscriptionQueue) slots(cfg *Config) int {
	if q.ramp > 0 {
		return min(q.limit(cfg), q.ramp)
	}
	return q.limit(cfg)
}

// limit returns how many slots the queue may use when its server responds.
func (q *subscriptionQueue) limit(cfg *Config) int {
	switch {
	case q.Ordered || q.Failing || q.rejected:
		return 1
	case q.MaxInFlight > 0:
		return q.MaxInFlight
	}
	return cfg.MaxInFlight
}

// update replaces the subscription by what was read. One that has recovered gets
// its backlog at a rate that doubles with each success.
func (q *subscriptionQueue) update(fresh *store.Queue, now time.Time) {
	if q.Failing && !fresh.Failing {
		q.ramp = 1
	}
	switch {
	case q.URL != fresh.URL || q.URL == "":
		q.pace, q.rejectedAt, q.target = pace{}, time.Time{}, nil
		q.forgetRejected()
		q.restoreRejected(fresh)
	case q.Failing && fresh.Failing && fresh.Pinged == q.Pinged && fresh.NextProbe.Sub(q.NextProbe).Abs() > probeTolerance && !fresh.NextProbe.After(now):
		q.pace.pausedUntil = time.Time{} // a probe was asked for; a ping that succeeded asks for none within a pause
	}
	if fresh.Failing {
		q.probeEarly = q.probeEarly && fresh.Rejecting
		q.noteRejected(fresh.RejectedName)
		q.probed = q.Failing && (q.probed || fresh.NextProbe.Sub(q.NextProbe) > probeTolerance)
	} else {
		q.probeEarly, q.probed = false, false
	}
	q.Queue, q.spared = fresh, false
}

// restoreRejected takes over what is stored of rejections.
func (q *subscriptionQueue) restoreRejected(fresh *store.Queue) {
	q.rejected = fresh.Rejected
	q.noteRejected(fresh.RejectedName)
}

func (q *subscriptionQueue) forgetRejected() {
	q.rejected, q.rejectedNames, q.probeEarly, q.probedEarly = false, nil, false, false
}

// noteRejected remembers the name of an event that was rejected, "" for none.
func (q *subscriptionQueue) noteRejected(name string) {
	if name == "" {
		return
	}
	// A new slice: credits share the old one.
	names := slices.DeleteFunc(slices.Clone(q.rejectedNames), func(n string) bool { return n == name })
	q.rejectedNames = append(names, name)
}

// notePublished has a rejecting queue probed early for an event of a type that has
// not been rejected: its server may take it, and is failing for longer than needed
// otherwise. That is done once until a success, so that a server which rejects
// everything costs no more events than it has intervals; and not within the first
// interval, or a server that rejects one type would be failing and recover with
// each event.
func (q *subscriptionQueue) notePublished(name string) {
	if q.probed && !q.probedEarly && q.Rejecting && !q.Ordered && !slices.Contains(q.rejectedNames, name) {
		q.probeEarly, q.probedEarly = true, true
	}
}

// recordAttempt adjusts the queue's window and ramp to an attempt that was not a
// ping.
func (q *subscriptionQueue) recordAttempt(a *webhook.Attempt, r *store.Recorded, now time.Time, cfg *Config) {
	result := a.Result
	switch {
	case result == webhook.ResultSuccess:
		q.forgetRejected()
	case a.ResponseStatus == http.StatusTooManyRequests:
		q.rejected = true // for when it came, not for what it holds
	case result == webhook.ResultFailed:
		q.rejected, q.rejectedAt, q.ramp = true, now, 1
		q.noteRejected(r.Rejected)
	}
	if q.pace.record(a, now) {
		q.ramp = max(1, q.slots(cfg)/2)
	}
	if result == webhook.ResultSuccess && q.ramp > 0 {
		if q.ramp *= 2; q.ramp >= q.limit(cfg) {
			q.ramp = 0
		}
	}
	if q.lastFailed = result == webhook.ResultRetryable; q.lastFailed {
		q.window = max(q.window/2, 1)
	} else {
		q.respondedAt, q.window = now, min(max(2*q.window, 2), q.limit(cfg))
	}
}

// hasPing reports whether the queue would send a ping now.
func (q *subscriptionQueue) hasPing(now time.Time) bool {
	if !q.current() || now.Before(q.suspendedUntil) {
		return false
	}
	return q.pingsInFlight < maxPingsPerQueue && due(q.nextPing, now) || q.pingsInFlight == 0 && q.pingProbeDue(now)
}

// nextTime returns the next moment at which the queue may have a job that it
// does not have now, zero for none.
func (q *subscriptionQueue) nextTime(now time.Time) time.Time {
	var at time.Time
	if q.phase == phaseDeleted {
		return at
	}
	for _, t := range [...]time.Time{q.nextPing, q.nextDue, q.notBefore, q.NextProbe, q.suspendedUntil, q.pace.readyAt()} {
		if t.After(now) {
			at = earliest(at, t)
		}
	}
	return at
}

// idle reports whether the queue has nothing in flight and, as far as it knows,
// no waiting events.
func (q *subscriptionQueue) idle() bool {
	return q.inFlight == 0 && q.forming == 0 && q.seen >= q.wanted
}
