package webhook

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// TestHeader marks the delivery of a test event.
const TestHeader = "X-Service-Test"

// ParseTest parses the body of a request for a test event, {"name":
// "content_updated"}, and returns the event type's example as an event that happens
// now.
func (c *Catalog) ParseTest(raw []byte, now time.Time) (Event, *Error) {
	var d document
	if err := d.parse(raw, ""); err != nil {
		return Event{}, err
	}
	if d.nodes[0].kind != jsontext.KindBeginObject {
		return Event{}, NewError(CodeInvalid, `The body must be a JSON object such as {"name": "content_updated"}.`)
	}
	var v []Validation
	var name string
	given := false
	for key, value := range d.members(0) {
		switch s := string(d.text(key)); {
		case s != "name":
			v = append(v, Validation{InvalidUnknownField, "is not a field of a test; it has: name", join("", s)})
		case !d.isString(value):
			given, v = true, append(v, Validation{InvalidType, "must be a string", "name"})
		default:
			given, name = true, string(d.text(value))
		}
	}
	if !given {
		v = append(v, Validation{InvalidRequired, "is required: the name of an event type", "name"})
	}
	if v != nil {
		return Event{}, invalid(v)
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
