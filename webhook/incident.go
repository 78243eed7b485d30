package webhook

import "time"

// IncidentQuiet is how long after the last delivery that failed for good an incident
// is closed, if the circuit breaker is not open.
const IncidentQuiet = time.Hour

// IncidentEnd says what closed an incident.
type IncidentEnd string

const (
	IncidentRecovered IncidentEnd = "recovered" // the circuit breaker closed: a delivery succeeded
	IncidentIsQuiet   IncidentEnd = "quiet"     // no delivery failed for good for IncidentQuiet
	IncidentChanged   IncidentEnd = "changed"   // the subscription got another URL or was activated
	IncidentDeleted   IncidentEnd = "deleted"   // the subscription was deleted
)

// IncidentEnds returns everything that can close an incident.
func IncidentEnds() []IncidentEnd {
	return []IncidentEnd{IncidentRecovered, IncidentIsQuiet, IncidentChanged, IncidentDeleted}
}

// The states of an incident, as a filter has them.
const (
	IncidentOpen     = "open"
	IncidentResolved = "resolved"
)

// Incident is a subscription that fails, from the first failure to recovery.
type Incident struct {
	ID             string
	ProgramID      string
	SubscriptionID string
	URL            string // of the subscription, as it is now; "" when it was removed
	Description    string
	Health         Health // of the subscription now

	OpenedAt time.Time
	ClosedAt time.Time   // zero while it is open
	ClosedBy IncidentEnd // "" while it is open

	FailingReason FailingReason // "" if the circuit breaker did not open
	FirstFailure  time.Time
	LastSuccess   time.Time // zero if none is known; of a closed incident the last before it
	NextProbe     time.Time // zero if none is due
	Probes        int       // that have failed

	// Of the last attempt that failed:
	LastFailure    time.Time // zero if it is not known
	ResponseStatus int       // 0 for no response
	Error          ErrorCode
	DeliveryID     string // "" if the delivery was removed

	Failed        int64     // deliveries that failed for good
	FailedFrom    time.Time // when the oldest event of those was accepted; zero if it is not known
	WaitingEvents int       // that are held, 0 when it is closed; at most the bound that was asked for
	OldestEvent   time.Time // when the first of those in the log was accepted; zero for none

	Timeline []IncidentEntry // in the order of time; of an incident that is read singly
}

// Open reports whether the incident is open.
func (i *Incident) Open() bool { return i.ClosedAt.IsZero() }

// Status returns the state of the incident.
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

// Succeeded reports whether the probe was accepted.
func (p *IncidentProbe) Succeeded() bool { return p.ResponseStatus >= 200 && p.ResponseStatus <= 299 }

// IncidentStep says what an attempt does to a subscription's incident.
type IncidentStep int

const (
	IncidentStays IncidentStep = iota
	IncidentOpens
	IncidentCloses
)

// IncidentAfter decides what an attempt does to an incident of a subscription whose
// health was before and is after. Failed says that the attempt's delivery failed for
// good, pings aside. An incident opens with that, or with the circuit breaker, and
// closes with the breaker.
func IncidentAfter(open, failed bool, before, after Health) IncidentStep {
	switch {
	case open && before == HealthFailing && after == HealthHealthy:
		return IncidentCloses
	case !open && (failed || before == HealthHealthy && after == HealthFailing):
		return IncidentOpens
	}
	return IncidentStays
}

// IncidentEntryKind says what an entry of an incident's timeline is about.
type IncidentEntryKind string

const (
	IncidentEntryOpened IncidentEntryKind = "opened"
	IncidentEntryAlert  IncidentEntryKind = "alert"  // the operator was alerted
	IncidentEntryProbe  IncidentEntryKind = "probe"  // a probe was sent
	IncidentEntryResent IncidentEntryKind = "resent" // a replay of failed deliveries was started
	IncidentEntryClosed IncidentEntryKind = "closed"
)

// IncidentEntry is an entry of an incident's timeline.
type IncidentEntry struct {
	At   time.Time
	Kind IncidentEntryKind

	Alert       AlertName // of an alert
	AlertStatus Status    // of sending it

	Probe  *IncidentProbe
	Replay *Replay
}
