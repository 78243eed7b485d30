package store

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite/sqlitetest"
	"service/webhook"
)

// incidentWorld records attempts of one subscription.
type incidentWorld struct {
	*testing.T
	s      *Store
	sub    webhook.Subscription
	policy webhook.HealthPolicy
}

// inIncident runs a test with a subscription of a store with housekeeping. The circuit breaker
// opens at the third rejection or the third retryable attempt.
func inIncident(t *testing.T, test func(*testing.T, *incidentWorld)) {
	t.Helper()
	inBubble(t, func(t *testing.T, s *Store) {
		w := &incidentWorld{t, s, subscribe(t, s, "p", "content_updated"), webhook.HealthPolicy{FailingAfter: 3, RejectingAfter: 3}}
		stop := background(t, s.Housekeep)
		defer stop()
		test(t, w)
	})
}

// attempt publishes an event and records its number-th attempt with a response status, 0 for a
// timeout.
func (w *incidentWorld) attempt(number, status int) *Claim {
	w.Helper()
	publish(w.T, w.s, "p", "content_updated")
	c := form(w.T, w.s, queue(w.T, w.s, w.sub.ID), 1)
	w.record(c, number, status)
	return c
}

func (w *incidentWorld) record(c *Claim, number, status int) {
	w.Helper()
	a := webhook.Attempt{Number: number, StartedAt: time.Now(), ResponseStatus: status}
	if status == 0 {
		a.Error, a.ErrorFact = webhook.ErrorTimeout, "no response"
	}
	a.Result = webhook.Classify(status, a.Error)
	recordResult(w.T, w.s, c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), w.policy)
}

// all returns all incidents, oldest first.
func (w *incidentWorld) all() []webhook.Incident {
	w.Helper()
	q, invalid := webhook.IncidentList.Parse(url.Values{"sort": {"opened_at"}})
	if invalid != nil {
		w.Fatal(invalid)
	}
	all, _, err := w.s.Incidents().Page(w.Context(), "p", &q)
	must(w.T, err)
	return all
}

func (w *incidentWorld) want(closed ...webhook.IncidentEnd) []webhook.Incident {
	w.Helper()
	synctest.Wait()
	all := w.all()
	var got []webhook.IncidentEnd
	open := 0
	for _, i := range all {
		got = append(got, i.ClosedBy)
		if i.Open() {
			open++
		}
	}
	if !slices.Equal(got, closed) {
		w.Fatalf("incidents are closed by %q, want %q", got, closed)
	}
	if n, err := w.s.Incidents().CountOpen(w.Context(), "p"); err != nil || n != open {
		w.Errorf("%d are open, %v, want %d", n, err, open)
	}
	return all
}

// An incident opens with the first delivery that fails permanently, before the circuit breaker
// opens, and closes with the breaker.
func TestIncidentOfARejectingSubscription(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		w.attempt(1, 200)
		succeeded := time.Now()
		w.want()
		time.Sleep(time.Minute)
		w.attempt(1, 401)
		first := time.Now()
		i := w.want("")[0]
		if i.FailingReason != "" || i.Failed != 1 || !i.FirstFailure.Equal(first) || !i.LastSuccess.Equal(succeeded) ||
			i.ResponseStatus != 401 || i.DeliveryID == "" {
			t.Errorf("after one rejection: got %+v", i)
		}
		time.Sleep(time.Minute)
		w.attempt(1, 403)
		last := w.attempt(1, 404)
		publish(t, w.s, "p", "content_updated", "content_updated")
		i = w.want("")[0]
		if i.FailingReason != webhook.FailingRejecting || i.Failed != 3 || !i.FirstFailure.Equal(first) || !i.LastFailure.Equal(time.Now()) ||
			i.ResponseStatus != 404 || i.DeliveryID != last.ID || i.WaitingEvents != 2 ||
			!i.NextProbe.Equal(time.Now().Add(webhook.MinProbeWait)) || !i.FailedFrom.Equal(first) {
			t.Errorf("failing: got %+v", i)
		}
		time.Sleep(2 * webhook.IncidentQuiet) // an open circuit breaker keeps it open
		w.want("")
		ping := mustClaim(t, w.s, &Credit{Queue: queue(t, w.s, w.sub.ID), Kind: CreditPing, Probe: true})
		w.record(ping, 1, 401)
		time.Sleep(webhook.MaxProbeWait)
		c := form(t, w.s, queue(t, w.s, w.sub.ID), 1)
		w.record(c, 1, 200)
		i = w.want(webhook.IncidentHealthy)[0]
		if i.FailingReason != webhook.FailingRejecting || i.Failed != 3 || i.Probes != 1 || i.WaitingEvents != 0 ||
			!i.ClosedAt.Equal(time.Now()) || i.DeliveryID != ping.ID || !i.LastSuccess.Equal(succeeded) {
			t.Errorf("closed: got %+v", i)
		}
		_, err := w.s.Replays().Create(t.Context(), "p", w.sub.ID, &webhook.ReplayFields{From: first, Only: webhook.ReplayFailed})
		must(t, err)
		i, err = w.s.Incidents().Get(t.Context(), "p", i.ID)
		must(t, err)
		var kinds []webhook.IncidentEntryKind
		for _, e := range i.Timeline {
			kinds = append(kinds, e.Kind)
		}
		want := []webhook.IncidentEntryKind{"opened", "alert", "alert", "probe", "alert", "probe", "closed", "resent"}
		if !slices.Equal(kinds, want) {
			// The successful probe, the alert and the end have the same time.
			t.Errorf("timeline: got %q, want %q", kinds, want)
		}
		for _, e := range i.Timeline {
			if e.Probe != nil && e.Probe.DeliveryID == "" || e.Alert == webhook.AlertRecovered && !e.At.Equal(i.ClosedAt) {
				t.Errorf("unexpected entry %+v", e)
			}
		}
	})
}

// An incident of an unreachable subscription opens with the circuit breaker, before anything
// has failed permanently. Its first failure is the first of those attempts.
func TestIncidentOfAnUnreachableSubscription(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		w.attempt(1, 503)
		first := time.Now()
		w.attempt(1, 503)
		w.want()
		time.Sleep(webhook.FailingOver)
		w.attempt(1, 0)
		i := w.want("")[0]
		if i.FailingReason != webhook.FailingUnreachable || i.Failed != 0 || !i.FirstFailure.Equal(first) || i.Error != webhook.ErrorTimeout ||
			i.ErrorFact != "no response" || i.WaitingEvents != 3 {
			t.Errorf("got %+v", i)
		}
	})
}

// Without an open circuit breaker, an incident closes when nothing has failed permanently for
// an hour, regardless of successes, and not before.
func TestIncidentCloses(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		w.attempt(5, 500)
		for range 5 {
			time.Sleep(webhook.IncidentQuiet / 2)
			w.attempt(1, 200)
			w.attempt(1, 404)
			if i := w.want("")[0]; i.FailingReason != "" || !i.LastSuccess.Equal(time.Now()) {
				t.Errorf("got %+v", i)
			}
		}
		w.attempt(1, 200)
		time.Sleep(webhook.IncidentQuiet - time.Second)
		w.want("")
		time.Sleep(2 * time.Second)
		if i := w.want(webhook.IncidentIsQuiet)[0]; i.Failed != 6 || i.ResponseStatus != 404 {
			t.Errorf("got %+v", i)
		}
		w.attempt(1, 410)
		if i := w.want(webhook.IncidentIsQuiet, "")[1]; i.Failed != 1 {
			t.Errorf("next incident: got %+v", i)
		}
	})
}

// A new URL, an activation and a deletion close an incident. Retention removes closed
// incidents.
func TestIncidentEndsWithItsSubscription(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		fail := func() { w.attempt(1, 404) }
		fail()
		other := "https://partner.example/other"
		_, err := w.s.Subscriptions().Update(t.Context(), "p", w.sub.ID, &webhook.SubscriptionFields{URL: &other})
		must(t, err)
		w.want(webhook.IncidentChanged)
		time.Sleep(time.Minute)
		fail()
		unsubscribe(t, w.s, "p", w.sub.ID)
		w.want(webhook.IncidentChanged, webhook.IncidentDeleted)
		time.Sleep(time.Second)
		sweepAt(t, w.s, time.Now().Add(-30*time.Second))
		w.want(webhook.IncidentDeleted)
	})
}

// A delivery whose last attempt was interrupted by the end of the process has failed
// permanently.
func TestIncidentOfAnInterruptedAttempt(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		publish(t, w.s, "p", "content_updated")
		c := form(t, w.s, queue(t, w.s, w.sub.ID), 1)
		execute(t, w.s, "UPDATE deliveries SET attempts_made = 5 WHERE num = ?", c.num)
		n, err := w.s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy())
		if err != nil || n != 1 {
			t.Fatalf("recovered %d, %v", n, err)
		}
		if i := w.want("")[0]; i.Failed != 1 {
			t.Errorf("got %+v", i)
		}
		time.Sleep(webhook.IncidentQuiet + housekeepingPause)
		w.want(webhook.IncidentIsQuiet)
	})
}

// An expired delivery has failed permanently: it opens an incident or counts in the open one.
// Pings and deliveries of deleted subscriptions do neither.
func TestIncidentOfAnExpiredDelivery(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		other := subscribe(t, w.s, "p", "content_updated")
		publish(t, w.s, "p", "content_updated")
		accepted := time.Now()
		for range 2 {
			w.record(form(t, w.s, queue(t, w.s, w.sub.ID), 1), 1, 500)
			publish(t, w.s, "p", "content_updated")
			time.Sleep(time.Second)
		}
		w.record(form(t, w.s, queue(t, w.s, other.ID), 1), 1, 500)
		unsubscribe(t, w.s, "p", other.ID)
		w.want()
		time.Sleep(time.Minute)
		edge := time.Now()
		deliver(t, w.s, w.sub.ID, webhook.StatusSuccess) // the newest delivery is not removed
		swept := sweepAt(t, w.s, edge)
		if i := w.want("")[0]; i.Failed != 2 || i.FailingReason != "" || !i.FailedFrom.Equal(accepted.UTC().Truncate(time.Millisecond)) ||
			swept.Expired < 2 {
			t.Errorf("got %+v, after sweep %+v", i, swept)
		}
		publish(t, w.s, "p", "content_updated")
		w.record(form(t, w.s, queue(t, w.s, w.sub.ID), 1), 1, 500)
		time.Sleep(time.Minute)
		edge = time.Now()
		publish(t, w.s, "p", "content_updated")
		deliver(t, w.s, w.sub.ID, webhook.StatusSuccess)
		sweepAt(t, w.s, edge)
		if i := w.want("")[0]; i.Failed != 3 {
			t.Errorf("got %+v", i)
		}
	})
}

// An incident counts the failed deliveries that were delivered again, and names one of their events.
func TestRecoveredInAnIncident(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		w.attempt(1, 404)
		time.Sleep(time.Second)
		w.attempt(1, 404)
		var example string
		must(t, w.s.db.Scan(t.Context(), "SELECT id FROM events ORDER BY seq LIMIT 1", nil, &example))
		id := w.want("")[0].ID
		i, err := w.s.Incidents().Get(t.Context(), "p", id)
		if err != nil || i.FailedEvent != example || i.Undelivered != 2 || i.Recovered != 0 || !i.RecoveredAt.IsZero() {
			t.Errorf("before: got %+v, %v; want event %s", i, err, example)
		}
		runBulk(t, w.s, webhook.BulkRedeliver, webhook.NewID(), "filter[status]=failed", 0)
		time.Sleep(time.Second)
		deliverAll(t, w.s, w.sub.ID)
		i, err = w.s.Incidents().Get(t.Context(), "p", id)
		if err != nil || i.FailedEvent == "" || i.Undelivered != 0 || i.Recovered != 2 || !i.RecoveredAt.Equal(time.Now()) {
			t.Errorf("after: got %+v, %v", i, err)
		}
	})
}

// The timeline contains what was resent: by which admin, how many deliveries, and their results.
func TestTimelineOfResending(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		for range 2 {
			w.attempt(1, 404)
			time.Sleep(time.Second)
		}
		run := runBulk(t, w.s, webhook.BulkRedeliver, webhook.NewID(), "filter[status]=failed", 0)
		time.Sleep(time.Second)
		deliverAll(t, w.s, w.sub.ID)
		must(t, w.s.Write(t.Context(), func(sw Write) error {
			plan, err := w.s.Replays().Plan(t.Context(), "p", w.sub.ID,
				&webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll})
			if err != nil {
				return err
			}
			r, err := sw.Replays().Create(plan, webhook.AuditEntry{})
			if err != nil {
				return err
			}
			return sw.Audit(webhook.AuditEntry{Admin: "grace@example.com", Action: webhook.ActionSubscriptionReplay, ProgramID: "p",
				SubjectID: w.sub.ID, Detail: "all; replay " + r.ID})
		}))
		i, err := w.s.Incidents().Get(t.Context(), "p", w.want("")[0].ID)
		must(t, err)
		var resent []webhook.IncidentResend
		for _, e := range i.Timeline {
			if e.Kind == webhook.IncidentEntryResent {
				resent = append(resent, *e.Resent)
			}
		}
		if len(resent) != 2 {
			t.Fatalf("timeline: got %+v", i.Timeline)
		}
		if r := resent[0]; r.BulkRunID != run.ID || r.Admin != "ada@example.com" || r.Running || r.Deliveries != 2 ||
			r.Results[webhook.StatusSuccess] != 2 {
			t.Errorf("bulk run: got %+v", r)
		}
		if r := resent[1]; r.ReplayID == "" || r.Admin != "grace@example.com" || !r.Running || r.Deliveries != 0 {
			t.Errorf("replay: got %+v", r)
		}
		newest, err := w.s.Incidents().Newest(t.Context(), w.sub.ID)
		if err != nil || newest.ID != i.ID || newest.Failed != 2 {
			t.Errorf("newest incident: got %+v, %v", newest, err)
		}
		_, err = w.s.Incidents().Newest(t.Context(), webhook.NewID())
		wantCode(t, err, webhook.CodeNotFound)
	})
}

// A closed incident is unrecovered until its failed events are delivered, or the next one opens.
func TestUnrecoveredIncidents(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		unrecovered := func(want ...string) {
			t.Helper()
			all, err := w.s.Incidents().Unrecovered(t.Context(), "p", time.Now().Add(-24*time.Hour), 10)
			must(t, err)
			var got []string
			for _, i := range all {
				got = append(got, i.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		quiet := func(closed ...webhook.IncidentEnd) string {
			t.Helper()
			unrecovered()
			time.Sleep(webhook.IncidentQuiet + time.Second)
			return w.want(closed...)[len(closed)-1].ID
		}
		w.attempt(1, 404)
		first := quiet(webhook.IncidentIsQuiet)
		unrecovered(first)
		w.attempt(1, 404)
		second := quiet(webhook.IncidentIsQuiet, webhook.IncidentIsQuiet)
		unrecovered(second)
		runBulk(t, w.s, webhook.BulkRedeliver, webhook.NewID(), "filter[status]=failed", 0)
		unrecovered(second)
		deliverAll(t, w.s, w.sub.ID)
		unrecovered()
		w.attempt(1, 404)
		third := quiet(webhook.IncidentIsQuiet, webhook.IncidentIsQuiet, webhook.IncidentIsQuiet)
		time.Sleep(23 * time.Hour)
		unrecovered(third)
		time.Sleep(2 * time.Hour)
		unrecovered()
	})
}

// An incident adds no writes to a failed attempt, and a success writes nothing about it.
func TestStatementsOfAnIncident(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		w.policy = webhook.HealthPolicy{}
		count := func(status int) (changes int64) {
			publish(t, w.s, "p", "content_updated")
			c := form(t, w.s, queue(t, w.s, w.sub.ID), 1)
			total := func() (n int64) {
				must(t, w.s.writer.do(func(t *tx) error { return t.Scan("SELECT total_changes()", nil, &n) }))
				return n
			}
			before := total()
			w.record(c, 1, status)
			return total() - before
		}
		count(200)
		success := count(200)
		opening := count(404)
		failing := count(404)
		again := count(404)
		w.want("")
		recovering := count(200)
		then := count(200)
		if opening != failing+1 || again != failing || then != success || recovering != success+1 {
			t.Errorf("rows changed: success %d, failure that opens %d, next failures %d and %d, next successes %d and %d",
				success, opening, failing, again, recovering, then)
		}
	})
}

// Incidents can be filtered, and pages follow each other.
func TestIncidentList(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		program(t, w.s, "q")
		var subs []webhook.Subscription
		start := time.Now()
		for n := range 6 {
			sub := subscribe(t, w.s, []string{"p", "q"}[n%2], "content_updated")
			subs = append(subs, sub)
			publish(t, w.s, sub.ProgramID, "content_updated")
			time.Sleep(time.Minute)
			w.sub = sub
			w.record(form(t, w.s, queue(t, w.s, sub.ID), 1), 1, 404)
		}
		unsubscribe(t, w.s, "p", subs[0].ID)
		for _, c := range []struct {
			program string
			filter  url.Values
			want    []int
		}{
			{"p", nil, []int{4, 2, 0}},
			{"q", url.Values{"sort": {"opened_at"}}, []int{1, 3, 5}},
			{"", nil, []int{5, 4, 3, 2, 1, 0}},
			{"", url.Values{"filter[program_id]": {"q"}}, []int{5, 3, 1}},
			{"p", url.Values{"filter[status]": {"open"}}, []int{4, 2}},
			{"", url.Values{"filter[status]": {"resolved"}}, []int{0}},
			{"p", url.Values{"filter[closed_by]": {"deleted,quiet"}}, []int{0}},
			{"p", url.Values{"filter[subscription_id]": {subs[2].ID + "," + subs[3].ID}}, []int{2}},
			{"", url.Values{"filter[failing_reason]": {"rejecting"}}, nil},
			{"", url.Values{"filter[opened_at.from]": {webhook.FormatTime(start.Add(4 * time.Minute))}}, []int{5, 4, 3}},
			{"", url.Values{"filter[closed_at.to]": {webhook.FormatTime(start.Add(time.Hour))}}, []int{0}},
		} {
			list := webhook.IncidentList
			if c.program == "" {
				list = webhook.AllIncidentList
			}
			values := url.Values{"page[size]": {"2"}}
			for name, v := range c.filter {
				values[name] = v
			}
			got := w.listed(c.program, list, values, subs)
			if !slices.Equal(got, c.want) {
				t.Errorf("%q %v: %v, want %v", c.program, c.filter, got, c.want)
			}
		}
		all := w.all()
		_, err := w.s.Incidents().Get(t.Context(), "q", all[0].ID)
		wantCode(t, err, webhook.CodeNotFound)
	})
}

// listed returns the subscriptions of the incidents in a list, by index, page by page.
func (w *incidentWorld) listed(program string, list *webhook.List, values url.Values, subs []webhook.Subscription) (got []int) {
	w.Helper()
	for {
		q, invalid := list.Parse(values)
		if invalid != nil {
			w.Fatal(invalid)
		}
		page, next, err := w.s.Incidents().Page(w.Context(), program, &q)
		must(w.T, err)
		for _, i := range page {
			got = append(got, slices.IndexFunc(subs, func(s webhook.Subscription) bool { return s.ID == i.SubscriptionID }))
		}
		if next == "" {
			return got
		}
		values.Set("page[cursor]", next)
	}
}

// Open returns the most severe incident first.
func TestOpenIncidents(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		w.policy.RejectingAfter = 2
		one, two, three := w.sub, subscribe(t, w.s, "p", "content_updated"), subscribe(t, w.s, "p", "content_updated")
		fail := func(sub webhook.Subscription, times int) {
			w.sub = sub
			for range times {
				w.record(form(t, w.s, queue(t, w.s, sub.ID), 1), 1, 404)
			}
		}
		publish(t, w.s, "p", "content_updated", "content_updated", "content_updated", "content_updated")
		fail(one, 1)
		fail(two, 2)
		time.Sleep(time.Minute)
		fail(three, 2)
		other := "https://partner.example/other"
		_, err := w.s.Subscriptions().Update(t.Context(), "p", one.ID, &webhook.SubscriptionFields{Description: &other})
		must(t, err)
		fail(three, 1)
		all, err := w.s.Incidents().Open(t.Context(), "", 10, 100)
		must(t, err)
		var got []string
		for _, i := range all {
			got = append(got, i.SubscriptionID)
		}
		if want := []string{two.ID, three.ID, one.ID}; !slices.Equal(got, want) || all[0].WaitingEvents != 2 || all[1].WaitingEvents != 1 ||
			all[1].Failed != 3 || all[2].Description != other {
			t.Errorf("got %+v", all)
		}
	})
}

func TestIncidentPlans(t *testing.T) {
	s := open(t)
	for _, c := range []struct {
		query string
		args  int
		want  string
	}{
		{selectAgedIncidents, 2, "incidents_closed (counted_at<?)"},
		{selectSuccessBefore, 1, "deliveries_completed (subscription=?"},
	} {
		sqlitetest.CheckPlan(t, s.db, c.query, c.args, c.want)
	}
}

// Events that fail permanently although the subscription is not failing are reported once per hour,
// with their number and the last response. Those of a batch are reported once they have failed alone.
func TestAlertOfFailedEvents(t *testing.T) {
	inIncident(t, func(t *testing.T, w *incidentWorld) {
		w.policy = webhook.HealthPolicy{}
		reject := func(events int) {
			t.Helper()
			publish(t, w.s, "p", slices.Repeat([]string{"content_updated"}, events)...)
			w.record(form(t, w.s, queue(t, w.s, w.sub.ID), events), 1, 422)
		}
		alerts := func() (all []string) {
			t.Helper()
			must(t, w.s.db.Each(t.Context(), "SELECT json FROM alerts WHERE name = 'events_failed' ORDER BY num", nil,
				func(scan func(...any) error) error {
					var text []byte
					err := scan(&text)
					all = append(all, string(text))
					return err
				}))
			return all
		}
		reject(10)
		if got := alerts(); len(got) != 0 {
			t.Errorf("a batch was refused: got %d alerts, want none", len(got))
		}
		reject(1)
		time.Sleep(50 * time.Second)
		reject(1)
		time.Sleep(10 * time.Minute)
		reject(1)
		got := alerts()
		if len(got) != 1 || !strings.Contains(got[0], `"failed_events":2}`) || !strings.Contains(got[0], `"response_status":422`) {
			t.Errorf("three events were refused within the hour: got %q, want one alert", got)
		}
		time.Sleep(55 * time.Minute)
		reject(1)
		if got := alerts(); len(got) != 2 || !strings.Contains(got[1], `"failed_events":4}`) {
			t.Errorf("another was refused an hour later: got %q, want a second alert about four", got)
		}
	})
}
