package api

import (
	"fmt"
	"testing"

	"service/webhook"
)

// testedFilters is a filterTestRecord as a client reads it.
type testedFilters struct {
	Events []struct {
		Read, Matched    int
		NotMatched       int `json:"not_matched"`
		Complete         bool
		MatchedEvents    []filterValues `json:"matched_events"`
		NotMatchedEvents []filterValues `json:"not_matched_events"`
	}
}

type filterValues struct{ Values []webhook.FilterValue }

func TestFilterTests(t *testing.T) {
	s := start(t)
	for id := range 4 {
		wantStatus(t, "publish", s.send("POST", "/v2/events", fmt.Sprintf(`{"name":"content_updated","version":"1","content_id":%d}`, id)), 201)
	}
	body := func(filter, from string) string {
		return `{"events":[{"name":"content_updated","filter":` + filter + `}],"from":"` + from + `"}`
	}
	const below1 = `{"all":[{"path":"content_id","op":"lt","value":1}]}`
	r := s.send("POST", filterTestsPath, body(below1, "1999-01-01"))
	wantStatus(t, "test", r, 200)
	got := data[testedFilters](t, r).Events
	if len(got) != 1 || got[0].Read != 4 || got[0].Matched != 1 || got[0].NotMatched != 3 || !got[0].Complete ||
		len(got[0].MatchedEvents) != 1 || len(got[0].NotMatchedEvents) != 3 || string(got[0].MatchedEvents[0].Values[0].Value) != "0" {
		t.Errorf("got %+v", got)
	}
	r = s.send("POST", filterTestsPath, body("null", "1999-01-01"))
	if got := data[testedFilters](t, r).Events; got[0].Matched != 4 || len(got[0].MatchedEvents[0].Values) != 0 {
		t.Errorf("without a filter: got %+v", got)
	}
	for _, test := range []struct{ body, code, parameter string }{
		{body(`{"all":[{"path":"title","op":"eq","value":1}]}`, "1999-01-01"), "unknown_field", "events[0].filter.all[0].path"},
		{body(below1, "yesterday"), "invalid_format", "from"},
		{body(below1, "2999-01-01"), "invalid_value", "from"},
		{`{"events":[{"name":"content_updated"}]}`, "required", "from"},
		{`{"from":"1999-01-01"}`, "required", "events"},
		{`{"events":[{"name":"none"}],"from":"1999-01-01"}`, "unknown_event", "events[0].name"},
		{`{"events":[{"name":"content_updated"}],"from":"1999-01-01","limit":1}`, "unknown_field", "limit"},
	} {
		wantFault(t, test.body, s.send("POST", filterTestsPath, test.body), test.code, test.parameter)
	}
}
