package dispatcher

import (
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

	"service/webhook"
)

// The default takes about fifteen seconds on two processors. The long run, which
// every change must pass, is a step of its own; see .ci/run. It is a count, so
// that a run plays the same plans wherever it runs.
var (
	simulationPlans = flag.Int("simulation.plans", 1000, "how many plans TestSimulation plays; at most 200 with -short")
	simulationSeed  = flag.Uint64("simulation.seed", 1, "the first plan of TestSimulation; the next ones follow")
)

// The promises, by the names they are broken under.
const (
	promiseKept     = "nothing that was accepted is lost"
	promiseOwed     = "nothing is sent that was not asked for"
	promiseOnce     = "an event is in one delivery, and succeeds once if nothing crashed"
	promiseFive     = "a delivery is sent five times at the most"
	promiseCounted  = "an attempt is counted before it is sent"
	promiseFinal    = "nothing is sent after a final answer"
	promiseEarly    = "no attempt is made before its time"
	promiseLate     = "an attempt is made when its time has come"
	promiseSlots    = "a subscription uses its own slots and no more"
	promiseServed   = "a subscription with a free slot is served within a second, whatever the others do"
	promisePing     = "a ping leaves at once"
	promiseOrdered  = "an ordered subscription gets one delivery after the other"
	promiseBytes    = "the bytes of a delivery never change"
	promiseDeleted  = "nothing is sent after a deletion"
	promisePaused   = "nothing but pings is sent to a paused subscription"
	promiseURL      = "what is sent goes to the subscription's URL"
	promiseEnds     = "every delivery ends, as what came of it says"
	promiseIdle     = "everything comes to rest"
	promiseOperates = "no operation fails"
	promiseRamp     = "a subscription that has recovered gets its slots back by doubling"
	promiseProbes   = "a failing subscription is probed, less and less often"
	promisePause    = "nothing but pings is sent within a pause that a server asked for"
	promiseCloses   = "a success closes the circuit breaker"
	promiseSpared   = "a probe takes one event, and no last attempt"
	promiseRejected = "a failing subscription that rejects is sent one delivery for each ping that it accepts"
	promiseLease    = "nothing is sent without the lease"
	promiseLost     = "what retention takes from a subscription is old, and counted"
	promiseBulk     = "a bulk action does what its plan says, once, and touches nothing newer"
	promiseIncident = "a subscription that fails has an open incident, and each delivery that failed for good is counted in one"
	promiseReplay   = "a replay sends each event of its range that it is for, once"
)

// broken is a promise that was broken. What is unlike from one playing of a
// plan to the next stands in detail.
type violation struct{ promise, detail string }

// simulation is one plan being played, and what a model knows of it.
type simulation struct {
	*testbed
	plan   *plan
	faults faults
	lease  simulatedLease

	mu             sync.Mutex
	violation      *violation // the first
	generation     int        // how often the dispatcher was ended
	startedAt      time.Time
	down           bool          // it was killed, and has not been started again
	killed         chan struct{} // receives when an arrival has killed it
	crashOnArrival bool          // the next arrival kills it
	uncertain      bool          // one has: attempts may be counted that nobody saw
	crashed        bool
	settled        bool // since the last step; owned by run

	clockOffset     atomic.Int64 // of the wall clock, a time.Duration
	jumpUnsaved     bool         // it has jumped, perhaps without a commit since
	jumpedForwardAt time.Time    // when it was last set forward; the store does not know after a restart

	changes     externalChanges
	endBulkRuns func() // set by workBulkRuns

	lastSettled    time.Time
	leaseRenewedAt time.Time // when the lease was valid again

	subs      []*modelSubscription
	events    map[string]int // by id: its place in published
	published []int64        // the seq of each event, 0 while it is not known
	log       []loggedEvent  // the same events
	unsettled []*modelAttempt
}

func (s *simulation) violate(promise, format string, args ...any) {
	if s.violation == nil {
		s.violation = &violation{promise, fmt.Sprintf(format, args...)}
	}
}

const attemptTimeout = 10 * time.Second

// play plays a plan on a data directory that holds an empty database with the
// simulated programs, and returns the promise it broke, nil for none.
func play(t *testing.T, dir string, p *plan) (found *violation) {
	defer func() {
		if r := recover(); r != nil && found == nil { // a bubble that cannot end
			found = &violation{promiseIdle, fmt.Sprint(r, "\n", bubbleStacks())}
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := &testbed{t: t, dir: dir, subscribers: make(map[netip.Addr]*subscriber), cfg: Config{
			MaxInFlight: p.Slots, MaxConnections: p.Connections, BatchSize: p.Batch, BatchWindow: p.Window, AttemptTimeout: attemptTimeout,
			RetryPolicy: p.policy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: p.FailingAfter, RejectingAfter: p.RejectingAfter, DisableAfter: p.DisableAfter}, Grace: time.Millisecond,
		}}
		s := &simulation{testbed: w, plan: p, events: make(map[string]int), killed: make(chan struct{}, 1), startedAt: time.Now(), changes: newExternalChanges()}
		w.fault, w.now = s.faults.fault, s.wall
		if p.Lease {
			w.dial = p.Dial
		}
		s.lease.renew()
		s.open()
		s.runDispatcher()
		s.run()
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
		for _, r := range w.subscribers {
			close(r.conns)
		}
		time.Sleep(attemptTimeout) // slow servers end
	})
	return found
}

// inBubbles returns the stacks of the goroutines that are left in bubbles.
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

func (s *simulation) run() {
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
			s.do(&st)
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
	s.end()
}

// sleep lets time go by.
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

// rest waits until the dispatcher has come to rest at this moment, and checks
// the promises.
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
		if h := r.subscription; r.settled && h.throttled && r.retryAfter > 0 && !r.delivery.ping && !r.interrupted && r.arrivedAt.After(h.changedAt) {
			h.pausedUntil = r.endedAt.Add(r.retryAfter)
		}
	}
	s.unsettled = slices.DeleteFunc(s.unsettled, func(r *modelAttempt) bool { return r.settled })
	s.observeHealth(s.faults.recovered())
	s.checkCut()
	s.check()
	for _, h := range s.subs {
		if s.dial == 0 || time.Since(h.changedAt) > s.dial { // else an attempt may be dialling
			h.previous = h.previous[:0]
		}
	}
	s.lastSettled = time.Now()
	s.mu.Unlock()
}

// end lets every server answer and every subscription be active, and days go
// by: then everything must have come to its end.
func (s *simulation) end() {
	if s.violation != nil {
		return
	}
	s.faults.clear()
	if !s.lease.isValid() {
		s.sleep(5 * time.Minute) // it is renewed
	}
	s.mu.Lock()
	s.crashOnArrival = false
	for _, h := range s.subs {
		for _, at := range h.endpoints {
			at.mode = modeOK
		}
	}
	s.mu.Unlock()
	if s.plan.DisableAfter > 0 { // by an attempt that is in flight, at the latest
		s.sleep(time.Minute)
		s.settle()
	}
	on := true
	for _, h := range s.subs {
		if !h.settings.deleted {
			s.update(h, func(t *settings) { t.active = true }, &webhook.SubscriptionFields{Active: &on})
		}
	}
	s.sleep(24 * time.Hour)
	s.settle()
	if s.violation == nil {
		s.audit(true)
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if d := s.d; s.violation == nil && (d.credits.Taken() != 0 || d.pings.inFlight != 0 || len(d.timers) != 0 || len(d.reloads) != 0) {
		s.violate(promiseIdle, "left over: %d in flight, %d pings, %d timers, %d reloads", d.credits.Taken(), d.pings.inFlight, len(d.timers), len(d.reloads))
	}
}

// Whatever happens, in whatever order: every promise holds after every step.
func TestSimulation(t *testing.T) {
	r := &planSeries{stage: newPlanRunner(t), gen: plans(), count: int64(*simulationPlans), failed: -1}
	if testing.Short() {
		r.count = min(r.count, 200)
	}
	t.Run("plans", func(t *testing.T) {
		for worker := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				r.play(t)
			})
		}
	})
	if r.found == nil {
		if n := r.played.Load(); n != r.count {
			t.Errorf("%d plans were played, want %d", n, r.count)
		}
		return
	}
	p := r.gen.Example(int(*simulationSeed) + int(r.failed))
	t.Errorf("plan %d broke a promise: %s: %s\n%s\n%s", r.failed+1, r.found.promise, r.found.detail, rerunCommand(r.failed), p)
	r.stage.shrink(t, r.gen, *simulationSeed+uint64(r.failed), r.found)
}
