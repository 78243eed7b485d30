package record

import (
	"database/sql"
	"encoding/json"
	"time"

	"service/store/clock"
	"service/store/sqlite"
	"service/webhook"
)

// DeliveryColumns end with the IDs and names of the events, an array of pairs in their
// order, and, for a pending delivery, when its subscription was deleted.
const DeliveryColumns = `d.num, d.id, d.subscription_id, d.program_id, d.status, d.failure_reason, d.attempts_made, d.next_attempt_at,
	d.redelivery_of, d.split_of, d.created_at, d.completed_at, d.ping,
	CASE WHEN d.status = 'failed' THEN (SELECT r.at FROM recovered r WHERE r.delivery = d.num) END,
	d.status = 'failed' AND EXISTS (SELECT 1 FROM splits p WHERE p.delivery = d.num),
	(SELECT json_group_array(json_array(e.id, e.name) ORDER BY s.key) FROM json_each(d.seqs) s CROSS JOIN events e
	ON e.program_id = d.program_id AND e.seq = s.value),
	CASE WHEN d.next_attempt_at IS NOT NULL THEN (SELECT z.deleted_at FROM subscriptions z WHERE z.id = d.subscription_id) END`

// CreatedOf continues a query of the deliveries d of the subscription whose ID is an expression, in the
// order of their creation.
func CreatedOf(subscriptionID string) string {
	return ofSubscription("deliveries_of_subscription", subscriptionID)
}

// CompletedOf is CreatedOf for the completed deliveries, in the order of their completion.
func CompletedOf(subscriptionID string) string {
	return ofSubscription("deliveries_completed", subscriptionID) + " AND d.completed_at IS NOT NULL"
}

func ofSubscription(index, subscriptionID string) string {
	return "FROM deliveries d INDEXED BY " + index +
		" WHERE d.subscription = (SELECT num FROM subscriptions WHERE id = " + subscriptionID + ")"
}

// ScanDelivery reads a row of DeliveryColumns. A pending delivery of a deleted subscription
// counts as failed, even before housekeeping ends it.
func ScanDelivery(c *clock.Clock, scan func(...any) error) (d webhook.Delivery, num int64, err error) {
	var next sql.NullInt64
	var deleted time.Time
	var ping, refs []byte
	err = scan(&num, (*DeliveryID)(&d.ID), &d.SubscriptionID, &d.ProgramID, &d.Status, sqlite.OrZero(&d.FailureReason), &d.AttemptsMade,
		&next, (*DeliveryID)(&d.RedeliveryOf), (*DeliveryID)(&d.SplitOf), (*sqlite.Time)(&d.CreatedAt), (*sqlite.Time)(&d.CompletedAt),
		&ping, (*sqlite.Time)(&d.RecoveredAt), &d.Splitting, &refs, (*sqlite.Time)(&deleted))
	if err != nil {
		return d, num, err
	}
	d.NextAttemptAt = c.Shown(next)
	if !deleted.IsZero() {
		d.Status, d.FailureReason, d.NextAttemptAt, d.CompletedAt = webhook.StatusFailed, webhook.FailureSubscriptionDeleted, time.Time{}, deleted
	}
	if ping != nil {
		var ref webhook.EventRef
		if err := json.Unmarshal(ping, &ref); err != nil {
			return d, num, err
		}
		d.Events = []webhook.EventRef{ref}
		return d, num, nil
	}
	var pairs [][2]string
	if err := json.Unmarshal(refs, &pairs); err != nil {
		return d, num, err
	}
	d.Events = make([]webhook.EventRef, len(pairs))
	for i, p := range pairs {
		d.Events[i] = webhook.EventRef{ID: p[0], Name: p[1]}
	}
	return d, num, nil
}
