package api

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"service/store"
	"service/test/harness"
	"service/webhook"
)

// movedProgram is the program that moves in these tests; its user is ada.
const movedProgram = "moved-program"

// installation is a service behind HTTPS that records what reaches it.
type installation struct {
	*service
	server *httptest.Server
	moved  string // token of movedProgram

	mu   sync.Mutex
	seen []*http.Request
}

func newInstallation(t *testing.T, change ...func(*Config)) *installation {
	in := &installation{service: start(t, change...)}
	in.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in.mu.Lock()
		in.seen = append(in.seen, r.Clone(context.Background()))
		in.mu.Unlock()
		in.api.ServeHTTP(w, r)
	}))
	in.server.Config.ErrorLog = nil
	t.Cleanup(in.server.Close)
	return in
}

// withProgram creates movedProgram with a token.
func (in *installation) withProgram() *installation {
	in.moved = in.newToken(movedProgram, "ada", webhook.Scopes()...)
	return in
}

// last returns the newest request that reached the installation over HTTPS.
func (in *installation) last() *http.Request {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.seen) == 0 {
		in.t.Fatal("no request reached the installation")
	}
	return in.seen[len(in.seen)-1]
}

// ca returns the certificate of an installation as PEM.
func (in *installation) ca() string { return caOf(in.server) }

func caOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// move moves movedProgram to another installation.
func (in *installation) move(to *installation) {
	in.t.Helper()
	in.copyProgram(to)
	in.forwardTo(to.server.URL, to.ca())
}

// copyProgram gives another installation a copy of movedProgram.
func (in *installation) copyProgram(to *installation) {
	t := in.t
	t.Helper()
	x, err := in.store.Programs().Export(t.Context(), movedProgram, 0)
	if err == nil {
		_, err = to.store.Programs().Import(t.Context(), &store.ProgramImport{Path: x.Path, Key: x.Key, Idle: true})
		x.Remove()
	}
	must(t, err)
	to.moved = in.moved
}

// forwardOverPipes forwards movedProgram to a server in a bubble.
func (in *installation) forwardOverPipes(server *http.Server) {
	in.t.Helper()
	to := forwardTarget{url: "http://target.example"}
	in.forwardTo(to.url, to.ca)
	transport := &http.Transport{DialContext: servePipes(in.t.(*testing.T), server).dial}
	in.t.Cleanup(transport.CloseIdleConnections)
	in.api.forwarder.targets[to] = transport
}

// forwardTo marks movedProgram as moved.
func (in *installation) forwardTo(url, ca string) {
	in.t.Helper()
	for _, step := range moveSteps(url, ca) {
		must(in.t, in.store.Write(in.t.Context(), step))
	}
}

// moveSteps returns the steps of a move of movedProgram, after the last of which it is forwarded.
func moveSteps(url, ca string) []func(store.Write) error {
	id := webhook.NewID()
	return []func(store.Write) error{
		func(w store.Write) error {
			return w.Moves().Begin(movedProgram, id, &store.MoveTarget{URL: url, CA: ca, Token: to0})
		},
		func(w store.Write) error { return w.Moves().Complete(movedProgram, id) },
		func(w store.Write) error { return w.Moves().Activated(movedProgram, id) },
	}
}

// to0 stands for the platform token that a move uses at its target. No request may contain it.
const to0 = "svc_token-of-the-move"

// newMove returns two installations between which movedProgram has moved.
func newMove(t *testing.T, change ...func(*Config)) (from, to *installation) {
	from, to = newInstallation(t, change...).withProgram(), newInstallation(t)
	from.move(to)
	return from, to
}

// send sends a request with the token of movedProgram, which must be forwarded.
func (in *installation) send(method, path, body string, headers ...string) response {
	in.t.Helper()
	return in.service.send(method, path, body, append([]string{"Authorization", "Bearer " + in.moved}, headers...)...)
}

// post publishes over a connection to a server, with the token of movedProgram, and returns the
// response with its whole body.
func (in *installation) post(client *http.Client, base, media string, body io.Reader) (*http.Response, string) {
	in.t.Helper()
	req, err := http.NewRequest("POST", base+"/v2/events", body)
	must(in.t, err)
	req.Header.Set("Authorization", "Bearer "+in.moved)
	req.Header.Set("Content-Type", media)
	resp, err := client.Do(req)
	must(in.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		in.t.Error(err)
	}
	return resp, string(text)
}

// get sends a GET over a connection to a server, with the token of movedProgram. accept may be empty.
func (in *installation) get(client *http.Client, url, accept string) *http.Response {
	in.t.Helper()
	req, err := http.NewRequestWithContext(in.t.Context(), "GET", url, nil)
	must(in.t, err)
	req.Header.Set("Authorization", "Bearer "+in.moved)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := client.Do(req)
	must(in.t, err)
	return resp
}

// pipeClient returns a client of a handler in a bubble.
func pipeClient(t *testing.T, handler http.Handler) *http.Client {
	client := &http.Client{Transport: &http.Transport{DialContext: servePipes(t, &http.Server{Handler: handler}).dial}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// forwards returns how many forwarded requests had a result.
func (in *installation) forwards(result string) int {
	registry := prometheus.NewRegistry()
	registry.MustRegister(in.api.metrics.forwarded[result])
	families, err := registry.Gather()
	must(in.t, err)
	return int(families[0].GetMetric()[0].GetCounter().GetValue())
}

// wantLog waits for a match of a pattern in the log. A client may receive a large response before
// the handler logs the request.
func (in *installation) wantLog(pattern string) {
	in.t.Helper()
	match := regexp.MustCompile(pattern)
	harness.WaitFor(in.t, "a log line "+pattern, func() bool { return match.MatchString(in.log.String()) })
}

// TestForward sends requests to every route of partners through the old installation.
func TestForward(t *testing.T) {
	from, to := newMove(t)
	made := from.send("POST", subscriptionsPath, `{"url": "https://example.com/a", "events": [{"name": "content_updated"}]}`)
	sub := idOf(made)
	published := from.send("POST", "/v2/events", eventBody)
	if made.status != 201 || published.status != 201 || published.header.Get("X-Program-Id") != movedProgram {
		t.Fatalf("got %d %s, %d %s", made.status, made.body, published.status, published.body)
	}
	ids := map[string]string{subscriptionPath: sub, "/v2/events/:id": idOf(published)}
	reached := 0
	for _, rt := range routes() {
		if rt.scope == scopeNone || rt.scope == webhook.ScopePlatform || rt.pattern == metricsPath ||
			rt.method == "DELETE" && rt.pattern == subscriptionPath { // below
			continue
		}
		forwardRoute(t, from, to, &rt, ids)
		reached++
	}
	if reached < 30 {
		t.Errorf("only %d routes", reached)
	}
	if got := from.send("HEAD", subscriptionsPath+"/"+sub, ""); got.status != 200 || got.body != "" {
		t.Errorf("HEAD: got %+v", got)
	}
	tag := from.send("GET", subscriptionsPath+"/"+sub, "").header.Get("Etag")
	wantStatus(t, "If-None-Match", from.send("GET", subscriptionsPath+"/"+sub, "", "If-None-Match", tag), 304)
	wantStatus(t, "DELETE", from.send("DELETE", subscriptionsPath+"/"+sub, ""), 200)
	if got := from.send("GET", "/v2/later_version", ""); got.status != 404 || to.last().URL.Path != "/v2/later_version" {
		t.Errorf("unknown route: got %d, and the target got %s", got.status, to.last().URL)
	}
	if n := from.forwards(forwardResponse); n < reached {
		t.Errorf("the metric has %d responses of %d requests", n, reached)
	}
}

// forwardRoute sends a request to a route. It must reach the target.
func forwardRoute(t *testing.T, from, to *installation, rt *route, ids map[string]string) {
	t.Helper()
	path := rt.pattern
	for pattern, id := range ids {
		if strings.HasPrefix(path, pattern) {
			path = strings.Replace(path, ":id", id, 1)
		}
	}
	path = strings.ReplaceAll(strings.ReplaceAll(path, ":name", "content_updated"), ":delivery_id", "nope%2Fnope")
	path = regexp.MustCompile(`:[a-z_]+`).ReplaceAllString(path, "01a20939-44c5-7d08-b086-2f639c30b237")
	body := ""
	if rt.method != "GET" {
		body = "{}"
	}
	to.api.timeout = DefaultRequestTimeout
	if strings.HasSuffix(path, "/ping") {
		to.api.timeout = 200 * time.Millisecond // nothing sends pings here
	}
	got := from.send(rt.method, path, body)
	logged := fmt.Sprintf("method=%s route=%s status=%d", rt.method, rt.pattern, got.status)
	id := got.header.Get("X-Request-Id")
	to.wantLog(regexp.QuoteMeta(logged) + ".*request_id=" + id)
	from.wantLog(regexp.QuoteMeta(logged) + ".*forwarded_to=" + regexp.QuoteMeta(to.server.URL) + " target_request_id=" + id)
	if rt.method == "GET" {
		direct := to.service.send("GET", path, "", "Authorization", "Bearer "+from.moved)
		if got.status != direct.status || got.body != direct.body && rt.pattern != "/v2/token" ||
			got.header.Get("Etag") != direct.header.Get("Etag") {
			t.Errorf("%s: got %d %s, want %d %s", path, got.status, got.body, direct.status, direct.body)
		}
	}
}

const eventBody = `{"name": "content_updated", "version": "1", "content_id": 1}`

// TestForwardHeaders checks what the target gets and what the client gets.
func TestForwardHeaders(t *testing.T) {
	from, to := newMove(t)
	got := from.send("GET", "/v2/events?page[size]=5&sort=-received%5Fat", "", "X-Forwarded-For", "203.0.113.9", "X-Forwarded-Proto", "http",
		"Forwarded", "for=203.0.113.9", "Cookie", "session=secret", "Connection", "X-Hop", "X-Hop", "1", "Upgrade", "websocket",
		"User-Agent", "agent/1", "Via", "1.1 proxy")
	seen := to.last()
	if got.status != 200 || seen.URL.RawQuery != "page[size]=5&sort=-received%5Fat" {
		t.Errorf("got %d %s, query %q", got.status, got.body, seen.URL.RawQuery)
	}
	for _, absent := range []string{"Forwarded", "X-Forwarded-Proto", "Cookie", "X-Hop", "Upgrade", "Connection"} {
		if seen.Header[absent] != nil {
			t.Errorf("the target got %s: %q", absent, seen.Header[absent])
		}
	}
	via := strings.Join(seen.Header["Via"], ", ")
	if seen.Header.Get("X-Forwarded-For") != "192.0.2.1" || !strings.HasPrefix(via, "1.1 proxy, 1.1 service-") ||
		seen.Header.Get("User-Agent") != "agent/1" || seen.Host != strings.TrimPrefix(to.server.URL, "https://") {
		t.Errorf("the target got %v for host %s", seen.Header, seen.Host)
	}
	if got := from.send("GET", "/v2/events?%zz", ""); got.status != 400 || to.last().URL.RawQuery != "%zz" {
		t.Errorf("invalid query: got %d, target %q", got.status, to.last().URL.RawQuery)
	}
	if strings.Contains(from.log.String()+to.log.String(), "received%5F") {
		t.Error("a log has a query")
	}
	// The target decides: a token that was revoked there is invalid, although it is valid here.
	all, err := to.store.Tokens().List(t.Context())
	must(t, err)
	for _, token := range all {
		if token.ProgramID == movedProgram {
			to.revoke(token.ID)
		}
	}
	if got := from.send("GET", "/v2/events", ""); got.status != 401 || got.header.Get("Www-Authenticate") == "" {
		t.Errorf("revoked token: got %d %v", got.status, got.header)
	}
}

// TestForwardLimits checks which installation counts the requests.
func TestForwardLimits(t *testing.T) {
	from, to := newMove(t, func(c *Config) { c.RateLimit = 1 })
	for range 3 {
		if got := from.send("GET", "/v2/events", ""); got.status != 200 || got.header.Get("Ratelimit") != "" {
			t.Errorf("got %d %v, want no limit of the old installation", got.status, got.header)
		}
	}
	to.api.rateLimit = 1
	for _, want := range []int{200, 429} {
		got := from.send("GET", "/v2/events", "")
		if got.status != want || len(got.header["Ratelimit"]) != 1 || want == 429 && got.header.Get("Retry-After") == "" {
			t.Errorf("got %d %v, want %d by the new installation's limit", got.status, got.header, want)
		}
	}
}

// TestForwardRefuses checks the requests that are not forwarded.
func TestForwardRefuses(t *testing.T) {
	from, to := newMove(t)
	for method, body := range map[string]string{"GET": "", "POST": eventBody} {
		got := from.service.send(method, "/v2/events", body, "Authorization", "Bearer "+from.platform, programHeader, movedProgram)
		wantBody(t, method+" with a platform token", got, 409, "has moved to "+to.server.URL+". Send the request there")
	}
	wantStatus(t, "metrics", from.send("GET", "/metrics", ""), 403)
	wantStatus(t, "another program", from.send("GET", "/v2/events", "", programHeader, "acme"), 403)
	wantStatus(t, "another token", from.service.send("GET", "/v2/events", ""), 200) // of acme
	if len(to.seen) > 0 {
		t.Errorf("the target got %d requests", len(to.seen))
	}
}

// TestForwardUnreachable checks the responses when the target does not respond as it should.
func TestForwardUnreachable(t *testing.T) {
	t.Parallel()
	to := newInstallation(t)
	strange := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "<html>Bad gateway of another proxy</html>", http.StatusBadGateway)
	}))
	defer strange.Close()
	cutting := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer cutting.Close()
	// httptest has one certificate for all servers.
	other := "-----BEGIN CERTIFICATE-----\nMIIBdzCCAR2gAwIBAgIBATAKBggqhkjOPQQDAjAMMQowCAYDVQQDEwF4MB4XDTIw\n-----END CERTIFICATE-----\n"
	down := to.server.URL
	to.server.Close()
	for _, test := range []struct {
		name, url, ca string
		status        int
		result, log   string
	}{
		{"down", down, to.ca(), 503, forwardUnreachable, "connection refused"},
		{"no certificate authority", strange.URL, "", 503, forwardUnreachable, "certificate"},
		{"invalid certificates", strange.URL, other, 503, forwardUnreachable, "not PEM"},
		{"another server", strange.URL, caOf(strange), 504, forwardUnreachable, "is not of the service"},
		{"cut", cutting.URL, caOf(cutting), 504, forwardUnreachable, "EOF"},
		{"invalid URL", "http://127.0.0.1:x/secret", "", 503, forwardUnreachable, "URL of the target is invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			old := newInstallation(t).withProgram()
			old.forwardTo(test.url, test.ca)
			for _, body := range []string{"", eventBody} {
				forwardFails(t, old, body, test.status, test.result)
			}
			if n := old.forwards(test.result); n != 2 {
				t.Errorf("got %d requests with the result %s", n, test.result)
			}
			if log := old.log.String(); !strings.Contains(log, test.log) || strings.Contains(log, to0) || strings.Contains(log, old.moved) {
				t.Errorf("got the log %s, want %q", log, test.log)
			}
		})
	}
}

// TestForwardSilent checks the response when the target accepts a request and does not respond.
func TestForwardSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := (&installation{service: start(t)}).withProgram()
		old.forwardOverPipes(&http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})})
		for _, body := range []string{"", eventBody} {
			begun := time.Now()
			forwardFails(t, old, body, 504, forwardTimeout)
			if took := time.Since(begun); took != DefaultRequestTimeout+forwardSlack {
				t.Errorf("the response took %s, want %s", took, DefaultRequestTimeout+forwardSlack)
			}
		}
		if n, log := old.forwards(forwardTimeout), old.log.String(); n != 2 || !strings.Contains(log, "did not respond in time") {
			t.Errorf("got %d requests with the result %s and the log %s", n, forwardTimeout, log)
		}
	})
}

// forwardFails forwards a request, and checks that it fails with a result.
func forwardFails(t *testing.T, old *installation, body string, want int, result string) {
	t.Helper()
	method := "GET"
	if body != "" {
		method = "POST"
	}
	if method == "GET" && result == forwardUnreachable {
		want = 503 // it changes nothing, however far it got
	}
	got := old.send(method, "/v2/events", body)
	if got.status != want || got.header.Get("X-Program-Id") != movedProgram ||
		want == 503 && got.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s %v", got.status, got.body, got.header)
	}
	if strings.Contains(got.body, "127.0.0.1") || strings.Contains(got.body, "html") {
		t.Errorf("the response shows the target: %s", got.body)
	}
}

// serviceHeader is the header of a response of the API.
func serviceHeader(h http.Header) {
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("X-Request-Id", "0198f6a1-11aa-7b22-8c33-4d5e6f708192")
}

// forwardOver sends a GET through an installation that forwards movedProgram to a handler. trace
// observes the response; nil is none.
func forwardOver(t *testing.T, handler http.HandlerFunc,
	trace *httptrace.ClientTrace) (old *installation, resp *http.Response, body string) {
	t.Helper()
	target := httptest.NewTLSServer(handler)
	t.Cleanup(target.Close)
	old = newInstallation(t).withProgram()
	old.forwardTo(target.URL, caOf(target))
	ctx := t.Context()
	if trace != nil {
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	req, err := http.NewRequestWithContext(ctx, "GET", old.server.URL+"/v2/token", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+old.moved)
	if resp, err = old.server.Client().Do(req); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return old, resp, string(text)
}

// TestForwardedHeaders has a target that sends headers which act on browsers or name another
// program: the client gets only headers of the API. Interim responses and trailers are dropped.
func TestForwardedHeaders(t *testing.T) {
	interim := 0
	trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { interim++; return nil }}
	hostile := map[string]string{
		"Access-Control-Allow-Origin": "*", "Clear-Site-Data": `"*"`, "Refresh": "0; url=https://evil.example", "Set-Cookie": "a=b",
		"Strict-Transport-Security": "max-age=0", "Alt-Svc": "clear", "Link": "</x>; rel=preload",
		"Content-Security-Policy": "default-src *", "Content-Disposition": "attachment", "Service-Worker-Allowed": "/", "X-Service-Secret": "x",
		"Server":      "target",
		programHeader: "other", "X-User-Id": "eve", "Cache-Control": "public, max-age=3600", "X-Content-Type-Options": "sniff",
		"Www-Authenticate": `Basic realm="sign in"`, "Location": "https://evil.example/",
	}
	_, resp, body := forwardOver(t, func(w http.ResponseWriter, _ *http.Request) {
		for range maxInterim {
			w.Header().Set("Link", "</x>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
		}
		serviceHeader(w.Header())
		for name, value := range hostile {
			w.Header().Set(name, value)
		}
		w.Header().Set("Trailer", "Refresh")
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("Ratelimit", `"program";r=1;t=60`)
		io.WriteString(w, `{"data":{}}`)
		w.Header().Set("Refresh", "0; url=https://evil.example")
		w.Header().Set(http.TrailerPrefix+"Set-Cookie", "a=b")
	}, trace)
	if interim != 0 || len(resp.Trailer) > 0 || body != `{"data":{}}` {
		t.Errorf("got %d interim responses, the trailers %v and the body %s", interim, resp.Trailer, body)
	}
	want := http.Header{
		"Cache-Control": {"no-store"}, "Content-Type": {"application/json; charset=utf-8"}, "Etag": {`"1"`},
		"Ratelimit": {`"program";r=1;t=60`}, programHeader: {movedProgram}, "X-Content-Type-Options": {"nosniff"},
		"X-Request-Id": {"0198f6a1-11aa-7b22-8c33-4d5e6f708192"}, "X-User-Id": {"ada"},
	}
	resp.Header.Del("Date") // of the old installation
	if diff := cmp.Diff(want, resp.Header); diff != "" {
		t.Errorf("the header (-want +got):\n%s", diff)
	}
}

// TestForwardForeign has targets whose responses are not from the API: the client gets an error of
// the old installation, and nothing of the response.
func TestForwardForeign(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"HTML": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<script>planted</script>")
		},
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<script>planted</script>")
		},
		"compressed": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") },
		"redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/v2/planted")
			w.WriteHeader(http.StatusFound)
		},
		"status 600": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(600) },
		"no id":      func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("X-Request-Id") },
		"wrong id":   func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Request-Id", "planted planted") },
		"large": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(maxForwardedBody+1))
		},
		"large header": func(w http.ResponseWriter, _ *http.Request) {
			for n := range 100 {
				w.Header().Set(fmt.Sprintf("X-%d", n), strings.Repeat("x", maxForwardedHeader/50))
			}
		},
		"interim responses": func(w http.ResponseWriter, _ *http.Request) {
			for range maxInterim + 1 {
				w.WriteHeader(http.StatusEarlyHints)
			}
		},
		"other protocol": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "planted")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
		},
	} {
		t.Run(name, func(t *testing.T) {
			old, resp, body := forwardOver(t, func(w http.ResponseWriter, r *http.Request) {
				serviceHeader(w.Header())
				handler(w, r)
			}, nil)
			if resp.StatusCode != 503 || !strings.Contains(body, "cannot be reached at the moment") || old.forwards(forwardUnreachable) != 1 {
				t.Errorf("got %d %s", resp.StatusCode, body)
			}
			if all := fmt.Sprint(resp.Header) + body; strings.Contains(all, "planted") || resp.Header.Get(programHeader) != movedProgram {
				t.Errorf("got %s", all)
			}
		})
	}
}

// TestForwardEndless has targets whose responses do not end: the client's connection is closed
// after too long a silence, or when the response takes too long.
func TestForwardEndless(t *testing.T) {
	for _, test := range []struct {
		name   string
		every  time.Duration // between the bytes; 0 for none
		longer time.Duration // the maximum additional wait of the client
		result string
	}{
		{"silent", 0, DefaultRequestTimeout, forwardTimeout},
		{"slow", DefaultRequestTimeout / 2, minWriteTimeout + DefaultRequestTimeout/2, forwardUnreachable},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old := (&installation{service: start(t)}).withProgram()
				old.forwardOverPipes(&http.Server{Handler: endless(test.every)})
				client := pipeClient(t, old.api)
				begun := time.Now()
				resp := old.get(client, "http://service/v2/token", "")
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if took := time.Since(begun); err == nil || took > test.longer || !strings.HasPrefix(string(text), `{"data":`) {
					t.Errorf("got %q, %v after %s", text, err, took)
				}
				synctest.Wait()
				if old.forwards(test.result) != 1 {
					t.Errorf("the result is not %s:\n%s", test.result, old.log)
				}
			})
		})
	}
}

// TestForwardIdleStream forwards a stream of events that is idle for longer than --request-timeout.
func TestForwardIdleStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := (&installation{service: start(t, func(c *Config) { c.RequestTimeout = streamIdle / 3 })}).withProgram()
		old.forwardOverPipes(&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			serviceHeader(w.Header())
			w.Header().Set("Content-Type", mediaEvents)
			http.NewResponseController(w).Flush()
			time.Sleep(streamIdle)
			io.WriteString(w, ": idle\n\n")
		})})
		resp := old.get(pipeClient(t, old.api), "http://service/v2/webhooks/subscriptions/"+webhook.NewID()+"/events", mediaEvents)
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || string(text) != ": idle\n\n" {
			t.Errorf("got %q, %v", text, err)
		}
	})
}

// endless returns a handler whose responses do not end. every is the time between their bytes; with
// 0 no more bytes follow.
func endless(every time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		serviceHeader(w.Header())
		io.WriteString(w, `{"data":`)
		flush := http.NewResponseController(w).Flush
		for flush() == nil {
			var next <-chan time.Time
			if every > 0 {
				next = time.After(every)
			}
			select {
			case <-next:
				io.WriteString(w, " ")
			case <-r.Context().Done():
				return
			}
		}
	}
}

// TestForwardDuringMove checks that nothing is forwarded before the target is active.
func TestForwardDuringMove(t *testing.T) {
	from, to := newInstallation(t).withProgram(), newInstallation(t)
	for _, step := range moveSteps(to.server.URL, to.ca())[:2] {
		must(t, from.store.Write(t.Context(), step))
		wantBody(t, "during the move", from.send("POST", "/v2/events", eventBody), 503, "is being moved")
		if len(to.seen) > 0 {
			t.Error("the target got a request")
		}
	}
}

// TestForwardLoop forwards between two installations that both think the other has the
// program, and along a chain, which is allowed.
func TestForwardLoop(t *testing.T) {
	a, b := newMove(t)
	c := newInstallation(t)
	b.move(c)
	if got := a.send("GET", "/v2/token", ""); got.status != 200 || len(c.last().Header["Via"]) != 2 {
		t.Errorf("chain: got %d %s, Via %q", got.status, got.body, c.last().Header["Via"])
	}
	c.forwardTo(a.server.URL, a.ca())
	wantBody(t, "loop", a.send("POST", "/v2/events", eventBody), 503, "forwarded in a loop")
	if loops := []int{a.forwards(forwardLoop), b.forwards(forwardLoop), c.forwards(forwardLoop)}; !slices.Equal(loops, []int{1, 0, 0}) {
		t.Errorf("got loops %d, want one at the first installation", loops)
	}
	via := strings.Repeat("1.1 service-x, ", maxForwards-1)
	wantStatus(t, "a chain that is too long", b.send("GET", "/v2/token", "", "Via", via), 503)
}

// protocolServer serves a handler over HTTPS with a version of HTTP.
func protocolServer(t *testing.T, handler http.Handler, protocol string) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = protocol == "HTTP/2.0"
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// TestForwardStream publishes a stream whose first events must arrive before its last are sent.
func TestForwardStream(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			from, to := newMove(t)
			server := protocolServer(t, from.api, protocol)
			body, send := io.Pipe()
			const lines = 500
			go func() {
				line := append([]byte(strings.ReplaceAll(eventBody, "\n", " ")), '\n')
				send.Write(line)
				for t.Context().Err() == nil && !strings.Contains(to.send("GET", "/v2/events", "").body, "content_updated") {
				}
				for range lines - 1 {
					if _, err := send.Write(line); err != nil {
						break
					}
				}
				send.Close()
			}()
			resp, text := from.post(server.Client(), server.URL, mediaNDJSON, body)
			var done struct{ Data streamRecord }
			if err := json.Unmarshal([]byte(text), &done); err != nil || resp.StatusCode != 201 || resp.Proto != protocol ||
				done.Data.Added != lines {
				t.Errorf("got %s %d %s, %v", resp.Proto, resp.StatusCode, text, err)
			}
		})
	}
}

// TestForwardEarlyResponse sends bodies that the target rejects before it has read them.
func TestForwardEarlyResponse(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			forwardEarlyResponse(t, protocol)
		})
	}
}

func forwardEarlyResponse(t *testing.T, protocol string) {
	t.Helper()
	from, _ := newMove(t)
	server := protocolServer(t, from.api, protocol)
	post := func(media string, body io.Reader) (int, string) {
		t.Helper()
		resp, text := from.post(server.Client(), server.URL, media, body)
		if resp.Proto != protocol {
			t.Errorf("got %s", resp.Proto)
		}
		return resp.StatusCode, text
	}
	if status, text := post(mediaJSON, strings.NewReader(strings.Repeat(" ", webhook.MaxBodyBytes+1))); status != 413 {
		t.Errorf("too long: got %d %s", status, text)
	}
	if status, text := post("text/plain", strings.NewReader(strings.Repeat("x", 200<<10))); status != 415 {
		t.Errorf("wrong type: got %d %s", status, text)
	}
	// A stream whose first line is invalid, and which then pauses without an end.
	body, send := io.Pipe()
	defer send.Close()
	go send.Write([]byte("{}\n"))
	if status, text := post(mediaNDJSON, body); status != 400 || !strings.Contains(text, "Line 1 of the stream") {
		t.Errorf("stream: got %d %s", status, text)
	}
	// The client's next request works, whatever happened to the connection.
	if status, text := post(mediaJSON, strings.NewReader(eventBody)); status != 201 {
		t.Errorf("after it: got %d %s", status, text)
	}
}

// TestForwardClientStops sends a part of a body and then nothing: the old installation ends the
// request, as the new one would.
func TestForwardClientStops(t *testing.T) {
	for _, media := range []string{mediaJSON, mediaNDJSON} {
		synctest.Test(t, func(t *testing.T) {
			sooner := func(c *Config) { c.RequestTimeout = DefaultRequestTimeout / 2 } // than the target
			from, to := (&installation{service: start(t, sooner)}).withProgram(), &installation{service: start(t)}
			from.copyProgram(to)
			from.forwardOverPipes(&http.Server{Handler: to.api})
			client := pipeClient(t, from.api)
			body, send := io.Pipe()
			defer send.Close()
			go send.Write([]byte(eventBody[:20]))
			resp, text := from.post(client, "http://service", media, body)
			if resp.StatusCode != 408 || from.forwards(forwardCancelled) != 1 {
				t.Errorf("%s: got %d %s", media, resp.StatusCode, text)
			}
			if got := to.send("GET", "/v2/events", ""); got.status != 200 || strings.Contains(got.body, `"id"`) {
				t.Errorf("%s: the target has stored %s", media, got.body)
			}
		})
	}
}

// TestForwardClientError has a target that responds to half a request: the client gets the error of
// its own request.
func TestForwardClientError(t *testing.T) {
	failed := readError(os.ErrDeadlineExceeded)
	f := &forwardedRequest{err: failed}
	if err := f.accept(&http.Response{StatusCode: 400, Header: http.Header{"X-Request-Id": {"x"}}}); err != failed {
		t.Errorf("got %v, want %v", err, failed)
	}
}

// freezingBody is a request body that freezes movedProgram before it is read.
type freezingBody struct {
	io.Reader
	freeze func()
}

func (b *freezingBody) Read(p []byte) (int, error) {
	if b.freeze != nil {
		b.freeze()
		b.freeze = nil
	}
	return b.Reader.Read(p)
}

// TestFrozenDuringRequest freezes a program after a request has been authenticated: no response
// says that a record does not exist, or shows a part of the records.
func TestFrozenDuringRequest(t *testing.T) {
	in := newInstallation(t).withProgram()
	in.service.token = in.moved
	sub := in.service.subscribe("content_updated")
	id := webhook.NewID()
	freeze := func() {
		if err := in.store.Write(t.Context(), func(w store.Write) error {
			return w.Moves().Begin(movedProgram, id, &store.MoveTarget{URL: "https://target.example", Token: to0})
		}); err != nil {
			t.Error(err)
		}
	}
	thaw := func() {
		must(t, in.store.Write(t.Context(), func(w store.Write) error { return w.Moves().Abort(movedProgram, id) }))
	}
	for _, test := range [][3]string{
		{"PUT", "/v2/webhooks/subscriptions/" + sub, `{"description":"new"}`},
		{"POST", "/v2/webhooks/subscriptions/" + sub + "/replays", `{"only":"all","from":"2020-01-01T00:00:00Z"}`},
		{"POST", "/v2/webhooks/subscriptions", `{"url":"https://partner.example/2","events":[{"name":"content_updated"}]}`},
		{"POST", "/v2/events", eventBody},
		{"POST", "/v2/bulk_runs", `{"action":"redeliver"}`},
	} {
		body := &freezingBody{Reader: strings.NewReader(test[2]), freeze: freeze}
		got := in.service.serve(in.request(test[0], test[1], body))
		if body.freeze != nil {
			t.Fatalf("%s %s: got %d %s before the body was read", test[0], test[1], got.status, got.body)
		}
		wantBody(t, test[0]+" "+test[1], got, 503, "is being moved")
		thaw()
	}
	wantStatus(t, "after the move ended", in.service.send("PUT", "/v2/webhooks/subscriptions/"+sub, `{"description":"new"}`), 200)

	freeze()
	read := &request{api: in.api, http: httptest.NewRequest("GET", "/v2/events", nil), programID: movedProgram}
	write := &request{api: in.api, http: httptest.NewRequest("POST", "/v2/events", nil), programID: movedProgram}
	for _, test := range []struct {
		req  *request
		err  error
		want webhook.Code
	}{
		{read, nil, webhook.CodeUnavailable}, {read, webhook.NotFound("event"), webhook.CodeUnavailable},
		{write, nil, ""}, {write, webhook.NotFound("event"), webhook.CodeUnavailable},
		{write, webhook.NewError(webhook.CodeRateLimited, ""), webhook.CodeRateLimited},
	} {
		got, _ := in.api.overtaken(test.req, test.err).(*webhook.Error)
		if got == nil && test.want != "" || got != nil && got.Code != test.want {
			t.Errorf("%s after %v: got %v", test.req.http.Method, test.err, got)
		}
	}
}
