package ui

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"service/webhook"
)

// Parameters of a list page that the API lacks.
const (
	ProgramParameter = "program" // the program switch
	SpanParameter    = "span"    // time range up to now, such as 24h; see spans
	SinceParameter   = "since"   // the mark up to which the first page was read

	// SubscriptionParameter is a typed name, host or ID, which the page replaces by the filter
	// subscription_id.
	SubscriptionParameter = "subscription"
)

// spanPreset is a preset for the time range of a list.
type spanPreset struct {
	name, label string        // in the URL, and on the page
	long        time.Duration // up to now; 0 for a day
	before      int           // days before today, of a day
}

// spans are the presets of most lists.
var spans = []spanPreset{
	{"1h", "1 h", time.Hour, 0},
	{"24h", "24 h", 24 * time.Hour, 0},
	{"7d", "7 d", 7 * 24 * time.Hour, 0},
	{"30d", "30 d", 30 * 24 * time.Hour, 0},
}

// dailySpans are the presets of lists that are read day by day, the default first.
var dailySpans = []spanPreset{
	{"today", "Today", 0, 0},
	{"yesterday", "Yesterday", 0, 1},
	{"7d", "7 d", 7 * 24 * time.Hour, 0},
}

// presets are the presets of the list.
func (v *Listing) presets() []spanPreset {
	if v.List.Daily {
		return dailySpans
	}
	return spans
}

// between returns the range of a preset. The zero time is an open end: today goes on.
func (s *spanPreset) between(c Clock) (from, to time.Time) {
	if s.long > 0 {
		return c.Now.Add(-s.long), to
	}
	year, month, day := c.Now.In(c.Location()).Date()
	midnight := func(before int) time.Time { return time.Date(year, month, day-before, 0, 0, 0, 0, c.Location()) }
	if s.before > 0 {
		to = midnight(s.before - 1)
	}
	return midnight(s.before), to
}

// Span returns the label and the duration of a preset, 0 for an unknown name.
func Span(name string) (label string, long time.Duration) {
	for _, s := range spans {
		if s.name == name {
			return s.label, s.long
		}
	}
	return name, 0
}

// Listing is the state of a list page, parsed from its address.
type Listing struct {
	List   *webhook.List
	Query  webhook.ListQuery
	Path   string         // of the page
	Values url.Values     // as received, without empty ones; read-only
	Since  string         // mark up to which the first page was read, "" if unknown
	Error  *webhook.Error // why the query is invalid, nil if it is valid
	Events []string       // event types to choose from; a text field if there are none
	Kept   []string       // the page's own parameters, which the links to its other pages keep

	Names   map[string]string // of the subscriptions in the filters, by ID
	Suggest string            // address that suggests names of subscriptions, "" for none
}

// ParseListing parses the address of a list page. It accepts the API's parameters, as well as
// program, span and since. own are further parameters of the page. It ignores empty parameters,
// which a form sends for empty fields. A time without a zone, as from a browser's field, is in the
// zone of c.
//
// An error means that the query has an invalid escape. For other errors, such as an unknown
// filter, it sets the Error of the listing, which the page shows at its form.
func ParseListing(u *url.URL, c Clock, l *webhook.List, own ...string) (*Listing, error) {
	given, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, err
	}
	v := &Listing{List: l, Path: u.Path, Values: make(url.Values)}
	for name, values := range given {
		values = slices.DeleteFunc(slices.Clone(values), func(s string) bool { return strings.TrimSpace(s) == "" })
		if len(values) > 0 {
			v.Values[name] = values
		}
	}
	v.Since = v.Values.Get(SinceParameter)
	v.Values.Del(SinceParameter)
	// A typed time overrides a preset: a form without JavaScript sends both.
	if v.hasTyped() {
		v.Values.Del(SpanParameter)
	}
	if l.Daily && !v.hasTyped() && !v.Values.Has(SpanParameter) {
		v.Values.Set(SpanParameter, dailySpans[0].name)
	}
	asked := make(url.Values)
	for name, values := range v.Values {
		switch {
		case name == ProgramParameter || name == SpanParameter || slices.Contains(own, name):
		case name == SubscriptionParameter && v.HasSubscriptions():
		case strings.HasSuffix(name, ".from]") || strings.HasSuffix(name, ".to]"):
			for _, s := range values {
				asked.Add(name, c.WithZone(s))
			}
		default:
			asked[name] = values
		}
	}
	if field := v.TimeField(); field != "" && v.Values.Has(SpanParameter) {
		presets := v.presets()
		i := slices.IndexFunc(presets, func(s spanPreset) bool { return s.name == v.Values.Get(SpanParameter) })
		if i < 0 {
			v.Error = webhook.Invalid(webhook.Validation{Code: webhook.InvalidValue, Parameter: SpanParameter,
				Detail: "must be " + choices(presets, func(s spanPreset) string { return s.name })})
			return v, nil
		}
		from, to := presets[i].between(c)
		asked.Set("filter["+field+".from]", webhook.FormatTime(from))
		if !to.IsZero() {
			asked.Set("filter["+field+".to]", webhook.FormatTime(to.Add(-time.Millisecond)))
		}
	}
	v.Query, v.Error = l.Parse(asked)
	return v, nil
}

// choices lists presets: 1h, 24h, 7d or 30d.
func choices(presets []spanPreset, name func(spanPreset) string) (text string) {
	for i, s := range presets {
		text += name(s)
		switch len(presets) - i {
		case 1:
		case 2:
			text += " or "
		default:
			text += ", "
		}
	}
	return text
}

// TimeField is the property that presets apply to: the first time by which the list can be
// filtered, "" for none. Lists with a search by name lead with the search instead.
func (v *Listing) TimeField() string {
	for _, f := range v.List.Filters {
		switch f.Kind {
		case webhook.FilterSearch:
			return ""
		case webhook.FilterTime:
			return f.Name
		}
	}
	return ""
}

// hasTyped reports whether the address has a time range that is not a preset.
func (v *Listing) hasTyped() bool {
	field := v.TimeField()
	return field != "" && (v.Values.Has("filter["+field+".from]") || v.Values.Has("filter["+field+".to]"))
}

// HasSubscriptions reports whether the list can be filtered by subscription.
func (v *Listing) HasSubscriptions() bool {
	return v.filter("subscription_id") != nil
}

// WithSubscriptions returns the address of the list filtered by subscriptions instead of the typed
// text.
func (v *Listing) WithSubscriptions(ids []string) string {
	return v.without(func(n string) bool { return n == SubscriptionParameter }).withFilter("subscription_id", strings.Join(ids, ","))
}

// Ordered returns the column c with the address that orders the list by a field, or reverses this
// order. descending is the order on first use.
func (v *Listing) Ordered(c Column, field string, descending bool) Column {
	if v.Query.Sort[0].Name == field {
		descending = !v.Query.Sort[0].Descending
		c.Sorted = map[bool]string{true: "ascending", false: "descending"}[descending]
	}
	order := webhook.SortField{Name: field, Descending: descending}
	switch {
	case slices.Equal(v.List.Default, []webhook.SortField{order}):
		c.Sort = v.With("sort")
	case descending:
		c.Sort = v.With("sort", "-"+field)
	default:
		c.Sort = v.With("sort", field)
	}
	return c
}

// Filtered reports whether the list has filters other than the program.
func (v *Listing) Filtered() bool {
	for name := range v.Values {
		if strings.HasPrefix(name, "filter") || name == SpanParameter && !(v.List.Daily && v.Values.Get(name) == dailySpans[0].name) {
			return true
		}
	}
	return false
}

// With returns the address of the first page of the list with one parameter changed; without values
// it omits the parameter.
func (v *Listing) With(name string, values ...string) string {
	changed := make(url.Values)
	for n, given := range v.Values {
		if n != name && n != "page[cursor]" && n != "page[number]" {
			changed[n] = given
		}
	}
	if len(values) > 0 {
		changed[name] = values
	}
	return Address(v.Path, changed)
}

// PageAddress returns the address of another page of the list, by cursor or by number. It replaces
// a span with a fixed time, since a cursor is valid only for exactly the same filters.
func (v *Listing) PageAddress(cursor string, number int) string {
	q := v.Query
	q.Cursor, q.Number = cursor, max(number, 1)
	values := v.fixed(&q)
	if v.Since != "" && cursor != "" {
		values.Set(SinceParameter, v.Since)
	}
	for _, name := range v.Kept {
		if given, ok := v.Values[name]; ok {
			values[name] = given
		}
	}
	return Address(v.Path, values)
}

// fixed returns the parameters of a query, and the program. They have no span.
func (v *Listing) fixed(q *webhook.ListQuery) url.Values {
	values := v.List.Values(q)
	if p := v.Values.Get(ProgramParameter); p != "" {
		values.Set(ProgramParameter, p)
	}
	return values
}

// newest returns the address of the first page.
func (v *Listing) newest() string { return v.PageAddress("", 1) }

// WithoutFilters returns the address of the list without its filters.
func (v *Listing) WithoutFilters() string {
	values := make(url.Values)
	for _, name := range []string{ProgramParameter, "sort", "page[size]"} {
		if given, ok := v.Values[name]; ok {
			values[name] = given
		}
	}
	return Address(v.Path, values)
}

// Selection returns path with the filters of the list and more parameters, given as pairs of a
// name and a value. It replaces a span with a fixed time.
func (v *Listing) Selection(path string, more ...string) string {
	q := webhook.ListQuery{Sort: v.List.Default, Filters: v.Query.Filters, Ranges: v.Query.Ranges, Size: webhook.DefaultPageSize, Number: 1}
	values := v.fixed(&q)
	for i := 0; i < len(more); i += 2 {
		values.Set(more[i], more[i+1])
	}
	return Address(path, values)
}

// ExportAddress is the address of the list's export.
func (v *Listing) ExportAddress(format string) string {
	return v.Selection(v.Path+"/export", "format", format)
}

// Pages returns the pager of a list with numbered pages.
func (v *Listing) Pages(total int) Pager {
	size, at := v.Query.Size, v.Query.Number
	last := max(1, (total+size-1)/size)
	p := Pager{Shown: "none"}
	if first := (at-1)*size + 1; first <= total {
		p.Shown = Number(int64(first)) + " to " + Number(int64(min(total, at*size))) + " of " + Number(int64(total))
	}
	if at > 1 {
		p.newer = v.PageAddress("", min(at-1, last))
	}
	if at < last {
		p.Older = v.PageAddress("", at+1)
	}
	if last == 1 {
		return p
	}
	for n := 1; n <= last; n++ {
		if n == 1 || n == last || n >= at-2 && n <= at+2 {
			p.numbers = append(p.numbers, pageNumber{n, v.PageAddress("", n), n == at})
		}
	}
	return p
}

// FeedPages returns the pager of a feed. newer is the cursor of the previous page, "" if that is
// the first; next is the cursor of the next page, "" on the last.
func (v *Listing) FeedPages(newer, next string) Pager {
	var p Pager
	if v.Query.Cursor != "" {
		p.Newest, p.newer = v.newest(), v.PageAddress(newer, 1)
	}
	if next != "" {
		p.Older = v.PageAddress(next, 1)
	}
	return p
}
