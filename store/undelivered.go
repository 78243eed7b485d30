package store

// An event is delivered to a subscription when any of its deliveries succeeded. The events of a
// failed delivery that are not are its rows in undelivered; it is recovered when it has none
// left. This is the only notion of what is left to resend.

const (
	// For an event with one delivery, the usual case, each condition is an index lookup that finds
	// nothing. The second is for deliveries that were removed before their events.
	insertUndelivered = `INSERT INTO undelivered (subscription, seq, delivery, incident)
		SELECT d.subscription, j.value, d.num, ?2 FROM deliveries d CROSS JOIN json_each(d.seqs) j
		WHERE d.num = ?1 AND NOT EXISTS (SELECT 1 FROM delivery_events x CROSS JOIN deliveries r ON r.num = x.delivery
			WHERE x.program_id = d.program_id AND x.seq = j.value AND x.delivery <> d.num AND r.subscription = d.subscription
			AND r.status = 'success')
		AND (NOT EXISTS (SELECT 1 FROM delivered WHERE subscription_id = d.subscription_id) OR coalesce((SELECT r.last_seq FROM delivered r
			WHERE r.subscription_id = d.subscription_id AND r.first_seq <= j.value AND r.name = (SELECT e.name FROM events e
			WHERE e.program_id = d.program_id AND e.seq = j.value) ORDER BY r.first_seq DESC LIMIT 1), 0) < j.value)`

	deleteUndelivered = `DELETE FROM undelivered WHERE subscription = (SELECT subscription FROM deliveries WHERE num = ?1)
		AND seq IN (SELECT value FROM json_each((SELECT seqs FROM deliveries WHERE num = ?1))) RETURNING delivery`

	insertRecovered = `INSERT INTO recovered (delivery, at) SELECT ?1, ?2
		WHERE NOT EXISTS (SELECT 1 FROM undelivered WHERE delivery = ?1)`

	// A subscription has any number of rows, so each is found by an index lookup.
	selectWithUndelivered = `WITH RECURSIVE o(num) AS (SELECT min(subscription) FROM undelivered
		UNION ALL SELECT (SELECT min(subscription) FROM undelivered WHERE subscription > o.num) FROM o WHERE o.num IS NOT NULL)
		SELECT s.id FROM o CROSS JOIN subscriptions s ON s.num = o.num`
)

// noteUndelivered records the events of a delivery that failed for good, in an incident, 0 for
// none. It returns how many of them no delivery has delivered.
func (t *tx) noteUndelivered(num int64, subscriptionID string, incident int64) (int64, error) {
	n, err := t.Affected(insertUndelivered, num, orNull(incident))
	if err != nil {
		return 0, err
	}
	if t.w.undelivered != nil {
		t.w.undelivered[subscriptionID] = struct{}{}
	}
	if n == 0 {
		return 0, t.noteRecovered(num)
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
		if err == nil {
			err = t.noteRecovered(delivery)
		}
	}
	return err
}

// noteRecovered records that a failed delivery is recovered, if it is.
func (t *tx) noteRecovered(num int64) error {
	n, err := t.Affected(insertRecovered, num, t.w.clock.now().UnixMilli())
	if err != nil || n == 0 {
		return err
	}
	t.deliveryChanged(num)
	t.AfterCommit(t.w.metrics.recovered.Inc)
	return t.endSplits(ofFailed, num)
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
