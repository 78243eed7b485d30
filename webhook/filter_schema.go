package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// checkFilter returns which conditions of a filter no event of the type can meet: paths that its
// schema does not have, operations that the type of a field does not allow, and values of another
// type.
func (t *EventType) checkFilter(f *EventFilter) []Validation {
	c := filterCheck{eventType: t, steps: maxFilterSteps}
	f.root.each(c.condition)
	return c.faults
}

// maxFilterSteps bounds the subschemas that the check of one filter visits: references can describe
// very many. What is beyond may be anything.
const maxFilterSteps = 20_000

type filterCheck struct {
	eventType *EventType
	steps     int
	faults    []Validation
}

func (c *filterCheck) fail(code, at, format string, args ...any) {
	c.faults = append(c.faults, Validation{code, fmt.Sprintf(format, args...), at})
}

func (c *filterCheck) condition(cond *condition) {
	p, name := place{schemas: []*jsonschema.Schema{c.eventType.schema}}, c.eventType.Name
	for _, next := range cond.path {
		member, ok := c.member(p, next)
		if !ok {
			c.fail(InvalidUnknownField, join(cond.at, "path"), "%s is not a field of %s; %s", quotedName(next), quotedName(name), c.has(p))
			return
		}
		p, name = member, next
	}
	s := c.shape(p)
	if allowed := s.ops(); !slices.Contains(allowed, cond.op) {
		c.fail(InvalidValue, join(cond.at, "op"), "is not possible for %s, which is %s; use %s", quotedName(name), s,
			listed(allowed, func(op FilterOp) string { return string(op) }))
		return
	}
	if cond.op == OpExists {
		return
	}
	possible := s.values(cond.op, func() shape { return c.shape(c.elements(p)) })
	for i := range cond.values {
		if nodeKinds[cond.values[i].kind]&possible.kinds != 0 {
			continue
		}
		at := join(cond.at, "value")
		if cond.op == OpIn || cond.op == OpNotIn {
			at = element(at, i)
		}
		c.fail(InvalidType, at, "must be %s", possible)
	}
}

// has lists the fields that the objects at a place can have.
func (c *filterCheck) has(p place) string {
	names := make(map[string]bool)
	c.names(p, names)
	if len(names) == 0 {
		return "it has none"
	}
	return "it has: " + listed(slices.Sorted(maps.Keys(names)), quotedName)
}

// place is what is known of the values at a path of an event: all of the schemas apply, and one of
// each choice.
type place struct {
	schemas []*jsonschema.Schema
	choices [][]place
}

// and adds another place that applies too.
func (p *place) and(other place) {
	p.schemas = append(p.schemas, other.schemas...)
	p.choices = append(p.choices, other.choices...)
}

// or adds a choice of the places that are possible. It returns false if none is.
func (p *place) or(possible []place) bool {
	if len(possible) > 0 {
		p.choices = append(p.choices, possible)
	}
	return len(possible) > 0
}

// visit reports whether another subschema may be visited.
func (c *filterCheck) visit() bool {
	c.steps--
	return c.steps > 0
}

// applied calls all for the schemas that apply together with s, and choice for each list of schemas
// of which one applies; nil in a list stands for any value. It stops when one returns false.
func applied(s *jsonschema.Schema, all func(*jsonschema.Schema) bool, choice func([]*jsonschema.Schema) bool) bool {
	for _, sub := range s.AllOf {
		if !all(sub) {
			return false
		}
	}
	if s.Ref != nil && !all(s.Ref) {
		return false
	}
	for _, list := range [...][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		if len(list) > 0 && !choice(list) {
			return false
		}
	}
	return s.If == nil || choice([]*jsonschema.Schema{s.Then, s.Else})
}

// member returns the place of a member of the objects at a place, false if none can have it.
func (c *filterCheck) member(p place, name string) (m place, ok bool) {
	for _, s := range p.schemas {
		sub, ok := c.memberOf(s, name)
		if !ok {
			return m, false
		}
		m.and(sub)
	}
	for _, choice := range p.choices {
		var possible []place
		for _, one := range choice {
			if sub, ok := c.member(one, name); ok {
				possible = append(possible, sub)
			}
		}
		if !m.or(possible) {
			return m, false
		}
	}
	return m, true
}

// memberOf is member for the objects of one schema.
func (c *filterCheck) memberOf(s *jsonschema.Schema, name string) (m place, ok bool) {
	switch {
	case s == nil || !c.visit():
		return m, true
	case s.Bool != nil:
		return m, *s.Bool
	case s.Types != nil && !slices.Contains(s.Types.ToStrings(), "object"):
		return m, false
	}
	local := false
	if sub := s.Properties[name]; sub != nil {
		m.schemas, local = append(m.schemas, sub), true
	}
	for pattern, sub := range s.PatternProperties {
		if pattern.MatchString(name) {
			m.schemas, local = append(m.schemas, sub), true
		}
	}
	if sub, ok := s.AdditionalProperties.(*jsonschema.Schema); ok && !local {
		m.schemas = append(m.schemas, sub)
	} else if closed, ok := s.AdditionalProperties.(bool); ok && !closed && !local {
		return m, false
	}
	if s.UnevaluatedProperties != nil && !c.mentions(s, name) {
		m.schemas = append(m.schemas, s.UnevaluatedProperties)
	}
	if slices.ContainsFunc(m.schemas, func(sub *jsonschema.Schema) bool { return sub.Bool != nil && !*sub.Bool }) {
		return m, false
	}
	return m, applied(s, func(sub *jsonschema.Schema) bool {
		one, ok := c.memberOf(sub, name)
		m.and(one)
		return ok
	}, func(list []*jsonschema.Schema) bool {
		var possible []place
		for _, sub := range list {
			if one, ok := c.memberOf(sub, name); ok {
				possible = append(possible, one)
			}
		}
		return m.or(possible)
	})
}

// mentions reports whether a schema, or one that applies with it, has a keyword for a member.
func (c *filterCheck) mentions(s *jsonschema.Schema, name string) bool {
	if s == nil || !c.visit() {
		return s != nil
	}
	if s.Properties[name] != nil || s.AdditionalProperties != nil {
		return true
	}
	for pattern := range s.PatternProperties {
		if pattern.MatchString(name) {
			return true
		}
	}
	here, _, _ := subschemas(s)
	return slices.ContainsFunc(here, func(sub *jsonschema.Schema) bool { return c.mentions(sub, name) })
}

// elements returns the place of the elements of the arrays at a place.
func (c *filterCheck) elements(p place) (e place) {
	for _, s := range p.schemas {
		e.and(c.elementsOf(s))
	}
	for _, choice := range p.choices {
		possible := make([]place, len(choice))
		for i, one := range choice {
			possible[i] = c.elements(one)
		}
		e.or(possible)
	}
	return e
}

func (c *filterCheck) elementsOf(s *jsonschema.Schema) (e place) {
	if s == nil || !c.visit() {
		return e
	}
	choose := func(list []*jsonschema.Schema, of func(*jsonschema.Schema) place) bool {
		possible := make([]place, len(list))
		for i, sub := range list {
			possible[i] = of(sub)
		}
		return e.or(possible)
	}
	itself := func(sub *jsonschema.Schema) (p place) {
		if sub != nil {
			p.schemas = []*jsonschema.Schema{sub}
		}
		return p
	}
	choose(append(slices.Clone(s.PrefixItems), s.Items2020), itself)
	applied(s, func(sub *jsonschema.Schema) bool {
		e.and(c.elementsOf(sub))
		return true
	}, func(list []*jsonschema.Schema) bool { return choose(list, c.elementsOf) })
	return e
}

// names adds the names of the fields that the objects at a place can have.
func (c *filterCheck) names(p place, names map[string]bool) {
	var add func(s *jsonschema.Schema)
	add = func(s *jsonschema.Schema) {
		if s == nil || !c.visit() {
			return
		}
		for name := range s.Properties {
			if _, ok := c.member(p, name); ok {
				names[name] = true
			}
		}
		here, _, _ := subschemas(s)
		for _, sub := range here {
			add(sub)
		}
	}
	for _, s := range p.schemas {
		add(s)
	}
	for _, choice := range p.choices {
		for _, one := range choice {
			c.names(one, names)
		}
	}
}

// shape is what a condition needs to know about the values at a place.
type shape struct {
	kinds valueKinds
	dated bool // strings are timestamps by their format
}

var anyShape = shape{kinds: kindAny}

// shape returns the shape of the values at a place.
func (c *filterCheck) shape(p place) shape {
	all := anyShape
	for _, s := range p.schemas {
		all.and(c.shapeOf(s))
	}
	for _, choice := range p.choices {
		var one shape
		for _, sub := range choice {
			one.or(c.shape(sub))
		}
		all.and(one)
	}
	return all
}

// shapeOf returns the shape of the values of one schema.
func (c *filterCheck) shapeOf(s *jsonschema.Schema) shape {
	all := anyShape
	switch {
	case s == nil || !c.visit():
		return all
	case s.Bool != nil && !*s.Bool:
		return shape{}
	}
	if s.Types != nil {
		all.and(shape{kinds: typeKinds(s.Types.ToStrings()...)})
	}
	if s.Const != nil {
		all.and(shape{kinds: kindOfValue(*s.Const)})
	}
	if s.Enum != nil {
		var one shape
		for _, value := range s.Enum.Values {
			one.kinds |= kindOfValue(value)
		}
		all.and(one)
	}
	all.dated = s.Format != nil && s.Format.Name == "date-time"
	applied(s, func(sub *jsonschema.Schema) bool {
		all.and(c.shapeOf(sub))
		return true
	}, func(list []*jsonschema.Schema) bool {
		var one shape
		for _, sub := range list {
			one.or(c.shapeOf(sub))
		}
		all.and(one)
		return true
	})
	return all
}

func (s *shape) and(other shape) {
	s.kinds, s.dated = s.kinds&other.kinds, s.dated || other.dated
}

func (s *shape) or(other shape) {
	s.kinds, s.dated = s.kinds|other.kinds, s.dated || other.dated
}

// kindScalar are the kinds of values that can be equal to a value of a condition.
const kindScalar = kindNull | kindBoolean | kindNumber | kindString

// time reports whether the strings can be timestamps.
func (s shape) time() bool { return s.kinds&kindString != 0 && (s.dated || s.kinds == kindAny) }

// ops returns the operations that the shape allows.
func (s shape) ops() (ops []FilterOp) {
	for _, op := range FilterOps {
		if op == OpExists || s.values(op, func() shape { return anyShape }).kinds != 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

// values returns the shape of the values of conditions with an operation. elements returns that of
// the elements of arrays.
func (s shape) values(op FilterOp, elements func() shape) shape {
	switch op {
	case OpEqual, OpNotEqual, OpIn, OpNotIn:
		return shape{kinds: s.kinds & kindScalar}
	case OpStartsWith:
		return shape{kinds: s.kinds & kindString}
	case OpContains:
		is := shape{kinds: s.kinds & kindString}
		if s.kinds&kindArray != 0 {
			is.or(shape{kinds: elements().kinds & kindScalar})
		}
		return is
	}
	is := shape{kinds: s.kinds & kindNumber}
	if s.time() {
		is.or(shape{kinds: kindString, dated: true})
	}
	return is
}

// String names the shape in errors: a string or null.
func (s shape) String() string {
	var all []string
	for _, k := range kindNames {
		switch name := withArticle[k.name]; {
		case s.kinds&k.kinds == 0 || k.name == "integer" && s.kinds&kindFraction != 0 || k.name == "number" && s.kinds&kindFraction == 0:
		case k.name == "string" && s.dated:
			all = append(all, "a timestamp")
		default:
			all = append(all, name)
		}
	}
	if all == nil {
		return "nothing"
	}
	return strings.Join(all, " or ")
}

// kindOfValue returns the kind of a value in a schema.
func kindOfValue(value any) valueKinds {
	switch value.(type) {
	case nil:
		return kindNull
	case bool:
		return kindBoolean
	case string:
		return kindString
	case []any:
		return kindArray
	case map[string]any:
		return kindObject
	}
	return kindNumber
}
