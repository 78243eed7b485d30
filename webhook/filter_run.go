package webhook

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxFilterExamples is how many events of each outcome a filter test shows.
	MaxFilterExamples = 5
	// FilterTestDays is the default range of a filter test, in days of stored events.
	FilterTestDays = 7
)

// FilterTest is a request to run filters over stored events.
type FilterTest struct {
	Events  []string // distinct names
	Filters Filters
	From    time.Time
	To      time.Time // exclusive; zero for now
}

// FilterValue is the value of an event at a path of a filter.
type FilterValue struct {
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value"`
}

// ParseFilterTest parses the body of a request for a filter test, and checks it at a time.
func (c *Catalog) ParseFilterTest(raw []byte, now time.Time) (t FilterTest, invalidBody *Error) {
	b, err := parseBody(raw, "")
	if err != nil {
		return t, err
	}
	var within ReplayFields
	fields := SubscriptionFields{Events: new([]string)}
	for name, value := range b.fields() {
		switch name {
		case "from", "to":
			within.parseEnd(b, name, value)
		case "events":
			if names, filters := b.events(value); names != nil {
				fields.Events, fields.Filters = names, filters
			}
		default:
			b.unknown(name, "a filter test", "events, from, to")
		}
	}
	t = FilterTest{*fields.Events, fields.Filters, within.From, within.To}
	rules := SubscriptionRules{Catalog: c}
	v := slices.Concat(within.checkRange(now), rules.checkEvents(t.Events), rules.CheckFilters(&fields))
	return t, invalid(merge(b.faults, v))
}

// Values returns the values of an event at the filter's paths, which decide whether it matches: each
// path once, in the order of the filter, without paths that the event lacks.
func (f *EventFilter) Values(event *Fields) (all []FilterValue) {
	if f == nil || event.unusable {
		return nil
	}
	f.root.each(func(c *condition) {
		path := strings.Join(c.path, ".")
		value, found := event.at(c.path)
		if !found || slices.ContainsFunc(all, func(v FilterValue) bool { return v.Path == path }) {
			return
		}
		all = append(all, FilterValue{path, shortened(event, value)})
	})
	return all
}

// maxFilterValue bounds the bytes of a value that a filter test shows.
const maxFilterValue = 256

// shortened returns the JSON of a value, or a text with its size if it is long.
func shortened(event *Fields, value int32) json.RawMessage {
	raw := event.raw(value)
	if len(raw) <= maxFilterValue {
		return slices.Clone(raw)
	}
	text, _ := jsontext.AppendQuote(nil, fmt.Sprintf("(%d bytes)", len(raw)))
	return text
}

// each calls do for every condition.
func (n *filterNode) each(do func(*condition)) {
	for i := range n.nodes {
		n.nodes[i].each(do)
	}
	if n.group == "" {
		do(&n.condition)
	}
}
