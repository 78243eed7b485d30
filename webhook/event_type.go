package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Source is where an event type is defined.
type Source string

const (
	SourceBuiltIn Source = "built_in" // by the spec, in the binary
	SourceFile    Source = "file"     // in the operator's directory event_types, read at start
	SourceAPI     Source = "api"      // by a platform token, in the database
)

// Limits of an operator's own event types.
const (
	MaxEventTypes       = 1000     // in files; as many again over the API
	MaxEventTypeBytes   = 1 << 20  // of one schema
	MaxAPIEventTypeSize = 16 << 20 // bytes of all schemas over the API
)

// NewEventType compiles the schema of an event type for the API, and checks it like the
// schema of a file. The result shares no memory with schema; the store sets its ID,
// Revision and times. The error has CodeTimeout if ctx ends first.
func NewEventType(ctx context.Context, name string, schema []byte) (*EventType, *Error) {
	if err := checkEventName(name); err != nil {
		return nil, err
	}
	if len(schema) > MaxEventTypeBytes {
		return nil, Invalid(Validation{InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxEventTypeBytes), "schema"})
	}
	t, err := newEventType(SchemaFile{name + ".json", schema}, nil)
	if err == nil && ctx.Err() == nil {
		err = t.checkOwn(ctx, schema)
	}
	if err == nil && ctx.Err() == nil {
		err = t.checkExample()
	}
	var limit *schemaLimit
	switch {
	case errors.As(err, &limit):
		return nil, Invalid(Validation{limit.Code, limit.Detail, "schema"})
	case ctx.Err() != nil:
		return nil, NewError(CodeTimeout, "The check of the schema took too long.")
	case err != nil:
		fault := Shorten(strings.Join(strings.Fields(err.Error()), " "), maxSchemaError) // in one line
		return nil, Invalid(Validation{InvalidValue, "is not a usable schema: " + fault, "schema"})
	}
	t.Source = SourceAPI
	return t, nil
}

// checkEventName returns what is wrong with an event type name, nil if nothing is.
func checkEventName(name string) *Error {
	switch {
	case len(name) > MaxEventName:
		return Invalid(Validation{InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxEventName), "name"})
	case !IsEventName(name):
		return Invalid(Validation{InvalidFormat, "must be " + eventNameForm + ", such as order.shipped", "name"})
	}
	return nil
}

// checkExample returns an error if the first example cannot be published.
func (t *EventType) checkExample() error {
	c := NewCatalog(t)
	if _, err := c.NewEvent(t.Example, "examples[0]", time.Time{}); err != nil {
		return fmt.Errorf("its example is invalid: %w", err)
	}
	return nil
}

// maxSchemaError is the maximum length of what is wrong with a schema, in bytes.
const maxSchemaError = 1000

// readOnlyEventTypeFields are the fields of a record that a request may send back; the
// schema defines them.
var readOnlyEventTypeFields = []string{"version", "title", "description", "example", "source"}

// ParseEventType parses the body of a request that creates or changes the event type
// with a name: {"schema": {…}}. Read-only fields of a record are ignored. Errors are those
// of [NewEventType].
func ParseEventType(ctx context.Context, name string, raw []byte) (*EventType, *Error) {
	if err := checkEventName(name); err != nil {
		return nil, err
	}
	b, err := parseBody(raw, ` such as {"schema": {…}}`)
	if err != nil {
		return nil, err
	}
	var schema []byte
	given := false
	for field, value := range b.fields() {
		switch {
		case field == "schema":
			given = true
			if b.nodes[value].kind != jsontext.KindBeginObject {
				b.fail(InvalidType, field, "must be a JSON Schema, an object")
			}
			schema = b.raw(value)
		case field == "name":
			if !b.isString(value) || string(b.text(value)) != name {
				b.fail(InvalidValue, field, "must be the name in the URL, or be left out")
			}
		case !slices.Contains(readOnlyEventTypeFields, field):
			b.unknown(field, "an event type", "schema")
		}
	}
	if !given {
		b.fail(InvalidRequired, "schema", "is required: the JSON Schema of the event")
	}
	if b.faults != nil {
		return nil, invalid(b.faults)
	}
	return NewEventType(ctx, name, schema)
}

// CheckChange returns an error if the event type must not replace before: a *[Error] of
// CodeConflict that names what is not an allowed change, or where before is defined. before may be
// nil.
func (t *EventType) CheckChange(before *EventType) *Error {
	if before == nil {
		return nil
	}
	if err := before.CheckChangeable(); err != nil {
		return err
	}
	changes := CompareSchemas(before.Schema, t.Schema)
	if changes == nil {
		return nil
	}
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	return NewError(CodeConflict, "The new schema of "+t.Name+" may reject events that the current one accepts: "+strings.Join(texts, "; ")+
		". A change may add optional properties where others were forbidden, add enum values, widen types and bounds, and change "+
		"descriptions. Otherwise create an event type with another name.")
}

// CheckChangeable returns an error if the event type cannot be changed over the API.
func (t *EventType) CheckChangeable() *Error {
	switch t.Source {
	case SourceBuiltIn:
		return NewError(CodeConflict, t.Name+" is a built-in event type, which cannot be changed or deleted.")
	case SourceFile:
		return NewError(CodeConflict, t.Name+" is defined by the file event_types/"+t.Name+
			".json in the data directory. Change the file and restart the service.")
	}
	return nil
}

// maxSchemaWork bounds how many subschemas are applied to one place of an event and the
// places around it. References that multiply could make the check of a small event take
// hours.
const maxSchemaWork = 5000

var errSchemaWork = errors.New("the schema is too complex: its references, patterns or enums make the check of one event take too long, " +
	"or it refers to itself without end")

// maxEventWork bounds the work of the schema library on one event: the work of the schema
// times the values of the event. Each error takes memory.
const maxEventWork = 2_000_000

// schemaWork returns the maximum number of subschemas that a schema applies along one path
// of an event, or an error if that is too large.
func schemaWork(ctx context.Context, root *jsonschema.Schema) (int, error) {
	m := workMeter{ctx, make(map[*jsonschema.Schema]*[MaxJSONDepth + 1]int)}
	work := m.work(root, MaxJSONDepth, 0)
	if work > maxSchemaWork {
		return 0, errSchemaWork
	}
	return work, nil
}

// workMeter caches the work of schemas, by the depth of the instance below them: 0 if not
// yet known, -1 while it is computed. Once ctx has ended, the work of every schema is too
// much.
type workMeter struct {
	ctx   context.Context
	known map[*jsonschema.Schema]*[MaxJSONDepth + 1]int
}

// work returns the number of subschemas that s applies to an instance of a depth along
// one path from its root, at most maxSchemaWork+1. chain is the number of calls above.
func (m workMeter) work(s *jsonschema.Schema, depth, chain int) int {
	if s == nil || depth < 0 {
		return 0
	}
	if chain > maxSchemaWork {
		return maxSchemaWork + 1
	}
	row := m.known[s]
	if row == nil {
		if m.ctx.Err() != nil {
			return maxSchemaWork + 1
		}
		row = new([MaxJSONDepth + 1]int)
		m.known[s] = row
	}
	switch {
	case row[depth] < 0:
		return maxSchemaWork + 1
	case row[depth] > 0:
		return row[depth]
	}
	row[depth] = -1
	here, below, one := subschemas(s)
	total := ownWork(s)
	for _, sub := range here {
		total = min(total+m.work(sub, depth, chain+1), maxSchemaWork+1)
	}
	for _, sub := range below {
		total = min(total+m.work(sub, depth-1, chain+1), maxSchemaWork+1)
	}
	most := 0
	for _, sub := range one {
		most = max(most, m.work(sub, depth-1, chain+1))
	}
	row[depth] = min(total+most, maxSchemaWork+1)
	return row[depth]
}

// ownWork returns the work of the keywords of s itself: 1, and more for a large enum and
// for patterns, in subschemas that take as long.
func ownWork(s *jsonschema.Schema) int {
	work := 1
	if s.Enum != nil {
		work += len(s.Enum.Values) / 8
	}
	if p, ok := s.Pattern.(pattern); ok {
		work += p.size
	}
	for re := range s.PatternProperties {
		if p, ok := re.(pattern); ok {
			work += p.size
		}
	}
	return work
}

// subschemas returns the subschemas that apply to the same value as s, those that may all
// apply to one member or element of it, and those of which one applies to each.
func subschemas(s *jsonschema.Schema) (here, below, one []*jsonschema.Schema) {
	here = slices.Concat(s.AllOf, s.AnyOf, s.OneOf)
	here = append(here, s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else, s.PropertyNames)
	if s.DynamicRef != nil {
		here = append(here, s.DynamicRef.Ref)
	}
	for _, sub := range s.DependentSchemas {
		here = append(here, sub)
	}
	for _, dependency := range s.Dependencies {
		if sub, ok := dependency.(*jsonschema.Schema); ok {
			here = append(here, sub)
		}
	}
	below = append(below, s.Items2020, s.Contains, s.UnevaluatedItems, s.UnevaluatedProperties)
	for _, sub := range s.PatternProperties {
		below = append(below, sub)
	}
	for _, sub := range []any{s.AdditionalProperties, s.AdditionalItems, s.Items} {
		if sub, ok := sub.(*jsonschema.Schema); ok {
			below = append(below, sub)
		}
	}
	if list, ok := s.Items.([]*jsonschema.Schema); ok {
		below = append(below, list...)
	}
	one = append(one, s.PrefixItems...)
	for _, sub := range s.Properties {
		one = append(one, sub)
	}
	return here, below, one
}
