package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of a filter.
const (
	MaxFilterBytes      = 4096 // of its JSON without whitespace
	MaxFilterConditions = 16
	maxFilterNesting    = 2 // groups within groups
)

// EventFilter decides which events of one type a subscription receives: conditions on their fields,
// joined by groups. It does not change, and is safe for concurrent use. Two filters with the same
// JSON decide alike.
type EventFilter struct {
	json string
	root filterNode
}

// JSON returns the filter in the form of the API, compact, with its members in a fixed order.
func (f *EventFilter) JSON() string { return f.json }

// SameFilter reports whether two filters, nil for none, have the same JSON.
func SameFilter(a, b *EventFilter) bool { return a == b || a != nil && b != nil && a.json == b.json }

// Filters are a subscription's filters by event name. An event without a filter is not in the map.
type Filters map[string]*EventFilter

// with sets a filter and returns the filters, which it creates if f is nil.
func (f Filters) with(name string, filter *EventFilter) Filters {
	if f == nil {
		f = make(Filters)
	}
	f[name] = filter
	return f
}

// String returns the filters as a JSON object, "" for none.
func (f Filters) String() string { return f.text("") }

// Indented is String on several lines, for people.
func (f Filters) Indented() string { return f.text("  ") }

func (f Filters) text(indent string) string {
	if len(f) == 0 {
		return ""
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(map[string]*EventFilter(f)); err != nil {
		panic(err) // encoding filters cannot fail
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Equal reports whether the same events have the same filters.
func (f Filters) Equal(g Filters) bool { return maps.EqualFunc(f, g, SameFilter) }

// MarshalJSON and UnmarshalJSON are the form in which filters are stored.
func (f EventFilter) MarshalJSON() ([]byte, error) { return []byte(f.json), nil }

// UnmarshalJSON reads a filter without the schema of its event type.
func (f *EventFilter) UnmarshalJSON(text []byte) error {
	parsed, err := ParseFilter(text, nil, "filter")
	if err != nil {
		return err
	}
	*f = *parsed
	return nil
}

// filterNode is a group of nodes, or a condition.
type filterNode struct {
	group string // filterAll, filterAny or filterNot; "" for a condition
	nodes []filterNode
	condition
}

const (
	filterAll = "all"
	filterAny = "any"
	filterNot = "not"
)

// condition compares the field at a path with values.
type condition struct {
	at     string // in the request
	path   []string
	op     FilterOp
	values []scalar // several for in and not_in
}

// FilterOp is how a condition compares a field with its value.
type FilterOp string

// The operations of conditions.
const (
	OpEqual        FilterOp = "eq"
	OpNotEqual     FilterOp = "ne"
	OpIn           FilterOp = "in"
	OpNotIn        FilterOp = "not_in"
	OpGreater      FilterOp = "gt"
	OpGreaterEqual FilterOp = "gte"
	OpLess         FilterOp = "lt"
	OpLessEqual    FilterOp = "lte"
	OpStartsWith   FilterOp = "starts_with"
	OpContains     FilterOp = "contains"
	OpExists       FilterOp = "exists"
)

// FilterOps are all operations, in the order in which errors and forms list them.
var FilterOps = []FilterOp{OpEqual, OpNotEqual, OpIn, OpNotIn, OpGreater, OpGreaterEqual, OpLess,
	OpLessEqual, OpStartsWith, OpContains, OpExists}

// orders reports whether the operation compares by order.
func (op FilterOp) orders() bool {
	return op == OpGreater || op == OpGreaterEqual || op == OpLess || op == OpLessEqual
}

// scalar is a value of a condition.
type scalar struct {
	kind   jsontext.Kind
	text   []byte // content of a string
	number decimal
	time   time.Time // of a string that is compared by order
}

// Fields are the fields of an event, parsed once for many filters. The zero value is ready for Parse,
// which may be called again. It is not safe for concurrent use.
type Fields struct {
	document
	unusable bool
}

// Parse reads the JSON of an event, which must not change while f is in use.
func (f *Fields) Parse(event []byte) { f.unusable = f.parse(event, "") != nil }

// Match reports whether the subscription selects an event. An event that cannot be parsed matches:
// it was accepted, so it must not disappear.
func (f *EventFilter) Match(event *Fields) bool {
	return f == nil || event.unusable || f.root.decide(event) == isTrue
}

// truth is the value of a condition in a logic of three values, ordered so that all is the minimum
// and any the maximum.
type truth int8

const (
	isFalse truth = iota
	isUnknown
	isTrue
)

func truthOf(is bool) truth {
	if is {
		return isTrue
	}
	return isFalse
}

func (n *filterNode) decide(event *Fields) truth {
	switch n.group {
	case filterAll:
		is := isTrue
		for i := 0; i < len(n.nodes) && is != isFalse; i++ {
			is = min(is, n.nodes[i].decide(event))
		}
		return is
	case filterAny:
		is := isFalse
		for i := 0; i < len(n.nodes) && is != isTrue; i++ {
			is = max(is, n.nodes[i].decide(event))
		}
		return is
	case filterNot:
		return isTrue - n.nodes[0].decide(event)
	}
	return n.condition.decide(event)
}

func (c *condition) decide(event *Fields) truth {
	value, found := event.at(c.path)
	if c.op == OpExists {
		return truthOf(found == (c.values[0].kind == jsontext.KindTrue))
	}
	if !found {
		return isUnknown
	}
	switch c.op {
	case OpEqual, OpIn:
		return truthOf(event.isOneOf(value, c.values))
	case OpNotEqual, OpNotIn:
		return truthOf(!event.isOneOf(value, c.values))
	case OpStartsWith:
		return truthOf(event.isString(value) && bytes.HasPrefix(event.text(value), c.values[0].text))
	case OpContains:
		return truthOf(event.contains(value, &c.values[0]))
	}
	sign, comparable := event.compare(value, &c.values[0])
	return truthOf(comparable && (c.op == OpGreater && sign > 0 || c.op == OpGreaterEqual && sign >= 0 ||
		c.op == OpLess && sign < 0 || c.op == OpLessEqual && sign <= 0))
}

// at returns the node of the value at a path of members.
func (f *Fields) at(path []string) (value int32, found bool) {
	for _, name := range path {
		if value, found = f.member(value, name); !found {
			return 0, false
		}
	}
	return value, true
}

// is reports whether the value at a node equals a scalar: numbers by their value, strings by their
// characters.
func (f *Fields) is(value int32, s *scalar) bool {
	switch kind := f.nodes[value].kind; {
	case kind != s.kind:
		return false
	case kind == jsontext.KindString:
		return bytes.Equal(f.text(value), s.text)
	case kind == jsontext.KindNumber:
		var n decimal
		n.set(f.raw(value))
		return n.compare(&s.number) == 0
	}
	return true
}

func (f *Fields) isOneOf(value int32, values []scalar) bool {
	for i := range values {
		if f.is(value, &values[i]) {
			return true
		}
	}
	return false
}

// contains reports whether a string has a part, or an array a member.
func (f *Fields) contains(value int32, s *scalar) bool {
	if f.isString(value) {
		return s.kind == jsontext.KindString && bytes.Contains(f.text(value), s.text)
	}
	for _, member := range f.elements(value) {
		if f.is(member, s) {
			return true
		}
	}
	return false
}

// compare compares two numbers or two timestamps; others are not comparable.
func (f *Fields) compare(value int32, s *scalar) (sign int, comparable bool) {
	switch kind := f.nodes[value].kind; {
	case kind != s.kind:
		return 0, false
	case kind == jsontext.KindNumber:
		var n decimal
		n.set(f.raw(value))
		return n.compare(&s.number), true
	default:
		at, ok := instant(f.text(value))
		return at.Compare(s.time), ok
	}
}

// instant returns the time of a timestamp in the form of events.
func instant(text []byte) (time.Time, bool) {
	if !isTimestamp(text) {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(text))
	return at, err == nil
}

// decimal is a number by its value: 0.digits, with neither leading nor trailing zeros, times ten to
// the exponent. Zero has no digits.
type decimal struct {
	negative bool
	exponent int
	length   int
	digits   [maxNumberBytes]byte
}

// set reads a JSON number within the bounds of a document.
func (d *decimal) set(number []byte) {
	*d = decimal{}
	d.negative = number[0] == '-'
	point := false
	for i, c := range number {
		switch {
		case c == '.':
			point = true
		case c == 'e' || c == 'E':
			d.exponent += exponent(number[i+1:])
		case c < '0' || c > '9':
		case c == '0' && d.length == 0:
			if point {
				d.exponent--
			}
		default:
			d.digits[d.length] = c
			d.length++
			if !point {
				d.exponent++
			}
		}
		if c == 'e' || c == 'E' {
			break
		}
	}
	for d.length > 0 && d.digits[d.length-1] == '0' {
		d.length--
	}
	if d.length == 0 {
		d.negative, d.exponent = false, 0
	}
}

// exponent reads the exponent of a number, which [unbounded] has checked.
func exponent(text []byte) int {
	n, _ := strconv.Atoi(string(text))
	return n
}

// SameNumber reports whether two texts are JSON numbers of the same value, within the bounds of numbers
// in events.
func SameNumber(a, b string) bool {
	var values [2]decimal
	for i, text := range []string{a, b} {
		if !isNumber(text) || unbounded([]byte(text)) != "" {
			return false
		}
		values[i].set([]byte(text))
	}
	return values[0].compare(&values[1]) == 0
}

// isNumber reports whether a text is a JSON number.
func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "+-.0123456789eE") == "" && json.Valid([]byte(text))
}

// compare returns -1, 0 or 1.
func (d *decimal) compare(e *decimal) int {
	sign := 1
	if d.negative {
		sign = -1
	}
	switch {
	case d.negative != e.negative:
		return sign
	case d.length == 0 && e.length == 0:
		return 0
	case d.length == 0:
		return -1 // e is positive
	case e.length == 0:
		return 1
	case d.exponent != e.exponent:
		if d.exponent < e.exponent {
			return -sign
		}
		return sign
	}
	return sign * bytes.Compare(d.digits[:d.length], e.digits[:e.length])
}

// ParseFilter parses a filter in the form of the API. The event type is nil if it does not exist; the
// fields are then not checked. at is the parameter of errors.
func ParseFilter(raw []byte, t *EventType, at string) (*EventFilter, *Error) {
	b := new(body)
	if err := b.parse(raw, at); err != nil {
		return nil, err
	}
	f := b.filter(0, at)
	if f != nil && t != nil {
		b.faults = append(b.faults, t.checkFilter(f)...)
	}
	return f, invalid(b.faults)
}

// ParseFilters parses a form's object of filters by event name; "" means none. at begins the
// parameters of errors.
func ParseFilters(text, at string) (Filters, []Validation) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	b, err := new(body), (*Error)(nil)
	if err = b.parse([]byte(text), at); err != nil {
		if err.Validations == nil {
			return nil, []Validation{{InvalidFormat, "must be JSON: " + err.Detail, at}}
		}
		return nil, err.Validations
	}
	if b.nodes[0].kind != jsontext.KindBeginObject {
		return nil, []Validation{{InvalidType, `must be an object such as {"content_published": {"all": […]}}`, at}}
	}
	var all Filters
	for name, value := range b.fields() {
		of := join(at, name)
		if IsEventName(name) {
			of = at + "." + name // whole, so that a form finds it
		}
		if f := b.filter(value, of); f != nil {
			all = all.with(name, f)
		}
	}
	return all, b.faults
}

// filter parses the filter at a node, nil with faults if it is not a filter.
func (b *body) filter(value int32, at string) *EventFilter {
	p := filterParser{body: b}
	before := len(b.faults)
	root, ok := p.node(value, at, 0)
	if ok && root.group == "" {
		b.fail(InvalidType, at, filterForm)
	}
	if p.conditions > MaxFilterConditions {
		b.fail(InvalidTooMany, at, fmt.Sprintf("must have at most %d conditions", MaxFilterConditions))
	}
	if len(b.faults) > before {
		return nil
	}
	f := &EventFilter{json: string(root.append(nil)), root: root}
	if len(f.json) > MaxFilterBytes {
		b.fail(InvalidTooLong, at, fmt.Sprintf("must be at most %d bytes", MaxFilterBytes))
		return nil
	}
	return f
}

const (
	filterForm    = `must be {"all": […]}, {"any": […]} or {"not": {…}} of conditions such as {"path": "user_id", "op": "eq", "value": 7}`
	conditionForm = `must be a condition such as {"path": "user_id", "op": "eq", "value": 7}, or {"all": […]}, {"any": […]} or {"not": {…}}`
)

// filterParser collects the nodes of a filter and what is wrong with them.
type filterParser struct {
	*body
	conditions int
}

// node parses a group or a condition within depth groups.
func (p *filterParser) node(value int32, at string, depth int) (n filterNode, ok bool) {
	if p.nodes[value].kind != jsontext.KindBeginObject {
		p.fail(InvalidType, at, conditionForm)
		return n, false
	}
	for name, content := range p.members(value) {
		switch word := string(p.text(name)); word {
		case filterAll, filterAny, filterNot:
			if p.nodes[value].next != p.nodes[content].next || name != value+1 {
				p.fail(InvalidValue, at, `must have "`+word+`" only`)
				return n, false
			}
			if depth > maxFilterNesting {
				p.fail(InvalidTooMany, at, fmt.Sprintf("must be a condition: groups can be nested at most %d times", maxFilterNesting))
				return n, false
			}
			return p.groupOf(word, content, join(at, word), depth)
		}
	}
	return p.conditionAt(value, at)
}

func (p *filterParser) groupOf(word string, content int32, at string, depth int) (filterNode, bool) {
	n := filterNode{group: word}
	if word == filterNot {
		inner, ok := p.node(content, at, depth+1)
		n.nodes = []filterNode{inner}
		return n, ok
	}
	if p.nodes[content].kind != jsontext.KindBeginArray || p.nodes[content].next == content+1 {
		p.fail(InvalidType, at, "must be an array of at least one condition")
		return n, false
	}
	all := true
	for i, element := range p.elements(content) {
		if p.conditions > MaxFilterConditions {
			break // filter reports it
		}
		inner, ok := p.node(element, at+fmt.Sprintf("[%d]", i), depth+1)
		n.nodes, all = append(n.nodes, inner), all && ok
	}
	return n, all
}

// conditionAt parses a condition.
func (p *filterParser) conditionAt(value int32, at string) (n filterNode, ok bool) {
	p.conditions++
	before := len(p.faults)
	n.at = at
	given := int32(-1) // the node of its value
	for name, content := range p.members(value) {
		switch word := string(p.text(name)); word {
		case "path":
			n.path = p.path(content, join(at, "path"))
		case "op":
			if s := p.string(join(at, "op"), content); s != nil {
				if n.op = FilterOp(*s); !slices.Contains(FilterOps, n.op) {
					p.fail(InvalidValue, join(at, "op"), "must be one of "+listed(FilterOps, func(op FilterOp) string { return string(op) }))
				}
			}
		case "value":
			given = content
		default:
			p.fail(InvalidUnknownField, join(at, word), "is not a field of a condition; it has: path, op, value")
		}
	}
	if len(p.faults) == before {
		p.complete(&n.condition, given)
	}
	return n, len(p.faults) == before
}

// path parses the path of a condition.
func (p *filterParser) path(value int32, at string) []string {
	s := p.string(at, value)
	if s == nil {
		return nil
	}
	names := strings.Split(*s, ".")
	if slices.Contains(names, "") {
		p.fail(InvalidFormat, at, "must be names of fields joined by dots, such as details.post_id")
	}
	return names
}

// complete checks that a condition has all that its operation needs, and takes its value from a node,
// -1 if none was given.
func (p *filterParser) complete(c *condition, given int32) {
	if c.path == nil {
		p.fail(InvalidRequired, join(c.at, "path"), "is required")
	}
	at := join(c.at, "value")
	switch {
	case c.op == "":
		p.fail(InvalidRequired, join(c.at, "op"), "is required")
	case given < 0 && c.op == OpExists:
		c.values = []scalar{{kind: jsontext.KindTrue}}
	case given < 0:
		p.fail(InvalidRequired, at, "is required")
	case c.op == OpExists:
		if is := p.boolean(at, given); is != nil {
			c.values = []scalar{p.scalar(given)}
		}
	case c.op == OpIn || c.op == OpNotIn:
		if p.nodes[given].kind != jsontext.KindBeginArray || p.nodes[given].next == given+1 {
			p.fail(InvalidType, at, "must be an array of at least one value")
			return
		}
		for i, element := range p.elements(given) {
			p.addValue(c, element, at+fmt.Sprintf("[%d]", i))
		}
	default:
		p.addValue(c, given, at)
	}
}

// addValue adds the value at a node to a condition.
func (p *filterParser) addValue(c *condition, value int32, at string) {
	kind := p.nodes[value].kind
	switch {
	case kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray:
		p.fail(InvalidType, at, "must be a string, a number, true, false or null")
		return
	case c.op == OpStartsWith && kind != jsontext.KindString:
		p.fail(InvalidType, at, "must be a string")
		return
	}
	s := p.scalar(value)
	if c.op.orders() {
		ok := kind == jsontext.KindNumber
		if kind == jsontext.KindString {
			s.time, ok = instant(s.text)
		}
		if !ok {
			p.fail(InvalidType, at, "must be a number, or a timestamp in UTC such as 2026-03-14T08:24:48.644Z")
			return
		}
	}
	c.values = append(c.values, s)
}

// scalar copies the value at a node.
func (p *filterParser) scalar(value int32) scalar {
	s := scalar{kind: p.nodes[value].kind}
	switch s.kind {
	case jsontext.KindString:
		s.text = bytes.Clone(p.text(value))
	case jsontext.KindNumber:
		s.text = bytes.Clone(p.raw(value)) // as written
		s.number.set(s.text)
	}
	return s
}

// append appends the node as JSON.
func (n *filterNode) append(dst []byte) []byte {
	switch n.group {
	case "":
		return n.condition.append(dst)
	case filterNot:
		return append(n.nodes[0].append(append(dst, `{"not":`...)), '}')
	}
	dst = append(append(append(dst, `{"`...), n.group...), `":[`...)
	for i := range n.nodes {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = n.nodes[i].append(dst)
	}
	return append(dst, `]}`...)
}

func (c *condition) append(dst []byte) []byte {
	dst, _ = jsontext.AppendQuote(append(dst, `{"path":`...), strings.Join(c.path, "."))
	dst = append(append(append(dst, `,"op":"`...), c.op...), `","value":`...)
	if c.op != OpIn && c.op != OpNotIn {
		return append(c.values[0].append(dst), '}')
	}
	for i := range c.values {
		if i == 0 {
			dst = append(dst, '[')
		} else {
			dst = append(dst, ',')
		}
		dst = c.values[i].append(dst)
	}
	return append(dst, `]}`...)
}

func (s *scalar) append(dst []byte) []byte {
	switch s.kind {
	case jsontext.KindString:
		dst, _ = jsontext.AppendQuote(dst, s.text)
		return dst
	case jsontext.KindNumber:
		return append(dst, s.text...)
	}
	return append(dst, s.kind.String()...)
}
