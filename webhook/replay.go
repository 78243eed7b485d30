package webhook

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// ReplayOnly selects the events of a time range that a replay sends.
type ReplayOnly string

const (
	ReplayMissed ReplayOnly = "missed" // events that are in no delivery of the subscription
	ReplayFailed ReplayOnly = "failed" // events whose deliveries have all failed
	ReplayAll    ReplayOnly = "all"
)

// ReplayStatus is the state of a replay.
type ReplayStatus string

const (
	ReplayRunning   ReplayStatus = "running"
	ReplayDone      ReplayStatus = "done"
	ReplayCancelled ReplayStatus = "cancelled"
)

// Replay creates new deliveries for a range of the event log. It runs in the
// background, one delivery per step, and continues after a restart.
type Replay struct {
	ID             string
	SubscriptionID string
	ProgramID      string
	Only           ReplayOnly
	From, To       time.Time // acceptance time of the events: From inclusive, To exclusive
	Events         []string  // event names; all events of the subscription if the request names none
	Status         ReplayStatus
	EventsSent     int64 // put into deliveries so far
	Deliveries     int64 // created so far
	Scanned        int64 // log positions read so far
	Total          int64 // log positions to read
	CreatedAt      time.Time
	CompletedAt    time.Time // zero while it is running
}

// ReplayFields are the fields of a request that starts a replay.
type ReplayFields struct {
	From   time.Time
	To     time.Time // exclusive; zero for now
	Events []string  // nil for all events of the subscription
	Only   ReplayOnly
	DryRun bool // only count
}

// ParseReplay parses the body of a request that starts a replay of a subscription,
// and checks it against the rules at a time. It reports all errors at once; the fields
// are then unusable.
func ParseReplay(raw []byte, sub *Subscription, now time.Time) (ReplayFields, *Error) {
	var f ReplayFields
	b, err := parseBody(raw, "")
	if err != nil {
		return f, err
	}
	for name, value := range b.fields() {
		switch name {
		case "from", "to":
			f.parseEnd(b, name, value)
		case "events":
			f.Events = b.replayEvents(value)
		case "only":
			if !b.isString(value) {
				b.fail(InvalidType, name, "must be a string: missed, failed or all")
			} else if f.Only = ReplayOnly(b.text(value)); f.Only == "" {
				b.fail(InvalidValue, name, "must be missed, failed or all")
			}
		case "dry_run":
			if dry := b.boolean(name, value); dry != nil {
				f.DryRun = *dry
			}
		default:
			b.unknown(name, "a replay", "from, to, events, only, dry_run")
		}
	}
	return f, invalid(merge(b.faults, f.check(sub, now)))
}

// parseEnd parses an end of the time range, from or to.
func (f *ReplayFields) parseEnd(b *body, name string, value int32) {
	text := b.string(name, value)
	if text == nil {
		return
	}
	switch first, next, ok := parseRangeEnd(*text); {
	case !ok:
		b.fail(InvalidFormat, name, "must be a timestamp such as 2026-03-14T08:24:48.644Z, or a date such as 2026-03-14, which is read as UTC")
	case name == "from":
		f.From = first
	default:
		f.To = next
	}
}

// replayEvents parses the event names of a replay: strings, or objects as in
// subscriptions. The name of a malformed element is "".
func (b *body) replayEvents(list int32) (names []string) {
	if b.nodes[list].kind != jsontext.KindBeginArray {
		b.fail(InvalidType, "events", `must be an array of names such as "content_published"`)
		return nil
	}
	for i, event := range b.elements(list) {
		if i == MaxSubscriptionEvents {
			b.fail(InvalidTooMany, "events", fmt.Sprintf("must name at most %d events", MaxSubscriptionEvents))
			return nil
		}
		at, eventName := element("events", i), ""
		switch b.nodes[event].kind {
		case jsontext.KindString:
			if eventName = string(b.text(event)); eventName == "" {
				b.fail(InvalidValue, at, "must not be empty")
			}
		case jsontext.KindBeginObject:
			known := len(b.faults)
			var filter *EventFilter
			if eventName, filter = b.event(event, at); eventName == "" && len(b.faults) == known {
				b.fail(InvalidValue, join(at, "name"), "must not be empty")
			}
			if filter != nil {
				b.fail(InvalidValue, join(at, "filter"), "must not be set: a replay has the filters of its subscription")
			}
		default:
			b.fail(InvalidType, at, `must be a name such as "content_published"`)
		}
		if eventName != "" && slices.Contains(names, eventName) {
			b.fail(InvalidDuplicate, at, "is named twice")
			eventName = ""
		}
		names = append(names, eventName)
	}
	if names == nil {
		b.fail(InvalidRequired, "events", "must name at least one event; omit it for all events of the subscription")
	}
	return names
}

// checkRange returns what is wrong with the time range.
func (f *ReplayFields) checkRange(now time.Time) (v []Validation) {
	if f.From.IsZero() {
		v = append(v, Validation{InvalidRequired, "is required", "from"})
	} else if f.From.After(now) {
		v = append(v, Validation{InvalidValue, "must not be in the future", "from"})
	}
	if !f.To.IsZero() && !f.To.After(f.From) {
		v = append(v, Validation{InvalidValue, "must not be earlier than the start of the range", "to"})
	}
	return v
}

// check returns an error for each rule that the fields break for a subscription. Empty names
// are ignored.
func (f *ReplayFields) check(sub *Subscription, now time.Time) []Validation {
	v := f.checkRange(now)
	switch f.Only {
	case ReplayMissed, ReplayFailed, ReplayAll:
	case "":
		v = append(v, Validation{InvalidRequired, "is required: missed, failed or all", "only"})
	default:
		v = append(v, Validation{InvalidValue, "must be missed, failed or all", "only"})
	}
	for i, name := range f.Events {
		if name != "" && !slices.Contains(sub.Events, name) {
			v = append(v, Validation{InvalidValue, "is not one of the subscription's events", fmt.Sprintf("events[%d]", i)})
		}
	}
	return v
}
