package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"service/store"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// filterLook is the result of running a form's filters over stored events, and the errors in them.
type filterLook struct {
	faults  []filterFault
	tested  []testedFilter
	refused string // why nothing was counted, "" if the events were counted
	model   string // JSON of a filterModel
}

// filterFault is an error in a part of the filters: content_updated.all[0].value.
type filterFault struct{ at, text string }

// testedFilter is the result of one filter.
type testedFilter struct {
	name, program string
	store.FilterCount
}

// filterModel describes a form's filters to the script, and what conditions may contain.
type filterModel struct {
	Filters []builtFilter           `json:"filters"` // null if some of the text cannot be read
	Types   map[string]filterFields `json:"types"`   // by name of an event
}

// filterFields are the fields that conditions on the events of a type may use.
type filterFields struct {
	Fields []webhook.FilterField `json:"fields"`
	Open   bool                  `json:"open"` // other fields are possible
}

// builtFilter is the filter of an event. Conditions is empty if the filter has groups within its
// group.
type builtFilter struct {
	Name       string      `json:"name"`
	Group      string      `json:"group"`
	Conditions []filterRow `json:"conditions"`
	JSON       string      `json:"json"`
}

type filterRow struct {
	Path  string  `json:"path"`
	Op    string  `json:"op"`
	Value rawText `json:"value"`
}

// rawText is the JSON of a value, as a string: numbers may exceed the range of the script's.
type rawText string

func (t *rawText) UnmarshalJSON(value []byte) error {
	*t = rawText(value)
	return nil
}

// newBuiltFilter returns the conditions of a filter for the script.
func newBuiltFilter(name string, f *webhook.EventFilter) builtFilter {
	b := builtFilter{Name: name, JSON: f.JSON()}
	var groups map[string][]filterRow
	if err := json.Unmarshal([]byte(b.JSON), &groups); err != nil {
		return b // not
	}
	for group, rows := range groups {
		if !slices.ContainsFunc(rows, func(row filterRow) bool { return row.Path == "" }) {
			b.Group, b.Conditions = group, rows
		}
	}
	return b
}

// lookAtFilters runs the filters of a form over the stored events of its program, and sets p.look.
func (h *subscriptionPages) lookAtFilters(r *request, p *subscriptionForm) error {
	rules := *h.rules(r)
	program := p.program
	if p.editing != nil {
		program, rules.Kept, rules.KeptFilters = p.editing.ProgramID, p.editing.Events, p.editing.Filters
	}
	p.events = slices.Compact(slices.Sorted(slices.Values(p.events)))
	p.events = p.events[:min(len(p.events), webhook.MaxSubscriptionEvents)]
	all, unreadable := webhook.ParseFilters(p.filters, "filters")
	l := &filterLook{model: h.filterModel(p, all, unreadable != nil)}
	p.look = l
	fields := webhook.SubscriptionFields{Events: &p.events}
	faulty := make(map[string]bool)
	for _, v := range append(p.setFilters(&fields), rules.CheckFilters(&fields)...) {
		at := strings.TrimPrefix(strings.TrimPrefix(v.Parameter, "filters"), ".")
		for i, name := range p.events {
			if of := fmt.Sprintf("events[%d].filter", i); v.Parameter == of {
				at = name
			}
		}
		for name := range all {
			faulty[name] = faulty[name] || at == name || strings.HasPrefix(at, name+".")
		}
		l.faults = append(l.faults, filterFault{at, strings.TrimSpace(at + " " + v.Detail)})
	}
	test := webhook.FilterTest{Filters: fields.Filters, From: r.clock.Now.AddDate(0, 0, -webhook.FilterTestDays)}
	for _, name := range slices.Sorted(maps.Keys(fields.Filters)) {
		if !faulty[name] {
			test.Events = append(test.Events, name)
		}
	}
	if program == "" || len(test.Events) == 0 {
		return nil
	}
	counts, err := h.store.Events().RunFilterTest(r.Context(), program, &test)
	var refused *webhook.Error
	if errors.As(err, &refused) {
		l.refused = refused.Detail
		return nil
	}
	for i := range counts {
		name := test.Events[i]
		l.tested = append(l.tested, testedFilter{name, program, counts[i]})
	}
	return err
}

// filterModel returns the JSON of a form's filters for the script. The fields are those of the
// selected events.
func (h *subscriptionPages) filterModel(p *subscriptionForm, all webhook.Filters, unreadable bool) string {
	m := filterModel{Types: make(map[string]filterFields)}
	if !unreadable {
		m.Filters = []builtFilter{}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			m.Filters = append(m.Filters, newBuiltFilter(name, all[name]))
		}
	}
	for _, name := range p.events {
		if t, ok := h.cfg.Rules.Catalog.Type(name); ok {
			fields, open := t.FilterFields()
			m.Types[name] = filterFields{fields, open}
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // marshaling strings and valid JSON cannot fail
	}
	// No invisible character gets into a page.
	return ui.EscapeUnits(string(text), func(r rune) bool { return r >= 0x7f })
}

// newFilters responds to the script with the results of a new subscription's filters.
func (h *subscriptionPages) newFilters(r *request) (response, error) {
	return h.renderFilters(r, h.readForm(r))
}

// editedFilters is newFilters for an existing subscription.
func (h *subscriptionPages) editedFilters(r *request, u *record.SubscriptionView) (response, error) {
	p := h.readForm(r)
	p.editing = u
	return h.renderFilters(r, p)
}

func (h *subscriptionPages) renderFilters(r *request, p *subscriptionForm) (response, error) {
	if err := h.lookAtFilters(r, p); err != nil {
		return response{}, err
	}
	return response{page: filterLookShown(r.clock, p.look)}, nil
}

// filtersPath is the path to which the script sends the filters of the form.
func (p *subscriptionForm) filtersPath() string {
	if p.editing == nil {
		return "/subscriptions/filters"
	}
	return subscriptionPath(p.editing.ID) + "/filters"
}

// outcome says how many of the stored events would have passed a filter.
func (t *testedFilter) outcome() string {
	read := eventCount(t.Read)
	switch {
	case !t.Complete && t.Read == 0:
		return "an unknown number of events: there was no time to read them"
	case !t.Complete:
		return ui.Number(t.Matched) + " of the newest " + read
	}
	return ui.Number(t.Matched) + " of " + read + " of the last " + ui.Number(webhook.FilterTestDays) + " days"
}

// triedEvent is an example event with the result of a filter.
type triedEvent struct {
	sent       bool
	id         string
	receivedAt time.Time
	values     string
}

func (t *testedFilter) examples() (all []triedEvent) {
	for _, of := range []struct {
		sent   bool
		events []store.FilterExample
	}{{true, t.Passed}, {false, t.Excluded}} {
		for _, e := range of.events {
			values := make([]string, len(e.Values))
			for i, v := range e.Values {
				values[i] = v.Path + " " + string(v.Value)
			}
			all = append(all, triedEvent{of.sent, e.ID, e.ReceivedAt, strings.Join(values, ", ")})
		}
	}
	return all
}
