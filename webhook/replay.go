package webhook

import (
	"fmt"
	"time"
)

// ReplayOnly says which events of a span a replay sends again.
type ReplayOnly string

const (
	ReplayMissed ReplayOnly = "missed" // those that are in no delivery of the subscription
	ReplayFailed ReplayOnly = "failed" // those whose every delivery has failed
	ReplayAll    ReplayOnly = "all"
)

// ReplayStatus says where a replay stands.
type ReplayStatus string

const (
	ReplayRunning   ReplayStatus = "running"
	ReplayDone      ReplayStatus = "done"
	ReplayCancelled ReplayStatus = "cancelled"
)

// Replay is new deliveries for a span of the event log. It runs in the
// background, in steps of one delivery, and goes on after a restart.
type Replay struct {
	ID             string
	SubscriptionID string
	ProgramID      string
	Only           ReplayOnly
	From, To       time.Time // of when the events were accepted: From included, To not
	Events         []string  // the names; those of the subscription when none were named
	Status         ReplayStatus
	EventsSent     int64 // put into deliveries so far
	Deliveries     int64 // formed so far
	Scanned        int64 // places of the log looked at so far
	Total          int64 // places of the log to look at
	CreatedAt      time.Time
	CompletedAt    time.Time // zero while it is running
}

// ReplayFields are the fields of a request that begins a replay.
type ReplayFields struct {
	From   time.Time
	To     time.Time // zero: now
	Events []string  // nil: the subscription's
	Only   ReplayOnly
	DryRun bool // count, and send nothing
}

// Check returns every rule that the fields break for a subscription.
func (f *ReplayFields) Check(sub *Subscription) []Validation {
	var v []Validation
	if f.From.IsZero() {
		v = append(v, Validation{InvalidRequired, "is required", "from"})
	}
	if !f.To.IsZero() && !f.To.After(f.From) {
		v = append(v, Validation{InvalidValue, "must be later than from", "to"})
	}
	switch f.Only {
	case ReplayMissed, ReplayFailed, ReplayAll:
	case "":
		v = append(v, Validation{InvalidRequired, "is required: missed, failed or all", "only"})
	default:
		v = append(v, Validation{InvalidValue, "must be missed, failed or all", "only"})
	}
	asked := make(map[string]bool, len(sub.Events))
	for _, name := range sub.Events {
		asked[name] = true
	}
	for i, name := range f.Events {
		if !asked[name] {
			v = append(v, Validation{InvalidValue, "is not an event that the subscription asks for", fmt.Sprintf("events[%d]", i)})
		}
	}
	return v
}
