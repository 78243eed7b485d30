package web

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/storetest"
	"service/web/ui"
	"service/webhook"
)

// The message for the partner says what fails, since when, with an example and what to check. It
// omits the query of the URL.
func TestPartnerMessage(t *testing.T) {
	i := fixedIncidents().groups[0].all[0].Incident
	text := partnerMessage(&i)
	for _, want := range []string{
		"Webhook deliveries to https://hooks.example/in are failing: 401 Unauthorized\n", i.SubscriptionID, "Failing since: 2026-",
		"Last success:  2026-",
		"POST https://hooks.example/in", "webhook-id: " + i.DeliveryID, "Response: 401 Unauthorized", "Authorization header",
		"Events waiting: 312", "Deliveries failed permanently: 5",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	disabled := i
	disabled.Health = webhook.HealthDisabled
	text = partnerMessage(&disabled)
	for _, want := range []string{"events published since then are not delivered automatically",
		"Events published before and still waiting: 312. They are delivered after the subscription is resumed."} {
		if !strings.Contains(text, want) {
			t.Errorf("disabled: lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "key=") {
		t.Errorf("it has the query of the URL:\n%s", text)
	}
	for _, code := range webhook.ErrorCodes() {
		i.Error, i.ResponseStatus = code, 0
		if text := partnerMessage(&i); code != webhook.ErrorInterrupted && (!strings.Contains(text, "What to check:\n  ") ||
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

// From the first permanent failure until it is closed, an incident is on the overview, in the bar
// of every page and in the list. Its page has its timeline.
func TestIncidentPages(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), store.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w := New(Config{Store: s, Started: time.Now(), BaseURL: "https://service.example"})
		if _, _, err := storetest.CreateToken(t.Context(), s,
			webhook.NewToken{ProgramID: "acme", UserID: "u", Scopes: webhook.Scopes()}); err != nil {
			t.Fatal(err)
		}
		endpoint, name := "https://hooks.example/in?token=query-canary", "Partner <X>\u202e"
		sub, _, err := storetest.CreateSubscription(t.Context(), s, "acme", "u", &webhook.SubscriptionFields{URL: &endpoint, Description: &name,
			Events: &[]string{"user_created"}, Active: new(true)})
		if err != nil {
			t.Fatal(err)
		}
		visitor := signedIn(t, w)
		wants := func(path string, texts ...string) string {
			t.Helper()
			page := visitor(path)
			for _, text := range texts {
				if !strings.Contains(page, text) {
					t.Fatalf("%s lacks %q:\n%s", path, text, page)
				}
			}
			if strings.Contains(page, "query-canary") || strings.Contains(page, "<X>") || strings.Contains(page, "\u202e") {
				t.Fatalf("%s has what it must not:\n%s", path, page)
			}
			return page
		}
		wants("/incidents", "No incidents.", ">No incidents</span>", ">Ready</span>")
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
		wants("/incidents?filter[status]=open", path, "rejecting", "1 event waiting, 2 deliveries failed")
		wants("/incidents?filter[status]=resolved", "No results.")
		wants("/incidents?filter[status]=closed", "must be one of open, resolved")
		wants(path, "<strong>401 Unauthorized</strong>", "2 deliveries failed permanently and will not be retried", "Alert “Failing” not sent",
			"webhook-id: ", "What to check:", "/v2/incidents/")
		attemptOne(t, s, sub.ID, 200, policy)
		if _, err := storetest.CreateReplay(t.Context(), s, "acme", sub.ID, &webhook.ReplayFields{From: time.Now().Add(-time.Hour),
			Only: webhook.ReplayFailed}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		wants(path, "Resolved: a delivery succeeded.", "during the incident and can be resent", ">Resent</a>", "Probe: ", ">200 OK</a>")
		wants("/", "No open incidents", ">No incidents</span>")
		wants("/incidents", path, "resolved")
		wants("/incidents/"+webhook.NewID(), "Not found")
	})
}

// Admins see the cause of an error; the message for the partner has only its kind.
func TestIncidentResult(t *testing.T) {
	for _, test := range []struct {
		incident            webhook.Incident
		admins, withoutFact string
	}{
		{webhook.Incident{ResponseStatus: 401}, "401 Unauthorized", "401 Unauthorized"},
		{webhook.Incident{Error: webhook.ErrorConnect, ErrorFact: "connection refused"}, "connection refused", "connection failed"},
		{webhook.Incident{Error: webhook.ErrorTLS, ErrorFact: "the certificate is for another name: \u202e.example"},
			"TLS failed: the certificate is for another name: " + ui.Visible("\u202e") + ".example", "TLS failed"},
		{webhook.Incident{Error: webhook.ErrorDNS}, "DNS lookup failed", "DNS lookup failed"},
		{webhook.Incident{FailingReason: webhook.FailingRejecting}, "rejecting", "rejecting"},
	} {
		if got := incidentResult(&test.incident); got != test.admins {
			t.Errorf("incidentResult(%+v) = %q, want %q", test.incident, got, test.admins)
		}
		if got := incidentOutcome(&test.incident); got != test.withoutFact {
			t.Errorf("incidentOutcome(%+v) = %q, want %q", test.incident, got, test.withoutFact)
		}
		test.incident.URL = "https://hooks.example/in"
		if message := partnerMessage(&test.incident); test.incident.ErrorFact != "" && strings.Contains(message, test.incident.ErrorFact) {
			t.Errorf("the message for the partner has the cause:\n%s", message)
		}
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
