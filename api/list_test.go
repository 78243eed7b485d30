package api

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"service/webhook"
)

// Every documented parameter of a list is accepted, and rejects invalid values by name.
func TestListParameters(t *testing.T) {
	s := start(t)
	i := s.records()
	good := map[webhook.FilterKind]string{
		webhook.FilterEvent: "content_updated,ping", webhook.FilterID: i.event, webhook.FilterURL: "https://partner.example/hook",
		webhook.FilterResponseStatus: "200,5xx", webhook.FilterTime: "2026-03-14",
		webhook.FilterText: "partner", webhook.FilterAtLeast: "2",
	}
	lists := 0
	for _, rt := range routes() {
		l := rt.query.list
		if l == nil {
			continue
		}
		lists++
		get := func(query string) response { return s.as(&rt).send("GET", i.path(&rt)+"?"+query, "") }
		for _, f := range l.Filters {
			value := good[f.Kind]
			if f.Kind == webhook.FilterOneOf {
				value = strings.Join(f.Values, ",")
			}
			bad, code := "%00", "invalid_format"
			switch f.Kind {
			case webhook.FilterOneOf, webhook.FilterAtLeast:
				code = "invalid_value"
			case webhook.FilterText:
				bad = ""
			}
			for name, parameter := range filterNames(f) {
				wantStatus(t, rt.pattern+"?"+name+"="+value, get(name+"="+url.QueryEscape(value)), 200)
				wantFault(t, rt.pattern+"?"+name, get(name+"="+bad), code, parameter)
			}
		}
		for _, field := range l.Sort {
			wantStatus(t, rt.pattern+"?sort="+field, get("sort="+field), 200)
			wantStatus(t, rt.pattern+"?sort=-"+field, get("sort=-"+field), 200)
		}
		if l.Sort == nil {
			wantFault(t, rt.pattern+" by a field", get("sort=received_at"), "unknown_field", "sort")
			continue
		}
		wantStatus(t, rt.pattern+" by every field", get("sort=-"+strings.Join(l.Sort, ",")), 200)
		wantFault(t, rt.pattern+" by another field", get("sort="+l.Sort[0]+",colour"), "invalid_value", "sort")
	}
	if lists != 12 {
		t.Errorf("%d routes have lists, want 12", lists)
	}
}

// filterNames returns the names under which a request can give a filter, each
// with the name that an error gives it.
func filterNames(f webhook.Filter) map[string]string {
	name := f.Name
	if f.Kind == webhook.FilterTime {
		return map[string]string{
			"filter[" + name + ".from]": "filter[" + name + ".from]",
			"filter[" + name + "][to]":  "filter[" + name + ".to]",
			"filter." + name + ".from":  "filter[" + name + ".from]",
		}
	}
	return map[string]string{"filter[" + name + "]": "filter[" + name + "]", "filter." + name: "filter[" + name + "]"}
}

// A page of a filtered list contains the matching rows in the requested order, and its
// totals and cursors apply to them.
func TestFilteredPages(t *testing.T) {
	s := start(t)
	var ids []string
	for n := range 7 {
		name := "content_updated"
		if n%2 == 1 {
			name = "content_deleted"
		}
		ids = append(ids, s.subscribe(name))
	}
	type page struct {
		Data []identified
		Meta struct {
			Pagination struct {
				Next       *string
				Number     int `json:"page_number"`
				TotalCount int `json:"total_count"`
				TotalPages int `json:"total_pages"`
			}
		}
	}
	var got page
	decode(t, s.send("GET", "/v2/webhooks/subscriptions?filter[event]=content_updated&sort=-created_at&page[size]=3&page[number]=2", ""), &got)
	if p := got.Meta.Pagination; len(got.Data) != 1 || got.Data[0].ID != ids[0] || p.TotalCount != 4 || p.TotalPages != 2 || p.Number != 2 {
		t.Errorf("got %+v, want only the first of 4 subscriptions", got)
	}
	decode(t, s.send("GET", "/v2/webhooks/subscriptions?filter[event]=content_updated&page[size]=3&page[number]=3", ""), &got)
	if p := got.Meta.Pagination; len(got.Data) != 0 || p.TotalCount != 4 || p.TotalPages != 2 || p.Number != 3 {
		t.Errorf("beyond the last page: got %+v, want nothing of 4", got)
	}

	// A filtered feed, to its end.
	s.deliver(200, webhook.ErrorNone) // the pings
	for range 5 {
		s.publishOne()
		s.deliver(404, webhook.ErrorNone)
	}
	target := "/v2/webhooks/subscriptions/" + ids[0] + "/deliveries"
	all := data[[]identified](t, s.send("GET", target, ""))
	if len(all) != 6 {
		t.Fatalf("got %d deliveries, want the ping and 5", len(all))
	}
	for _, test := range []struct {
		query string
		want  []identified
	}{
		{"filter[response_status]=4xx", all[:5]},
		{"filter[response_status]=2xx", all[5:]},
		{"filter[status]=failed&filter[event]=content_updated", all[:5]},
		{"filter[event]=ping", all[5:]},
		{"filter[status]=success,failed", all},
		{"filter[status]=success,failed&sort=-created_at", all},
		{"filter[error]=timeout", nil},
	} {
		var read []identified
		for cursor := "-"; cursor != ""; {
			next := fmt.Sprint(target, "?page[size]=2&", test.query)
			if cursor != "-" {
				next += "&page[cursor]=" + cursor
			}
			got = page{}
			decode(t, s.send("GET", next, ""), &got)
			read = append(read, got.Data...)
			if cursor = ""; got.Meta.Pagination.Next != nil {
				cursor = *got.Meta.Pagination.Next
			}
		}
		if !slices.Equal(read, test.want) {
			t.Errorf("%s: read %v, want %v", test.query, read, test.want)
		}
	}
}
