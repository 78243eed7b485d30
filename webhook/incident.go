package webhook

import "time"

// IncidentQuiet is the time from the last permanent failure until an incident closes, if the
// circuit breaker is not open.
const IncidentQuiet = time.Hour

// IncidentEnd is what closed an incident.
type IncidentEnd string

const (
	IncidentHealthy IncidentEnd = "healthy" // the circuit breaker closed: a delivery succeeded
	IncidentIsQuiet IncidentEnd = "quiet"   // no delivery failed permanently for IncidentQuiet
	IncidentChanged IncidentEnd = "changed" // the subscription got another URL or was activated
	IncidentDeleted IncidentEnd = "deleted" // the subscription was deleted
)

// IncidentEnds returns every IncidentEnd.
func IncidentEnds() []IncidentEnd {
	return []IncidentEnd{IncidentHealthy, IncidentIsQuiet, IncidentChanged, IncidentDeleted}
}

// The values of the status filter.
const (
	IncidentOpen     = "open"
	IncidentResolved = "resolved"
)

// Incident is a period in which a subscription's deliveries fail, from the first
// failure to recovery.
type Incident struct {
	ID             string
	ProgramID      string
	SubscriptionID string
	URL            string // current URL of the subscription; "" if it was removed
	Description    string
	Health         Health // current health of the subscription

	OpenedAt time.Time
	ClosedAt time.Time   // zero while it is open
	ClosedBy IncidentEnd // "" while it is open

	FailingReason FailingReason // "" if the circuit breaker did not open
	FirstFailure  time.Time
	LastSuccess   time.Time // zero if unknown; for a closed incident the last before it opened
	NextProbe     time.Time // zero if none is due
	Probes        int       // failed probes

	// The last failed attempt:
	LastFailure    time.Time // zero if unknown
	ResponseStatus int       // 0 for no response
	Error          ErrorCode
	ErrorFact      string // cause of Error, for admins only; see [Attempt.ErrorFact]
	DeliveryID     string // "" if the delivery was removed

	Failed        int64     // deliveries that failed permanently
	Undelivered   int64     // their events that no delivery has delivered since
	FailedFrom    time.Time // acceptance of the oldest undelivered event; zero if unknown
	WaitingEvents int       // events held back, 0 if closed; up to the limit that the caller asked for
	WaitingMore   bool      // more may wait: the count ended at that limit, or where a filter was tried
	OldestEvent   time.Time // acceptance of the oldest waiting event; zero for none
	FailedEvent   string    // ID of an example: the oldest event left to resend, or one of DeliveryID; "" for none

	// Only if the incident was read by its ID:
	Recovered   int64     // of Failed, the deliveries whose events have all been delivered since; -1 if unknown
	RecoveredAt time.Time // when the last of them was; zero for none

	Timeline []IncidentEntry // oldest first; only if the incident was read by its ID
}

// Open reports whether the incident is open.
func (i *Incident) Open() bool { return i.ClosedAt.IsZero() }

// Status returns IncidentOpen or IncidentResolved.
func (i *Incident) Status() string {
	if i.Open() {
		return IncidentOpen
	}
	return IncidentResolved
}

// IncidentProbe is a probe of a failing subscription.
type IncidentProbe struct {
	At             time.Time // when it ended
	ResponseStatus int
	Error          ErrorCode
	DeliveryID     string // "" if the delivery was removed
}

// Succeeded reports whether the response was 2xx.
func (p *IncidentProbe) Succeeded() bool { return p.ResponseStatus >= 200 && p.ResponseStatus <= 299 }

// IncidentStep is the effect of an attempt on a subscription's incident.
type IncidentStep int

const (
	IncidentStays IncidentStep = iota
	IncidentOpens
	IncidentCloses
)

// IncidentAfter returns the effect of an attempt that changed a subscription's
// health from before to after. open says whether there is an open incident, failed
// whether the attempt's delivery failed permanently (excluding pings). A permanent
// failure or the opening of the circuit breaker opens an incident; the breaker's
// closing closes it.
func IncidentAfter(open, failed bool, before, after Health) IncidentStep {
	switch {
	case open && before == HealthFailing && after == HealthHealthy:
		return IncidentCloses
	case !open && (failed || before == HealthHealthy && after == HealthFailing):
		return IncidentOpens
	}
	return IncidentStays
}

// IncidentEntryKind is the kind of an entry in an incident's timeline.
type IncidentEntryKind string

const (
	IncidentEntryOpened IncidentEntryKind = "opened"
	IncidentEntryAlert  IncidentEntryKind = "alert"  // the operator was alerted
	IncidentEntryProbe  IncidentEntryKind = "probe"  // a probe was sent
	IncidentEntryResent IncidentEntryKind = "resent" // a replay or a bulk run that resends deliveries was started
	IncidentEntryClosed IncidentEntryKind = "closed"
)

// IncidentEntry is an entry in an incident's timeline.
type IncidentEntry struct {
	At   time.Time
	Kind IncidentEntryKind

	Alert       AlertName // for IncidentEntryAlert
	AlertStatus Status    // of the alert's delivery

	Probe  *IncidentProbe
	Resent *IncidentResend
}

// IncidentResend is a replay or a bulk run that resent deliveries of a subscription.
type IncidentResend struct {
	ReplayID  string // "" of a bulk run
	BulkRunID string // "" of a replay
	ProgramID string // to which the bulk run is limited, "" for all programs

	Admin      string // the admin who started it, "" for an API token
	Running    bool   // it has not ended
	Cancelled  bool
	Events     int64            // in its deliveries, 0 if there are too many to count
	Deliveries int64            // created so far
	Results    map[Status]int64 // of those, by status; nil if there are too many to count
}
