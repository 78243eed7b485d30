package api

import (
	"maps"
	"net/http"

	"service/store"
	"service/webhook"
)

// deliveryRecord is a delivery in the API.
type deliveryRecord struct {
	ID             string             `json:"id"`
	SubscriptionID string             `json:"subscription_id"`
	ProgramID      string             `json:"program_id"`
	Status         webhook.Status     `json:"status"`
	FailureReason  *string            `json:"failure_reason"`
	AttemptsMade   int                `json:"attempts_made"`
	MaxAttempts    int                `json:"max_attempts"`
	NextAttemptAt  timestamp          `json:"next_attempt_at"`
	Events         []webhook.EventRef `json:"events"`
	RedeliveryOf   *string            `json:"redelivery_of"`
	SplitOf        *string            `json:"split_of"`
	RecoveredAt    timestamp          `json:"recovered_at"`
	CreatedAt      timestamp          `json:"created_at"`
	CompletedAt    timestamp          `json:"completed_at"`
	Attempts       []attemptRecord    `json:"attempts,omitzero"` // only if read individually
}

func newDeliveryRecord(d *webhook.Delivery) deliveryRecord {
	return deliveryRecord{
		ID: d.ID, SubscriptionID: d.SubscriptionID, ProgramID: d.ProgramID,
		Status: d.Status, FailureReason: webhook.OrNull(string(d.FailureReason)),
		AttemptsMade: d.AttemptsMade, MaxAttempts: webhook.MaxAttempts, NextAttemptAt: timestamp(d.NextAttemptAt),
		Events: d.Events, RedeliveryOf: webhook.OrNull(d.RedeliveryOf), SplitOf: webhook.OrNull(d.SplitOf), RecoveredAt: timestamp(d.RecoveredAt),
		CreatedAt: timestamp(d.CreatedAt), CompletedAt: timestamp(d.CompletedAt),
	}
}

func findDelivery(req *request) error {
	d, err := req.api.store.Deliveries().Get(req.ctx, req.program(), req.params.ByName("id"), req.params.ByName("delivery_id"))
	req.delivery = &d
	return err
}

func listDeliveries(req *request) (answer, error) {
	deliveries, next, err := req.api.store.Deliveries().Page(req.ctx, req.program(), req.subscription.ID, &req.query)
	return listAnswer(deliveries, newDeliveryRecord, newFeedMeta(&req.query, next), err)
}

// listProgramDeliveries lists the deliveries of all subscriptions.
func listProgramDeliveries(req *request) (answer, error) {
	deliveries, next, err := req.api.store.Deliveries().PageProgram(req.ctx, req.program(), &req.query)
	return listAnswer(deliveries, newDeliveryRecord, newFeedMeta(&req.query, next), err)
}

// listEventDeliveries lists the deliveries that carry an event.
func listEventDeliveries(req *request) (answer, error) {
	query := req.query
	query.Filters = maps.Clone(query.Filters)
	if query.Filters == nil {
		query.Filters = make(map[string][]string, 1)
	}
	query.Filters["event_id"] = []string{req.event.ID}
	deliveries, next, err := req.api.store.Deliveries().PageProgram(req.ctx, req.program(), &query)
	return listAnswer(deliveries, newDeliveryRecord, newFeedMeta(&req.query, next), err)
}

func readDelivery(req *request) (answer, error) {
	return answer{data: newWholeDeliveryRecord(req.delivery), tagged: true}, nil
}

// newWholeDeliveryRecord returns the record of a single delivery, with its attempts.
func newWholeDeliveryRecord(d *webhook.Delivery) deliveryRecord {
	r := newDeliveryRecord(d)
	r.Attempts = recordsOf(d.Attempts, newAttemptRecord)
	return r
}

// cancelDelivery ends a delivery that is waiting for an attempt. The store returns a conflict if the
// delivery is in flight or completed.
func cancelDelivery(req *request) (answer, error) {
	subscription, id := req.delivery.SubscriptionID, req.delivery.ID
	err := req.api.store.Write(req.ctx, func(w store.Write) error {
		return w.Deliveries().Cancel(req.program(), subscription, id, req.actor())
	})
	if err != nil {
		return answer{}, err
	}
	d, err := req.api.store.Deliveries().Get(req.ctx, req.program(), subscription, id)
	return answer{data: newWholeDeliveryRecord(&d)}, err
}

// redeliver creates a new delivery with the same events. As a creation it accepts an
// Idempotency-Key.
func redeliver(req *request) (answer, error) {
	return req.create(func(w store.Write) (answer, error) {
		d, err := w.Deliveries().Redeliver(req.program(), req.delivery.SubscriptionID, req.delivery.ID, req.actor())
		location := "/v2/webhooks/subscriptions/" + d.SubscriptionID + "/deliveries/" + d.ID
		return answer{status: http.StatusCreated, location: location, data: newWholeDeliveryRecord(&d)}, err
	})
}
