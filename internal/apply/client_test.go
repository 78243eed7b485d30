package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// exchange returns a client whose requests a handler answers without a network, so that time can be
// fake.
func exchange(t *testing.T, handler http.HandlerFunc) (c *Client, sent *[]string) {
	t.Helper()
	sent = new([]string)
	c = &Client{BaseURL: "http://service", Replays: true, RetryFor: time.Minute, Note: func(string, ...any) {}}
	var mu sync.Mutex // the client reads several programs concurrently
	c.Send = func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		*sent = append(*sent, req.Method+" "+req.URL.Path+" "+req.Header.Get("Idempotency-Key"))
		w := httptest.NewRecorder()
		handler(w, req)
		return w.Result(), nil
	}
	return c, sent
}

// refuse writes an error of the API.
func refuse(w http.ResponseWriter, status int, detail string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error": {"code": %d, "title": "Refused", "detail": %q}}`, status, detail)
}

// TestRetries checks that a request is repeated with the same key while the service is busy,
// not before Retry-After, and not when it is refused.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		put := call{method: http.MethodPut, path: "/v2/programs/acme"}
		began := time.Now()
		n := 0
		c, sent := exchange(t, func(w http.ResponseWriter, _ *http.Request) {
			switch n++; n {
			case 1:
				w.Header().Set("Retry-After", "20")
				refuse(w, http.StatusTooManyRequests, "busy")
			case 2:
				refuse(w, http.StatusServiceUnavailable, "busy")
			default:
				io.WriteString(w, `{"data": {}}`)
			}
		})
		if _, err := c.do(t.Context(), put); err != nil {
			t.Fatal(err)
		}
		if len(*sent) != 3 || (*sent)[0] != (*sent)[1] || (*sent)[1] != (*sent)[2] || strings.HasSuffix((*sent)[0], " ") {
			t.Errorf("got %q, want one request with a key three times", *sent)
		}
		if took := time.Since(began); took < 20*time.Second || took > 22*time.Second {
			t.Errorf("took %s, want a little more than 20 s", took)
		}

		c, _ = exchange(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusServiceUnavailable, "busy") })
		_, err := c.do(t.Context(), put)
		if err == nil || !strings.HasSuffix(err.Error(), "busy; gave up after 1m0s") || refused(err) {
			t.Errorf("got %v", err)
		}
		for _, status := range []int{400, 401, 403, 404, 409, 412, 500} {
			c, sent = exchange(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, status, "no.") })
			_, err := c.do(t.Context(), put)
			var r *Refusal
			if !errors.As(err, &r) || r.Status != status || len(*sent) != 1 || !strings.HasSuffix(err.Error(), ": no") {
				t.Errorf("%d: got %v after %d requests", status, err, len(*sent))
			}
		}
	})
}

// TestUnknownOutcome checks that a POST is not repeated over a connection that does not store
// keys, if the first may have created a record.
func TestUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			method  string
			replays bool
			want    int
		}{{"POST", true, 2}, {"POST", false, 1}, {"PUT", false, 2}, {"GET", false, 2}} {
			n := 0
			c := &Client{Replays: test.replays, RetryFor: time.Minute, Note: func(string, ...any) {}}
			c.Send = func(*http.Request) (*http.Response, error) {
				if n++; n == 1 {
					return nil, Temporary{Err: errors.New("connection reset")}
				}
				w := httptest.NewRecorder()
				io.WriteString(w, `{"data": {}}`)
				return w.Result(), nil
			}
			_, err := c.do(t.Context(), call{method: test.method, path: "/"})
			if n != test.want || (err == nil) != (test.want == 2) {
				t.Errorf("%+v: got %d requests, %v", test, n, err)
			}
			if err != nil && (!Retryable(err) || refused(err)) {
				t.Errorf("%+v: got %v, which the next run must be able to make", test, err)
			}
		}
	})
}

// TestPages checks that every page of a list is read, and that a record on two pages counts
// once.
func TestPages(t *testing.T) {
	c, sent := exchange(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("page[size]") != "100" || q.Get("filter[state]") != "valid" {
			t.Errorf("got the query %q", r.URL.RawQuery)
		}
		page := q.Get("page[number]")
		if page == "" {
			page = "1"
		}
		fmt.Fprintf(w, `{"data": [{"id": "a%[1]s", "name": "a"}, {"id": "twice", "name": "b", "expires_at": "2027-01-31T00:00:00.000Z"}],
			"meta": {"pagination": {"page_number": %[1]s, "page_size": 100, "total_count": 6, "total_pages": 3}}}`, page)
	})
	var state ProgramState
	err := c.contents(t.Context(), &Program{ID: "acme", Tokens: make([]Token, 1)}, &state)
	if err != nil || len(*sent) != 3 {
		t.Fatalf("got %d requests, %v; want 3", len(*sent), err)
	}
	var ids []string
	for _, one := range state.Tokens {
		ids = append(ids, one.ID)
	}
	if want := []string{"a1", "twice", "a2", "a3"}; !slices.Equal(ids, want) {
		t.Errorf("got %q, want %q", ids, want)
	}
}

// TestStateOfOneProgram checks that a program's state contains the errors that concern the program,
// and that other errors stop the reading.
func TestStateOfOneProgram(t *testing.T) {
	const file = `programs:
  - {id: bad, subscriptions: [{url: https://a.example, events: [ping]}],
      tokens: [{name: n, user: u, scopes: [events.read], secret_file: s}]}
  - {id: good, subscriptions: [{url: https://b.example, events: [ping]}]}
`
	for _, test := range []stateTest{
		{"not found", "subscriptions", 404, "active", "404", false, false},
		{"moved during the run", "subscriptions", 409, "active", "409", false, false},
		{"rate limit of the program", "subscriptions", 429, "active", "429 Too Many Requests: no; gave up after 1m0s", false, true},
		{"rate limit of the platform token", "tokens", 429, "active", "", true, true},
		{"not found by the path", "tokens", 404, "active", "404", false, false},
		{"token revoked", "subscriptions", 401, "active", "", true, false},
		{"unavailable", "subscriptions", 503, "active", "", true, true},
		{"erasing", "", 0, "erasing", "being erased: remove it from the file", false, false},
		{"moved", "", 0, "moved", "apply its part of the file there", false, false},
		{"moving", "", 0, "moving", "run again when", false, true},
		{"arriving", "", 0, "arriving", "run again when", false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.run(t, file)
			})
		})
	}
}

// stateTest is a run in which the program bad is refused.
type stateTest struct {
	name   string
	path   string // for which the program bad is refused
	status int
	bad    string // status of the program in the list
	want   string // part of the error of the program
	fatal  bool
	later  bool
}

func (test *stateTest) run(t *testing.T, file string) {
	t.Helper()
	c, sent := exchange(t, func(w http.ResponseWriter, r *http.Request) {
		ofBad := r.Header.Get("X-Program-Id") == "bad" || strings.Contains(r.URL.Path, "/bad/")
		switch {
		case r.URL.Path == "/v2/programs":
			fmt.Fprintf(w, `{"data": [{"id": "bad", "status": %q}, {"id": "good", "status": "active"}]}`, test.bad)
		case test.path != "" && ofBad && strings.HasSuffix(r.URL.Path, test.path):
			refuse(w, test.status, "no")
		case r.Header.Get("X-Program-Id") == "good":
			io.WriteString(w, `{"data": [{"id": "s1", "url": "https://b.example"}]}`)
		default:
			io.WriteString(w, `{"data": []}`)
		}
	})
	s, err := c.State(t.Context(), parsed(t, ".", file))
	if test.fatal {
		if err == nil || Retryable(err) != test.later {
			t.Errorf("got %v, want an error, retryable %t", err, test.later)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	bad, good := s.Programs["bad"], s.Programs["good"]
	if bad.Err == nil || !strings.Contains(bad.Err.Error(), test.want) || Retryable(bad.Err) != test.later {
		t.Errorf("got %v, want %s, retryable %t", bad.Err, test.want, test.later)
	}
	if good.Err != nil || len(good.Subscriptions) != 1 {
		t.Errorf("got %+v for the other program", good)
	}
	if test.path == "" && len(*sent) != 3 {
		t.Errorf("got the requests %q, want none in the program", *sent)
	}
}

// planFor plans the changes of a file for a service that has nothing but the event type ping.
func planFor(t *testing.T, file string) *Plan {
	t.Helper()
	return Diff(t.Context(), parsed(t, ".", file), &State{EventTypes: map[string]json.RawMessage{"ping": nil}}, nil, Options{}, now)
}

// TestRateLimitedProgram checks that the rest of a program that has reached its rate limit is
// skipped after one wait, and that the other programs get their changes.
func TestRateLimitedProgram(t *testing.T) {
	const file = `programs:
  - {id: bad, subscriptions: [{url: https://a.example, events: [ping]}, {url: https://b.example, events: [ping]}]}
  - {id: good, subscriptions: [{url: https://c.example, events: [ping]}]}
`
	synctest.Test(t, func(t *testing.T) {
		c, _ := exchange(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Program-Id") == "bad" {
				w.Header().Set("Retry-After", "50")
				refuse(w, http.StatusTooManyRequests, "no")
				return
			}
			io.WriteString(w, `{"data": {}}`)
		})
		plan := planFor(t, file)
		began, skipped := time.Now(), 0
		made, err := c.Apply(t.Context(), plan, func(r Result) {
			if r.Skipped() {
				skipped++
			} else if r.Err != nil && !Retryable(r.Err) {
				t.Errorf("got %v, want it to be retryable", r.Err)
			}
		})
		if made != 3 || skipped != 1 || err != nil {
			t.Errorf("got %d made, %d skipped, %v; want 3 and 1", made, skipped, err)
		}
		if took := time.Since(began); took > c.RetryFor {
			t.Errorf("took %s, want one wait", took)
		}
	})
}

// TestApplyContinues checks which changes are made after one that fails.
func TestApplyContinues(t *testing.T) {
	const file = `programs:
  - id: bad
    subscriptions: [{url: https://a.example, events: [ping]}]
  - id: good
    subscriptions: [{url: https://b.example, events: [ping]}, {url: https://c.example, events: [ping]}]
`
	for _, test := range []struct {
		name   string
		status int
		want   []string
		fatal  bool
	}{
		{"refused", 400, []string{"program bad: failed", "program good: made", "subscription bad https://a.example: skipped",
			"subscription good https://b.example: made", "subscription good https://c.example: made"}, false},
		{"forbidden", 403, []string{"program bad: failed", "program good: skipped", "subscription bad https://a.example: skipped",
			"subscription good https://b.example: skipped", "subscription good https://c.example: skipped"}, true},
		{"internal error", 500, []string{"program bad: failed", "program good: made", "subscription bad https://a.example: skipped",
			"subscription good https://b.example: made", "subscription good https://c.example: made"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _ := exchange(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/bad") {
					refuse(w, test.status, "no")
					return
				}
				io.WriteString(w, `{"data": {}}`)
			})
			plan := planFor(t, file)
			var got []string
			made, err := c.Apply(context.Background(), plan, func(r Result) {
				what := "made"
				if r.Skipped() {
					what = "skipped"
				} else if r.Err != nil {
					what = "failed"
				}
				got = append(got, r.Change.Title()+": "+what)
			})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if (err != nil) != test.fatal || made != strings.Count(strings.Join(got, "\n"), ": made") {
				t.Errorf("got %d made, %v", made, err)
			}
		})
	}
}
