package store

import (
	"time"

	"service/store/erasure"
	"service/store/record"
	"service/store/sqlite"
)

// An event is delivered to a subscription when any of its deliveries succeeded. The events of a
// failed delivery that are not are its rows in undelivered; it is recovered when it has none
// left. This is the only notion of what is left to resend. An event that several deliveries failed
// to deliver is left in the newest of them, so counts, lists and what resends them agree. An erased
// event is not left to resend, and a delivery of nothing else is not recovered.

const (
	// An event may be in deliveries to many other subscriptions, so those are searched only if the
	// subscription may have several deliveries of it, and it is not known to be undelivered. The last
	// condition covers deliveries that were removed before their events.
	insertUndelivered = `INSERT INTO undelivered (subscription, seq, delivery, incident)
		SELECT d.subscription, j.value, d.num, ?2 FROM deliveries d CROSS JOIN json_each(d.seqs) j
		WHERE d.num = ?1 AND NOT EXISTS (SELECT 1 FROM events e WHERE e.program_id = d.program_id AND e.seq = j.value
			AND e.erased_at IS NOT NULL)
		AND (coalesce(d.redelivery_of, d.replay_id, d.split_of) IS NULL
			AND NOT EXISTS (SELECT 1 FROM deliveries r WHERE r.redelivery_of = d.id AND r.redelivery_of IS NOT NULL)
			AND NOT EXISTS (SELECT 1 FROM replays p WHERE p.subscription_id = d.subscription_id)
			OR EXISTS (SELECT 1 FROM undelivered o WHERE o.subscription = d.subscription AND o.seq = j.value)
			OR NOT EXISTS (SELECT 1 FROM delivery_events x CROSS JOIN deliveries r ON r.num = x.delivery
				WHERE x.program_id = d.program_id AND x.seq = j.value AND x.delivery <> d.num AND r.subscription = d.subscription
				AND r.status = 'success'))
		AND (NOT EXISTS (SELECT 1 FROM delivered WHERE subscription_id = d.subscription_id) OR coalesce((SELECT r.last_seq FROM delivered r
			WHERE r.subscription_id = d.subscription_id AND r.first_seq <= j.value AND r.name = (SELECT e.name FROM events e
			WHERE e.program_id = d.program_id AND e.seq = j.value) ORDER BY r.first_seq DESC LIMIT 1), 0) < j.value)`

	countLeftOf = "SELECT count(*), count(*) FILTER (WHERE " + record.IsNewest + ") FROM undelivered u WHERE u.delivery = ?"

	hasUndelivered = "SELECT EXISTS (SELECT 1 FROM undelivered WHERE subscription = (SELECT num FROM subscriptions WHERE id = ?))"

	deleteUndelivered = `DELETE FROM undelivered WHERE subscription = (SELECT subscription FROM deliveries WHERE num = ?1)
		AND seq IN (SELECT value FROM json_each((SELECT seqs FROM deliveries WHERE num = ?1))) RETURNING delivery`

	insertRecovered = `INSERT INTO recovered (delivery, at) SELECT ?1, ?2
		WHERE NOT EXISTS (SELECT 1 FROM undelivered WHERE delivery = ?1) AND NOT (SELECT ` + erasure.AllErased + ` FROM deliveries d WHERE d.num = ?1)`

	// A subscription has any number of rows, so each is found by an index lookup.
	selectWithUndelivered = `WITH RECURSIVE o(num) AS (SELECT min(subscription) FROM undelivered
		UNION ALL SELECT (SELECT min(subscription) FROM undelivered WHERE subscription > o.num) FROM o WHERE o.num IS NOT NULL)
		SELECT s.id FROM o CROSS JOIN subscriptions s ON s.num = o.num`
)

// noteUndelivered records the events of a delivery that failed permanently, in an incident, 0
// for none. It returns how many of them no delivery has delivered.
func (t *tx) noteUndelivered(num int64, subscriptionID string, incident int64) (int64, error) {
	n, err := t.Affected(insertUndelivered, num, sqlite.OrNull(incident))
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, t.noteRecovered(num)
	}
	if t.w.undelivered != nil {
		t.w.undelivered[subscriptionID] = struct{}{}
	}
	return n, nil
}

// noteDelivered records that a delivery delivered its events. It costs nothing if the subscription
// has no undelivered events.
func (t *tx) noteDelivered(num int64, subscriptionID string) error {
	may, err := t.mayBeIn(&t.w.undelivered, selectWithUndelivered, subscriptionID)
	if err != nil || !may {
		return err
	}
	failed := make(map[int64]struct{})
	err = t.Each(deleteUndelivered, []any{num}, func(scan func(...any) error) error {
		var delivery int64
		err := scan(&delivery)
		failed[delivery] = struct{}{}
		return err
	})
	for delivery := range failed {
		t.deliveryChanged(delivery)
		if err == nil {
			err = t.noteRecovered(delivery)
		}
	}
	if err != nil || len(failed) == 0 {
		return err
	}
	return t.leaveIfNone(t.w.undelivered, hasUndelivered, subscriptionID)
}

// noteRecovered records that a failed delivery is recovered, if no event of it is left.
func (t *tx) noteRecovered(num int64) error {
	n, err := t.Affected(insertRecovered, num, t.s.clock.Now().UnixMilli())
	if err != nil || n == 0 {
		return err
	}
	t.deliveryChanged(num)
	t.AfterCommit(t.s.metrics.Recovered.Inc)
	return t.endSplits(ofFailed, num)
}

const selectLeftFrom = `SELECT e.received_at FROM undelivered u CROSS JOIN deliveries d ON d.num = u.delivery
	CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = u.seq WHERE u.incident = ?1 AND u.incident IS NOT NULL
	AND u.seq NOT IN (SELECT value FROM json_each((SELECT seqs FROM deliveries WHERE num = ?2))) ORDER BY u.seq LIMIT 1`

// leftFrom returns the acceptance time of the oldest event that failed in an incident and
// remains to be resent after a delivery has succeeded, zero if there is none.
func (t *tx) leftFrom(incident, delivered int64) (from time.Time, err error) {
	err = t.Scan(selectLeftFrom, []any{incident, delivered}, (*sqlite.Time)(&from))
	return from, sqlite.NoRows(err, nil)
}

const selectOwner = "SELECT subscription_id FROM deliveries WHERE num = ?"

// noteAllUndelivered is noteUndelivered for deliveries that failed without the result of an attempt:
// cancelled or expired. They are not split.
func (t *tx) noteAllUndelivered(nums []int64) error {
	for _, num := range nums {
		var subscription string
		if err := t.Scan(selectOwner, []any{num}, &subscription); err != nil {
			return err
		}
		if _, err := t.noteUndelivered(num, subscription, 0); err != nil {
			return err
		}
		if err := t.endSplitOf(num, subscription); err != nil {
			return err
		}
	}
	return nil
}
