package record_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"service/store/record"
	"service/store/sqlite"
	"service/store/storetest"
	"service/webhook"
)

// The result of an event counts each subscription once: as delivered if one of its deliveries
// succeeded, even if a newer one did not, else by its newest delivery. It includes the subscriptions
// that have not reached the event yet.
func TestEventResults(t *testing.T) {
	s := storetest.Open(t, "p", "q")
	var subs []webhook.Subscription
	for range 5 {
		subs = append(subs, storetest.Subscribe(t, s, "p", "content_updated"))
	}
	storetest.Subscribe(t, s, "p", "channel_created")
	first := publish(t, s, "p", "content_updated", "content_deleted")
	for i, status := range []int{200, 404, 503, 200} {
		c := send(t, s, subs[i].ID, status)
		if i == 3 {
			_, err := storetest.Redeliver(t.Context(), s, "p", subs[i].ID, c.ID)
			must(t, err)
		}
	}
	other := publish(t, s, "q", "content_updated")
	second := publish(t, s, "p", "content_updated")
	events := slices.Concat(second, other, first)
	events[1].ProgramID = "q"
	for _, i := range []int{0, 2, 3} {
		events[i].ProgramID = "p"
	}
	got, err := s.Events().Results(t.Context(), events)
	want := []record.EventResult{
		{Waiting: 5}, {},
		{Delivered: 2, Failed: 1, Retrying: 1, Waiting: 1}, {},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}

	// A deleted subscription does not retry.
	_, err = storetest.DeleteSubscription(t.Context(), s, "p", subs[2].ID)
	must(t, err)
	if got, err = s.Events().Results(t.Context(), events[2:3]); err != nil ||
		got[0] != (record.EventResult{Delivered: 2, Failed: 2, Waiting: 1}) {
		t.Errorf("after a subscription was deleted: %+v, %v", got, err)
	}

	// Deliveries that retention has removed were accepted.
	for _, statement := range []string{
		"DELETE FROM delivery_events WHERE delivery IN (SELECT num FROM deliveries WHERE subscription_id = '" + subs[0].ID + "')",
		fmt.Sprintf("INSERT INTO delivered VALUES ('%s', 'content_updated', %d, %d)", subs[0].ID, first[0].Seq, first[0].Seq),
	} {
		must(t, write(s, func(t *sqlite.Tx) error { return t.Exec(statement) }))
	}
	if got, err = s.Events().Results(t.Context(), events[2:3]); err != nil ||
		got[0] != (record.EventResult{Delivered: 2, Failed: 2, Waiting: 1}) {
		t.Errorf("after deliveries were removed: %+v, %v", got, err)
	}
}
