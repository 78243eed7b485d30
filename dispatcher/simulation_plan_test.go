package dispatcher

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"service/webhook"
)

// plan is one history, as drawn: nothing of it is decided while it is played.
type plan struct {
	Slots, Connections, Batch int
	Window                    time.Duration
	FailingAfter              int
	RejectingAfter            int
	DisableAfter              time.Duration
	Lease                     bool
	Dial                      time.Duration // with a lease: how long a connection takes
	Jitter                    float64
	Programs                  int
	Subscriptions             []initialSubscription
	MoreSubscriptions         int      // further subscriptions, made like those in turn
	Steps                     [][]step // in groups, which shrink well
}

// founder is a subscription that is there from the beginning.
type initialSubscription struct {
	Ordered bool
	Mode    mode
}

// step is one thing that happens, and how long it is until the next.
type step struct {
	Do           operation
	Subscription int // which subscription, modulo their number
	N            int // depends on the operation
	Mode         mode
	NoWait       bool          // the next step comes before the dispatcher has come to rest
	Wait         time.Duration // only without Rush
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
	doSlots               operation = "set max_in_flight"
	doPing                operation = "ping"
	doRedeliver           operation = "redeliver"
	doReplay              operation = "replay"
	doRotate              operation = "rotate the secret"
	doDelete              operation = "delete"
	doCreate              operation = "create"
	doCrash               operation = "crash"
	doCrashOn             operation = "crash on the next arrival"
	doRestart             operation = "restart"
	doPublishConcurrently operation = "publish at the same time"
	doFailWrite           operation = "have a statement of a write fail" // and, for odd n, its transaction end
	doFailRead            operation = "have a statement of a read fail"
	doFailCommits         operation = "fill the disk"
	doRecover             operation = "fail, and recover slowly"
	doLoseLease           operation = "lose the lease for a while"

	doJumpClock    operation = "set the wall clock"
	doRetention    operation = "remove what is old"
	doCancel       operation = "cancel a delivery"
	doBulk         operation = "redeliver or cancel many"
	doCancelReplay operation = "cancel a replay"
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
	modeLimit   mode = "429"
	modeWait    mode = "429, Retry-After: 60"
	modeRefuse  mode = "404, and 200 to pings"
	modePicky   mode = "404 to one type of events"
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
	fmt.Fprintf(&b, "slots %d, connections %d, batches of %d, window %s, failing after %d, rejecting after %d, disabled after %s, lease %t (dialling %s), jitter %g\n", p.Slots, p.Connections, p.Batch, p.Window, p.FailingAfter, p.RejectingAfter, p.DisableAfter, p.Lease, p.Dial, p.Jitter)
	fmt.Fprintf(&b, "%d programs, %d more subscriptions\n", p.Programs, p.MoreSubscriptions)
	for i, f := range p.Subscriptions {
		fmt.Fprintf(&b, "subscription %d: ordered %t, its server: %s\n", i, f.Ordered, f.Mode)
	}
	for _, s := range slices.Concat(p.Steps...) {
		fmt.Fprintf(&b, "%s (who %d, n %d, %s)", s.Do, s.Subscription, s.N, s.Mode)
		if s.NoWait {
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
	modes := rapid.SampledFrom([]mode{modeOK, modeBusy, modeHang, modeReject, modeTurns, modeSlow, modeReset, modeLater, modeGarbage, modeHang, modeRefuse, modePicky, modeLimit, modeWait})
	steps := rapid.Custom(func(t *rapid.T) step {
		s := step{
			Do: rapid.SampledFrom([]operation{
				doPublish, doPublish, doBehave, doPause, doResume, doCrash, doPublish, doPing, doOrdered, doChangeURL, doChangeNames, doRedeliver,
				doPublish, doDelete, doSlots, doCrashOn, doPublish, doCreate, doReplay, doRestart, doRotate, doPublish, doBehave,
				doPublishConcurrently, doFailWrite, doFailRead, doFailCommits, doRecover, doLoseLease, doJumpClock, doRetention, doCancel, doBulk, doReplay, doCancelReplay,
			}).Draw(t, "do"),
			Subscription: rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 9, 17, 29}).Draw(t, "who"),
			N:            rapid.IntRange(0, 7).Draw(t, "n"),
			NoWait:       rapid.SampledFrom([]bool{false, true, false, true}).Draw(t, "rush"),
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
		return plan{
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
			MoreSubscriptions: rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 26}).Draw(t, "crowd"),
			Subscriptions: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) initialSubscription {
				return initialSubscription{Ordered: rapid.SampledFrom([]bool{false, false, true}).Draw(t, "ordered"), Mode: modes.Draw(t, "mode")}
			}), 1, 4).Draw(t, "subscriptions"),
			Steps: rapid.SliceOfN(rapid.SliceOfN(steps, 0, 8), 1, 4).Draw(t, "steps"),
		}
	})
}

// policy is the schedule of retries.
func (p *plan) policy() webhook.RetryPolicy {
	policy := webhook.DefaultRetryPolicy()
	policy.Jitter = p.Jitter
	return policy
}
