package dispatcher

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"service/webhook"
)

// plan is one drawn history. Playing it involves no further decision.
type plan struct {
	Slots, Connections, Batch int
	Window                    time.Duration
	FailingAfter              int
	RejectingAfter            int
	DisableAfter              time.Duration
	Lease                     bool
	Dial                      time.Duration // with a lease: how long connecting takes
	Jitter                    float64
	Programs                  int
	Subscriptions             []initialSubscription
	MoreSubscriptions         int      // further subscriptions, with the settings of the initial ones in turn
	Steps                     [][]step // in groups, which shrink well

	// For the subscriptions in turn. They are drawn last, so that the seeds of earlier plans keep
	// their meaning.
	Refusals  []mode // requests that a receiver refuses while its mode is modeOK; modeOK for none
	MaxEvents []int

	Streams bool // followers read streams rather than wait

	Erases       bool // it erases events, so the store does its housekeeping throughout
	LateClearing bool // only in the end
}

// initialSubscription exists from the start.
type initialSubscription struct {
	Ordered bool
	Mode    mode
}

// step is one operation and the wait before the next.
type step struct {
	Do           operation
	Subscription int // index, modulo the number of subscriptions
	N            int // depends on the operation
	Mode         mode
	NoWait       bool          // the next step starts before the dispatcher is idle
	Wait         time.Duration // only without NoWait
}

type operation string

const (
	doPublish             operation = "publish"
	doBehave              operation = "behave"
	doPause               operation = "pause"
	doResume              operation = "resume"
	doChangeURL           operation = "change the URL"
	doChangeNames         operation = "change the events"
	doOrdered             operation = "turn ordered on or off"
	doSlots               operation = "set max_in_flight and max_events"
	doPing                operation = "ping"
	doRedeliver           operation = "redeliver"
	doReplay              operation = "replay"
	doRotate              operation = "rotate the secret"
	doDelete              operation = "delete"
	doCreate              operation = "create"
	doCrash               operation = "crash"
	doCrashOn             operation = "crash on the next arrival"
	doRestart             operation = "restart"
	doPublishConcurrently operation = "publish concurrently"
	doFailWrite           operation = "fail a statement of a write" // and, for odd N, end its transaction
	doFailRead            operation = "fail a statement of a read"
	doFailCommits         operation = "fail commits"
	doRecover             operation = "fail and recover slowly"
	doLoseLease           operation = "lose the lease for a while"

	doJumpClock    operation = "jump the wall clock"
	doRetention    operation = "run retention"
	doCancel       operation = "cancel a delivery"
	doBulk         operation = "start a bulk run"
	doCancelReplay operation = "cancel a replay"
	doRate         operation = "set max_per_second"
	doProgramLimit operation = "set max_in_flight of a program"
)

// mode is the behavior of a receiver.
type mode string

const (
	modeOK      mode = "200"
	modeBusy    mode = "500"
	modeHang    mode = "hang"
	modeReject  mode = "404"
	modeTurns   mode = "alternating 500 and 200"
	modeSlow    mode = "200 after 3 s"
	modeLater   mode = "503, Retry-After: 600"
	modeReset   mode = "close the connection"
	modeGarbage mode = "garbage"
	modeLimit   mode = "429"
	modeWait    mode = "429, Retry-After: 60"
	modeRefuse  mode = "404, but 200 to pings"
	modePicky   mode = "404 to one event type"

	// Only as refusals:
	modeSize   mode = "413 to more than two events"
	modeEvent  mode = "422 to every fifth event"
	modeStuck  mode = "500 to every fifth event"
	modeWindow mode = "401 in every other minute"
)

// simulatedNames are the event names, by bit.
var simulatedNames = [...]string{"content_updated", "content_deleted", "channel_created"}

// simulatedPrograms are the programs; a plan uses the first ones.
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
	fmt.Fprintf(&b, "slots %d, connections %d, batch size %d, batch window %s, ", p.Slots, p.Connections, p.Batch, p.Window)
	fmt.Fprintf(&b, "failing after %d, rejecting after %d, disabled after %s, ", p.FailingAfter, p.RejectingAfter, p.DisableAfter)
	fmt.Fprintf(&b, "lease %t (connecting takes %s), jitter %g\n", p.Lease, p.Dial, p.Jitter)
	fmt.Fprintf(&b, "%d programs, %d more subscriptions\n", p.Programs, p.MoreSubscriptions)
	for i, f := range p.Subscriptions {
		fmt.Fprintf(&b, "subscription %d: ordered %t, server: %s\n", i, f.Ordered, f.Mode)
	}
	fmt.Fprintf(&b, "refusals %q, max_events %d, streams %t, late clearing %t\n", p.Refusals, p.MaxEvents, p.Streams, p.LateClearing)
	for _, s := range slices.Concat(p.Steps...) {
		fmt.Fprintf(&b, "%s (subscription %d, n %d, %s)", s.Do, s.Subscription, s.N, s.Mode)
		if s.NoWait {
			b.WriteString(", no wait\n")
		} else {
			fmt.Fprintf(&b, ", wait %s\n", s.Wait)
		}
	}
	return b.String()
}

// plans draws a plan. Values early in a list are drawn more often, and shrinking
// prefers them.
func plans() *rapid.Generator[plan] {
	modes := rapid.SampledFrom([]mode{modeOK, modeBusy, modeHang, modeReject, modeTurns, modeSlow, modeReset, modeLater, modeGarbage,
		modeHang, modeRefuse, modePicky, modeLimit, modeWait})
	steps := rapid.Custom(func(t *rapid.T) step {
		s := step{
			Do: rapid.SampledFrom([]operation{
				doPublish, doPublish, doBehave, doPause, doResume, doCrash, doPublish, doPing, doOrdered, doChangeURL, doChangeNames, doRedeliver,
				doPublish, doDelete, doSlots, doCrashOn, doPublish, doCreate, doReplay, doRestart, doRotate, doPublish, doBehave,
				doPublishConcurrently, doFailWrite, doFailRead, doFailCommits, doRecover, doLoseLease,
				doJumpClock, doRetention, doCancel, doBulk, doReplay, doCancelReplay, doRate, doProgramLimit,
			}).Draw(t, "do"),
			Subscription: rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 9, 17, 29}).Draw(t, "subscription"),
			N:            rapid.IntRange(0, 7).Draw(t, "n"),
			NoWait:       rapid.SampledFrom([]bool{false, true, false, true}).Draw(t, "no wait"),
		}
		if s.Do == doBehave {
			s.Mode = modes.Draw(t, "mode")
		}
		if !s.NoWait {
			s.Wait = rapid.SampledFrom([]time.Duration{
				0, time.Second, 0, 10 * time.Second, 0, 2 * time.Second, 5 * time.Minute, 100 * time.Millisecond, 30 * time.Minute, 2 * time.Hour,
			}).Draw(t, "wait")
		}
		return s
	})
	return rapid.Custom(func(t *rapid.T) plan {
		p := plan{
			Slots:             rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "slots"),
			Connections:       rapid.SampledFrom([]int{64, 64, 9, 3}).Draw(t, "connections"),
			Batch:             rapid.SampledFrom([]int{1, 1, 3, 100}).Draw(t, "batch"),
			Window:            rapid.SampledFrom([]time.Duration{0, 0, 0, 2 * time.Second}).Draw(t, "window"),
			FailingAfter:      rapid.SampledFrom([]int{0, 0, 2, 3}).Draw(t, "failing after"),
			RejectingAfter:    rapid.SampledFrom([]int{0, 0, 2, 3}).Draw(t, "rejecting after"),
			DisableAfter:      rapid.SampledFrom([]time.Duration{0, 0, 20 * time.Minute}).Draw(t, "disable after"),
			Lease:             rapid.SampledFrom([]bool{false, false, true}).Draw(t, "lease"),
			Dial:              rapid.SampledFrom([]time.Duration{0, 0, 300 * time.Millisecond}).Draw(t, "dial"),
			Jitter:            rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "jitter"),
			Programs:          rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "programs"),
			MoreSubscriptions: rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 26}).Draw(t, "more subscriptions"),
			Subscriptions: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) initialSubscription {
				return initialSubscription{Ordered: rapid.SampledFrom([]bool{false, false, true}).Draw(t, "ordered"), Mode: modes.Draw(t, "mode")}
			}), 1, 4).Draw(t, "subscriptions"),
			Steps: rapid.SliceOfN(rapid.SliceOfN(steps, 0, 8), 1, 4).Draw(t, "steps"),
			Refusals: rapid.SliceOfN(rapid.SampledFrom([]mode{modeOK, modeOK, modeOK, modeSize, modeEvent, modePicky, modeStuck, modeWindow}),
				4, 4).Draw(t, "refusals"),
			MaxEvents: rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 4, 1}), 4, 4).Draw(t, "max_events"),
		}
		without := rapid.SliceOfN(rapid.SampledFrom([]bool{false, false, true}), 0, len(faultKinds))
		p.arrange(extras().Draw(t, "extras"), without.Draw(t, "without"))
		if rapid.SampledFrom(crowds[:]).Draw(t, "crowd") {
			p.addCrowd()
		}
		p.Streams = rapid.Bool().Draw(t, "streams")
		more := erasures().Draw(t, "erasures")
		p.arrange(more, nil)
		p.Erases, p.LateClearing = len(more) > 0, rapid.Bool().Draw(t, "late clearing")
		return p
	})
}

// policy is the retry policy.
func (p *plan) policy() webhook.RetryPolicy {
	policy := webhook.DefaultRetryPolicy()
	policy.Jitter = p.Jitter
	return policy
}
