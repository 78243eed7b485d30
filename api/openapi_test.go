package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"service/webhook"
)

// contractChecker compares requests and responses with the document.
type contractChecker struct {
	mu     sync.Mutex // kin-openapi does not document concurrent use
	served *openapi3.T
	strict *openapi3.T // the same, without additional properties in records
	seen   map[string]bool
}

// loadContract returns the checker that all tests share.
var loadContract = sync.OnceValues(func() (*contractChecker, error) {
	catalog, err := loadCatalog()
	if err != nil {
		return nil, err
	}
	text := newDocuments(catalog, settings{}).get().contract.content
	c := &contractChecker{seen: make(map[string]bool)}
	if c.served, err = openapi3.NewLoader().LoadFromData(text); err != nil {
		return nil, err
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	closeRecords(document)
	if text, err = json.Marshal(document); err != nil {
		return nil, err
	}
	if c.strict, err = openapi3.NewLoader().LoadFromData(text); err != nil {
		return nil, err
	}
	for _, media := range []string{mediaNDJSON, "text/html", "text/plain"} {
		openapi3filter.RegisterBodyDecoder(media, func(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any,
			error) {
			b, err := io.ReadAll(body)
			return string(b), err
		})
	}
	return c, nil
})

// closeRecords disallows additional properties in every schema with properties. The
// document allows them for later versions.
func closeRecords(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			closeRecords(e)
		}
	case map[string]any:
		if _, open := v["additionalProperties"]; !open && v["type"] == "object" && v["properties"] != nil && v["oneOf"] == nil {
			v["additionalProperties"] = false
		}
		for name, e := range v {
			if name != "example" && name != "examples" {
				closeRecords(e)
			}
		}
	}
}

// find returns the operation of a request; HEAD has the operation of GET. If there is none, item is
// nil for an unknown path.
func (c *contractChecker) find(doc *openapi3.T, method, escaped string) (route *routers.Route, params map[string]string, item bool) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	given := strings.Split(escaped, "/")
	for pattern, pathItem := range doc.Paths.Map() {
		wanted := strings.Split(pattern, "/")
		params := make(map[string]string)
		ok := len(wanted) == len(given)
		for i := 0; ok && i < len(wanted); i++ {
			if name, isParam := strings.CutPrefix(wanted[i], "{"); isParam {
				params[strings.TrimSuffix(name, "}")] = given[i]
				ok = given[i] != ""
			} else {
				ok = wanted[i] == given[i]
			}
		}
		if !ok {
			continue
		}
		op := pathItem.GetOperation(method)
		if op == nil {
			return nil, nil, true
		}
		return &routers.Route{Spec: doc, Path: pattern, PathItem: pathItem, Method: method, Operation: op}, params, true
	}
	return nil, nil, false
}

// headersOfHTTP are headers that operations do not document.
var headersOfHTTP = []string{"Cache-Control", "Connection", "Content-Length", "Content-Type", "X-Content-Type-Options",
	"Content-Security-Policy"}

// check records a request. The returned function compares the response with the
// document, and also the request if it was not rejected.
func (c *contractChecker) check(t testing.TB, r *http.Request) func(response) {
	var body bytes.Buffer
	if r.Body != nil {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &body), r.Body}
	}
	return func(got response) {
		t.Helper()
		c.mu.Lock()
		defer c.mu.Unlock()
		request := r.Method + " " + r.URL.Path
		if len(request) > 200 {
			request = request[:200]
		}
		for _, e := range c.faults(r, body.Bytes(), got) {
			t.Errorf("%s, response %d does not match the document: %v\n%.2000s", request, got.status, e, got.body)
		}
	}
}

func (c *contractChecker) faults(r *http.Request, body []byte, got response) (all []error) {
	fail := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	route, params, known := c.find(c.strict, r.Method, r.URL.EscapedPath())
	var op *openapi3.Operation
	if route == nil || generalResponses[got.status] != "" {
		// A response that needs no operation.
		name := generalResponses[got.status]
		switch {
		case name != "":
		case known && got.status == http.StatusMethodNotAllowed:
			name = "MethodNotAllowed"
		case !known && got.status == http.StatusNotFound:
			name = "NotFound"
		case got.status == http.StatusTooManyRequests:
			name = "TooManyRequests"
		case isTestRoute(r):
			return nil
		default:
			return append(all, errors.New("there is no such operation"))
		}
		op = &openapi3.Operation{Responses: c.general(got.status, name)}
		route = &routers.Route{Spec: c.strict, Path: "/", PathItem: &openapi3.PathItem{}, Method: r.Method, Operation: op}
	} else {
		op = route.Operation
	}
	ref := op.Responses.Value(strconv.Itoa(got.status))
	if name := ofSelection[got.status]; ref == nil && name != "" && r.Header[programHeader] != nil {
		// Every operation with a token can return these, if the request selects a program.
		selecting := *op
		selecting.Responses = c.general(got.status, name)
		op, ref = &selecting, selecting.Responses.Value(strconv.Itoa(got.status))
		route = &routers.Route{Spec: c.strict, Path: route.Path, PathItem: route.PathItem, Method: route.Method, Operation: op}
	}
	if ref == nil {
		fail("the status is not listed")
		return all
	}
	for name := range got.header {
		if !isDocumented(name, ref.Value) {
			fail("the header %s is not listed with this status", name)
		}
	}

	again := r.Clone(context.Background())
	again.Body = io.NopCloser(bytes.NewReader(body))
	input := &openapi3filter.RequestValidationInput{
		Request: again, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true,
			MultiError: true, SkipSettingDefaults: true},
	}
	if got.status < 400 && r.Method != http.MethodHead {
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			fail("the request: %v", err)
		}
	}
	if got.status == http.StatusNotModified || r.Method == http.MethodHead {
		return all
	}
	// Most responses in the tests are errors, many of them equal.
	key := fmt.Sprint(got.status, route.Path, route.Method, len(got.header), got.body)
	if c.seen[key] {
		return all
	}
	err := openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.status, Header: got.header,
		Body: io.NopCloser(strings.NewReader(got.body)), Options: input.Options,
	})
	if err != nil {
		fail("the answer: %v", err)
	}
	if len(all) == 0 && got.status >= 400 {
		c.seen[key] = true
	}
	return all
}

// general returns a response of the document that any operation may return.
func (c *contractChecker) general(status int, name string) *openapi3.Responses {
	responses := openapi3.NewResponses()
	responses.Set(strconv.Itoa(status), &openapi3.ResponseRef{Value: c.strict.Components.Responses[name].Value})
	return responses
}

// isDocumented reports whether a response header is documented, with the response or for
// all operations.
func isDocumented(name string, r *openapi3.Response) bool {
	for other := range r.Headers {
		if http.CanonicalHeaderKey(other) == name {
			return true
		}
	}
	return slices.Contains(headersOfHTTP, name)
}

// generalResponses are the responses that need no operation.
var generalResponses = map[int]string{414: "URITooLong", 431: "HeadersTooLarge"}

// ofSelection are the responses to a request that selects a program which the token may not use, or
// which has moved.
var ofSelection = map[int]string{403: "Forbidden", 404: "NotFound", 409: "Conflict"}

// partsOfPages are the routes that the document mentions only together with their pages.
var partsOfPages = slices.DeleteFunc(documentPaths(), func(path string) bool { return path == referencePath || path == receivingPath })

// isTestRoute reports whether a request is for a route that only tests add.
func isTestRoute(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v2/test") || slices.Contains(partsOfPages, r.URL.Path)
}

// isFile reports whether a response has no envelope, and checks such a response.
func isFile(t testing.TB, request string, head bool, r response) bool {
	t.Helper()
	_, target, _ := strings.Cut(request, " ")
	if target == metricsPath && r.status == 200 {
		empty := head || r.header.Get(programHeader) != "" && r.body == "" // a program may have no series
		if got := r.header.Get("Content-Type"); got != metricsType || r.header.Get("Cache-Control") != "no-store" || (r.body == "") != empty {
			t.Errorf("%s: got %v and %d bytes", request, r.header, len(r.body))
		}
		return true
	}
	media, ok := map[string]string{"/v2/openapi.json": "application/json"}[target]
	if !ok && slices.Contains(documentPaths(), target) {
		media, ok = map[string]string{
			".css": "text/css", ".js": "text/javascript", textSuffix: "text/markdown", ".txt": "text/plain", "": "text/html",
		}[path.Ext(target)]
	}
	if !ok || r.status >= 400 {
		return false
	}
	want := map[string]string{
		"Content-Type": media + "; charset=utf-8", "Content-Length": strconv.Itoa(len(r.body)),
		"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Program-Id": "",
	}
	if head {
		want["Content-Length"] = r.header.Get("Content-Length")
	}
	if r.status == http.StatusNotModified {
		want["Content-Type"], want["Content-Length"] = "", ""
	}
	for name, value := range want {
		if got := r.header.Get(name); got != value {
			t.Errorf("%s: header %s is %q, want %q", request, name, got, value)
		}
	}
	if r.header.Get("ETag") == "" || (r.body == "") != (head || r.status == http.StatusNotModified) {
		t.Errorf("%s: got %d with ETag %q and %d bytes", request, r.status, r.header.Get("ETag"), len(r.body))
	}
	return true
}

// eachOperation calls f for every operation of the document.
func eachOperation(t *testing.T, f func(pattern, method string, op *openapi3.Operation)) {
	t.Helper()
	c := loaded(t, loadContract)
	for _, pattern := range c.served.Paths.InMatchingOrder() {
		operations := c.served.Paths.Value(pattern).Operations()
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"} {
			if op := operations[method]; op != nil {
				f(pattern, method, op)
			}
		}
	}
}

// routePattern converts a path of the document to a route pattern.
func routePattern(pattern string) string {
	return strings.NewReplacer("{", ":", "}", "").Replace(pattern)
}

func TestDocumentIsValid(t *testing.T) {
	c := loaded(t, loadContract)
	if err := c.served.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		t.Error(err)
	}
	if c.served.OpenAPI != "3.1.1" || len(c.served.Webhooks) != 1 {
		t.Errorf("got OpenAPI %s with %d webhooks, want 3.1.1 with 1", c.served.OpenAPI, len(c.served.Webhooks))
	}
	eachOperation(t, func(pattern, method string, op *openapi3.Operation) {
		if op.Summary == "" || op.Description == "" || op.OperationID == "" || len(op.Tags) != 1 || c.served.Tags.Get(op.Tags[0]) == nil {
			t.Errorf("%s %s needs an operationId, a summary, a description and one of the tags", method, pattern)
		}
	})
	for name, s := range c.served.Components.Schemas {
		if s.Value.Description == "" {
			t.Errorf("schema %s has no description", name)
		}
		for property, p := range s.Value.Properties {
			if p.Value.Description == "" {
				t.Errorf("property %s of schema %s has no description", property, name)
			}
		}
	}
}

func TestDocumentMatchesRoutes(t *testing.T) {
	left := make(map[string]*route)
	for _, rt := range routes() {
		left[rt.method+" "+rt.pattern] = &rt
	}
	for _, part := range partsOfPages {
		delete(left, "GET "+part)
	}
	eachOperation(t, func(pattern, method string, op *openapi3.Operation) {
		name := method + " " + routePattern(pattern)
		rt := left[name]
		if rt == nil {
			t.Errorf("%s is documented, but there is no such route", name)
			return
		}
		delete(left, name)
		if got := documentedScope(t, op); got != rt.scope {
			t.Errorf("%s: the document has the scope %q, the route %q", name, got, rt.scope)
		}

		var parameters []string
		for _, p := range op.Parameters {
			if p.Value.In == "query" {
				parameters = append(parameters, p.Value.Name)
			}
		}
		supported := slices.Sorted(slices.Values(rt.query.list.Supported()))
		slices.Sort(parameters)
		if !slices.Equal(parameters, supported) {
			t.Errorf("%s: the document has the parameters %v, the route %v", name, parameters, supported)
		}

		want := generalStatuses(rt, op)
		for _, status := range want {
			if op.Responses.Status(status) == nil {
				t.Errorf("%s: the document does not list %d", name, status)
			}
		}
	})
	for name := range left {
		t.Errorf("the route %s is not documented", name)
	}
}

// generalStatuses returns the error statuses that every route of this kind can return.
func generalStatuses(rt *route, op *openapi3.Operation) []int {
	all := []int{500}
	if !rt.query.ignored {
		all = append(all, 400)
	}
	if rt.scope != scopeNone {
		all = append(all, 401, 429, 503, 504)
	}
	if rt.scope != scopeNone && rt.scope != scopeAny {
		all = append(all, 403)
	}
	if rt.find != nil {
		all = append(all, 404)
	}
	if op.RequestBody != nil {
		all = append(all, 408, 413, 415)
	}
	for name, status := range map[string]int{"If-Match": 412, "If-None-Match": 412, webhook.IdempotencyHeader: 409} {
		if op.Parameters.GetByInAndName("header", name) != nil {
			all = append(all, status)
		}
	}
	return all
}

// documentedScope returns the scope that an operation needs.
func documentedScope(t *testing.T, op *openapi3.Operation) webhook.Scope {
	t.Helper()
	switch {
	case op.Security == nil:
		return scopeAny
	case len(*op.Security) == 0:
		return scopeNone
	}
	scopes := (*op.Security)[0]["bearer"]
	if len(*op.Security) != 1 || len(scopes) != 1 {
		t.Fatalf("%s: cannot tell the scope from %v", op.OperationID, *op.Security)
	}
	return webhook.Scope(scopes[0])
}

func TestEveryErrorIsDocumented(t *testing.T) {
	c := loaded(t, loadContract)
	titles := make(map[int]string)
	for name, r := range c.served.Components.Responses {
		media := r.Value.Content.Get("application/json")
		if media == nil {
			continue
		}
		e := media.Example.(map[string]any)["error"].(map[string]any)
		code := int(e["code"].(float64))
		if titles[code] != "" {
			t.Errorf("%s: two responses have the status %d", name, code)
		}
		titles[code] = e["title"].(string)
	}
	for code, k := range kinds {
		if titles[k.status] != k.title {
			t.Errorf("%s: the document has the title %[3]q for %[2]d, want %[4]q", code, k.status, titles[k.status], k.title)
		}
		delete(titles, k.status)
	}
	for status := range titles {
		t.Errorf("the document has %d, which the API never returns", status)
	}

	// The codes of validations: as openapi.yaml lists them.
	var codes []string
	for _, v := range c.served.Components.Schemas["Validation"].Value.Properties["code"].Value.Enum {
		codes = append(codes, v.(string))
		if !strings.Contains(c.served.Info.Description, "`"+v.(string)+"`") {
			t.Errorf("the section on errors lacks %s", v)
		}
	}
	want := []string{
		webhook.InvalidRequired, webhook.InvalidType, webhook.InvalidFormat, webhook.InvalidValue, webhook.InvalidUnknownField,
		webhook.InvalidUnknownEvent,
		webhook.InvalidTooLong, webhook.InvalidTooMany, webhook.InvalidTooLarge, webhook.InvalidDuplicate, webhook.InvalidBlockedDestination,
	}
	if !slices.Equal(codes, want) {
		t.Errorf("the document has the validation codes %v, want %v", codes, want)
	}
}

// A change of the document must change its version: testdata/openapi.versions lists the digest of
// each.
func TestDocumentVersion(t *testing.T) {
	catalog := loaded(t, loadCatalog)
	c, err := loadContract()
	must(t, err)
	sum := sha256.Sum256(newDocuments(catalog, settings{}).get().contract.content)
	line := c.served.Info.Version + " " + hex.EncodeToString(sum[:])
	text, err := os.ReadFile("testdata/openapi.versions")
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != line {
		t.Errorf("the document has changed since\n%s\nSet another info.version in openapi.yaml"+
			" and add this line to testdata/openapi.versions:\n%s", last, line)
	}
	seen := make(map[string]bool)
	for _, l := range lines {
		version, _, _ := strings.Cut(l, " ")
		if seen[version] {
			t.Errorf("testdata/openapi.versions has the version %s twice", version)
		}
		seen[version] = true
	}
}

// The checker detects responses and requests that do not match the document.
func TestContractCheckerFindsFaults(t *testing.T) {
	c := loaded(t, loadContract)
	header := http.Header{"Content-Type": {"application/json; charset=utf-8"}, "X-Request-Id": {webhook.NewID()}, "Etag": {`"x"`}}
	with := func(name, value string) http.Header {
		h := header.Clone()
		h.Set(name, value)
		return h
	}
	const event = `{"id":"0198f6a3-0f11-7b22-8c33-4d5e6f708192","timestamp":"2026-03-14T08:24:57.901Z",` +
		`"name":"x","version":"1","seq":1,"received_at":"2026-03-14T08:24:57.901Z"}`
	const problem = `{"error":{"code":404,"title":"Not Found","detail":"x."}}`
	right := response{200, header, `{"data":` + event + `}`}
	plain := header.Clone()
	plain.Del("ETag")
	for _, test := range []struct {
		name           string
		method, target string
		body           string
		got            response
		want           string // "" is none
	}{
		{"right", "GET", "/v2/events/x", "", right, ""},
		{"right, whatever the operation", "GET", "/v2/events/x", "", response{414, plain, strings.ReplaceAll(problem, "404", "414")}, ""},
		{"right, no operation", "GET", "/v2/nothing", "", response{404, plain, problem}, ""},
		{"a property more", "GET", "/v2/webhooks/subscriptions", "",
			response{200, plain, `{"data":[],"meta":{"pagination":{"page_number":1,"page_size":1,"total_count":0,"total_pages":0,"x":1}}}`}, "x"},
		{"a property less", "GET", "/v2/events/x", "", response{200, header, `{"data":` + strings.Replace(event, `"seq":1,`, "", 1) + `}`},
			"seq"},
		{"a property of another type", "GET", "/v2/events/x", "",
			response{200, header, `{"data":` + strings.Replace(event, `"seq":1,`, `"seq":"1",`, 1) + `}`}, "seq"},
		{"no envelope", "GET", "/v2/events/x", "", response{200, header, event}, "data"},
		{"a status", "GET", "/v2/events/x", "", response{418, header, problem}, "not listed"},
		{"a status without an operation", "GET", "/v2/nothing", "", response{200, header, problem}, "no such operation"},
		{"a header more", "GET", "/v2/events/x", "", response{200, with("X-Secret", "x"), right.body}, "X-Secret"},
		{"a header less", "GET", "/v2/events/x", "", response{200, http.Header{"Content-Type": header["Content-Type"], "Etag": header["Etag"]},
			right.body}, "X-Request-Id"},
		{"a media type", "GET", "/v2/events/x", "", response{200, with("Content-Type", "text/plain"), right.body}, "ontent"},
		{"an error without its envelope", "GET", "/v2/events/x", "", response{404, plain, `{"error":"x"}`}, "error"},
		{"a request that should be refused", "PUT", "/v2/webhooks/subscriptions/x", `{"colour":"red"}`, response{200, plain, `{"data":{}}`},
			"colour"},
	} {
		r := httptest.NewRequest(test.method, test.target, nil)
		r.Header.Set("Content-Type", "application/json")
		var found []string
		for _, e := range c.faults(r, []byte(test.body), test.got) {
			found = append(found, e.Error())
		}
		if got := strings.Join(found, "; "); (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q in it", test.name, got, test.want)
		}
	}
}

// TestAccessMatrix calls every operation of the document without access.
func TestAccessMatrix(t *testing.T) {
	synctest.Test(t, testMatrix) // a token must expire
}

func testMatrix(t *testing.T) {
	s := start(t)
	theirs := s.records()
	unknown := missing()
	token := func(program string, expires time.Time, scopes ...webhook.Scope) (id, secret string) {
		return s.createToken(webhook.NewToken{ProgramID: program, UserID: "mal", Scopes: scopes, ExpiresAt: expires})
	}
	revokedID, revoked := token("acme", time.Time{}, webhook.Scopes()...)
	s.revoke(revokedID)
	_, expired := token("acme", time.Now().Add(time.Hour), webhook.Scopes()...)
	_, foreign := token("mallory", time.Time{}, webhook.Scopes()...)
	time.Sleep(time.Hour)

	tried := make(map[int]int)
	eachOperation(t, func(pattern, method string, op *openapi3.Operation) {
		scope := documentedScope(t, op)
		if scope == scopeNone {
			return
		}
		time.Sleep(time.Minute) // invalid tokens are limited by the address
		rt := &route{method: method, pattern: routePattern(pattern)}
		body := exampleBody(op)
		send := func(to ids, secret string) response {
			return s.send(method, to.path(rt), body, "Authorization", secret)
		}
		want := func(name, secret string, status int) {
			t.Helper()
			tried[status]++
			// Responses for existing and missing records must not differ.
			r, other := send(theirs, secret), send(unknown, secret)
			wantStatus(t, op.OperationID+" with "+name, r, status)
			if nameless(r) != nameless(other) {
				t.Errorf("%s with %s: an existing record differs from a missing one:\n%v\n%v", op.OperationID, name, r, other)
			}
		}
		time.Sleep(10 * time.Second) // until the invalid-token limit allows more
		want("no token", "", 401)
		want("an unknown token", "Bearer "+webhook.NewTokenSecret(webhook.TokenPrefix), 401)
		want("an expired token", "Bearer "+expired, 401)
		want("a revoked token", "Bearer "+revoked, 401)
		if scope == scopeAny {
			return
		}
		var others []webhook.Scope
		for _, other := range webhook.Scopes() {
			if other != scope {
				others = append(others, other)
			}
		}
		_, scopeless := token("acme", time.Time{}, others...)
		want("a token that lacks the scope", "Bearer "+scopeless, 403)
		if scope == webhook.ScopePlatform {
			want("a token of a program with every scope", "Bearer "+s.token, 403)
			want("a token of another program", "Bearer "+foreign, 403)
			return
		}
		if strings.Contains(pattern, "{") {
			want("a token of another program", "Bearer "+foreign, 404)
		}
	})
	if tried[401] < 60 || tried[403] < 12 || tried[404] < 8 {
		t.Errorf("too few operations were tried: %v", tried)
	}
	if got := s.everything(theirs); strings.Contains(got, "mallory") || !strings.Contains(got, theirs.delivery) {
		t.Errorf("the requests changed a record: %s", got)
	}
}

// nameless returns a response without IDs and times.
func nameless(r response) string {
	h := r.header.Clone()
	for _, name := range []string{"X-Request-Id", "Ratelimit"} {
		h.Del(name)
	}
	return fmt.Sprint(r.status, h, r.body)
}

// exampleBody returns the first example of an operation's JSON body, or nil.
func exampleBody(op *openapi3.Operation) string {
	if op.RequestBody == nil {
		return ""
	}
	media := op.RequestBody.Value.Content["application/json"]
	if media == nil {
		return ""
	}
	example := media.Example
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range media.Examples {
			if !yield(n) {
				return
			}
		}
	}) {
		example = media.Examples[name].Value.Value
	}
	if example == nil {
		return ""
	}
	b, _ := json.Marshal(example)
	return string(b)
}

// A delivery with any event type matches the document. test/api checks real
// deliveries.
func TestDocumentedDeliveries(t *testing.T) {
	c := loaded(t, loadContract)
	catalog, err := loadCatalog()
	must(t, err)
	schema := c.served.Components.Schemas["DeliveryBody"].Value
	for _, et := range catalog.Types() {
		for example, want := range map[string]bool{
			string(et.Example): true,
			strings.Replace(string(et.Example), `"version":"1"`, `"version":"2"`, 1): false,
			strings.Replace(string(et.Example), `{`, `{"colour":"red",`, 1):          false,
		} {
			var body any
			text := `{"delivery_id":"d","subscription_id":"s","program_id":"p","events":[` + example + `]}`
			must(t, json.Unmarshal([]byte(text), &body))
			err := schema.VisitJSON(body, openapi3.EnableJSONSchema2020())
			if (err == nil) != want {
				t.Errorf("%s: a delivery with %s: got %v", et.Name, example, err)
			}
		}
	}
}

func TestDocumentIsServed(t *testing.T) {
	s := start(t)
	for _, target := range append(documentPaths(), "/v2/openapi.json") {
		r := s.send("GET", target, "", "Authorization", "")
		wantStatus(t, target, r, 200)
		etag := r.header.Get("ETag")
		for given, want := range map[string]int{etag: 304, `"other", W/` + etag: 304, "*": 304, `"other"`: 200} {
			wantStatus(t, target+" when it has "+given, s.send("GET", target, "", "Authorization", "", "If-None-Match", given), want)
		}
		again := start(t).send("GET", target, "", "Authorization", "")
		if again.header.Get("ETag") != etag || again.body != r.body {
			t.Errorf("%s differs between two starts", target)
		}
		wantStatus(t, "POST "+target, s.send("POST", target, "", "Authorization", ""), 405)
	}
	r := s.send("GET", "/v2/openapi.json", "", "Authorization", "")
	if !json.Valid([]byte(r.body)) || !strings.Contains(r.body, `"event_content_published"`) {
		t.Error("the document is incomplete")
	}
	if path.Dir(referenceStylePath) != referencePath {
		t.Errorf("the style must be served under %s", referencePath)
	}
}

// The document stays valid with an operator's own event types, and accepts the same events as the
// catalog does.
func TestDocumentWithOwnEventTypes(t *testing.T) {
	catalog, err := webhook.LoadCatalog(webhook.SchemaFile{Name: "shift_planned.json", Content: []byte(`{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title": "Shift planned", "description": "Emitted when a <b>shift</b> is planned.",
		"type": "object",
		"properties": {
			"id": {"type": "string", "format": "uuid"}, "timestamp": {"type": "string", "format": "date-time"},
			"name": {"const": "shift_planned"}, "version": {"const": "1"},
			"team": {"$ref": "#/$defs/team"}, "lead": {"$ref": "#/$defs/team/properties/lead"}, "place": {"$ref": "#/$defs/a%20place"},
			"tree": {"$ref": "#/$defs/tree"}, "also": {"$ref": "#/properties/id"}, "note": {"type": "object"}, "free": true,
			"list": {"type": "array", "items": true, "minItems": 1.0, "maxItems": 1e1}
		},
		"required": ["id", "timestamp", "name", "version"], "additionalProperties": false,
		"anyOf": [{"required": ["team"]}, {"required": ["tree"]}],
		"$defs": {
			"team": {"type": "object", "properties": {"lead": {"type": "integer"}}, "required": ["lead"], "additionalProperties": false},
			"a place": {"type": "string", "maxLength": 3},
			"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}, "additionalProperties": false}
		},
		"examples": [{"id": "0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5", "timestamp": "2026-03-14T08:24:48.644Z",
			"name": "shift_planned", "version": "1", "team": {"lead": 7}}]
	}`)})
	must(t, err)
	text := newDocuments(catalog, settings{}).get().contract.content
	doc, err := openapi3.NewLoader().LoadFromData(text)
	must(t, err)
	if err := doc.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil {
		t.Error(err)
	}
	schema := doc.Components.Schemas["DeliveredEvent"].Value
	for own, want := range map[string]bool{
		`"team":{"lead":7}`:                    true,
		`"tree":{"left":{"left":{}}}`:          true,
		`"tree":{"left":{"left":{"right":1}}}`: false,
		`"team":{"lead":"x"}`:                  false,
		`"team":{"lead":7},"lead":"x"`:         false,
		`"team":{"lead":7},"place":"yard"`:     false,
		`"team":{"lead":7},"also":7`:           false,
		`"team":{"lead":7},"note":{"a":1}`:     true,
		`"place":"abc"`:                        false, // neither team nor tree
	} {
		text := `{"id":"0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5","timestamp":"2026-03-14T08:24:48.644Z","name":"shift_planned","version":"1",` +
			own + `}`
		var event any
		must(t, json.Unmarshal([]byte(text), &event))
		if _, invalid := catalog.NewEvent([]byte(text), "", time.Now()); (invalid == nil) != want {
			t.Errorf("the catalog: %s: got %v", own, invalid)
		}
		if err := schema.VisitJSON(event, openapi3.EnableJSONSchema2020()); (err == nil) != want {
			t.Errorf("the document: %s: got %v", own, err)
		}
	}
	page := string(newDocuments(catalog, settings{}).get().pages[typesPage].content)
	if !strings.Contains(page, `id="event-shift_planned"`) || strings.Contains(page, "<b>shift") {
		t.Error("the page lacks the event type, or renders its description as HTML")
	}
}

// A delivered notification has details of its category's type. Details of a category that is not
// listed are free.
func TestDocumentOfNotifications(t *testing.T) {
	c := loaded(t, loadContract)
	c.mu.Lock()
	defer c.mu.Unlock()
	schemas := c.served.Components.Schemas
	schema := schemas["DeliveredEvent"].Value
	for own, want := range map[string]bool{
		`"category":"like"`:                         false,
		`"category":"birthday"`:                     false,
		`"category":"bootstrap","details":{}`:       true,
		`"category":"birthday","details":{"age":7}`: true,
		`"category":"content_performance","details":{"content_id":1,"views_count":2}`:       true,
		`"category":"content_performance","details":{"content_id":"one","views_count":2}`:   false,
		`"category":"content_performance","details":{"age":7}`:                              false,
		`"category":"channel_contributor_added","details":{"content_channel_id":1,"a":"b"}`: false,
	} {
		var event any
		must(t, json.Unmarshal([]byte(`{"id":"0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5","timestamp":"2026-03-14T08:24:48.644Z",`+
			`"name":"user_notification_created","version":"1","notification_id":1,"user_id":2,"acknowledged":false,"label":"","text":"",`+
			own+`}`), &event))
		if err := schema.VisitJSON(event, openapi3.EnableJSONSchema2020()); (err == nil) != want {
			t.Errorf("%s: got %v, want valid %t", own, err, want)
		}
	}
	for _, name := range []string{"event_user_notification_created", "event_user_notification_updated"} {
		details := schemas[name].Value.Properties["details"].Value
		if len(details.AnyOf) != 14 || details.AnyOf[0].Ref != "#/components/schemas/"+name+".like" {
			t.Errorf("%s: the details have %d types, want those of 13 categories and any object", name, len(details.AnyOf))
		}
	}
}
