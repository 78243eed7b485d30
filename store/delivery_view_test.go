package store

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/tail"
	"service/webhook"
)

func TestDeliveryView(t *testing.T) {
	s, sub := openSubscribed(t)
	events := publish(t, s, "p", "content_updated", "content_updated")
	c := form(t, s, queue(t, s, sub.ID), 100)
	d, err := s.Deliveries().View(t.Context(), c.ID)
	must(t, err)
	if d.ClaimedAt.IsZero() || d.Subscription.ID != sub.ID || len(d.EventJSON) != 2 || string(d.EventJSON[1]) != string(events[1].JSON) ||
		d.Redeliveries != nil {
		t.Errorf("in flight: got %+v", d)
	}
	a := webhook.Attempt{Number: 1, StartedAt: time.UnixMilli(1773476688644).UTC(), Duration: time.Second, Result: webhook.ResultFailed,
		ResponseStatus: 404,
		ResponseHeader: "A: b\n", ResponseBody: []byte("gone"), ResponseTruncated: true,
		Phases: webhook.Phases{DNS: 1 * time.Millisecond, Connect: 2 * time.Millisecond, TLS: 3 * time.Millisecond,
			FirstByte: 4 * time.Microsecond}}
	step := webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected}
	recordResult(t, s, c, &a, step, webhook.HealthPolicy{})
	var again []string
	for range 2 {
		r, err := s.Deliveries().Redeliver(t.Context(), "p", sub.ID, c.ID)
		must(t, err)
		again = append(again, r.ID)
	}
	unsubscribe(t, s, "p", sub.ID)
	if d, err = s.Deliveries().View(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	a.URL = sub.URL
	if diff := cmp.Diff([]webhook.Attempt{a}, d.Attempts); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if !d.ClaimedAt.IsZero() || d.Subscription.DeletedAt.IsZero() {
		t.Errorf("completed: got %+v", d)
	}
	var got []string
	for _, r := range d.Redeliveries {
		got = append(got, r.ID)
		if r.Status != webhook.StatusFailed || r.CreatedAt.IsZero() {
			t.Errorf("redelivery: got %+v", r)
		}
	}
	if diff := cmp.Diff(again, got); diff != "" {
		t.Errorf("redeliveries (-want +got):\n%s", diff)
	}
	// Retention can remove its events before the delivery.
	execute(t, s, "DELETE FROM events WHERE seq = 1")
	s.tail = tail.New(0)
	if d, err = s.Deliveries().View(t.Context(), c.ID); err != nil || d.EventJSON != nil {
		t.Errorf("without an event: got %q, %v", d.EventJSON, err)
	}
	_, err = s.Deliveries().View(t.Context(), webhook.NewID())
	wantCode(t, err, webhook.CodeNotFound)
	if strings.Contains(err.Error(), "sql") {
		t.Errorf("the error exposes SQL: %v", err)
	}
}

// The detail of an error is stored with its attempt, not as part of a response.
func TestErrorFactIsStored(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated")
	c := form(t, s, queue(t, s, sub.ID), 100)
	a := webhook.Attempt{Number: 1, StartedAt: time.UnixMilli(1773476688644).UTC(), Duration: time.Second, Result: webhook.ResultFailed,
		Error: webhook.ErrorConnect, ErrorFact: "connection refused", ResponseBody: []byte{}}
	step := webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureAttemptsExhausted}
	recordResult(t, s, c, &a, step, webhook.HealthPolicy{})
	d, err := s.Deliveries().View(t.Context(), c.ID)
	must(t, err)
	a.URL = sub.URL
	if diff := cmp.Diff([]webhook.Attempt{a}, d.Attempts); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
}
