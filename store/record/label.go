package record

import (
	"context"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// CountLimit bounds the counts in [record.Totals], so that their cost is bounded. A count of
// CountLimit means that many or more.
const CountLimit = 1000

const selectSubscriptionLabels = "SELECT s.id, s.program_id, s.url, s.description " +
	"FROM json_each(?) i CROSS JOIN subscriptions s ON s.id = i.value"

// SubscriptionLabel identifies a subscription in a list.
type SubscriptionLabel struct{ ProgramID, URL, Description string }

// Labels returns the labels of subscriptions of any program by ID, including deleted ones.
// Unknown IDs are omitted.
func (s Subscriptions) Labels(ctx context.Context, ids []string) (map[string]SubscriptionLabel, error) {
	labels := make(map[string]SubscriptionLabel, len(ids))
	err := s.lists.DB.Each(ctx, selectSubscriptionLabels, []any{sqlite.JSON(ids)}, func(scan func(...any) error) error {
		var id string
		var l SubscriptionLabel
		err := scan(&id, &l.ProgramID, &l.URL, &l.Description)
		labels[id] = l
		return err
	})
	return labels, err
}

const selectLastAttempts = "SELECT d.id, " + lastAttemptColumns + ` FROM json_each(?) i CROSS JOIN deliveries d ON d.id = i.value
	LEFT JOIN attempts a ON a.delivery = d.num AND a.number = (SELECT max(number) FROM attempts WHERE delivery = d.num)
	WHERE a.delivery IS NOT NULL OR d.duration_ms IS NOT NULL`

// LastAttempts returns the last completed attempt of deliveries of any program, by delivery ID,
// with the response status but without the response. Deliveries without a completed attempt are
// omitted.
func (s Deliveries) LastAttempts(ctx context.Context, deliveryIDs []string) (map[string]webhook.Attempt, error) {
	last := make(map[string]webhook.Attempt, len(deliveryIDs))
	err := s.lists.DB.Each(ctx, selectLastAttempts, []any{sqlite.JSON(shortIDs(deliveryIDs))}, func(scan func(...any) error) error {
		var a webhook.Attempt
		var id string
		var duration int64
		err := scan((*DeliveryID)(&id), &a.Number, (*sqlite.Time)(&a.StartedAt), &duration, &a.Result, sqlite.OrZero(&a.ResponseStatus),
			sqlite.OrZero(&a.Error))
		a.Duration = time.Duration(duration) * time.Millisecond
		last[id] = a
		return err
	})
	return last, err
}
