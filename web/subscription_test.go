package web

import (
	"fmt"
	"html"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store"
	"service/store/record"
	"service/store/storetest"
	"service/webhook"
)

// subscribing is a signed-in admin of a service that only sends to the public internet.
func subscribing(t *testing.T) (visitor, *Web) {
	t.Helper()
	return startSignedIn(t, func(c *Config) { c.MaxSubscriptions, c.BatchSize = 3, 100 })
}

// subscribed is [subscribing] with a subscription of acme, whose page is at path.
func subscribed(t *testing.T) (v visitor, w *Web, l *eventSource, path string) {
	t.Helper()
	v, w = subscribing(t)
	l = newEventSource(t, w, "https://partner.example/in")
	return v, w, l, subscriptionPath(l.sub.ID)
}

// edit submits the form of a subscription; was is the version that it shows.
func (v visitor) edit(path, was string, more ...string) page {
	v.t.Helper()
	return v.send(path+"/edit", append([]string{"was", was, "url", "https://partner.example/in", "events", "content_published"}, more...)...)
}

// hidden returns the value of a hidden field.
func (p page) hidden(t *testing.T, name string) string {
	t.Helper()
	return p.link(t, `<input type="hidden" name="`+name+`" value="([^"]*)"`)
}

// apart fails the test if a time directly follows a word without a space.
func (p page) apart(t *testing.T) page {
	t.Helper()
	if found := regexp.MustCompile(`.{20}[a-z.,]<time`).FindString(p.body); found != "" {
		t.Errorf("%s has %q", p.Request.URL, found)
	}
	return p
}

// did returns the audited actions on subscriptions, oldest first.
func did(t *testing.T, w *Web) (done []string) {
	t.Helper()
	q, invalid := webhook.AuditList.Parse(url.Values{"sort": {"at"}, "page[size]": {"100"}})
	if invalid != nil {
		t.Fatal(invalid)
	}
	entries, _, err := w.store.Audit().Page(t.Context(), &q)
	must(t, err)
	for _, e := range entries {
		if verb, ok := strings.CutPrefix(string(e.Action), "subscription."); ok {
			if e.Admin != testAdmin || e.ProgramID != "acme" {
				t.Errorf("the audit says %+v", e)
			}
			done = append(done, verb)
		}
	}
	return done
}

// wantDid checks the audited actions on subscriptions, oldest first.
func wantDid(t *testing.T, w *Web, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, did(t, w)); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
}

func listSubscriptions(t *testing.T, w *Web, query string) []record.SubscriptionSummary {
	t.Helper()
	values, err := url.ParseQuery(query)
	must(t, err)
	q, invalid := webhook.AllSubscriptionList.Parse(values)
	if invalid != nil {
		t.Fatal(invalid)
	}
	subs, _, err := w.store.Subscriptions().PageAll(t.Context(), "", &q)
	must(t, err)
	return subs
}

var secretText = regexp.MustCompile(`whsec_[A-Za-z0-9+/=]+`)

// The form that creates a subscription shows its errors and keeps all values except the secret. The
// subscription's signing secret is shown once.
func TestCreateSubscription(t *testing.T) {
	v, w := subscribing(t)
	v.do("GET", "/subscriptions").want(t, 200, "No subscriptions yet.")
	v.do("GET", "/subscriptions/new").want(t, 200, "No programs yet.")
	newProgramToken(t, w.store, "acme")

	form := v.do("GET", "/subscriptions/new")
	form.want(t, 200, "First ping")
	form.inert(t)
	form.has(t, `value="content_published"`, "X-Service-Delivery", "&#34;ping&#34;", "webhook-signature", "Create subscription")
	once := form.hidden(t, "once")

	const authorization = "Bearer canary-of-a-partner"
	wrong := v.send("/subscriptions/new", "once", once, "for_program", "unknown", "url", "http://10.0.0.1/x", "authorization", authorization,
		"max_in_flight", "many", "description", "Kept <b>", "headers", "Host: canary-of-a-header")
	wrong.want(t, 422, "Nothing was saved.")
	wrong.has(t, "http://10.0.0.1/x", "Kept &lt;b&gt;", "must name at least one event", "must begin with https://", "must be a whole number",
		"does not exist", `href="#url"`, `href="#events"`, `href="#headers"`,
		"Host is set by the service itself, or by HTTP", "Your entry was not kept")
	wrong.hasNot(t, authorization, "canary-of-a-header")
	w.cfg.Rules.Own = []netip.AddrPort{netip.MustParseAddrPort("8.8.8.8:443")}
	v.send("/subscriptions/new", "step", "check", "url", "https://8.8.8.8/x").want(t, 200, "must not target this service itself")
	v.send("/subscriptions/new", "url", "https://ada:secret@8.8.8.8/").want(t, 422, "use Authorization header")
	v.send("/subscriptions/new", "step", "check", "url", "https://10.0.0.1/x").want(t, 200,
		"leads to an address that deliveries may not be sent to")
	wrong.has(t, `aria-describedby="url-verdict url-hint" aria-invalid="true"`)
	if n := len(listSubscriptions(t, w, "")); n != 0 {
		t.Fatalf("there are %d subscriptions", n)
	}

	good := []string{"once", once, "for_program", "acme", "url", "https://partner.example/in?key=canary-of-a-url", "events",
		"content_published", "authorization", authorization, "active", "true", "description", hostileBytes,
		"headers", "X-Team: canary-of-a-header\r\nX-Api-Key: canary-of-a-header"}
	made := v.send("/subscriptions/new", good...)
	made.want(t, 200, "Copy it now:")
	made.inert(t)
	if got := made.Header.Get("Cache-Control"); got != "no-store" || made.Header.Get("ETag") != "" || made.Uncompressed || !form.Uncompressed {
		t.Errorf("the page with the secret may be kept, or is compressed: %q", got)
	}
	secret := secretText.FindString(made.body)
	if secret == "" || strings.Count(made.body, secret) != 2 {
		t.Fatalf("the secret is not there to be read and to be copied:\n%s", made.body)
	}
	subs := listSubscriptions(t, w, "")
	if len(subs) != 1 || !subs[0].HasAuthorizationHeader || !subs[0].Active || subs[0].CreatedBy != "admin:"+testAdmin {
		t.Fatalf("got %+v", subs)
	}
	made.has(t, subscriptionPath(subs[0].ID)+"?ping=newest#ping")

	// Reloading the page sends the form again.
	again := v.send("/subscriptions/new", good...)
	again.want(t, 422, "This form was submitted before")
	again.hasNot(t, secret, "whsec_", authorization)
	if n := len(listSubscriptions(t, w, "")); n != 1 {
		t.Errorf("there are %d subscriptions, want 1", n)
	}
	stranger := visitSignedIn(t, w)
	stranger.send("/subscriptions/new", append([]string{"once", v.do("GET", "/subscriptions/new").hidden(t, "once")}, good[2:]...)...).want(t,
		422, "This form was submitted before")

	one := v.do("GET", subscriptionPath(subs[0].ID))
	one.want(t, 200, "Details")
	one.inert(t)
	one.has(t, testAdmin+" (admin)", "<dd>Set</dd>", "https://partner.example/in?…", "X-Api-Key, X-Team")
	for _, p := range []page{one, v.do("GET", "/subscriptions"), v.do("GET", "/audit")} {
		p.hasNot(t, authorization, secret, "canary-of-a-url", "canary-of-a-header")
	}
	for range 2 {
		v.send("/subscriptions/new", append([]string{"once", v.do("GET", "/subscriptions/new").hidden(t, "once")}, good[2:]...)...).want(t, 200,
			"whsec_")
	}
	v.send("/subscriptions/new", append([]string{"once", v.do("GET", "/subscriptions/new").hidden(t, "once")}, good[2:]...)...).want(t, 422,
		"the program has 3 subscriptions")
	wantDid(t, w, "create", "create", "create")
}

// A URL is validated while the visitor types, by the same rules as when it is saved.
func TestCheckURL(t *testing.T) {
	v, w := subscribing(t)
	newProgramToken(t, w.store, "acme")
	for typed, want := range map[string]string{
		"":                              "is checked while you type:",
		"https://partner.example/a?b=c": "The URL is valid.",
		"ftp://partner.example/":        "must begin with https://",
		"https://localhost/":            "or start the service with --allow-destination 127.0.0.0/8",
		"https://user:x@example.com/":   "must not contain a user name",
		"https://10.0.0.1/x":            "The URL leads to an address that deliveries may not be sent to",
	} {
		p := v.send("/subscriptions/check-url", "url", typed, "for_program", "acme")
		p.want(t, 200, want)
		p.hasNot(t, "<html")
		switch {
		case typed == "":
			p.hasNot(t, "fault")
		case want == "The URL is valid.":
			p.has(t, "POST /a?b=c HTTP/1.1", ">partner.example<", ">acme<")
			p.hasNot(t, "fault")
		default: // it replaces the verdict below the field
			p.has(t, `<p id="url-verdict"><span class="fault">`)
		}
	}
	v.do("GET", "/subscriptions/check-url?url=x").want(t, 405, "")
	form := v.do("GET", "/subscriptions/new")
	if name, u := strings.Index(form.body, `id="description"`), strings.Index(form.body, `id="url"`); name < 0 || name > u {
		t.Error("the name is not before the URL")
	}
}

// A form that is older than the record is rejected, shows the current values, and can be submitted
// again.
func TestEditSubscription(t *testing.T) {
	v, w, _, path := subscribed(t)
	form := v.do("GET", path+"/edit")
	form.want(t, 200, "A header is set. Leave empty to keep it.")
	form.inert(t)
	form.hasNot(t, "top-secret-token")
	was := form.hidden(t, "was")
	edit := func(was string, more ...string) page { return v.edit(path, was, more...) }
	edit(was, "url", "http://x").want(t, 422, "must begin with https://")
	edit(was, "description", "mine").want(t, 303, "")
	v.do("GET", path).want(t, 200, "Saved.")
	v.do("GET", path+"/rotate-secret").want(t, 200, `mine <span class="quiet">partner.example/in</span></a>`)

	// A change of a property that the form lacks does not cause a rejection.
	now := v.do("GET", path+"/edit").hidden(t, "was")
	v.send(path+"/pause").want(t, 303, "")
	v.send(path+"/resume").want(t, 303, "")
	edit(now, "description", "mine", "max_in_flight", "3").want(t, 303, "")
	edit(v.do("GET", path+"/edit").hidden(t, "was"), "description", "mine", "max_in_flight", "").want(t, 303, "")

	stale := edit(was, "description", "stale", "ordered", "true")
	stale.want(t, 409, "Nothing was saved: the subscription has changed since you opened this form.")
	stale.apart(t).inert(t)
	stale.has(t, "Name: mine", "Ordered: no", `id="description"`, `value="stale"`)
	stale.hasNot(t, "Events: ")
	edit(stale.hidden(t, "was"), "description", "stale", "remove_authorization", "true").want(t, 303, "")
	got := listSubscriptions(t, w, "")[0]
	if got.Description != "stale" || got.HasAuthorizationHeader || !slices.Equal(got.Events, []string{"content_published"}) {
		t.Errorf("got %+v", got)
	}
	edit(v.do("GET", path+"/edit").hidden(t, "was"), "description", "stale").want(t, 303, "") // changes nothing
	for _, step := range []struct{ name, value, want string }{
		{"headers", "X-B: b\nX-Key: a", "[X-B X-Key]"}, {"headers", "", "[X-B X-Key]"}, {"headers", "X-Key: b", "[X-Key]"},
		{"remove_headers", "true", "[]"},
	} {
		edit(v.do("GET", path+"/edit").hidden(t, "was"), "description", "stale", step.name, step.value).want(t, 303, "")
		if got := fmt.Sprint(listSubscriptions(t, w, "")[0].HeaderNames); got != step.want {
			t.Errorf("%s %q: got the headers %s, want %s", step.name, step.value, got, step.want)
		}
	}
	edit(v.do("GET", path+"/edit").hidden(t, "was"), "headers", "X-Key").want(t, 422, "must have one header on each line, as Name: value")
	edit(v.do("GET", path+"/edit").hidden(t, "was"), "headers", "X-Key: a", "remove_headers", "true").want(t, 422,
		"cannot be both removed and replaced")
	wantDid(t, w, "update", "pause", "resume", "update", "update", "update", "update", "update", "update")
}

// The form shows filters as JSON, shows the errors in them, and drops the filter of a deselected
// event. The event page says which subscriptions do not receive the event.
func TestEditFilters(t *testing.T) {
	v, w, l, path := subscribed(t)
	edit := func(filters string, events ...string) page {
		form := url.Values{"was": {v.do("GET", path+"/edit").hidden(t, "was")}, "url": {"https://partner.example/in"}, "events": events,
			"filters": {filters}}
		return v.post(path+"/edit", form.Encode(), "Origin", v.base, "Sec-Fetch-Site", "same-origin")
	}
	const below5 = `{"content_published":{"all":[{"path":"content_id","op":"lt","value":5}]}}`
	for _, wrong := range []struct{ filters, want string }{
		{`{"content_published":`, "must be JSON: "},
		{`[]`, "must be an object such as"},
		{`{"content_published":{"all":[{"path":"conten_id","op":"eq","value":7}]}}`, "conten_id is not a field of content_published; it has: "},
		{`{"content_published":{"all":[]}}`, "must be an array of at least one condition"},
		{`{"content_deleted":{"all":[{"path":"content_id","op":"eq","value":7}]}}`, "is not the name of a selected event"},
	} {
		p := edit(wrong.filters, "content_published")
		p.want(t, 422, wrong.want, `<a href="#filters">Filters</a>`, `id="filters"`)
		p.inert(t)
	}
	edit(below5, "content_published", "content_updated").want(t, 303, "")
	v.do("GET", path).has(t, "<dt>Filters</dt>", "&#34;op&#34;: &#34;lt&#34;")
	v.do("GET", path+"/edit").has(t, "&#34;path&#34;: &#34;content_id&#34;")

	e := l.publish("content_published", `"content_id"`)[0]
	v.do("GET", "/events/acme/"+e.ID).has(t, "partner.example", "Not sent to ", "</a>: filter ")

	edit(below5, "content_updated").want(t, 303, "")
	if got := listSubscriptions(t, w, "")[0]; len(got.Filters) != 0 {
		t.Errorf("the event was deselected: got the filters %s", got.Filters)
	}
	v.do("GET", path).hasNot(t, "Filters")
}

// The form keeps an event type that the catalog no longer contains, until it is deselected.
func TestEditRemovedEventType(t *testing.T) {
	var catalog *webhook.Catalog
	v, w := startSignedIn(t, func(c *Config) {
		catalog = webhook.NewCatalog(c.Rules.Catalog.Types()...)
		c.Rules.Catalog = catalog
	})
	l := newEventSource(t, w, "https://hooks.example.com/in")
	path := subscriptionPath(l.sub.ID) + "/edit"
	edit := func(events ...string) page {
		form := url.Values{"was": {v.do("GET", path).hidden(t, "was")}, "url": {"https://hooks.example.com/in"}, "events": events}
		return v.post(path, form.Encode(), "Origin", v.base, "Sec-Fetch-Site", "same-origin")
	}
	edit("content_published", "content_updated").want(t, 303, "")
	catalog.Remove("content_published")
	v.do("GET", path).has(t, "No longer in the catalog", "Once deselected, it cannot be selected again.")
	edit("content_published", "content_deleted").want(t, 303, "")
	edit("content_deleted", "none").has(t, `value="content_published"`) // it can be selected again after a mistake
	edit("content_deleted").want(t, 303, "")
	v.do("GET", path).hasNot(t, "content_published")
	edit("content_published").want(t, 422, "is not the name of an event type")
}

// All actions on a subscription, in the order in which an admin would use them.
func TestSubscriptionActions(t *testing.T) {
	v, w, l, path := subscribed(t)
	ping := l.claim(true)
	l.end(ping, webhook.Attempt{ResponseStatus: 200, Duration: 41 * time.Millisecond,
		ResponseBody: []byte(strings.Repeat("line "+hostileBytes+"\n", 30))})
	first := v.do("GET", path+"?ping=newest")
	first.want(t, 200, "Response body")
	first.inert(t)
	first.has(t, "41 ms", ping.ID, "truncated at")

	pingAndWait(t, v, l)

	for _, event := range []string{`"a"`, `"b"`} {
		l.publish("content_published", event)
		l.end(l.form(), webhook.Attempt{ResponseStatus: 404, Duration: 9 * time.Millisecond})
	}
	v.do("GET", path).has(t, "content_published", "Success rate", "by-answer", "· 404 Not Found") // newer than the ping
	v.send(path+"/pause").want(t, 303, "")
	paused := v.do("GET", path)
	paused.want(t, 200, "Paused.")
	v.send(path+"/pause").want(t, 303, "") // pressed twice
	l.publish("content_published", `"c"`, `"d"`, `"e"`)
	v.do("GET", path+"/replay?only=missed&from=2026-01-01T00:00").want(t, 200, "Resume it first.")
	v.send(path+"/resume").want(t, 303, "")

	replays(t, v, l)
	rotations(t, v, l)
	deletion(t, v, l)
	v.do("GET", path).has(t, ping.ID)
	wantDid(t, w, "ping", "pause", "resume", "replay", "cancel_replay", "rotate_secret", "rotate_secret", "rotate_secret",
		"rotate_secret", "rotate_secret", "delete")
}

// A test event goes to one subscription, whatever its event types, in its own delivery.
func TestSendTestEvent(t *testing.T) {
	v, w, l, path := subscribed(t)
	l.end(l.claim(true), webhook.Attempt{ResponseStatus: 200}) // the first ping
	v.do("GET", path).has(t, "Send test event", `<option value="content_published" selected>`)
	v.send(path+"/test", "name", "ping").want(t, 422, "Unknown event type")

	done := make(chan string)
	go func() {
		sent := v.send(path+"/test", "name", "channel_created")
		done <- sent.Header.Get("Location")
	}()
	var c *store.Claim
	for c == nil {
		var err error
		c, err = storetest.ClaimPing(t.Context(), w.store, l.sub.ID)
		must(t, err)
	}
	if len(c.Events) != 1 || !webhook.IsTestEvent(c.Events[0]) {
		t.Errorf("claimed %q", c.Events)
	}
	l.end(c, webhook.Attempt{ResponseStatus: 204, Duration: 7 * time.Millisecond})
	to := <-done
	if to != path+"?ping="+c.ID+"#ping" {
		t.Errorf("led to %s", to)
	}
	v.do("GET", strings.TrimSuffix(to, "#ping")).has(t, "Test event channel_created", "204")
	v.do("GET", deliveryPath(c.ID)).has(t, "It is not in the event log.", "X-Service-Test")
	wantDid(t, w, "test")
}

// pingAndWait checks that the ping page waits for its result.
func pingAndWait(t *testing.T, v visitor, l *eventSource) {
	t.Helper()
	w, path := l.w, subscriptionPath(l.sub.ID)
	watch := w.store.Watch()
	defer watch.Close()
	answered := make(chan string, 1)
	go func() {
		for range watch.C {
			if _, ok := watch.Take().Queued[l.sub.ID]; ok {
				c, err := storetest.ClaimPing(t.Context(), w.store, l.sub.ID)
				if err != nil || c == nil {
					continue
				}
				a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), Duration: 12 * time.Millisecond, Error: webhook.ErrorTLS,
					Result: webhook.ResultRetryable}
				_, err = w.store.Queues().Record(c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{})
				if err == nil {
					answered <- c.ID
				}
				return
			}
		}
	}()
	pinged := v.send(path + "/ping")
	pinged.want(t, 303, "")
	id := <-answered
	if got := pinged.Header.Get("Location"); got != path+"?ping="+id+"#ping" {
		t.Fatalf("it leads to %s", got)
	}
	result := v.do("GET", path+"?ping="+id)
	result.want(t, 200, "The TLS connection failed")
	result.apart(t).inert(t)
	result.has(t, "12 ms", "Next attempt ")
}

// replays counts, starts and cancels replays.
func replays(t *testing.T, v visitor, l *eventSource) {
	t.Helper()
	path := subscriptionPath(l.sub.ID)
	since := url.QueryEscape(webhook.FormatTime(time.Now().Add(-time.Hour)))
	v.do("GET", path+"/replay").want(t, 200, "Count")
	v.do("GET", path+"/replay?from=yesterday&only=some").want(t, 422, "must be failed, missed or all events")
	v.do("GET", path+"/replay?only=all&from=2026-03-14T00:00&to=2026-03-13T00:00").want(t, 422, "earlier than the start of the range")
	v.send(path+"/replay", "only", "all", "from", webhook.FormatTime(time.Now().Add(time.Hour))).want(t, 422, "must not be in the future")
	for only, want := range map[string]string{"missed": "3 events", "failed": "2 events", "all": "5 events"} {
		counted := v.do("GET", path+"/replay?only="+only+"&from="+since)
		counted.want(t, 200, "Replay "+want)
		counted.inert(t)
		counted.has(t, "in at least 1 delivery", "&#34;dry_run&#34;:true")
	}
	counted := v.do("GET", path+"/replay?only=missed&from="+since)
	v.send(path+"/replay", "only", "missed", "to", "").want(t, 422, "is required")
	v.send(path+"/replay", "only", counted.hidden(t, "only"), "from", counted.hidden(t, "from"), "to", counted.hidden(t, "to")).want(t, 303,
		"")
	running := v.do("GET", path)
	running.want(t, 200, "Replay started.")
	running.apart(t).inert(t)
	cancel := running.link(t, `action="([^"]+/cancel)"`)
	v.send(cancel).want(t, 303, "")
	v.do("GET", path).want(t, 200, "Replay cancelled")
	v.send(cancel).want(t, 303, "")
}

// rotations rotates the secret up to the maximum number of secrets.
func rotations(t *testing.T, v visitor, l *eventSource) {
	t.Helper()
	w, path := l.w, subscriptionPath(l.sub.ID)
	ask := v.do("GET", path+"/rotate-secret")
	ask.want(t, 200, "for another 24 hours")
	once := ask.hidden(t, "once")
	rotated := v.send(path+"/rotate-secret", "once", once)
	rotated.want(t, 200, "Previous signing secret")
	rotated.apart(t).inert(t)
	// Both are shown: the previous one and the current one.
	queue, err := w.store.Queues().Get(t.Context(), l.sub.ID)
	must(t, err)
	shown := regexp.MustCompile(`<code id="(secret|before)">(whsec_[^<]+)</code>`).FindAllStringSubmatch(rotated.body, -1)
	if len(queue.Secrets) != 2 || len(shown) != 2 || html.UnescapeString(shown[0][2]) != queue.Secrets[0].Reveal() ||
		html.UnescapeString(shown[1][2]) != queue.Secrets[1].Reveal() {
		t.Errorf("%d secrets sign, and %q are shown", len(queue.Secrets), shown)
	}
	if len(queue.Expiry) == 1 {
		rotated.has(t, `also signs until <time datetime="`+webhook.FormatTime(queue.Expiry[0])+`"`)
	} else {
		t.Errorf("%d old secrets end", len(queue.Expiry))
	}
	secret := secretText.FindString(rotated.body)
	if secret == "" || rotated.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("no secret, or one that may be kept: %s", rotated.Header.Get("Cache-Control"))
	}
	again := v.send(path+"/rotate-secret", "once", once)
	again.want(t, 409, "This form was submitted before")
	if secretText.MatchString(again.body) {
		t.Error("the secret is shown again")
	}
	v.do("GET", path).apart(t).has(t, "1 old secret that still signs; expires")
	v.do("GET", path+"/rotate-secret").apart(t).has(t, "<strong>older</strong>")
	for range 3 {
		v.send(path+"/rotate-secret", "once", v.do("GET", path+"/rotate-secret").hidden(t, "once")).want(t, 200, "Older secret")
	}
	v.send(path+"/rotate-secret", "once", v.do("GET", path+"/rotate-secret").hidden(t, "once")).want(t, 409, "within 24 hours, the maximum")

	ownSecret := func(own string) page {
		return v.send(path+"/rotate-secret", "once", v.do("GET", path+"/rotate-secret").hidden(t, "once"), "own_secret", own, "end_old", "true")
	}
	refused := ownSecret("canary")
	refused.want(t, 422, "The secret was not rotated.")
	refused.hasNot(t, "canary")
	own := webhook.NewSigningSecret()
	ended := ownSecret(" " + own.Reveal() + " ")
	ended.want(t, 200, "New signing secret")
	ended.hasNot(t, "Previous signing secret", "Older active secrets")
	queue, err = w.store.Queues().Get(t.Context(), l.sub.ID)
	if err != nil || len(queue.Secrets) != 1 || !slices.Equal(queue.Secrets[0], own) {
		t.Errorf("%v: %d secrets sign, want only the partner's own", err, len(queue.Secrets))
	}
	ownSecret(own.Reveal()).want(t, 422, "must be another than the current one")
}

// deletion deletes the subscription.
func deletion(t *testing.T, v visitor, l *eventSource) {
	t.Helper()
	path := subscriptionPath(l.sub.ID)
	l.publish("content_updated", `"f"`, `"g"`)
	ask := v.do("GET", path+"/delete")
	ask.want(t, 200, "2 new events")
	ask.apart(t).inert(t)
	ask.has(t, "1 delivery waits for its") // the ping
	v.send(path+"/delete").want(t, 303, "")
	gone := v.do("GET", path)
	gone.want(t, 200, "Deleted ")
	gone.apart(t).inert(t)
	gone.hasNot(t, path+"/edit", path+"/ping", "Equivalent API request")
	v.send(path+"/ping").want(t, 409, "This subscription is deleted")
	v.send(path+"/delete").want(t, 409, "This subscription is deleted")
	v.do("GET", "/subscriptions").want(t, 200, "No subscriptions yet.")
	v.do("GET", "/subscriptions?filter[deleted]=true").want(t, 200, l.sub.ID)
	v.do("GET", "/subscriptions/none").want(t, 404, "There is no such subscription.")
}

// subscribeNamed creates a subscription with a name as its host, and returns its ID.
func subscribeNamed(t *testing.T, w *Web, name, program string, active bool, events ...string) string {
	t.Helper()
	u := "https://" + name + ".example/in"
	return createSubscription(t, w.store, program, webhook.SubscriptionFields{URL: &u, Events: &events, Active: &active}).ID
}

// listedSubscriptions creates subscriptions in two programs, the second one paused, and returns
// their names by ID.
func listedSubscriptions(t *testing.T, w *Web) map[string]string {
	t.Helper()
	for _, p := range []string{"acme", "globex"} {
		newProgramToken(t, w.store, p)
	}
	return map[string]string{
		subscribeNamed(t, w, "a", "acme", true, "content_published"):                     "a",
		subscribeNamed(t, w, "b", "acme", false, "content_updated", "content_published"): "b",
		subscribeNamed(t, w, "c", "globex", true, "channel_updated"):                     "c",
	}
}

// The list contains the subscriptions of all programs, and the address filters it.
func TestSubscriptionList(t *testing.T) {
	v, w := subscribing(t)
	ids := listedSubscriptions(t, w)
	for query, want := range map[string]string{
		"":                                  "b a c", // paused first
		"sort=-status":                      "a c b",
		"sort=-name":                        "c b a",
		"sort=-created_at":                  "c b a",
		"sort=created_at":                   "a b c",
		"program=acme":                      "b a",
		"program=unknown":                   "",
		"filter[active]=false":              "b",
		"filter[event]=content_published":   "b a",
		"filter[search]=C.EXAMPLE":          "c",
		"filter[status]=failing":            "",
		"filter[losses]=true":               "",
		"filter[losses]=false&program=acme": "b a",
		"filter[deleted]=true,false":        "b a c",
		"span=1h":                           "b a c",
		"filter[created_at.to]=2020-01-01":  "",
	} {
		p := v.do("GET", "/subscriptions?"+query)
		p.want(t, 200, "Equivalent API request")
		p.inert(t)
		var got []string
		for _, m := range regexp.MustCompile(`<tr role="row" id="([^"]+)"`).FindAllStringSubmatch(p.body, -1) {
			got = append(got, ids[m[1]])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", query, got, want)
		}
		if empty := strings.Contains(p.body, "No results."); empty != (want == "" && strings.Contains(query, "filter")) {
			t.Errorf("%s: the state of a list without matches is %t", query, empty)
		}
	}
	v.do("GET", "/subscriptions?filter[event]=A%20B").want(t, 400, "must be event names")
	v.do("GET", "/subscriptions?filter[active]=false&page[size]=50").has(t, "filter[active]=false", "--globoff")

	v.do("GET", "/subscriptions?sort=status,name").want(t, 400, "must be one of the choices below")
}

// New rows shift no page of the list, and its headers order it.
func TestSubscriptionListOrder(t *testing.T) {
	v, w := subscribing(t)
	listedSubscriptions(t, w)
	for _, tt := range []struct{ query, added, want, not string }{
		{"sort=-created_at", "0d", "https://a.example/in", "https://c.example/in"},
		{"", "00", "https://c.example/in", "https://0d.example/in"},
	} {
		page1 := v.do("GET", "/subscriptions?page[size]=2&"+tt.query)
		subscribeNamed(t, w, tt.added, "acme", true, "channel_updated")
		page2 := v.do("GET", page1.link(t, `rel="next" href="([^"]+)"`))
		page2.want(t, 200, tt.want)
		page2.hasNot(t, "https://b.example/in", tt.not, "https://"+tt.added+".example/in")
		page2.has(t, `rel="prev"`)
	}

	// A header orders the list by its column; the next use reverses the order.
	list := v.do("GET", "/subscriptions?filter[active]=true")
	list.has(t, `aria-sort="ascending"`, `href="/subscriptions?filter[active]=true&amp;sort=-waiting"`,
		`href="/subscriptions?filter[active]=true&amp;sort=-status"`)
	list = v.do("GET", "/subscriptions?sort=-waiting")
	list.has(t, `class="w-backlog" aria-sort="descending"`, `href="/subscriptions?sort=waiting"`, `href="/subscriptions"`)
	if n := strings.Count(list.body, "aria-sort"); n != 1 {
		t.Errorf("%d headers have the order of the list", n)
	}

	// A form without JavaScript sends its empty fields.
	to := v.do("GET", "/subscriptions?filter[search]=&filter[active]=false&sort=&page[size]=")
	to.want(t, 303, "")
	to.wantHeader(t, "Location", "/subscriptions?filter[active]=false")
	v.do("GET", "/subscriptions/export?format=csv").want(t, 200, "a.example")

	// A partner's list has the same order.
	partner := enter(t, w, "acme", webhook.PortalRead)
	partner.do("GET", "/portal/subscriptions").has(t, `href="/portal/subscriptions?sort=-waiting"`)
}

// The values of a chart belong to its hours.
func TestSteps(t *testing.T) {
	from := testNow.Truncate(time.Hour)
	at := func(hours int, success, failed int64) webhook.Stat {
		s := webhook.Stat{At: from.Add(time.Duration(hours) * time.Hour), Success: success, Failed: failed,
			Answers: map[string]int64{"200": success, "404": failed}}
		return s
	}
	got := steps([]webhook.Stat{at(-1, 9, 9), at(0, 1, 0), at(5, 2, 1), at(6, 4, 0), at(12, 9, 9)}, from, from.Add(12*time.Hour), 6*time.Hour)
	if len(got) != 2 || got[0].Success != 3 || got[0].Failed != 1 || got[1].Success != 4 || got[1].Failed != 0 {
		t.Errorf("got %+v", got)
	}
	sum := statSum(got)
	if all := responseCounts(&sum); len(all) != 2 || all[0].answer != "200" || all[0].n != 7 || all[1].state != "failed" {
		t.Errorf("got %+v", all)
	}
	many := webhook.Stat{Success: 100, Answers: make(map[string]int64)}
	for i := range maxAnswers + 8 {
		many.Answers[strconv.Itoa(400+i)] = int64(maxAnswers + 8 - i)
	}
	if all := responseCounts(&many); len(all) != maxAnswers+1 || all[maxAnswers].answer != "8 others" || all[maxAnswers].n != 8*9/2 {
		t.Errorf("got %+v", all)
	}
	for _, tt := range []struct {
		success, failed int64
		want            string
	}{{0, 0, ""}, {7, 0, "100 %"}, {0, 7, "0 %"}, {99_999, 1, "99.9 %"}, {1, 99_999, "0.1 %"}, {1, 2, "33.3 %"}} {
		if got := rate(&webhook.Stat{Success: tt.success, Failed: tt.failed}); got != tt.want {
			t.Errorf("%d and %d: got %q, want %q", tt.success, tt.failed, got, tt.want)
		}
	}
}

// A receiver that refused a delivery for its size gets smaller ones, and the page says so and why.
func TestSizeBoundIsShown(t *testing.T) {
	v, _, l, path := subscribed(t)
	v.do("GET", path).hasNot(t, "(413)")
	text := `"` + strings.Repeat("x", 10<<10) + `"`
	l.publish("content_published", text, text)
	l.end(l.form(), webhook.Attempt{ResponseStatus: 413})
	p := v.do("GET", path)
	p.has(t, "At most 10.1 KiB of events", "since the endpoint refused a larger delivery (413)")
	p.hasNot(t, "Resend failed")
}
