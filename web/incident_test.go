package web

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/store/storetest"
	"service/web/ui"
	"service/webhook"
)

// The message for the partner says what fails and since when, with an example and what to check. It
// omits the query of the URL.
func TestPartnerMessage(t *testing.T) {
	i := groupNamed(t, "hooks.example").all[0].Incident
	i.FailedEvent = webhook.NewID()
	text := partnerMessage(&i, nil)
	contains(t, "the message", text, []string{
		"Webhook deliveries to https://hooks.example/in are failing: 401 Unauthorized\n", i.SubscriptionID, "Failing since: 2026-",
		"Last success:  2026-",
		"POST https://hooks.example/in", "webhook-id: " + i.DeliveryID, "Response: 401 Unauthorized", "Authorization header",
		"First failed event: " + i.FailedEvent, "Events waiting: 312", "Deliveries failed permanently: 5",
	}, []string{"key="}) // the query of the URL
	disabled := i
	disabled.Health = webhook.HealthDisabled
	contains(t, "of a disabled one", partnerMessage(&disabled, nil), []string{
		"events published since then are not delivered automatically",
		"Events published before and still waiting: 312. They are delivered after the subscription is resumed.",
	}, []string{"key="})
	for _, code := range webhook.ErrorCodes() {
		i.Error, i.ResponseStatus = code, 0
		if text := partnerMessage(&i, nil); code != webhook.ErrorInterrupted && (!strings.Contains(text, "What to check:\n  ") ||
			errorTitles[code] == "") {
			t.Errorf("%s: %s", code, text)
		}
	}
	i.Error = webhook.ErrorNone
	for _, status := range []int{301, 400, 401, 403, 404, 405, 410, 413, 415, 418, 422, 429, 500, 503, 700} {
		if i.ResponseStatus = status; partnerCheck(&i) == "" {
			t.Errorf("%d: nothing to check", status)
		}
	}
}

// groupNamed returns the fixed incidents of a host.
func groupNamed(t *testing.T, host string) incidentGroup {
	t.Helper()
	for _, g := range fixedIncidents().groups {
		if g.host == host {
			return g
		}
	}
	t.Fatalf("no incident of %s", host)
	return incidentGroup{}
}

// An owner adds a portal link to the message. Only that response contains the link, and the audit
// log omits its code.
func TestPartnerMessageWithPortalLink(t *testing.T) {
	f := furnish(t)
	path := f.path("/incidents/{id}")
	f.as(owner).do("GET", path).has(t, "Message for the partner", `href="mailto:?subject=Webhook%20deliveries%20to%20`,
		`action="`+path+`/message"`, `hx-target="#message"`)
	f.as(operator).do("GET", path).hasNot(t, path+`/message"`)
	v := f.as(owner)
	v.send(path+"/message").want(t, 422, "")
	p := v.send(path+"/message", "role", "read")
	p.want(t, 200, "won't be shown again", "data-copy-now", "With it you can view them.")
	link := regexp.MustCompile(`https://service\.example(/portal/link/[^\s<]+)`).FindStringSubmatch(p.body)
	if link == nil {
		t.Fatalf("the message has no link:\n%s", p.body)
	}
	v.do("GET", path).hasNot(t, link[1], "data-copy-now")
	f.as(anyone).do("GET", link[1]).want(t, 200, "Open the portal")
	q, _ := webhook.AuditList.Parse(url.Values{"filter[action]": {string(webhook.ActionPortalLinkCreate)}})
	entries, _, err := f.w.store.Audit().Page(t.Context(), &q)
	must(t, err)
	code := strings.TrimPrefix(link[1], "/portal/link/")
	if len(entries) != 1 || entries[0].ProgramID != "acme" || strings.Contains(fmt.Sprint(entries[0]), code) {
		t.Errorf("the audit log contains %+v", entries)
	}
}

// Consecutive probes with the same result form one entry of the timeline.
func TestFoldProbes(t *testing.T) {
	var entries []webhook.IncidentEntry
	for n, status := range []int{0, 401, 401, 403, 0, 401} {
		e := webhook.IncidentEntry{At: testNow.Add(time.Duration(n) * time.Minute), Kind: webhook.IncidentEntryAlert}
		if status != 0 {
			e.Kind, e.Probe = webhook.IncidentEntryProbe, &webhook.IncidentProbe{ResponseStatus: status, DeliveryID: strconv.Itoa(n)}
		}
		entries = append(entries, e)
	}
	var got []string
	for _, e := range foldProbes(entries) {
		text := e.At.Format("04")
		if e.Probe != nil {
			text += fmt.Sprint(" ", e.probes, " to ", e.last.Format("04"), " ", e.Probe.DeliveryID)
		}
		got = append(got, text)
	}
	want := []string{"06", "07 2 to 08 2", "09 1 to 09 3", "10", "11 1 to 11 5"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The timeline of a resolved incident ends with the outcome of its failed deliveries.
func TestFailedOutcome(t *testing.T) {
	for _, test := range []struct {
		incident webhook.Incident
		text     string
		at       bool
	}{
		{webhook.Incident{}, "", false},
		{webhook.Incident{Failed: 5, Recovered: 5, RecoveredAt: testNow}, "All 5 delivered again", true},
		{webhook.Incident{Failed: 5, Recovered: -1}, "All 5 delivered again", false},
		{webhook.Incident{Failed: 1, Recovered: 1, RecoveredAt: testNow}, "The failed delivery was delivered again", true},
		{webhook.Incident{Failed: 5, Recovered: 3, RecoveredAt: testNow, Undelivered: 9}, "3 of 5 delivered again; 2 failed", false},
		{webhook.Incident{Failed: 5, Undelivered: 9}, "5 deliveries failed permanently", false},
		{webhook.Incident{Failed: 5, ClosedBy: webhook.IncidentDeleted}, "5 deliveries failed permanently", false},
	} {
		text, at := failedOutcome(&test.incident)
		if text != test.text || !at.IsZero() != test.at {
			t.Errorf("%+v: got %q, %v", test.incident, text, at)
		}
	}
}

// The incidents page shows the open incidents, the most severe first, and those resolved in the
// last 24 hours. All others are in the complete list.
func TestIncidentOverview(t *testing.T) {
	inFakeTime(t, func(t *testing.T, w *Web) {
		s := w.store
		newProgramToken(t, s, "acme")
		subscribe := func(url, name string) string {
			return createSubscription(t, s, "acme", webhook.SubscriptionFields{
				URL: &url, Description: &name, Events: &[]string{"user_created"}, Active: new(true),
			}).ID
		}
		ids := map[string]string{
			"Old": subscribe("https://old.example/", "Old"), "Recent": subscribe("https://recent.example/", "Recent"),
			"Degraded": subscribe("https://degraded.example/", "Degraded"),
			"One":      subscribe("https://one.example/a", "One"), "Two": subscribe("https://one.example/b", "Two"),
		}
		fail := func(name string, status int, failing bool) {
			publishOne(t, s, "user_created")
			attemptOne(t, s, ids[name], status, webhook.HealthPolicy{RejectingAfter: map[bool]int{true: 1}[failing]})
		}
		var page func(string) string
		in := func(path string, texts ...string) string {
			t.Helper()
			got := html.UnescapeString(page(path))
			at := 0
			for _, text := range texts {
				n := strings.Index(got[at:], text)
				if n < 0 {
					t.Fatalf("%s lacks %q after the ones before:\n%s", path, text, got)
				}
				at += n
			}
			return got
		}
		fail("Old", 404, true)
		fail("Old", 200, true)
		time.Sleep(recentlyResolved + time.Minute)
		fail("Recent", 404, true)
		fail("Recent", 200, true)
		time.Sleep(time.Minute)
		fail("Degraded", 410, false)
		fail("One", 401, true)
		fail("Two", 401, true)
		page = signedIn(t, w)
		got := in("/incidents", "Open", ">3</span>", "2 subscriptions of one.example:", " 401 Unauthorized", ">One</a>", ">Two</a>",
			">Degraded</a>", " · 410 Gone", "Resolved", ">Recent</a>", " · 404 Not Found", " · resolved ", "1 delivery failed permanently",
			">All incidents</a>")
		if strings.Contains(got, ">Old</a>") || strings.Count(got, "/probe\"") != 2 {
			t.Errorf("it has the old one, or not one probe:\n%s", got)
		}
		in("/?program=acme", "2 subscriptions of one.example", ">Degraded</a>")
		in("/incidents?all=true", ">Two</a>", ">One</a>", ">Degraded</a>", ">Recent</a>", ">Old</a>")
		in("/incidents?all=true&page[size]=2", ">Two</a>", ">One</a>", "all=true", "page[cursor]=")
		if got := in("/incidents?filter[status]=resolved", ">Recent</a>", ">Old</a>"); strings.Contains(got, ">Degraded</a>") {
			t.Errorf("the filter does not apply:\n%s", got)
		}
	})
}

// From the first permanent failure until it is closed, an incident is on the overview, in the bar
// of every page and in the list. Its page shows its timeline.
func TestIncidentPages(t *testing.T) {
	inFakeTime(t, func(t *testing.T, w *Web) {
		s := w.store
		newProgramToken(t, s, "acme")
		sub := createSubscription(t, s, "acme", webhook.SubscriptionFields{
			URL: new("https://hooks.example/in?token=query-canary"), Description: new("Partner <X>\u202e"), Events: &[]string{"user_created"},
			Active: new(true),
		})
		visitor := signedIn(t, w)
		wants := func(path string, texts ...string) string {
			t.Helper()
			page := visitor(path)
			contains(t, path, page, texts, []string{"query-canary", "<X>", "\u202e"})
			return page
		}
		wants("/incidents", "No open incidents.", ">No incidents</span>", ">Ready</span>")
		policy := webhook.HealthPolicy{RejectingAfter: 2}
		for _, status := range []int{200, 401, 401} {
			publishOne(t, s, "user_created")
			attemptOne(t, s, sub.ID, status, policy)
			time.Sleep(time.Minute)
		}
		publishOne(t, s, "user_created")
		time.Sleep(time.Second)
		overview := wants("/", "Partner &lt;X&gt;", " · 401 Unauthorized", "<b>1</b>", "<b>2</b>", "last success", "next probe",
			">1 incident</span>",
			"/subscriptions/"+sub.ID+"/probe", "/subscriptions/"+sub.ID+"/replay", "Copy message for partner", "View response")
		path := regexp.MustCompile(`/incidents/[0-9a-f-]{36}`).FindString(overview)
		wants("/status", ">1 incident</span>", ">Ready</span>")
		wants("/incidents?filter[status]=open", path, " · 401 Unauthorized", "<b>1</b>", "<b>2</b>")
		wants("/incidents?filter[status]=resolved", "No results.")
		wants("/incidents?filter[status]=closed", "must be one of open, resolved")
		wants(path, "<strong>Failing: 401 Unauthorized</strong>", "1 event waiting, 2 deliveries failed",
			"2 deliveries failed permanently and will not be retried", "Alert “Failing” not sent",
			"webhook-id: ", "What to check:", "/v2/incidents/")
		wants("/alerts", `href="`+path+`"`, "Partner &lt;X&gt;", ">Failing</span>", "401 Unauthorized", "no channel")
		contains(t, "/alerts", visitor("/alerts"), nil, []string{"hooks.example/in", "/v2/"})
		attemptOne(t, s, sub.ID, 200, policy)
		_, err := storetest.CreateReplay(t.Context(), s, "acme", sub.ID,
			&webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayFailed})
		must(t, err)
		time.Sleep(2 * time.Second)
		wants(path, "<strong>Resolved: 401 Unauthorized</strong>", "a delivery succeeded", "2 deliveries failed permanently",
			"Resend them now", ">Resent</a>", "Probe: ", ">200 OK</a>")
		wants("/", "Failed deliveries are left to resend", ">No incidents</span>", "Resend 2")
		wants("/incidents", path, "resolved", "Resend 2")
		wants("/incidents/"+webhook.NewID(), "Not found")
	})
}

// Pages and the message for the partner state the cause of an error.
func TestIncidentResult(t *testing.T) {
	for _, test := range []struct {
		incident webhook.Incident
		want     string
	}{
		{webhook.Incident{ResponseStatus: 401}, "401 Unauthorized"},
		{webhook.Incident{Error: webhook.ErrorConnect, ErrorFact: "connection refused"}, "connection refused"},
		{webhook.Incident{Error: webhook.ErrorTLS, ErrorFact: "the certificate is for another name: \u202e.example"},
			"TLS failed: the certificate is for another name: " + ui.Visible("\u202e") + ".example"},
		{webhook.Incident{Error: webhook.ErrorBlocked, ErrorFact: "address not allowed"}, "address not allowed"},
		{webhook.Incident{Error: webhook.ErrorDNS}, "DNS lookup failed"},
		{webhook.Incident{FailingReason: webhook.FailingRejecting}, "rejecting"},
	} {
		if got := incidentResult(&test.incident); got != test.want {
			t.Errorf("incidentResult(%+v) = %q, want %q", test.incident, got, test.want)
		}
		test.incident.URL = "https://hooks.example/in"
		if message := partnerMessage(&test.incident, nil); !strings.Contains(message, " are failing: "+test.want+"\n") {
			t.Errorf("the message for the partner lacks the cause:\n%s", message)
		}
	}
}

// The top bar names what is wrong even if the service is ready.
func TestStatusNamesTrouble(t *testing.T) {
	s, err := store.Open(t.Context(), store.Config{Dir: t.TempDir(), MinFreeDisk: 1 << 60})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	w := New(Config{Store: s, Started: time.Now(), BaseURL: "https://service.example"})
	v := visitSignedIn(t, w)
	for _, path := range []string{"/status", "/events"} {
		v.do("GET", path).has(t, `state-retryable" href="/system"`, ">Disk nearly full</span>")
	}
}

// The status of the service is cached briefly.
func TestStatusIsKept(t *testing.T) {
	asked := 0
	w := testWeb(t, func(cfg *Config) {
		cfg.Ready = func(context.Context) error { asked++; return errors.New("the disk is full") }
	})
	for range 10 {
		s, err := w.status(t.Context())
		if err != nil || s.NotReady != "the disk is full" {
			t.Fatalf("got %+v, %v", s, err)
		}
	}
	if asked > 5 {
		t.Errorf("it was asked %d times", asked)
	}
}
