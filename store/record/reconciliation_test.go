package record_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store"
	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/store/storetest"
	"service/webhook"
)

// owedInEveryState makes a subscription whose events have every state that one which is not deleted can
// have, and returns what each event's must be. Its filter excludes the other events.
func owedInEveryState(t *testing.T, s *store.Store) (sub webhook.Subscription, want map[string]record.DeliveryState) {
	want = make(map[string]record.DeliveryState)
	note := func(status string, reason string, events ...webhook.Event) {
		for i := range events {
			want[events[i].ID] = record.DeliveryState{Status: record.DeliveryStatus(status), Reason: reason}
		}
	}
	one := func() []webhook.Event { return publish(t, s, "p", "content_updated") }
	note("none", record.NotSentNew, one()...)
	time.Sleep(time.Minute)
	url, names := "https://partner.example/hook", []string{"content_updated", "content_deleted"}
	filter := new(webhook.EventFilter)
	must(t, filter.UnmarshalJSON([]byte(`{"all":[{"path":"content_id","op":"lt","value":10}]}`)))
	sub, _, err := storetest.CreateSubscription(t.Context(), s, "p", "u", &webhook.SubscriptionFields{URL: &url, Events: &names,
		Filters: webhook.Filters{"content_updated": filter}})
	must(t, err)
	sent := func(status int, event ...webhook.Event) *store.Claim {
		time.Sleep(time.Minute)
		return send(t, s, sub.ID, status)
	}

	note("success", "", append(one(), publish(t, s, "p", "content_deleted")...)...)
	publish(t, s, "p", "content_published") // not of its names
	excluded := storetest.Event("content_updated")
	excluded.JSON = fmt.Appendf(nil, `{"id":%q,"timestamp":"2026-01-02T03:04:05.000Z","name":"content_updated","version":"1","content_id":10}`,
		excluded.ID)
	_, err = s.Events().Publish(t.Context(), "p", []webhook.Event{excluded})
	must(t, err)
	sent(200)
	note("failed", string(webhook.FailureRejected), one()...)
	sent(404)
	note("failed", string(webhook.FailureCancelled), one()...)
	must(t, storetest.Cancel(t.Context(), s, "p", sub.ID, sent(503).ID))
	note("success", "", one()...) // by a redelivery
	_, err = storetest.Redeliver(t.Context(), s, "p", sub.ID, sent(404).ID)
	must(t, err)
	resend(t, s, &sub, 200)
	active := false
	_, err = storetest.UpdateSubscription(t.Context(), s, "p", sub.ID, &webhook.SubscriptionFields{Active: &active})
	must(t, err)
	note("none", record.NotSentPaused, one()...)
	active = true
	sub, err = storetest.UpdateSubscription(t.Context(), s, "p", sub.ID, &webhook.SubscriptionFields{Active: &active})
	must(t, err)

	note("none", record.NotSentGone, one()...)
	gone := sent(404)
	note("success", "", one()...) // in a delivery that is no longer stored
	kept := sent(200)
	note("success", "", one()...)
	sent(200)
	must(t, write(s, func(tx *sqlite.Tx) error { return removeDeliveries(tx, &sub, gone.ID, kept.ID) }))
	note("retryable", "", append(one(), one()...)...) // failed together: they split
	sent(404)
	note("retryable", "", one()...)
	sent(503)
	note("pending", "", one()...)
	form(t, s, sub.ID, 100)
	note("waiting", "", one()...)
	return sub, want
}

// resend delivers what was redelivered.
func resend(t *testing.T, s *store.Store, sub *webhook.Subscription, status int) {
	t.Helper()
	c, err := storetest.Claim(t.Context(), s, sub.ID, store.CreditDue)
	if err != nil || c == nil {
		t.Fatalf("got %v, %v, want a delivery", c, err)
	}
	a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), ResponseStatus: status, Result: webhook.Classify(status, webhook.ErrorNone)}
	_, err = s.Queues().Record(c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{})
	must(t, err)
}

// removeDeliveries removes a failed delivery and a successful one, as the retention does.
func removeDeliveries(tx *sqlite.Tx, sub *webhook.Subscription, failed, succeeded string) error {
	if err := tx.Exec("INSERT INTO delivered (subscription_id, name, first_seq, last_seq) "+
		"SELECT ?1, e.name, e.seq, e.seq FROM delivery_events x JOIN events e ON e.program_id = 'p' AND e.seq = x.seq "+
		"JOIN deliveries d ON d.num = x.delivery WHERE d.id = ?2", sub.ID, record.ShortID(succeeded)); err != nil {
		return err
	}
	tables := []string{"delivery_events WHERE delivery", "undelivered WHERE delivery", "attempts WHERE delivery", "deliveries WHERE num"}
	for _, table := range tables {
		if err := tx.Exec("DELETE FROM "+table+" IN (SELECT num FROM deliveries WHERE id IN (?, ?))", record.ShortID(failed),
			record.ShortID(succeeded)); err != nil {
			return err
		}
	}
	return nil
}

// count counts the states.
func count(states map[string]record.DeliveryState) map[record.DeliveryState]int {
	counts := make(map[record.DeliveryState]int)
	for _, d := range states {
		counts[d]++
	}
	return counts
}

// The counts of a subscription are those of the states of its events, of which the list shows each,
// whatever the order and the size of the pages, and alone those of a status.
func TestOwed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store.Store) {
		sub, want := owedInEveryState(t, s)
		checkOwed(t, s, &sub, want)
		*limitsOf(s) = list.Limits{Set: 1, Scan: 2, CostlyScan: 2}
		checkOwed(t, s, &sub, want)

		// A deleted subscription is sent nothing more.
		_, err := storetest.DeleteSubscription(t.Context(), s, "p", sub.ID)
		must(t, err)
		deleted := count(want)
		for _, d := range []record.DeliveryState{
			{"none", record.NotSentNew}, {"none", record.NotSentPaused}, {"none", record.NotSentGone}, {"waiting", ""},
		} {
			deleted[record.DeliveryState{Status: record.DeliveryNone, Reason: string(webhook.FailureSubscriptionDeleted)}] += deleted[d]
			delete(deleted, d)
		}
		delete(deleted, record.DeliveryState{Status: "retryable"})
		deleted[record.DeliveryState{Status: "failed", Reason: string(webhook.FailureRejected)}] += 2 // they are not split
		deleted[record.DeliveryState{Status: "failed", Reason: string(webhook.FailureSubscriptionDeleted)}] = 1
		view, err := s.Subscriptions().View(t.Context(), sub.ID, 1)
		must(t, err)
		got, err := s.Events().CountOwed(t.Context(), &view.Subscription, storetest.Query(t, webhook.ReconciliationList, ""), time.Hour)
		must(t, err)
		if diff := cmp.Diff(deleted, got.States); diff != "" {
			t.Errorf("deleted (-want +got):\n%s", diff)
		}
	})
}

// An erased event counts as delivered if it was, as in flight while it is, and otherwise as erased: from
// the commit on, whatever has been removed since.
func TestOwedErased(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store.Store) {
		sub := storetest.Subscribe(t, s, "p", "content_updated")
		want := make(map[string]record.DeliveryState)
		var erase []string
		some := func(status int, n int, state record.DeliveryState) {
			for i := range n {
				id := publish(t, s, "p", "content_updated")[0].ID
				if want[id] = state; i == 0 {
					erase = append(erase, id)
				} else {
					want[id] = record.DeliveryState{Status: record.DeliveryStatus(webhook.StatusRetryable)}
				}
			}
			if time.Sleep(time.Minute); status > 0 {
				send(t, s, sub.ID, status)
			}
		}
		erased := record.DeliveryState{Status: record.DeliveryNone, Reason: record.NotSentErased}
		some(200, 1, record.DeliveryState{Status: record.DeliveryStatus(webhook.StatusSuccess)})
		some(404, 1, erased)
		some(503, 1, erased)
		some(503, 3, erased) // the others are retried, then split
		some(404, 2, erased) // split already
		some(0, 1, record.DeliveryState{Status: record.DeliveryStatus(webhook.StatusPending)})
		inFlight := form(t, s, sub.ID, 100)
		some(0, 1, erased)
		for _, id := range erase {
			must(t, s.Write(t.Context(), func(w store.Write) error {
				_, err := w.EraseEvent("p", id, webhook.AuditEntry{})
				return err
			}))
		}
		checkOwed(t, s, &sub, want)
		must(t, s.Events().ClearErased(t.Context()))
		checkOwed(t, s, &sub, want)
		a := webhook.Attempt{Number: 1, StartedAt: time.Now(), ResponseStatus: 503, Result: webhook.ResultRetryable}
		_, err := s.Queues().Record(inFlight, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{})
		must(t, err)
		want[erase[5]] = erased
		checkOwed(t, s, &sub, want)
		must(t, s.Events().ClearErased(t.Context()))
		checkOwed(t, s, &sub, want)
	})
}

func checkOwed(t *testing.T, s *store.Store, sub *webhook.Subscription, want map[string]record.DeliveryState) {
	t.Helper()
	total, err := s.Events().CountOwed(t.Context(), sub, storetest.Query(t, webhook.ReconciliationList, ""), time.Hour)
	must(t, err)
	if diff := cmp.Diff(count(want), total.States); diff != "" || total.Total != len(want) || !total.Complete {
		t.Errorf("%d of %d are counted, complete: %v (-want +got):\n%s", total.Total, len(want), total.Complete, diff)
	}
	for _, statuses := range []string{"", "delivered", "failed", "waiting", "not_sent", "failed,not_sent", "delivered,waiting"} {
		for _, order := range []string{"", "&sort=received_at"} {
			for _, size := range []string{"1", "3", "100"} {
				raw := "page[size]=" + size + order
				if statuses != "" {
					raw += "&filter[status]=" + statuses
				}
				checkOwedPages(t, s, sub, want, raw)
			}
		}
	}
}

// checkOwedPages reads the list of a query.
func checkOwedPages(t *testing.T, s *store.Store, sub *webhook.Subscription, want map[string]record.DeliveryState, raw string) {
	t.Helper()
	q := storetest.Query(t, webhook.ReconciliationList, raw)
	got := make(map[string]record.DeliveryState)
	var seqs []int64
	page := func(ctx context.Context, q *webhook.ListQuery) ([]record.OwedEvent, string, error) {
		events, next, err := s.Events().Owed(ctx, sub, q)
		for i := range events {
			got[events[i].ID] = events[i].DeliveryState
			seqs = append(seqs, events[i].Seq)
		}
		return events, next, err
	}
	readPages(t, raw, q, 100, page, func(o record.OwedEvent) string { return o.ID })
	expected, statuses := maps.Clone(want), q.Filters["status"]
	maps.DeleteFunc(expected, func(_ string, d record.DeliveryState) bool {
		return statuses != nil && !slices.Contains(statuses, d.Group())
	})
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", raw, diff)
	}
	if !strings.Contains(raw, "sort=") {
		slices.Reverse(seqs)
	}
	if !slices.IsSorted(seqs) || len(seqs) != len(got) {
		t.Errorf("%s: the order is %v", raw, seqs)
	}
}

// A count reads a bounded number of events at a time, and says when it did not get to the end.
func TestOwedIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store.Store) {
		sub := storetest.Subscribe(t, s, "p", "content_updated")
		names := make([]string, 100)
		for i := range names {
			names[i] = "content_updated"
		}
		for range 25 {
			publish(t, s, "p", names...)
		}
		q := storetest.Query(t, webhook.ReconciliationList, "")
		for _, tt := range []struct {
			limit    time.Duration
			total    int
			complete bool
		}{{0, 1000, false}, {time.Hour, 2500, true}} {
			got, err := s.Events().CountOwed(t.Context(), &sub, q, tt.limit)
			must(t, err)
			if got.Total != tt.total || got.Complete != tt.complete || got.States[record.DeliveryState{Status: record.DeliveryWaiting}] != tt.total {
				t.Errorf("within %s: got %+v", tt.limit, got)
			}
		}

		// The retention has removed events.
		must(t, write(s, func(tx *sqlite.Tx) error { return tx.Exec("DELETE FROM events WHERE seq = 1") }))
		time.Sleep(time.Hour)
		for raw, truncated := range map[string]bool{"": true, "filter[received_at.from]=" + webhook.FormatTime(time.Now()): false} {
			got, err := s.Events().CountOwed(t.Context(), &sub, storetest.Query(t, webhook.ReconciliationList, raw), 0)
			if must(t, err); got.Truncated != truncated {
				t.Errorf("%q after the retention: %+v", raw, got)
			}
		}

		// A cursor belongs to the subscription and its filters.
		q.Size = 10
		_, next, err := s.Events().Owed(t.Context(), &sub, q)
		must(t, err)
		other := storetest.Subscribe(t, s, "p", "content_updated")
		q.Cursor = next
		_, _, err = s.Events().Owed(t.Context(), &other, q)
		storetest.WantCode(t, err, webhook.CodeInvalid)
		q = storetest.Query(t, webhook.ReconciliationList, "filter[status]=waiting")
		q.Cursor = next
		_, _, err = s.Events().Owed(t.Context(), &sub, q)
		storetest.WantCode(t, err, webhook.CodeInvalid)
	})
}
