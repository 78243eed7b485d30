package record

import (
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// SubscriptionColumns are the columns of a subscription.
const SubscriptionColumns = "id, program_id, url, active, description, events, ordered, max_in_flight, " +
	"authorization_header IS NOT NULL, header_names, filters, status, disabled_reason, revision, created_at, updated_at, deleted_at, " +
	"max_per_second, coalesce(max_events, 0), " +
	"(SELECT failing_reason FROM failures f WHERE f.subscription_id = subscriptions.id), " +
	"(SELECT failing_since FROM failures f WHERE f.subscription_id = subscriptions.id), " +
	"(SELECT next_probe_at FROM failures f WHERE f.subscription_id = subscriptions.id)"

// parseFilters reads the stored filters of a subscription.
func parseFilters(text sql.NullString) (f webhook.Filters, err error) {
	if text.Valid {
		err = json.Unmarshal([]byte(text.String), &f)
	}
	return f, err
}

// ScanSubscription reads a row of SubscriptionColumns.
func ScanSubscription(scan func(...any) error) (sub webhook.Subscription, err error) {
	var names, headers string
	var filters sql.NullString
	err = scan(&sub.ID, &sub.ProgramID, &sub.URL, &sub.Active, &sub.Description, &names, &sub.Ordered, &sub.MaxInFlight,
		&sub.HasAuthorizationHeader, &headers, &filters, &sub.Status, sqlite.OrZero(&sub.DisabledReason), &sub.Revision,
		(*sqlite.Time)(&sub.CreatedAt), (*sqlite.Time)(&sub.UpdatedAt), (*sqlite.Time)(&sub.DeletedAt), sqlite.OrZero(&sub.MaxPerSecond),
		&sub.MaxEvents, sqlite.OrZero(&sub.FailingReason), (*sqlite.Time)(&sub.FailingSince), (*sqlite.Time)(&sub.NextProbeAt))
	if err != nil {
		return sub, err
	}
	if sub.Status != webhook.HealthFailing {
		sub.FailingReason, sub.FailingSince, sub.NextProbeAt = "", time.Time{}, time.Time{}
	}
	var unreadable error
	sub.Filters, unreadable = parseFilters(filters)
	return sub, errors.Join(unreadable, json.Unmarshal([]byte(names), &sub.Events), json.Unmarshal([]byte(headers), &sub.HeaderNames))
}
