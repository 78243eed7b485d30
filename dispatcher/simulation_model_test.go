package dispatcher

import (
	"crypto/sha256"
	"time"

	"service/webhook"
)

// subject is one subscription.
type subject struct {
	i        int
	id       string
	program  string
	now      terms
	was      []terms   // until the dispatcher has come to rest
	changed  time.Time // when any of it was
	clean    bool      // no attempt was retryable since it began afresh
	replayed bool      // by a replay that is not known
	replays  []*replaying
	formed   map[int]bool          // events that were seen in a delivery from the log
	accepted map[int]bool          // events in deliveries that were removed because they succeeded
	again    map[string]*replaying // deliveries of replays
	copies   map[string]time.Time  // redeliveries, and when they were asked for
	debts    []*debt
	recovery recovery
	failing  bool            // when all was last at rest
	last     *reception      // that ended last, pings aside
	paced    bool            // its server has asked for fewer requests since it began afresh
	resume   time.Time       // the end of the pause that it asked for
	caution  int             // successes until it may use all its slots, after one was rejected
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
	arrived bool      // or its delivery was ended before that
	old     bool      // retention may have removed it
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
	id      string
	sum     [sha256.Size]byte
	ping    bool
	events  []int
	came    []*reception
	behind  []*sending // that were not at their end when it came first
	judged  bool
	vague   bool // an attempt may have been counted that nobody saw
	anytime bool // the clock had jumped before a restart: its next attempt may be early or late
	over    bool // it was cancelled, has expired, or was removed
	removed bool
}

// reception is one request.
type reception struct {
	of      *sending
	by      *subject
	at      time.Time
	wall    time.Time     // by the wall clock
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
	return !d.over && !l.final() && (len(d.came) < webhook.MaxAttempts || l.ended.IsZero())
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

// due returns the latest time at which a delivery is due again, when the
// dispatcher began at begun and its lease at renewed.
func (d *sending) due(p *plan, begun, renewed time.Time) time.Time {
	last := d.last()
	if last.cut && last.ended.IsZero() {
		return renewed
	}
	if last.ended.IsZero() {
		return begun // what was interrupted goes on at once
	}
	wait := max(time.Duration(float64(p.policy().Waits[len(d.came)-1])*(1+p.Jitter)), last.wait)
	at := last.ended.Add(wait)
	if last.cut && renewed.After(at) { // its result may have been recorded, or not
		return renewed
	}
	if last.settled || at.After(begun) {
		return at
	}
	return begun
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
