package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"service/webhook"
)

// DeliveryView is all that there is to see of one delivery, for admins.
type DeliveryView struct {
	webhook.Delivery                      // with its attempts
	Subscription     webhook.Subscription // a deleted one too
	Place            int64                // as Changes name it

	ClaimedAt  time.Time     // when the attempt under way was counted; zero when none is
	Own        bool          // it has an event of its own, which is not in the log: a ping or a test
	ReplayID   string        // of the replay that formed it, "" for none
	Trace      webhook.Trace // of the first of its events that has one
	EventJSON  [][]byte      // in the order of Events; nil when retention has removed one of them
	Redelivery []Again       // the deliveries that have its events again, the oldest first: at most manyAgain
}

// Again is a redelivery of a delivery.
type Again struct {
	ID        string
	Status    webhook.Status
	CreatedAt time.Time
}

// manyAgain is how many redeliveries of a delivery are read.
const manyAgain = 20

const (
	selectDeliveryView = "SELECT d.claimed_at, d.replay_id, d.seqs, d.ping, " + deliveryColumns + " FROM deliveries d WHERE d.id IN (?, ?)"

	selectAnySubscription = "SELECT " + subscriptionColumns + " FROM subscriptions WHERE id = ?"

	selectAgain = "SELECT id, status, created_at FROM deliveries WHERE redelivery_of = (SELECT id FROM deliveries WHERE num = ?) AND redelivery_of IS NOT NULL ORDER BY num LIMIT ?"
)

// View returns one delivery of any program with all that belongs to it.
func (s Deliveries) View(ctx context.Context, id string) (d DeliveryView, err error) {
	err = s.view(ctx, func(v *view) error {
		var claimed sql.NullInt64
		var replay, seqs sql.NullString
		var ping []byte
		d.Delivery, d.Place, err = s.scanDelivery(func(dest ...any) error {
			return v.Scan(selectDeliveryView, []any{shortID(id), id}, append([]any{&claimed, &replay, &seqs, &ping}, dest...)...)
		})
		if err != nil {
			return notFound(err, "delivery")
		}
		d.ClaimedAt, d.ReplayID = fromMillis(claimed), replay.String
		if d.Attempts, err = attemptsOf(v.Each, d.Place); err != nil {
			return err
		}
		d.Subscription, err = scanSubscription(func(dest ...any) error {
			return v.Scan(selectAnySubscription, []any{d.SubscriptionID}, dest...)
		})
		if err != nil {
			return err
		}
		if ping != nil {
			d.Own, d.EventJSON = true, [][]byte{ping}
		} else {
			var places []int64
			if err := json.Unmarshal([]byte(seqs.String), &places); err != nil {
				return err
			}
			events, err := s.eventBodies(v.Scan, d.ProgramID, places)
			if err != nil && !errors.Is(err, errGone) {
				return err
			}
			d.EventJSON, d.Trace = events.bodies, events.trace
		}
		return v.Each(selectAgain, []any{d.Place, manyAgain}, func(scan func(...any) error) error {
			var a Again
			var created int64
			err := scan((*deliveryID)(&a.ID), &a.Status, &created)
			a.CreatedAt = time.UnixMilli(created).UTC()
			d.Redelivery = append(d.Redelivery, a)
			return err
		})
	})
	return d, err
}
