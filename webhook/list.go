package webhook

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of pages and filters.
const (
	DefaultPageSize = 25
	MaxPageSize     = 100
	maxPageNumber   = 1<<31 - 1
	maxFilterValues = 100
	maxFilterText   = 254 // bytes

	MaxWait = 30 * time.Second // of a request for events
)

// List describes a list of records: how it is sorted, filtered and paginated (spec,
// section 4.6). The description is complete: it parses queries, names the supported
// parameters in errors, and package store translates queries into SQL.
type List struct {
	Feed    bool        // paginated by keyset cursor, so new rows never shift a page; otherwise by page number
	Follow  bool        // a log: in ascending order without an upper bound, a request can wait for events
	Sort    []string    // fields to sort by; none if there is only the default order
	Default []SortField // default order
	Filters []Filter
	Between string // the time range that from and to give; "" for none
	Daily   bool   // read day by day: pages offer days, and show today by default
}

// SortField is a field in a sort order.
type SortField struct {
	Name       string
	Descending bool
}

// Filter is a property to filter a list by.
type Filter struct {
	Name   string
	Kind   FilterKind
	Values []string // allowed values, for FilterOneOf and FilterAtLeast
}

// FilterKind is the kind of a filter's values. All filters except FilterTime take
// several values and match any of them.
type FilterKind int

const (
	FilterOneOf          FilterKind = iota // one of Values
	FilterEvent                            // an event name
	FilterID                               // a UUID
	FilterURL                              // an absolute URL; not split at commas, which it may contain
	FilterResponseStatus                   // an HTTP status such as 404, or a class such as 4xx
	FilterTime                             // a time range, given by name.from and name.to
	FilterText                             // text of at most maxFilterText bytes
	FilterSearch                           // text like FilterText; not split at commas
	FilterAtLeast                          // an integer in Values, matching greater or equal values; its name ends in .from
)

// The lists of the API and of the admin UI. They are immutable.
var (
	SubscriptionList = &List{
		Sort:    []string{"created_at", "updated_at", "url"},
		Default: []SortField{{Name: "created_at"}},
		Filters: []Filter{
			{Name: "active", Values: []string{"true", "false"}},
			{Name: "status", Values: []string{string(HealthHealthy), string(HealthFailing), string(HealthDisabled)}},
			{Name: "event", Kind: FilterEvent}, // that the subscription selects
			{Name: "url", Kind: FilterURL},
			{Name: "created_at", Kind: FilterTime},
			{Name: "updated_at", Kind: FilterTime},
		},
	}

	// AllSubscriptionList lists the subscriptions of all programs for admins, by default the
	// most urgent first: failing, disabled, degraded, paused, healthy, and within each state by
	// their backlog. Its status filter distinguishes degraded from healthy ones. created_at is
	// the order of creation, which has no ties. Deleted subscriptions are only listed if the
	// filter asks for them.
	AllSubscriptionList = (&List{
		Feed:    true,
		Sort:    []string{"status", "name", "success_rate", "waiting", "last_success_at", "created_at"},
		Default: []SortField{{Name: "status"}},
	}).with(
		Filter{Name: "search", Kind: FilterSearch}, // the name or the URL contains it, or the ID begins with it
		Filter{Name: "status", Values: []string{string(HealthHealthy), string(HealthDegraded), string(HealthFailing), string(HealthDisabled)}},
		Filter{Name: "active", Values: []string{"true", "false"}},
		Filter{Name: "losses", Values: []string{"true", "false"}}, // whether retention removed events that it had not received
		Filter{Name: "deleted", Values: []string{"true", "false"}},
		Filter{Name: "event", Kind: FilterEvent}, // that the subscription selects
		Filter{Name: "created_at", Kind: FilterTime},
	)

	// DeliveryList lists the deliveries of one subscription. created_at is the
	// order of creation, which has no ties.
	DeliveryList = feed("created_at",
		Filter{Name: "status", Values: []string{string(StatusPending), string(StatusRetryable), string(StatusSuccess), string(StatusFailed)}},
		Filter{Name: "event", Kind: FilterEvent},                    // that it contains
		Filter{Name: "response_status", Kind: FilterResponseStatus}, // of the last completed attempt
		Filter{Name: "error", Values: namesOf(ErrorCodes())},        // of the last completed attempt
		Filter{Name: "failure_reason", Values: namesOf(FailureReasons())},
		Filter{Name: "recovered", Values: []string{"true", "false"}}, // failed, and all events delivered since, or left to resend
		Filter{Name: "event_id", Kind: FilterID},                     // of an event that it contains
		Filter{Name: "created_at", Kind: FilterTime},
		Filter{Name: "completed_at", Kind: FilterTime},
		Filter{Name: "next_attempt_at", Kind: FilterTime},
	)

	// AllDeliveryList lists the deliveries of all programs for admins.
	// subscription_url matches a substring of the subscription's current URL,
	// ignoring case, even if it is deleted.
	AllDeliveryList = DeliveryList.with(
		Filter{Name: "program_id", Kind: FilterText},
		Filter{Name: "subscription_id", Kind: FilterID},
		Filter{Name: "subscription_url", Kind: FilterText},
		Filter{Name: "attempts_made.from", Kind: FilterAtLeast, Values: []string{"1", "2", "3", "4", "5"}},
		Filter{Name: "id", Kind: FilterID},
		Filter{Name: "redelivery_of", Kind: FilterID},
		Filter{Name: "split_of", Kind: FilterID},
		Filter{Name: "replay_id", Kind: FilterID},
		Filter{Name: "bulk_run_id", Kind: FilterID},
	)

	// ProgramDeliveryList lists the deliveries of one program.
	ProgramDeliveryList = AllDeliveryList.without("program_id")

	// EventDeliveryList lists the deliveries with one event of a program.
	EventDeliveryList = ProgramDeliveryList.without("event_id")

	// ReplayList lists the replays of one subscription; created_at is the order of
	// their creation.
	ReplayList = feed("created_at",
		Filter{Name: "status", Values: []string{string(ReplayRunning), string(ReplayDone), string(ReplayCancelled)}},
		Filter{Name: "created_at", Kind: FilterTime},
	)

	// EventList lists the log of one program; received_at sorts by seq.
	EventList = feed("received_at",
		Filter{Name: "name", Kind: FilterEvent},
		Filter{Name: "id", Kind: FilterID},
		Filter{Name: "received_at", Kind: FilterTime},
		Filter{Name: "timestamp", Kind: FilterTime},
	)

	// EventLog is EventList for requests that can wait for new events.
	EventLog = &List{Feed: true, Follow: true, Sort: EventList.Sort, Default: EventList.Default, Filters: EventList.Filters}

	// SubscriptionLog is a program's log as a subscription's event names and filters select it.
	SubscriptionLog = &List{Feed: true, Follow: true, Default: []SortField{{Name: "received_at"}}, Between: "received_at"}

	// ReconciliationList lists the events that the names and filters of a subscription select, with what
	// has become of each; received_at is the order of seq.
	ReconciliationList = daily(feed("received_at",
		Filter{Name: "status", Values: []string{"delivered", "failed", "waiting", "not_sent"}},
		Filter{Name: "received_at", Kind: FilterTime},
	))

	// IncidentList lists the incidents of a program; opened_at is the order in
	// which they opened.
	IncidentList = feed("opened_at",
		Filter{Name: "status", Values: []string{IncidentOpen, IncidentResolved}},
		Filter{Name: "subscription_id", Kind: FilterID},
		Filter{Name: "failing_reason", Values: []string{string(FailingUnreachable), string(FailingRejecting)}},
		Filter{Name: "closed_by", Values: namesOf(IncidentEnds())},
		Filter{Name: "opened_at", Kind: FilterTime},
		Filter{Name: "closed_at", Kind: FilterTime},
	)

	// AllIncidentList lists the incidents of all programs for admins.
	AllIncidentList = IncidentList.with(Filter{Name: "program_id", Kind: FilterText})

	// BulkRunList lists the bulk runs of a program; created_at is the order in which they were
	// created.
	BulkRunList = feed("created_at",
		Filter{Name: "status", Values: []string{string(BulkRunning), string(BulkDone), string(BulkCancelled)}},
		Filter{Name: "action", Values: []string{string(BulkRedeliver), string(BulkCancel)}},
	)

	// AuditList lists the audit log of all programs; at is its order.
	AuditList = feed("at",
		Filter{Name: "admin", Kind: FilterText},
		Filter{Name: "token_id", Kind: FilterText},
		Filter{Name: "action", Values: namesOf(Actions())},
		Filter{Name: "subject_id", Kind: FilterText},
		Filter{Name: "program_id", Kind: FilterText},
		Filter{Name: "at", Kind: FilterTime},
	)
)

// TokenList lists the tokens of one program, and for admins of all programs.
var TokenList = &List{
	Sort:    []string{"created_at"},
	Default: []SortField{{Name: "created_at", Descending: true}},
	Filters: []Filter{
		{Name: "state", Values: []string{"valid", "expired", "revoked"}},
		{Name: "user_id", Kind: FilterText},
		{Name: "created_at", Kind: FilterTime},
	},
}

// ProgramList lists the programs. program_name matches a substring of the ID or the name, ignoring
// case. A program is failing if one of its subscriptions is.
var ProgramList = &List{
	Sort:    []string{"created_at", "updated_at", "id", "name"},
	Default: []SortField{{Name: "created_at"}},
	Filters: []Filter{
		{Name: "id", Kind: FilterText},
		{Name: "name", Kind: FilterText},
		{Name: "program_name", Kind: FilterText},
		{Name: "failing", Values: []string{"true", "false"}},
		{Name: "created_at", Kind: FilterTime},
		{Name: "updated_at", Kind: FilterTime},
	},
}

// AllProgramList lists the programs for admins, including those that are being imported.
var AllProgramList = &List{
	Sort:    ProgramList.Sort,
	Default: []SortField{{Name: "created_at", Descending: true}},
	Filters: []Filter{
		{Name: "failing", Values: []string{"true", "false"}},
		{Name: "program_name", Kind: FilterText},
		{Name: "created_at", Kind: FilterTime},
		{Name: "updated_at", Kind: FilterTime},
	},
}

// feed returns a list that is paginated by cursor, newest first.
func feed(order string, filters ...Filter) *List {
	return &List{Feed: true, Sort: []string{order}, Default: []SortField{{Name: order, Descending: true}}, Filters: filters}
}

// daily makes a list one that is read day by day.
func daily(l *List) *List {
	l.Daily = true
	return l
}

// with returns the list with more filters.
func (l *List) with(filters ...Filter) *List {
	return &List{Feed: l.Feed, Sort: l.Sort, Default: l.Default, Filters: slices.Concat(l.Filters, filters)}
}

// without returns the list without one of its filters.
func (l *List) without(filter string) *List {
	filters := slices.DeleteFunc(slices.Clone(l.Filters), func(f Filter) bool { return f.Name == filter })
	return &List{Feed: l.Feed, Sort: l.Sort, Default: l.Default, Filters: filters}
}

// ListQuery is a parsed request for a list. [List.Parse] creates it.
type ListQuery struct {
	Sort    []SortField          // at least one
	Filters map[string][]string  // by filter name: sorted, distinct; nil for none
	Ranges  map[string]TimeRange // by the name of a FilterTime; nil for none
	Wait    time.Duration        // how long to wait for events: 0 to MaxWait
	Size    int                  // page size: 1 to MaxPageSize
	Number  int                  // page number, from 1; 1 for a feed
	Cursor  string               // for a feed: "" for the first page, otherwise next of an earlier page
}

// TimeRange is a range of whole milliseconds, including From and excluding To. A
// zero time is an open end.
type TimeRange struct{ From, To time.Time }

// Supported returns the names of the parameters that the list supports, none for a
// nil list.
func (l *List) Supported() []string {
	if l == nil {
		return nil
	}
	names := []string{"page[size]", "page[number]"}
	if l.Feed {
		names[1] = "page[cursor]"
	}
	if l.Sort != nil {
		names = append(names, "sort")
	}
	if l.Between != "" {
		names = append(names, "from", "to")
	}
	if l.Follow {
		names = append(names, "wait")
	}
	for _, f := range l.Filters {
		if f.Kind == FilterTime {
			names = append(names, "filter["+f.Name+".from]", "filter["+f.Name+".to]")
		} else {
			names = append(names, "filter["+f.Name+"]")
		}
	}
	return names
}

// Parse parses the parameters of a request. An unsupported parameter is an error,
// since a misspelled filter must not silently change a list. The validations name
// parameters as page[size], filter[status] or filter[created_at.from]. Parse also
// accepts the spellings page.size, filter.status and filter[created_at][from].
func (l *List) Parse(values url.Values) (ListQuery, *Error) {
	return l.parse(values, false)
}

// ParseFilters parses filters alone, without pages and a sort order.
func (l *List) ParseFilters(filters url.Values) (ListQuery, *Error) {
	return l.parse(filters, true)
}

func (l *List) parse(values url.Values, filtersOnly bool) (ListQuery, *Error) {
	p := listParser{list: l, filtersOnly: filtersOnly, query: ListQuery{Size: DefaultPageSize, Number: 1}, given: make(map[string]bool)}
	for _, spelling := range slices.Sorted(maps.Keys(values)) {
		p.parameter(spelling, values[spelling])
	}
	for name, values := range p.query.Filters {
		slices.Sort(values)
		values = slices.Compact(values)
		if len(values) > maxFilterValues {
			p.fail(InvalidTooMany, "filter["+name+"]", fmt.Sprintf("must have at most %d values, has %d", maxFilterValues, len(values)))
		}
		p.query.Filters[name] = values
	}
	if p.query.Sort == nil && l != nil {
		p.query.Sort = slices.Clone(l.Default)
	}
	if p.query.Wait > 0 && !l.Followed(&p.query) {
		p.fail(InvalidValue, "wait", "needs the ascending order and no upper bound of the time of acceptance")
	}
	slices.SortStableFunc(p.faults, func(a, b Validation) int { return strings.Compare(a.Parameter, b.Parameter) })
	return p.query, invalid(p.faults)
}

// Followed reports whether a query can wait for new events at the end of a log: ascending, without
// an upper bound of the acceptance time.
func (l *List) Followed(q *ListQuery) bool {
	return l.Follow && !q.Sort[0].Descending && q.Ranges["received_at"].To.IsZero()
}

// UnknownEvents returns the event names in filters that are neither in the catalog nor in used, and the
// error about them, nil if there are none. The names are sorted like those of a filter.
func (l *List) UnknownEvents(q *ListQuery, c *Catalog, used []string) (names []string, err *Error) {
	if l == nil {
		return nil, nil
	}
	var faults []Validation
	for _, f := range l.Filters {
		for _, name := range q.Filters[f.Name] {
			if f.Kind == FilterEvent && !c.Has(name) && !slices.Contains(used, name) {
				names = append(names, name)
				faults = append(faults, Validation{InvalidUnknownEvent, quotedField(name) + " " + unknownEvent, "filter[" + f.Name + "]"})
			}
		}
	}
	return names, invalid(faults)
}

type listParser struct {
	list        *List
	filtersOnly bool // there are no pages and no order
	query       ListQuery
	given       map[string]bool // parameters that may be given once
	faults      []Validation
}

func (p *listParser) fail(code, parameter, detail string) {
	p.faults = append(p.faults, Validation{code, detail, parameter})
}

// parameter parses all values given under one spelling of a parameter's name.
func (p *listParser) parameter(spelling string, given []string) {
	path, array := parameterPath(spelling)
	if p.list == nil || path == nil || !p.take(path, array, given) {
		p.fail(InvalidUnknownField, quotedName(spelling), "is not supported here; "+p.describe())
	}
}

func (p *listParser) describe() string {
	if p.list == nil {
		return "this request takes no query parameters"
	}
	supported := p.list.Supported()
	if p.filtersOnly {
		supported = slices.DeleteFunc(supported, func(name string) bool { return !strings.HasPrefix(name, "filter[") })
	}
	return "supported: " + strings.Join(supported, ", ")
}

// take parses one parameter. It returns false if the list does not support it.
func (p *listParser) take(path []string, array bool, given []string) bool {
	group, property := path[0], strings.Join(path[1:], ".")
	name := group
	if len(path) > 1 {
		name += "[" + property + "]"
	}
	switch {
	case group == "filter" && len(path) > 1:
		return p.filter(name, property, array, given)
	case array:
		return false
	case name == "sort" && p.list.Sort != nil:
		p.once(name, given, p.sort)
	case (name == "from" || name == "to") && p.list.Between != "":
		p.once(name, given, func(_, value string) { p.end(&Filter{Name: p.list.Between}, name, name, value) })
	case name == "wait" && p.list.Follow:
		p.once(name, given, p.wait)
	case name == "page[size]":
		p.once(name, given, func(name, value string) { p.integer(&p.query.Size, name, value, MaxPageSize) })
	case name == "page[number]" && !p.list.Feed:
		p.once(name, given, func(name, value string) { p.integer(&p.query.Number, name, value, maxPageNumber) })
	case name == "page[cursor]" && p.list.Feed:
		p.once(name, given, func(name, value string) {
			if p.query.Cursor = value; value == "" { // would restart at the first page
				p.fail(InvalidFormat, name, "must be meta.pagination.next of an earlier response of this list")
			}
		})
	default:
		return false
	}
	return true
}

// once parses the value of a parameter that may be given once, in one spelling.
func (p *listParser) once(name string, given []string, take func(name, value string)) {
	if p.given[name] || len(given) != 1 {
		p.fail(InvalidDuplicate, name, "is given more than once")
	} else {
		take(name, given[0])
	}
	p.given[name] = true
}

func (p *listParser) integer(n *int, name, value string, most int) {
	got, err := strconv.Atoi(value)
	switch digits := value != "" && strings.Trim(value, "0123456789") == ""; {
	case err != nil && !digits:
		p.fail(InvalidType, name, fmt.Sprintf("must be an integer from 1 to %d", most))
	case err != nil || got < 1 || got > most:
		p.fail(InvalidValue, name, fmt.Sprintf("must be from 1 to %d", most))
	default:
		*n = got
	}
}

func (p *listParser) wait(name, value string) {
	var err error
	if p.query.Wait, err = time.ParseDuration(value); err != nil || p.query.Wait < 0 || p.query.Wait > MaxWait {
		p.fail(InvalidValue, name, "must be a duration from 0s to 30s, such as 25s")
	}
}

func (p *listParser) sort(name, value string) {
	for field := range strings.SplitSeq(value, ",") {
		f := SortField{Name: field}
		f.Name, f.Descending = strings.CutPrefix(field, "-")
		switch {
		case !slices.Contains(p.list.Sort, f.Name):
			p.fail(InvalidValue, name, "does not support "+quotedField(field)+"; supported: "+
				strings.Join(p.list.Sort, ", ")+", each with a leading - for descending")
			return // one error per parameter is enough
		case slices.ContainsFunc(p.query.Sort, func(other SortField) bool { return other.Name == f.Name }):
			p.fail(InvalidDuplicate, name, "names "+f.Name+" more than once")
			return
		case p.list.Feed && len(p.query.Sort) > 0: // a cursor is a position in one order
			p.fail(InvalidTooMany, name, "must be one field")
			return
		}
		p.query.Sort = append(p.query.Sort, f)
	}
}

// quotedField quotes a caller's field name and limits its length.
func quotedField(name string) string {
	if name == "" {
		return `""`
	}
	return strconv.Quote(quotedName(name))
}

// filter parses the values of a filter, or one end of a time range.
func (p *listParser) filter(name, property string, array bool, given []string) bool {
	whole, end := property, ""
	if at := strings.LastIndexByte(property, '.'); at >= 0 {
		whole, end = property[:at], property[at+1:]
	}
	i := slices.IndexFunc(p.list.Filters, func(f Filter) bool {
		if f.Kind == FilterTime {
			return f.Name == whole && (end == "from" || end == "to") && !array
		}
		return f.Name == property
	})
	if i < 0 {
		return false
	}
	f := &p.list.Filters[i]
	if f.Kind == FilterTime {
		p.once(name, given, func(name, value string) { p.end(f, end, name, value) })
		return true
	}
	if f.Kind == FilterAtLeast && (array || len(given) != 1 || p.query.Filters[f.Name] != nil) {
		p.fail(InvalidDuplicate, name, "is given more than once")
		return true
	}
	for _, text := range given {
		parts := []string{text}
		if !array && f.Kind != FilterURL && f.Kind != FilterSearch && f.Kind != FilterAtLeast {
			parts = strings.Split(text, ",")
		}
		for _, part := range parts {
			value, code, must := f.value(part)
			if code != "" {
				p.fail(code, name, must)
				return true
			}
			if p.query.Filters == nil {
				p.query.Filters = make(map[string][]string)
			}
			p.query.Filters[f.Name] = append(p.query.Filters[f.Name], value)
		}
	}
	return true
}

var statusOrClass = regexp.MustCompile(`^[1-9]([0-9][0-9]|xx)$`)

// value returns a value in the spelling of records, or the rule that it breaks.
func (f *Filter) value(s string) (value, code, must string) {
	switch f.Kind {
	case FilterEvent:
		if !IsEventName(s) {
			return "", InvalidFormat, "must be event names, each " + eventNameForm
		}
	case FilterID:
		id, ok := parseUUID([]byte(s))
		if !ok {
			return "", InvalidFormat, "must be UUIDs such as 0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5"
		}
		return id.String(), "", ""
	case FilterURL:
		u, err := url.Parse(s)
		if err != nil || u.Scheme == "" || u.Host == "" || !utf8.ValidString(s) {
			return "", InvalidFormat, "must be absolute URLs; several as filter[" + f.Name + "][], since a URL may have commas"
		}
	case FilterResponseStatus:
		if !statusOrClass.MatchString(s) {
			return "", InvalidFormat, "must be statuses from 100 to 999 such as 404, or classes from 1xx to 9xx"
		}
	case FilterAtLeast:
		if !slices.Contains(f.Values, s) {
			return "", InvalidValue, "must be from " + f.Values[0] + " to " + f.Values[len(f.Values)-1]
		}
	case FilterText, FilterSearch:
		if s == "" || len(s) > maxFilterText || !utf8.ValidString(s) {
			return "", InvalidFormat, fmt.Sprintf("must be text of at most %d bytes", maxFilterText)
		}
	default:
		if !slices.Contains(f.Values, s) {
			return "", InvalidValue, "must be one of " + strings.Join(f.Values, ", ")
		}
	}
	return s, "", ""
}

// end parses one end of a time range (see parseRangeEnd).
func (p *listParser) end(f *Filter, end, name, value string) {
	first, next, ok := parseRangeEnd(value)
	if !ok {
		p.fail(InvalidFormat, name, "must be a timestamp such as 2026-03-14T08:24:48.644Z (the + of an offset is written %2B in a URL), "+
			"or a date such as 2026-03-14, which is read as UTC")
		return
	}
	if p.query.Ranges == nil {
		p.query.Ranges = make(map[string]TimeRange)
	}
	r := p.query.Ranges[f.Name]
	if end == "from" {
		r.From = first
	} else {
		r.To = next
	}
	p.query.Ranges[f.Name] = r
}

// parameterPath splits a parameter name into its parts: filter[created_at][from],
// filter[created_at.from] and filter.created_at.from are equal. array reports
// whether it ends in []. The path is nil if the brackets do not match or a part is
// empty.
func parameterPath(name string) (path []string, array bool) {
	head, rest := name, ""
	if at := strings.IndexAny(name, ".["); at >= 0 {
		head, rest = name[:at], name[at:]
	}
	path = []string{head}
	for rest != "" {
		var part string
		if rest[0] == '[' {
			closing := strings.IndexByte(rest, ']')
			if closing < 0 {
				return nil, false
			}
			part, rest = rest[1:closing], rest[closing+1:]
			if array = part == "" && rest == ""; array {
				break
			}
			if rest != "" && rest[0] != '[' && rest[0] != '.' {
				return nil, false
			}
		} else {
			part, rest = rest[1:], ""
			if at := strings.IndexAny(part, ".["); at >= 0 {
				part, rest = part[:at], part[at:]
			}
		}
		path = append(path, strings.Split(part, ".")...)
	}
	for _, part := range path {
		if part == "" || strings.ContainsAny(part, "[]") {
			return nil, false
		}
	}
	return path, array
}

// Values returns the parameters of a query, for links. Parse returns an equal query
// for them.
func (l *List) Values(q *ListQuery) url.Values {
	values := l.selection(q)
	if q.Size != DefaultPageSize {
		values.Set("page[size]", strconv.Itoa(q.Size))
	}
	if q.Number != 1 {
		values.Set("page[number]", strconv.Itoa(q.Number))
	}
	if q.Cursor != "" {
		values.Set("page[cursor]", q.Cursor)
	}
	return values
}

// Selection encodes the order and the filters of a query, without its page: queries
// with the same selection list the same rows in the same order.
func (l *List) Selection(q *ListQuery) string { return l.selection(q).Encode() }

func (l *List) selection(q *ListQuery) url.Values {
	values := make(url.Values)
	if !slices.Equal(q.Sort, l.Default) {
		var fields []string
		for _, f := range q.Sort {
			if f.Descending {
				f.Name = "-" + f.Name
			}
			fields = append(fields, f.Name)
		}
		values.Set("sort", strings.Join(fields, ","))
	}
	for _, f := range l.Filters {
		if r := q.Ranges[f.Name]; !r.From.IsZero() {
			values.Set("filter["+f.Name+".from]", FormatTime(r.From))
		}
		if r := q.Ranges[f.Name]; !r.To.IsZero() {
			values.Set("filter["+f.Name+".to]", FormatTime(r.To.Add(-time.Millisecond)))
		}
		switch given := q.Filters[f.Name]; {
		case len(given) == 0:
		case f.Kind == FilterURL, f.Kind == FilterSearch && len(given) > 1:
			values["filter["+f.Name+"][]"] = given
		default:
			values.Set("filter["+f.Name+"]", strings.Join(given, ","))
		}
	}
	return values
}

// namesOf returns the texts of values.
func namesOf[S ~string](values []S) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = string(v)
	}
	return names
}
