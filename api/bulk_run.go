package api

import (
	"net/http"
	"strings"

	"service/store"
	"service/webhook"
)

// bulkRunRecord is a bulk run in the API.
type bulkRunRecord struct {
	ID            string                   `json:"id"`
	Action        webhook.BulkAction       `json:"action"`
	Filter        map[string]string        `json:"filter"`
	Status        webhook.BulkStatus       `json:"status"`
	StoppedReason *string                  `json:"stopped_reason"`
	Total         *int                     `json:"total"` // null while it is counted
	Done          int                      `json:"done"`
	Skipped       map[webhook.BulkSkip]int `json:"skipped"`
	Waiting       int                      `json:"waiting_subscriptions"`
	Redeliveries  any                      `json:"redeliveries,omitzero"` // *bulkRunResults, nil for a cancellation; not in lists
	CreatedAt     timestamp                `json:"created_at"`
	CompletedAt   timestamp                `json:"completed_at"`
}

// bulkRunResults counts the redeliveries that a run has created, by status.
type bulkRunResults struct {
	Pending   int `json:"pending"`
	Retryable int `json:"retryable"`
	Success   int `json:"success"`
	Failed    int `json:"failed"`
}

// bulkRunCount is the result of a dry run.
type bulkRunCount struct {
	DryRun   bool                     `json:"dry_run"`
	Total    int                      `json:"total"`
	Done     int                      `json:"done"`
	Skipped  map[webhook.BulkSkip]int `json:"skipped"`
	Complete bool                     `json:"complete"`
}

// newBulkRunRecord returns the record of a run without its results, as in lists. The filter
// omits the program, which is the token's.
func newBulkRunRecord(r *webhook.BulkRun) bulkRunRecord {
	record := bulkRunRecord{
		ID: r.ID, Action: r.Action, Filter: make(map[string]string), Status: r.Status, Done: r.Done, Skipped: r.Skipped,
		Waiting: r.Waiting, CreatedAt: timestamp(r.CreatedAt), CompletedAt: timestamp(r.CompletedAt),
	}
	for name, values := range webhook.AllDeliveryList.Values(&r.Query) {
		if filter, ok := strings.CutPrefix(name, "filter["); ok && filter != "program_id]" {
			record.Filter[strings.TrimSuffix(filter, "]")] = strings.Join(values, ",")
		}
	}
	if r.Stopped != "" {
		record.StoppedReason = &r.Stopped
	}
	if r.Total >= 0 {
		record.Total = &r.Total
	}
	return record
}

// newWholeBulkRunRecord returns the record of a single run.
func newWholeBulkRunRecord(r *webhook.BulkRun) bulkRunRecord {
	record := newBulkRunRecord(r)
	var results *bulkRunResults
	if r.Action == webhook.BulkRedeliver {
		n := r.Results
		results = &bulkRunResults{n[webhook.StatusPending], n[webhook.StatusRetryable], n[webhook.StatusSuccess], n[webhook.StatusFailed]}
	}
	record.Redeliveries = results
	return record
}

func findBulkRun(req *request) error {
	r, err := req.api.store.BulkRuns().Get(req.ctx, req.program(), req.params.ByName("id"))
	req.bulkRun = &r
	return err
}

func listBulkRuns(req *request) (answer, error) {
	all, next, err := req.api.store.BulkRuns().Page(req.ctx, req.program(), &req.query)
	return listAnswer(all, newBulkRunRecord, newFeedMeta(&req.query, next), err)
}

// createBulkRun starts a bulk run, or with dry_run counts what it would do. The count is read
// before the write, because it may take seconds.
func createBulkRun(req *request) (answer, error) {
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	fields, invalid := webhook.ParseBulkRun(body, req.program())
	if invalid != nil {
		return answer{}, invalid
	}
	if fields.DryRun {
		plan, err := req.api.store.BulkRuns().DryRun(req.ctx, req.program(), fields.Action, &fields.Query)
		if err != nil {
			return answer{}, err
		}
		count := bulkRunCount{true, plan.Matched, plan.Done, plan.Skipped, plan.Complete}
		return req.create(func(store.Write) (answer, error) { return answer{data: count}, nil })
	}
	if err := req.api.store.BulkRuns().Check(req.ctx, &fields.Query); err != nil {
		return answer{}, err
	}
	return req.create(func(w store.Write) (answer, error) {
		r, err := w.BulkRuns().Create(&store.NewBulkRun{
			ID: webhook.NewID(), ProgramID: req.program(), Action: fields.Action, Query: &fields.Query, Audit: req.actor(),
		})
		return answer{status: http.StatusAccepted, location: "/v2/bulk_runs/" + r.ID, data: newWholeBulkRunRecord(&r)}, err
	})
}

func readBulkRun(req *request) (answer, error) {
	return answer{data: newWholeBulkRunRecord(req.bulkRun), tagged: true}, nil
}

// cancelBulkRun stops a running bulk run.
func cancelBulkRun(req *request) (answer, error) {
	err := req.api.store.Write(req.ctx, func(w store.Write) error {
		_, err := w.BulkRuns().Cancel(req.program(), req.bulkRun.ID, req.actor())
		return err
	})
	if err != nil {
		return answer{}, err
	}
	r, err := req.api.store.BulkRuns().Get(req.ctx, req.program(), req.bulkRun.ID)
	return answer{data: newWholeBulkRunRecord(&r)}, err
}
