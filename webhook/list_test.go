package webhook

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func lists() map[string]*List {
	return map[string]*List{"subscriptions": SubscriptionList, "deliveries": DeliveryList, "events": EventList}
}

// date returns midnight UTC of a date, plus d.
func date(s string, d time.Duration) time.Time {
	t, err := time.Parse(time.DateOnly, s)
	if err != nil {
		panic(err)
	}
	return t.Add(d)
}

func TestListQuery(t *testing.T) {
	newest := []SortField{{"created_at", true}}
	page := func(q ListQuery) ListQuery {
		if q.Size == 0 {
			q.Size = DefaultPageSize
		}
		if q.Number == 0 {
			q.Number = 1
		}
		return q
	}
	status := func(values ...string) ListQuery {
		return page(ListQuery{Sort: newest, Filters: map[string][]string{"status": values}})
	}
	created := func(from, to time.Time) ListQuery {
		return page(ListQuery{Sort: newest, Ranges: map[string]TimeRange{"created_at": {from, to}}})
	}
	const ms = time.Millisecond
	day := date("2026-03-14", 0)
	moment := date("2026-03-14", 8*time.Hour+24*time.Minute+48*time.Second+644*ms)
	for _, tt := range []struct {
		list  *List
		query string
		want  ListQuery
	}{
		{DeliveryList, "", page(ListQuery{Sort: newest})},
		{EventList, "", page(ListQuery{Sort: []SortField{{"received_at", true}}})},
		{SubscriptionList, "", page(ListQuery{Sort: []SortField{{"created_at", false}}})},

		{SubscriptionList, "page[size]=100&page[number]=7", page(ListQuery{Sort: SubscriptionList.Default, Size: 100, Number: 7})},
		{SubscriptionList, "page.size=1&page.number=2147483647", page(ListQuery{Sort: SubscriptionList.Default, Size: 1, Number: 2147483647})},
		{DeliveryList, "page[cursor]=abc", page(ListQuery{Sort: newest, Cursor: "abc"})},

		{SubscriptionList, "sort=url", page(ListQuery{Sort: []SortField{{"url", false}}})},
		{SubscriptionList, "sort=-updated_at,url,-created_at",
			page(ListQuery{Sort: []SortField{{"updated_at", true}, {"url", false}, {"created_at", true}}})},

		// Every spelling of a filter, and of several values.
		{DeliveryList, "filter[status]=failed", status("failed")},
		{DeliveryList, "filter.status=failed", status("failed")},
		{DeliveryList, "filter[status]=retryable,failed", status("failed", "retryable")},
		{DeliveryList, "filter[status][]=retryable&filter[status][]=failed", status("failed", "retryable")},
		{DeliveryList, "filter.status[]=retryable&filter.status=failed", status("failed", "retryable")},
		{DeliveryList, "filter[status]=retryable&filter[status]=failed,failed", status("failed", "retryable")},
		{DeliveryList, "filter%5Bstatus%5D=failed%2Cretryable", status("failed", "retryable")},
		{DeliveryList, "filter[status]=failed&filter[error]=dns&filter[response_status]=5xx,404&filter[event]=ping",
			page(ListQuery{Sort: newest, Filters: map[string][]string{
				"status": {"failed"}, "error": {"dns"}, "response_status": {"404", "5xx"}, "event": {"ping"}}})},
		{EventList, "filter[id]=0198F6A2-7C1E-7D4B-9A41-3F6BE7C2D1E5", page(ListQuery{Sort: EventList.Default, Filters: map[string][]string{
			"id": {"0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5"}}})},
		{SubscriptionList, "filter[url]=https://a.example/x,y", page(ListQuery{Sort: SubscriptionList.Default, Filters: map[string][]string{
			"url": {"https://a.example/x,y"}}})},
		{SubscriptionList, "filter[url][]=https://b.example&filter[url][]=https://a.example/&filter[active]=true",
			page(ListQuery{Sort: SubscriptionList.Default, Filters: map[string][]string{
				"url": {"https://a.example/", "https://b.example"}, "active": {"true"}}})},

		// Every spelling of a range; both ends are included, a date is its whole day.
		{DeliveryList, "filter[created_at.from]=2026-03-14T08:24:48.644Z", created(moment, time.Time{})},
		{DeliveryList, "filter[created_at][from]=2026-03-14T08:24:48.644Z", created(moment, time.Time{})},
		{DeliveryList, "filter.created_at.from=2026-03-14T08:24:48.644Z", created(moment, time.Time{})},
		{DeliveryList, "filter.created_at[from]=2026-03-14T08:24:48.644Z", created(moment, time.Time{})},
		{DeliveryList, "filter[created_at.from]=2026-03-14T10:24:48.644%2B02:00", created(moment, time.Time{})},
		{DeliveryList, "filter[created_at.from]=2026-03-14T08:24:48.643001Z", created(moment, time.Time{})},
		{DeliveryList, "filter[created_at.to]=2026-03-14T08:24:48.644Z", created(time.Time{}, moment.Add(ms))},
		{DeliveryList, "filter[created_at.to]=2026-03-14T08:24:48.644999Z", created(time.Time{}, moment.Add(ms))},
		{DeliveryList, "filter[created_at.to]=2026-03-14T08:24:48Z", created(time.Time{}, moment.Add(-643*ms))},
		{DeliveryList, "filter[created_at.from]=2026-03-14", created(day, time.Time{})},
		{DeliveryList, "filter[created_at.to]=2026-03-14", created(time.Time{}, date("2026-03-15", 0))},
		{DeliveryList, "filter[created_at.from]=2026-03-14&filter[created_at.to]=2026-03-14", created(day, date("2026-03-15", 0))},
		{DeliveryList, "filter[created_at.to]=9999-12-31", created(time.Time{}, date("9999-12-31", 24*time.Hour))},
		{DeliveryList, "filter[created_at.from]=2026-03-15&filter[created_at.to]=2026-03-14",
			created(date("2026-03-15", 0), date("2026-03-15", 0))}, // an empty range
	} {
		checkListQuery(t, tt.list, tt.query, &tt.want)
	}
}

// parameters returns the parameters of a query string.
func parameters(t *testing.T, query string) url.Values {
	t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// checkListQuery checks how a list parses the parameters of a request.
func checkListQuery(t *testing.T, l *List, query string, want *ListQuery) {
	t.Helper()
	got, problem := l.Parse(parameters(t, query))
	if problem != nil {
		t.Errorf("%s: %v", query, problem)
		return
	}
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", query, diff)
	}
	checkCanonical(t, l, &got)
}

// checkCanonical checks that parsing a query's own parameters gives the same query.
func checkCanonical(t *testing.T, l *List, q *ListQuery) {
	t.Helper()
	values := l.Values(q)
	again, problem := l.Parse(values)
	if problem != nil {
		t.Fatalf("%s: %v", values.Encode(), problem)
	}
	if diff := cmp.Diff(*q, again); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", values.Encode(), diff)
	}
	if got, want := l.Values(&again).Encode(), values.Encode(); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

// listFaults are queries with one error each.
var listFaults = []struct {
	list                           *List
	query, code, parameter, detail string // part of the detail
}{
	{nil, "page[size]=1", InvalidUnknownField, "page[size]", "no query parameters"},
	{SubscriptionList, "page[cursor]=x", InvalidUnknownField, "page[cursor]", "page[number]"},
	{DeliveryList, "page[number]=1", InvalidUnknownField, "page[number]", "page[cursor]"},
	{DeliveryList, "page[sise]=1", InvalidUnknownField, "page[sise]", "page[size]"},
	{DeliveryList, "page[size][]=1", InvalidUnknownField, "page[size][]", ""},
	{DeliveryList, "page=1", InvalidUnknownField, "page", ""},
	{DeliveryList, "page[]=1", InvalidUnknownField, "page[]", ""},
	{DeliveryList, "page[size=1", InvalidUnknownField, "page[size", ""},
	{DeliveryList, "page]size[=1", InvalidUnknownField, "page]size[", ""},
	{DeliveryList, "page..size=1", InvalidUnknownField, "page..size", ""},
	{DeliveryList, ".=1", InvalidUnknownField, ".", ""},
	{DeliveryList, "=1", InvalidUnknownField, `""`, ""},
	{DeliveryList, "verbose", InvalidUnknownField, "verbose", "supported: "},
	{DeliveryList, "page[size]=0", InvalidValue, "page[size]", "from 1 to 100"},
	{DeliveryList, "page[size]=101", InvalidValue, "page[size]", "from 1 to 100"},
	{DeliveryList, "page[size]=", InvalidType, "page[size]", "integer"},
	{DeliveryList, "page[size]=%2B1a", InvalidType, "page[size]", "integer"},
	{DeliveryList, "page[size]=1&page.size=1", InvalidDuplicate, "page[size]", ""},
	{DeliveryList, "page[cursor]=", InvalidFormat, "page[cursor]", ""},

	{DeliveryList, "sort=url", InvalidValue, "sort", "supported: created_at, each"},
	{DeliveryList, "sort=--created_at", InvalidValue, "sort", "supported"},
	{DeliveryList, "sort=%2Bcreated_at", InvalidValue, "sort", `does not support "+created_at"; `},
	{DeliveryList, "sort=+created_at", InvalidValue, "sort", `does not support " created_at"; `},
	{DeliveryList, "sort=", InvalidValue, "sort", `does not support ""; `},
	{DeliveryList, "sort=created_at,", InvalidValue, "sort", "supported"},
	{DeliveryList, "sort=created_at, created_at", InvalidValue, "sort", "supported"},
	{DeliveryList, "sort=created_at,-created_at", InvalidDuplicate, "sort", "created_at"},
	{DeliveryList, "sort=completed_at", InvalidValue, "sort", "supported: created_at, each"},
	{DeliveryList, "sort=created_at&sort=-created_at", InvalidDuplicate, "sort", ""},
	{DeliveryList, "sort[]=created_at", InvalidUnknownField, "sort[]", ""},

	{DeliveryList, "filter[state]=failed", InvalidUnknownField, "filter[state]",
		"filter[status], filter[event], filter[response_status], filter[error], " +
			"filter[failure_reason], filter[recovered], filter[event_id], filter[created_at.from]"},
	{DeliveryList, "filter=failed", InvalidUnknownField, "filter", ""},
	{DeliveryList, "filter[]=failed", InvalidUnknownField, "filter[]", ""},
	{DeliveryList, "filter[status][0]=failed", InvalidUnknownField, "filter[status][0]", ""},
	{DeliveryList, "filter[status.from]=failed", InvalidUnknownField, "filter[status.from]", ""},
	{DeliveryList, "filter[created_at]=2026-03-14", InvalidUnknownField, "filter[created_at]", "filter[created_at.from]"},
	{DeliveryList, "filter[created_at.since]=2026-03-14", InvalidUnknownField, "filter[created_at.since]", "filter[created_at.from]"},
	{DeliveryList, "filter[created_at.from][]=2026-03-14", InvalidUnknownField, "filter[created_at.from][]", ""},
	{DeliveryList, "Filter[status]=failed", InvalidUnknownField, "Filter[status]", ""},
	{EventList, "filter[status]=failed", InvalidUnknownField, "filter[status]", "filter[name]"},

	{DeliveryList, "filter[status]=done", InvalidValue, "filter[status]", "pending, retryable, success, failed"},
	{DeliveryList, "filter[status]=Failed", InvalidValue, "filter[status]", "failed"},
	{DeliveryList, "filter[status]=", InvalidValue, "filter[status]", "failed"},
	{DeliveryList, "filter[status]=failed,", InvalidValue, "filter[status]", "failed"},
	{DeliveryList, "filter[status][]=failed,success", InvalidValue, "filter[status]", "failed"},
	{DeliveryList, "filter[error]=eaten", InvalidValue, "filter[error]", "timeout, dns"},
	{DeliveryList, "filter[response_status]=99", InvalidFormat, "filter[response_status]", "404"},
	{DeliveryList, "filter[response_status]=099", InvalidFormat, "filter[response_status]", "404"},
	{DeliveryList, "filter[response_status]=0xx", InvalidFormat, "filter[response_status]", "9xx"},
	{DeliveryList, "filter[response_status]=40x", InvalidFormat, "filter[response_status]", "9xx"},
	{DeliveryList, "filter[event]=Content Updated", InvalidFormat, "filter[event]", "a-z"},
	{DeliveryList, "filter[event]=" + strings.Repeat("x", 129), InvalidFormat, "filter[event]", "a-z"},
	{SubscriptionList, "filter[active]=1", InvalidValue, "filter[active]", "true, false"},
	{SubscriptionList, "filter[url]=partner.example", InvalidFormat, "filter[url]", "absolute"},
	{SubscriptionList, "filter[url]=https://a.example/%FF", InvalidFormat, "filter[url]", "absolute"},
	{EventList, "filter[id]=7", InvalidFormat, "filter[id]", "UUID"},
	{EventList, "filter[id]={0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5}", InvalidFormat, "filter[id]", "UUID"},
	{EventList, "filter[name]=" + tooMany(), InvalidTooMany, "filter[name]", "100"},

	{DeliveryList, "filter[created_at.from]=yesterday", InvalidFormat, "filter[created_at.from]", "2026-03-14"},
	{DeliveryList, "filter[created_at.from]=", InvalidFormat, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.from]=2026-02-30", InvalidFormat, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.from]=2026-3-14", InvalidFormat, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.from]=2026-03-14T08:24:48", InvalidFormat, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.from]=2026-03-14T10:24:48+02:00", InvalidFormat, "filter[created_at.from]", "%2B"},
	{DeliveryList, "filter[created_at.from]=1773476688644", InvalidFormat, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.from]=0001-01-01", InvalidFormat, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.from]=9999-12-31T23:59:59.9999Z", InvalidFormat, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.to]=9999-12-31T23:59:59-01:00", InvalidFormat, "filter[created_at.to]", ""},
	{DeliveryList, "filter[created_at.from]=2026-03-14&filter[created_at][from]=2026-03-14", InvalidDuplicate, "filter[created_at.from]", ""},
	{DeliveryList, "filter[created_at.from]=2026-03-14,2026-03-15", InvalidFormat, "filter[created_at.from]", ""},
}

func TestListQueryErrors(t *testing.T) {
	for _, tt := range listFaults {
		_, problem := tt.list.Parse(parameters(t, tt.query))
		if problem == nil || len(problem.Validations) != 1 {
			t.Errorf("%s: got %v, want one error", tt.query, problem)
			continue
		}
		got := problem.Validations[0]
		if got.Code != tt.code || got.Parameter != tt.parameter || !strings.Contains(got.Detail, tt.detail) {
			t.Errorf("%s: got %+v, want %s of %s with %q", tt.query, got, tt.code, tt.parameter, tt.detail)
		}
	}
}

func tooMany() string {
	var names []string
	for i := range maxFilterValues + 1 {
		names = append(names, "a"+strings.Repeat("b", i%60)+strings.Repeat("c", i/60))
	}
	return strings.Join(names, ",")
}

// All errors are reported at once, sorted by parameter name.
func TestListQueryReportsAllErrors(t *testing.T) {
	_, problem := DeliveryList.Parse(parameters(t, "sort=x&page[size]=0&filter[state]=failed&filter[status]=done&filter[error]=dns"))
	var got []string
	for _, v := range problem.Validations {
		got = append(got, v.Parameter)
	}
	if want := []string{"filter[state]", "filter[status]", "page[size]", "sort"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Queries for the same rows in the same order have the same selection, whatever
// their page and spelling.
func TestSelection(t *testing.T) {
	selection := func(query string) string {
		q, problem := DeliveryList.Parse(parameters(t, query))
		if problem != nil {
			t.Fatal(problem)
		}
		return DeliveryList.Selection(&q)
	}
	want := selection("filter[status]=failed,retryable&page[size]=7&page[cursor]=x&sort=-created_at")
	if got := selection("filter.status[]=retryable&filter.status[]=failed"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, other := range []string{"", "filter[status]=failed", "filter[status]=failed,retryable&sort=created_at",
		"filter[status]=failed,retryable&filter[error]=dns", "filter[error]=dns"} {
		if got := selection(other); got == want {
			t.Errorf("%s: got selection %s", other, got)
		}
	}
}

func FuzzListQuery(f *testing.F) {
	for _, seed := range []string{
		"", "sort=-created_at&page[size]=3&page[cursor]=x", "filter[status]=failed,retryable&filter.error=dns",
		"filter[created_at.from]=2026-03-14&filter[created_at][to]=2026-03-14T08:24:48.644%2B02:00",
		"filter[url][]=https://a.example/,b&filter[active]=true",
		"filter[id]=0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5&filter[timestamp.to]=9999-12-31", "filter[response_status]=404,5xx",
		"page]size[=1&filter[][]=[].",
		"filter[created_at.to]=1000-01-01T00:00:00Z&page.number=2", "filter[url]=https://a.example/%FF",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		for name, l := range lists() {
			q, problem := l.Parse(values)
			if problem == nil {
				checkCanonical(t, l, &q)
				continue
			}
			if problem.Code != CodeInvalid || len(problem.Validations) == 0 || len(problem.Validations) > maxValidations {
				t.Errorf("%s: %+v", name, problem)
			}
			for _, v := range problem.Validations {
				if v.Code == "" || v.Detail == "" || v.Parameter == "" || len(v.Parameter) > 4*64+3 {
					t.Errorf("%s: %+v", name, v)
				}
			}
		}
	})
}
