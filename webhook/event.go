package webhook

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// Limits of publishing.
const (
	MaxEventBytes    = 256 << 10 // one event, as it is sent
	MaxPublishEvents = 1000      // events in one atomic request
)

// Event is something that happened, as published. It is immutable.
type Event struct {
	ProgramID  string
	Seq        int64 // position in its program's log: dense, from 1, in the order of acceptance
	ID         string
	Name       string
	Version    string
	Timestamp  string // ISO 8601 UTC, as published
	ReceivedAt time.Time
	JSON       []byte // the whole object as delivered, compact

	// ErasedAt is when the payload was erased, zero if it was not. JSON then has the common fields
	// and erased_at.
	ErasedAt time.Time

	// TimestampGiven means that the publisher sent the timestamp. A generated one
	// differs each time the same event is published. Not stored.
	TimestampGiven bool

	// DetailsFilled means that JSON ends with empty details that the publisher left
	// out. Not stored.
	DetailsFilled bool

	// TypeID is the ID of the event type that the event was checked against, which
	// the store compares with the current one. Not stored.
	TypeID int64

	// Trace is the trace that the event was published in. It is sent with attempts
	// and is not part of the event. Only set while publishing.
	Trace Trace
}

// Erase removes the payload of an event.
func (e *Event) Erase(at time.Time) {
	e.ErasedAt = at.UTC().Truncate(time.Millisecond)
	e.JSON = appendEventHead(nil, e.ID, e.Timestamp)
	e.JSON = fmt.Appendf(e.JSON, `,"name":"%s","version":"%s","erased_at":"%s"}`, e.Name, e.Version, FormatTime(e.ErasedAt))
}

// NewEvent parses and checks one event from a publisher. at is the path of the
// event for errors, such as events[3], or "" for a request body. The JSON of the
// event starts with id, timestamp, name and version, followed by the publisher's
// fields in their order and spelling; it shares no memory with raw. The store sets
// ProgramID and Seq.
func (c *Catalog) NewEvent(raw []byte, at string, now time.Time) (Event, *Error) {
	if len(raw) > MaxEventBytes { // before any work is done on it
		return Event{}, invalid([]Validation{eventTooLarge(at)})
	}
	d := c.document()
	defer c.release(d)
	if err := d.parse(raw, at); err != nil {
		return Event{}, err
	}
	e, v := c.newEvent(d, 0, at, now)
	return e, invalid(v)
}

// NewEvents parses the body of a publish request: one event, or an object whose property
// events contains 1 to MaxPublishEvents of them. It returns all events or none; batch
// reports whether they were in an array. An ID may occur several times, with the same
// content or not.
func (c *Catalog) NewEvents(raw []byte, now time.Time) (events []Event, batch bool, err *Error) {
	d := c.document()
	defer c.release(d)
	if err := d.parseTo(raw, "", MaxJSONDepth+2); err != nil { // an event may be in an array of an object
		return nil, false, err
	}
	if d.nodes[0].kind != jsontext.KindBeginObject {
		return nil, false, NewError(CodeInvalid, "The body must be a JSON object.")
	}
	list, named := int32(-1), false
	for name, value := range d.members(0) {
		switch string(d.text(name)) {
		case "events":
			list = value
		case "name":
			named = true
		}
	}
	if list < 0 || named {
		if d.deep >= 0 {
			return nil, false, d.tooDeep(d.deep, "")
		}
		e, v := c.newEvent(d, 0, "", now)
		if err := invalid(v); err != nil {
			return nil, false, err
		}
		return []Event{e}, false, nil
	}

	var v []Validation
	for name := range d.members(0) {
		if s := string(d.text(name)); s != "events" {
			v = append(v, Validation{InvalidUnknownField, "is not a field of this request; it has: events", join("", s)})
		}
	}
	if d.nodes[list].kind != jsontext.KindBeginArray {
		return nil, true, invalid(append(v, Validation{InvalidType, "must be an array", "events"}))
	}
	n := 0
	for range d.elements(list) {
		n++
	}
	switch {
	case n == 0:
		v = append(v, Validation{InvalidRequired, "must have at least one event", "events"})
	case n > MaxPublishEvents:
		v = append(v, Validation{InvalidTooMany,
			fmt.Sprintf("must have at most %d events; use application/x-ndjson for more", MaxPublishEvents), "events"})
	default:
		events = make([]Event, 0, n)
		for i, value := range d.elements(list) {
			if len(v) >= maxFaults {
				break
			}
			e, faults := c.newEvent(d, value, element("events", i), now)
			v = append(v, faults...)
			events = append(events, e)
		}
	}
	if err := invalid(v); err != nil {
		return nil, true, err
	}
	return events, true, nil
}

// newEvent checks and creates the event at node root.
func (c *Catalog) newEvent(d *document, root int32, at string, now time.Time) (Event, []Validation) {
	if len(d.raw(root)) > MaxEventBytes {
		return Event{}, []Validation{eventTooLarge(at)}
	}
	if d.nodes[root].kind != jsontext.KindBeginObject {
		return Event{}, []Validation{{InvalidType, "must be an object", wholeEvent(at)}}
	}

	e := Event{ReceivedAt: now, Version: EventVersion}
	eventType, v := c.commonFields(d, root, at, &e)
	if eventType != nil {
		v = merge(v, eventType.check(d, root, at, now))
	}
	if len(v) > 0 {
		return Event{}, v
	}
	if e.ID == "" {
		e.ID = NewID()
	}
	if e.Timestamp == "" {
		e.Timestamp = FormatTime(now)
	}
	own := make([]byte, 0, len(d.raw(root))+120)
	own = appendEventHead(own, e.ID, e.Timestamp)
	own = append(own, `,"name":"`...)
	own = append(own, e.Name...)
	own = append(own, `","version":"`+EventVersion+`"`...)
	for name, value := range d.members(root) {
		if !isCommonField(d.text(name)) {
			own = append(own, ',')
			own = append(own, d.raw(name)...)
			own = append(own, ':')
			own = appendCompact(own, d.raw(value))
		}
	}
	if eventType.HasDetails {
		if _, given := d.member(root, "details"); !given {
			own, e.DetailsFilled = append(own, emptyDetails...), true
		}
	}
	e.JSON = append(own, '}')
	return e, nil
}

// emptyDetails is appended to a notification without details, which the spec
// requires for every category (section 6.2).
const emptyDetails = `,"details":{}`

// commonFields parses the fields of every event into e. It returns the event type,
// nil if unknown, and what is wrong with the fields.
func (c *Catalog) commonFields(d *document, root int32, at string, e *Event) (t *EventType, v []Validation) {
	var haveName, haveVersion bool
	for name, value := range d.members(root) {
		var code, field, detail string
		switch string(d.text(name)) {
		case "id":
			field = "id"
			code, detail = e.readID(d, value)
		case "timestamp":
			field = "timestamp"
			code, detail = e.readTimestamp(d, value)
		case "name":
			haveName, field = true, "name"
			if t, code, detail = c.readName(d, value); t != nil {
				e.Name, e.TypeID = t.Name, t.ID
			}
		case "version":
			haveVersion, field = true, "version"
			code, detail = readVersion(d, value)
		}
		if code != "" {
			v = append(v, Validation{code, detail, join(at, field)})
		}
	}
	if !haveName {
		v = append(v, Validation{InvalidRequired, "is required", join(at, "name")})
	}
	if !haveVersion {
		v = append(v, Validation{InvalidRequired, "is required", join(at, "version")})
	}
	return t, v
}

// readID parses the value at node i into e.ID. The code is "" if it is valid.
func (e *Event) readID(d *document, i int32) (code, detail string) {
	if !d.isString(i) {
		return InvalidType, "must be a string"
	}
	id, ok := parseUUID(d.text(i))
	if !ok {
		return InvalidFormat, "must be a UUID such as 0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5"
	}
	e.ID = id.String()
	return "", ""
}

// readTimestamp parses the value at node i into e.Timestamp. The code is "" if it
// is valid.
func (e *Event) readTimestamp(d *document, i int32) (code, detail string) {
	if !d.isString(i) {
		return InvalidType, "must be a string"
	}
	s := d.text(i)
	if !isTimestamp(s) {
		return InvalidFormat, "must be a time in UTC such as 2026-03-14T08:24:48.644Z"
	}
	e.Timestamp, e.TimestampGiven = string(s), true
	return "", ""
}

// readName returns the event type named at node i, nil with a code if it cannot be
// published.
func (c *Catalog) readName(d *document, i int32) (t *EventType, code, detail string) {
	if !d.isString(i) {
		return nil, InvalidType, "must be a string"
	}
	switch t = c.current.Load().byName[string(d.text(i))]; {
	case t == nil:
		return nil, InvalidUnknownEvent, unknownEvent
	case t.Name == EventPing:
		return nil, InvalidValue, "cannot be published: a ping is sent by creating or pinging a subscription"
	}
	return t, "", ""
}

// readVersion checks the value at node i. The code is "" if it is valid.
func readVersion(d *document, i int32) (code, detail string) {
	if !d.isString(i) {
		return InvalidType, `must be the string "1"`
	}
	if string(d.text(i)) != EventVersion {
		return InvalidValue, `must be "1"`
	}
	return "", ""
}

const unknownEvent = "is not the name of an event type; GET /v2/event_types lists them"

func eventTooLarge(at string) Validation {
	return Validation{InvalidTooLarge, fmt.Sprintf("must be at most %d bytes", MaxEventBytes), wholeEvent(at)}
}

// isCommonField reports whether every event has the field (spec, section 2.3).
func isCommonField(name []byte) bool {
	switch string(name) {
	case "id", "timestamp", "name", "version":
		return true
	}
	return false
}

// appendEventHead appends the start of every event's JSON. Neither value needs
// escaping.
func appendEventHead(dst []byte, id, timestamp string) []byte {
	dst = append(dst, `{"id":"`...)
	dst = append(dst, id...)
	dst = append(dst, `","timestamp":"`...)
	dst = append(dst, timestamp...)
	return append(dst, '"')
}

// SameEvent reports whether a repeated event is the same as the stored event with its ID.
// The order of properties, whitespace and escapes do not matter; the spelling of numbers
// does. A timestamp that was not given this time is ignored, since the publisher cannot know
// the generated one.
func SameEvent(stored, again *Event) bool {
	a, b := stored.JSON, again.JSON
	if !again.TimestampGiven {
		restA, okA := bytes.CutPrefix(a, appendEventHead(nil, stored.ID, stored.Timestamp))
		restB, okB := bytes.CutPrefix(b, appendEventHead(nil, again.ID, again.Timestamp))
		if stored.ID != again.ID || !okA || !okB {
			return false
		}
		a, b = append([]byte(`{"":0`), restA...), append([]byte(`{"":0`), restB...)
	}
	if bytes.Equal(a, b) {
		return true
	}
	if again.DetailsFilled && !bytes.Contains(a, []byte(`"details"`)) { // it was stored before details were filled in
		b = append(bytes.TrimSuffix(b, []byte(emptyDetails+"}")), '}')
	}
	a, errA := canonical(a)
	b, errB := canonical(b)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// canonical formats JSON so that equal content is equal text, except for numbers,
// which keep their spelling: they may exceed a float64.
func canonical(json []byte) ([]byte, error) {
	return jsontext.AppendFormat(nil, json, jsontext.ReorderRawObjects(true), jsontext.PreserveRawStrings(false),
		jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
}

// parseUUID parses a UUID in its 36-character form, in any case.
func parseUUID(s []byte) (id uuid.UUID, ok bool) {
	if len(s) != 36 {
		return id, false
	}
	id, err := uuid.ParseBytes(s)
	return id, err == nil
}

// isTimestamp reports whether s is an RFC 3339 timestamp in UTC with at most nine
// fractional digits.
func isTimestamp(s []byte) bool {
	const form = "0000-00-00T00:00:00"
	if len(s) < len(form)+1 {
		return false
	}
	for i := range form {
		digit := s[i] >= '0' && s[i] <= '9'
		if digit != (form[i] == '0') || !digit && s[i] != form[i] {
			return false
		}
	}
	rest := s[len(form):]
	if rest[0] == '.' {
		n := 1
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		if n == 1 || n > 10 {
			return false
		}
		rest = rest[n:]
	}
	if string(rest) != "Z" && string(rest) != "+00:00" {
		return false
	}
	_, err := time.Parse("2006-01-02T15:04:05", string(s[:len(form)])) // checks that the day and the hour exist
	return err == nil
}

// StoredEvents checks events that another installation has stored. It keeps memory between two
// calls, and is not safe for concurrent use.
type StoredEvents struct {
	document document
	compact  []byte
}

// Check returns what is wrong with the JSON of an event, "" for nothing: it must be an object as
// [Catalog.NewEvent] creates it, and its common fields must be those of e. Event types do not
// matter.
func (s *StoredEvents) Check(e *Event) string {
	const added = 1024 // what the service has added to what was published, at most
	d := &s.document
	if len(e.JSON) > MaxEventBytes+added {
		return fmt.Sprintf("must be at most %d bytes", MaxEventBytes)
	}
	if err := d.parse(e.JSON, ""); err != nil {
		return "must be JSON in UTF-8, without a name that occurs twice"
	}
	if d.nodes[0].kind != jsontext.KindBeginObject {
		return "must be a JSON object"
	}
	if s.compact = appendCompact(s.compact[:0], e.JSON); !bytes.Equal(s.compact, e.JSON) {
		return "must have no white space outside of strings"
	}
	var stored Event
	version := false
	for name, value := range d.members(0) {
		code := ""
		switch string(d.text(name)) {
		case "id":
			code, _ = stored.readID(d, value)
		case "timestamp":
			code, _ = stored.readTimestamp(d, value)
		case "name":
			if d.isString(value) {
				stored.Name = string(d.text(value))
			}
		case "version":
			version = true
			code, _ = readVersion(d, value)
		}
		if code != "" {
			return "must have valid common fields"
		}
	}
	if !version || stored.ID != e.ID || stored.Name != e.Name ||
		!bytes.HasPrefix(e.JSON, appendEventHead(s.compact[:0], stored.ID, stored.Timestamp)) {
		return "must have the common fields of its row"
	}
	return ""
}

// AppendLogged appends the record of an event of a log: exactly what is delivered, followed by its seq, the
// time of its acceptance and, unless that is "", what has become of it for a subscription. It does not
// parse the stored JSON.
func (e *Event) AppendLogged(dst []byte, deliveryStatus string) []byte {
	dst = append(dst, e.JSON[:len(e.JSON)-1]...)
	dst = append(dst, `,"seq":`...)
	dst = strconv.AppendInt(dst, e.Seq, 10)
	dst = append(dst, `,"received_at":"`...)
	dst = append(dst, FormatTime(e.ReceivedAt)...)
	if deliveryStatus != "" {
		dst = append(append(dst, `","delivery_status":"`...), deliveryStatus...)
	}
	return append(dst, `"}`...)
}
