package dispatcher

import (
	"crypto/sha256"
	"time"

	"service/webhook"
)

// subject is one subscription.
type modelSubscription struct {
	index            int
	id               string
	program          string
	settings         settings
	previous         []settings // until the dispatcher has come to rest
	changedAt        time.Time  // when any of it was
	noFailures       bool       // no attempt was retryable since it began afresh
	unknownReplay    bool       // by a replay that is not known
	replays          []*modelReplay
	inDelivery       map[int]bool            // events that were seen in a delivery from the log
	accepted         map[int]bool            // events in deliveries that were removed because they succeeded
	replayDeliveries map[string]*modelReplay // deliveries of replays
	redeliveries     map[string]time.Time    // redeliveries, and when they were asked for
	expected         []*expectedEvent
	recovery         recovery
	failing          bool            // when all was last at rest
	last             *modelAttempt   // that ended last, pings aside
	throttled        bool            // its server has asked for fewer requests since it began afresh
	pausedUntil      time.Time       // the end of the pause that it asked for
	successesNeeded  int             // successes until it may use all its slots, after one was rejected
	lostArrivals     map[string]bool // deliveries of which a crash took the first arrival
	byID             map[string]*modelDelivery
	received         []*modelDelivery // in the order of their first arrival
	endpoints        [2]*endpoint
}

// terms are what was agreed on with a subscription.
type settings struct {
	active, ordered, deleted bool
	names                    int // bits
	slots                    int // 0: the default
	endpoint                 int
}

// debt is an event that is owed to a subscription.
type expectedEvent struct {
	event        int
	at           time.Time // when it was accepted
	uncertain    bool      // the publisher was not answered
	arrived      bool      // or its delivery was ended before that
	mayBeRemoved bool      // retention may have removed it
}

// place is a subscriber's server.
type endpoint struct {
	subscriber
	owner *modelSubscription
	n     int // which of the owner's
	mode  mode
	turn  int
}

// sending is a delivery as its subscriber sees it.
type modelDelivery struct {
	id               string
	bodyHash         [sha256.Size]byte
	ping             bool
	events           []int
	attempts         []*modelAttempt
	unfinishedBefore []*modelDelivery // that were not at their end when it came first
	checked          bool
	uncertain        bool // an attempt may have been counted that nobody saw
	anyTime          bool // the clock had jumped before a restart: its next attempt may be early or late
	ended            bool // it was cancelled, has expired, or was removed
	removed          bool
}

// reception is one request.
type modelAttempt struct {
	delivery     *modelDelivery
	subscription *modelSubscription
	arrivedAt    time.Time
	arrivedWall  time.Time     // by the wall clock
	endedAt      time.Time     // zero while it is open
	status       int           // of the answer that was written, 0 for none
	retryAfter   time.Duration // that the answer asked for
	generation   int
	hangs        bool // it is never answered
	interrupted  bool // the lease ended during it, and it may be made again at once
	probe        bool // its subscription was failing
	settled      bool // it has ended, and the dispatcher has come to rest since
}

func (r *modelAttempt) final() bool { return r.status != 0 && r.status < 500 }

func (d *modelDelivery) last() *modelAttempt { return d.attempts[len(d.attempts)-1] }

// unfinished says whether a delivery will be sent again, as far as its
// subscriber can know.
func (d *modelDelivery) unfinished() bool {
	l := d.last()
	return !d.ended && !l.final() && (len(d.attempts) < webhook.MaxAttempts || l.endedAt.IsZero())
}

// inFlight returns how many attempts the subject has open, pings aside or alone.
func (s *simulation) inFlight(h *modelSubscription, ping bool) (n int) {
	now := time.Now()
	for _, r := range s.unsettled {
		if (h == nil || r.subscription == h) && r.delivery.ping == ping && r.endedAt.IsZero() && r.generation == s.generation && !r.interrupted && now.Sub(r.arrivedAt) < attemptTimeout {
			n++
		}
	}
	return n
}

// due returns the latest time at which a delivery is due again, when the
// dispatcher began at begun and its lease at renewed.
func (d *modelDelivery) due(p *plan, begun, renewed time.Time) time.Time {
	last := d.last()
	if last.interrupted && last.endedAt.IsZero() {
		return renewed
	}
	if last.endedAt.IsZero() {
		return begun // what was interrupted goes on at once
	}
	wait := max(time.Duration(float64(p.policy().Waits[len(d.attempts)-1])*(1+p.Jitter)), last.retryAfter)
	at := last.endedAt.Add(wait)
	if last.interrupted && renewed.After(at) { // its result may have been recorded, or not
		return renewed
	}
	if last.settled || at.After(begun) {
		return at
	}
	return begun
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

// stamp renders a time as how long it is since the beginning of all bubbles.
func sinceStart(t time.Time) string {
	return t.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).String()
}
