package dispatcher

import (
	"cmp"
	"flag"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/test/seed"
	"service/webhook"
)

// The number of plans in a run is a count, not a time: a slow machine plays as many.
var (
	simulationPlans = flag.Int("simulation.plans", 0, "how many plans TestSimulation plays; 0: 500, fewer with -short or the race detector")
	simulationSeed  = flag.Uint64("simulation.seed", 0, "the first plan of TestSimulation, the next ones follow;"+
		" 0: "+seed.Variable+", or a new one")
)

// The promises that a violation names.
const (
	promiseKept     = "no accepted event is lost"
	promiseOwed     = "a subscription receives only events that it wants"
	promiseNames    = "a subscription receives only the event types in its list"
	promiseOnce     = "an event is in one delivery, which succeeds once unless the service crashed"
	promiseBatch    = "no event fails because of what it was sent with"
	promiseMax      = "a delivery has at most as many events as the subscription allows"
	promiseFive     = "a delivery is sent at most five times"
	promiseCounted  = "an attempt is counted before it is sent"
	promiseFinal    = "nothing is sent after a final response"
	promiseEarly    = "no attempt is made before it is due"
	promiseLate     = "an attempt is made when it is due"
	promiseSlots    = "a subscription uses at most its own slots"
	promiseServed   = "a subscription with a free slot is served within a second, and a quick one at once"
	promisePing     = "a ping is sent immediately"
	promiseOrdered  = "an ordered subscription gets one delivery at a time, in order"
	promiseBytes    = "the bytes of a delivery never change"
	promiseDeleted  = "nothing is sent after a deletion"
	promisePaused   = "a paused subscription receives only pings"
	promiseURL      = "a delivery goes to the subscription's URL"
	promiseEnds     = "every delivery completes with the status that its responses imply"
	promiseIdle     = "the dispatcher becomes idle"
	promiseOperates = "no operation fails"
	promiseRamp     = "a recovered subscription gets its slots back by doubling"
	promiseProbes   = "a failing subscription is probed at growing intervals"
	promisePause    = "only pings are sent during a pause that the receiver asked for"
	promiseCloses   = "a success closes the circuit breaker"
	promiseSpared   = "a probe sends one event, and does not use the last attempt of a delivery"
	promiseRejected = "a rejecting subscription gets one delivery for each successful ping"
	promiseLease    = "nothing is sent without the lease"
	promiseLost     = "retention removes only old events and counts those that were lost"
	promiseGone     = "retention removes what is old"
	promiseBulk     = "a bulk run does what it planned, once, and changes nothing newer"
	promiseIncident = "a failing subscription has an open incident, and incidents count each permanent failure"
	promiseReplay   = "a replay sends each matching event of its range once"
	promiseSigned   = "a request is signed with the subscription's secret"
	promiseRate     = "a subscription receives at most max_per_second requests"
	promiseCounts   = "the service counts what it has"
	promisePulled   = "pulling a log returns each event once, in order, and only what is stored"
	promiseLimit    = "a program uses at most its own slots"
	promiseErased   = "nothing sends an erased event, and all copies of it are removed"
)

// violation is a broken promise. The detail differs from one run of a plan to the
// next.
type violation struct{ promise, detail string }

// simulation plays one plan and compares it with a model.
type simulation struct {
	*testbed
	plan   *plan
	seen   *tally
	faults faults
	lease  simulatedLease

	mu             sync.Mutex
	violation      *violation // the first one
	generation     int        // counts restarts of the dispatcher
	startedAt      time.Time
	down           bool          // killed and not started again
	killed         chan struct{} // receives when a request has killed it
	crashOnArrival bool          // the next request kills it
	uncertain      bool          // attempts may have been counted that no server received
	accepting      bool          // no receiver refuses anything any more
	crashed        bool
	settled        bool // since the last step; owned by run

	clockOffset atomic.Int64  // of the wall clock, a time.Duration
	jumped      bool          // the clock has jumped
	jumpUnsaved bool          // the clock has jumped, perhaps without a commit since
	steps       time.Duration // the maximum that retention has counted of the jumps

	changes     externalChanges
	endBulkRuns func()   // set by workBulkRuns
	housekeeps  bool     // with them
	views       sync.Map // the [erasureView] of each erasure in progress

	limits map[string]programLimit // by program

	lastSettled    time.Time
	leaseRenewedAt time.Time // when the lease became valid again

	pulls pulls

	subs      []*modelSubscription
	events    map[string]int // index in published by ID
	published []int64        // seq of each event, 0 while unknown
	log       []loggedEvent  // the same events
	unsettled []*modelAttempt
	unended   []*modelAttempt // those in flight, and some that have ended since inFlight looked
}

func (s *simulation) violate(promise, format string, args ...any) {
	if s.violation == nil {
		s.violation = &violation{promise, fmt.Sprintf(format, args...)}
	}
}

const attemptTimeout = 10 * time.Second

// play plays a plan on a data directory with an empty database that has the
// simulated programs, and platform is a platform token. It returns the violation it found, nil for none.
func play(t *testing.T, dir, platform string, p *plan, seen *tally) (found *violation) {
	defer func() {
		if r := recover(); r != nil && found == nil { // the bubble deadlocked
			found = &violation{promiseIdle, fmt.Sprint(r, "\n", bubbleStacks())}
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := &testbed{t: t, dir: dir, subscribers: make(map[netip.Addr]*subscriber), cfg: Config{
			MaxInFlight: p.Slots, MaxConnections: p.Connections, BatchSize: p.Batch, BatchWindow: p.Window, AttemptTimeout: attemptTimeout,
			RetryPolicy: p.policy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: p.FailingAfter, RejectingAfter: p.RejectingAfter,
				DisableAfter: p.DisableAfter}, Grace: time.Millisecond,
		}}
		s := &simulation{testbed: w, plan: p, seen: seen, events: make(map[string]int), killed: make(chan struct{}, 1), startedAt: time.Now(),
			changes: newExternalChanges(), limits: make(map[string]programLimit)}
		w.entered = seen.enter
		w.fault, w.now, w.retention = s.faultOf, s.wall, webhook.Retention{All: 2 * simulatedStep}
		if p.Lease {
			w.dial = p.Dial
		}
		s.pulls.platform = platform
		s.housekeeps = p.Erases && !p.LateClearing
		s.lease.renew()
		s.open()
		s.runDispatcher()
		s.playSteps()
		s.stopPulls()
		found = s.violation
		w.stop()
		s.changes.end()
		s.endBulkRuns()
		if err := <-w.done; err != nil && found == nil {
			found = &violation{promiseOperates, err.Error()}
		}
		if err := w.d.store.Close(); err != nil && found == nil {
			found = &violation{promiseOperates, err.Error()}
		}
		if p.Erases && found == nil {
			found = s.checkCleared()
		}
		for _, r := range w.subscribers {
			close(r.conns)
		}
		time.Sleep(attemptTimeout) // until slow servers return
	})
	return found
}

// bubbleStacks returns the stacks of the goroutines that remain in bubbles.
func bubbleStacks() string {
	buf := make([]byte, 1<<20)
	var left []string
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if header, _, _ := strings.Cut(g, "\n"); strings.Contains(header, "(durable)") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

func (s *simulation) playSteps() {
	for _, f := range s.plan.Subscriptions {
		s.create(f.Ordered, f.Mode)
		s.settle()
	}
	for i := range s.plan.MoreSubscriptions {
		f := s.plan.Subscriptions[i%len(s.plan.Subscriptions)]
		s.create(f.Ordered, f.Mode)
	}
	for _, group := range s.plan.Steps {
		for _, st := range group {
			if s.violation != nil {
				return
			}
			if s.isDown() {
				s.restart()
			}
			s.seen.count(st.Do)
			s.playStep(&st)
			s.settled = false
			if !st.NoWait {
				s.settle()
				if st.Wait > 0 {
					s.sleep(st.Wait)
					s.settle()
				}
			}
		}
	}
	s.settle()
	s.endPlan()
}

// sleep lets d of fake time pass.
func (s *simulation) sleep(d time.Duration) {
	end := time.Now().Add(d)
	for {
		timer := time.NewTimer(time.Until(end))
		select {
		case <-timer.C:
			return
		case <-s.killed:
			timer.Stop()
			if s.isDown() {
				s.restart()
			}
		}
	}
}

// settle waits until all goroutines are blocked, and checks the promises.
func (s *simulation) settle() {
	synctest.Wait()
	for s.isDown() {
		s.restart()
		synctest.Wait()
	}
	s.settled = true
	s.learn()
	s.mu.Lock()
	select {
	case err := <-s.done:
		s.violate(promiseOperates, "the dispatcher ended with %v", err)
		s.done <- err
	default:
	}
	for _, r := range s.unsettled {
		r.settled = !r.endedAt.IsZero() && s.faults.recovered()
		if sub := r.subscription; r.settled && sub.throttled && r.retryAfter > 0 && !r.delivery.ping && !r.interrupted &&
			r.arrivedAt.After(sub.changedAt) {
			sub.pausedAt, sub.pausedUntil = r.endedAt, r.endedAt.Add(r.retryAfter)
		}
	}
	s.unsettled = slices.DeleteFunc(s.unsettled, func(r *modelAttempt) bool { return r.settled })
	s.observeHealth(s.faults.recovered())
	s.checkCut()
	s.check()
	for _, sub := range s.subs {
		if s.dial == 0 || time.Since(sub.changedAt) > s.dial { // else an attempt may be connecting
			sub.previous = sub.previous[:0]
		}
		if time.Since(sub.rotatedAt) > s.dial {
			sub.previousSecrets = nil
		}
	}
	s.settleLimits()
	s.lastSettled = time.Now()
	s.mu.Unlock()
	s.pull()
}

// longest is the longest time that anything may take once all servers respond: the longest retries,
// the longest pause that a server asks for, one interval of probes, and a second per request of a
// subscription at the lowest rate.
func (s *simulation) longest() time.Duration {
	all := 10*time.Minute + webhook.MaxProbeWait
	for _, wait := range s.plan.policy().Waits {
		all += time.Duration(float64(wait) * (1 + s.plan.Jitter))
	}
	requests := 0
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		requests = max(requests, len(sub.expected)+len(sub.received))
	}
	return all + time.Duration(requests)*time.Second
}

// endPlan makes every server respond and every subscription active, and waits as long as anything may
// take: then everything must be completed.
func (s *simulation) endPlan() {
	if s.violation != nil {
		return
	}
	s.faults.clear()
	if !s.lease.isValid() {
		s.sleep(5 * time.Minute) // until it is renewed
	}
	s.mu.Lock()
	s.crashOnArrival, s.accepting = false, true
	for _, sub := range s.subs {
		for _, at := range sub.endpoints {
			at.mode = modeOK
		}
	}
	s.mu.Unlock()
	if s.plan.DisableAfter > 0 { // at the latest an attempt in flight disables a subscription
		s.sleep(time.Minute)
		s.settle()
	}
	if s.plan.LateClearing && s.plan.Erases {
		s.endBulkRuns()
		s.housekeeps = true
		s.workBulkRuns()
	}
	on := true
	for _, sub := range s.subs {
		if !sub.settings.deleted {
			s.update(sub, func(t *settings) { t.active = true }, &webhook.SubscriptionFields{Active: &on})
		}
	}
	s.sleep(s.longest())
	s.settle()
	if s.violation == nil {
		s.audit(true)
		s.checkKept()
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if d := s.d; s.violation == nil && (d.credits.Taken() != 0 || d.pings.inFlight != 0 || len(d.timers) != 0 || len(d.reloads) != 0) {
		s.violate(promiseIdle, "got %d in flight, %d pings, %d timers and %d reloads, want 0 of each",
			d.credits.Taken(), d.pings.inFlight, len(d.timers), len(d.reloads))
	}
}

// Every promise holds after every step of random plans: first those that once broke a promise,
// then new ones.
func TestSimulation(t *testing.T) {
	r := &planSeries{runner: newPlanRunner(t), gen: plans(), failed: -1}
	if *simulationSeed == 0 {
		r.seeds = seed.Kept(t)
	}
	first := cmp.Or(*simulationSeed, seed.Fresh(t))
	for i := range uint64(simulatedPlans()) {
		r.seeds = append(r.seeds, first+i)
	}
	t.Run("plans", func(t *testing.T) {
		for worker := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				r.play(t)
			})
		}
	})
	r.runner.seen.report(t)
	if r.found == nil {
		if n := int(r.played.Load()); n != len(r.seeds) {
			t.Errorf("got %d plans played, want %d", n, len(r.seeds))
		}
		return
	}
	failed := r.seeds[r.failed]
	p := r.gen.Example(int(failed))
	t.Errorf("plan %d broke a promise: %s: %s\n%s\n%s", failed, r.found.promise, r.found.detail, rerunCommand(failed), p)
	r.runner.shrink(t, r.gen, failed, r.found)
}

// simulatedPlans returns how many new plans TestSimulation plays.
func simulatedPlans() int {
	n := defaultPlans
	if testing.Short() {
		n /= 5
	}
	return cmp.Or(*simulationPlans, n)
}
