package web

import (
	"context"
	"errors"
	"flag"
	"html"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"
	"github.com/google/go-cmp/cmp"

	"service/store"
	"service/store/doctor"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

var update = flag.Bool("update", false, "rewrite the golden pages in testdata")

// testNow is the time of the fixed pages.
var testNow = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)

// fixedOverview is an overview of a service that works.
func fixedOverview() *overview {
	day := attemptStats{total: webhook.Stat{Success: 148_210, Retryable: 1_931, Failed: 2_204}}
	day.results = ui.Chart{
		ID: "results", Name: "Attempts by result, per hour", StepName: "Hour", Labels: []string{"4 Mar 04:00", "4 Mar 05:00"},
		Series: []ui.Series{{Name: "Success", State: "success", Values: []float64{100_000, 48_210}}},
	}
	day.failures = []failedResponse{
		{answer: "401", says: "Unauthorized", count: 2_204, state: "failed", href: "/deliveries?filter[response_status]=401"},
	}
	return &overview{
		directory: "/var/lib/service", arrived: 423, hour: webhook.Stat{Success: 962, Failed: 38}, day: &day,
		totals:  record.Totals{Subscriptions: record.CountLimit, Waiting: 2},
		health:  health{disk: doctor.Disk{Free: 40 << 30, Size: 100 << 30, MinFree: 256 << 20}},
		backlog: webhook.Backlog{Subscriptions: 2, Events: 44, Oldest: testNow.Add(-61 * time.Minute)},
	}
}

func fixedFrame() ui.Frame {
	return ui.Frame{Title: "Overview", Section: "/", Clock: ui.Clock{Now: testNow}, Stylesheet: "/assets/style.css",
		Icon: "/assets/favicon.svg"}
}

// rendered returns the text of a component.
func rendered(t *testing.T, c templ.Component) string {
	t.Helper()
	var b strings.Builder
	must(t, c.Render(t.Context(), &b))
	return b.String()
}

// contains checks that a text contains every string in has, and none in lacks.
func contains(t *testing.T, name, text string, has, lacks []string) {
	t.Helper()
	for _, part := range has {
		if !strings.Contains(text, part) {
			t.Errorf("%s: lacks %q:\n%s", name, part, text)
		}
	}
	for _, part := range lacks {
		if strings.Contains(text, part) {
			t.Errorf("%s: has %q:\n%s", name, part, text)
		}
	}
}

func render(t *testing.T, o *overview) string {
	t.Helper()
	return rendered(t, overviewPage(fixedFrame(), o))
}

func TestOverviewGolden(t *testing.T) {
	empty := &overview{
		notReady: "deliveries are not being made", directory: "/var/lib/it's",
		setup: []setupStep{
			{label: "One", text: "Done.", path: "/one", done: true, note: "A note:", command: "service it's"},
			{label: "Two", text: "Next.", path: "/two?a=b&c", command: "service two"},
			{label: "Three", text: "Later.", command: "service three"},
		},
	}
	ill := fixedOverview()
	ill.health, ill.notReady, ill.fullDisk = fixedHealth(), "the disk is nearly full", true
	ill.incidents = fixedIncidents()
	for name, o := range map[string]*overview{"overview": fixedOverview(), "overview_empty": empty, "overview_ill": ill} {
		wantGolden(t, name, render(t, o))
	}
}

// wantGolden compares a page with the one in testdata.
func wantGolden(t *testing.T, name, page string) {
	t.Helper()
	// One tag per line makes differences readable.
	got := strings.ReplaceAll(page, "><", ">\n<") + "\n"
	file := "testdata/" + name + ".html"
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test ./web -update accepts it):\n%s", file, diff)
	}
}

// TestHostileTextIsInert puts markup in every place for text from outside.
func TestHostileTextIsInert(t *testing.T) {
	const hostile = `"'><script>alert(1)</script><a href="javascript:alert(1)" onclick=alert(1)>&lt;{{ . }}`
	o := fixedOverview()
	o.notReady, o.directory = hostile, hostile
	o.setup = []setupStep{{label: hostile, text: hostile, path: hostile, note: hostile, command: hostile}}
	o.health = fixedHealth()
	var incidents []webhook.Incident
	for _, g := range fixedIncidents().groups {
		for _, row := range g.all {
			i := row.Incident
			i.ID, i.ProgramID, i.SubscriptionID, i.URL, i.Description, i.DeliveryID, i.Error = hostile, hostile, hostile, hostile, hostile, hostile,
				webhook.ErrorCode(hostile)
			incidents = append(incidents, i)
		}
	}
	o.incidents = openIncidents{groups: groupIncidents(incidents), shown: 1, total: 1}
	for i := range o.health.losses {
		l := &o.health.losses[i]
		l.SubscriptionID, l.ProgramID, l.URL = hostile, hostile, hostile
	}
	for i := range o.health.alerts {
		a := &o.health.alerts[i]
		a.ID, a.Name, a.ProgramID, a.SubscriptionID, a.URL, a.Status = hostile, hostile, hostile, hostile, hostile, hostile
	}
	for name, c := range map[string]templ.Component{
		"overview": overviewPage(fixedFrame(), o),
		"problem": problemPage(fixedFrame(),
			&problem{status: 400, title: hostile, text: hostile, command: hostile, after: hostile}, hostile),
		"sign-in": signInPage(fixedFrame(), signInForm{next: hostile, email: hostile, fault: hostile}),
	} {
		got := rendered(t, c)
		contains(t, name, got, nil, []string{"<script>", "<a href=\"javascript", "'><", `"'>`})
		if !strings.Contains(got, "&lt;script&gt;") && name != "sign-in" {
			t.Errorf("%s: does not show the text:\n%s", name, got)
		}
	}
}

// TestOverviewShowsTheStore uses a real store and a real server.
func TestOverviewShowsTheStore(t *testing.T) {
	v, w := startSignedIn(t, func(cfg *Config) { cfg.CAFile = "/data dir/ca.pem" })
	p := v.do("GET", "/")
	p.has(t, "1 of 4 steps done", html.EscapeString(`curl --cacert '/data dir/ca.pem' https://service.example/v2/webhooks/subscriptions`))

	s := w.store
	newProgramToken(t, s, "acme")
	hostile := `<img src=x onerror=alert(1)>`
	name, url := "user_created"+hostile, "https://hooks.example/"+hostile+"?token=query-canary"
	sub := createSubscription(t, s, "acme", webhook.SubscriptionFields{URL: &url, Events: &[]string{name}, Active: new(true)})
	v.do("GET", "/").want(t, 200, "All endpoints are healthy")
	v.do("GET", "/deliveries").want(t, 200, ">pending<")

	claimPing(t, w, sub.ID)
	// The service shuts down during the attempt and starts again.
	if n, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy()); n != 1 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	p = v.do("GET", "/deliveries")
	p.want(t, 200, "state-retryable", ">interrupted<", html.EscapeString(webhook.ErrorInterrupted.Detail()), "&lt; 1 ms",
		"1 of 5 attempts", ">now</time>")

	publishIn(t, s, "acme", name)
	spend(t, s, sub.ID, store.Credit{Count: 100})
	v.do("GET", "/").want(t, 200, "<dd>0.1</dd>") // one event in ten seconds
	p = v.do("GET", "/deliveries")
	p.want(t, 200, "user_created"+html.EscapeString(hostile), ">hooks.example<")
	p.hasNot(t, "<img", "query-canary")
}

// The overview shows the selected program.
func TestOverviewOfAProgram(t *testing.T) {
	v, s, w := sending(t)
	w.cfg.Backlog = func(context.Context, string) (webhook.Backlog, error) {
		return webhook.Backlog{Subscriptions: 3, Events: 44, Oldest: time.Now().Add(-150 * time.Second)}, nil
	}
	s.deliver(s.subscribe("acme", "https://acme.example/in"), 204)
	bad := s.subscribe("other", "https://other.example/in")
	s.deliver(bad, 410)
	p := v.do("GET", "/")
	p.has(t, "1 endpoint needs attention", "other.example/in · other", "<dd>44</dd>", ">2 min</time>", "410 Gone",
		`href="/subscriptions?filter[status]=degraded"`, "<dd>50.0 %</dd>")
	p = v.do("GET", "/?program=acme")
	p.has(t, "All endpoints are healthy", `href="/?program=acme"`, "<dd>100 %</dd>")
	p.hasNot(t, "other.example")

	// Times are in the visitor's time zone.
	v.send("/preferences", "zone", "Asia/Kolkata")
	p = v.do("GET", "/?program=acme")
	p.want(t, 200, " IST")
	p.hasNot(t, " UTC")
}

func TestOverviewTellsWhatIsWrong(t *testing.T) {
	v, w := startSignedIn(t, func(cfg *Config) {
		cfg.Ready = func(context.Context) error { return errors.New("the disk is full") }
	})
	v.do("GET", "/").want(t, 200, "<strong>Not ready.</strong> the disk is full")

	must(t, w.store.Close())
	p := v.do("GET", "/")
	p.want(t, 500, "This page could not be loaded", p.Header.Get("X-Request-Id"))
}
