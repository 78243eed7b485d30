package web

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// recentRuns is how many bulk runs the list shows.
const recentRuns = 100

var bulkRunColumns = []ui.Column{
	{Name: "Status", Class: "w-status"}, {Name: "Run"}, {Name: "Processed"}, {Name: "Started", Class: "w-age"}, {Name: "By"},
	{Name: "ID", Class: "w-copy"},
}

// bulkRunPages are the pages of bulk runs.
type bulkRunPages struct{ *site }

// bulkRunRecord is the data of a bulk run for its pages.
type bulkRunRecord struct {
	webhook.BulkRun
	verb      *bulkVerb
	selection [][2]string
	matching  string // the address of the deliveries that match its query
	curl      string
}

func (h *site) newBulkRunRecord(r *webhook.BulkRun) *bulkRunRecord {
	v := &ui.Listing{List: webhook.AllDeliveryList, Path: "/deliveries", Query: r.Query}
	return &bulkRunRecord{
		BulkRun: *r, verb: verbOf(r.Action), selection: selectionOf(v.List, &r.Query, ""), matching: v.Selection("/deliveries"),
		curl: h.curl.Command("GET", "/v2/bulk_runs/"+r.ID, ""),
	}
}

// state describes the progress of the run in one sentence.
func (b *bulkRunRecord) state() string {
	of := ""
	if b.Total >= 0 {
		of = " of " + ui.Number(int64(b.Total))
	}
	switch {
	case b.Status == webhook.BulkDone:
		return deliveriesOf(b.Done) + " " + b.verb.was + "."
	case b.Status == webhook.BulkCancelled:
		return "Cancelled after " + ui.Number(int64(b.Processed())) + of + " deliveries: " + ui.Number(int64(b.Done)) + " " + b.verb.was + "."
	case b.Total < 0:
		return "Counting matching deliveries…"
	}
	return ui.Number(int64(b.Processed())) + of + " deliveries processed, " + ui.Number(int64(b.Done)) + " " + b.verb.was + "."
}

// badge returns the state of the run for ui.StateBadge, and its word.
func (b *bulkRunRecord) badge() (state, word string) {
	switch {
	case b.Status == webhook.BulkDone:
		return "success", "done"
	case b.Status == webhook.BulkCancelled:
		return "failed", "cancelled"
	case b.Waiting > 0:
		return "retryable", "waiting"
	}
	return "pending", "running"
}

// by returns the admin or token that started the run.
func (b *bulkRunRecord) by() string {
	if b.Admin == "" {
		return " over the API."
	}
	return " by " + ui.Visible(b.Admin) + "."
}

// waitingText describes what the run waits for.
func (b *bulkRunRecord) waitingText() string {
	return "Waiting for " + webhook.Count(b.Waiting, "subscription") + ". At most " + ui.Number(webhook.MaxOpenRedeliveries) +
		" resent deliveries at a time per subscription; the run continues as they complete."
}

// created is the address of the deliveries that the run has created, narrowed to a status unless it
// is "".
func (b *bulkRunRecord) created(status webhook.Status) string {
	values := url.Values{"filter[bulk_run_id]": {b.ID}}
	if status != "" {
		values.Set("filter[status]", string(status))
	}
	return ui.Address("/deliveries", values)
}

// version changes whenever the content of the page changes.
func (b *bulkRunRecord) version() string {
	return fmt.Sprintf("%s-%d-%d-%d-%v", b.Status, b.Total, b.Processed(), b.Waiting, b.Results)
}

// open reports whether the run or a delivery that it created is still in progress.
func (b *bulkRunRecord) open() bool {
	return b.Status == webhook.BulkRunning || b.Results[webhook.StatusPending]+b.Results[webhook.StatusRetryable] > 0
}

// bulkResults are the statuses by which resent deliveries are counted, with their display names.
var bulkResults = [...]struct {
	status webhook.Status
	word   string
}{
	{webhook.StatusSuccess, "succeeded"}, {webhook.StatusFailed, "failed"}, {webhook.StatusRetryable, "retrying"},
	{webhook.StatusPending, "pending"},
}

func (h *bulkRunPages) read(r *request) (*bulkRunRecord, error) {
	run, err := h.store.BulkRuns().Get(r.Context(), "", r.PathValue("id"))
	if err != nil {
		return nil, asProblem(err)
	}
	return h.newBulkRunRecord(&run), nil
}

func (h *bulkRunPages) show(r *request, b *bulkRunRecord) (response, error) {
	f := h.frame(r, b.verb.title+" deliveries")
	f.Section = "/deliveries"
	if b.open() {
		f.Live = &ui.Live{Stream: runPath(b.ID) + "/stream", From: b.version(), Page: f.Address, Noun: "delivery"}
	}
	return response{page: bulkRunPage(f, b)}, nil
}

// stream keeps the run page up to date.
func (h *bulkRunPages) stream(r *request, b *bulkRunRecord) (response, error) {
	return response{stream: func(s *stream) error { return h.follow(s, r, b) }}, nil
}

// follow sends the run page after each change.
func (h *bulkRunPages) follow(s *stream, r *request, b *bulkRunRecord) error {
	f := h.frame(r, "")
	var took time.Duration // how long the last read took
	for shown := s.lastID; ; {
		if is := b.version(); is != shown {
			f.Clock.Now = time.Now()
			if err := s.send(is, bulkRunPart(f, b)); err != nil {
				return err
			}
			shown = is
		} else if time.Since(s.wroteAt) > streamIdle {
			if err := s.idle(); err != nil {
				return err
			}
		}
		if !b.open() {
			return s.await(nil, nil)
		}
		// A run changes many times per second, and counting its results is slow.
		if err := s.pause(max(livePace, 20*took)); err != nil {
			return err
		}
		began := time.Now()
		var err error
		if b, err = h.read(r); err != nil {
			return err
		}
		took = time.Since(began)
	}
}

// cancel cancels a run.
func (h *bulkRunPages) cancel(r *request) (response, error) {
	id := r.PathValue("id")
	err := h.store.Write(r, func(w store.Write) error {
		_, err := w.BulkRuns().Cancel("", id, r.actor())
		return err
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	return done(runPath(id), "Run cancelled. Deliveries that it already processed are not reverted.")
}

// list shows the newest runs.
func (h *bulkRunPages) list(r *request) (response, error) {
	runs, err := h.store.BulkRuns().Recent(r.Context(), r.program, recentRuns)
	if err != nil {
		return response{}, err
	}
	f := h.frame(r, "Bulk runs")
	f.Section = "/deliveries"
	all := make([]*bulkRunRecord, len(runs))
	for i := range runs {
		all[i] = h.newBulkRunRecord(&runs[i])
	}
	return response{page: bulkRunsPage(f, all)}, nil
}

// processed formats the number of deliveries that the run has processed, and the total.
func (b *bulkRunRecord) processed() string {
	if b.Total < 0 {
		return "counting…"
	}
	return ui.Number(int64(b.Processed())) + " of " + ui.Number(int64(b.Total))
}

func (b *bulkRunRecord) percent() string {
	return strconv.Itoa(b.Processed() * 100 / max(b.Total, 1))
}
