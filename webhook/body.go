package webhook

import (
	"iter"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// body is the JSON object of a request, with the faults of its fields.
type body struct {
	document
	faults []Validation
}

// WholeBody is the parameter of an error of a body as a whole.
const WholeBody = "body"

// parseBody parses the body of a request, which must be an object. like ends the error about any other
// value with an example, such as {"name": "a"}; "" for none.
func parseBody(raw []byte, like string) (*body, *Error) {
	b := new(body)
	if err := b.parse(raw, ""); err != nil {
		return nil, err
	}
	if b.nodes[0].kind != jsontext.KindBeginObject {
		return nil, NewError(CodeInvalid, "The body must be a JSON object"+like+".")
	}
	return b, nil
}

// fields yields the name of each field and the node of its value.
func (b *body) fields() iter.Seq2[string, int32] {
	return func(yield func(name string, value int32) bool) {
		for name, value := range b.members(0) {
			if !yield(string(b.text(name)), value) {
				return
			}
		}
	}
}

func (b *body) fail(code, parameter, detail string) {
	b.faults = append(b.faults, Validation{code, detail, parameter})
}

// unknown reports a field that this kind of record does not have. known lists those that it has.
func (b *body) unknown(name, kind, known string) {
	b.fail(InvalidUnknownField, join("", name), "is not a field of "+kind+"; it has: "+known)
}

// string returns the string at a node, nil with a fault if it is not a string.
func (b *body) string(parameter string, value int32) *string {
	if !b.isString(value) {
		b.fail(InvalidType, parameter, "must be a string")
		return nil
	}
	s := string(b.text(value))
	return &s
}

// set sets a field to the string at a node, unless it is not a string, which is a fault.
func (b *body) set(field *string, parameter string, value int32) {
	if s := b.string(parameter, value); s != nil {
		*field = *s
	}
}

// boolean returns the boolean at a node, nil with a fault if it is not a boolean.
func (b *body) boolean(parameter string, value int32) *bool {
	kind := b.nodes[value].kind
	if kind != jsontext.KindTrue && kind != jsontext.KindFalse {
		b.fail(InvalidType, parameter, "must be true or false")
		return nil
	}
	is := kind == jsontext.KindTrue
	return &is
}

// expiry returns the time at a node in the field expires_at, zero for null, which stands for never.
func (b *body) expiry(value int32, never string) time.Time {
	code := InvalidFormat
	switch {
	case b.nodes[value].kind == jsontext.KindNull:
		return time.Time{}
	case !b.isString(value):
		code = InvalidType
	default:
		if at, err := time.Parse(time.RFC3339Nano, string(b.text(value))); err == nil {
			return at.UTC().Truncate(time.Millisecond)
		}
	}
	b.fail(code, "expires_at", "must be a timestamp such as 2027-03-14T08:24:48.644Z, or null for "+never)
	return time.Time{}
}
