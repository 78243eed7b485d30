package dispatcher

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"service/webhook"
)

// modelSubscription is the model of one subscription.
type modelSubscription struct {
	index            int
	id               string
	program          string
	settings         settings
	dropped          int        // bits of the names that were ever removed
	previous         []settings // earlier settings, until the dispatcher is idle
	changedAt        time.Time  // of the settings
	noFailures       bool       // no attempt was retryable since it was activated or got a new URL
	unknownReplay    bool       // it may have a replay that the model does not know
	replays          []*modelReplay
	inDelivery       map[int]bool            // events that were seen in a delivery from the log
	accepted         map[int]bool            // events of successful deliveries that retention removed
	replayDeliveries map[string]*modelReplay // deliveries of replays
	redeliveries     map[string]time.Time    // time of the request by delivery ID
	expected         []*expectedEvent
	recovery         recovery
	failing          bool                    // when the dispatcher was last idle
	last             *modelAttempt           // the last to end, excluding pings
	arrivedAt        time.Time               // of the last request, excluding pings
	quickAt, slowAt  time.Time               // end of the last request that took less than a second, and of the last that took longer
	throttled        bool                    // the server asked for fewer requests since the last restart
	pausedAt         time.Time               // when it asked for the pause
	pausedUntil      time.Time               // end of the pause that the server asked for
	successesNeeded  int                     // after a rejection: successes until it may use all its slots
	secret           webhook.SigningSecret   // nil while unknown
	previousSecrets  []webhook.SigningSecret // until the dispatcher is idle after a rotation
	rotatedAt        time.Time
	lostArrivals     map[string]bool // deliveries whose first arrival a crash prevented
	byID             map[string]*modelDelivery
	received         []*modelDelivery // in the order of their first arrival
	endpoints        [2]*endpoint
}

// settings are the settings of a subscription.
type settings struct {
	active, ordered, deleted bool
	names                    int // bits
	below                    int // its filters match only events with a smaller n; 0 for no filters
	slots                    int // 0 for the default
	rate                     int // per second; 0 for no limit
	maxEvents                int // 0 for the default
	endpoint                 int
}

// wants reports whether an event is sent.
func (t *settings) wants(e *loggedEvent) bool {
	return t.names&(1<<e.name) != 0 && (t.below == 0 || e.n < t.below)
}

// simulatedBelow are the values of settings.below in the plans.
var simulatedBelow = []int{0, 0, 0, 1, 2}

// filters returns the filters of all names.
func (t *settings) filters() webhook.Filters {
	all := make(webhook.Filters)
	if t.below != 0 {
		f, err := webhook.ParseFilter(fmt.Appendf(nil, `{"all":[{"path":"n","op":"lt","value":%d}]}`, t.below), nil, "")
		if err != nil {
			panic(err)
		}
		for _, name := range namesOf(t.names) {
			all[name] = f
		}
	}
	return all
}

// expectedEvent is an event that a subscription must receive.
type expectedEvent struct {
	event        int
	at           time.Time // when it was accepted
	uncertain    bool      // the publisher got no response
	arrived      bool      // or its delivery was completed without arriving
	mayBeRemoved bool      // retention may have removed it
}

// endpoint is the server of a subscription. Each subscription has two, to change
// its URL.
type endpoint struct {
	subscriber
	owner *modelSubscription
	n     int // index among the owner's endpoints
	mode  mode
	turn  int
}

// modelDelivery is a delivery as its receiver saw it.
type modelDelivery struct {
	id               string
	bodyHash         [sha256.Size]byte
	ping             bool
	events           []int
	attempts         []*modelAttempt
	unfinishedBefore []*modelDelivery // deliveries that were not completed when this one first arrived
	checked          bool
	uncertain        bool // an attempt may have been counted that no server received
	anyTime          bool // the clock jumped before a restart: its next attempt may be early or late
	dropped          bool // one of its event types was removed, or one of its events erased, so it may end without success
	ended            bool // it was cancelled, has expired, or was removed
	removed          bool
}

// modelAttempt is one request.
type modelAttempt struct {
	delivery       *modelDelivery
	subscription   *modelSubscription
	arrivedAt      time.Time
	arrivedCounted time.Time     // as retention counts
	endedAt        time.Time     // zero while in flight
	status         int           // of the response, 0 for none
	retryAfter     time.Duration // asked for by the response
	generation     int
	hangs          bool // it never gets a response
	earlierURL     bool // the subscription may have had another URL when its result was recorded
	interrupted    bool // the lease ended during it, so it may be repeated immediately
	probe          bool // its subscription was failing
	unsure         bool // its subscription was failing, of which the model did not know: it may be a probe
	settled        bool // it has ended, and the dispatcher has been idle since
}

func (r *modelAttempt) final() bool { return r.status != 0 && r.status < 500 }

func (d *modelDelivery) last() *modelAttempt { return d.attempts[len(d.attempts)-1] }

// unfinished reports whether a delivery will be sent again, as far as its
// receiver can know.
func (d *modelDelivery) unfinished() bool { return !d.dropped && d.mayWait() }

// mayWait is unfinished, but includes a delivery that ends as unsubscribed when it is due.
func (d *modelDelivery) mayWait() bool {
	l := d.last()
	return !d.ended && !l.final() && (len(d.attempts) < webhook.MaxAttempts || l.endedAt.IsZero())
}

// inFlight returns how many attempts are in flight: only pings, or excluding pings.
// sub limits it to one subscription; nil means all. Each arrival asks, so it forgets those that have
// ended. The caller holds s.mu.
func (s *simulation) inFlight(sub *modelSubscription, ping bool) (n int) {
	now := time.Now()
	s.unended = slices.DeleteFunc(s.unended, func(r *modelAttempt) bool {
		return !r.endedAt.IsZero() || r.interrupted || now.Sub(r.arrivedAt) >= attemptTimeout
	})
	for _, r := range s.unended {
		if (sub == nil || r.subscription == sub) && r.delivery.ping == ping {
			n++
		}
	}
	return n
}

// due returns the latest time of a delivery's next attempt, if the dispatcher
// started at begun and its lease was renewed at renewed.
func (d *modelDelivery) due(p *plan, begun, renewed time.Time) time.Time {
	last := d.last()
	scheduled := time.Duration(float64(p.policy().Waits[len(d.attempts)-1]) * (1 + p.Jitter))
	// The first interrupted attempt is repeated immediately, others as scheduled.
	after := func(interrupted time.Time) time.Time {
		if slices.ContainsFunc(d.attempts[:len(d.attempts)-1], func(r *modelAttempt) bool { return r.interrupted || !r.settled }) {
			return interrupted.Add(scheduled)
		}
		return interrupted
	}
	if last.interrupted && last.endedAt.IsZero() {
		return after(renewed)
	}
	if last.endedAt.IsZero() {
		return after(begun)
	}
	at := last.endedAt.Add(max(scheduled, last.retryAfter))
	// The result of an attempt may not have been recorded before the end of the lease or
	// of the process.
	if again := after(renewed); last.interrupted && again.After(at) {
		return again
	}
	if again := after(begun); !last.settled && again.After(at) {
		return again
	}
	return at
}

func (s *simulation) limit(t *settings) int {
	switch {
	case t.ordered:
		return 1
	case t.slots > 0:
		return t.slots
	}
	return s.plan.Slots
}

// sinceStart formats a time as the duration since the start of every bubble.
func sinceStart(t time.Time) string {
	return t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).String()
}
