package web

import (
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"service/webhook"
)

// ask is a request of a visitor whose clock is aNow.
func ask(t *testing.T, target string) *request {
	t.Helper()
	path, query, _ := cutQuery(target)
	r := httptest.NewRequest("GET", path, nil)
	r.URL.RawQuery = query
	return &request{Request: r, clock: clock{now: aNow}}
}

func cutQuery(target string) (path, query string, ok bool) {
	u, err := url.Parse(target)
	if err != nil {
		return target, "", false
	}
	return u.Path, u.RawQuery, true
}

func (r *request) mustList(t *testing.T, l *webhook.List) *listing {
	t.Helper()
	v, err := r.listing(l)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestListing(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err) // the binary brings its own
	}
	list := webhook.DeliveryList
	for _, tt := range []struct {
		query string
		want  string // what the list is asked for, in the API's own words
		fault string // the parameter that is wrong
		page  string // the address of the page at the cursor c
	}{
		{"", "", "", "/deliveries?page[cursor]=c"},
		{"filter[status]=&sort=&page[size]=&filter[event]=+&program=", "", "", "/deliveries?page[cursor]=c"},
		{"program=acme", "", "", "/deliveries?page[cursor]=c&program=acme"},
		{"filter[status]=failed&filter[status]=pending", "filter[status]=failed,pending", "", "/deliveries?filter[status]=failed%2Cpending&page[cursor]=c"},
		{"filter[status][]=failed", "filter[status]=failed", "", "/deliveries?filter[status]=failed&page[cursor]=c"},
		{"span=24h", "filter[created_at.from]=2026-03-03T05:06:07.089Z", "", "/deliveries?filter[created_at.from]=2026-03-03T05%3A06%3A07.089Z&page[cursor]=c"},
		{"span=24h&filter[created_at.to]=2026-01-01", "filter[created_at.from]=2026-03-03T05:06:07.089Z", "", ""},
		{"span=2d", "", "span", ""},
		{"filter[created_at.from]=2026-03-04T01:00", "filter[created_at.from]=2026-03-04T00:00:00.000Z", "", ""},
		{"filter[created_at][from]=2026-03-04T01:00:30", "", "filter[created_at.from]", ""}, // not as our own form spells it: read as the API does
		{"filter[created_at.to]=2026-03-04T00:00:00Z", "filter[created_at.to]=2026-03-04T00:00:00.000Z", "", ""},
		{"filter[stauts]=failed", "", "filter[stauts]", ""},
		{"page[number]=2", "", "page[number]", ""},
	} {
		r := ask(t, "/deliveries?"+tt.query)
		r.clock.zone = berlin
		v := r.mustList(t, list)
		if (v.fault != nil) != (tt.fault != "") || v.fault != nil && v.fault.Validations[0].Parameter != tt.fault {
			t.Errorf("%s: the fault is %v, want one of %q", tt.query, v.fault, tt.fault)
			continue
		}
		if v.fault != nil {
			continue
		}
		if got, _ := url.QueryUnescape(list.Selection(&v.query)); got != tt.want {
			t.Errorf("%s: asks for %q, want %q", tt.query, got, tt.want)
		}
		if got := v.page("c", 1); tt.page != "" && got != tt.page {
			t.Errorf("%s: the page at the cursor is %s, want %s", tt.query, got, tt.page)
		}
	}
	if _, err := ask(t, "/deliveries?page[size]=%zz").listing(list); err == nil {
		t.Error("an escape that is not valid is read")
	}
}

func TestAddressesOfAList(t *testing.T) {
	v := ask(t, "/deliveries?program=acme&filter[status]=failed&page[cursor]=abc&span=1h&sort=created_at").mustList(t, webhook.DeliveryList)
	for _, tt := range []struct{ name, got, want string }{
		{"clear", v.clear(), "/deliveries?program=acme&sort=created_at"},
		{"another status", v.with("filter[status]", "success"), "/deliveries?filter[status]=success&program=acme&sort=created_at&span=1h"},
		{"no span", v.with(spanParameter), "/deliveries?filter[status]=failed&program=acme&sort=created_at"},
		{"another span", v.withSpan("7d"), "/deliveries?filter[status]=failed&program=acme&sort=created_at&span=7d"},
		{"the subscriptions of a program", inProgram("/subscriptions", "a b"), "/subscriptions?program=a+b"},
		{"an event", eventPath("a/b", "1"), "/events/a%2Fb/1"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, tt.got, tt.want)
		}
	}
}

func TestPagesOfAList(t *testing.T) {
	for _, tt := range []struct {
		query   string
		total   int
		shown   string
		numbers int
		older   string
	}{
		{"", 0, "none", 0, ""},
		{"", 25, "1 to 25 of 25", 0, ""},
		{"", 26, "1 to 25 of 26", 2, "/subscriptions?page[number]=2"},
		{"page[number]=2", 26, "26 to 26 of 26", 2, ""},
		{"page[number]=50", 2500, "1,226 to 1,250 of 2,500", 7, "/subscriptions?page[number]=51"},
		{"page[number]=9", 26, "none", 2, ""},
	} {
		p := ask(t, "/subscriptions?"+tt.query).mustList(t, webhook.SubscriptionList).pages(tt.total)
		if p.shown != tt.shown || len(p.numbers) != tt.numbers || p.older != tt.older {
			t.Errorf("%q of %d: got %q, %d numbers, older %q; want %q, %d, %q", tt.query, tt.total, p.shown, len(p.numbers), p.older, tt.shown, tt.numbers, tt.older)
		}
	}
}
