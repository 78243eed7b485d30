package dispatcher

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"service/store"
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
	promiseLease    = "nothing is sent without the lease"
)

// plan is one history, as drawn: nothing of it is decided while it is played.
type plan struct {
	Slots, Connections, Batch int
	Window                    time.Duration
	FailingAfter              int
	DisableAfter              time.Duration
	Lease                     bool
	Dial                      time.Duration // with a lease: how long a connection takes
	Jitter                    float64
	Programs                  int
	Subscriptions             []founder
	Crowd                     int      // further subscriptions, made like those in turn
	Steps                     [][]step // in groups, which shrink well
}

// founder is a subscription that is there from the beginning.
type founder struct {
	Ordered bool
	Mode    mode
}

// step is one thing that happens, and how long it is until the next.
type step struct {
	Do   operation
	Who  int // which subscription, modulo their number
	N    int // depends on the operation
	Mode mode
	Rush bool          // the next step comes before the dispatcher has come to rest
	Wait time.Duration // only without Rush
}

type operation string

const (
	doPublish   operation = "publish"
	doBehave    operation = "behave"
	doPause     operation = "pause"
	doResume    operation = "resume"
	doMove      operation = "change the URL"
	doNames     operation = "change the events"
	doOrdered   operation = "turn ordered on or off"
	doSlots     operation = "set max_in_flight"
	doPing      operation = "ping"
	doRedeliver operation = "redeliver"
	doReplay    operation = "replay"
	doRotate    operation = "rotate the secret"
	doDelete    operation = "delete"
	doCreate    operation = "create"
	doCrash     operation = "crash"
	doCrashOn   operation = "crash on the next arrival"
	doRestart   operation = "restart"
	doStorm     operation = "publish at the same time"
	doFailWrite operation = "have a statement of a write fail" // and, for odd n, its transaction end
	doFailRead  operation = "have a statement of a read fail"
	doFill      operation = "fill the disk"
	doRecover   operation = "fail, and recover slowly"
	doLose      operation = "lose the lease for a while"
)

// mode is how a subscriber's server behaves.
type mode string

const (
	modeOK      mode = "200"
	modeBusy    mode = "500"
	modeHang    mode = "hang"
	modeReject  mode = "404"
	modeTurns   mode = "500 and 200 in turn"
	modeSlow    mode = "200 after 3 s"
	modeLater   mode = "503, Retry-After: 600"
	modeReset   mode = "hang up"
	modeGarbage mode = "garbage"
)

// Names of events, by bit.
var simulatedNames = [...]string{"content_updated", "content_deleted", "channel_created"}

// simulatedPrograms are the programs of a plan, of which it uses the first.
var simulatedPrograms = [...]string{"p", "q", "r"}

func namesOf(bits int) []string {
	var names []string
	for i, name := range simulatedNames {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "slots %d, connections %d, batches of %d, window %s, failing after %d, disabled after %s, lease %t (dialling %s), jitter %g\n", p.Slots, p.Connections, p.Batch, p.Window, p.FailingAfter, p.DisableAfter, p.Lease, p.Dial, p.Jitter)
	fmt.Fprintf(&b, "%d programs, %d more subscriptions\n", p.Programs, p.Crowd)
	for i, f := range p.Subscriptions {
		fmt.Fprintf(&b, "subscription %d: ordered %t, its server: %s\n", i, f.Ordered, f.Mode)
	}
	for _, s := range slices.Concat(p.Steps...) {
		fmt.Fprintf(&b, "%s (who %d, n %d, %s)", s.Do, s.Who, s.N, s.Mode)
		if s.Rush {
			b.WriteString(", and at once\n")
		} else {
			fmt.Fprintf(&b, ", then %s\n", s.Wait)
		}
	}
	return b.String()
}

// plans draws a plan. What is first in a list is drawn most often, and is what
// shrinking tends to.
func plans() *rapid.Generator[plan] {
	modes := rapid.SampledFrom([]mode{modeOK, modeBusy, modeHang, modeReject, modeTurns, modeSlow, modeReset, modeLater, modeGarbage, modeHang})
	steps := rapid.Custom(func(t *rapid.T) step {
		s := step{
			Do: rapid.SampledFrom([]operation{
				doPublish, doPublish, doBehave, doPause, doResume, doCrash, doPublish, doPing, doOrdered, doMove, doNames, doRedeliver,
				doPublish, doDelete, doSlots, doCrashOn, doPublish, doCreate, doReplay, doRestart, doRotate, doPublish, doBehave,
				doStorm, doFailWrite, doFailRead, doFill, doRecover, doLose,
			}).Draw(t, "do"),
			Who:  rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 9, 17, 29}).Draw(t, "who"),
			N:    rapid.IntRange(0, 7).Draw(t, "n"),
			Rush: rapid.SampledFrom([]bool{false, true, false, true}).Draw(t, "rush"),
		}
		if s.Do == doBehave {
			s.Mode = modes.Draw(t, "mode")
		}
		if !s.Rush {
			s.Wait = rapid.SampledFrom([]time.Duration{
				0, time.Second, 0, 10 * time.Second, 0, 2 * time.Second, 5 * time.Minute, 100 * time.Millisecond, 30 * time.Minute, 2 * time.Hour,
			}).Draw(t, "wait")
		}
		return s
	})
	return rapid.Custom(func(t *rapid.T) plan {
		return plan{
			Slots:        rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "slots"),
			Connections:  rapid.SampledFrom([]int{64, 64, 9, 3}).Draw(t, "connections"),
			Batch:        rapid.SampledFrom([]int{1, 1, 3, 100}).Draw(t, "batch"),
			Window:       rapid.SampledFrom([]time.Duration{0, 0, 0, 2 * time.Second}).Draw(t, "window"),
			FailingAfter: rapid.SampledFrom([]int{0, 0, 2, 3}).Draw(t, "failing after"),
			DisableAfter: rapid.SampledFrom([]time.Duration{0, 0, 20 * time.Minute}).Draw(t, "disable after"),
			Lease:        rapid.SampledFrom([]bool{false, false, true}).Draw(t, "lease"),
			Dial:         rapid.SampledFrom([]time.Duration{0, 0, 300 * time.Millisecond}).Draw(t, "dial"),
			Jitter:       rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "jitter"),
			Programs:     rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "programs"),
			Crowd:        rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 26}).Draw(t, "crowd"),
			Subscriptions: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) founder {
				return founder{Ordered: rapid.SampledFrom([]bool{false, false, true}).Draw(t, "ordered"), Mode: modes.Draw(t, "mode")}
			}), 1, 4).Draw(t, "subscriptions"),
			Steps: rapid.SliceOfN(rapid.SliceOfN(steps, 0, 8), 1, 4).Draw(t, "steps"),
		}
	})
}

// broken is a promise that was broken. What is unlike from one playing of a
// plan to the next stands in detail.
type broken struct{ promise, detail string }

// simulation is one plan being played, and what a model knows of it.
type simulation struct {
	*world
	plan   *plan
	faults faults
	lease  simulatedLease

	mu      sync.Mutex
	broken  *broken // the first
	gen     int     // how often the dispatcher was ended
	begun   time.Time
	down    bool          // it was killed, and has not been started again
	killed  chan struct{} // receives when an arrival has killed it
	trap    bool          // the next arrival kills it
	trapped bool          // one has: attempts may be counted that nobody saw
	crashed bool
	rested  bool // since the last step; owned by run

	lastRest time.Time
	renewed  time.Time // when the lease was valid again

	subs      []*subject
	events    map[string]int // by id: its place in published
	published []int64        // the seq of each event, 0 while it is not known
	unsettled []*reception
}

// subject is one subscription.
type subject struct {
	i        int
	id       string
	program  string
	now      terms
	was      []terms   // until the dispatcher has come to rest
	changed  time.Time // when any of it was
	clean    bool      // no attempt was retryable since it began afresh
	replayed bool
	copies   map[string]time.Time // redeliveries, and when they were asked for
	debts    []*debt
	recovery recovery
	unseen   map[string]bool // deliveries of which a crash took the first arrival
	sent     map[string]*sending
	order    []*sending // in the order of their first arrival
	places   [2]*place
}

// terms are what was agreed on with a subscription.
type terms struct {
	active, ordered, deleted bool
	names                    int // bits
	slots                    int // 0: the default
	place                    int
}

// debt is an event that is owed to a subscription.
type debt struct {
	event   int
	at      time.Time // when it was accepted
	doubt   bool      // the publisher was not answered
	arrived bool
}

// place is a subscriber's server.
type place struct {
	subscriber
	owner *subject
	n     int // which of the owner's
	mode  mode
	turn  int
}

// sending is a delivery as its subscriber sees it.
type sending struct {
	id     string
	sum    [sha256.Size]byte
	ping   bool
	events []int
	came   []*reception
	behind bool // an older one was not at its end when it came first
	judged bool
	vague  bool // an attempt may have been counted that nobody saw
}

// reception is one request.
type reception struct {
	of      *sending
	by      *subject
	at      time.Time
	ended   time.Time     // zero while it is open
	status  int           // of the answer that was written, 0 for none
	wait    time.Duration // that the answer asked for
	gen     int
	hangs   bool // it is never answered
	cut     bool // the lease ended during it, and it may be made again at once
	probe   bool // its subscription was failing
	settled bool // it has ended, and the dispatcher has come to rest since
}

func (r *reception) final() bool { return r.status != 0 && r.status < 500 }

func (d *sending) last() *reception { return d.came[len(d.came)-1] }

// unfinished says whether a delivery will be sent again, as far as its
// subscriber can know.
func (d *sending) unfinished() bool {
	l := d.last()
	return !l.final() && (len(d.came) < webhook.MaxAttempts || l.ended.IsZero())
}

func (s *simulation) violate(promise, format string, args ...any) {
	if s.broken == nil {
		s.broken = &broken{promise, fmt.Sprintf(format, args...)}
	}
}

// policy is the schedule of retries.
func (p *plan) policy() webhook.RetryPolicy {
	policy := webhook.DefaultRetryPolicy()
	policy.Jitter = p.Jitter
	return policy
}

const attemptTimeout = 10 * time.Second

// play plays a plan on a data directory that holds an empty database with the
// simulated programs, and returns the promise it broke, nil for none.
func play(t *testing.T, dir string, p *plan) (found *broken) {
	defer func() {
		if r := recover(); r != nil && found == nil { // a bubble that cannot end
			found = &broken{promiseIdle, fmt.Sprint(r, "\n", inBubbles())}
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, dir: dir, subscribers: make(map[netip.Addr]*subscriber), cfg: Config{
			MaxInFlight: p.Slots, MaxConnections: p.Connections, BatchSize: p.Batch, BatchWindow: p.Window, AttemptTimeout: attemptTimeout,
			RetryPolicy: p.policy(), HealthPolicy: webhook.HealthPolicy{FailingAfter: p.FailingAfter, DisableAfter: p.DisableAfter}, Grace: time.Millisecond,
		}}
		s := &simulation{world: w, plan: p, events: make(map[string]int), killed: make(chan struct{}, 1), begun: time.Now()}
		w.fault = s.faults.next
		if p.Lease {
			w.dial = p.Dial
		}
		s.lease.renew()
		s.open()
		s.operate()
		s.run()
		found = s.broken
		w.stop()
		if err := <-w.done; err != nil && found == nil {
			found = &broken{promiseOperates, err.Error()}
		}
		if err := w.d.store.Close(); err != nil && found == nil {
			found = &broken{promiseOperates, err.Error()}
		}
		for _, r := range w.subscribers {
			close(r.conns)
		}
		time.Sleep(attemptTimeout) // slow servers end
	})
	return found
}

// inBubbles returns the stacks of the goroutines that are left in bubbles.
func inBubbles() string {
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
		s.rest()
	}
	for i := range s.plan.Crowd {
		f := s.plan.Subscriptions[i%len(s.plan.Subscriptions)]
		s.create(f.Ordered, f.Mode)
	}
	for _, group := range s.plan.Steps {
		for _, st := range group {
			if s.broken != nil {
				return
			}
			if s.isDown() {
				s.restart()
			}
			s.do(&st)
			s.rested = false
			if !st.Rush {
				s.rest()
				if st.Wait > 0 {
					s.sleep(st.Wait)
					s.rest()
				}
			}
		}
	}
	s.rest()
	s.end()
}

func (s *simulation) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
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

// restart starts the dispatcher after its end, or ends it as kill -9 would
// before that: nothing more is stored, whatever it would have stored.
func (s *simulation) restart() {
	s.mu.Lock()
	down := s.down
	s.down, s.crashed = true, true
	s.mu.Unlock()
	if !down {
		if s.rested {
			s.audit(false)
		}
		s.d.store.Close()
	}
	calm := s.faults.calm()
	s.stop()
	err := <-s.done
	s.mu.Lock()
	if err != nil {
		s.violate(promiseOperates, "the dispatcher ended with %v", err)
	}
	s.trapped = s.trapped || !s.rested || !calm || s.dial > 0
	s.next()
	s.mu.Unlock()
	s.open()
	s.operate()
}

// open opens the store again, and notices what a crash has left.
func (s *simulation) open() {
	s.faults.without(func() {
		s.prepare()
		err := s.fence()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed(err)
		s.notice()
	})
}

// notice takes down of which deliveries an attempt was counted and none has
// arrived. Owns s.mu.
func (s *simulation) notice() {
	for _, h := range s.subs {
		if h.id == "" {
			continue // it was killed before it could be told
		}
		stored, err := s.deliveries(h)
		if err != nil && !h.now.deleted {
			s.violate(promiseOperates, "%v", err)
		}
		for id, d := range stored {
			if m := h.sent[id]; m == nil {
				h.unseen[id] = h.unseen[id] || d.AttemptsMade > 0
			} else if d.AttemptsMade > len(m.came) {
				m.vague, s.trapped = true, true
			}
		}
	}
}

// next begins the next generation. Owns s.mu.
func (s *simulation) next() {
	s.gen++
	s.begun = time.Now()
	s.down = false
	s.unsettled = nil
	for _, h := range s.subs {
		h.recovery = recovery{}
	}
	select {
	case <-s.killed:
	default:
	}
	if s.trapped {
		for _, h := range s.subs {
			for _, d := range h.order {
				d.vague = d.vague || d.unfinished()
			}
		}
	}
}

// rest waits until the dispatcher has come to rest at this moment, and checks
// the promises.
func (s *simulation) rest() {
	synctest.Wait()
	for s.isDown() {
		s.restart()
		synctest.Wait()
	}
	s.rested = true
	s.mu.Lock()
	select {
	case err := <-s.done:
		s.violate(promiseOperates, "the dispatcher ended with %v", err)
		s.done <- err
	default:
	}
	for _, r := range s.unsettled {
		r.settled = !r.ended.IsZero() && s.faults.calm()
	}
	s.unsettled = slices.DeleteFunc(s.unsettled, func(r *reception) bool { return r.settled })
	s.observeHealth(s.faults.calm())
	s.checkCut()
	s.check()
	for _, h := range s.subs {
		if s.dial == 0 || time.Since(h.changed) > s.dial { // else an attempt may be dialling
			h.was = h.was[:0]
		}
	}
	s.lastRest = time.Now()
	s.mu.Unlock()
}

// inFlight returns how many attempts the subject has open, pings aside or alone.
func (s *simulation) inFlight(h *subject, ping bool) (n int) {
	now := time.Now()
	for _, r := range s.unsettled {
		if (h == nil || r.by == h) && r.of.ping == ping && r.ended.IsZero() && r.gen == s.gen && !r.cut && now.Sub(r.at) < attemptTimeout {
			n++
		}
	}
	return n
}

// check holds what has arrived against what was promised. Owns s.mu.
func (s *simulation) check() {
	now, calm := time.Now(), s.faults.calm()
	room := s.inFlight(nil, false) < s.plan.Connections-s.plan.Connections/8
	for _, h := range s.subs {
		s.judge(h)
		t := &h.now
		if !calm || s.dial > 0 || t.deleted || !now.After(h.changed.Add(slack)) || !now.After(s.begun.Add(slack)) {
			continue
		}
		open := s.inFlight(h, false)
		waits := s.checkLate(h, now, t.active && open == 0 && room)
		if !t.active || !room || open > 0 && s.plan.FailingAfter > 0 {
			continue
		}
		if open == 0 && !s.trapped {
			s.checkCopies(h, now)
		}
		if open == 0 {
			s.checkProbes(h, now)
		}
		if t.ordered && waits || open >= s.limit(t) || !h.clean && s.plan.FailingAfter > 0 {
			continue
		}
		if !s.trapped {
			s.checkDebts(h, now)
		}
	}
}

// slack is how much later than it could something may happen.
const slack = time.Second

// checkLate checks that no delivery is later than it may be; free says whether
// there is a slot for one. It reports whether a delivery waits, pings aside.
func (s *simulation) checkLate(h *subject, now time.Time, free bool) (waits bool) {
	for _, d := range h.order {
		last := d.last()
		if !d.unfinished() || d.vague || last.ended.IsZero() && last.gen == s.gen {
			waits = waits || !d.ping && d.unfinished()
			continue
		}
		waits = waits || !d.ping
		if due := d.due(s.plan, s.begun, s.renewed); (d.ping || free) && now.After(due.Add(slack)) {
			s.violate(promiseLate, "subscription %d: a delivery was due at %s, and it is %s", h.i, stamp(due), stamp(now))
		}
	}
	return waits
}

// due returns the latest time at which a delivery is due again, when the
// dispatcher began at begun and its lease at renewed.
func (d *sending) due(p *plan, begun, renewed time.Time) time.Time {
	last := d.last()
	if last.cut {
		return renewed
	}
	if last.ended.IsZero() {
		return begun // what was interrupted goes on at once
	}
	wait := max(time.Duration(float64(p.policy().Waits[len(d.came)-1])*(1+p.Jitter)), last.wait)
	if at := last.ended.Add(wait); last.settled || at.After(begun) {
		return at
	}
	return begun
}

// checkCopies checks that every redelivery has been sent.
func (s *simulation) checkCopies(h *subject, now time.Time) {
	for id, at := range h.copies {
		if h.sent[id] == nil && now.After(at.Add(slack)) {
			s.violate(promiseServed, "subscription %d: a redelivery that was asked for at %s has not left at %s", h.i, stamp(at), stamp(now))
		}
	}
}

// checkDebts checks that every event that is owed has been sent.
func (s *simulation) checkDebts(h *subject, now time.Time) {
	for _, owed := range h.debts {
		if !owed.arrived && !owed.doubt && now.After(owed.at.Add(s.plan.Window+slack)) {
			s.violate(promiseServed, "subscription %d: event %d, accepted at %s, has not left at %s", h.i, owed.event, stamp(owed.at), stamp(now))
		}
	}
}

// judge looks at the deliveries that are new to a subscription. Owns s.mu.
func (s *simulation) judge(h *subject) {
	for i, d := range h.order {
		if d.judged {
			continue
		}
		d.judged = true
		if _, copied := h.copies[d.id]; copied || d.ping || h.replayed {
			continue
		}
		s.judgeEvents(h, i, d)
		if h.now.ordered && !slices.ContainsFunc(h.was, func(t terms) bool { return !t.ordered }) && d.behind && !s.trapped {
			s.violate(promiseOrdered, "subscription %d: a delivery came before the last was at its end", h.i)
		}
	}
}

// judgeEvents checks the events of the delivery that came first as the i-th: each
// is owed, in order, and in no delivery before.
func (s *simulation) judgeEvents(h *subject, i int, d *sending) {
	var newest int64 // 0 where it is not known
	for _, e := range d.events {
		if e >= 0 {
			seq := s.published[e]
			if seq != 0 && seq <= newest {
				s.violate(promiseOrdered, "subscription %d: event %d of the log stands after event %d", h.i, seq, newest)
			}
			newest = seq
		}
		if e < 0 || !slices.ContainsFunc(h.debts, func(o *debt) bool { return o.event == e }) {
			s.violate(promiseOwed, "subscription %d got event %d", h.i, e)
		}
		for _, other := range h.order[:i] {
			if _, copied := h.copies[other.id]; !copied && !other.ping && slices.Contains(other.events, e) {
				s.violate(promiseOnce, "subscription %d got event %d in two deliveries", h.i, e)
			}
		}
	}
}

func (s *simulation) limit(t *terms) int {
	switch {
	case t.ordered:
		return 1
	case t.slots > 0:
		return t.slots
	}
	return s.plan.Slots
}

// stamp renders a time as how long it is since the beginning of all bubbles.
func stamp(t time.Time) string {
	return t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).String()
}

// change makes a change of a subscription's terms, first in the model, where
// the old ones are good too until the dispatcher has come to rest.
func (s *simulation) change(h *subject, edit func(*terms), do func() error) {
	s.mu.Lock()
	before := h.now
	h.was = append(h.was, before)
	edit(&h.now)
	if h.now.active && !before.active || h.now.place != before.place {
		h.clean = true
	}
	h.changed = time.Now()
	h.recovery = recovery{}
	s.mu.Unlock()
	if err := do(); err != nil {
		s.mu.Lock()
		if !s.failed(err) {
			if s.down {
				h.was = append(h.was, h.now)
			}
			h.now = before
		}
		s.mu.Unlock()
	}
}

// failed says whether an error is a fault, and not that of a store which has
// been killed. Owns s.mu.
func (s *simulation) failed(err error) bool {
	if err == nil || s.down || s.excused(err) {
		return false
	}
	s.violate(promiseOperates, "%v", err)
	return true
}

func (s *simulation) update(h *subject, edit func(*terms), f *webhook.SubscriptionFields) {
	s.change(h, edit, func() error {
		_, err := s.d.store.Subscriptions().Update(context.Background(), h.program, h.id, f)
		return err
	})
}

func (s *simulation) create(ordered bool, m mode) {
	h := &subject{i: len(s.subs), program: simulatedPrograms[len(s.subs)%s.plan.Programs], now: terms{active: true, ordered: ordered, names: 3}, changed: time.Now(), clean: true,
		copies: make(map[string]time.Time), unseen: make(map[string]bool), sent: make(map[string]*sending)}
	for n := range h.places {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(h.i), byte(n)})
		at := &place{owner: h, n: n, mode: m, subscriber: subscriber{url: "http://" + addr.String() + "/hook", conns: make(chan net.Conn)}}
		h.places[n] = at
		s.world.mu.Lock()
		s.world.subscribers[addr] = &at.subscriber
		s.world.mu.Unlock()
		go func() {
			for c := range at.conns {
				go s.serve(at, c)
			}
		}()
	}
	s.mu.Lock()
	s.subs = append(s.subs, h)
	s.mu.Unlock()
	names := namesOf(h.now.names)
	sub, _, err := s.d.store.Subscriptions().Create(context.Background(), h.program, "u", &webhook.SubscriptionFields{URL: &h.places[0].url, Events: &names, Ordered: &ordered}, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.id = sub.ID; err != nil {
		s.failed(err)
		h.now.deleted = true // nobody was told of it
		h.was = append(h.was, terms{active: true, names: 3})
	}
}

func (s *simulation) do(st *step) {
	h := s.subs[st.Who%len(s.subs)]
	switch st.Do {
	case doPublish:
		s.publish(h.program, st.N)
		return
	case doStorm:
		var publishers sync.WaitGroup
		for i := range 2 + st.N%4 {
			publishers.Go(func() { s.publish(simulatedPrograms[(i+st.Who)%s.plan.Programs], st.N+i) })
		}
		publishers.Wait()
		return
	case doBehave:
		s.mu.Lock()
		h.places[h.now.place].mode = st.Mode
		s.mu.Unlock()
		return
	case doCreate:
		if len(s.subs) < 6+s.plan.Crowd {
			s.create(st.N%2 == 1, modeOK)
		}
		return
	case doCrash:
		// Where a kill finds what is under way is a matter of the scheduler.
		for range st.N * st.N {
			runtime.Gosched()
		}
		s.restart()
		return
	case doCrashOn:
		s.mu.Lock()
		s.trap = true
		s.mu.Unlock()
		return
	case doRestart:
		s.stopAndStart()
		return
	case doFailWrite:
		s.faults.arm(true, st.N*st.Who, st.N%2 == 1)
		return
	case doFailRead:
		s.faults.arm(false, st.N, false)
		return
	case doRecover:
		s.recoverSlowly(h, st.N)
		return
	case doLose:
		s.lose(time.Duration(st.N)*125*time.Millisecond, time.Duration(st.Who)*5*time.Second+600*time.Millisecond)
		return
	case doFill:
		s.faults.fill(time.Duration(st.N) * time.Second)
		return
	}
	if s.plan.DisableAfter > 0 {
		s.rest() // whether it was disabled is known
	}
	if !h.now.deleted {
		s.doTo(h, st)
	}
}

// stopAndStart ends the dispatcher and the store as a shutdown does, and starts
// them again.
func (s *simulation) stopAndStart() {
	s.mu.Lock()
	s.crashed = true
	s.mu.Unlock()
	s.stop()
	err := <-s.done
	calm := s.faults.calm()
	s.faults.without(func() {
		if e := s.d.store.Close(); err == nil {
			err = e
		}
	})
	s.mu.Lock()
	s.failed(err)
	s.trapped = s.trapped || !calm || s.dial > 0 // an attempt may wait for its subscription to be read
	s.next()
	s.mu.Unlock()
	s.open()
	s.operate()
}

// doTo does a step to a subscription.
func (s *simulation) doTo(h *subject, st *step) {
	ctx := context.Background()
	on, off := true, false
	switch st.Do {
	case doPause:
		s.update(h, func(t *terms) { t.active = false }, &webhook.SubscriptionFields{Active: &off})
	case doResume:
		s.update(h, func(t *terms) { t.active = true }, &webhook.SubscriptionFields{Active: &on})
	case doMove:
		to := 1 - h.now.place
		s.update(h, func(t *terms) { t.place = to }, &webhook.SubscriptionFields{URL: &h.places[to].url})
	case doNames:
		bits := max(1, st.N)
		names := namesOf(bits)
		s.update(h, func(t *terms) { t.names = bits }, &webhook.SubscriptionFields{Events: &names})
	case doOrdered:
		ordered := !h.now.ordered
		s.update(h, func(t *terms) { t.ordered = ordered }, &webhook.SubscriptionFields{Ordered: &ordered})
	case doSlots:
		slots := st.N % 4
		s.update(h, func(t *terms) { t.slots = slots }, &webhook.SubscriptionFields{MaxInFlight: &slots})
	case doDelete:
		s.change(h, func(t *terms) { t.deleted = true }, func() error {
			_, err := s.d.store.Subscriptions().Delete(ctx, h.program, h.id)
			return err
		})
	case doRotate:
		_, _, err := s.d.store.Subscriptions().RotateSecret(ctx, h.program, h.id)
		s.refused(err)
	case doPing:
		s.ping(h, st.Rush)
	case doRedeliver:
		s.redeliver(h, st.N)
	case doReplay:
		s.mu.Lock()
		h.replayed = true
		s.mu.Unlock()
		only := []webhook.ReplayOnly{webhook.ReplayMissed, webhook.ReplayFailed, webhook.ReplayAll}[st.N%3]
		_, err := s.d.store.Replays().Create(ctx, h.program, h.id, &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: only})
		s.refused(err)
	}
}

// refused takes down the error of an operation that may be refused.
func (s *simulation) refused(err error) {
	var refused *webhook.Error
	if errors.As(err, &refused) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed(err)
}

// publish publishes one to five events of a program, whose names n also says.
func (s *simulation) publish(program string, n int) {
	var events []webhook.Event
	var fresh []*debt
	s.mu.Lock()
	for i := range 1 + n/2%4 {
		which := (n + i) % len(simulatedNames)
		id := webhook.NewID()
		place := len(s.published)
		s.events[id] = place
		s.published = append(s.published, 0)
		events = append(events, webhook.Event{ID: id, Name: simulatedNames[which], ReceivedAt: time.Now(), JSON: fmt.Appendf(nil, `{"id":%q,"name":%q}`, id, simulatedNames[which])})
		for _, h := range s.subs {
			if h.program == program && !h.now.deleted && h.now.active && h.now.names&(1<<which) != 0 {
				d := &debt{event: place, at: time.Now()}
				h.debts = append(h.debts, d)
				fresh = append(fresh, d)
			}
		}
	}
	s.mu.Unlock()
	_, err := s.d.store.Events().Publish(context.Background(), program, events)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		for _, e := range events {
			s.published[s.events[e.ID]] = e.Seq
		}
		return
	}
	s.failed(err)
	stored := !s.excused(err) || s.down // as far as can be known
	for _, h := range s.subs {
		if !stored { // and must not be sent
			h.debts = slices.DeleteFunc(h.debts, func(d *debt) bool { return slices.Contains(fresh, d) })
		}
	}
	for _, d := range fresh {
		d.doubt = true
	}
}

func (s *simulation) pings(h *subject) (n int) {
	for _, d := range h.order {
		if d.ping {
			n++
		}
	}
	return n
}

func (s *simulation) ping(h *subject, rush bool) {
	s.mu.Lock()
	before, gen := s.pings(h), s.gen
	s.mu.Unlock()
	go func(st *store.Store) { // a crash may leave it without an answer
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		st.Subscriptions().Ping(ctx, h.program, h.id)
	}(s.d.store)
	if rush {
		return
	}
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, may := s.faults.now()
	if !may && s.faults.calm() && s.dial == 0 && !s.down && s.gen == gen && s.inFlight(h, true) < maxPingsPerQueue && s.pings(h) == before {
		s.violate(promisePing, "subscription %d got none", h.i)
	}
}

func (s *simulation) redeliver(h *subject, n int) {
	s.mu.Lock()
	if len(h.order) == 0 {
		s.mu.Unlock()
		return
	}
	id := h.order[n%len(h.order)].id
	s.mu.Unlock()
	d, err := s.d.store.Deliveries().Redeliver(context.Background(), h.program, h.id, id)
	if s.refused(err); err == nil {
		s.mu.Lock()
		h.copies[d.ID] = time.Now()
		s.mu.Unlock()
	}
}

// serve answers the requests of one connection as the place behaves.
func (s *simulation) serve(at *place, c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 1024)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		r, m := s.arrive(at, body)
		answer := ""
		switch m {
		case modeHang:
			in.ReadByte() // until the other side hangs up
			s.ended(r, 0)
			return
		case modeReset:
			s.ended(r, 0)
			return
		case modeGarbage:
			s.ended(r, 0)
			io.WriteString(c, "SSH-2.0-OpenSSH_9.9\r\n")
			return
		case modeSlow:
			time.Sleep(3 * time.Second)
			answer = "200"
		case modeLater:
			answer = "503"
		default:
			answer = string(m)
		}
		status := 0
		fmt.Sscan(answer, &status)
		if m == modeLater {
			r.wait = 10 * time.Minute
			answer += " \r\nRetry-After: 600"
		} else {
			answer += " "
		}
		s.ended(r, status)
		if _, err := io.WriteString(c, "HTTP/1.1 "+answer+"\r\nContent-Length: 0\r\n\r\n"); err != nil {
			s.ended(r, 0)
			return
		}
	}
}

// ended takes down what a request was answered, before it is.
func (s *simulation) ended(r *reception, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.ended, r.status = time.Now(), status
	r.by.endRecovery(r)
	if status == 0 || status >= 500 {
		r.by.clean = r.by.clean && r.of.ping
	}
}

// arrive takes down a request, checks what can be checked at once, and says
// how it is answered.
func (s *simulation) arrive(at *place, body []byte) (*reception, mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, h := time.Now(), at.owner
	// See webhook.AppendBody, whose tests hold it to JSON.
	const before = len(`{"delivery_id":"`)
	id := string(body[before : before+idLength])
	d := h.sent[id]
	if d == nil {
		d = s.newSending(h, id, body)
		h.sent[id] = d
		h.order = append(h.order, d)
	} else {
		s.again(h, d, now)
		if sha256.Sum256(body) != d.sum {
			s.violate(promiseBytes, "subscription %d", h.i)
		}
	}
	r := &reception{of: d, by: h, at: now, gen: s.gen}
	d.came = append(d.came, r)
	s.unsettled = append(s.unsettled, r)
	if len(d.came) > webhook.MaxAttempts {
		s.violate(promiseFive, "subscription %d got a delivery %d times", h.i, len(d.came))
	}

	s.checkTerms(at, d)
	s.checkRecovery(h, r)
	if s.lease.forbids() {
		s.violate(promiseLease, "subscription %d got an attempt", h.i)
	}
	if s.trap && !d.ping {
		s.trap, s.trapped, s.down = false, true, true
		s.d.store.Close()
		s.killed <- struct{}{}
	}
	m := at.mode
	if m == modeTurns {
		at.turn++
		m = []mode{modeOK, modeBusy}[at.turn%2]
	}
	r.hangs = m == modeHang
	return r, m
}

// idLength is the length of an id, in bytes.
const idLength = 36

// newSending returns a delivery that has come for the first time.
func (s *simulation) newSending(h *subject, id string, body []byte) *sending {
	d := &sending{id: id, sum: sha256.Sum256(body), vague: h.unseen[id], ping: strings.Contains(string(body), `"name":"ping"`)}
	for _, part := range strings.Split(string(body), `{"id":"`)[1:] {
		e, known := s.events[part[:idLength]]
		if !known {
			e = -1
		}
		d.events = append(d.events, e)
		for _, owed := range h.debts {
			owed.arrived = owed.arrived || owed.event == e
		}
	}
	for _, other := range h.order {
		_, copied := h.copies[other.id]
		d.behind = d.behind || !copied && !other.ping && other.unfinished()
	}
	return d
}

// checkTerms checks that a delivery that has come was agreed on: by the terms of
// its subscription, or by those before while the dispatcher may not know better.
func (s *simulation) checkTerms(at *place, d *sending) {
	h := at.owner
	agreed := func(ok func(*terms) bool) bool {
		for i := range h.was {
			if ok(&h.was[i]) {
				return true
			}
		}
		return ok(&h.now)
	}
	if !agreed(func(t *terms) bool { return !t.deleted }) {
		s.violate(promiseDeleted, "subscription %d", h.i)
	} else if !agreed(func(t *terms) bool { return d.ping || t.active }) {
		s.violate(promisePaused, "subscription %d", h.i)
	}
	if !agreed(func(t *terms) bool { return t.place == at.n }) {
		s.violate(promiseURL, "subscription %d", h.i)
	}
	open := s.inFlight(h, d.ping)
	if !agreed(func(t *terms) bool { return open <= s.limit(t) || d.ping && open <= maxPingsPerQueue }) {
		s.violate(promiseSlots, "subscription %d has %d open", h.i, open)
	}
	if n := s.inFlight(nil, false); n > s.plan.Connections {
		s.violate(promiseSlots, "%d are open in all", n)
	}
}

// again checks that a delivery may be sent once more now. Owns s.mu.
func (s *simulation) again(h *subject, d *sending, now time.Time) {
	last := d.last()
	lost := last.gen != s.gen && !last.settled || last.cut // the crash may have taken its result
	switch {
	case lost:
	case last.final():
		s.violate(promiseFinal, "subscription %d: again after %d", h.i, last.status)
	case last.ended.IsZero() && now.Sub(last.at) < attemptTimeout:
		s.violate(promiseEarly, "subscription %d: again while the last is open", h.i)
	case len(d.came) < webhook.MaxAttempts:
		ended := last.ended
		if ended.IsZero() {
			ended = last.at.Add(attemptTimeout)
		}
		wait := time.Duration(float64(s.plan.policy().Waits[len(d.came)-1]) * (1 - s.plan.Jitter))
		if due := ended.Add(max(wait, last.wait)); due.Sub(now) > time.Millisecond { // stored in milliseconds
			s.violate(promiseEarly, "subscription %d: attempt %d at %s, due at %s", h.i, len(d.came)+1, stamp(now), stamp(due))
		}
	}
}

// audit holds what is stored against what has arrived; at the end all of it.
func (s *simulation) audit(end bool) {
	s.faults.without(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.auditAll(end)
	})
}

// auditAll is audit without faults. Owns s.mu.
func (s *simulation) auditAll(end bool) {
	for _, h := range s.subs {
		if h.now.deleted {
			continue
		}
		stored, err := s.deliveries(h)
		if err != nil {
			s.violate(promiseOperates, "%v", err)
			return
		}
		formed := make(map[int]int)
		for _, d := range stored {
			s.auditDelivery(h, &d, end)
			for _, e := range d.Events {
				if d.RedeliveryOf == "" && e.Name != webhook.EventPing {
					formed[s.events[e.ID]]++
				}
			}
		}
		for id := range h.sent {
			if _, ok := stored[id]; !ok {
				s.violate(promiseCounted, "subscription %d: a delivery that was sent is not stored", h.i)
			}
		}
		s.auditEvents(h, formed, end)
	}
}

// auditDelivery compares a delivery in the store with what has come of it.
func (s *simulation) auditDelivery(h *subject, d *webhook.Delivery, end bool) {
	m := h.sent[d.ID]
	if m != nil && len(m.came) > d.AttemptsMade {
		s.violate(promiseCounted, "subscription %d: %d were made, %d counted", h.i, len(m.came), d.AttemptsMade)
	}
	if end && !d.Status.Final() {
		s.violate(promiseEnds, "subscription %d: a delivery is %s", h.i, d.Status)
	}
	if m != nil && !s.crashed && (end || s.dial == 0) && len(m.came) < d.AttemptsMade {
		s.violate(promiseKept, "subscription %d: %d were counted, %d made", h.i, d.AttemptsMade, len(m.came))
	}
	s.status(h, m, d)
}

// auditEvents checks in how many deliveries each event is.
func (s *simulation) auditEvents(h *subject, formed map[int]int, end bool) {
	for _, owed := range h.debts {
		n := formed[owed.event]
		if n > 1 && !h.replayed {
			s.violate(promiseOnce, "subscription %d: event %d is in %d deliveries", h.i, owed.event, n)
		}
		if end && n == 0 && !owed.doubt {
			s.violate(promiseKept, "subscription %d: event %d is in no delivery", h.i, owed.event)
		}
		delete(formed, owed.event)
	}
	if len(formed) > 0 && !h.replayed {
		s.violate(promiseOwed, "subscription %d: events %v", h.i, slices.Sorted(maps.Keys(formed)))
	}
}

// status holds the status of a delivery against what its subscriber answered.
// Owns s.mu.
func (s *simulation) status(h *subject, m *sending, d *webhook.Delivery) {
	var final []int
	if m != nil {
		for _, r := range m.came {
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
		default:
			ok = false
		}
	default:
		ok = m == nil || !m.last().settled || !m.last().final() || m.last().cut
	}
	if !ok || len(final) > 1 && !s.crashed {
		s.violate(promiseEnds, "subscription %d: a delivery is %s %s after %d attempts and the final answers %v", h.i, d.Status, d.FailureReason, d.AttemptsMade, final)
	}
}

func (s *simulation) deliveries(h *subject) (map[string]webhook.Delivery, error) {
	all := make(map[string]webhook.Delivery)
	values := url.Values{"page[size]": {"100"}}
	for {
		query, invalid := webhook.DeliveryList.Parse(values)
		if invalid != nil {
			return nil, invalid
		}
		page, next, err := s.d.store.Deliveries().Page(context.Background(), h.program, h.id, &query)
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

// end lets every server answer and every subscription be active, and days go
// by: then everything must have come to its end.
func (s *simulation) end() {
	if s.broken != nil {
		return
	}
	s.faults.clear()
	if !s.lease.isValid() {
		s.sleep(5 * time.Minute) // it is renewed
	}
	s.mu.Lock()
	s.trap = false
	for _, h := range s.subs {
		for _, at := range h.places {
			at.mode = modeOK
		}
	}
	s.mu.Unlock()
	if s.plan.DisableAfter > 0 { // by an attempt that is in flight, at the latest
		s.sleep(time.Minute)
		s.rest()
	}
	on := true
	for _, h := range s.subs {
		if !h.now.deleted {
			s.update(h, func(t *terms) { t.active = true }, &webhook.SubscriptionFields{Active: &on})
		}
	}
	s.sleep(24 * time.Hour)
	s.rest()
	if s.broken == nil {
		s.audit(true)
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if d := s.d; s.broken == nil && (d.inFlight != 0 || d.pinging != 0 || len(d.timers) != 0 || len(d.reloads) != 0) {
		s.violate(promiseIdle, "left over: %d in flight, %d pings, %d timers, %d reloads", d.inFlight, d.pinging, len(d.timers), len(d.reloads))
	}
}

// stage is where plans are played: data directories, each made from one empty
// database.
type stage struct {
	dir      string
	template string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	st := &stage{dir: memoryDir(t)}
	st.template = filepath.Join(st.dir, "template")
	s, err := store.Open(context.Background(), store.Config{Dir: st.template})
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range simulatedPrograms {
		if _, _, err := s.Tokens().Create(context.Background(), webhook.NewToken{ProgramID: program, UserID: "u", Scopes: webhook.Scopes()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return st
}

// play plays a plan on a data directory of its own.
func (st *stage) play(t *testing.T, name string, p *plan) *broken {
	dir := filepath.Join(st.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"service.db", "secret.key"} {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(st.template, name)); err != nil {
			t.Fatal(err)
		}
	}
	return play(t, dir, p)
}

// copyFile leaves the copying to the kernel.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// series plays plans, several at a time, until one breaks a promise.
type series struct {
	stage *stage
	gen   *rapid.Generator[plan]
	count int64 // of the plans

	next, played atomic.Int64

	mu     sync.Mutex
	failed int64   // the first plan that broke a promise, -1 for none
	found  *broken // by it
}

func (r *series) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed >= 0
}

// play plays plans in turn until the series ends.
func (r *series) play(t *testing.T) {
	for {
		i := r.next.Add(1) - 1
		if i >= r.count || r.ended() {
			return
		}
		p := r.gen.Example(int(*simulationSeed) + int(i))
		// Time may stand still for ever in a bubble.
		watchdog := time.AfterFunc(maxPlay, func() {
			panic(fmt.Sprintf("plan %d broke a promise: %s: it was not at its end after %s\n%s", i+1, promiseIdle, maxPlay, again(i)))
		})
		b := r.stage.play(t, fmt.Sprint("plan", i), &p)
		watchdog.Stop()
		if b == nil {
			r.played.Add(1)
			continue
		}
		r.mu.Lock()
		if r.failed < 0 || i < r.failed {
			r.failed, r.found = i, b
		}
		r.mu.Unlock()
	}
}

// Whatever happens, in whatever order: every promise holds after every step.
func TestSimulation(t *testing.T) {
	r := &series{stage: newStage(t), gen: plans(), count: int64(*simulationPlans), failed: -1}
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
	t.Errorf("plan %d broke a promise: %s: %s\n%s\n%s", r.failed+1, r.found.promise, r.found.detail, again(r.failed), p)
	r.stage.shrink(t, r.gen, *simulationSeed+uint64(r.failed), r.found)
}

// maxPlay is how long a plan may take by the clock on the wall, many times of
// what it does.
const maxPlay = time.Minute

// again says how to play a plan again.
func again(i int64) string {
	return fmt.Sprintf("to play it again: go test ./dispatcher -run '^TestSimulation$' -simulation.seed=%d -simulation.plans=1", *simulationSeed+uint64(i))
}

// shrink shows the smallest plan that rapid can find which breaks the same promise.
func (st *stage) shrink(t *testing.T, gen *rapid.Generator[plan], seed uint64, found *broken) {
	for name, value := range map[string]string{"rapid.seed": fmt.Sprint(seed), "rapid.checks": "5", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	t.Run("smallest", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			p := gen.Draw(rt, "plan")
			n++
			if b := st.play(t, fmt.Sprint("shrunk", n), &p); b != nil && b.promise == found.promise {
				rt.Logf("%s\n%s", b.detail, p)
				rt.Fatal(b.promise)
			}
		})
	})
}
