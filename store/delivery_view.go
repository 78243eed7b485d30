package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"service/store/erasure"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// DeliveryView is a delivery with all its records.
type DeliveryView struct {
	webhook.Delivery                      // with its attempts
	Subscription     webhook.Subscription // possibly deleted
	Num              int64                // the num in Changes

	ClaimedAt    time.Time     // when the attempt in flight was counted; zero if there is none
	Own          bool          // its event is not in the log: a ping or a test
	ReplayID     string        // the replay that created it, "" for none
	Trace        webhook.Trace // of the first event that has one
	EventJSON    [][]byte      // in the order of Events; nil if retention removed one of them, or it was erased
	Erased       int           // how many of its events were erased
	AllErased    bool          // all were, so nothing is left to redeliver
	Redeliveries []Redelivery  // its redeliveries, oldest first, at most maxRedeliveries
	Splits       []Redelivery  // the deliveries of its split, those that did not succeed first, at most maxSplits
	Undelivered  int           // its events that were not delivered, if it failed
	Left         int           // the undelivered events that are in no newer failed delivery
	RecoveredBy  string        // if it is recovered, the newest delivery that delivered its events; "" if retention removed it
}

// Redelivery is one redelivery of a delivery, or one delivery of its split.
type Redelivery struct {
	ID        string
	Status    webhook.Status
	CreatedAt time.Time
}

// maxRedeliveries is how many redeliveries of a delivery are read, and maxSplits how many
// deliveries of its split.
const maxRedeliveries, maxSplits = 20, 8

const (
	selectDeliveryView = "SELECT d.claimed_at, d.replay_id, d.seqs, d.ping, " + record.DeliveryColumns + " FROM deliveries d WHERE d.id = ?"

	selectAnySubscription = "SELECT " + record.SubscriptionColumns + " FROM subscriptions WHERE id = ?"

	selectAgain = "SELECT id, status, created_at FROM deliveries WHERE redelivery_of = (SELECT id FROM deliveries WHERE num = ?) " +
		"AND redelivery_of IS NOT NULL ORDER BY num LIMIT ?"
	// An event is in the log once, so its deliveries to a subscription are few.
	selectRecoveredBy = "SELECT o.id FROM deliveries d CROSS JOIN json_each(d.seqs) e CROSS JOIN delivery_events x ON x.program_id = ? " +
		"AND x.seq = e.value CROSS JOIN deliveries o ON o.num = x.delivery WHERE d.num = ? AND o.subscription_id = d.subscription_id " +
		"AND o.status = 'success' ORDER BY o.num DESC LIMIT 1"
	selectSplits = "SELECT id, status, created_at FROM deliveries WHERE split_of = (SELECT id FROM deliveries WHERE num = ?) " +
		"AND split_of IS NOT NULL ORDER BY status = 'success', num LIMIT ?"
)

const countErased = "SELECT " + erasure.CountErased + ", " + erasure.AllErased + " FROM deliveries d WHERE d.num = ?"

// View returns a delivery of any program with all its records.
func (s Deliveries) View(ctx context.Context, id string) (d DeliveryView, err error) {
	err = s.db.View(ctx, func(v *sqlite.View) error {
		var seqs, ping []byte
		d.Delivery, d.Num, err = record.ScanDelivery(s.clock, func(dest ...any) error {
			return v.Scan(selectDeliveryView, []any{record.ShortID(id)}, append([]any{(*sqlite.Time)(&d.ClaimedAt), sqlite.OrZero(&d.ReplayID),
				&seqs, &ping}, dest...)...)
		})
		if err == nil {
			err = s.use(d.ProgramID, "delivery")
		}
		if err != nil {
			return sqlite.NoRows(err, webhook.NotFound("delivery"))
		}
		if d.Attempts, err = record.AttemptsOf(v.Each, d.Num); err != nil {
			return err
		}
		d.Subscription, err = record.ScanSubscription(func(dest ...any) error {
			return v.Scan(selectAnySubscription, []any{d.SubscriptionID}, dest...)
		})
		if err != nil {
			return err
		}
		if ping != nil {
			d.Own, d.EventJSON = true, [][]byte{ping}
		} else {
			var places []int64
			if err := json.Unmarshal(seqs, &places); err != nil {
				return err
			}
			events, err := s.eventBodies(v.Scan, d.ProgramID, places)
			if errors.Is(err, errErased) {
				err = v.Scan(countErased, []any{d.Num}, &d.Erased, &d.AllErased)
			}
			if err != nil && !errors.Is(err, errGone) {
				return err
			}
			d.EventJSON, d.Trace = events.bodies, events.trace
		}
		if err := resent(v, &d); err != nil {
			return err
		}
		if d.Redeliveries, err = redeliveries(v, selectAgain, d.Num, maxRedeliveries); err != nil || len(d.Events) < 2 {
			return err
		}
		d.Splits, err = redeliveries(v, selectSplits, d.Num, maxSplits)
		return err
	})
	return d, err
}

// resent reads the later deliveries of the delivery's events.
func resent(v *sqlite.View, d *DeliveryView) error {
	if err := v.Scan(countLeftOf, []any{d.Num}, &d.Undelivered, &d.Left); err != nil || d.RecoveredAt.IsZero() {
		return err
	}
	err := v.Scan(selectRecoveredBy, []any{d.ProgramID, d.Num}, (*record.DeliveryID)(&d.RecoveredBy))
	return sqlite.NoRows(err, nil)
}

// redeliveries returns the deliveries that a query selects for a delivery, at most limit.
func redeliveries(v *sqlite.View, query string, num int64, limit int) (all []Redelivery, err error) {
	err = v.Each(query, []any{num, limit}, func(scan func(...any) error) error {
		var a Redelivery
		err := scan((*record.DeliveryID)(&a.ID), &a.Status, (*sqlite.Time)(&a.CreatedAt))
		all = append(all, a)
		return err
	})
	return all, err
}
