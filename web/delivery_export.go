package web

import (
	"strings"

	"service/webhook"
)

// exportedEvents are the events of a delivery in an export: objects, or in a table their names.
type exportedEvents []webhook.EventRef

func (e exportedEvents) String() string {
	names := make([]string, len(e))
	for i := range e {
		names[i] = e[i].Name
	}
	return strings.Join(names, " ")
}

// exportedDelivery is a delivery as a row of an export: the API record, and the result of its last attempt.
func exportedDelivery(d *deliveryRow) []any {
	_, _, whole := webhook.Endpoint(d.url) // without its query, which may hold a secret
	var status, code, took any
	if d.last != nil {
		status, code, took = orNull(d.last.ResponseStatus), orNull(string(d.last.Error)), d.last.Duration.Milliseconds()
	}
	ids := make([]string, len(d.Events))
	for i := range d.Events {
		ids[i] = d.Events[i].ID
	}
	return []any{
		d.ID, d.ProgramID, d.SubscriptionID, whole, string(d.Status), orNull(string(d.FailureReason)), d.AttemptsMade, webhook.MaxAttempts,
		d.NextAttemptAt, status, code, took, exportedEvents(d.Events), ids, orNull(d.RedeliveryOf), orNull(d.SplitOf), d.RecoveredAt,
		d.CreatedAt, d.CompletedAt,
	}
}

// export sends all matching deliveries as a file.
func (h *deliveryPages) export(r *request) (response, error) {
	return h.exportList(r, webhook.AllDeliveryList, &export{
		noun: "deliveries", action: webhook.ActionDeliveryExport,
		columns: []string{
			"id", "program_id", "subscription_id", "subscription_url", "status", "failure_reason", "attempts_made", "max_attempts",
			"next_attempt_at", "response_status", "error", "duration_ms", "events", "event_ids", "redelivery_of", "split_of", "recovered_at",
			"created_at", "completed_at",
		},
		only: map[string]string{"max_attempts": "ndjson", "event_ids": "csv"},
		check: func(q *webhook.ListQuery) error {
			first := *ofProgram(q, r.program)
			first.Size = 1
			_, _, err := h.store.Deliveries().PageAll(r.Context(), &first)
			return err
		},
		page: func(q *webhook.ListQuery) (rows [][]any, more bool, err error) {
			page, next, err := h.store.Deliveries().PageAll(r.Context(), ofProgram(q, r.program))
			if err != nil {
				return nil, false, err
			}
			deliveries, err := h.deliveryRows(r.Context(), page)
			for i := range deliveries {
				rows = append(rows, exportedDelivery(&deliveries[i]))
			}
			q.Cursor = next
			return rows, next != "", err
		},
	})
}
