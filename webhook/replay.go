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
	ReplayMissed ReplayOnly = "missed" // events in no delivery of the subscription
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
	Events         []string  // event names; the subscription's if none were given
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
	Events []string  // nil for the subscription's
	Only   ReplayOnly
	DryRun bool // only count
}

// ParseReplay parses the body of a request that starts a replay of a subscription,
// and checks it against the rules at a time. It reports all errors at once; the fields
// are then unusable.
func ParseReplay(raw []byte, sub *Subscription, now time.Time) (ReplayFields, *Error) {
	f, v, err := parseReplay(raw)
	if err == nil {
		err = invalid(merge(v, f.check(sub, now)))
	}
	return f, err
}

// parseReplay returns the fields that are well formed, and errors about the others.
// err is set if the body is not a JSON object.
func parseReplay(raw []byte) (f ReplayFields, v []Validation, err *Error) {
	var d document
	if err := d.parse(raw, ""); err != nil {
		return f, nil, err
	}
	if d.nodes[0].kind != jsontext.KindBeginObject {
		return f, nil, NewError(CodeInvalid, "The body must be a JSON object.")
	}
	fail := func(code, parameter, detail string) { v = append(v, Validation{code, detail, parameter}) }
	for name, value := range d.members(0) {
		kind := d.nodes[value].kind
		switch s := string(d.text(name)); s {
		case "from", "to":
			if code, detail := f.parseEnd(&d, value, s); code != "" {
				fail(code, s, detail)
			}
		case "events":
			var faults []Validation
			f.Events, faults = parseReplayEvents(&d, value)
			v = append(v, faults...)
		case "only":
			if kind != jsontext.KindString {
				fail(InvalidType, s, "must be a string: missed, failed or all")
			} else if f.Only = ReplayOnly(d.text(value)); f.Only == "" {
				fail(InvalidValue, s, "must be missed, failed or all")
			}
		case "dry_run":
			if kind != jsontext.KindTrue && kind != jsontext.KindFalse {
				fail(InvalidType, s, "must be true or false")
			}
			f.DryRun = kind == jsontext.KindTrue
		default:
			fail(InvalidUnknownField, join("", s), "is not a field of a replay; it has: from, to, events, only, dry_run")
		}
	}
	return f, v, nil
}

// parseEnd parses an end of the time range, from or to. The code is "" if it is valid.
func (f *ReplayFields) parseEnd(d *document, value int32, name string) (code, detail string) {
	if !d.isString(value) {
		return InvalidType, "must be a string"
	}
	first, next, ok := parseRangeEnd(d.text(value))
	if !ok {
		return InvalidFormat, "must be a timestamp such as 2026-03-14T08:24:48.644Z, or a date such as 2026-03-14, which is read as UTC"
	}
	if name == "from" {
		f.From = first
	} else {
		f.To = next
	}
	return "", ""
}

// parseReplayEvents parses the event names of a replay: strings, or objects as in
// subscriptions. The name of a malformed element is "".
func parseReplayEvents(d *document, list int32) (names []string, v []Validation) {
	fail := func(code, parameter, detail string) { v = append(v, Validation{code, detail, parameter}) }
	if d.nodes[list].kind != jsontext.KindBeginArray {
		fail(InvalidType, "events", `must be an array of names such as "content_published"`)
		return nil, v
	}
	for i, event := range d.elements(list) {
		if i == MaxSubscriptionEvents {
			fail(InvalidTooMany, "events", fmt.Sprintf("must name at most %d events", MaxSubscriptionEvents))
			return nil, v
		}
		at, eventName := element("events", i), ""
		switch d.nodes[event].kind {
		case jsontext.KindString:
			if eventName = string(d.text(event)); eventName == "" {
				fail(InvalidValue, at, "must not be empty")
			}
		case jsontext.KindBeginObject:
			var faults []Validation
			if eventName, faults = parseEventName(d, event, at); eventName == "" && faults == nil {
				fail(InvalidValue, join(at, "name"), "must not be empty")
			}
			v = append(v, faults...)
		default:
			fail(InvalidType, at, `must be a name such as "content_published"`)
		}
		if eventName != "" && slices.Contains(names, eventName) {
			fail(InvalidDuplicate, at, "is named twice")
			eventName = ""
		}
		names = append(names, eventName)
	}
	if names == nil {
		fail(InvalidRequired, "events", "must name at least one event; omit it for all events of the subscription")
	}
	return names, v
}

// check returns every rule that the fields break for a subscription. Empty names
// are ignored.
func (f *ReplayFields) check(sub *Subscription, now time.Time) []Validation {
	var v []Validation
	if f.From.IsZero() {
		v = append(v, Validation{InvalidRequired, "is required", "from"})
	} else if f.From.After(now) {
		v = append(v, Validation{InvalidValue, "must not be in the future", "from"})
	}
	if !f.To.IsZero() && !f.To.After(f.From) {
		v = append(v, Validation{InvalidValue, "must not be earlier than the start of the range", "to"})
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
		if name != "" && !asked[name] {
			v = append(v, Validation{InvalidValue, "is not one of the subscription's events", fmt.Sprintf("events[%d]", i)})
		}
	}
	return v
}
