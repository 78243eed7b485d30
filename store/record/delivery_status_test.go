package record_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"service/store/sqlite"
	"service/store/storetest"
	"service/webhook"
)

// The status of an event is that of its deliveries to the subscription, however many others it has, and
// whatever other events the subscription has been sent.
func TestDeliveryStatusDecides(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := storetest.Open(t, "p")
	subs := []webhook.Subscription{storetest.Subscribe(t, s, "p", "content_updated"), storetest.Subscribe(t, s, "p", "content_updated"),
		storetest.Subscribe(t, s, "p", "content_updated")}
	const events = 20
	for range events {
		publish(t, s, "p", "content_updated")
	}
	want := make(map[[2]int]string) // by subscription and seq
	must(t, write(s, func(tx *sqlite.Tx) error {
		for num := range 300 {
			sub := r.IntN(len(subs))
			// A success is rare, because it decides.
			status := [...]string{"success", "failed", "retryable"}[min(r.IntN(12), 1+r.IntN(2))]
			if r.IntN(3) == 0 { // the events are sent to one subscription in turn, more often than not
				sub = num / 100
			}
			seqs := slices.Compact([]int{1 + r.IntN(events), 1 + r.IntN(events)})
			for _, seq := range seqs {
				if at := [2]int{sub, seq}; want[at] != "success" {
					want[at] = status
				}
			}
			if err := insertDelivery(tx, int64(num), &subs[sub], status, seqs); err != nil {
				return err
			}
		}
		return tx.Exec("UPDATE cursors SET seq = ?", events)
	}))
	found := make(map[string]int)
	for i := range subs {
		p, err := s.Events().Log(t.Context(), "p", &subs[i], storetest.Query(t, webhook.SubscriptionLog, "from=2000-01-01&page[size]=100"))
		must(t, err)
		for n, got := range p.Statuses {
			status := cmp.Or(want[[2]int{i, n + 1}], "none")
			if found[status]++; string(got) != status {
				t.Errorf("subscription %d, event %d: got %s, want %s", i, n+1, got, status)
			}
		}
	}
	if len(found) < 3 {
		t.Errorf("found only %v", found)
	}
}

// insertDelivery stores a delivery of events of p.
func insertDelivery(tx *sqlite.Tx, num int64, sub *webhook.Subscription, status string, seqs []int) error {
	num += 1000
	var reason, next, completed any = nil, 1, nil
	if status != "retryable" {
		next, completed = nil, 1
	}
	if status == "failed" {
		reason = "rejected"
	}
	err := tx.Exec(`INSERT INTO deliveries (num, id, subscription_id, program_id, status, failure_reason, attempts_made, next_attempt_at, seqs,
		created_at, completed_at, counted_at, subscription) SELECT ?1, ?2, id, 'p', ?3, ?4, 1, ?5, ?6, 0, ?7, 0, num FROM subscriptions
		WHERE id = ?8`, num, fmt.Sprint("d", num), status, reason, next, sqlite.JSON(seqs), completed, sub.ID)
	if err != nil {
		return err
	}
	return link(tx, "p", num, sqlite.JSON(seqs).(string))
}
