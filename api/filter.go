package api

import (
	"time"

	"service/store"
	"service/webhook"
)

const filterTestsPath = "/v2/webhooks/filter_tests"

// filterTestRecord is the result of running filters over stored events.
type filterTestRecord struct {
	Events []filterTestEvent `json:"events"`
}

type filterTestEvent struct {
	Name             string          `json:"name"`
	Read             int64           `json:"read"`
	Matched          int64           `json:"matched"`
	NotMatched       int64           `json:"not_matched"`
	Complete         bool            `json:"complete"`
	MatchedEvents    []filterExample `json:"matched_events"`
	NotMatchedEvents []filterExample `json:"not_matched_events"`
}

type filterExample struct {
	ID         string                `json:"id"`
	ReceivedAt timestamp             `json:"received_at"`
	Values     []webhook.FilterValue `json:"values"`
}

// testFilters runs filters over stored events.
func testFilters(req *request) (answer, error) {
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	test, invalid := req.api.rules.Catalog.ParseFilterTest(body, time.Now())
	if invalid != nil {
		return answer{}, invalid
	}
	counts, err := req.api.store.Events().RunFilterTest(req.ctx, req.program(), &test)
	if err != nil {
		return answer{}, err
	}
	r := filterTestRecord{make([]filterTestEvent, len(counts))}
	for i := range counts {
		n := &counts[i]
		r.Events[i] = filterTestEvent{test.Events[i], n.Read, n.Matched, n.Read - n.Matched, n.Complete,
			recordsOf(n.Passed, newFilterExample), recordsOf(n.Excluded, newFilterExample)}
	}
	return answer{data: r}, nil
}

func newFilterExample(e *store.FilterExample) filterExample {
	values := append([]webhook.FilterValue{}, e.Values...) // never null
	return filterExample{e.ID, timestamp(e.ReceivedAt), values}
}
