package batching

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"service/test/harness"
	"service/webhook"
)

// request is a delivery as a scenario's receiver gets it.
type request struct {
	id      string // of the delivery
	bytes   int
	numbers []int // of its events; none for a ping
}

func (r *request) hasOneOf(numbers []int) bool {
	return slices.ContainsFunc(r.numbers, func(n int) bool { return slices.Contains(numbers, n) })
}

// receiver answers each request with the status that verdict returns, and counts the events.
type receiver struct {
	verdict func(*request) int // called with mu held

	mu       sync.Mutex
	hold     chan struct{} // requests with events wait until it is closed
	held     int           // number of waiting requests
	accepted map[int]int   // how often each event was accepted, by its number
	refused  map[int]int   // how often each event was refused alone
	together int           // requests of several events that were refused
}

func newReceiver(verdict func(*request) int) *receiver {
	return &receiver{verdict: verdict, hold: make(chan struct{}), accepted: make(map[int]int), refused: make(map[int]int)}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := harness.ReadBody(req)
	if err != nil {
		return
	}
	got := request{id: req.Header.Get("Webhook-Id"), bytes: len(body), numbers: slices.Collect(harness.Numbers(body))}
	if len(got.numbers) > 0 && !r.await(req) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status := r.verdict(&got)
	switch {
	case status == http.StatusOK:
		for _, n := range got.numbers {
			r.accepted[n]++
		}
	case len(got.numbers) == 1:
		r.refused[got.numbers[0]]++
	case len(got.numbers) > 1:
		r.together++
	}
	w.WriteHeader(status)
}

// await waits until requests are no longer held. It returns false if the request has ended.
func (r *receiver) await(req *http.Request) bool {
	r.mu.Lock()
	hold := r.hold
	r.held++
	r.mu.Unlock()
	released := false
	select {
	case <-hold:
		released = true
	case <-req.Context().Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold == hold {
		r.held--
	}
	return released
}

// release answers the held requests and all later ones.
func (r *receiver) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.hold)
}

// holdAgain holds later requests. The caller must hold mu.
func (r *receiver) holdAgain() { r.hold, r.held = make(chan struct{}), 0 }

// releaseHeld answers the held requests, and holds later ones.
func (r *receiver) releaseHeld() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.hold)
	r.holdAgain()
}

func (r *receiver) heldRequests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held
}

// acceptedEvents returns how many events were accepted at least once.
func (r *receiver) acceptedEvents() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.accepted)
}

// refusedAlone returns the numbers of the events that were refused alone, sorted.
func (r *receiver) refusedAlone() (numbers []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.refused {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return numbers
}

func (r *receiver) refusedTogether() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.together
}

// scenario is a service with one subscription, whose events wait until the receiver is released.
type scenario struct {
	*testing.T
	in       *harness.Instance
	process  *harness.Process
	token    string
	id       string // of the subscription
	receiver *receiver
	alerts   chan string // their bodies
}

// newScenario starts a service and publishes events. All but the first wait for the receiver.
func newScenario(t *testing.T, r *receiver, s harness.Subscription, events, size int, flags ...string) *scenario {
	t.Helper()
	sc := &scenario{T: t, receiver: r, alerts: make(chan string, 100)}
	operator := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		if body, err := harness.ReadBody(req); err == nil {
			sc.alerts <- string(body)
		}
	}))
	sc.in = harness.NewInstance(t, harness.Build(t), t.TempDir(), append(flags, "--alert-url", operator)...)
	sc.token = sc.in.Token("acme")
	sc.process = sc.in.MustStart()
	s.URL, s.Events = harness.Listen(t, r), harness.Events(harness.NumberedEvent)
	sc.id = sc.in.Subscribe(sc.token, s)
	var lines harness.NDJSON
	for n := range events {
		lines = append(appendEvent(lines, n, size), '\n')
	}
	sc.in.Publish(sc.token, lines)
	return sc
}

// appendEvent appends an event with a number and a size in bytes.
func appendEvent(dst []byte, number, size int) []byte {
	from := len(dst)
	dst = fmt.Appendf(dst, `{"id":%q,"name":%q,"version":"1","content_id":%d,"channel_ids":[11`, eventID(number), harness.NumberedEvent, number)
	for len(dst)-from < size {
		dst = append(dst, ",12345678"...)
	}
	return append(dst, "]}"...)
}

const eventIDPrefix = "019ddcfe-0f37-7cf8-8f53-"

func eventID(number int) string { return fmt.Sprintf("%s%012d", eventIDPrefix, number) }

func eventNumber(id string) int {
	digits, _ := strings.CutPrefix(id, eventIDPrefix)
	n, err := strconv.Atoi(digits)
	if err != nil {
		return -1 // a ping
	}
	return n
}

// deliveries returns the deliveries that match filters, given as a query.
func (sc *scenario) deliveries(filters string) (all []harness.Delivery) {
	sc.Helper()
	for cursor := ""; ; {
		page, next, err := harness.Get[[]harness.Delivery](sc.in, sc.token, "/v2/deliveries?page[size]=100&"+filters+cursor)
		if err != nil {
			sc.Fatal(err)
		}
		if all = append(all, page...); next == "" {
			return all
		}
		cursor = "&page[cursor]=" + next
	}
}

// left returns the failed deliveries that remain to be resent.
func (sc *scenario) left() []harness.Delivery {
	sc.Helper()
	return sc.deliveries("filter[recovered]=false")
}

// awaitEnd waits until a number of events have been accepted and nothing remains to be sent.
func (sc *scenario) awaitEnd(accepted int) {
	sc.Helper()
	harness.WaitForCount(sc, "events", accepted, sc.receiver.acceptedEvents)
	failed := map[string]any{"action": "redeliver", "filter": map[string]string{"status": "failed"}, "dry_run": true}
	harness.WaitForCount(sc, "open deliveries", 0, func() int {
		return len(sc.deliveries("filter[status]=pending,retryable")) + post[bulkRun](sc, "/v2/bulk_runs", failed).Skipped[webhook.SkipSplitting]
	})
}

// checkFailed checks that exactly the events with these numbers have failed, each alone: only these
// deliveries remain to be resent. It returns the failed deliveries of several events that have not
// recovered, which are those that contain one of them.
func (sc *scenario) checkFailed(want ...int) (parents []harness.Delivery) {
	sc.Helper()
	var got []int
	for _, d := range sc.left() {
		if len(d.Events) > 1 {
			sc.Errorf("delivery %s of %d events is left to resend, though each was sent again", d.ID, len(d.Events))
		}
		got = append(got, eventNumber(d.Events[0].ID))
	}
	for _, d := range sc.deliveries("filter[status]=failed") {
		if len(d.Events) == 1 {
			continue
		}
		var r request
		for _, e := range d.Events {
			r.numbers = append(r.numbers, eventNumber(e.ID))
		}
		if recovered := !r.hasOneOf(want); recovered != (d.RecoveredAt != nil) {
			sc.Errorf("delivery %s of the events %v: recovered at %v, want recovered %t", d.ID, r.numbers, d.RecoveredAt, recovered)
		} else if !recovered {
			parents = append(parents, d)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		sc.Errorf("got the failed events %v, want %v", got, want)
	}
	return parents
}

// incident is an incident as the API returns it.
type incident struct {
	ID, Status       string
	FailedDeliveries int `json:"failed_deliveries"`
}

func (sc *scenario) incidents() []incident {
	sc.Helper()
	all, err := harness.Feed[incident](sc.in, sc.token, "/v2/incidents")
	if err != nil {
		sc.Fatal(err)
	}
	return all
}

// post sends a request with a body to the API and returns the record in the response.
func post[T any](sc *scenario, path string, body any) T {
	sc.Helper()
	var answer struct{ Data T }
	if status, err := sc.in.Call(sc.Context(), sc.token, "POST", sc.in.URL()+path, body, &answer); err != nil || status > 299 {
		sc.Fatalf("POST %s: status %d, %v", path, status, err)
	}
	return answer.Data
}

const adminEmail, adminPassword = "ana@example.com", "correct horse battery"

// pages returns a function that reads a page of the admin UI.
func (sc *scenario) pages() (page func(path string) string) {
	sc.Helper()
	cmd := exec.Command(sc.in.Binary, "admin", "create", "--email", adminEmail, "--data", sc.in.Data)
	cmd.Env, cmd.Stdin = harness.Environment(), strings.NewReader(adminPassword)
	if out, err := cmd.CombinedOutput(); err != nil {
		sc.Fatalf("admin create: %v\n%s", err, out)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		sc.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: harness.Timeout()}
	read := func(resp *http.Response, err error) string {
		sc.Helper()
		if err != nil {
			sc.Fatal(err)
		}
		defer resp.Body.Close()
		var b strings.Builder
		if err := resp.Write(&b); err != nil || resp.StatusCode != http.StatusOK {
			sc.Fatalf("page: %v\n%s", err, &b)
		}
		return b.String()
	}
	read(browser.PostForm(sc.in.URL()+"/sign-in", url.Values{"email": {adminEmail}, "password": {adminPassword}}))
	return func(path string) string {
		sc.Helper()
		return read(browser.Get(sc.in.URL() + path))
	}
}
