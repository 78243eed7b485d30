package dispatcher

import (
	"container/list"
	"net/http"
	"slices"
	"time"

	"service/dispatcher/client"
	"service/dispatcher/pace"
	"service/store"
	"service/webhook"
)

// subscriptionQueue is the dispatcher's state of one subscription: its cursor, its work in
// flight, and when the next work is due. Dispatcher.mu guards its fields, with two
// exceptions. In phaseReading the cursor in store.Queue belongs to the worker that reads the
// log, in phaseOffered to the store. The rest of store.Queue is never written, only replaced.
//
// A delivery of waiting events is forming from the moment at which the queue takes a slot for
// it, or offers its credit, until the delivery is stored or the credit is withdrawn.
//
// ramp is a hard limit on slots: 1 after the circuit breaker closes or an attempt
// was rejected (a 429 included), half of the current slots after a 503. It doubles with each
// success.
type subscriptionQueue struct {
	*store.Queue
	phase phase // set only by Dispatcher.enter

	// Slots in use, and the run queue that the queue is in.
	inFlight      int // excluding pings
	pingsInFlight int
	waiting       *list.Element   // in program.waiting; nil while in none
	waitingAs     store.SlotClass // the index of that run queue
	inPingQueue   bool            // in Dispatcher.pings

	// How the receiver has responded.
	quick        bool      // the last attempt or ping took less than quickWithin, whatever its result
	quickAttempt bool      // the same for the last attempt, excluding pings
	ramp         int       // see above; 0 for no limit
	rejected     bool      // an attempt was rejected, or got a 429, after the last success
	rejectedAt   time.Time // time of the last rejection, excluding 429s
	pace         pace.Pace

	// Circuit breaker: set while the subscription is failing, or while attempts are
	// rejected.
	lastAttemptDue bool     // the due delivery has one attempt left: a ping must succeed before a probe uses it
	rejectedNames  []string // names of events rejected since the last success, the latest last
	probeEarly     bool     // probe now, with an event of a type that was not rejected
	probedEarly    bool     // such a probe was made since the last success
	probed         bool     // at least one probe has failed since the breaker opened

	// Cursor and backlog. Events are waiting if readSeq < wantedSeq. Both are copies, since
	// others may own the cursor in store.Queue.
	readSeq       int64     // how far the log was read (Seen of store.Queue); at or after the cursor
	wantedSeq     int64     // Wanted of store.Queue, or a later event: the newest that may match
	notBefore     time.Time // end of the batch window of the waiting events
	forming       int       // deliveries of waiting events that are forming, see above
	credit        store.Credit
	hasReplay     bool // a replay is running
	splitting     bool // a split may have events to send
	splitTurn     bool // splits and the log take turns: the next delivery is from a split
	replayForming bool // one of its deliveries is being stored

	// When work is due next; zero for never, or while a claim in progress determines it.
	nextDue, nextPing time.Time
	suspendedUntil    time.Time // no claims until then: one of the subscription's records was unusable

	timer timer

	program *program // nil until the subscription was read

	target *client.Target // parsed from store.Queue.URL; nil until an attempt needs it
}

// phase says whether the queue matches its subscription in the store, and who owns
// the cursor.
//
//	from                     | when                                       | to
//	-------------------------|--------------------------------------------|--------------------------
//	current                  | nothing is waiting or in flight            | offered
//	offered                  | the offer is withdrawn, or its delivery    | current
//	                         | is stored                                  |
//	current                  | a slot is taken for waiting events         | reading
//	reading                  | the events were read, and their delivery   | current
//	                         | is being stored                            |
//	current, offered,        | the subscription changed, or a delivery    | reload pending
//	unusable                 | could not be stored or skipped events, and |
//	                         | no delivery is forming                     |
//	current, offered,        | the same, and a delivery is forming        | stale
//	reading                  |                                            |
//	stale                    | no delivery is forming                     | reload pending
//	stale                    | the subscription was read at the start     | current
//	reload pending           | the loop starts to read the subscription   | reloading
//	reloading                | the subscription was read                  | current
//	reloading                | the store cannot be read                   | reload pending
//	reloading                | the subscription's record is unusable      | unusable
//	reloading                | the subscription changed                   | reloading stale
//	reloading stale          | the read has ended                         | reload pending
//	reloading,               | the subscription was deleted               | deleted
//	reloading stale          |                                            |
//	unusable                 | suspendedUntil has passed                  | reload pending
//
// Storing a delivery moves the cursor, so a queue is only reloaded while no
// delivery is being stored. A change during phaseReloadPending needs no transition.
// A new queue starts in phaseStale.
type phase uint8

const (
	phaseStale          phase = iota // the subscription has changed; deliveries already being stored are completed, nothing else is claimed
	phaseCurrent                     // matches the subscription; work may be claimed
	phaseOffered                     // current, and the store may spend its credit together with an event (inline delivery)
	phaseReading                     // current, and a worker reads waiting events and owns the cursor
	phaseReloadPending               // in Dispatcher.reloads
	phaseReloading                   // the loop reads the subscription
	phaseReloadingStale              // the subscription changed while the loop reads it
	phaseUnusable                    // the subscription's record is unusable
	phaseDeleted                     // the subscription was deleted
)

// transition returns the phase that the queue enters when [Dispatcher.reschedule] requests
// phase to.
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

// current reports whether the queue matches its subscription, which has neither
// changed nor been deleted since it was read.
func (q *subscriptionQueue) current() bool {
	return q.phase == phaseCurrent || q.phase == phaseOffered || q.phase == phaseReading
}

// runnable returns the work for which the queue could use a slot now, and false for none.
// newest is the assumed seq of the newest selected event; offer passes [math.MaxInt64] to
// ask about a future one. runnable does not change the queue.
func (q *subscriptionQueue) runnable(now time.Time, newest int64, cfg *Config) (store.CreditKind, bool) {
	if q.phase != phaseCurrent && q.phase != phaseReading || !q.Active || q.inFlight >= q.slots(cfg) || now.Before(q.suspendedUntil) {
		return 0, false
	}
	if now.Before(q.pace.ReadyAt()) || q.Failing && !q.probeDue(now) {
		return 0, false
	}
	kind, ok := q.pendingWork(now, newest)
	if q.Failing && q.needsPing(kind) {
		return 0, false
	}
	return kind, ok
}

// probeDue reports whether a failing queue may be probed, because its circuit breaker
// is half-open.
func (q *subscriptionQueue) probeDue(now time.Time) bool {
	return q.probeEarly || !now.Before(q.NextProbe)
}

// pendingWork returns the queue's first pending work, and false for none. Retries
// come first, except in a probe while the receiver rejects deliveries or the due
// delivery has one attempt left. A probe that has nothing else to send repeats a
// delivery ahead of its schedule.
func (q *subscriptionQueue) pendingWork(now time.Time, newest int64) (store.CreditKind, bool) {
	isDue, unfinished := due(q.nextDue, now), !q.nextDue.IsZero()
	switch {
	case isDue && !(q.Failing && (q.Rejecting || q.lastAttemptDue)):
		return store.CreditDue, true
	case q.Ordered && unfinished && !isDue && !q.Failing:
		return 0, false // ordered: the previous delivery is not completed
	case q.Ordered && unfinished:
		return store.CreditDue, true
	case q.phase == phaseCurrent && (q.splitting || q.logWaits(newest, now)):
		return store.CreditEvents, true
	case q.splitting && q.Ordered: // replays wait for an open split, too
		return 0, false
	case q.hasReplay && !q.replayForming:
		return store.CreditReplay, true
	case isDue, q.Failing && unfinished:
		return store.CreditDue, true
	}
	return 0, false
}

// logWaits reports whether events of the log wait and may be sent now. newest is the assumed seq
// of the newest selected event.
func (q *subscriptionQueue) logWaits(newest int64, now time.Time) bool {
	return q.readSeq < newest && !now.Before(q.notBefore)
}

// takesSplit reports whether the next delivery is from a split, if one has an event to send. An
// open split is older than the events that wait in the log, so it comes first in an ordered queue
// and in a probe; otherwise they take turns.
func (q *subscriptionQueue) takesSplit(now time.Time) bool {
	if !q.splitting {
		return false
	}
	q.splitTurn = !q.splitTurn
	return q.splitTurn || q.Ordered || q.Failing || q.rejected || !q.logWaits(q.wantedSeq, now)
}

// needsPing reports whether a ping must succeed before a probe of this kind: when
// the receiver rejects deliveries, since the probe would end one as failed, or when
// the delivery has one attempt left.
func (q *subscriptionQueue) needsPing(kind store.CreditKind) bool {
	return !q.Pinged && (q.Rejecting || q.lastAttemptDue && kind == store.CreditDue)
}

// pingProbeDue reports whether the next probe is due and is a ping.
func (q *subscriptionQueue) pingProbeDue(now time.Time) bool {
	if !q.Failing || !q.Active || q.inFlight > 0 || !q.probeDue(now) {
		return false
	}
	kind, ok := q.pendingWork(now, q.wantedSeq)
	return ok && q.needsPing(kind)
}

// singleEvent reports whether the next delivery carries only one event: a probe, any
// delivery for a while after a rejection, and a trial of a higher rate. A rejected event
// then fails no others.
func (q *subscriptionQueue) singleEvent(now time.Time) bool {
	return q.Failing || q.rejected || q.pace.OnTrial() || now.Sub(q.rejectedAt) < singleEventFor
}

// quickWithin is the maximum duration of an attempt of a quick receiver.
const quickWithin = time.Second

// singleEventFor is how long after a rejection each delivery carries one event.
const singleEventFor = time.Minute

// probeTolerance is the difference from which two probe times count as different:
// reading the same stored time twice differs by the drift of the wall clock.
const probeTolerance = time.Second

// class returns the class in which the queue waits for a slot.
func (q *subscriptionQueue) class() store.SlotClass {
	switch {
	case q.quick && q.inFlight == 0:
		return store.SlotQuick
	case q.quickAttempt && q.inFlight > 0:
		return store.SlotBusy
	}
	return store.SlotSlow
}

// slots returns how many slots the queue may use now.
func (q *subscriptionQueue) slots(cfg *Config) int {
	if q.ramp > 0 {
		return min(q.limit(cfg), q.ramp)
	}
	return q.limit(cfg)
}

// limit returns how many slots the queue may use, ignoring the ramp.
func (q *subscriptionQueue) limit(cfg *Config) int {
	switch {
	case q.Ordered || q.Failing || q.rejected:
		return 1
	case q.MaxInFlight > 0:
		return q.MaxInFlight
	}
	return cfg.MaxInFlight
}

// update replaces the subscription by fresh. When the circuit breaker has closed,
// the queue starts with one slot, and its slots double with each success.
func (q *subscriptionQueue) update(fresh *store.Queue, now time.Time) {
	moved := q.URLNumber != fresh.URLNumber
	switch {
	case q.Failing && !fresh.Failing:
		q.ramp = 1
	case moved:
		q.ramp = 0
	}
	switch {
	case moved:
		q.pace, q.rejectedAt, q.target = pace.Pace{}, time.Time{}, nil
		q.forgetRejected()
		q.restoreRejected(fresh)
	case q.Failing && fresh.Failing && fresh.Pinged == q.Pinged &&
		fresh.NextProbe.Sub(q.NextProbe).Abs() > probeTolerance && !fresh.NextProbe.After(now):
		q.pace.PausedUntil = time.Time{} // a probe was requested; it overrides the pause
	}
	if fresh.Failing {
		q.probeEarly = q.probeEarly && fresh.Rejecting
		q.noteRejected(fresh.RejectedName)
		// Only a failed probe moves the next one to a later time.
		q.probed = q.Failing && (q.probed || fresh.NextProbe.Sub(q.NextProbe) > probeTolerance)
	} else {
		q.probeEarly, q.probed = false, false
	}
	q.Queue, q.lastAttemptDue = fresh, false
}

// restoreRejected restores the stored state of rejections.
func (q *subscriptionQueue) restoreRejected(fresh *store.Queue) {
	q.rejected = fresh.Rejected
	q.noteRejected(fresh.RejectedName)
}

func (q *subscriptionQueue) forgetRejected() {
	q.rejected, q.rejectedNames, q.probeEarly, q.probedEarly = false, nil, false, false
}

// noteRejected records the name of a rejected event; "" for none.
func (q *subscriptionQueue) noteRejected(name string) {
	if name == "" {
		return
	}
	// A new slice: credits that were offered or spent share the old one.
	names := slices.DeleteFunc(slices.Clone(q.rejectedNames), func(n string) bool { return n == name })
	q.rejectedNames = append(names, name)
}

// notePublished requests an early probe of a rejecting queue for an event whose
// type was not rejected: the receiver may accept that type, and waiting for the
// next probe would delay it. One early probe is made between two successes, so a
// receiver that rejects everything fails at most one event per probe interval. None
// is made within the first interval, or a receiver that rejects one type would
// alternate between failing and healthy.
func (q *subscriptionQueue) notePublished(name string) {
	if q.probed && !q.probedEarly && q.Rejecting && !q.Ordered && !slices.Contains(q.rejectedNames, name) {
		q.probeEarly, q.probedEarly = true, true
	}
}

// recordAttempt adjusts the window, the ramp and the pace to an attempt that was not a ping.
// An attempt that was sent to an earlier URL says nothing about the receiver.
func (q *subscriptionQueue) recordAttempt(c *store.Claim, a *webhook.Attempt, r *store.Recorded, now time.Time, cfg *Config) {
	result := a.Result
	q.splitting = q.splitting || r.Split
	if c.URLNumber != q.URLNumber {
		return
	}
	switch {
	case result == webhook.ResultSuccess:
		q.forgetRejected()
	case r.Split: // its events are sent again one by one, and count then
	case a.ResponseStatus == http.StatusTooManyRequests:
		q.rejected = true // the receiver rejected the rate, not the event
	case result == webhook.ResultFailed:
		q.rejected, q.rejectedAt, q.ramp = true, now, 1
		q.noteRejected(r.Rejected)
	}
	if q.pace.Record(a, now) {
		q.ramp = max(1, q.slots(cfg)/2)
	}
	if result == webhook.ResultSuccess && q.ramp > 0 {
		if q.ramp *= 2; q.ramp >= q.limit(cfg) {
			q.ramp = 0
		}
	}
}

// hasPing reports whether the queue would send a ping now.
func (q *subscriptionQueue) hasPing(now time.Time) bool {
	if !q.current() || now.Before(q.suspendedUntil) {
		return false
	}
	return q.pingsInFlight < maxPingsPerQueue && due(q.nextPing, now) || q.pingsInFlight == 0 && q.pingProbeDue(now)
}

// nextTime returns the next time at which the queue may have work that it does not
// have now, zero for none.
func (q *subscriptionQueue) nextTime(now time.Time) time.Time {
	var at time.Time
	if q.phase == phaseDeleted {
		return at
	}
	for _, t := range [...]time.Time{q.nextPing, q.nextDue, q.notBefore, q.NextProbe, q.suspendedUntil, q.pace.ReadyAt()} {
		if t.After(now) {
			at = earliest(at, t)
		}
	}
	return at
}

// idle reports whether the queue has nothing in flight and, as far as it knows, no
// waiting events.
func (q *subscriptionQueue) idle() bool {
	return q.inFlight == 0 && q.forming == 0 && q.readSeq >= q.wantedSeq && !q.splitting
}

// PausedUntil returns until when deliveries wait because a subscription's receiver asked for a
// pause with a 429 or 503; zero for no pause. A restart ends the pause.
func (d *Dispatcher) PausedUntil(subscriptionID string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[subscriptionID]
	if q == nil || !time.Now().Before(q.pace.PausedUntil) {
		return time.Time{}
	}
	return q.pace.PausedUntil
}
