package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// compileSchema compiles a self-contained schema.
func compileSchema(location string, text []byte) (*jsonschema.Schema, error) {
	var d document
	if err := d.parse(text, ""); err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.AssertFormat()
	c.UseRegexpEngine((&patternCompiler{compiled: make(map[string]pattern)}).compile)
	c.RegisterFormat(&jsonschema.Format{Name: "int64", Validate: checkInt64})
	if err := c.AddResource(location, d.any(0)); err != nil {
		return nil, err
	}
	return c.Compile(location)
}

// noLoader prevents schemas from loading files or URLs.
type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, errors.New("a schema cannot refer to another file")
}

// checkInt64 checks the format int64: an integer written without a fraction. JSON
// Schema itself also accepts 1.0, but many parsers do not.
func checkInt64(v any) error {
	n, ok := v.(json.Number)
	if !ok {
		return nil
	}
	_, err := strconv.ParseInt(string(n), 10, 64)
	return err
}

// collectSchemas adds a schema and all its subschemas to all, by location.
func collectSchemas(all map[string]*jsonschema.Schema, s *jsonschema.Schema) {
	if s == nil || all[s.Location] != nil {
		return
	}
	all[s.Location] = s
	here, below, one := subschemas(s)
	for _, p := range slices.Concat(here, below, one) {
		collectSchemas(all, p)
	}
}

// acceptor is a fast check for valid values. It works directly on the text, many
// times faster than the schema library. If it does not accept a value, the library
// decides and reports the errors. It supports the few keywords of the embedded
// schemas; schemas with any other have no acceptor.
type acceptor struct {
	types           valueKinds // 0 for any
	integer         bool       // numbers must be written as integers
	constantTypes   valueKinds // 0 for any value
	constant        string     // the content of a string, or the literal true or false
	format          func(d *document, i int32) bool
	fields          []field // few, so a linear search is faster than a map
	require         uint64  // bits of the required fields
	closed          bool    // no other fields are allowed
	items           *acceptor
	allOf, anyOf    []*acceptor
	cond            *acceptor // if
	then, otherwise *acceptor
}

type field struct {
	name   string
	bit    uint64
	accept *acceptor // nil for any value
}

// accept reports whether the value at node i is certainly valid.
func (a *acceptor) accept(d *document, i int32) bool {
	k := d.nodes[i].kind
	if a.types != 0 && a.types&nodeKinds[k] == 0 {
		return false
	}
	switch k {
	case jsontext.KindNumber:
		if a.integer && bytes.ContainsAny(d.raw(i), ".eE") {
			return false
		}
	case jsontext.KindBeginArray:
		if !a.acceptItems(d, i) {
			return false
		}
	case jsontext.KindBeginObject:
		if !a.acceptFields(d, i) {
			return false
		}
	}
	if a.constantTypes != 0 && !(a.constantTypes&nodeKinds[k] != 0 && a.isConstant(d, i)) || a.format != nil && !a.format(d, i) {
		return false
	}
	for _, s := range a.allOf {
		if !s.accept(d, i) {
			return false
		}
	}
	if a.anyOf != nil && !slices.ContainsFunc(a.anyOf, func(s *acceptor) bool { return s.accept(d, i) }) {
		return false
	}
	if a.cond == nil {
		return true
	}
	branch := a.otherwise
	if a.cond.accept(d, i) {
		branch = a.then
	}
	return branch == nil || branch.accept(d, i)
}

func (a *acceptor) acceptItems(d *document, i int32) bool {
	if a.items == nil {
		return true
	}
	for _, value := range d.elements(i) {
		if !a.items.accept(d, value) {
			return false
		}
	}
	return true
}

func (a *acceptor) acceptFields(d *document, i int32) bool {
	if a.fields == nil && !a.closed {
		return true
	}
	var seen uint64
	for name, value := range d.members(i) {
		f := a.field(d.text(name))
		switch {
		case f == nil && a.closed:
			return false
		case f != nil && f.accept != nil && !f.accept.accept(d, value):
			return false
		case f != nil:
			seen |= f.bit
		}
	}
	return seen&a.require == a.require
}

func (a *acceptor) field(name []byte) *field {
	for i := range a.fields {
		if a.fields[i].name == string(name) {
			return &a.fields[i]
		}
	}
	return nil
}

func (a *acceptor) isConstant(d *document, i int32) bool {
	if d.nodes[i].kind == jsontext.KindString {
		return string(d.text(i)) == a.constant
	}
	return string(d.raw(i)) == a.constant
}

// maxAcceptors is the maximum number of acceptors of an event type. A schema with
// references can describe many more.
const maxAcceptors = 10_000

// maxFields is the maximum number of fields of an acceptor, which has a bit for each.
const maxFields = 64

// compileAcceptor returns nil for a schema with unsupported keywords. An exact
// acceptor accepts a value if and only if the schema does, which is needed to
// choose between then and else. parts counts the acceptors, whose number is limited.
func compileAcceptor(s *jsonschema.Schema, exact bool, depth int, parts *int) *acceptor {
	*parts++
	if depth > MaxJSONDepth || *parts > maxAcceptors || !covered(s) { // a schema can refer to itself
		return nil
	}
	ok := true
	compile := func(s *jsonschema.Schema, exact bool) *acceptor {
		if s == nil {
			return nil
		}
		a := compileAcceptor(s, exact, depth+1, parts)
		ok = ok && a != nil
		return a
	}
	a := &acceptor{items: compile(s.Items2020, exact)}
	if s.Types != nil {
		names := s.Types.ToStrings()
		a.types, a.integer = typeKinds(names...), slices.Contains(names, "integer")
	}
	if s.Const != nil && !a.setConstant(*s.Const) {
		return nil
	}
	if s.Format != nil {
		a.format = formats[s.Format.Name]
		ok = a.format != nil
	}
	if exact && (a.integer || a.format != nil) {
		return nil // both are stricter here than in the library
	}
	if len(s.Properties) > maxFields {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		a.fields = append(a.fields, field{name, 1 << len(a.fields), compile(s.Properties[name], exact)})
	}
	switch additional := s.AdditionalProperties.(type) {
	case nil:
	case bool:
		a.closed = !additional
	default:
		return nil
	}
	if !a.setRequired(s.Required) {
		return nil
	}
	for _, sub := range s.AllOf {
		a.allOf = append(a.allOf, compile(sub, exact))
	}
	if s.Ref != nil {
		a.allOf = append(a.allOf, compile(s.Ref, exact))
	}
	for _, sub := range s.AnyOf {
		a.anyOf = append(a.anyOf, compile(sub, exact))
	}
	a.cond, a.then, a.otherwise = compile(s.If, true), compile(s.Then, exact), compile(s.Else, exact)
	if !ok || len(a.fields) > maxFields {
		return nil
	}
	return a
}

// setConstant makes value the only one allowed. It returns false if its type is not
// supported.
func (a *acceptor) setConstant(value any) bool {
	switch c := value.(type) {
	case string:
		a.constant, a.constantTypes = c, kindString
	case bool:
		a.constant, a.constantTypes = strconv.FormatBool(c), kindBoolean
	default:
		return false
	}
	return true
}

// setRequired makes fields required. It returns false if one is not allowed, or if there
// are too many fields.
func (a *acceptor) setRequired(names []string) bool {
	for _, name := range names {
		if len(a.fields) > maxFields {
			return false
		}
		f := a.field([]byte(name))
		if f == nil && a.closed {
			return false
		}
		if f == nil {
			a.fields = append(a.fields, field{name: name, bit: 1 << len(a.fields)})
			f = &a.fields[len(a.fields)-1]
		}
		a.require |= f.bit
	}
	return true
}

var formats = map[string]func(d *document, i int32) bool{
	"int64": func(d *document, i int32) bool {
		_, err := strconv.ParseInt(string(d.raw(i)), 10, 64)
		return d.nodes[i].kind != jsontext.KindNumber || err == nil
	},
	"uuid": func(d *document, i int32) bool {
		if d.nodes[i].kind != jsontext.KindString {
			return true
		}
		_, ok := parseUUID(d.text(i))
		return ok
	},
	"date-time": func(d *document, i int32) bool {
		return d.nodes[i].kind != jsontext.KindString || isTimestamp(d.text(i))
	},
}

// covered reports whether the schema has only keywords that compileAcceptor
// supports or that have no effect.
func covered(s *jsonschema.Schema) bool {
	rest := *s
	rest.DraftVersion, rest.Location, rest.ID, rest.Anchor = 0, "", "", ""
	rest.Title, rest.Description, rest.Comment, rest.Examples, rest.Default = "", "", "", nil, nil
	rest.Types, rest.Const, rest.Format, rest.Ref, rest.Items2020 = nil, nil, nil, nil, nil
	rest.Properties, rest.Required, rest.AdditionalProperties = nil, nil, nil
	rest.AllOf, rest.AnyOf, rest.If, rest.Then, rest.Else = nil, nil, nil, nil, nil
	v := reflect.ValueOf(rest)
	for i := range v.NumField() {
		if v.Type().Field(i).IsExported() && !v.Field(i).IsZero() {
			return false
		}
	}
	return true
}

// faults returns the schema's errors for an event as validations.
func (t *EventType) faults(event map[string]any, at string) []Validation {
	var failed *jsonschema.ValidationError
	if err := t.schema.Validate(event); err == nil {
		return nil
	} else if !errors.As(err, &failed) {
		return []Validation{{InvalidValue, "cannot be checked against the event type's schema", wholeEvent(at)}}
	}
	v := t.explain(nil, failed, event, at)
	slices.SortFunc(v, func(a, b Validation) int {
		return cmp.Or(strings.Compare(a.Parameter, b.Parameter), strings.Compare(a.Detail, b.Detail))
	})
	// Two parts of a schema can find the same fault.
	return slices.CompactFunc(v, func(a, b Validation) bool { return a.Parameter == b.Parameter })
}

// Bounds of an event's errors: a large schema and a large event would otherwise multiply.
const (
	maxFaults = 1000 // of one event
	maxListed = 50   // fields or values that one error lists
)

// explain appends the validations of one library error to v. It stops at maxFaults.
func (t *EventType) explain(v []Validation, e *jsonschema.ValidationError, event any, at string) []Validation {
	where, name := at, t.Name
	value := event
	for _, token := range e.InstanceLocation {
		switch parent := value.(type) {
		case []any:
			i, _ := strconv.Atoi(token)
			where, value = element(where, i), parent[i]
		case map[string]any:
			where, name, value = join(where, token), token, parent[token]
		}
	}
	add := func(code, format string, args ...any) {
		v = append(v, Validation{code, fmt.Sprintf(format, args...), cmp.Or(where, wholeEvent(at))})
	}
	room := max(0, maxFaults-len(v))
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		for _, missing := range k.Missing[:min(len(k.Missing), room)] {
			v = append(v, Validation{InvalidRequired, "is required", join(where, missing)})
		}
	case *kind.AdditionalProperties:
		detail := t.notAField(e.SchemaURL, name)
		for _, extra := range k.Properties[:min(len(k.Properties), room)] {
			v = append(v, Validation{InvalidUnknownField, detail, join(where, extra)})
		}
	case *kind.Type:
		allowed := make([]string, len(k.Want))
		for i, want := range k.Want {
			allowed[i] = withArticle[want]
		}
		add(InvalidType, "must be %s", strings.Join(allowed, " or "))
	case *kind.Const:
		add(InvalidValue, "must be %s", shortLiteral(k.Want))
	case *kind.Enum:
		add(InvalidValue, "must be one of %s", listed(k.Want, shortLiteral))
	case *kind.Format:
		number, isNumber := k.Got.(json.Number)
		switch {
		case isNumber && strings.ContainsAny(string(number), ".eE"):
			add(InvalidType, "must be an integer without fraction and exponent")
		case isNumber:
			add(InvalidValue, "must be an integer of at most 64 bits")
		default:
			add(InvalidFormat, "must have the format %s", k.Want)
		}
	case *kind.MaxLength:
		add(InvalidTooLong, "must be at most %s long", Count(k.Want, "character"))
	case *kind.MaxItems:
		add(InvalidTooMany, "must have at most %s", Count(k.Want, "element"))
	case *kind.AnyOf, *kind.OneOf:
		if missing := alternatives(e); missing != nil {
			v = append(v, Validation{InvalidRequired, "is required when there is no " + strings.Join(missing[1:], " and no "),
				join(where, missing[0])})
		} else {
			add(InvalidValue, "must match one of the forms in the event type's schema")
		}
	default:
		if len(e.Causes) == 0 {
			keyword := e.ErrorKind.KeywordPath()
			add(InvalidValue, "violates the event type's schema (%s)", strings.Join(keyword, "/"))
		}
		for _, cause := range e.Causes {
			if len(v) >= maxFaults {
				break
			}
			v = t.explain(v, cause, event, at)
		}
	}
	return v
}

// listed returns the texts of the first maxListed values, and how many more there are.
func listed[T any](values []T, text func(T) string) string {
	shown := make([]string, min(len(values), maxListed))
	for i := range shown {
		shown[i] = text(values[i])
	}
	all := strings.Join(shown, ", ")
	if more := len(values) - len(shown); more > 0 {
		all += fmt.Sprintf(" and %d more", more)
	}
	return all
}

// alternatives returns the fields of which one is required, if that is all that the
// branches of a failed anyOf or oneOf require, or nil.
func alternatives(e *jsonschema.ValidationError) (missing []string) {
	for _, cause := range e.Causes {
		required, ok := cause.ErrorKind.(*kind.Required)
		if !ok || len(required.Missing) != 1 || len(cause.InstanceLocation) != len(e.InstanceLocation) {
			return nil
		}
		missing = append(missing, required.Missing[0])
	}
	if len(missing) < 2 {
		return nil
	}
	return missing
}

// notAField describes an unknown field of the object at a location in the schema.
func (t *EventType) notAField(location, object string) string {
	s := t.schemas[location]
	object = quotedName(object)
	if s == nil || len(s.Properties) == 0 {
		return "is not a field of " + object + ", which has none"
	}
	names := slices.Sorted(maps.Keys(s.Properties))
	return "is not a field of " + object + "; it has: " + listed(names, quotedName)
}

var withArticle = map[string]string{
	"null": "null", "boolean": "true or false", "string": "a string", "object": "an object",
	"array": "an array", "number": "a number", "integer": "an integer",
}

// literal formats a value of a schema as JSON.
func literal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return "the value in the event type's schema"
	}
	return string(text)
}

// wholeEvent returns the parameter of an error about an event as a whole, which is the body of a
// request with one event.
func wholeEvent(at string) string { return cmp.Or(at, WholeBody) }
