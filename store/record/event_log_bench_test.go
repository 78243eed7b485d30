package record_test

import (
	"fmt"
	"testing"

	"service/store/sqlite"
	"service/store/storetest"
	"service/webhook"
)

// BenchmarkLog reads a page of 100 events of a subscription, by the number of subscriptions that
// received each event in a delivery of its own:
//
//	go test ./store/record -run '^$' -bench Log
func BenchmarkLog(b *testing.B) {
	for _, subscriptions := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint("subscriptions=", subscriptions), func(b *testing.B) {
			s := storetest.Open(b)
			storetest.Program(b, s, "p")
			sub := storetest.Subscribe(b, s, "p", "content_updated")
			names := make([]string, webhook.MaxPageSize)
			for i := range names {
				names[i] = "content_updated"
			}
			publish(b, s, "p", names...)
			must(b, write(s, func(t *sqlite.Tx) error { return deliverToMany(t, sub.ID, len(names), subscriptions) }))
			q := storetest.Query(b, webhook.SubscriptionLog, "from=2000-01-01&page[size]=100")
			b.ReportAllocs()
			for b.Loop() {
				p, err := s.Events().Log(b.Context(), "p", &sub, q)
				if err != nil || len(p.Events) != len(names) || p.Statuses[0] != "success" {
					b.Fatalf("got %d events (%v)", len(p.Events), err)
				}
			}
		})
	}
}

// deliverToMany stores a successful delivery of each of the first events of p to each of so many
// subscriptions, of which one is stored.
func deliverToMany(t *sqlite.Tx, subscriptionID string, events, subscriptions int) error {
	err := t.Exec(`WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2 * ?3)
		INSERT INTO deliveries (num, id, subscription_id, program_id, status, attempts_made, seqs, created_at, completed_at, counted_at,
			subscription)
		SELECT i + 1000, 'd' || i, iif(i % ?3 = 0, ?1, 'other'), 'p', 'success', 1, json_array(i / ?3 + 1), 0, 0, 0,
			(SELECT num FROM subscriptions WHERE id = ?1) + i % ?3 FROM n`, subscriptionID, events, subscriptions)
	if err != nil {
		return err
	}
	if err := t.Exec("INSERT INTO delivery_events (program_id, seq, delivery) " +
		"SELECT 'p', seqs ->> 0, num FROM deliveries WHERE num >= 1000"); err != nil {
		return err
	}
	return t.Exec("UPDATE cursors SET seq = ? WHERE subscription_id = ?", events, subscriptionID)
}
