package ui

import (
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// Each active filter can be removed individually.
func TestChips(t *testing.T) {
	v := parsed(t, Clock{Now: now}, webhook.AllDeliveryList,
		"/deliveries?program=acme&filter[status]=failed&filter[event]=content_updated,user_created"+
			"&filter[response_status]=4xx&filter[created_at.from]=2026-03-01T00:00:00Z&page[cursor]=abc&sort=-created_at")
	if v.Error != nil {
		t.Fatal(v.Error)
	}
	got := v.chips(Frame{Clock: Clock{Now: now}, Program: "acme"})
	keep := "filter[created_at.from]=2026-03-01T00%3A00%3A00Z&"
	for i, want := range []chip{
		{"Event type: content_updated", "/deliveries?" + keep +
			"filter[event]=user_created&filter[response_status]=4xx&filter[status]=failed&program=acme&sort=-created_at"},
		{"Event type: user_created", "/deliveries?" + keep +
			"filter[event]=content_updated&filter[response_status]=4xx&filter[status]=failed&program=acme&sort=-created_at"},
		{"Created from 2026-03-01 00:00:00",
			"/deliveries?filter[event]=content_updated%2Cuser_created&filter[response_status]=4xx&filter[status]=failed" +
				"&program=acme&sort=-created_at"},
	} {
		if i >= len(got) || got[i] != want {
			t.Errorf("%d: got %+v, want %+v", i, got, want)
		}
	}
	if len(got) != 3 {
		t.Errorf("got %d chips", len(got))
	}
	for want, r := range map[string][2]time.Time{
		" from 04:06:07 to 05:06:07":                       {now.Add(-time.Hour), now},
		" from 2026-03-03 05:06:07 to 2026-03-04 05:06:07": {now.Add(-24 * time.Hour), now},
		" from 2026-03-04 05:06:07 to 2026-03-05 05:06:07": {now, now.Add(24 * time.Hour)},
		" to 2026-03-03 05:06:07":                          {{}, now.Add(-24 * time.Hour)},
	} {
		if got := (Clock{Now: now}).shortRange(r[0], r[1]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	timeout, rejected := responseClass{"error", "timeout", "Timeout"}, responseClasses[2]
	if !v.responseIs(rejected) || v.responseIs(timeout) {
		t.Error("the class of responses is not 4xx")
	}
	for _, tt := range []struct{ name, got, want string }{
		{"timeouts", v.toggleResponse(timeout), "/deliveries?" + keep + "filter[error]=timeout" +
			"&filter[event]=content_updated%2Cuser_created&filter[status]=failed&program=acme&sort=-created_at"},
		{"any response", v.toggleResponse(rejected), "/deliveries?" + keep +
			"filter[event]=content_updated%2Cuser_created&filter[status]=failed&program=acme&sort=-created_at"},
		{"another time", v.WithTime("a", "b"), "/deliveries?filter[created_at.from]=a&filter[created_at.to]=b" +
			"&filter[event]=content_updated%2Cuser_created&filter[response_status]=4xx&filter[status]=failed&program=acme&sort=-created_at"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, tt.got, tt.want)
		}
	}
}

// A custom time range belongs to the time control, and not to the other filters.
func TestCustomRange(t *testing.T) {
	const field = `name="filter[created_at.from]"`
	for query, open := range map[string]bool{"": false, "?span=24h": false, "?filter[created_at.from]=2026-03-01T00:00:00Z": false,
		"?filter[created_at.from]=never": true} {
		v := parsed(t, Clock{Now: now}, webhook.DeliveryList, "/deliveries"+query)
		text := rendered(t, FilterBar(Frame{Clock: Clock{Now: now}}, v))
		_, custom, _ := strings.Cut(text, `<details class="drop" name="filter"`)
		custom, rest, _ := strings.Cut(custom, "</details>")
		if !strings.Contains(custom, "Custom") || !strings.Contains(custom, field) || strings.Contains(rest, field) {
			t.Errorf("%q: the fields are not in the time control:\n%s", query, text)
		}
		if got := strings.HasPrefix(custom, " open"); got != open {
			t.Errorf("%q: open is %v, want %v", query, got, open)
		}
		if got, want := strings.Contains(custom, `class="count"`), strings.Contains(query, "created_at"); got != want {
			t.Errorf("%q: set is %v, want %v", query, got, want)
		}
	}
}
