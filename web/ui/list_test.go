package ui

import (
	"net/url"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/a-h/templ"

	"service/webhook"
)

// parsed returns the listing of an address.
func parsed(t *testing.T, c Clock, l *webhook.List, target string) *Listing {
	t.Helper()
	path, query, _ := strings.Cut(target, "?")
	v, err := ParseListing(&url.URL{Path: path, RawQuery: query}, c, l)
	must(t, err)
	return v
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rendered returns the text of a component.
func rendered(t *testing.T, c templ.Component) string {
	t.Helper()
	var b strings.Builder
	must(t, c.Render(t.Context(), &b))
	return b.String()
}

func TestListing(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err) // the binary embeds the time zones
	list := webhook.DeliveryList
	for _, tt := range []struct {
		query string
		want  string // the query in API terms
		fault string // the invalid parameter
		page  string // the address of the page at the cursor c
	}{
		{"", "", "", "/deliveries?page[cursor]=c"},
		{"filter[status]=&sort=&page[size]=&filter[event]=+&program=", "", "", "/deliveries?page[cursor]=c"},
		{"program=acme", "", "", "/deliveries?page[cursor]=c&program=acme"},
		{"filter[status]=failed&filter[status]=pending", "filter[status]=failed,pending", "",
			"/deliveries?filter[status]=failed%2Cpending&page[cursor]=c"},
		{"filter[status][]=failed", "filter[status]=failed", "", "/deliveries?filter[status]=failed&page[cursor]=c"},
		{"span=24h", "filter[created_at.from]=2026-03-03T05:06:07.089Z", "",
			"/deliveries?filter[created_at.from]=2026-03-03T05%3A06%3A07.089Z&page[cursor]=c"},
		{"span=24h&filter[created_at.to]=2026-03-01T01:00", "filter[created_at.to]=2026-03-01T00:00:00.000Z", "", ""},
		{"span=24h&filter[created_at.from]=&filter[created_at.to]=", "filter[created_at.from]=2026-03-03T05:06:07.089Z", "", ""},
		{"span=2d", "", "span", ""},
		{"filter[created_at.from]=2026-03-04T01:00", "filter[created_at.from]=2026-03-04T00:00:00.000Z", "", ""},
		// not in our own form's spelling: parsed like the API does
		{"filter[created_at][from]=2026-03-04T01:00:30", "", "filter[created_at.from]", ""},
		{"filter[created_at.to]=2026-03-04T00:00:00Z", "filter[created_at.to]=2026-03-04T00:00:00.000Z", "", ""},
		{"filter[stauts]=failed", "", "filter[stauts]", ""},
		{"page[number]=2", "", "page[number]", ""},
	} {
		v := parsed(t, Clock{Now: now, Zone: berlin}, list, "/deliveries?"+tt.query)
		if (v.Error != nil) != (tt.fault != "") || v.Error != nil && v.Error.Validations[0].Parameter != tt.fault {
			t.Errorf("%s: the fault is %v, want one of %q", tt.query, v.Error, tt.fault)
			continue
		}
		if v.Error != nil {
			continue
		}
		if got, _ := url.QueryUnescape(list.Selection(&v.Query)); got != tt.want {
			t.Errorf("%s: asks for %q, want %q", tt.query, got, tt.want)
		}
		if got := v.PageAddress("c", 1); tt.page != "" && got != tt.page {
			t.Errorf("%s: the page at the cursor is %s, want %s", tt.query, got, tt.page)
		}
	}
	if _, err := ParseListing(&url.URL{Path: "/deliveries", RawQuery: "page[size]=%zz"}, Clock{}, list); err == nil {
		t.Error("an escape that is not valid is read")
	}
}

func TestAddressesOfAList(t *testing.T) {
	v := parsed(t, Clock{Now: now}, webhook.DeliveryList,
		"/deliveries?program=acme&filter[status]=failed&page[cursor]=abc&span=1h&sort=created_at")
	for _, tt := range []struct{ name, got, want string }{
		{"clear", v.WithoutFilters(), "/deliveries?program=acme&sort=created_at"},
		{"another status", v.With("filter[status]", "success"), "/deliveries?filter[status]=success&program=acme&sort=created_at&span=1h"},
		{"no span", v.With(SpanParameter), "/deliveries?filter[status]=failed&program=acme&sort=created_at"},
		{"another span", v.withSpan("7d"), "/deliveries?filter[status]=failed&program=acme&sort=created_at&span=7d"},
		{"the subscriptions of a program", InProgram("/subscriptions", "a b"), "/subscriptions?program=a+b"},
		{"the failing subscriptions of a program", InProgram("/subscriptions?filter[status]=failing", "a b"),
			"/subscriptions?filter[status]=failing&program=a+b"},
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
		p := parsed(t, Clock{Now: now}, webhook.SubscriptionList, "/subscriptions?"+tt.query).Pages(tt.total)
		if p.Shown != tt.shown || len(p.numbers) != tt.numbers || p.Older != tt.older {
			t.Errorf("%q of %d: got %q, %d numbers, older %q; want %q, %d, %q", tt.query, tt.total, p.Shown, len(p.numbers), p.Older, tt.shown,
				tt.numbers, tt.older)
		}
	}
}

// A list that is read day by day offers days in the visitor's zone, and shows today by default.
func TestDailyListing(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	must(t, err)
	clock := Clock{Now: time.Date(2026, 3, 29, 23, 30, 0, 0, time.UTC), Zone: berlin} // 01:30 of the day after the clocks changed
	for _, tt := range []struct{ query, want, fault string }{
		{"", "filter[received_at.from]=2026-03-29T22:00:00.000Z", ""},
		{"span=today", "filter[received_at.from]=2026-03-29T22:00:00.000Z", ""},
		{"span=yesterday", "filter[received_at.from]=2026-03-28T23:00:00.000Z&filter[received_at.to]=2026-03-29T21:59:59.999Z", ""},
		{"span=7d&filter[status]=failed", "filter[received_at.from]=2026-03-22T23:30:00.000Z&filter[status]=failed", ""},
		{"filter[received_at.to]=2026-03-01", "filter[received_at.to]=2026-03-01T23:59:59.999Z", ""},
		{"span=1h", "", "The time range must be Today, Yesterday or 7 d."},
	} {
		v := parsed(t, clock, webhook.ReconciliationList, "/reconciliation?"+tt.query)
		if tt.fault != "" {
			if v.Error == nil || v.fieldErrors()[0].Text != tt.fault {
				t.Errorf("%s: got %v, want %s", tt.query, v.Error, tt.fault)
			}
			continue
		}
		got, err := url.QueryUnescape(webhook.ReconciliationList.Values(&v.Query).Encode())
		if err != nil || got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.query, got, tt.want)
		}
		if filtered := tt.query != "" && tt.query != "span=today"; v.Filtered() != filtered {
			t.Errorf("%s: filtered is %v", tt.query, v.Filtered())
		}
	}
}
