package store

import (
	"fmt"
	"testing"

	"service/webhook"
)

// setURL changes the URL of a subscription.
func setURL(t *testing.T, s *Store, programID, id, url string) {
	t.Helper()
	mustWrite(t, s, func(w Write) error {
		_, err := w.Subscriptions().Update(programID, id, &webhook.SubscriptionFields{URL: &url}, webhook.AuditEntry{})
		return err
	})
}

// sentTo returns the URLs of the attempts of a delivery.
func sentTo(t *testing.T, s *Store, programID, subscriptionID, id string) (urls []string) {
	t.Helper()
	d, err := s.Deliveries().Get(t.Context(), programID, subscriptionID, id)
	must(t, err)
	for _, a := range d.Attempts {
		urls = append(urls, a.URL)
	}
	return urls
}

// An attempt keeps the URL that it was sent to, even after the subscription's URL changes.
func TestAttemptURL(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated", "content_updated", "content_updated", "content_updated")
	const second, third = "https://second.example", "https://third.example"
	before := form(t, s, queue(t, s, sub.ID), 1)
	retried := form(t, s, queue(t, s, sub.ID), 1)
	interrupted := form(t, s, queue(t, s, sub.ID), 1)
	back := form(t, s, queue(t, s, sub.ID), 1)
	late := *before
	setURL(t, s, "p", sub.ID, second)
	attempted(t, s, retried, 503, webhook.HealthPolicy{})
	c := mustClaim(t, s, &Credit{Queue: queue(t, s, sub.ID), Kind: CreditDue, BeforeDue: true})
	setURL(t, s, "p", sub.ID, third)
	attempted(t, s, c, 200, webhook.HealthPolicy{})
	late.URLNumber = queue(t, s, sub.ID).URLNumber // as if the change was seen before the attempt was sent
	attempted(t, s, &late, 200, webhook.HealthPolicy{})
	attempted(t, s, back, 503, webhook.HealthPolicy{})
	mustClaim(t, s, &Credit{Queue: queue(t, s, sub.ID), Kind: CreditDue, BeforeDue: true})
	must(t, s.writer.do(func(t *tx) error { // the clock was set back before this claim
		return t.Exec("UPDATE deliveries SET claimed_at = claimed_at - 3600000 WHERE num = ?", back.num)
	}))
	if n, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy()); n != 2 || err != nil {
		t.Fatalf("recovered %d attempts (%v), want 2", n, err)
	}
	for id, want := range map[string][]string{
		before.ID: {third}, retried.ID: {sub.URL, second}, interrupted.ID: {sub.URL}, back.ID: {sub.URL, third},
	} {
		if got := sentTo(t, s, "p", sub.ID, id); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got attempts to %q, want %q", got, want)
		}
	}
}

// Only the newest URLs are stored, so that URL changes store a bounded amount.
func TestOldURLsBounded(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated")
	c := form(t, s, queue(t, s, sub.ID), 1)
	attempted(t, s, c, 200, webhook.HealthPolicy{})
	for i := range maxOldURLs {
		setURL(t, s, "p", sub.ID, fmt.Sprintf("https://partner.example/%d", i))
	}
	if got := sentTo(t, s, "p", sub.ID, c.ID); got[0] != sub.URL {
		t.Errorf("after %d changes: got the URL %q, want %q", maxOldURLs, got[0], sub.URL)
	}
	setURL(t, s, "p", sub.ID, sub.URL)
	if got := sentTo(t, s, "p", sub.ID, c.ID); got[0] != "" {
		t.Errorf("after %d changes: got the URL %q, want none", maxOldURLs+1, got[0])
	}
	setURL(t, s, "p", sub.ID, "https://partner.example/last")
	for url, want := range map[string]int64{"url <> ''": maxOldURLs, "url = ''": 1} {
		wantNumber(t, "stored rows with "+url, count(t, s, "SELECT count(*) FROM old_urls WHERE "+url), want)
	}
}

// Retention removes the URLs that no stored delivery can name.
func TestOldURLsAge(t *testing.T) {
	s, sub := openSubscribed(t)
	other := subscribe(t, s, "p", "content_deleted")
	publish(t, s, "p", "content_updated", "content_updated")
	attempted(t, s, form(t, s, queue(t, s, sub.ID), 1), 200, webhook.HealthPolicy{})
	setURL(t, s, "p", sub.ID, "https://second.example")
	kept := form(t, s, queue(t, s, sub.ID), 1)
	attempted(t, s, kept, 200, webhook.HealthPolicy{})
	setURL(t, s, "p", sub.ID, "https://third.example")
	setURL(t, s, "p", other.ID, "https://fourth.example")
	must(t, s.writer.do(func(t *tx) error {
		if err := t.Exec("DELETE FROM deliveries WHERE num < ?", kept.num); err != nil {
			return err
		}
		return t.Exec("DELETE FROM deliveries WHERE subscription_id = ?", other.ID)
	}))
	w := newSweep(t.Context(), s)
	w.steps.size = 1
	must(t, w.rest())
	if got := sentTo(t, s, "p", sub.ID, kept.ID); got[0] != "https://second.example" {
		t.Errorf("got the URL %q", got[0])
	}
	wantNumber(t, "stored URLs", count(t, s, "SELECT count(*) FROM old_urls"), 1)
}

// The result of an attempt to an earlier URL neither adds to the failures of the current URL nor
// ends them.
func TestEarlierURLDoesNotCount(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated", "content_updated", "content_updated", "content_updated")
	const failures = "SELECT coalesce(sum(count + rejected), 0) FROM failures"
	var earlier []*Claim
	for range 3 {
		earlier = append(earlier, form(t, s, queue(t, s, sub.ID), 1))
	}
	setURL(t, s, "p", sub.ID, "https://second.example")
	attempted(t, s, earlier[0], 500, webhook.HealthPolicy{})
	attempted(t, s, earlier[1], 401, webhook.HealthPolicy{})
	wantNumber(t, "failures after those of the earlier URL", count(t, s, failures), 0)
	attempted(t, s, form(t, s, queue(t, s, sub.ID), 1), 500, webhook.HealthPolicy{})
	wantNumber(t, "failures after one of the current URL", count(t, s, failures), 1)
	attempted(t, s, earlier[2], 200, webhook.HealthPolicy{})
	wantNumber(t, "failures after a success of the earlier URL", count(t, s, failures), 1)
	if d, err := s.Deliveries().Get(t.Context(), "p", sub.ID, earlier[2].ID); err != nil || d.Status != webhook.StatusSuccess {
		t.Errorf("got %s (%v), want success", d.Status, err)
	}
}
