package web

import (
	"strings"
	"testing"
	"time"

	"service/store"
	"service/webhook"
)

// TestResendRejected checks that the subscription page explains why it is failing, and that
// one click resends the rejected events after its recovery.
func TestResendRejected(t *testing.T) {
	v, w, l, path := subscribed(t)
	policy := webhook.HealthPolicy{RejectingAfter: 2}
	attempt := func(status int) {
		t.Helper()
		l.publish("content_published", `"a"`)
		attemptOne(t, w.store, l.sub.ID, status, policy)
	}
	start := time.Now().Truncate(time.Millisecond)
	attempt(401)
	first := v.do("GET", path)
	first.hasNot(t, "has rejected deliveries")
	first.has(t, "1 delivery failed permanently", "Resend failed (1)")
	attempt(401)
	v.do("GET", path).hasNot(t, "--disable-after")
	w.cfg.DisableAfter = time.Hour
	failing := v.do("GET", path)
	failing.want(t, 200, "The endpoint has rejected deliveries for", `class="alarm state-failed"`)
	failing.hasNot(t, `class="alarm state-retryable"`)
	failing.has(t, "the subscription will be disabled and miss new events (--disable-after).")
	failing.has(t, "New events wait and will be delivered after the first successful attempt. Until then only probes are sent",
		"a ping and, if it is accepted, one event",
		"2 deliveries failed permanently", "and will not be retried", "Resend failed (2)", "401 Unauthorized</a>.", `/incidents/`)
	failing.apart(t).inert(t)
	attempt(200)
	recovered := v.do("GET", path)
	recovered.want(t, 200, "Resend failed (2)")
	recovered.apart(t).inert(t)
	if from := recovered.hidden(t, "from"); from < webhook.FormatTime(start) || from > webhook.FormatTime(time.Now()) {
		t.Errorf("it is sent again from %s on, want the time of the first event that was rejected", from)
	}
	v.send(path+"/replay", "only", recovered.hidden(t, "only"), "from", recovered.hidden(t, "from")).want(t, 303, "")
	v.do("GET", path).hasNot(t, "Resend failed")
	q, err := w.store.Queues().Get(t.Context(), l.sub.ID)
	must(t, err)
	c, err := w.store.Queues().Spend(t.Context(), &store.Credit{Queue: q, Kind: store.CreditReplay, Count: 100,
		Size: webhook.MaxDeliveryBytes}).Wait()
	if err != nil || c == nil || len(c.Events) != 2 {
		t.Errorf("the replay sends %+v, %v; want the two events that were rejected", c, err)
	}
}

// TestDegraded checks that a healthy subscription with a failed attempt in the last hour is shown
// as degraded on every page, and that its own page explains why.
func TestDegraded(t *testing.T) {
	v, s, _ := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	other := s.subscribe("acme", "https://a.example/other")
	s.deliver(sub, 200)
	delivery := s.deliver(sub, 503)
	const degraded = `title="1 of 2 attempts did not succeed in the last hour"`
	page := v.do("GET", "/subscriptions/"+sub.ID)
	page.want(t, 200, "1 of 2 attempts did not succeed in the last hour.", degraded, "Last attempt:", "· 503 Service Unavailable")
	page.apart(t).inert(t)
	v.do("GET", "/subscriptions/"+other.ID).hasNot(t, degraded, "did not succeed in the last hour")
	events, _, err := s.s.Events().Page(t.Context(), "acme", &webhook.ListQuery{Sort: webhook.EventList.Default, Size: 1})
	must(t, err)
	for _, path := range []string{
		"/subscriptions", "/subscriptions?filter[status]=degraded", "/deliveries/" + delivery, "/event-types/content_updated",
		"/find?q=a.example",
	} {
		p := v.do("GET", path)
		p.want(t, 200, degraded)
		if n := strings.Count(p.body, degraded); n != 1 {
			t.Errorf("%s: %d subscriptions are degraded, want 1", path, n)
		}
	}
	v.do("GET", "/subscriptions?filter[status]=healthy").hasNot(t, sub.ID, degraded)
	v.do("GET", "/subscriptions?filter[status]=degraded").hasNot(t, `id="`+other.ID, "filter[status]=degraded&quot;")
	v.do("GET", "/").has(t, `class="weak" href="/subscriptions?filter[status]=degraded"`, ">1</a>")
	v.do("GET", "/events/acme/"+events[0].ID).has(t, "Waiting for ") // the other subscription
}

// TestPausedByEndpoint checks that the page says until when deliveries wait because the endpoint
// asked for a pause, but not while an admin has paused the subscription.
func TestPausedByEndpoint(t *testing.T) {
	v, s, w := sending(t)
	var until time.Time
	w.cfg.PausedUntil = func(string) time.Time { return until }
	path := subscriptionPath(s.subscribe("acme", "https://acme.example/in").ID)
	v.do("GET", path).hasNot(t, "asked for a pause")
	until = time.Now().Add(42*time.Minute + 30*time.Second)
	v.do("GET", path).has(t, "The endpoint asked for a pause", "New events wait: the next delivery is sent", ">in 42 min</time>")
	v.send(path+"/pause").want(t, 303, "")
	v.do("GET", path).hasNot(t, "asked for a pause")
}

// TestProbeNow checks that the page of a failing subscription has a button for its next probe, and
// shows the result.
func TestProbeNow(t *testing.T) {
	v, w, l, path := subscribed(t)
	policy := webhook.HealthPolicy{RejectingAfter: 1}
	v.do("GET", path).hasNot(t, "Probe now")
	v.send(path+"/probe").wantHeader(t, "Location", path)
	v.do("GET", path).has(t, "The subscription is not failing")
	l.publish("content_published", `"a"`, `"b"`)
	attemptOne(t, w.store, l.sub.ID, 401, policy)
	failing := v.do("GET", path)
	failing.has(t, "Probe now", path+"/probe")
	failing.apart(t).inert(t)

	watch := w.store.Watch()
	defer watch.Close()
	answered := make(chan string, 1)
	go func() {
		for range watch.C {
			if _, ok := watch.Take().Subscriptions[l.sub.ID]; !ok {
				continue
			}
			q, err := w.store.Queues().Get(t.Context(), l.sub.ID)
			if err != nil || q.NextProbe.After(time.Now()) {
				continue
			}
			c, err := w.store.Queues().Spend(t.Context(), &store.Credit{Queue: q, Kind: store.CreditPing, Probe: true}).Wait()
			if err != nil || c == nil {
				continue
			}
			a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), Duration: 12 * time.Millisecond, ResponseStatus: 403,
				Result: webhook.ResultFailed}
			if _, err := w.store.Queues().Record(c, &a, webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected},
				policy); err == nil {
				answered <- c.ID
			}
			return
		}
	}()
	to := v.send(path + "/probe").Header.Get("Location")
	if id := <-answered; to != path+"?probe="+id+"#ping" {
		t.Fatalf("it leads to %s", to)
	}
	result := v.do("GET", strings.TrimSuffix(to, "#ping"))
	result.want(t, 200, "Probe", "403", "12 ms")
	result.apart(t).inert(t)
	wantDid(t, w, "probe")
}

// TestMaxPerSecondForm sets, keeps and removes the limit in the form.
func TestMaxPerSecondForm(t *testing.T) {
	v, w, _, path := subscribed(t)
	edit := func(limit string) page {
		return v.edit(path, v.do("GET", path+"/edit").hidden(t, "was"), "max_per_second", limit)
	}
	for _, wrong := range []string{"0", "many", "0.05", "1001", "-1", "NaN"} {
		edit(wrong).want(t, 422, "must be 0.1 to 1000")
	}
	edit("2.5").want(t, 303, "")
	v.do("GET", path).want(t, 200, "At most 2.5 requests per second")
	v.do("GET", path+"/edit").has(t, `value="2.5"`)
	edit("").want(t, 303, "")
	v.do("GET", path).hasNot(t, "requests per second")
	wantDid(t, w, "update", "update")
}

// TestMaxEventsForm sets, keeps and removes the limit in the form.
func TestMaxEventsForm(t *testing.T) {
	v, w, _, path := subscribed(t)
	edit := func(was string, limit ...string) page { return v.edit(path, was, limit...) }
	was := func() string { return v.do("GET", path+"/edit").hidden(t, "was") }
	v.do("GET", path).hasNot(t, "per delivery")
	for _, wrong := range []string{"many", "1.5", "1001", "-1", "99999999999999999999"} {
		edit(was(), "max_events", wrong).want(t, 422, "must be a whole number from 1 to 1000, or empty for the default")
	}
	before := was()
	edit(before, "max_events", "20").want(t, 303, "")
	v.do("GET", path).want(t, 200, "At most 20 events per delivery")
	v.do("GET", path+"/edit").has(t, `value="20"`, "Leave empty for the default (--batch-size), which is also the upper limit.")
	stale := edit(before, "max_events", "7")
	stale.want(t, 409, "Events per delivery: 20", `value="7"`)
	v.do("GET", "/subscriptions/export?format=ndjson").has(t, `"max_per_second":0,"max_events":20,`)
	v.do("GET", "/audit").want(t, 200, "max_events to 20")
	partner := enter(t, w, "acme", webhook.PortalWrite)
	partner.do("GET", "/portal"+path).want(t, 200, "At most 20 events per delivery")
	form := partner.do("GET", "/portal"+path+"/edit")
	form.want(t, 200, "Leave empty for the default, which is also the upper limit.")
	partner.edit("/portal"+path, form.hidden(t, "was"), "max_events", "1").want(t, 303, "")
	partner.do("GET", "/portal"+path).want(t, 200, "At most 1 event per delivery")
	edit(was(), "max_events", "").want(t, 303, "")
	v.do("GET", path).hasNot(t, "per delivery")
	v.do("GET", "/audit").want(t, 200, "changed max_events to the default")
	if got := listSubscriptions(t, w, "")[0].MaxEvents; got != 0 {
		t.Errorf("got max_events %d, want 0", got)
	}
}
