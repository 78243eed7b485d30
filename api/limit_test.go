package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/webhook"
)

func limited(n int) func(*Config) { return func(c *Config) { c.RateLimit = n } }

// parallel makes n requests at once with a token and counts the statuses.
func (s *service) parallel(n int, token string) map[int]int {
	statuses := make([]int, n)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range statuses {
		wg.Go(func() {
			r := httptest.NewRequest("GET", "/v2/event_types/ping", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			<-begin
			s.api.ServeHTTP(w, r)
			statuses[i] = w.Code
		})
	}
	close(begin)
	wg.Wait()
	count := make(map[int]int)
	for _, status := range statuses {
		count[status]++
	}
	return count
}

func wantCount(t *testing.T, name string, got map[int]int, want map[int]int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) { // maps are printed in order
		t.Errorf("%s: got statuses %v, want %v", name, got, want)
	}
}

func TestRateLimitIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, limited(1000))
		other := s.newToken("other", "oda", webhook.Scopes()...)
		var ofOther map[int]int
		var wg sync.WaitGroup
		wg.Go(func() { ofOther = s.parallel(200, other) })
		wantCount(t, "1,200 at once", s.parallel(1200, s.token), map[int]int{200: 1000, 429: 200})
		wg.Wait()
		wantCount(t, "another program at the same time", ofOther, map[int]int{200: 200})
		wantCount(t, "and then", s.parallel(1000, other), map[int]int{200: 800, 429: 200})

		// Other tokens and users of the program share the limit.
		got := s.send("GET", "/v2/event_types", "", "Authorization", "Bearer "+s.newToken("acme", "bob", webhook.ScopeEventsRead))
		wantStatus(t, "another user", got, 429)
		if e, err := errorOf(got); err != nil || e.Title != "Too Many Requests" || !strings.Contains(e.Detail, "1000 requests") {
			t.Errorf("got %+v (%v)", e, err)
		}
		if got.header.Get("X-Program-Id") != "acme" || got.header.Get("X-User-Id") != "bob" {
			t.Errorf("429 lacks the program: %v", got.header)
		}
	})
}

// The window slides, so a minute boundary does not allow twice as many.
func TestWindowSlides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, limited(1000))
		first := time.Now().Truncate(time.Minute).Add(time.Minute + 59*time.Second)
		until := func(after time.Duration) { time.Sleep(time.Until(first.Add(after))) } // many 429s are delayed
		until(0)
		wantCount(t, "a second before the minute ends", s.parallel(600, s.token), map[int]int{200: 600})
		until(2 * time.Second)
		wantCount(t, "a second after", s.parallel(600, s.token), map[int]int{200: 400, 429: 200})
		until(rateWindow - time.Nanosecond)
		wantCount(t, "when the first are just in the window", s.parallel(10, s.token), map[int]int{429: 10})
		until(rateWindow)
		wantCount(t, "when the first have left it", s.parallel(1200, s.token), map[int]int{200: 600, 429: 600})
		until(rateWindow + 2*time.Second - time.Nanosecond)
		wantCount(t, "when the second are just in it", s.parallel(1, s.token), map[int]int{429: 1})
		until(rateWindow + 2*time.Second)
		wantCount(t, "when the second have left it", s.parallel(1200, s.token), map[int]int{200: 400, 429: 800})
		until(time.Hour)
		wantCount(t, "an hour later", s.parallel(1200, s.token), map[int]int{200: 1000, 429: 200})
	})
}

// The limiter behaves like a plain list of times.
func TestLimiterAgainstAModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []int{1, 2, 7, 8, 9, 33} {
			l := newRateLimiter(programPolicy)
			var counted []time.Time
			random := uint32(limit)
			for range 3000 {
				random = random*1664525 + 1013904223
				time.Sleep(time.Duration(random>>8) * 4 * rateWindow / time.Duration(limit<<24))
				now := time.Now()
				for len(counted) > 0 && now.Sub(counted[0]) >= rateWindow {
					counted = counted[1:]
				}
				ok := len(counted) < limit
				if ok {
					counted = append(counted, now)
				}
				want := quota{programPolicy, limit, ok, limit - len(counted), rateWindow - now.Sub(counted[0])}
				if got := l.take("p", limit); got != want {
					t.Fatalf("limit %d: got %+v, want %+v", limit, got, want)
				}
			}
		}
	})
}

func TestRateLimitHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, limited(3))
		want := func(name string, r response, status int, state, retry string) {
			t.Helper()
			wantStatus(t, name, r, status)
			for header, want := range map[string]string{"RateLimit-Policy": `"program";q=3;w=60`, "RateLimit": state, "Retry-After": retry} {
				if got := r.header.Get(header); got != want {
					t.Errorf("%s: got %s: %s, want %s", name, header, got, want)
				}
			}
		}
		want("the first", s.send("GET", "/v2/event_types", ""), 200, `"program";r=2;t=60`, "")
		time.Sleep(10*time.Second + time.Millisecond)
		want("a mistake counts", s.send("GET", "/v2/events/none", ""), 404, `"program";r=1;t=50`, "")
		forbidden := s.newToken("acme", "eve", webhook.ScopeMetricsRead)
		want("a forbidden request counts", s.send("GET", "/v2/events", "", "Authorization", "Bearer "+forbidden), 403, `"program";r=0;t=50`, "")
		time.Sleep(20 * time.Second)
		want("one too many", s.send("POST", "/v2/events", contentUpdated), 429, `"program";r=0;t=30`, "30")
		want("one too many that may not", s.send("GET", "/v2/events", "", "Authorization", "Bearer "+forbidden), 429, `"program";r=0;t=30`, "30")
		time.Sleep(30*time.Second - 2*time.Millisecond)
		want("HEAD, a little too early", s.send("HEAD", "/v2/event_types", ""), 429, `"program";r=0;t=1`, "1")
		time.Sleep(time.Millisecond)
		want("in time", s.send("HEAD", "/v2/event_types", ""), 200, `"program";r=0;t=11`, "")

		for name, r := range map[string]response{
			"unknown token":  s.send("GET", "/v2/events", "", "Authorization", "Bearer "+webhook.NewTokenSecret(webhook.TokenPrefix)),
			"no token":       s.send("GET", "/v2/events", "", "Authorization", ""),
			"no token asked": s.send("GET", "/healthz", ""),
		} {
			if r.header["Ratelimit"] != nil || r.header["Ratelimit-Policy"] != nil {
				t.Errorf("%s: got a limit: %v", name, r.header)
			}
		}
		if r := s.send("GET", "/v2/events", "", "Authorization",
			"Bearer "+s.newToken("other", "oda", webhook.Scopes()...)); r.header.Get("RateLimit") != `"program";r=2;t=60` {
			t.Errorf("another program: got %v", r.header)
		}
	})
	s := start(t)
	wantCount(t, "without a limit", s.parallel(1200, s.token), map[int]int{200: 1200})
	if r := s.send("GET", "/v2/events", ""); r.header["Ratelimit"] != nil || r.header["Ratelimit-Policy"] != nil {
		t.Errorf("without a limit: got one: %v", r.header)
	}
}

// Every request with a token counts, including unknown paths and methods.
func TestUnroutedRequestsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, limited(2))
		for _, test := range []struct {
			method, target, token string
			status                int
			remaining             string // "" for no headers
		}{
			{"GET", "/v2/nothing", "Bearer " + s.token, 404, `"program";r=1;`},
			{"DELETE", "/v2/events", "Bearer " + s.token, 405, `"program";r=0;`},
			{"GET", "/v2/nothing", "Bearer " + s.token, 429, `"program";r=0;`},
			{"DELETE", "/v2/events", "Bearer " + s.token, 429, `"program";r=0;`},
			{"GET", "/v2/nothing", "", 404, ""},
			{"GET", "/v2/nothing", "Bearer none", 404, ""},
			{"DELETE", "/v2/events", "", 405, ""},
		} {
			r := s.send(test.method, test.target, "", "Authorization", test.token)
			wantStatus(t, test.method+" "+test.target, r, test.status)
			if got := r.header.Get("RateLimit"); !strings.HasPrefix(got, test.remaining) || (got == "") != (test.remaining == "") ||
				(got == "") != (r.header.Get("RateLimit-Policy") == "") {
				t.Errorf("%s %s: got RateLimit %s, want %s", test.method, test.target, got, test.remaining)
			}
		}
		// Guessing tokens is limited on such a path too.
		for range invalidTokenLimit.Burst {
			s.send("GET", "/v2/nothing", "", "Authorization", "Bearer none")
		}
		wantStatus(t, "one token too many", s.send("GET", "/v2/nothing", "", "Authorization", "Bearer none"), 429)
	})
}

func TestLimiterDropsIdlePrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newRateLimiter(programPolicy)
		for i := range 500 {
			l.take("program "+strconv.Itoa(i), 1000)
		}
		time.Sleep(rateWindow / 2)
		l.take("busy", 1000)
		time.Sleep(rateWindow / 2)
		l.take("busy", 1000)
		if n := len(l.rings); n != 1 {
			t.Errorf("got %d programs, want only the busy one", n)
		}
		if n := len(l.rings["busy"].times); n > 8 {
			t.Errorf("a program with two requests has room for %d", n)
		}
		for range 5000 {
			l.take("busy", 1000)
		}
		if n := len(l.rings["busy"].times); n != 1000 {
			t.Errorf("a program at its limit of 1000 has room for %d", n)
		}
	})
}

// from makes a request from an address, with an Authorization header or without.
func (s *service) from(address, authorization string) response {
	s.t.Helper()
	r := httptest.NewRequest("GET", "/v2/event_types/ping", nil)
	r.RemoteAddr = address
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return s.serve(r)
}

func TestInvalidTokensAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, limited(1000))
		const home, neighbour = "192.0.2.1:1000", "192.0.2.2:1000"
		guess := func() string { return "Bearer " + webhook.NewTokenSecret(webhook.TokenPrefix) }
		for i := range invalidTokenLimit.Burst {
			wantStatus(t, "an unknown token", s.from("192.0.2.1:"+strconv.Itoa(i+1), []string{guess(), "Bearer x", "Basic x"}[i%3]), 401)
		}
		r := s.from(home, guess())
		wantStatus(t, "one too many", r, 429)
		if got := r.header.Get("Retry-After"); got != "1" {
			t.Errorf("got Retry-After %s, want 1", got)
		}
		if r.header["X-Program-Id"] != nil || r.header["Ratelimit"] != nil || r.header["Www-Authenticate"] != nil {
			t.Errorf("one too many: got %v", r.header)
		}
		wantStatus(t, "a valid token from there", s.from(home, "Bearer "+s.token), 200)
		wantStatus(t, "no token from there", s.from(home, ""), 401)
		wantStatus(t, "another address", s.from(neighbour, guess()), 401)
		wantStatus(t, "another way to write the address", s.from("[::ffff:192.0.2.1]:1000", guess()), 429)

		time.Sleep(invalidTokenLimit.Interval)
		wantStatus(t, "one is forgiven", s.from(home, guess()), 401)
		wantStatus(t, "but not two", s.from(home, guess()), 429)
		time.Sleep(rateWindow)
		for range invalidTokenLimit.Burst {
			wantStatus(t, "all are forgiven", s.from(home, guess()), 401)
		}
		wantStatus(t, "and no more", s.from(home, guess()), 429)

		for i := range invalidTokenLimit.Burst {
			wantStatus(t, "an IPv6 network", s.from(fmt.Sprintf("[2001:db8:0:1:%x::1]:9", i), guess()), 401)
		}
		wantStatus(t, "one too many of it", s.from("[2001:db8:0:1:ffff:ffff:ffff:ffff%eth0]:9", guess()), 429)
		wantStatus(t, "the next network", s.from("[2001:db8:0:2::1]:9", guess()), 401)

		// None of these requests counted for the program.
		if got := s.send("GET", "/v2/events", "").header.Get("RateLimit"); !strings.HasPrefix(got, `"program";r=999;`) {
			t.Errorf("the program's state is %s, want r=999", got)
		}
	})
}

func TestOversizedHeaders(t *testing.T) {
	s := start(t)
	path := func(n int) string { return "/v2/events?x=" + strings.Repeat("a", n-len("/v2/events?x=")) }
	for name, test := range map[string]struct {
		target, header string
		want           int
	}{
		"the longest path":                {path(maxURI), "", 400},
		"a longer one":                    {path(maxURI + 1), "", 414},
		"a longer one, unknown":           {"/v2/" + strings.Repeat("a", maxURI), "", 414},
		"a large header":                  {"/v2/event_types", strings.Repeat("a", maxHeader-1000), 200},
		"a larger one":                    {"/v2/event_types", strings.Repeat("a", maxHeader), 431},
		"a larger one, where none counts": {"/healthz", strings.Repeat("a", maxHeader), 431},
		"many headers":                    {"/v2/event_types", strings.Repeat("a\nX: ", maxHeader/4), 431},
	} {
		raw := "GET " + test.target + " HTTP/1.1\nHost: h\nConnection: close\nAuthorization: Bearer " + s.token + "\nX: " + test.header + "\n\n"
		got := parse(t, exchange(t, connect(t, s), raw))
		wantStatus(t, name, got, test.want)
		checkConventions(t, name, false, got)
	}
}

// parse parses a raw response.
func parse(t *testing.T, raw string) response {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), nil)
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return response{resp.StatusCode, resp.Header, string(body)}
}

// Writing a response times out if the client does not read; a slow client gets it whole.
func TestUnreadResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 4 << 20
		s := with(t, func(*request) (answer, error) { return answer{data: strings.Repeat("x", size)}, nil })
		listener := servePipes(t, &http.Server{Handler: s.api})
		get := func() net.Conn {
			c := listener.connect()
			_, err := io.WriteString(c, "GET /v2/test HTTP/1.1\r\nHost: h\r\n\r\n")
			must(t, err)
			return c
		}

		c := get()
		defer c.Close()
		begun := time.Now()
		buffer := make([]byte, 16<<10)
		for read := 0; read < size; {
			n, err := c.Read(buffer)
			if err != nil {
				t.Fatalf("a slow reader was cut off after %d bytes: %v", read, err)
			}
			read += n
			time.Sleep(time.Second / 3) // at most 48 KiB per second
		}
		if took := time.Since(begun); took < minWriteTimeout {
			t.Errorf("the slow reader took only %s", took)
		}

		c = get()
		defer c.Close()
		_, err := c.Read(buffer)
		must(t, err)
		time.Sleep(writeTimeout(size) + time.Minute)
		synctest.Wait()
		rest, _ := io.ReadAll(c)
		if len(rest) > size/2 {
			t.Errorf("a stopped reader got %d more bytes", len(rest))
		}
	})
}

// The same over HTTP/2, where the deadline applies to one stream.
func TestUnreadResponseOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20 // more than the client's window
		s := with(t, func(*request) (answer, error) { return answer{data: strings.Repeat("x", size)}, nil })
		transport := http2Transport(t, s.api)
		get := func(path string) *http.Response {
			resp, err := (&http.Client{Transport: transport}).Get("http://h" + path)
			if err != nil || resp.ProtoMajor != 2 {
				t.Fatalf("%v: %v", resp, err)
			}
			return resp
		}
		stalled := get("/v2/test")
		defer stalled.Body.Close()
		time.Sleep(writeTimeout(size) + time.Second)
		if n, err := io.Copy(io.Discard, stalled.Body); err == nil {
			t.Errorf("a stopped reader got all %d bytes", n)
		}
		other := get("/healthz")
		defer other.Body.Close()
		if other.StatusCode != 200 {
			t.Errorf("another stream: got %s", other.Status)
		}
	})
}

func BenchmarkRateLimiter(b *testing.B) {
	for _, bench := range []struct {
		name     string
		limit    int
		programs int
	}{{"let through", 1 << 40, 1}, {"refused", 1000, 1}, {"programs=10000", 1000, 10000}} {
		b.Run(bench.name, func(b *testing.B) {
			l, limit := newRateLimiter(programPolicy), min(bench.limit, 1<<20)
			names := make([]string, bench.programs)
			for i := range names {
				names[i] = webhook.NewID()
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					l.take(names[i%len(names)], limit)
				}
			})
		})
	}
}

// BenchmarkQuota measures the cost of the rate limit per request: the count and the
// headers.
func BenchmarkQuota(b *testing.B) {
	a := &API{programLimiter: newRateLimiter(programPolicy)}
	header := make(http.Header)
	b.ReportAllocs()
	for b.Loop() {
		req := request{quota: a.programLimiter.take("program", 1000)}
		a.quotaHeader(header, &req)
	}
}

func BenchmarkOversized(b *testing.B) {
	r := httptest.NewRequest("GET", "/v2/events?filter[name]=content_updated", nil)
	for _, name := range []string{"Authorization", "Accept", "Accept-Encoding", "User-Agent", "Content-Type", "Content-Length",
		"Traceparent"} {
		r.Header.Set(name, "a value of a usual length for such a header")
	}
	b.ReportAllocs()
	for b.Loop() {
		if oversized(r) != nil {
			b.Fatal("it is not")
		}
	}
}

// A subscription has a quota of open redeliveries.
func TestOpenRedeliveries(t *testing.T) {
	s := start(t)
	id := s.subscribe("content_updated")
	s.publishOne()
	s.deliver(200, webhook.ErrorNone)
	path := "/v2/webhooks/subscriptions/" + id + "/deliveries"
	first := data[[]identified](t, s.send("GET", path, ""))[0].ID
	must(t, s.store.Write(t.Context(), func(w store.Write) error {
		for range webhook.MaxOpenRedeliveries {
			if _, err := w.Deliveries().Redeliver("acme", id, first, webhook.AuditEntry{}); err != nil {
				return err
			}
		}
		return nil
	}))
	r := s.send("POST", path+"/"+first+"/redeliver", "")
	wantStatus(t, "one more", r, http.StatusTooManyRequests)
	if r.header.Get("Retry-After") != retryRedelivery {
		t.Errorf("Retry-After is %q, want %q", r.header.Get("Retry-After"), retryRedelivery)
	}
}
