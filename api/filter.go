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
			newFilterExamples(n.Passed), newFilterExamples(n.Excluded)}
	}
	return answer{data: r}, nil
}

func newFilterExamples(all []store.FilterExample) []filterExample {
	examples := make([]filterExample, len(all))
	for i := range all {
		values := all[i].Values
		if values == nil {
			values = []webhook.FilterValue{}
		}
		examples[i] = filterExample{all[i].ID, timestamp(all[i].ReceivedAt), values}
	}
	return examples
}
