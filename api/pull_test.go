package api

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// logPage is a page of a log.
type logPage struct {
	Data []struct {
		ID             string `json:"id"`
		Seq            int64  `json:"seq"`
		DeliveryStatus string `json:"delivery_status"`
	} `json:"data"`
	Meta struct {
		Pagination struct {
			Next *string `json:"next"`
		} `json:"pagination"`
		Truncated *bool `json:"truncated"`
	} `json:"meta"`
}

func logPageOf(t testing.TB, r response) (p logPage) {
	t.Helper()
	wantStatus(t, "a page of the log", r, 200)
	must(t, json.Unmarshal([]byte(r.body), &p))
	return p
}

func (p logPage) seqs() (all []int64) {
	for _, e := range p.Data {
		all = append(all, e.Seq)
	}
	return all
}

func (p logPage) next(t testing.TB) string {
	t.Helper()
	if p.Meta.Pagination.Next == nil {
		t.Fatal("next is null")
	}
	return *p.Meta.Pagination.Next
}

func (s *service) pull(path, query string) logPage {
	s.t.Helper()
	return logPageOf(s.t, s.send("GET", path+"?"+query, ""))
}

// Both feeds have a next at the end of the log, which continues there, and share their cursors.
// Other feeds, and feeds with an upper bound, end.
func TestPull(t *testing.T) {
	s := start(t)
	s.publishOne()
	path := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated") + "/events"
	p := s.pull(path, "")
	if len(p.Data) != 0 || p.Meta.Truncated == nil || *p.Meta.Truncated {
		t.Errorf("from now: got %+v", p)
	}
	next := p.next(t)
	s.publishOne()
	wantStatus(t, "publish another type", s.send("POST", "/v2/events", `{"name":"content_deleted","version":"1","content_id":7}`), 201)
	s.publishOne()
	p = s.pull(path, "page[size]=1&page[cursor]="+next)
	if got := p.seqs(); !slices.Equal(got, []int64{2}) || p.Data[0].DeliveryStatus != "waiting" {
		t.Errorf("got %+v, want the event 2, for which a delivery is due", p.Data)
	}
	if p = s.pull(path, "page[cursor]="+p.next(t)); !slices.Equal(p.seqs(), []int64{4}) {
		t.Errorf("got %v, want the event 4", p.seqs())
	}
	if p = s.pull("/v2/events", "sort=received_at&page[size]=2"); !slices.Equal(p.seqs(), []int64{1, 2}) || p.Data[0].DeliveryStatus != "" {
		t.Errorf("got %+v", p.Data)
	}
	if p = s.pull(path, "page[cursor]="+p.next(t)); !slices.Equal(p.seqs(), []int64{4}) {
		t.Errorf("with the cursor of the other feed: got %v, want the event 4", p.seqs())
	}
	if p = s.pull(path, "page[cursor]="+p.next(t)); len(p.Data) != 0 || p.Meta.Pagination.Next == nil {
		t.Errorf("at the end: got %+v", p)
	}
	if p = s.pull(path, "from=1999-01-01"); !slices.Equal(p.seqs(), []int64{1, 2, 4}) || p.Data[0].DeliveryStatus != "none" {
		t.Errorf("from the beginning: got %+v, and the first was in no delivery", p.Data)
	}
	for _, query := range []string{"from=1999-01-01&to=2199-01-01", "from=1999-01-01&to=2000-01-01"} {
		if p = s.pull(path, query); p.Meta.Pagination.Next != nil {
			t.Errorf("%s has a next", query)
		}
	}
	if p = s.pull("/v2/events", ""); p.Meta.Pagination.Next != nil || p.Meta.Truncated != nil {
		t.Errorf("descending: got %+v", p.Meta)
	}
	wantStatus(t, "pause", s.send("PUT", strings.TrimSuffix(path, "/events"), `{"active":false}`), 200)
	if p = s.pull(path, "from=1999-01-01"); !slices.Equal(p.seqs(), []int64{1, 2, 4}) {
		t.Errorf("of an inactive subscription: got %v", p.seqs())
	}
}

// The statuses are those of the deliveries to the subscription.
func TestPulledStatuses(t *testing.T) {
	s := start(t)
	path := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated") + "/events"
	for _, status := range []int{200, 503, 404} {
		s.publishOne()
		s.deliver(status, webhook.ErrorNone)
	}
	var got []string
	for _, e := range s.pull(path, "from=1999-01-01").Data {
		got = append(got, e.DeliveryStatus)
	}
	if want := []string{"success", "retryable", "failed"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPullRefuses(t *testing.T) {
	s := start(t)
	path := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated") + "/events"
	mine := s.pull(path, "").next(t)
	other := *s
	other.token = s.newToken("other", "bob", webhook.Scopes()...)
	foreign := other.pull("/v2/webhooks/subscriptions/"+other.subscribe("content_updated")+"/events", "").next(t)
	changed := mine[:5] + string('A'+(mine[5]-'A'+1)%26) + mine[6:]
	for name, c := range map[string][3]string{
		"another program's cursor": {"page[cursor]=" + foreign, "invalid_format", "page[cursor]"},
		"a changed cursor":         {"page[cursor]=" + changed, "invalid_format", "page[cursor]"},
		"no cursor":                {"page[cursor]=", "invalid_format", "page[cursor]"},
		"a wait of 31 s":           {"wait=31s", "invalid_value", "wait"},
		"a negative wait":          {"wait=-1s", "invalid_value", "wait"},
		"a wait without unit":      {"wait=5", "invalid_value", "wait"},
		"a wait with an end":       {"wait=5s&to=2026-01-01", "invalid_value", "wait"},
		"another time":             {"from=yesterday", "invalid_format", "from"},
		"two times":                {"to=2026-01-01&to=2026-01-02", "duplicate", "to"},
	} {
		wantFault(t, name, s.send("GET", path+"?"+c[0], ""), c[1], c[2])
	}
	// Names and filters may differ.
	wantBody(t, "another program's cursor", s.send("GET", path+"?page[cursor]="+foreign, ""), 400,
		"an earlier response from the log of this program")
	wantFault(t, "a wait for the oldest", s.send("GET", "/v2/events?wait=5s", ""), "invalid_value", "wait")
	wantFault(t, "a stream of the oldest", s.send("GET", "/v2/events", "", "Accept", mediaEvents), "invalid_value", "Accept")
	wantFault(t, "another program's id", s.send("GET", path, "", "Accept", mediaEvents, lastEventID, foreign), "invalid_format", lastEventID)
}

// waitingRequest is a request in another goroutine.
type waitingRequest struct {
	w    *httptest.ResponseRecorder
	done chan struct{}
	quit context.CancelFunc
}

// begin sends a request in another goroutine, and returns once it is waiting.
func (s *service) begin(target string, headers ...string) *waitingRequest {
	s.t.Helper()
	return s.beginIn("acme", target, headers...)
}

// beginIn is begin with the token of another program.
func (s *service) beginIn(programID, target string, headers ...string) *waitingRequest {
	s.t.Helper()
	before := s.api.waiting.Count(programID)
	ctx, quit := context.WithCancel(s.t.Context())
	r := httptest.NewRequestWithContext(ctx, "GET", target, nil)
	r.Header.Set("Authorization", "Bearer "+s.token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	wr := &waitingRequest{httptest.NewRecorder(), make(chan struct{}), quit}
	go func() {
		defer close(wr.done)
		s.api.ServeHTTP(wr.w, r)
	}()
	for s.api.waiting.Count(programID) == before {
		select {
		case <-wr.done:
			s.t.Fatalf("the request did not wait: %d %s", wr.w.Code, wr.w.Body)
		default:
			runtime.Gosched()
		}
	}
	return wr
}

// waitingNow returns how many requests of the program wait.
func (s *service) waitingNow() int { return s.api.waiting.Count("acme") }

func (wr *waitingRequest) end(t testing.TB) response {
	t.Helper()
	select {
	case <-wr.done:
	case <-time.After(time.Minute):
		t.Fatal("the request still waits")
	}
	return response{wr.w.Code, wr.w.Header(), wr.w.Body.String()}
}

// A request at the end of the log waits for an event, or until the token or subscription no longer
// permits it.
func TestPullWaits(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		events int
		do     func(s *service, subscription string)
	}{
		{"an event", 200, 1, func(s *service, _ string) { s.publishOne() }},
		{"deletion of the subscription", 404, 0, func(s *service, id string) {
			s.send("DELETE", "/v2/webhooks/subscriptions/"+id, "")
		}},
		{"another name", 200, 1, func(s *service, id string) {
			s.send("PUT", "/v2/webhooks/subscriptions/"+id, `{"events":[{"name":"content_deleted"}]}`)
			s.publishOne()
			s.send("POST", "/v2/events", `{"name":"content_deleted","version":"1","content_id":7}`)
		}},
		{"revocation", 401, 0, func(s *service, _ string) { s.revokeOwn() }},
		{"deletion of the program", 401, 0, func(s *service, _ string) {
			s.as(&route{scope: webhook.ScopePlatform}).send("DELETE", "/v2/programs/acme", "")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := start(t)
			id := s.subscribe("content_updated")
			wr := s.begin("/v2/webhooks/subscriptions/" + id + "/events?wait=30s")
			test.do(s, id)
			r := wr.end(t)
			wantStatus(t, test.name, r, test.status)
			if r.status == 200 {
				if p := logPageOf(t, r); len(p.Data) != test.events {
					t.Errorf("got %+v, want %d events", p.Data, test.events)
				}
			}
			if n := s.waitingNow(); n != 0 {
				t.Errorf("%d requests count as waiting", n)
			}
		})
	}
}

// Shutdown ends a stream, which has no end of its own.
func TestPullShutdown(t *testing.T) {
	s := start(t)
	wr := s.begin("/v2/webhooks/subscriptions/"+s.subscribe("content_updated")+"/events", "Accept", mediaEvents)
	s.api.EndWaits()
	wantStatus(t, "a stream", wr.end(t), 200)
}

// 64 requests of a program may wait, and another one is refused unless it has events.
func TestPullLimit(t *testing.T) {
	s := start(t)
	path := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated") + "/events"
	s.publishOne()
	var all []*waitingRequest
	for range maxWaiting {
		all = append(all, s.begin("/v2/events?sort=received_at&filter[name]=content_deleted&wait=30s"))
	}
	wantStatus(t, "another one", s.send("GET", path+"?wait=30s", ""), 429)
	if p := s.pull(path, "from=1999-01-01&wait=30s"); len(p.Data) != 1 {
		t.Errorf("got %+v, want the event", p.Data)
	}
	s.api.EndWaits()
	for _, wr := range all {
		wantStatus(t, "one that waits", wr.end(t), 200)
	}
}

// streamedEvent reads the next event with data of a stream, which must contain want, and returns
// its ID.
func streamedEvent(t *testing.T, in *bufio.Scanner, want string) (id string) {
	t.Helper()
	for in.Scan() {
		name, value, _ := strings.Cut(in.Text(), ": ")
		if name == "id" {
			id = value
		}
		if name == "data" {
			if !strings.Contains(value, want) || !strings.HasSuffix(value, `"delivery_status":"waiting"}`) {
				t.Errorf("got %s, want %s", value, want)
			}
			return id
		}
	}
	t.Fatalf("the stream ends: %v", in.Err())
	return ""
}

// A stream sends events with cursors as IDs, and resumes.
func TestPullStream(t *testing.T) {
	s := start(t)
	path := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated") + "/events"
	server := httptest.NewServer(s.api)
	defer server.Close()
	open := func(last string) (*bufio.Scanner, func()) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+s.token)
		r.Header.Set("Accept", mediaEvents)
		if last != "" {
			r.Header.Set(lastEventID, last)
		}
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != mediaEvents {
			t.Fatalf("got %d with %s", resp.StatusCode, got)
		}
		return bufio.NewScanner(resp.Body), func() { resp.Body.Close() }
	}
	event := func(in *bufio.Scanner, want string) string { return streamedEvent(t, in, want) }
	in, leave := open("")
	in.Scan() // the position
	first, second := s.publishOne(), ""
	id := event(in, first)
	second = s.publishOne()
	event(in, second)
	leave()
	third := s.publishOne()
	in, leave = open(id)
	defer leave()
	event(in, second)
	event(in, third)
	s.revokeOwn()
	var rest []string
	for in.Scan() {
		rest = append(rest, in.Text())
	}
	if got := strings.Join(rest, "\n"); !strings.Contains(got, "event: error\ndata: ") || !strings.Contains(got, `"code":401`) {
		t.Errorf("after the revocation: got %s", got)
	}
}
