package store

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/record"
	"service/webhook"
)

// A probe skips events of the rejected type: the cursor stays, and in the end each event is in
// one delivery, including those published in between.
func TestProbeSkipsEvents(t *testing.T) {
	s := openProgram(t)
	sub := subscribe(t, s, "p", "content_updated", "content_deleted")
	publish(t, s, "p", "content_updated", "content_created", "content_updated", "content_deleted", "content_updated", "content_deleted")
	next := func(except []string, count int) (*Claim, *Forming) {
		t.Helper()
		q := queue(t, s, sub.ID)
		f := s.Queues().Spend(t.Context(), &Credit{Queue: q, Newest: q.Wanted, Count: count, Size: webhook.MaxDeliveryBytes, Except: except})
		f.Submit()
		c, err := f.Wait()
		must(t, err)
		return c, f
	}
	seqs := func(c *Claim) (text string) {
		t.Helper()
		must(t, s.db.Scan(t.Context(), "SELECT seqs FROM deliveries WHERE id = ?", []any{record.ShortID(c.ID)}, &text))
		return text
	}
	for _, want := range []struct {
		except []string
		count  int
		seqs   string
		passed bool
	}{
		{[]string{"content_updated"}, 1, "[4]", true},
		{[]string{"content_deleted", "content_updated"}, 1, "[6]", true}, // no event has a third name
		{[]string{"content_updated"}, 1, "[1]", false},                   // no event has another name
		{[]string{"content_deleted"}, 1, "[3]", false},                   // the next event anyway
		{nil, 100, "[5]", false},
	} {
		c, f := next(want.except, want.count)
		if got := seqs(c); got != want.seqs || f.Skipped != want.passed {
			t.Errorf("except %q: got %s, skipped %t; want %s, %t", want.except, got, f.Skipped, want.seqs, want.passed)
		}
	}
	publish(t, s, "p", "content_deleted", "content_updated")
	if c, _ := next(nil, 100); seqs(c) != "[7,8]" {
		t.Errorf("got %s, want the events published since", seqs(c))
	}
}

// A queue contains the stored health of its subscription, and the time of the next probe as
// a monotonic time.
func TestFailingQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated", "content_deleted")
		policy := webhook.HealthPolicy{RejectingAfter: 2}
		reject := func(name string) Recorded {
			t.Helper()
			publish(t, s, "p", name)
			return attempted(t, s, form(t, s, queue(t, s, sub.ID), 1), 404, policy)
		}
		if r := reject("content_updated"); r.HealthChanged {
			t.Error("one rejection changed its health")
		}
		if q := queue(t, s, sub.ID); q.Failing || !q.Rejected {
			t.Errorf("after one rejection: got %+v", q)
		}
		if r := reject("content_deleted"); !r.HealthChanged {
			t.Error("the second rejection did not change its health")
		}
		q := queue(t, s, sub.ID)
		if !q.Failing || !q.Rejecting || q.Pinged || q.RejectedName != "content_deleted" ||
			!q.NextProbe.Equal(time.Now().Add(webhook.MinProbeWait)) {
			t.Errorf("failing: got %+v", q)
		}
		ping, _, err := s.Queues().claimDue(t.Context(), &Credit{Queue: q, Kind: CreditPing, Probe: true})
		if err != nil || ping == nil || !ping.Probe || !ping.Ping {
			t.Fatalf("the ping before the probe: got %+v, %v", ping, err)
		}
		if r := attempted(t, s, ping, 200, policy); !r.HealthChanged {
			t.Errorf("after the ping's success: got %+v", r)
		}
		if q := queue(t, s, sub.ID); !q.Failing || !q.Pinged || q.NextProbe.After(time.Now()) {
			t.Errorf("after the ping: got %+v", q)
		}
		// All reads the same.
		all, err := s.Queues().All(t.Context())
		if err != nil || len(all) != 1 || !all[0].Pinged || !all[0].Rejecting {
			t.Errorf("All: got %+v, %v", all, err)
		}
	})
}

// Resending is offered until the events are delivered, in whatever way, and not after that. A new
// URL closes the circuit breaker, and the record shows it.
func TestOfferToResend(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated", "content_deleted")
		policy := webhook.HealthPolicy{RejectingAfter: 1}
		start := time.Now()
		time.Sleep(time.Second)
		publish(t, s, "p", "content_updated")
		c := form(t, s, queue(t, s, sub.ID), 1)
		attempted(t, s, c, 404, policy)
		failing, err := s.Subscriptions().Get(t.Context(), "p", sub.ID)
		must(t, err)
		if failing.FailingReason != webhook.FailingRejecting || failing.NextProbeAt.IsZero() {
			t.Fatalf("got %+v, want it failing", failing)
		}
		header := new(string)
		*header = "Bearer other"
		mustWrite(t, s, func(w Write) error {
			got, err := w.Subscriptions().Update("p", sub.ID, &webhook.SubscriptionFields{AuthorizationHeader: &header}, webhook.AuditEntry{})
			if got.NextProbeAt.After(time.Now()) {
				t.Errorf("with another credential: next probe at %s", got.NextProbeAt)
			}
			return err
		})
		other := "https://partner.example/other"
		mustWrite(t, s, func(w Write) error {
			got, err := w.Subscriptions().Update("p", sub.ID, &webhook.SubscriptionFields{URL: &other}, webhook.AuditEntry{})
			if got.Status != webhook.HealthHealthy || got.FailingReason != "" || !got.FailingSince.IsZero() || !got.NextProbeAt.IsZero() {
				t.Errorf("with another URL: got %+v", got)
			}
			return err
		})
		undelivered := func(want int64) {
			t.Helper()
			i, err := s.Incidents().Newest(t.Context(), sub.ID)
			must(t, err)
			if i.Failed != 1 || i.Undelivered != want {
				t.Errorf("got an incident with %d failed deliveries and %d undelivered events, want 1 and %d", i.Failed, i.Undelivered, want)
			}
		}
		undelivered(1)
		_, err = s.Replays().Create(t.Context(), "p", sub.ID, &webhook.ReplayFields{From: start, Only: webhook.ReplayFailed})
		must(t, err)
		again := mustStep(t, s, sub.ID)
		undelivered(1)
		attempted(t, s, again, 200, policy)
		undelivered(0)
		d, err := s.Deliveries().Get(t.Context(), "p", sub.ID, c.ID)
		if err != nil || d.RecoveredAt.IsZero() || d.Status != webhook.StatusFailed {
			t.Errorf("got %+v, %v, want it failed and recovered", d, err)
		}
		n, err := s.Replays().Count(t.Context(), "p", sub.ID, &webhook.ReplayFields{From: start, Only: webhook.ReplayFailed}, 1)
		if err != nil || n.Events != 0 {
			t.Errorf("another replay would send %d events (%v), want 0", n.Events, err)
		}
		if p := planBulk(t, s, webhook.BulkRedeliver, "filter[status]=failed"); p.Done != 0 || p.Skipped[webhook.SkipRecovered] != 1 {
			t.Errorf("a bulk run would redeliver %+v, want nothing", p)
		}
	})
}

// A 413 for several events says nothing about the receiver, but if a probe got it, the next probe
// waits.
func TestProbeTooLarge(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		policy := webhook.HealthPolicy{RejectingAfter: 2}
		publish(t, s, "p", "content_updated", "content_updated", "content_updated", "content_updated")
		several := form(t, s, queue(t, s, sub.ID), 2)
		attempted(t, s, several, 200, policy)
		for range 2 {
			attempted(t, s, form(t, s, queue(t, s, sub.ID), 1), 401, policy)
		}
		_, err := s.Deliveries().Redeliver(t.Context(), "p", sub.ID, several.ID)
		must(t, err)
		time.Sleep(webhook.MaxProbeWait)
		c := mustClaim(t, s, &Credit{Queue: queue(t, s, sub.ID), Kind: CreditDue, BeforeDue: true})
		if !c.Probe || len(c.Events) != 2 {
			t.Fatalf("got %+v, want a probe with two events", c)
		}
		r := attempted(t, s, c, 413, policy)
		q := queue(t, s, sub.ID)
		if !r.Resized || !r.HealthChanged || !q.Failing || !q.Rejecting || !q.NextProbe.After(time.Now()) {
			t.Errorf("got %+v and the queue %+v, want the next probe later", r, q)
		}
		wantNumber(t, "rejections that count", count(t, s, "SELECT rejected FROM failures"), 2)
	})
}

// The alert about a recovery says from when to resend the failed events that are left, unless the
// successful delivery contained them.
func TestAlertOffersToResend(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		sub := subscribe(t, s, "p", "content_updated")
		record := func(c *Claim, status int) {
			t.Helper()
			attempted(t, s, c, status, webhook.HealthPolicy{RejectingAfter: 1})
			time.Sleep(time.Minute)
		}
		attempt := func(status int) *Claim {
			t.Helper()
			publish(t, s, "p", "content_updated")
			c := form(t, s, queue(t, s, sub.ID), 1)
			record(c, status)
			return c
		}
		wantFrom := func(from time.Time) {
			t.Helper()
			var text []byte
			must(t, s.db.Scan(t.Context(), "SELECT json FROM alerts WHERE name = 'subscription_recovered' ORDER BY num DESC LIMIT 1", nil, &text))
			if want := `"resend_from":"` + webhook.FormatTime(from) + `"`; strings.Contains(string(text), "resend_from") != !from.IsZero() ||
				!from.IsZero() && !strings.Contains(string(text), want) {
				t.Errorf("got the alert %s, want it to resend from %s", text, from)
			}
		}
		first := time.Now()
		failed := attempt(401)
		attempt(200)
		wantFrom(first)
		attempt(401)
		_, err := s.Replays().Create(t.Context(), "p", sub.ID, &webhook.ReplayFields{From: first, Only: webhook.ReplayFailed})
		must(t, err)
		c := mustStep(t, s, sub.ID)
		record(c, 200)
		wantFrom(time.Time{})
		d, err := s.Deliveries().Get(t.Context(), "p", sub.ID, failed.ID)
		if err != nil || d.RecoveredAt.IsZero() {
			t.Errorf("got %+v (%v), want it recovered", d, err)
		}
	})
}

// A clock jump does not change when a probe is due, whether the queue is read before or after
// the commit that records the jump. A queue read during that commit is read again.
func TestProbeAfterClockJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead time.Duration
		s := opened(t, Config{Dir: memoryDir(t), Now: func() time.Time { return time.Now().Add(ahead).Round(0) }})
		defer s.Close()
		program(t, s, "p")
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated")
		c := form(t, s, queue(t, s, sub.ID), 1)
		attempted(t, s, c, 404, webhook.HealthPolicy{RejectingAfter: 1})
		watch := s.Watch()
		defer watch.Close()
		ahead = -6 * time.Hour
		if at := queue(t, s, sub.ID).NextProbe; !at.Equal(time.Now().Add(webhook.MinProbeWait)) {
			t.Errorf("before the commit that records the jump: probe due in %s", time.Until(at))
		}
		publish(t, s, "p", "content_updated")
		if _, notified := watch.Take().Subscriptions[sub.ID]; !notified {
			t.Error("the change of the probe's time was not announced")
		}
		if at := queue(t, s, sub.ID).NextProbe; !at.Equal(time.Now().Add(webhook.MinProbeWait)) {
			t.Errorf("after the commit: probe due in %s", time.Until(at))
		}
	})
}
