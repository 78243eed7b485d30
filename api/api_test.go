package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"service/internal/move"
	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// service is the API on a real store, with helpers for tests.
type service struct {
	t          testing.TB
	store      *store.Store
	closeStore func()
	catalog    *webhook.Catalog
	api        *API
	token      string // of program acme and user ada, with every scope
	platform   string // a platform token
	log        *logBuffer
	contract   *contractChecker
	health     webhook.HealthPolicy // for recording attempts
}

// loadCatalog returns a catalog that all tests share and none may change.
var loadCatalog = sync.OnceValues(func() (*webhook.Catalog, error) { return webhook.LoadCatalog() })

// loaded returns the result of load, which all tests share.
func loaded[T any](t testing.TB, load func() (T, error)) T {
	t.Helper()
	shared, err := load()
	must(t, err)
	return shared
}

// start returns a service. Each change may alter its configuration.
func start(t testing.TB, change ...func(*Config)) *service {
	t.Helper()
	return startStore(t, store.Config{}, change...)
}

// startStore is start with a configuration of the store, whose Dir and Catalog it sets.
func startStore(t testing.TB, stored store.Config, change ...func(*Config)) *service {
	t.Helper()
	shared := loaded(t, loadCatalog)
	catalog := webhook.NewCatalog(shared.Types()...) // a test may change it
	stored.Dir, stored.Catalog = t.TempDir(), catalog
	s, err := store.Open(context.Background(), stored)
	must(t, err)
	closing := sync.OnceFunc(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(closing)
	contract := loaded(t, loadContract)
	log := &logBuffer{}
	cfg := Config{
		Store: s, Catalog: catalog, Moves: &move.Target{Store: s, Catalog: catalog, Logger: slog.New(slog.DiscardHandler)}, MaxSubscriptions: 100,
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&cfg)
	}
	sv := &service{t: t, store: s, closeStore: closing, catalog: catalog, api: New(cfg), log: log, contract: contract}
	sv.token = sv.newToken("acme", "ada", webhook.Scopes()...)
	sv.platform = sv.newToken("", "ops", webhook.ScopePlatform)
	return sv
}

// as returns the service with a token for a route: a platform token if the route needs one.
func (s *service) as(rt *route) *service {
	if rt.scope != webhook.ScopePlatform {
		return s
	}
	platform := *s
	platform.token = s.platform
	return &platform
}

func (s *service) newToken(program, user string, scopes ...webhook.Scope) string {
	s.t.Helper()
	_, secret := s.createToken(webhook.NewToken{ProgramID: program, UserID: user, Scopes: scopes})
	return secret
}

func (s *service) createToken(n webhook.NewToken) (id, secret string) {
	s.t.Helper()
	token, secret, err := storetest.CreateToken(context.Background(), s.store, n)
	must(s.t, err)
	return token.ID, secret
}

// logBuffer is a log that tests can read.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// response is a response that has passed checkConventions.
type response struct {
	status int
	header http.Header
	body   string
}

// send makes a request with the service's token, as JSON unless the headers say otherwise. headers
// are pairs; the value "" removes a header.
func (s *service) send(method, target, body string, headers ...string) response {
	s.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r := s.request(method, target, in)
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return s.serve(r)
}

// request returns a request with the service's token, whose body, if any, is JSON.
func (s *service) request(method, target string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, target, body)
	r.Header.Set("Authorization", "Bearer "+s.token)
	if body != nil {
		r.Header.Set("Content-Type", mediaJSON)
	}
	return r
}

func (s *service) serve(r *http.Request) response {
	s.t.Helper()
	check := func(response) {}
	if _, measuring := s.t.(*testing.B); !measuring {
		check = s.contract.check(s.t, r)
	}
	w := httptest.NewRecorder()
	s.api.ServeHTTP(w, r)
	got := response{w.Code, w.Header(), w.Body.String()}
	checkConventions(s.t, r.Method+" "+r.URL.Path, r.Method == "HEAD", got)
	check(got)
	return got
}

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// checkConventions checks the conventions of every response.
func checkConventions(t testing.TB, request string, head bool, r response) {
	t.Helper()
	if isFile(t, request, head, r) {
		return
	}
	if r.status == 304 {
		if r.body != "" || r.header.Get("Etag") == "" || r.header["Content-Type"] != nil || r.header["Content-Length"] != nil {
			t.Errorf("%s: a 304 with %q and %v", request, r.body, r.header)
		}
		return
	}
	checkHeader(t, request, r)
	if n, err := strconv.Atoi(r.header.Get("Content-Length")); err != nil || !head && n != len(r.body) {
		t.Errorf("%s: Content-Length is %q, and the body has %d bytes", request, r.header.Get("Content-Length"), len(r.body))
	}
	if head {
		if r.body != "" {
			t.Errorf("%s: got a body for HEAD", request)
		}
		return
	}
	var envelope map[string]json.RawMessage
	if err := json.Unmarshal([]byte(r.body), &envelope); err != nil {
		t.Errorf("%s: the body is not JSON (%v): %s", request, err, r.body)
		return
	}
	if r.status < 400 {
		if envelope["data"] == nil || envelope["error"] != nil {
			t.Errorf("%s: the response has no data: %s", request, r.body)
		}
		return
	}
	if len(envelope) != 1 {
		t.Errorf("%s: more than an error: %s", request, r.body)
	}
	checkError(t, request, r)
}

// checkHeader checks the header fields of every response in the envelope.
func checkHeader(t testing.TB, request string, r response) {
	t.Helper()
	for name, want := range map[string]string{
		"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		if got := r.header.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: header %s is %q, want %q once", request, name, got, want)
		}
	}
	if id := r.header.Get("X-Request-Id"); !uuidPattern.MatchString(id) {
		t.Errorf("%s: X-Request-Id is %q, want a UUIDv7", request, id)
	}
	for status, name := range map[int]string{401: "WWW-Authenticate", 405: "Allow", 429: "Retry-After", 503: "Retry-After"} {
		if r.status == status && r.header.Get(name) == "" {
			t.Errorf("%s: response %d lacks %s", request, status, name)
		}
	}
}

// checkError checks the envelope of an error.
func checkError(t testing.TB, request string, r response) {
	t.Helper()
	e, err := errorOf(r)
	if err != nil {
		t.Errorf("%s: not the envelope of an error (%v): %s", request, err, r.body)
		return
	}
	if e.Code != r.status || e.Title == "" || !strings.HasSuffix(e.Detail, ".") || len(e.Validations) > 0 && r.status != 400 {
		t.Errorf("%s: not the envelope of an error %d: %s", request, r.status, r.body)
	}
	for _, v := range e.Validations {
		if v.Code == "" || v.Detail == "" || v.Parameter == "" {
			t.Errorf("%s: incomplete validation: %s", request, r.body)
		}
	}
}

type errorBody struct {
	Code        int
	Title       string
	Detail      string
	Validations []webhook.Validation
}

func errorOf(r response) (errorBody, error) {
	var body struct{ Error *errorBody }
	d := json.NewDecoder(strings.NewReader(r.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.Error == nil {
		return errorBody{}, err
	}
	return *body.Error, nil
}

// faults renders the validations of a response as "code parameter", in order.
func faults(t testing.TB, r response) []string {
	t.Helper()
	e, err := errorOf(r)
	must(t, err)
	var all []string
	for _, v := range e.Validations {
		all = append(all, v.Code+" "+v.Parameter)
	}
	return all
}

// wantFault checks for a 400 that names one parameter.
func wantFault(t testing.TB, name string, r response, code, parameter string) {
	t.Helper()
	if got := strings.Join(faults(t, r), ", "); r.status != 400 || got != code+" "+parameter {
		t.Errorf("%s: got %d %s (%s), want 400 %s %s", name, r.status, got, strings.TrimSpace(r.body), code, parameter)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantStatus(t testing.TB, name string, r response, status int) {
	t.Helper()
	if r.status != status {
		t.Errorf("%s: got %d %s, want %d", name, r.status, strings.TrimSpace(r.body), status)
	}
}

// wantBody checks the status of a response and that its body contains every text.
func wantBody(t testing.TB, name string, r response, status int, texts ...string) {
	t.Helper()
	wantStatus(t, name, r, status)
	for _, text := range texts {
		if !strings.Contains(r.body, text) {
			t.Errorf("%s: got %s, want %s", name, strings.TrimSpace(r.body), text)
		}
	}
}

// data decodes the data of a response.
func data[T any](t testing.TB, r response) T {
	t.Helper()
	var body struct{ Data T }
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return body.Data
}

type identified struct{ ID string }

// subscribe creates a subscription and returns its ID.
func (s *service) subscribe(names ...string) string {
	s.t.Helper()
	var events []string
	for _, n := range names {
		events = append(events, `{"name":"`+n+`"}`)
	}
	var made struct{ Data identified }
	decode(s.t, s.send("POST", "/v2/webhooks/subscriptions",
		`{"url":"https://partner.example/hook","events":[`+strings.Join(events, ",")+`]}`), &made)
	return made.Data.ID
}

// publishOne publishes an event and returns its ID.
func (s *service) publishOne() string {
	s.t.Helper()
	var published struct{ Data identified }
	decode(s.t, s.send("POST", "/v2/events", contentUpdated), &published)
	return published.Data.ID
}

const contentUpdated = `{"name":"content_updated","version":"1","content_id":7}`

// deliver simulates the dispatcher: it records an attempt for every pending delivery, with
// the given status or error code.
func (s *service) deliver(status int, code webhook.ErrorCode) {
	s.t.Helper()
	ctx := context.Background()
	queues, err := s.store.Queues().All(ctx)
	must(s.t, err)
	for _, l := range queues {
		s.deliverPings(l.SubscriptionID, status, code)
		for {
			c, err := s.store.Queues().Spend(ctx, &store.Credit{Queue: l, Newest: l.Wanted, Count: 100, Size: webhook.MaxDeliveryBytes}).Wait()
			must(s.t, err)
			if c == nil {
				break
			}
			s.record(c, status, code)
		}
	}
}

func (s *service) deliverPings(subscriptionID string, status int, code webhook.ErrorCode) int {
	s.t.Helper()
	for n := 0; ; n++ {
		c, err := storetest.ClaimPing(context.Background(), s.store, subscriptionID)
		if err != nil {
			s.t.Error(err)
		}
		if c == nil {
			return n
		}
		s.record(c, status, code)
	}
}

func (s *service) record(c *store.Claim, status int, code webhook.ErrorCode) {
	s.t.Helper()
	a := webhook.Attempt{
		Number: c.Number, StartedAt: time.Now(), Duration: 12 * time.Millisecond,
		Result: webhook.Classify(status, code), ResponseStatus: status, Error: code,
	}
	if _, err := s.store.Queues().Record(c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0.5), s.health); err != nil {
		s.t.Error(err)
	}
}

// answerPing simulates the dispatcher for the next ping that is queued, and returns a
// function that waits until its attempt is recorded.
func (s *service) answerPing(status int, code webhook.ErrorCode) (wait func()) {
	watcher := s.store.Watch()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer watcher.Close()
		for range watcher.C {
			for id := range watcher.Take().Queued {
				if s.deliverPings(id, status, code) > 0 {
					return
				}
			}
		}
	}()
	return func() { <-done }
}

func decode(t testing.TB, r response, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.body), v); err != nil || r.status >= 400 {
		t.Fatalf("%d %s (%v)", r.status, r.body, err)
	}
}
