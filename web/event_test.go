package web

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/record"
	"service/webhook"
)

// The log pages, of one program and of all, lead to events and their deliveries.
func TestEventPages(t *testing.T) {
	v, l, events, id := eventLog(t)
	for _, tt := range []struct {
		query string
		has   []string
		not   []string
	}{
		{"", []string{"/events/other/" + id, "/events/acme/" + events[26].ID, "Older"}, []string{"/events/acme/" + events[0].ID}},
		{"?program=acme", []string{"/events/acme/" + events[26].ID, "Older"}, []string{"/events/other/"}},
		{"?program=other", []string{"/events/other/" + id, "No subscriber", `<a class="type" href="/event-types/channel_created">`},
			[]string{"/events/acme/", "Older"}},
		{"?filter[name]=channel_created", []string{"/events/other/" + id}, []string{"/events/acme/"}},
		{"?filter[id]=" + events[3].ID, []string{"/events/acme/" + events[3].ID, "<span>pending</span>", "0 of 1 delivered, 1 waiting",
			"number 3"}, []string{"/events/other/", events[4].ID}},
		{"?filter[name]=ping", []string{"No results."}, nil},
		{"?sort=received_at", []string{events[0].ID}, []string{"/events/other/"}},
	} {
		p := v.do("GET", "/events"+tt.query)
		p.want(t, 200, "<h1>Events</h1>")
		p.has(t, tt.has...)
		p.hasNot(t, tt.not...)
		p.inert(t)
	}
	p := v.do("GET", "/events?program=acme")
	next := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindStringSubmatch(p.body)
	if next == nil {
		t.Fatal("there is no next page")
	}
	v.do("GET", strings.ReplaceAll(next[1], "&amp;", "&")).has(t, "/events/acme/"+events[0].ID, "Newest", `rel="prev"`)
	p = v.do("GET", "/events?filter[nme]=x")
	p.want(t, 400, "The list could not be loaded.", "is not a filter of this list")
	v.do("GET", "/events?page[cursor]=x").want(t, 400, "This page of the list does not exist.")
	p = v.do("GET", "/events?span=1y")
	p.want(t, 400, "The time range must be")
	p = v.do("GET", "/events?sort=colour&page[size]=5000&filter[received_at.to]=never")
	p.want(t, 400, "The list could not be loaded.")
	p.has(t, `<a href="#sort">Order</a>`, `<a href="#page-size">Per page</a>`, "must be a time such as")
	p.hasNot(t, "%2B in a URL", "supported: ")

	// One event and its deliveries.
	page := "/events/acme/" + events[1].ID
	v.do("GET", page).has(t, "1 subscription: waiting for 1.", "hooks.example.com")
	c := l.form()
	l.end(c, webhook.Attempt{ResponseStatus: 404, Duration: time.Millisecond})
	p = v.do("GET", page)
	// The events were refused together, so they are sent again one by one.
	p.want(t, 200, "1 subscription: retrying for 1.")
	v.do("GET", "/events?filter[id]="+events[1].ID).has(t, "<span>retrying</span>", "0 of 1 delivered, 1 retrying")
	p.has(t, "/deliveries/"+c.ID, ">404<", "events sent one by one", "number 1", "/v2/events/"+events[1].ID)
	p.hasNot(t, "s3cret", "Waiting")
	p.inert(t)
	again := v.send("/deliveries/" + c.ID + "/redeliver").Header.Get("Location")
	p = v.do("GET", page)
	p.has(t, "1 subscription: being sent to 1.", again, ">resent</a>", "not sent yet")
	v.do("GET", "/events/other/"+id).has(t, "No active subscription included its type")
	v.do("GET", "/events/other/"+events[1].ID).want(t, 404, "")
	p = v.do("GET", page+"/body.json.txt")
	if p.body != string(events[1].JSON) || p.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("the file: got %s as %s", p.body, p.Header.Get("Content-Type"))
	}
	v.do("GET", page+"?page[cursor]=x").want(t, 400, "Invalid address")
}

// An event page contains a sentence for each subscription. The event counts as delivered if any
// delivery of it succeeded.
func TestEventOutcomes(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com")
	s := sender{t, w.store}
	waits := s.subscribe("acme", "https://waits.example.com/in")
	e := l.publish("content_updated", `"one"`)[0]
	c := l.form()
	l.end(c, webhook.Attempt{ResponseStatus: 404})
	page := eventPath("acme", e.ID)
	p := v.do("GET", page)
	p.has(t, "Failed for ", "404 (1 of 5 attempts)", "Waiting for ", ": next in the event log", `href="`+subscriptionPath(waits.ID)+`"`)
	again := v.send(deliveryPath(c.ID) + "/redeliver").Header.Get("Location")
	l.end(l.claim(false), webhook.Attempt{ResponseStatus: 200})
	newest := v.send(deliveryPath(c.ID) + "/redeliver").Header.Get("Location")
	p = v.do("GET", page)
	p.has(t, "2 subscriptions: delivered to 1, waiting for 1.", "Delivered to ", "200 (attempt 1)", again, newest)
	p.hasNot(t, "Failed for ", "Being sent to ")
	p.inert(t)
}

func TestEventResultText(t *testing.T) {
	for _, c := range []struct {
		result record.EventResult
		want   string
	}{
		{record.EventResult{}, " no subscriber "},
		{record.EventResult{More: true}, "pending unknown too many subscriptions to check"},
		{record.EventResult{Delivered: 1}, "success delivered to 1 subscription"},
		{record.EventResult{Delivered: 3}, "success delivered to 3 subscriptions"},
		{record.EventResult{Delivered: 100, More: true}, "success delivered 100 of at least 100 delivered"},
		{record.EventResult{Delivered: 2, Failed: 1, Waiting: 2}, "failed failed 2 of 5 delivered, 1 failed, 2 waiting"},
		{record.EventResult{Delivered: 2, Retrying: 1, Sending: 1}, "retryable retrying 2 of 4 delivered, 1 retrying, 1 sending"},
		{record.EventResult{Waiting: 1}, "pending pending 0 of 1 delivered, 1 waiting"},
	} {
		state, word, more := resultOf(&c.result)
		if got := state + " " + word + " " + more; got != c.want {
			t.Errorf("%+v: got %q, want %q", c.result, got, c.want)
		}
	}
}

// eventLog publishes 27 events in the program acme, and one in another, and returns the ID of the
// latter.
func eventLog(t *testing.T) (v visitor, l *eventSource, events []webhook.Event, id string) {
	t.Helper()
	v, w := startSignedIn(t, nil)
	v.do("GET", "/events").want(t, 200, "No events yet.")
	l = newEventSource(t, w, "https://hooks.example.com/in?key=s3cret")
	var fields []string
	for i := range 27 {
		fields = append(fields, fmt.Sprintf(`"number %d"`, i))
	}
	events = l.publish("content_published", fields...)
	newProgramToken(t, w.store, "other")
	return v, l, events, publishIn(t, w.store, "other", "channel_created")
}

// Exports contain all pages, and are recorded in the audit log.
func TestEventExport(t *testing.T) {
	v, l, events, _ := eventLog(t)
	p := v.do("GET", "/events/export?format=ndjson&program=acme&sort=received_at")
	p.want(t, 200, "")
	var want strings.Builder
	for _, e := range events {
		want.Write(e.JSON)
		want.WriteByte('\n')
	}
	if diff := cmp.Diff(want.String(), p.body); diff != "" || p.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("the export, as %s (-want +got):\n%s", p.Header.Get("Content-Type"), diff)
	}
	p = v.do("GET", "/events/export?format=csv&filter[name]=channel_created,content_published")
	rows, err := csv.NewReader(strings.NewReader(p.body)).ReadAll()
	if err != nil || len(rows) != 1+28 || rows[1][0] != "other" || rows[28][2] != events[0].ID {
		t.Errorf("the table: got %d rows, %v:\n%s", len(rows), err, p.body)
	}
	v.do("GET", "/events/export?format=xml").want(t, 400, "format=ndjson or format=csv")
	v.do("GET", "/events/export?format=csv&filter[nme]=x").want(t, 400, "")
	if all := wantAudit(t, l.w, "event.export as ndjson: sort=received_at"); strings.Count(all, "event.export") != 2 {
		t.Errorf("the audit has\n%s", all)
	}
}

// An event published on the page is stored as if published over the API.
func TestPublish(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com")
	form := func(p page) string {
		m := regexp.MustCompile(`(?s)<textarea[^>]*>(.*)</textarea>`).FindStringSubmatch(p.body)
		if m == nil {
			t.Fatalf("there is no event in the form:\n%s", p.body)
		}
		return strings.NewReplacer("&#34;", `"`, "&#39;", "'", "&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(m[1])
	}
	p := v.do("GET", "/events/publish?program=acme&name=content_published")
	p.want(t, 200, "In acme 1 active subscription will receive it.")
	p.inert(t)
	text := form(p)
	if strings.Contains(text, "timestamp") {
		t.Errorf("the form has a time:\n%s", text)
	}
	// The example of every event type can be published unchanged.
	for _, name := range w.pages.events.publishableNames() {
		if _, err := w.cfg.Rules.Catalog.NewEvent([]byte(form(v.do("GET", "/events/publish?name="+name))), "", time.Now()); err != nil {
			t.Errorf("%s: the form's event does not pass: %v", name, err)
		}
	}
	v.do("GET", "/events/publish?name=ping").want(t, 404, "")
	v.do("GET", "/events/publish?name=none").want(t, 404, "")

	p = v.send("/events/publish", "program", "acme", "event", text)
	p.want(t, 303, "")
	at := p.Header.Get("Location")
	v.do("GET", at).want(t, 200, "Event published. It is sent to all active subscriptions to content_published.")
	// Sending the same form again adds nothing.
	p = v.send("/events/publish", "program", "acme", "event", strings.ReplaceAll(text, "\n", "\r\n"))
	if got := p.Header.Get("Location"); p.StatusCode != 303 || got != at {
		t.Errorf("sent twice: got %d, %s; want 303, %s", p.StatusCode, got, at)
	}
	v.do("GET", at).want(t, 200, "Nothing was added")
	l.form() // a delivery is in flight

	for name, tt := range map[string]struct {
		program, event string
		want           []string
	}{
		"no JSON": {"acme", "{", []string{`href="#publish-event"`}},
		"a misspelt field": {"acme", strings.Replace(text, "content_id", "contentid", 1), []string{"contentid", "content_id", "is required",
			`id="publish-event-fault"`}},
		"a ping":          {"acme", `{"name":"ping","version":"1"}`, []string{"cannot be published"}},
		"a taken id":      {"acme", strings.Replace(text, "48211", "7", 1), []string{"and different content already exists"}},
		"no program":      {"", text, []string{`href="#publish-program"`, "is required"}},
		"another program": {"unknown", text, []string{"does not exist"}},
		"hostile": {"acme<script>", `{"name":"</textarea><script>alert(1)</script>` + "\u202e" + `","version":"1"}`,
			[]string{"is not the name of an event type"}},
		"too large": {"acme", `{"name":"` + strings.Repeat("x", webhook.MaxEventBytes) + `"}`, []string{"must be at most"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := v.send("/events/publish", "program", tt.program, "event", tt.event)
			p.want(t, 422, "Nothing was published.")
			p.has(t, tt.want...)
			p.inert(t)
			if got := form(p); len(got) < len(tt.event)-1 {
				t.Errorf("the form has lost what was typed:\n%s", got)
			}
		})
	}
	v.send("/events/publish", "event", strings.Repeat("x", maxPublishForm)).want(t, 413, "at most 832 KiB")

	p = v.do("GET", "/events/publish?program=acme&like="+strings.TrimPrefix(at, "/events/acme/"))
	p.want(t, 200, "")
	if like := form(p); strings.Contains(like, strings.TrimPrefix(at, "/events/acme/")) || !strings.Contains(like, "48211") {
		t.Errorf("one like it: got\n%s", like)
	}
	v.do("GET", "/events/publish?program=acme&like=none").want(t, 404, "")
	if all := wantAudit(t, w, "event.publish content_published"); strings.Count(all, "event.publish") != 1 {
		t.Errorf("the audit has\n%s", all)
	}
}

// Text of publishers and of operators' schemas is inert on every event page.
func TestHostileEvents(t *testing.T) {
	own := webhook.SchemaFile{Name: "evil_thing.json",
		Content: []byte(strings.ReplaceAll(`{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"BAD","description":"BAD","type":"object",
		"properties":{"id":{"type":"string","format":"uuid"},"timestamp":{"type":"string","format":"date-time"},"name":{"const":"evil_thing"},"version":{"const":"1"},
		"BAD":{"type":"string","description":"BAD","pattern":".*|BAD"},"few":{"enum":["BAD"]}},
		"required":["id","timestamp","name","version"],"additionalProperties":false,
		"examples":[{"id":"019d065b-80f1-733a-9a41-3f6be7c2d63f","timestamp":"2026-03-19T13:49:13.329Z","name":"evil_thing","version":"1","BAD":"BAD"}]}`,
			"BAD", "<script>alert(1)</script>\u202egnp\u200b"))}
	catalog, err := webhook.LoadCatalog(own)
	must(t, err)
	v, w := startSignedIn(t, func(cfg *Config) { cfg.Rules.Catalog = catalog })
	l := newEventSource(t, w, "https://hooks.example.com/\u202e\"><script>alert(1)</script>")
	bad, err := json.Marshal("</pre><script>alert(1)</script>\u202e\u200b")
	must(t, err)
	huge := `"` + strings.Repeat("<script>alert(1)</script>", 50_000) + `"`
	events := l.publish("content_published", strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(bad)), huge)
	odd := l.publish("<script>alert(1)</script>\u202e", `1`)
	id := webhook.NewID()
	_, err = w.store.Events().Publish(t.Context(), "acme", []webhook.Event{{ID: id, Name: "content_updated", ReceivedAt: time.Now(),
		JSON: []byte("{\"id\":\"" + id + "\",\"timestamp\":\"<script>alert(1)</script>\u202e\",\"x\":\"\x80\x00\"}")}})
	must(t, err)
	for _, path := range []string{
		"/events", "/events?program=acme", "/events?program=" + url.QueryEscape(hostile), "/events?filter[name]=" +
			url.QueryEscape("<script>alert(1)</script>"),
		"/events/acme/" + events[0].ID, "/events/acme/" + events[1].ID, "/events/acme/" + odd[0].ID, "/events/acme/" + id,
		"/events/publish?program=acme&like=" + events[0].ID, "/events/publish?program=acme&like=" + id, "/events/publish?name=evil_thing",
		"/events/publish?program=" + url.QueryEscape(hostile),
		"/event-types", "/event-types?program=" + url.QueryEscape(hostile), "/event-types/evil_thing", "/event-types/content_published",
		"/event-types/" + url.PathEscape("<script>alert(1)</script>"),
	} {
		v.do("GET", path).inert(t)
	}
	v.do("GET", "/event-types").has(t, ">file<")
	v.do("GET", "/event-types/evil_thing").has(t, ">file<", "⟨U+202E⟩", "one of")
}

// Every event type has a page with all its fields and its subscribers.
func TestEventTypePages(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com/in")
	list := v.do("GET", "/event-types")
	list.want(t, 200, "1 active")
	list.inert(t)
	for _, et := range w.cfg.Rules.Catalog.Types() {
		list.has(t, `href="/event-types/`+et.Name+`"`)
		p := v.do("GET", "/event-types/"+et.Name)
		p.want(t, 200, "Emitted when")
		p.inert(t)
		var example map[string]any
		must(t, json.Unmarshal(et.Example, &example))
		for name := range example {
			p.has(t, "<code>"+name+"</code>")
		}
	}
	v.do("GET", "/event-types/content_published").has(t, "hooks.example.com", l.sub.ID[28:], "/events/publish?name=content_published",
		"/v2/event_types/content_published")
	v.do("GET", "/event-types/content_published?program=other").has(t, `<p class="quiet">None</p>`)
	v.do("GET", "/event-types?program=other").hasNot(t, "1 active")
	v.do("GET", "/event-types/ping").hasNot(t, "Publish event")
	v.do("GET", "/event-types/user_notification_created").has(t, "When category is comment", "<code>details.comment_count</code>",
		"array of integer, int64", "<code>category</code>")
	v.do("GET", "/event-types/none").want(t, 404, "no event type with this name")
}

// An event type created while the server runs has a page immediately, with the request that changes
// it.
func TestEventTypeOfTheAPI(t *testing.T) {
	var catalog *webhook.Catalog
	v, _ := startSignedIn(t, func(cfg *Config) {
		catalog = webhook.NewCatalog(cfg.Rules.Catalog.Types()...)
		cfg.Rules.Catalog = catalog
	})
	v.do("GET", "/event-types/order.shipped").want(t, 404, "no event type with this name")
	schema := func(title string) []byte {
		return []byte(`{"title":"` + title + `","description":"Emitted when it's shipped.","type":"object","properties":{` +
			`"id":{"type":"string","format":"uuid"},"timestamp":{"type":"string","format":"date-time"},"name":{"const":"order.shipped"},` +
			`"version":{"const":"1"}},"required":["id","timestamp","name","version"],"additionalProperties":false,"examples":[{` +
			`"id":"019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7","timestamp":"2026-03-14T08:24:48.644Z","name":"order.shipped","version":"1"}]}`)
	}
	for _, title := range []string{"Shipped", strings.Repeat("Shipped ", maxShownSchema/8)} {
		et, invalid := webhook.NewEventType(t.Context(), "order.shipped", schema(title))
		if invalid != nil {
			t.Fatal(invalid)
		}
		catalog.Set(et)
		page := v.do("GET", "/event-types/order.shipped")
		page.want(t, 200, "Change it over the API", ">API<", "-X PUT", "/v2/event_types/order.shipped")
		page.inert(t)
		if long := len(et.Schema) > maxShownSchema; strings.Contains(page.body, "@event_type.json") != long {
			t.Errorf("a schema of %d bytes: want a file in its place %t", len(et.Schema), long)
		}
	}
	v.do("GET", "/event-types").has(t, `href="/event-types/order.shipped"`, ">API<", "<h2>Order")
	v.do("GET", "/events/publish?name=order.shipped").want(t, 200, "order.shipped")
	v.do("GET", "/events?filter[name]=order.shipped").want(t, 200, "order.shipped")
	v.do("GET", "/event-types/content_published").hasNot(t, "Change it over the API")
}

// The page shows as much as possible of any schema.
func TestSchemaFields(t *testing.T) {
	for name, tt := range map[string]struct {
		schema string
		want   []fieldGroup
	}{
		"no JSON": {`{`, nil},
		"true":    {`true`, []fieldGroup{}},
		"a ring":  {`{"$ref":"#/$defs/a","$defs":{"a":{"properties":{"x":{"$ref":"#/$defs/a"}}}}}`, nil},
		"odd": {`{"properties":{"a":true,"b":{"type":["string","null"],"minimum":1},"c":{"type":7}}}`,
			[]fieldGroup{{"", []schemaField{{"a", "", "", false}, {"b", "string or null, at least 1", "", false}, {"c", "", "", false}}}}},
		"lists": {`{"properties":{"a":{"type":"array","items":{"type":"object","properties":{"b":{"enum":["x","y"]}},"required":["b"]}}},"required":["a"]}`,
			[]fieldGroup{{"", []schemaField{{"a", "array of object", "", true}, {"a[].b", "one of x, y", "", true}}}}},
		"a condition": {`{"properties":{"k":{"type":"string"},"d":{"type":"object"}},"if":{"properties":{"k":{"const":"x"}}},"then":{"properties":{"d":{"$ref":"#/$defs/d"}}},"$defs":{"d":{"properties":{"e":{"type":"boolean"}}}}}`,
			[]fieldGroup{{"", []schemaField{{"k", "string", "", false}, {"d", "object", "", false}}},
				{"k is x", []schemaField{{"d.e", "boolean", "", false}}}}},
	} {
		got := schemaFields([]byte(tt.schema))
		if name == "a ring" {
			if len(got) != 1 || len(got[0].fields) > maxSchemaDepth+1 {
				t.Errorf("a ring: got %+v", got)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(fieldGroup{}, schemaField{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The newest delivery of a subscription decides, unless another one succeeded.
func TestOutcomesOf(t *testing.T) {
	of := func(id, sub string, status webhook.Status) record.EventDelivery {
		return record.EventDelivery{ResponseStatus: 502,
			Delivery: webhook.Delivery{ID: id, SubscriptionID: sub, Status: status, AttemptsMade: 2}}
	}
	const failed, success, retrying = webhook.StatusFailed, webhook.StatusSuccess, webhook.StatusRetryable
	var got []string
	for _, o := range outcomesOf([]record.EventDelivery{of("6", "b", failed), of("5", "a", retrying), of("4", "b", success),
		of("3", "b", success), of("2", "c", success), of("1", "a", failed)}) {
		got = append(got, o.ID+" "+o.verb()+o.SubscriptionID+" "+o.result())
	}
	want := []string{"4 Delivered to b 502 (attempt 2)", "5 Retrying for a 502 (2 of 5 attempts)", "2 Delivered to c 502 (attempt 2)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
