package web

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"service/webhook"
)

// exportedDelivery is a delivery as a line of an export: the API record, and the result of its last
// attempt.
type exportedDelivery struct {
	ID              string             `json:"id"`
	ProgramID       string             `json:"program_id"`
	SubscriptionID  string             `json:"subscription_id"`
	SubscriptionURL string             `json:"subscription_url"` // without its query, which may hold a secret
	Status          string             `json:"status"`
	FailureReason   *string            `json:"failure_reason"`
	AttemptsMade    int                `json:"attempts_made"`
	MaxAttempts     int                `json:"max_attempts"`
	NextAttemptAt   *string            `json:"next_attempt_at"`
	ResponseStatus  *int               `json:"response_status"`
	Error           *string            `json:"error"`
	DurationMS      *int64             `json:"duration_ms"`
	Events          []webhook.EventRef `json:"events"`
	RedeliveryOf    *string            `json:"redelivery_of"`
	SplitOf         *string            `json:"split_of"`
	RecoveredAt     *string            `json:"recovered_at"`
	CreatedAt       string             `json:"created_at"`
	CompletedAt     *string            `json:"completed_at"`
}

func newExportedDelivery(d *deliveryRow) *exportedDelivery {
	_, _, whole := webhook.Endpoint(d.url)
	e := &exportedDelivery{
		ID: d.ID, ProgramID: d.ProgramID, SubscriptionID: d.SubscriptionID, SubscriptionURL: whole, Status: string(d.Status),
		FailureReason: webhook.OrNull(string(d.FailureReason)), AttemptsMade: d.AttemptsMade, MaxAttempts: webhook.MaxAttempts,
		Events: d.Events, RedeliveryOf: webhook.OrNull(d.RedeliveryOf), SplitOf: webhook.OrNull(d.SplitOf),
		CreatedAt: webhook.FormatTime(d.CreatedAt),
	}
	if !d.NextAttemptAt.IsZero() {
		e.NextAttemptAt = webhook.OrNull(webhook.FormatTime(d.NextAttemptAt))
	}
	if !d.RecoveredAt.IsZero() {
		e.RecoveredAt = webhook.OrNull(webhook.FormatTime(d.RecoveredAt))
	}
	if !d.CompletedAt.IsZero() {
		e.CompletedAt = webhook.OrNull(webhook.FormatTime(d.CompletedAt))
	}
	if d.last != nil {
		e.ResponseStatus, e.Error = webhook.OrNull(d.last.ResponseStatus), webhook.OrNull(string(d.last.Error))
		took := d.last.Duration.Milliseconds()
		e.DurationMS = &took
	}
	return e
}

var deliveryColumnNames = []string{
	"id", "program_id", "subscription_id", "subscription_url", "status", "failure_reason", "attempts_made", "next_attempt_at",
	"response_status", "error", "duration_ms", "events", "event_ids", "redelivery_of", "split_of", "recovered_at",
	"created_at", "completed_at",
}

func (e *exportedDelivery) cells() []string {
	var names, ids []string
	for _, ref := range e.Events {
		names, ids = append(names, ref.Name), append(ids, ref.ID)
	}
	text := func(v *string) string {
		if v == nil {
			return ""
		}
		return *v
	}
	number := func(v int64, known bool) string {
		if !known {
			return ""
		}
		return strconv.FormatInt(v, 10)
	}
	var status, took int64
	if e.ResponseStatus != nil {
		status = int64(*e.ResponseStatus)
	}
	if e.DurationMS != nil {
		took = *e.DurationMS
	}
	cells := []string{
		e.ID, e.ProgramID, e.SubscriptionID, e.SubscriptionURL, e.Status, text(e.FailureReason), strconv.Itoa(e.AttemptsMade),
		text(e.NextAttemptAt),
		number(status, e.ResponseStatus != nil), text(e.Error), number(took, e.DurationMS != nil),
		strings.Join(names, " "), strings.Join(ids, " "), text(e.RedeliveryOf), text(e.SplitOf), text(e.RecoveredAt),
		e.CreatedAt, text(e.CompletedAt),
	}
	for i, c := range cells {
		cells[i] = escapeFormula(c)
	}
	return cells
}

// escapeFormula prefixes a text that a spreadsheet would evaluate as a formula with an
// apostrophe.
func escapeFormula(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}

// export sends all matching deliveries as a file. It reads page by page to keep each read of the
// store short.
func (h *deliveryPages) export(r *request) (response, error) {
	v, err := r.listing(webhook.AllDeliveryList, "format")
	if err != nil {
		return response{}, err
	}
	if v.Error != nil {
		return response{}, &problem{status: http.StatusBadRequest, title: "The export failed", text: v.Error.Error()}
	}
	format := r.URL.Query().Get("format")
	types := map[string]string{"ndjson": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
	if types[format] == "" {
		return response{}, &problem{status: http.StatusBadRequest, title: "The export failed",
			text: "The parameter format must be ndjson or csv."}
	}
	q := *ofProgram(&v.Query, r.program)
	q.Size = 1 // an invalid query must fail before the file begins
	if _, _, err := h.store.Deliveries().PageAll(r.Context(), &q); errors.As(err, &v.Error) {
		return response{}, &problem{status: http.StatusBadRequest, title: "The export failed", text: v.Error.Error()}
	} else if err != nil {
		return response{}, err
	}
	q.Size = webhook.MaxPageSize
	file := &file{
		name:        "deliveries-" + r.clock.Now.UTC().Format("20060102-150405") + "." + format,
		contentType: types[format],
		write: func(to io.Writer) error {
			write := writeNDJSON(to)
			if format == "csv" {
				write = writeCSV(to)
			}
			for {
				page, next, err := h.store.Deliveries().PageAll(r.Context(), &q)
				if err != nil {
					return err
				}
				rows, err := h.deliveryRows(r.Context(), page)
				if err != nil {
					return err
				}
				if err := write(rows); err != nil {
					return err
				}
				if next == "" {
					return nil
				}
				q.Cursor = next
			}
		},
	}
	if r.Method == http.MethodHead {
		return response{file: file}, nil
	}
	detail := fmt.Sprintf("%s of %s", format, strings.TrimPrefix(v.Selection("/deliveries"), "/deliveries"))
	if err := h.audit(r, webhook.ActionDeliveryExport, r.program, "", detail); err != nil {
		return response{}, err
	}
	return response{file: file}, nil
}

func writeNDJSON(to io.Writer) func([]deliveryRow) error {
	return func(rows []deliveryRow) error {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		for i := range rows {
			if err := enc.Encode(newExportedDelivery(&rows[i])); err != nil {
				return err
			}
		}
		_, err := io.WriteString(to, b.String())
		return err
	}
}

func writeCSV(to io.Writer) func([]deliveryRow) error {
	c := csv.NewWriter(to)
	head := deliveryColumnNames
	return func(rows []deliveryRow) error {
		if head != nil {
			if err := c.Write(head); err != nil {
				return err
			}
			head = nil
		}
		for i := range rows {
			if err := c.Write(newExportedDelivery(&rows[i]).cells()); err != nil {
				return err
			}
		}
		c.Flush()
		return c.Error()
	}
}
