package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"service/webhook"
)

// ids fill the parameters of a route's pattern.
type ids struct{ subscription, delivery, replay, event, eventType, incident, bulkRun, program, token string }

// missing returns IDs of records that do not exist, except for the event type.
func missing() ids {
	return ids{webhook.NewID(), webhook.NewID(), webhook.NewID(), webhook.NewID(), "content_updated", webhook.NewID(), webhook.NewID(),
		"nobody", webhook.NewID()}
}

func (i ids) path(rt *route) string {
	id := i.event
	switch {
	case strings.HasPrefix(rt.pattern, "/v2/webhooks/subscriptions"):
		id = i.subscription
	case strings.HasPrefix(rt.pattern, "/v2/incidents"):
		id = i.incident
	case strings.HasPrefix(rt.pattern, "/v2/bulk_runs"):
		id = i.bulkRun
	case strings.HasPrefix(rt.pattern, "/v2/programs"):
		id = i.program
	}
	eventType := i.eventType
	switch { // of the API, since others cannot be changed
	case rt.scope == webhook.ScopePlatform && rt.method == "PUT":
		eventType = "order.shipped"
	case rt.scope == webhook.ScopePlatform && rt.method == "DELETE":
		eventType = "order.returned"
	}
	return strings.NewReplacer(":token_id", i.token, ":move_id", "0198f6a1-22bb-7c33-9d44-5e6f70819203",
		":delivery_id", i.delivery, ":replay_id", i.replay, ":id", id, ":name", eventType).Replace(rt.pattern)
}

// records creates one record of each kind.
func (s *service) records() ids {
	s.t.Helper()
	id := s.subscribe("content_updated")
	s.publishOne()
	s.deliver(404, webhook.ErrorNone)
	incidents := data[[]identified](s.t, s.send("GET", "/v2/incidents?filter[subscription_id]="+id, ""))
	if len(incidents) != 1 {
		s.t.Fatalf("got %d incidents, want one", len(incidents))
	}
	event := s.publishOne()
	s.deliver(200, webhook.ErrorNone)
	list := data[[]identified](s.t, s.send("GET", "/v2/webhooks/subscriptions/"+id+"/deliveries", ""))
	if len(list) != 3 {
		s.t.Fatalf("got %d deliveries, want the ping and two", len(list))
	}
	replay := data[identified](s.t, s.send("POST", "/v2/webhooks/subscriptions/"+id+"/replays", `{"from":"1999-01-01","only":"all"}`))
	run := data[identified](s.t, s.send("POST", "/v2/bulk_runs", `{"action":"cancel"}`))
	s.defineEventType("order.returned")
	program := s.send("GET", "/v2/token", "").header.Get(programHeader)
	tokenID, _ := s.createToken(
		webhook.NewToken{ProgramID: program, UserID: "another", Scopes: []webhook.Scope{webhook.ScopeEventsRead}})
	return ids{id, list[0].ID, replay.ID, event, "content_updated", incidents[0].ID, run.ID, program, tokenID}
}

func bodyFor(rt *route) string {
	switch {
	case rt.method == "PUT" && rt.pattern == "/v2/event_types/:name":
		return `{"schema":` + orderSchema("order.shipped", `{}`) + `}`
	case rt.method == "PUT" && rt.pattern == programPath:
		return `{"name":"Acme"}`
	case rt.method == "POST" && rt.pattern == programTokensPath:
		return `{"user_id":"backend","scopes":["events.write"]}`
	case rt.pattern == filterTestsPath:
		return `{"events":[{"name":"content_updated"}],"from":"1999-01-01"}`
	case rt.pattern == portalLinksPath:
		return `{"role":"read"}`
	case rt.method == "PUT" && strings.HasSuffix(rt.pattern, ":id"):
		return `{"active":false}`
	}
	return ""
}

// everything returns all records that a program can read.
func (s *service) everything(i ids) string {
	s.t.Helper()
	var all strings.Builder
	for _, target := range []string{
		"/v2/webhooks/subscriptions", "/v2/webhooks/subscriptions/" + i.subscription, "/v2/events", "/v2/events/" + i.event,
		"/v2/webhooks/subscriptions/" + i.subscription + "/deliveries",
		"/v2/webhooks/subscriptions/" + i.subscription + "/deliveries/" + i.delivery,
		"/v2/webhooks/subscriptions/" + i.subscription + "/replays/" + i.replay,
		"/v2/incidents", "/v2/incidents/" + i.incident, "/v2/bulk_runs", "/v2/bulk_runs/" + i.bulkRun,
	} {
		r := s.send("GET", target, "")
		wantStatus(s.t, target, r, 200)
		all.WriteString(r.body)
	}
	return all.String()
}

// wantMissing checks that a record of another program and a missing record get the same response.
func (s *service) wantMissing(method string, rt *route, foreign, unknown ids) {
	s.t.Helper()
	// Preconditions and keys reveal nothing.
	headers := []string{"If-Match", "*", "If-None-Match", "*", "Idempotency-Key", "k"}
	theirs := s.send(method, foreign.path(rt), bodyFor(rt), headers...)
	missing := s.send(method, unknown.path(rt), bodyFor(rt), headers...)
	wantStatus(s.t, method+" "+rt.pattern+" of another program", theirs, 404)
	theirs.header.Del("X-Request-Id")
	missing.header.Del("X-Request-Id")
	if theirs.status != missing.status || theirs.body != missing.body || fmt.Sprint(theirs.header) != fmt.Sprint(missing.header) {
		s.t.Errorf("%s %s: another program's record differs from a missing one:\n%v\n%v", method, rt.pattern, theirs, missing)
	}
}

func TestProgramsAreIsolated(t *testing.T) {
	s := start(t)
	theirs := s.records()
	before := s.everything(theirs)

	mallory := *s
	mallory.token = s.newToken("mallory", "mal", webhook.Scopes()...)
	own := mallory.records()
	unknown := missing()
	tried := 0
	for _, rt := range routes() {
		if !strings.Contains(rt.pattern, ":id") || rt.scope == webhook.ScopePlatform {
			continue // see TestPlatformTokens
		}
		attempts := []struct{ foreign, unknown ids }{{theirs, unknown}}
		if strings.Contains(rt.pattern, ":delivery_id") || strings.Contains(rt.pattern, ":replay_id") {
			inOwn := func(of ids) ids { return ids{subscription: own.subscription, delivery: of.delivery, replay: of.replay} }
			ofOwn := func(in ids) ids {
				return ids{subscription: in.subscription, delivery: own.delivery, replay: own.replay}
			}
			attempts = append(attempts,
				struct{ foreign, unknown ids }{inOwn(theirs), inOwn(unknown)},
				struct{ foreign, unknown ids }{ofOwn(theirs), ofOwn(unknown)})
		}
		methods := []string{rt.method}
		if rt.method == "GET" {
			methods = append(methods, "HEAD")
		}
		for _, a := range attempts {
			for _, method := range methods {
				tried++
				mallory.wantMissing(method, &rt, a.foreign, a.unknown)
			}
		}
	}
	if tried < 10 {
		t.Errorf("only %d requests were tried", tried)
	}

	// Lists contain only their own program, and reject a cursor of another.
	for _, target := range []string{"/v2/webhooks/subscriptions", "/v2/events", "/v2/incidents", "/v2/bulk_runs"} {
		r := mallory.send("GET", target, "")
		if strings.Contains(r.body, theirs.subscription) || strings.Contains(r.body, theirs.event) || strings.Contains(r.body, theirs.incident) ||
			strings.Contains(r.body, theirs.bulkRun) {
			t.Errorf("%s shows another program's records: %s", target, r.body)
		}
	}
	s.publishOne()
	mallory.publishOne()
	var page struct {
		Meta struct{ Pagination struct{ Next string } }
	}
	r := s.send("GET", "/v2/events?page[size]=1", "")
	decode(t, r, &page)
	wantFault(t, "another program's cursor", mallory.send("GET", "/v2/events?page[cursor]="+page.Meta.Pagination.Next, ""), "invalid_format",
		"page[cursor]")
	wantStatus(t, "one's own cursor", s.send("GET", "/v2/events?page[cursor]="+page.Meta.Pagination.Next, ""), 200)

	// Event IDs are unique within a program only.
	same := strings.Replace(contentUpdated, "{", `{"id":"`+theirs.event+`",`, 1)
	wantStatus(t, "the same event id in another program", mallory.send("POST", "/v2/events", strings.Replace(same, "7", "8", 1)), 201)

	// No record has changed, except for the event just published.
	after := s.everything(theirs)
	if !strings.Contains(after, before[:strings.Index(before, "\n")]) || strings.Contains(after, `"active":false`) {
		t.Errorf("another program's requests have changed records:\n%s\n%s", before, after)
	}
}

func TestDeliveryOfAnotherSubscription(t *testing.T) {
	s := start(t)
	one := s.records()
	path := "/v2/webhooks/subscriptions/" + s.subscribe("content_deleted")
	for _, request := range [][2]string{
		{"GET", "/deliveries/" + one.delivery}, {"POST", "/deliveries/" + one.delivery + "/redeliver"},
		{"POST", "/deliveries/" + one.delivery + "/cancel"}, {"POST", "/replays/" + one.replay + "/cancel"},
	} {
		wantStatus(t, strings.Join(request[:], " "), s.send(request[0], path+request[1], ""), 404)
	}
}

func TestHead(t *testing.T) {
	s := start(t)
	i := s.records()
	for _, rt := range routes() {
		target := i.path(&rt)
		head := s.as(&rt).send("HEAD", target, "")
		if rt.method != "GET" {
			continue
		}
		get := s.as(&rt).send("GET", target, "")
		if head.status != get.status || get.status != 200 {
			t.Errorf("HEAD %s: got %d, GET got %d", target, head.status, get.status)
		}
		head.header.Del("X-Request-Id")
		get.header.Del("X-Request-Id")
		if rt.pattern == metricsPath { // metrics change from one request to the next
			head.header.Del("Content-Length")
			get.header.Del("Content-Length")
		}
		if fmt.Sprint(head.header) != fmt.Sprint(get.header) {
			t.Errorf("HEAD %s: got headers %v, GET got %v", target, head.header, get.header)
		}
	}
}

func TestMethods(t *testing.T) {
	s := start(t)
	routes := routes()
	for _, rt := range routes {
		allowed := methodsOf(routes, rt.pattern)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"} {
			if slices.Contains(allowed, method) {
				continue
			}
			for _, token := range []string{"", "Bearer " + s.token} {
				target := ids{"x", "y", "r", "z", "n", "i", "b", "p", "t"}.path(&rt)
				r := s.send(method, target, "", "Authorization", token, "Origin", "https://elsewhere.example")
				wantStatus(t, method+" "+rt.pattern, r, 405)
				if got := r.header.Get("Allow"); got != strings.Join(allowed, ", ") {
					t.Errorf("%s %s: got Allow %q, want %q", method, rt.pattern, got, strings.Join(allowed, ", "))
				}
				if strings.Contains(fmt.Sprint(r.header), "Access-Control") {
					t.Errorf("%s %s: another origin is allowed: %v", method, rt.pattern, r.header)
				}
			}
		}
	}
}

// methodsOf returns the methods of the routes with a pattern, sorted.
func methodsOf(routes []route, pattern string) (methods []string) {
	for _, rt := range routes {
		if rt.pattern != pattern {
			continue
		}
		methods = append(methods, rt.method)
		if rt.method == "GET" {
			methods = append(methods, "HEAD")
		}
	}
	slices.Sort(methods)
	return methods
}

func TestOddPaths(t *testing.T) {
	s := start(t)
	i := s.records()
	sub := "/v2/webhooks/subscriptions/"
	for _, path := range []string{
		"/", "/v2", "/v2/", "/v2/nothing", "//v2/events", "/v2//events", "/v2/events/", "/V2/events", "/v2/Events", "/v2/events/../events",
		"/v2/./events", "/v2/%65vents", "/v2%2Fevents", sub, sub + "/", sub + i.subscription + "/", sub + i.subscription + "%2Fdeliveries",
		sub + i.subscription + "%00", sub + "%2e%2e", sub + "..", sub + ":id", sub + "*", sub + i.subscription + "/deliveries/",
		sub + "%F0%28%8C%28", sub + strings.Repeat("a", 100000), sub + strings.ToUpper(i.subscription), sub + "'%20OR%201=1--",
		"/v2/events/" + i.event + "%2F", "/v2/event_types/%63ontent_updated", "/v2/event_types/content_updated ", "/healthz/", "/healthz/x",
		sub + i.subscription + "/ping/", "/v2/events;x=1", sub + "/" + i.subscription,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL = &url.URL{Path: path}
		if p, err := url.PathUnescape(path); err == nil {
			r.URL.Path, r.URL.RawPath = p, path
		}
		r.Header.Set("Authorization", "Bearer "+s.token)
		if got := s.serve(r); got.status != 404 || got.header.Get("Location") != "" {
			t.Errorf("GET %.200s: got %d, want 404", path, got.status)
		}
	}
	for _, path := range []string{"", "*", "v2/events", "%zz"} {
		r := httptest.NewRequest("OPTIONS", "/", nil)
		r.URL = &url.URL{Path: path, RawPath: path}
		if got := s.serve(r); got.status != 404 {
			t.Errorf("OPTIONS %q: got %d, want 404", path, got.status)
		}
	}
}

func TestUnknownParameters(t *testing.T) {
	s := start(t)
	i := s.records()
	for _, rt := range routes() {
		if rt.query.ignored {
			wantStatus(t, rt.pattern, s.send(rt.method, rt.pattern+"?verbose=1", ""), 200)
			continue
		}
		for _, name := range []string{"verbose", "page", "page[]", "page[sise]", "pages[size]", "page[size][x]", "sorts", "sort[]",
			"filter[nothing]", "filter", "", "page[Size]"} {
			r := s.as(&rt).send(rt.method, i.path(&rt)+"?"+url.QueryEscape(name)+"=1", bodyFor(&rt))
			wantStatus(t, rt.method+" "+rt.pattern+"?"+name, r, 400)
			e, _ := errorOf(r)
			if len(e.Validations) != 1 || e.Validations[0].Code != "unknown_field" || name != "" && e.Validations[0].Parameter != name {
				t.Errorf("%s %s: the response lacks the parameter %s: %s", rt.method, rt.pattern, name, r.body)
				continue
			}
			for _, supported := range rt.query.list.Supported() {
				if !strings.Contains(e.Validations[0].Detail, supported) {
					t.Errorf("%s %s: the response lacks %s: %s", rt.method, rt.pattern, supported, r.body)
				}
			}
		}
	}
}

func TestPageParameters(t *testing.T) {
	s := start(t)
	numbered, feed := "/v2/webhooks/subscriptions", "/v2/events"
	for _, test := range []struct{ target, code, parameter string }{
		{numbered + "?page[size]=1", "", ""},
		{numbered + "?page[size]=100&page[number]=2147483647", "", ""},
		{numbered + "?page%5Bsize%5D=2", "", ""},
		{numbered + "?page.size=2&page.number=1", "", ""},
		{numbered + "?page[size]=0", "invalid_value", "page[size]"},
		{numbered + "?page[size]=101", "invalid_value", "page[size]"},
		{numbered + "?page.size=101", "invalid_value", "page[size]"},
		{numbered + "?page[size]=99999999999999999999", "invalid_value", "page[size]"},
		{numbered + "?page[size]=-1", "invalid_value", "page[size]"},
		{numbered + "?page[size]=ten", "invalid_type", "page[size]"},
		{numbered + "?page[size]=1.5", "invalid_type", "page[size]"},
		{numbered + "?page[size]=", "invalid_type", "page[size]"},
		{numbered + "?page[size]", "invalid_type", "page[size]"},
		{numbered + "?page[number]=0", "invalid_value", "page[number]"},
		{numbered + "?page[number]=2147483648", "invalid_value", "page[number]"},
		{numbered + "?page[number]=1&page[number]=1", "duplicate", "page[number]"},
		{numbered + "?page[number]=1&page.number=1", "duplicate", "page[number]"},
		{numbered + "?page[cursor]=x", "unknown_field", "page[cursor]"},
		{feed + "?page[size]=7", "", ""},
		{feed + "?page[number]=1", "unknown_field", "page[number]"},
		{feed + "?page[cursor]=", "invalid_format", "page[cursor]"},
		{feed + "?page[cursor]=x", "invalid_format", "page[cursor]"},
		{feed + "?page.cursor=AAAAAAAAAAAAAAAAAAAAAAAAAAA", "invalid_format", "page[cursor]"},
	} {
		r := s.send("GET", test.target, "")
		if test.code == "" {
			wantStatus(t, test.target, r, 200)
		} else {
			wantFault(t, test.target, r, test.code, test.parameter)
		}
	}
	for _, query := range []string{"page[size]=%zz", "a;b", "page[size]=1;page[number]=1"} {
		r := s.send("GET", "/v2/events?"+query, "")
		wantStatus(t, query, r, 400)
	}
	r := s.send("GET", "/v2/events?"+strings.Repeat("x", 5000)+"=1", "")
	if r.status != 400 || len(r.body) > 1000 {
		t.Errorf("a long name is repeated completely: %d, %d bytes", r.status, len(r.body))
	}
	var many strings.Builder
	for n := range 1000 {
		fmt.Fprintf(&many, "x%d=1&", n)
	}
	r = s.send("GET", "/v2/events?"+many.String(), "")
	if n := len(faults(t, r)); r.status != 400 || n != 100 {
		t.Errorf("1000 unknown parameters: got %d and %d faults, want 400 and 100", r.status, n)
	}
}

func TestFeedPagination(t *testing.T) {
	s := start(t)
	var published []string
	for range 7 {
		published = append(published, s.publishOne())
	}
	var read []string
	target := "/v2/events?page[size]=3"
	for target != "" {
		var page struct {
			Data []identified
			Meta struct{ Pagination struct{ Next *string } }
		}
		decode(t, s.send("GET", target, ""), &page)
		for _, e := range page.Data {
			read = append(read, e.ID)
		}
		target = ""
		if next := page.Meta.Pagination.Next; next != nil {
			target = "/v2/events?page[size]=3&page[cursor]=" + *next
			s.publishOne() // must not shift the pages
		}
	}
	slices.Reverse(read)
	if !slices.Equal(read, published) {
		t.Errorf("read %v, want %v", read, published)
	}
}

// The order of the checks: token, scope, record, media type and body.
func TestOrderOfChecks(t *testing.T) {
	s := start(t)
	reader := "Bearer " + s.newToken("acme", "rob", webhook.ScopeWebhooksRead)
	none := "/v2/webhooks/subscriptions/none"
	own := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	for _, test := range []struct {
		name, target, token, media string
		want                       int
	}{
		{"everything is wrong", none + "?x=1", "", "text/plain", 401},
		{"scope, record, media, body", none + "?x=1", reader, "text/plain", 403},
		{"record, media, body", none + "?x=1", "Bearer " + s.token, "text/plain", 404},
		{"media, body", own, "Bearer " + s.token, "text/plain", 415},
		{"body", own, "Bearer " + s.token, "application/json", 400},
	} {
		wantStatus(t, test.name, s.send("PUT", test.target, "{", "Authorization", test.token, "Content-Type", test.media), test.want)
	}
}

func TestEventTypes(t *testing.T) {
	s := start(t)
	types := data[[]struct {
		Name    string
		Example map[string]any
		Schema  map[string]any
	}](t, s.send("GET", "/v2/event_types", ""))
	if len(types) != len(s.catalog.Types()) || len(types) < 19 {
		t.Fatalf("got %d event types, want %d", len(types), len(s.catalog.Types()))
	}
	for _, et := range types {
		if et.Example["name"] != et.Name || et.Schema["type"] != "object" {
			t.Errorf("%s: example %v, schema %v", et.Name, et.Example, et.Schema)
		}
		r := s.send(http.MethodGet, "/v2/event_types/"+et.Name, "")
		wantStatus(t, et.Name, r, 200)
	}
}
