package webhook

import (
	"bytes"
	"encoding/json"
	"time"
)

// TestHeader marks the delivery of a test event.
const TestHeader = "X-Service-Test"

// ParseTest parses the body of a request for a test event, {"name":
// "content_updated"}, and returns the event type's example as an event that happens
// now.
func (c *Catalog) ParseTest(raw []byte, now time.Time) (Event, *Error) {
	b, err := parseBody(raw, ` such as {"name": "content_updated"}`)
	if err != nil {
		return Event{}, err
	}
	var name string
	given := false
	for key, value := range b.fields() {
		if key != "name" {
			b.unknown(key, "a test", "name")
			continue
		}
		given = true
		b.set(&name, key, value)
	}
	if !given {
		b.fail(InvalidRequired, "name", "is required: the name of an event type")
	}
	if b.faults != nil {
		return Event{}, invalid(b.faults)
	}
	return c.TestEvent(name, now)
}

// TestEvent returns the example of an event type as an event that happens now. A
// ping has none.
func (c *Catalog) TestEvent(name string, now time.Time) (Event, *Error) {
	t, ok := c.Type(name)
	switch {
	case !ok:
		return Event{}, Invalid(Validation{InvalidUnknownEvent, unknownEvent, "name"})
	case name == EventPing:
		return Event{}, Invalid(Validation{InvalidValue, "must not be ping: ping the subscription instead", "name"})
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(t.Example, &fields); err != nil {
		return Event{}, NewError(CodeInternal, "The example of "+name+" cannot be read.")
	}
	delete(fields, "id") // NewEvent sets both
	delete(fields, "timestamp")
	raw, err := json.Marshal(fields)
	if err != nil {
		return Event{}, NewError(CodeInternal, "The example of "+name+" cannot be written.")
	}
	return c.NewEvent(raw, "", now)
}

// IsTestEvent reports whether the single event of a ping delivery is a test event.
// Every event has its name third, after id and timestamp.
func IsTestEvent(event []byte) bool {
	_, rest, found := bytes.Cut(event, []byte(`,"name":"`))
	return found && !bytes.HasPrefix(rest, []byte(EventPing+`"`))
}
