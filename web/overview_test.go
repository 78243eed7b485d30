package web

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store"
	"service/store/storetest"
	"service/web/ui"
	"service/webhook"
)

var update = flag.Bool("update", false, "rewrite the golden pages in testdata")

// testNow is the time of the fixed pages.
var testNow = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)

// fixedOverview is an overview with a delivery in every state.
func fixedOverview() *overview {
	id := func(n int) string { return fmt.Sprintf("0195%04x-0000-7000-8000-0000cafe%04x", n, n) }
	row := func(n int, status webhook.Status, made int, age time.Duration, last *webhook.Attempt, names ...string) deliveryRow {
		d := webhook.Delivery{
			ID: id(n), SubscriptionID: id(900 + n%2), ProgramID: "acme", Status: status, AttemptsMade: made, CreatedAt: testNow.Add(-age),
		}
		for i, name := range names {
			d.Events = append(d.Events, webhook.EventRef{ID: id(1000 + i), Name: name})
		}
		return deliveryRow{Delivery: d, url: "https://hooks.example/in?key=secret", last: last}
	}
	answered := func(status int, took time.Duration) *webhook.Attempt {
		return &webhook.Attempt{ResponseStatus: status, Duration: took}
	}
	broke := func(code webhook.ErrorCode, took time.Duration) *webhook.Attempt {
		return &webhook.Attempt{Error: code, Duration: took}
	}
	rows := []deliveryRow{
		row(8, webhook.StatusPending, 0, 0, nil, "ping"),
		row(7, webhook.StatusPending, 1, 900*time.Millisecond, nil, "user_created"),
		row(6, webhook.StatusSuccess, 1, 12*time.Second, answered(204, 41*time.Millisecond), "user_created", "user_created"),
		row(5, webhook.StatusRetryable, 2, 6*time.Minute, broke(webhook.ErrorTimeout, 10*time.Second), "user_created", "content_published",
			"user_created"),
		row(4, webhook.StatusFailed, 1, 59*time.Minute, answered(410, 3*time.Millisecond), "channel_updated"),
		row(3, webhook.StatusFailed, 5, 26*time.Hour, answered(500, 1240*time.Millisecond), "channel_updated"),
		row(2, webhook.StatusFailed, 1, 47*time.Hour, broke(webhook.ErrorBlocked, time.Millisecond), "channel_updated"),
		row(1, webhook.StatusFailed, 0, 400*time.Hour, nil, "ping"),
		row(0, webhook.StatusFailed, 1, 800*time.Hour, answered(503, time.Second), "channel_updated"),
	}
	rows[0].NextAttemptAt = testNow
	rows[3].NextAttemptAt = testNow.Add(29*time.Minute + 59*time.Second)
	rows[4].FailureReason = webhook.FailureRejected
	rows[5].FailureReason = webhook.FailureAttemptsExhausted
	rows[6].FailureReason = webhook.FailureBlocked
	rows[7].FailureReason = webhook.FailureSubscriptionDeleted
	rows[8].FailureReason = webhook.FailureExpired
	return &overview{
		version: "v1.2.3", started: testNow.Add(-(3*24*time.Hour + 4*time.Hour + 5*time.Minute)),
		database: "SQLite 3.99.0 (mattn)", directory: "/var/lib/service", baseURL: "https://service.example",
		totals: store.Totals{
			Programs: 2, Subscriptions: store.CountLimit, ActiveSubscriptions: 3, InFlight: 1, Waiting: 2,
			Events: 1_234_567, LastEventName: "user_created", LastEventAt: testNow.Add(-90 * time.Second),
		},
		health: health{disk: store.Disk{Free: 40 << 30, Size: 100 << 30, MinFree: 256 << 20}},
		rows:   rows, filter: statusLinks("", &webhook.ListQuery{}), older: "/deliveries",
		backlog: webhook.Backlog{Subscriptions: 2, Events: 44, Oldest: testNow.Add(-61 * time.Minute)},
	}
}

func fixedFrame() ui.Frame {
	return ui.Frame{Title: "Overview", Section: "/", Clock: ui.Clock{Now: testNow}, Stylesheet: "/assets/style.css",
		Icon: "/assets/favicon.svg"}
}

func render(t *testing.T, o *overview) string {
	t.Helper()
	var b bytes.Buffer
	if err := overviewPage(fixedFrame(), o).Render(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestOverviewGolden(t *testing.T) {
	empty := &overview{
		notReady: "deliveries are not being made", version: "v1.2.3", started: testNow,
		database: "SQLite 3.99.0 (mattn)", directory: "/var/lib/it's", baseURL: "https://127.0.0.1:8443",
		setup: []setupStep{
			{label: "One", text: "Done.", path: "/one", done: true, note: "A note:", command: "service it's"},
			{label: "Two", text: "Next.", path: "/two?a=b&c", command: "service two"},
			{label: "Three", text: "Later.", command: "service three"},
		},
	}
	ill := fixedOverview()
	ill.health, ill.rows, ill.notReady, ill.fullDisk = fixedHealth(), nil, "the disk is nearly full", true
	ill.incidents = fixedIncidents()
	for name, o := range map[string]*overview{"overview": fixedOverview(), "overview_empty": empty, "overview_ill": ill} {
		// One tag per line makes differences readable.
		got := strings.ReplaceAll(render(t, o), "><", ">\n<") + "\n"
		file := "testdata/" + name + ".html"
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got; go test ./web -update accepts it):\n%s", file, diff)
		}
	}
}

// TestHostileTextIsInert puts markup in every place for text from outside.
func TestHostileTextIsInert(t *testing.T) {
	const hostile = `"'><script>alert(1)</script><a href="javascript:alert(1)" onclick=alert(1)>&lt;{{ . }}`
	o := fixedOverview()
	o.notReady, o.version, o.database, o.directory, o.baseURL = hostile, hostile, hostile, hostile, hostile
	o.setup = []setupStep{{label: hostile, text: hostile, path: hostile, note: hostile, command: hostile}}
	o.totals.LastEventName = hostile
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
		a.ID, a.Name, a.ProgramID, a.SubscriptionID, a.URL, a.Message, a.Action, a.Status = hostile, hostile, hostile, hostile, hostile, hostile,
			hostile, hostile
	}
	for i := range o.rows {
		r := &o.rows[i]
		r.ID, r.SubscriptionID, r.ProgramID, r.url = hostile, hostile, hostile, hostile
		r.Events = []webhook.EventRef{{ID: hostile, Name: hostile}, {ID: hostile, Name: hostile + "2"}}
	}
	none := *o
	none.rows = nil
	problem := func() string {
		var b bytes.Buffer
		p := &problem{status: 400, title: hostile, text: hostile, command: hostile, after: hostile}
		if err := problemPage(fixedFrame(), p, hostile).Render(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	signIn := func() string {
		var b bytes.Buffer
		if err := signInPage(fixedFrame(), signInForm{next: hostile, email: hostile, fault: hostile}).Render(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for name, got := range map[string]string{"overview": render(t, o), "empty": render(t, &none), "problem": problem(), "sign-in": signIn()} {
		for _, live := range []string{"<script>", "<a href=\"javascript", "'><", `"'>`} {
			if strings.Contains(got, live) {
				t.Errorf("%s: has %s:\n%s", name, live, got)
			}
		}
		if !strings.Contains(got, "&lt;script&gt;") && name != "sign-in" {
			t.Errorf("%s: does not show the text:\n%s", name, got)
		}
	}
}

// TestOverviewShowsTheStore uses a real store and a real server.
func TestOverviewShowsTheStore(t *testing.T) {
	w := testWeb(t, func(cfg *Config) { cfg.CAFile = "/data dir/ca.pem" })
	v := visit(t, w)
	v.signIn(w)
	p := v.do("GET", "/")
	p.want(t, 200, "No deliveries yet.")
	p.has(t, "1 of 4 steps done", html.EscapeString(`curl --cacert '/data dir/ca.pem' https://service.example/v2/webhooks/subscriptions`))

	s, ctx := w.store, t.Context()
	_, _, err := storetest.CreateToken(ctx, s,
		webhook.NewToken{ProgramID: "acme", UserID: "u", Scopes: []webhook.Scope{webhook.ScopeEventsWrite}})
	if err != nil {
		t.Fatal(err)
	}
	hostile := `<img src=x onerror=alert(1)>`
	name, url := "user_created"+hostile, "https://hooks.example/"+hostile+"?token=query-canary"
	sub, _, err := storetest.CreateSubscription(ctx, s, "acme", "u", &webhook.SubscriptionFields{URL: &url, Events: &[]string{name},
		Active: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	p = v.do("GET", "/")
	p.want(t, 200, "not sent yet") // the ping
	p.want(t, 200, ">now</time>")

	ping, err := storetest.ClaimPing(ctx, s, sub.ID)
	if err != nil || ping == nil {
		t.Fatalf("claim the ping: %v, %v", ping, err)
	}
	v.do("GET", "/").want(t, 200, "being sent")
	// The service shuts down during the attempt and starts again.
	if n, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy()); n != 1 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	p = v.do("GET", "/")
	for _, text := range []string{"state-retryable", ">interrupted<", html.EscapeString(webhook.ErrorInterrupted.Detail()), "&lt; 1 ms", "1/5",
		">now</time>"} {
		p.want(t, 200, text)
	}

	v.do("GET", "/?filter[status]=retryable").want(t, 200, "state-retryable")
	if p := v.do("GET", "/?filter[status]=failed,success"); !strings.Contains(p.body, "No results.") ||
		strings.Contains(p.body, "state-retryable") {
		t.Errorf("a filter that lets nothing through shows:\n%s", p.body)
	}

	id := webhook.NewID()
	_, err = s.Events().Publish(ctx, "acme", []webhook.Event{{ID: id, Name: name, ReceivedAt: time.Now(), JSON: []byte(`{}`)}})
	if err != nil {
		t.Fatal(err)
	}
	queue, err := s.Queues().Get(ctx, sub.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Queues().Spend(ctx, &store.Credit{Queue: queue, Newest: queue.Wanted, Count: 100,
		Size: webhook.MaxDeliveryBytes}).Wait(); err != nil {
		t.Fatal(err)
	}
	p = v.do("GET", "/")
	p.want(t, 200, "user_created"+html.EscapeString(hostile))
	p.want(t, 200, ">hooks.example<")
	for _, bad := range []string{"<img", "query-canary"} {
		if strings.Contains(p.body, bad) {
			t.Errorf("the page has %s:\n%s", bad, p.body)
		}
	}
}

// The overview shows the selected program, and its rows lead to their records.
func TestOverviewOfAProgram(t *testing.T) {
	v, s, w := sending(t)
	w.cfg.Backlog = func(context.Context, string) (webhook.Backlog, error) {
		return webhook.Backlog{Subscriptions: 3, Events: 44, Oldest: time.Now().Add(-150 * time.Second)}, nil
	}
	sub := s.subscribe("acme", "https://acme.example/in")
	mine := s.deliver(sub, 204)
	s.deliver(s.subscribe("other", "https://other.example/in"), 500)
	p := v.do("GET", "/?program=acme")
	p.want(t, 200, "of acme, newest first")
	p.has(t, `href="/deliveries/`+mine+`"`, `href="/subscriptions/`+sub.ID+`"`, `href="/?program=acme"`,
		`filter[status]=failed&amp;program=acme`, "all programs",
		"<dd>45</dd>", "3 subscriptions behind by", ">2 min</time>")
	p.hasNot(t, "other.example")
	v.do("GET", "/?program=acme&filter[status]=failed").want(t, 200, "No results.")
	v.do("GET", "/").want(t, 200, "other.example")

	// Times are in the visitor's time zone.
	v.send("/preferences", "zone", "Asia/Kolkata")
	p = v.do("GET", "/")
	p.want(t, 200, " IST")
	p.hasNot(t, " UTC")
}

func TestOverviewTellsWhatIsWrong(t *testing.T) {
	w := testWeb(t, func(cfg *Config) {
		cfg.Ready = func(context.Context) error { return errors.New("the disk is full") }
	})
	v := visit(t, w)
	v.signIn(w)
	v.do("GET", "/").want(t, 200, "<strong>Not ready.</strong> the disk is full")

	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	p := v.do("GET", "/")
	p.want(t, 500, "This page could not be loaded")
	p.want(t, 500, p.Header.Get("X-Request-Id"))
}

// TestOverviewIsSmall checks the transferred size of the first page with everything it loads.
func TestOverviewIsSmall(t *testing.T) {
	w := testWeb(t, nil)
	if _, _, err := storetest.CreateToken(t.Context(), w.store, webhook.NewToken{ProgramID: "acme", UserID: "u",
		Scopes: []webhook.Scope{webhook.ScopeEventsWrite}}); err != nil {
		t.Fatal(err)
	}
	for i := range overviewDeliveries + 10 {
		url := fmt.Sprintf("https://hooks-%d.example/some/longer/path/than/usual", i)
		_, _, err := storetest.CreateSubscription(t.Context(), w.store, "acme", "u", &webhook.SubscriptionFields{URL: &url,
			Events: &[]string{"ping"}, Active: new(true)})
		if err != nil {
			t.Fatal(err)
		}
	}
	v := visit(t, w)
	v.signIn(w)
	if got := strings.Count(v.do("GET", "/").body, `class="c-status"`); got != overviewDeliveries {
		t.Errorf("%d deliveries are shown, want %d", got, overviewDeliveries)
	}
	size := 0
	for _, path := range []string{"/", w.assets.Path("style.css"), w.assets.Path("favicon.svg")} {
		size += len(v.do("GET", path, "Accept-Encoding", "gzip").body)
	}
	if size > 60<<10 {
		t.Errorf("the page and what it loads are %d bytes, want at most 60 KiB", size)
	}
	t.Logf("%d bytes", size)
}

// The list of deliveries accepts the filters of the API in its URL, and explains what is wrong
// with invalid ones.
func TestOverviewFilters(t *testing.T) {
	for raw, want := range map[string]string{
		"filter[status]=failed":      "No results.",
		"filter[status]=a,b":         "must be one of pending, retryable, success, failed",
		"filter[stauts]=failed":      "filter[stauts]",
		"sort=-created_at":           "No results.",
		"sort=completed_at":          "sort",
		"page[cursor]=forged":        "page[cursor]",
		"filter[error]=%3Cscript%3E": "must be one of",
		"page[size]=%zz":             "escape",
	} {
		w := testWeb(t, nil)
		v := visit(t, w)
		v.signIn(w)
		got := v.do("GET", "/?"+raw)
		bad := want != "No results."
		if bad != (got.StatusCode == 400) || !strings.Contains(html.UnescapeString(got.body), want) || strings.Contains(got.body, "<script>") {
			t.Errorf("%s: got %d, without %q:\n%s", raw, got.StatusCode, want, got.body)
		}
	}
}
