package dispatcher

import (
	"container/heap"
	"time"

	"service/store"
	"service/webhook"
)

// lane is one subscription on its way through the post office. Its fields are
// guarded by Dispatcher.mu; but the cursor in store.Lane belongs to whoever set
// reading, and the rest of store.Lane is never written to, only replaced.
type lane struct {
	*store.Lane

	inFlight   int // slots taken, pings aside
	pinging    int
	queued     [ranks]bool // it stands in this one of Dispatcher.lines
	pingQueued bool

	suspect  bool      // its last attempt was retryable: the next may hold its slot for long
	answered time.Time // when the last attempt ended that was not retryable
	window   int       // of attempts that its server has shown to answer beside each other

	seen, wanted int64     // of the log; something waits when seen < wanted
	notBefore    time.Time // when what waits may leave: the end of its batch window
	reading      bool      // somebody reads what waits, and owns the cursor
	forming      int       // deliveries on their way into the store, the one being read included
	stale        bool      // the subscription has changed: nothing is formed until it is read again
	reloading    bool      // it stands among Dispatcher.reloads, or is being read
	held         time.Time // nothing is claimed before this: a record of the lane could not be used
	gone         bool      // the subscription was deleted
	replays      bool      // a replay is running
	replaying    bool      // a delivery of it is being formed

	probeWait time.Duration // while failing: the wait after the next probe
	nextProbe time.Time
	ramp      int // after a recovery: the slots it may use; 0 is all

	// When something is due next; zero when nothing is, or while a claim is
	// finding out.
	nextDue, nextPing time.Time

	timer timer
}

// work says what the lane could do with a slot now.
func (l *lane) work(now time.Time, cfg *Config) (jobKind, bool) {
	limit := l.limit(cfg)
	if l.ramp > 0 {
		limit = min(limit, l.ramp)
	}
	switch {
	case !l.known() || !l.Active || l.inFlight >= limit || now.Before(l.held):
		return 0, false
	case due(l.nextDue, now):
		return jobDue, true
	case l.Ordered && !l.nextDue.IsZero():
		return 0, false // the last delivery is not at its end
	case l.Failing && now.Before(l.nextProbe):
		return 0, false
	case !l.reading && l.seen < l.wanted && !now.Before(l.notBefore):
		return jobForm, true
	case l.replays && !l.replaying:
		return jobReplay, true
	}
	return 0, false
}

// rank is where a lane stands in the sharing of slots: the lower, the sooner
// its turn comes, and the fewer slots are kept from it. So what hanging servers
// can hold is bounded in all, and one that answers finds a slot.
type rank int

const (
	rankSure    rank = iota // its server answers, and has shown to answer as much as that
	rankProven              // nothing of it is in flight; its last attempt was answered
	rankFresh               // nor that; it has made no attempt yet
	rankSuspect             // nor that; its last attempt was retryable
	rankMore                // it has slots already, and wants more than its server has shown to answer
	ranks
)

// recent is how long an answer proves that a server answers.
const recent = 2 * time.Second

func (l *lane) rank(now time.Time) rank {
	switch {
	case !l.suspect && l.inFlight < l.window && now.Sub(l.answered) < recent:
		return rankSure
	case l.inFlight > 0:
		return rankMore
	case l.suspect:
		return rankSuspect
	case l.answered.IsZero():
		return rankFresh
	}
	return rankProven
}

// shares says how many slots may be taken when a lane of each rank gets one more.
func shares(slots int) [ranks]int {
	return [ranks]int{
		rankSure: slots, rankProven: slots - slots/32, rankFresh: slots - slots/16, rankSuspect: slots - slots/8, rankMore: slots - slots/8,
	}
}

// limit is how many slots the lane may use.
func (l *lane) limit(cfg *Config) int {
	switch {
	case l.Ordered || l.Failing:
		return 1
	case l.MaxInFlight > 0:
		return l.MaxInFlight
	}
	return cfg.MaxInFlight
}

// begin notes how a subscription is doing when its lane was read: one that has
// begun to fail is probed, less and less often; one that has recovered gets its
// backlog at a rate that doubles with each success.
func (l *lane) begin(fresh *store.Lane, now time.Time) {
	switch {
	case fresh.Failing && !l.Failing:
		l.probeWait, l.nextProbe = webhook.MinProbeWait, now.Add(webhook.MinProbeWait)
	case !fresh.Failing && l.Failing:
		l.ramp = 1
	case fresh.Failing && fresh.URL != l.URL:
		l.probeWait, l.nextProbe = webhook.MinProbeWait, now
	}
	l.Lane = fresh
}

// ended notes what an attempt came to that began new work.
func (l *lane) ended(kind jobKind, result webhook.Result, now time.Time, cfg *Config) {
	if result == webhook.ResultSuccess && l.ramp > 0 {
		if l.ramp *= 2; l.ramp >= l.limit(cfg) {
			l.ramp = 0
		}
	}
	if l.suspect = result == webhook.ResultRetryable; l.suspect {
		l.window = max(l.window/2, 1)
	} else {
		l.answered, l.window = now, min(max(2*l.window, 2), l.limit(cfg))
	}
	if l.Failing && kind != jobDue {
		wait := max(l.probeWait, webhook.MinProbeWait)
		l.nextProbe, l.probeWait = now.Add(wait), min(2*wait, webhook.MaxProbeWait)
	}
}

// known says whether the lane is as the subscription is: neither deleted nor
// changed since it was read.
func (l *lane) known() bool { return !l.gone && !l.stale && !l.reloading }

func (l *lane) hasPing(now time.Time) bool {
	return l.known() && !now.Before(l.held) && l.pinging < maxPingsPerLane && due(l.nextPing, now)
}

// nextTime is the next moment at which the lane may have work it does not have
// now, zero for none.
func (l *lane) nextTime(now time.Time) time.Time {
	var at time.Time
	for _, t := range [...]time.Time{l.nextPing, l.nextDue, l.notBefore, l.nextProbe, l.held} {
		if t.After(now) {
			at = earliest(at, t)
		}
	}
	return at
}

// schedule puts a lane in line for what it can do now, and sets its timer for
// what it can do later. It is called after each change of a lane. Owns d.mu.
func (d *Dispatcher) schedule(l *lane, now time.Time) {
	if l.stale && l.forming == 0 && !l.gone && !now.Before(l.held) {
		d.requestReload(l) // unless it has been asked for already
	}
	if r := l.rank(now); !l.queued[r] {
		if _, ok := l.work(now, &d.cfg); ok {
			l.queued[r] = true
			d.lines[r].push(l)
		}
	}
	if !l.pingQueued && l.hasPing(now) {
		l.pingQueued = true
		d.pings.push(l)
	}
	at := l.nextTime(now)
	if l.gone {
		at = time.Time{}
	}
	switch {
	case at.Equal(l.timer.at):
		return
	case at.IsZero():
		heap.Remove(&d.timers, l.timer.index())
		l.timer.at = at
		return
	case l.timer.queued():
		l.timer.at = at
		heap.Fix(&d.timers, l.timer.index())
	default:
		l.timer.at = at
		heap.Push(&d.timers, l)
	}
	if d.timers[0] == l {
		d.poke() // the loop waits for a later time
	}
}

// expire puts the lanes in line whose time has come. Owns d.mu.
func (d *Dispatcher) expire(now time.Time) {
	for len(d.timers) > 0 && !d.timers[0].timer.at.After(now) {
		l := heap.Pop(&d.timers).(*lane)
		l.timer.at = time.Time{}
		d.schedule(l, now)
	}
}

// nextTime is when the loop must look again if nothing else happens, zero for
// never. Owns d.mu.
func (d *Dispatcher) nextTime(now time.Time) time.Time {
	var at time.Time
	if len(d.timers) > 0 {
		at = d.timers[0].timer.at
	}
	if now.Before(d.paused) {
		at = earliest(at, d.paused)
	}
	return at
}

func due(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// earliest returns the earlier of two times, zero being none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// timer is a lane's place among the timers.
type timer struct {
	at    time.Time // zero: none
	place int       // index in timers + 1; 0: none
}

func (t *timer) queued() bool { return t.place > 0 }
func (t *timer) index() int   { return t.place - 1 }

// timers is a heap of lanes by the time at which they may have work.
type timers []*lane

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].timer.at.Before(t[j].timer.at) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer.place, t[j].timer.place = i+1, j+1
}

func (t *timers) Push(l any) {
	*t = append(*t, l.(*lane))
	l.(*lane).timer.place = len(*t)
}

func (t *timers) Pop() any {
	old := *t
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	l.timer.place = 0
	return l
}

// queue is a line of lanes, first in, first out.
type queue struct {
	lanes []*lane
	head  int
}

func (q *queue) len() int { return len(q.lanes) - q.head }

func (q *queue) push(l *lane) {
	if q.head > 64 && q.head > len(q.lanes)/2 {
		n := copy(q.lanes, q.lanes[q.head:])
		clear(q.lanes[n:])
		q.lanes, q.head = q.lanes[:n], 0
	}
	q.lanes = append(q.lanes, l)
}

func (q *queue) pop() *lane {
	l := q.lanes[q.head]
	q.lanes[q.head] = nil
	q.head++
	if q.head == len(q.lanes) {
		q.lanes, q.head = q.lanes[:0], 0
	}
	return l
}
