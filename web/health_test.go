package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/store/doctor"
	"service/store/record"
	"service/webhook"
)

// fixedHealth returns the health of a service with every possible problem.
func fixedHealth() health {
	id := func(n int) string { return fmt.Sprintf("0195%04x-0000-7000-8000-0000beef%04x", n, n) }
	alert := func(n int, name webhook.AlertName, status webhook.Status, made int) record.Alert {
		return record.Alert{
			ID: id(100 + n), Name: name, ProgramID: "acme", SubscriptionID: id(n), URL: "https://hooks.example/in",
			Status: status, AttemptsMade: made,
			CreatedAt: testNow.Add(-time.Duration(n) * time.Hour),
		}
	}
	h := health{
		losses: []record.Loss{
			{SubscriptionID: id(4), ProgramID: "acme", URL: "https://slow.example/", Events: 1204, FirstAt: testNow.Add(-900 * time.Hour),
				LastAt: testNow.Add(-2 * time.Hour)},
			{SubscriptionID: id(5), ProgramID: "acme", URL: "https://left.example/", Deleted: true, Events: 1,
				FirstAt: testNow.Add(-800 * time.Hour), LastAt: testNow.Add(-800 * time.Hour)},
		},
		lossTotals: record.LossTotals{Subscriptions: 2, Events: 1205},
		alerts: []record.Alert{
			alert(1, webhook.AlertRecovered, webhook.StatusSuccess, 1),
			alert(2, webhook.AlertLost, webhook.StatusFailed, 5),
			alert(3, webhook.AlertDisabled, webhook.StatusPending, 0),
			alert(4, webhook.AlertFailing, webhook.StatusRetryable, 2),
			alert(5, webhook.AlertFailing, record.AlertUnsent, 0),
		},
		disk: doctor.Disk{Free: 200<<20 - 1, Size: 100 << 30, MinFree: 256 << 20, Low: true},
	}
	h.alerts[1].LostEvents = 1204
	h.alerts[3].NextAttemptAt = testNow.Add(4 * time.Minute)
	return h
}

// fixedIncidents returns one open incident of each kind: two with one cause, one of a server that
// rejects some events, and one of a disabled subscription.
func fixedIncidents() openIncidents {
	id := func(n int) string { return fmt.Sprintf("0196%04x-0000-7000-8000-0000beef%04x", n, n) }
	incident := func(n int, url, description string) webhook.Incident {
		return webhook.Incident{
			ID: id(n), ProgramID: "acme", SubscriptionID: id(100 + n), URL: url, Description: description, Health: webhook.HealthFailing,
			OpenedAt: testNow.Add(-2 * time.Hour), FailingReason: webhook.FailingRejecting, FirstFailure: testNow.Add(-2 * time.Hour),
			LastSuccess: testNow.Add(-2*time.Hour - 2*time.Minute), NextProbe: testNow.Add(4 * time.Minute), LastFailure: testNow.Add(-time.Minute),
			ResponseStatus: 401, DeliveryID: id(200 + n), Failed: 5, Undelivered: 5,
			FailedFrom: testNow.Add(-2*time.Hour - time.Second), WaitingEvents: 312,
		}
	}
	all := []webhook.Incident{
		incident(1, "https://hooks.example/in?key=secret", "Partner X"), incident(2, "https://hooks.example/other", ""),
		incident(3, "https://gone.example/", ""), incident(4, "https://some.example/in", "Partner Y\nsecond line"),
	}
	gone, some := &all[2], &all[3]
	gone.Health, gone.NextProbe, gone.ResponseStatus, gone.Error = webhook.HealthDisabled, time.Time{}, 0, webhook.ErrorDNS
	gone.WaitingEvents, gone.WaitingMore = record.MaxWaiting, true
	gone.FailingReason, gone.Failed, gone.Undelivered, gone.LastSuccess = webhook.FailingUnreachable, 0, 0, time.Time{}
	some.Health, some.NextProbe, some.FailingReason, some.ResponseStatus, some.WaitingEvents = webhook.HealthHealthy, time.Time{},
		"", 404, 0
	some.Failed, some.Undelivered = 1, 1
	return openIncidents{groups: groupIncidents(all), shown: 4, total: 5}
}

// TestHealthIsQuiet checks what the overview reports, and what it does not.
func TestHealthIsQuiet(t *testing.T) {
	const healthy, alarm = "All endpoints are healthy", `class="alarm`
	old := testNow.Add(-healthRecent)
	all := fixedHealth()
	for name, tt := range map[string]struct {
		change func(*overview)
		has    []string
		lacks  []string
	}{
		"all is well": {func(*overview) {}, []string{healthy, `id="overview-incidents"`, "<dd>44</dd>", "<dd>96.2 %</dd>"},
			[]string{alarm, `class="incident`, "free", "Replica"}},
		"failures without an incident": {func(o *overview) { o.failing, o.degraded = healthTotal{8, false}, healthTotal{100, true} },
			[]string{"No open incidents", ">8</a>", ">at least 100</a>"}, []string{healthy}},
		"nothing is there": {func(o *overview) { o.totals.Subscriptions = 0 }, nil, []string{healthy, `class="strip"`}},
		"some fail": {func(o *overview) { o.incidents = fixedIncidents() }, []string{
			"5 endpoints need attention", "5 open", "2 subscriptions of hooks.example:", "<b>624</b>", "<b>10</b>", " 401 Unauthorized",
			"<b>at least 10,000</b>", "no success on record", "disabled: new events are not delivered", "Resend 1", "1 more incident",
			"Copy message for partner", `<span class="folded">Partner Y</span>`, "Partner Y", "404 Not Found",
		}, []string{healthy, "second line ", "key=secret"}},
		"events were lost": {func(o *overview) { o.health.losses, o.health.lossTotals = all.losses, all.lossTotals },
			[]string{"1,205 events of 2 subscriptions were lost.", `href="/system#lost"`, healthy}, nil},
		"lost long ago": {func(o *overview) { o.health.losses = []record.Loss{{Events: 7, FirstAt: old, LastAt: old}} },
			[]string{healthy}, []string{alarm}},
		"an alert":           {func(o *overview) { o.health.alerts = all.alerts[:1] }, []string{healthy}, []string{alarm}},
		"an alert, not sent": {func(o *overview) { o.health.alerts = all.alerts[1:2] }, []string{"An alert could not be sent.", healthy}, nil},
		"no room": {func(o *overview) { o.health.disk = all.disk }, []string{alarm, "Events are rejected until disk space is freed.",
			"has 199 MiB free; the minimum is 256 MiB"}, []string{"Not ready"}},
		"no room, not ready": {func(o *overview) { o.health.disk, o.notReady, o.fullDisk = all.disk, "the disk", true },
			[]string{"Events are rejected"}, []string{"<strong>Not ready"}},
		"no room, and worse": {func(o *overview) { o.health.disk, o.notReady = all.disk, "it broke" }, []string{"Events are rejected",
			"<strong>Not ready.</strong> it broke"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := fixedOverview()
			tt.change(o)
			contains(t, "the page", strings.ReplaceAll(html.UnescapeString(render(t, o)), "\n", " "), tt.has, tt.lacks)
		})
	}
}

// TestHealthIsSmall checks the size of the page with the maximum number of problems.
func TestHealthIsSmall(t *testing.T) {
	o := fixedOverview()
	o.health = fixedHealth()
	o.health.losses = nil
	var incidents []webhook.Incident
	for n := range healthRows {
		i := fixedIncidents().groups[0].all[0].Incident
		i.ID, i.SubscriptionID, i.DeliveryID = webhook.NewID(), webhook.NewID(), webhook.NewID()
		i.URL = "https://" + webhook.NewID() + ".example/some/longer/path/than/usual"
		incidents = append(incidents, i)
		o.health.losses = append(o.health.losses, record.Loss{SubscriptionID: i.SubscriptionID, ProgramID: "acme", URL: i.URL, Events: int64(n),
			FirstAt: testNow, LastAt: testNow})
	}
	o.incidents = openIncidents{groups: groupIncidents(incidents), shown: healthRows, total: healthRows}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write([]byte(render(t, o)))
	z.Close()
	if b.Len() > 30<<10 {
		t.Errorf("the page is %d bytes as it travels, want at most 30 KiB", b.Len())
	}
	t.Logf("%d bytes", b.Len())
}

// TestHealthShowsTheStore makes a subscription fail, recover and lose events in a real store, and
// checks the page.
func TestHealthShowsTheStore(t *testing.T) {
	inFakeTime(t, func(t *testing.T, w *Web) {
		s := w.store
		wants := func(texts ...string) {
			t.Helper()
			contains(t, "the overview", signedIn(t, w)("/"), texts, []string{"query-canary"})
		}
		newProgramToken(t, s, "acme")
		sub := createSubscription(t, s, "acme", webhook.SubscriptionFields{
			URL: new("https://hooks.example/in?token=query-canary"), Events: &[]string{"user_created"}, Active: new(true),
		})
		attempt := func(status int, policy webhook.HealthPolicy) {
			t.Helper()
			publishOne(t, s, "user_created")
			attemptOne(t, s, sub.ID, status, policy)
			time.Sleep(time.Minute)
		}
		stop := retain(t, s, 3*time.Hour)
		wants("All endpoints are healthy")
		attempt(503, webhook.HealthPolicy{FailingAfter: 2})
		wants("No open incidents")
		attempt(503, webhook.HealthPolicy{FailingAfter: 2})
		publishOne(t, s, "user_created")
		publishOne(t, s, "user_created")
		time.Sleep(2 * time.Hour)
		wants("1 endpoint needs attention", "503 Service Unavailable", "<b>4</b>", "/probe")

		attempt(500, webhook.HealthPolicy{FailingAfter: 2, DisableAfter: time.Hour})
		wants("500 Internal Server Error", "disabled: new events are not delivered; those waiting were published before", "<b>5</b>")

		// Deliveries that wait for their next attempt expire first. Then waiting events in the log are
		// lost.
		time.Sleep(2 * time.Hour)
		time.Sleep(4 * time.Hour)
		publishOne(t, s, "user_created")
		time.Sleep(time.Hour)
		stop()
		wants("2 events of 1 subscription were lost.")

		updateSubscription(t, s, sub.ID, webhook.SubscriptionFields{Active: new(true)})
		wants("All endpoints are healthy", "were lost.")
		contains(t, "the system page", signedIn(t, w)("/system"), []string{"2 events of 1 subscription"}, nil)
		time.Sleep(healthRecent)
		contains(t, "the overview", signedIn(t, w)("/"), nil, []string{"were lost."})
	})
}

// retain removes what is older than the retention period, until stop is called.
func retain(t *testing.T, s *store.Store, all time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Retain(ctx, webhook.Retention{All: all}) }()
	return func() {
		t.Helper()
		cancel()
		must(t, <-done)
	}
}

// signedIn returns a function that requests pages in a new session.
func signedIn(t *testing.T, w *Web) func(path string) string {
	t.Helper()
	signIn, err := url.Parse(w.NewSignInLink(makeAdmin(t, w, testAdmin).ID))
	must(t, err)
	signedIn := httptest.NewRecorder()
	w.ServeHTTP(signedIn, httptest.NewRequest("POST", signIn.RequestURI(), nil))
	return func(path string) string {
		t.Helper()
		r := httptest.NewRequest("GET", path, nil)
		for _, c := range signedIn.Result().Cookies() {
			r.AddCookie(c)
		}
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, r)
		if rec.Code == http.StatusSeeOther || rec.Code == http.StatusInternalServerError {
			t.Fatalf("%s: got %d:\n%s", path, rec.Code, rec.Body)
		}
		return rec.Body.String()
	}
}

// attemptOne creates a delivery of one event and records an attempt of it.
func attemptOne(t *testing.T, s *store.Store, subscriptionID string, status int, policy webhook.HealthPolicy) {
	t.Helper()
	recordStatus(t, s, spend(t, s, subscriptionID, store.Credit{Count: 1}), status, policy)
}

func publishOne(t *testing.T, s *store.Store, name string) {
	t.Helper()
	publishIn(t, s, "acme", name)
}

// TestDiskWithoutRoom checks that the alarm of a full disk is the only one, unless there is
// another problem.
func TestDiskWithoutRoom(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Dir: t.TempDir(), MinFreeDisk: 1 << 60})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	for _, tt := range []struct {
		ready func(context.Context) error
		both  bool
	}{
		{s.Check, false},
		{func(context.Context) error { return errors.New("deliveries are not being made") }, true},
	} {
		w := New(Config{Store: s, Started: time.Now(), BaseURL: "https://service.example", Ready: tt.ready})
		v := visitSignedIn(t, w)
		p := v.do("GET", "/")
		p.want(t, 200, "Events are rejected until disk space is freed.", ">Not ready</span>")
		if got := strings.Contains(p.body, "<strong>Not ready.</strong>"); got != tt.both {
			t.Errorf("a second alarm: %v, want %v:\n%s", got, tt.both, p.body)
		}
	}
}
