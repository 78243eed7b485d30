package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/test/harness"
	"service/webhook"
)

// testClient is a client in a bubble of fake time. Its connections are pipes to a
// peer.
type testClient struct {
	*Client
	dialed, open atomic.Int32
}

// settle is long enough for every peer to see that its connection was closed, and
// shorter than idleTimeout.
const settle = 2 * time.Second

// newTestClient must be called in a bubble. When the test ends, all connections
// must be closed.
func newTestClient(t *testing.T, serve func(*peer)) *testClient {
	p := &testClient{Client: New(&Config{AllowHTTP: true, Timeout: testTimeout, MaxIdle: 8})}
	p.dialer.connect = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		here, there := net.Pipe()
		p.dialed.Add(1)
		p.open.Add(1)
		go func() {
			defer p.open.Add(-1)
			defer there.Close()
			serve(&peer{there, bufio.NewReader(there)})
		}()
		return here, nil
	}
	t.Cleanup(func() {
		p.CloseIdle()
		time.Sleep(settle)
		if n := p.open.Load(); n != 0 {
			t.Errorf("got %d open connections after CloseIdle, want 0", n)
		}
	})
	return p
}

// runInBubble runs a subtest in a bubble of fake time.
func runInBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// listen listens at a free port of 127.0.0.1 until the test ends.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// permitted returns destinations that are permitted in addition to the public internet.
func permitted(t testing.TB, entries ...string) webhook.Destinations {
	t.Helper()
	d, err := webhook.ParseDestinations(entries)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func testRequest(url string, size int) *Request {
	return &Request{
		DeliveryID: "d-1", SubscriptionID: "s-1", ProgramID: "p-1", To: NewTarget(url), Number: 1,
		Secrets: []webhook.SigningSecret{webhook.SigningSecret(strings.Repeat("k", 32))},
		Body:    []byte(strings.Repeat("x", size)),
	}
}

// readText returns a request in wire format, with a body of body bytes.
func (r *peer) readText(body int) string {
	var b strings.Builder
	for {
		line, err := r.in.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			break
		}
	}
	io.CopyN(&b, r.in, int64(body))
	return b.String()
}

// TestSendRequest compares the request on the wire, byte for byte.
func TestSendRequest(t *testing.T) {
	for _, tt := range []struct {
		name, url, authorization string
		host, line               string
		headers                  []webhook.Header
	}{
		{"plain", "http://1.1.1.1", "", "1.1.1.1", "/", nil},
		{"port, path and query", "http://1.1.1.1:8080/a%2Fb/?q=%20&x", "", "1.1.1.1:8080", "/a%2Fb/?q=%20&x", nil},
		{"IPv6", "http://[2606:4700:4700::1111]/", "", "[2606:4700:4700::1111]", "/", nil},
		{"authorization", "http://1.1.1.1/", "Bearer a  b;c=\"d\" ü", "1.1.1.1", "/", nil},
		{"headers", "http://1.1.1.1/", "", "1.1.1.1", "/", []webhook.Header{{Name: "x-api-KEY", Value: "k  1: ü"}, {Name: "X-Team", Value: "a"}}},
	} {
		runInBubble(t, tt.name, func(t *testing.T) {
			got := make(chan string, 1)
			p := newTestClient(t, func(r *peer) {
				text := r.readText(5)
				r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				got <- text
			})
			q := testRequest(tt.url, 5)
			q.Authorization, q.Headers = tt.authorization, tt.headers
			if a := p.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
				t.Fatalf("got %+v, want success", a)
			}
			now := time.Now()
			head, body, _ := strings.Cut(<-got, "\r\n\r\n")
			want := []string{
				"POST " + tt.line + " HTTP/1.1",
				"Host: " + tt.host,
				"Content-Length: 5",
				"Content-Type: application/json",
				"X-Service-Delivery: d-1",
				"X-Service-Subscription: s-1",
				"X-Service-Program: p-1",
				"User-Agent: Service-Webhooks/1.0",
			}
			if tt.authorization != "" {
				want = append(want, "Authorization: "+tt.authorization)
			}
			want = append(want,
				"webhook-id: d-1",
				"webhook-timestamp: "+strconv.FormatInt(now.Unix(), 10),
				"webhook-signature: "+q.Secrets[0].Sign("d-1", now, q.Body),
			)
			for _, h := range tt.headers {
				want = append(want, h.Name+": "+h.Value)
			}
			if diff := cmp.Diff(want, strings.Split(head, "\r\n")); diff != "" {
				t.Errorf("head (-want +got):\n%s", diff)
			}
			if body != "xxxxx" {
				t.Errorf("got body %q, want xxxxx", body)
			}
		})
	}
}

// A receiver that uses the reference library of Standard Webhooks accepts the
// request with both the old and the new secret of a rotation.
func TestSendVerifies(t *testing.T) {
	secrets := []webhook.SigningSecret{webhook.NewSigningSecret(), webhook.NewSigningSecret()}
	body := []byte(`{"delivery_id":"d-1","text":"ü \u2028"}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != string(body) {
			t.Errorf("got body %q (%v), want %q", got, err, body)
		}
		for i, secret := range secrets {
			verifier, err := standardwebhooks.NewWebhook(secret.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(got, r.Header); err != nil {
				t.Errorf("secret %d: %v", i, err)
			}
		}
	}))
	defer server.Close()
	s := loopbackClient(t)
	q := testRequest(server.URL, 0)
	q.Secrets, q.Body = secrets, body
	if a := s.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
		t.Errorf("got %+v, want success", a)
	}
}

// loopbackClient returns a client with real connections to 127.0.0.1 and ::1.
func loopbackClient(t testing.TB) *Client {
	s := New(&Config{AllowHTTP: true, Timeout: harness.Timeout(), MaxIdle: 8, Destinations: permitted(t, "127.0.0.0/8", "::1")})
	t.Cleanup(s.CloseIdle)
	return s
}

// TestSendStatuses checks the result of each status, and whether it is retried.
func TestSendStatuses(t *testing.T) {
	policy := webhook.DefaultRetryPolicy()
	synctest.Test(t, func(t *testing.T) {
		for status := 100; status <= 599; status++ {
			p := newTestClient(t, respondAndClose(fmt.Sprintf("HTTP/1.1 %d What\r\nContent-Length: 0\r\n\r\n", status)))
			a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))

			want := webhook.Attempt{ResponseStatus: status, Result: webhook.ResultFailed}
			switch {
			case status < 200:
				want = webhook.Attempt{Error: webhook.ErrorProtocol, Result: webhook.ResultRetryable}
			case status < 300:
				want.Result = webhook.ResultSuccess
			case status >= 500:
				want.Result = webhook.ResultRetryable
			}
			if a.ResponseStatus != want.ResponseStatus || a.Error != want.Error || a.Result != want.Result {
				t.Errorf("%d: got status %d, error %q, result %s; want %d, %q, %s", status,
					a.ResponseStatus, a.Error, a.Result, want.ResponseStatus, want.Error, want.Result)
			}
			for number := 1; number <= webhook.MaxAttempts; number++ {
				a.Number = number
				retried := !policy.After(&a, time.Now(), 0).NextAttemptAt.IsZero()
				if want := want.Result == webhook.ResultRetryable && number < webhook.MaxAttempts; retried != want {
					t.Errorf("%d, attempt %d: got retried %t, want %t", status, number, retried, want)
				}
			}
			if n := p.dialed.Load(); n != 1 {
				t.Errorf("%d: got %d connections, want 1", status, n)
			}
		}
	})
}

// TestSendResponse checks which parts of a response are stored.
func TestSendResponse(t *testing.T) {
	full := strings.Repeat("y", webhook.MaxStoredBody)
	for _, tt := range []struct {
		name, answer string
		want         webhook.Attempt
		reused       bool
	}{
		{
			name:   "headers sorted, repeated, in Latin-1",
			answer: "HTTP/1.1 200 OK\r\nb: 2\r\nA:  1 \r\nB: 3\r\nC: caf\xe9\r\nContent-Length: 2\r\n\r\nok",
			want:   webhook.Attempt{ResponseHeader: "A: 1\nB: 2\nB: 3\nC: caf\uFFFD\nContent-Length: 2\n", ResponseBody: []byte("ok")},
			reused: true,
		},
		{
			name:   "no body",
			answer: "HTTP/1.1 204 No Content\r\n\r\n",
			want:   webhook.Attempt{},
			reused: true,
		},
		{
			name:   "chunks, with a trailer",
			answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n2\r\nok\r\n2\r\nay\r\n0\r\nT: v\r\n\r\n",
			want:   webhook.Attempt{ResponseBody: []byte("okay")},
			reused: true,
		},
		{
			name:   "longest body that is stored",
			answer: "HTTP/1.1 200 OK\r\nContent-Length: 16384\r\n\r\n" + full,
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 16384\n", ResponseBody: []byte(full)},
			reused: true,
		},
		{
			name:   "body one byte longer",
			answer: "HTTP/1.1 200 OK\r\nContent-Length: 16385\r\n\r\n" + full + "z",
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 16385\n", ResponseBody: []byte(full), ResponseTruncated: true},
			reused: true,
		},
		{
			name:   "longest body that is drained",
			answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n13fff\r\n" + strings.Repeat("y", 0x13fff) + "\r\n0\r\n\r\n",
			want:   webhook.Attempt{ResponseBody: []byte(full), ResponseTruncated: true},
			reused: true,
		},
		{
			name:   "body too long to drain",
			answer: "HTTP/1.1 200 OK\r\nContent-Length: 81921\r\n\r\n" + strings.Repeat("y", 81921),
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 81921\n", ResponseBody: []byte(full), ResponseTruncated: true},
		},
		{
			name:   "Connection: close",
			answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 2\n", ResponseBody: []byte("ok")},
		},
	} {
		runInBubble(t, tt.name, func(t *testing.T) {
			p := newTestClient(t, respond(tt.answer))
			a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
			if a.Result != webhook.ResultSuccess || a.Number != 1 || a.StartedAt.IsZero() {
				t.Fatalf("got %+v, want success", a)
			}
			if tt.want.ResponseHeader == "" {
				a.ResponseHeader = ""
			}
			got := webhook.Attempt{ResponseHeader: a.ResponseHeader, ResponseBody: a.ResponseBody, ResponseTruncated: a.ResponseTruncated}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
			if reused := p.dialed.Load() == 1; reused != tt.reused {
				t.Errorf("got connection reused %t, want %t", reused, tt.reused)
			}
		})
	}
}

// TestSendHeaderBound checks the size limit of stored response headers.
func TestSendHeaderBound(t *testing.T) {
	for size, kept := range map[int]bool{
		maxResponseHeader - 100: true,
		maxResponseHeader + 100: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			// Latin-1 text grows when it is converted to UTF-8.
			p := newTestClient(t, respond("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nA: "+strings.Repeat("\xe9x", size/2)+"\r\n\r\n"))
			a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
			if a.Result != webhook.ResultSuccess {
				t.Errorf("headers of %d bytes: got %s %q, want success", size, a.Result, a.Error)
			}
			if n := len(a.ResponseHeader); n > maxResponseHeader || kept && n < maxResponseHeader-3 {
				t.Errorf("headers of %d bytes: got %d bytes stored, want up to %d", size, n, maxResponseHeader)
			}
		})
	}
}

// TestSendLongHeader checks which parts of headers beyond the limits are kept: whole lines,
// and those that the client needs.
func TestSendLongHeader(t *testing.T) {
	cookies := strings.Repeat("Set-Cookie: "+strings.Repeat("a", 480)+"; Path=/\r\n", 70)
	secret := "Bearer " + strings.Repeat("s", 400)
	echo := strings.Repeat("Echo: "+secret+"\r\n", 100)
	for _, tt := range []struct {
		name, answer string
		want         webhook.Attempt
		header       string // one line, repeated
	}{
		{"cookies", "HTTP/1.1 200 OK\r\n" + cookies + "Content-Length: 2\r\n\r\nok",
			webhook.Attempt{Result: webhook.ResultSuccess, ResponseStatus: 200, ResponseBody: []byte("ok")},
			"Set-Cookie: " + strings.Repeat("a", 480) + "; Path=/\n"},
		{"503 with Retry-After", "HTTP/1.1 503 No\r\n" + cookies + "X: y\r\n z\r\nRETRY-AFTER: 7\r\ncontent-length:2\r\n\r\nno",
			webhook.Attempt{Result: webhook.ResultRetryable, ResponseStatus: 503, ResponseBody: []byte("no"), RetryAfter: 7 * time.Second},
			"Set-Cookie: " + strings.Repeat("a", 480) + "; Path=/\n"},
		{"chunks", "HTTP/1.1 422 No\r\n" + cookies + "Transfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
			webhook.Attempt{Result: webhook.ResultFailed, ResponseStatus: 422, ResponseBody: []byte("no")},
			"Set-Cookie: " + strings.Repeat("a", 480) + "; Path=/\n"},
		{"echo of a secret", "HTTP/1.1 200 OK\r\n" + echo + "Content-Length: 2\r\n\r\nok",
			webhook.Attempt{Result: webhook.ResultSuccess, ResponseStatus: 200, ResponseBody: []byte("ok")},
			"Echo: [redacted]\n"},
	} {
		runInBubble(t, tt.name, func(t *testing.T) {
			p := newTestClient(t, respond(tt.answer))
			r := testRequest("http://1.1.1.1/", 10)
			r.Authorization = secret
			a := p.Send(t.Context(), r)
			tt.want.Number, tt.want.StartedAt, tt.want.Phases = 1, a.StartedAt, a.Phases
			kept := ""
			for line := range strings.Lines(a.ResponseHeader) {
				switch name, _, _ := strings.Cut(line, ":"); name {
				case "Content-Length", "Retry-After", "Transfer-Encoding":
				default:
					kept += line
				}
			}
			a.ResponseHeader = ""
			if diff := cmp.Diff(tt.want, a); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if n := strings.Count(kept, tt.header); n < 50 || kept != strings.Repeat(tt.header, n) {
				t.Errorf("got headers %.600q…, want %q repeated", kept, tt.header)
			}
			p.Send(t.Context(), r)
			if n := p.dialed.Load(); n != 2 {
				t.Errorf("got %d connections, want a new one after headers that were cut", n)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"120":                            2 * time.Minute,
		" 120 ":                          2 * time.Minute,
		"86400":                          24 * time.Hour,
		"86401":                          24 * time.Hour,
		"9223372036854775807":            24 * time.Hour,
		"99999999999999999999999":        24 * time.Hour,
		"-1":                             0,
		"1.5":                            0,
		"soon":                           0,
		"Fri, 02 Jan 2026 12:00:30 GMT":  30 * time.Second,
		"Friday, 02-Jan-26 12:01:00 GMT": time.Minute,
		"Fri Jan  2 12:02:00 2026":       2 * time.Minute,
		"Fri, 02 Jan 2026 11:00:00 GMT":  0,
		"Fri, 02 Jan 2099 11:00:00 GMT":  24 * time.Hour,
		"2026-01-02T12:00:30Z":           0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("retryAfter(%q) = %v, want %v", value, got, want)
		}
	}
	for status, want := range map[int]time.Duration{503: time.Minute, 429: time.Minute, 500: 0, 200: 0} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestClient(t, respond(fmt.Sprintf("HTTP/1.1 %d What\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n", status)))
			if got := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10)).RetryAfter; got != want {
				t.Errorf("%d with Retry-After: 60: got %v, want %v", status, got, want)
			}
		})
	}
}

// An attempt that ends with its context is interrupted, not timed out.
func TestSendInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serve  func(*peer)
		status int
		code   webhook.ErrorCode
	}{
		{"before the request is read", (*peer).hang, 0, webhook.ErrorInterrupted},
		{"before the response", respond(""), 0, webhook.ErrorInterrupted},
		{"within the headers", respond("HTTP/1.1 200 OK\r\n"), 0, webhook.ErrorInterrupted},
		{"within the body", respond("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), 200, webhook.ErrorNone},
	} {
		runInBubble(t, tt.name, func(t *testing.T) {
			p := newTestClient(t, tt.serve)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, cancel)
			a := p.Send(ctx, testRequest("http://1.1.1.1/", 10))
			if a.Error != tt.code || a.ResponseStatus != tt.status || a.Duration != 3*time.Second {
				t.Errorf("got error %q, status %d after %v; want %q, %d after 3s", a.Error, a.ResponseStatus, a.Duration, tt.code, tt.status)
			}
			if a := p.Send(ctx, testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorInterrupted || a.Result != webhook.ResultRetryable {
				t.Errorf("got %+v after the context ended, want interrupted", a)
			}
			if n := p.dialed.Load(); n != 1 {
				t.Errorf("got %d connections, want 1", n)
			}
		})
	}
}

// A response that a receiver sends before it has read the request is used, even if
// it then closes the connection.
func TestSendEarlyResponse(t *testing.T) {
	for _, status := range []int{200, 401, 413, 503} {
		text := fmt.Sprintf("HTTP/1.1 %d Early\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno", status)
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				p := newTestClient(t, func(r *peer) {
					r.in.ReadString('\n')
					r.write(text)
				})
				q := testRequest("http://1.1.1.1/", 200_000)
				a := p.Send(t.Context(), q)
				if a.ResponseStatus != status || string(a.ResponseBody) != "no" {
					t.Errorf("got status %d, error %q, body %q; want status %d", a.ResponseStatus, a.Error, a.ResponseBody, status)
				}
			})
		}
	}
}

// A receiver that continues to read slowly after its response does not keep the
// connection.
func TestSendSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestClient(t, func(r *peer) {
			r.in.ReadString('\n')
			r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			for {
				if _, err := r.in.Discard(1000); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
		if a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 200_000)); a.ResponseStatus != 200 {
			t.Errorf("got %+v, want 200", a)
		}
		time.Sleep(settle)
		if n := p.open.Load(); n != 0 {
			t.Errorf("got %d open connections, want 0", n)
		}
	})
}

// staleConn is a connection that the receiver closed while it was idle. It accepts only
// takes bytes of the next request.
type staleConn struct {
	net.Conn
	takes  int
	writes int
}

func (c *staleConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 1 {
		return c.Conn.Write(p)
	}
	defer c.Close()
	return min(c.takes, len(p)), errors.New("broken pipe")
}

// If no byte of a request was sent on a closed connection, it is sent on another.
// If a byte was sent, it is not sent twice.
func TestSendStaleConnection(t *testing.T) {
	for _, tt := range []struct {
		takes int
		code  webhook.ErrorCode
		seen  int32
	}{
		{0, webhook.ErrorNone, 2},
		{1, webhook.ErrorConnect, 1},
		{100, webhook.ErrorConnect, 1},
	} {
		runInBubble(t, fmt.Sprintf("%d bytes taken", tt.takes), func(t *testing.T) {
			var seen atomic.Int32
			p := newTestClient(t, func(r *peer) {
				for r.read() && r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") {
					seen.Add(1)
				}
			})
			connect := p.dialer.connect
			p.dialer.connect = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
				c, err := connect(ctx, a)
				if p.dialed.Load() == 1 {
					c = &staleConn{Conn: c, takes: tt.takes}
				}
				return c, err
			}
			if a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != "" {
				t.Fatalf("first attempt: got %+v, want success", a)
			}
			a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
			synctest.Wait()
			if a.Error != tt.code || seen.Load() != tt.seen {
				t.Errorf("second attempt: got error %q and %d requests, want %q and %d", a.Error, seen.Load(), tt.code, tt.seen)
			}
		})
	}
}

// Connections are reused, and closed after idleTimeout.
func TestSendConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestClient(t, respond("HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"))
		q := testRequest("http://1.1.1.1/", 10)
		for range 10 {
			p.Send(t.Context(), q)
			time.Sleep(idleTimeout - 1)
		}
		if n := p.dialed.Load(); n != 1 {
			t.Errorf("got %d connections for 10 attempts, want 1", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := p.open.Load(); n != 0 {
			t.Errorf("got %d open connections after %v, want 0", n, idleTimeout)
		}
		// At most MaxIdle connections are kept.
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() { p.Send(t.Context(), testRequest(fmt.Sprintf("http://1.1.1.%d/", i), 10)) })
		}
		all.Wait()
		synctest.Wait()
		if n := p.open.Load(); n != 8 {
			t.Errorf("got %d idle connections, want 8", n)
		}
	})
}

// TestSendTCPResets tests resets with real sockets, since a pipe has none.
func TestSendTCPResets(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serve  func(*peer)
		status int
		code   webhook.ErrorCode
	}{
		{"reset immediately", func(r *peer) { reset(r) }, 0, webhook.ErrorConnect},
		{"reset before the response", func(r *peer) { r.read(); reset(r) }, 0, webhook.ErrorConnect},
		{"reset within the headers", func(r *peer) { r.read(); r.write("HTTP/1.1 200 OK\r\nA: "); reset(r) }, 0, webhook.ErrorConnect},
		{"early response", func(r *peer) {
			r.in.ReadString('\n')
			r.write("HTTP/1.1 413 Early\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
			r.Conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, r.in)
		}, 413, webhook.ErrorNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, ended := serveTCP(t, tt.serve)
			s := loopbackClient(t)
			a := s.Send(t.Context(), testRequest(url, 2_000_000))
			if a.ResponseStatus != tt.status || a.Error != tt.code {
				t.Errorf("got status %d, error %q; want %d, %q", a.ResponseStatus, a.Error, tt.status, tt.code)
			}
			s.CloseIdle()
			<-ended
		})
	}

	t.Run("reset within the body", func(t *testing.T) {
		seen := make(chan struct{})
		url, ended := serveTCP(t, func(r *peer) {
			r.read()
			r.write("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 20_000))
			<-seen // or the reset could overtake the data
			reset(r)
		})
		s := loopbackClient(t)
		connect := s.dialer.connect
		s.dialer.connect = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			c, err := connect(ctx, to)
			return &readConn{c, sync.OnceFunc(func() { close(seen) })}, err
		}
		if a := s.Send(t.Context(), testRequest(url, 10)); a.ResponseStatus != 200 || a.Result != webhook.ResultSuccess || !a.ResponseTruncated {
			t.Errorf("got status %d, error %q, truncated %t; want 200, truncated", a.ResponseStatus, a.Error, a.ResponseTruncated)
		}
		s.CloseIdle()
		<-ended
	})
}

// readConn is a connection that calls read after the first read.
type readConn struct {
	net.Conn
	read func()
}

func (c *readConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.read()
	}
	return n, err
}

func reset(r *peer) { r.Conn.(*net.TCPConn).SetLinger(0) }

// serveTCP serves the first connection to a real socket. It closes the channel when
// that connection has ended.
func serveTCP(t testing.TB, serve func(*peer)) (url string, ended <-chan struct{}) {
	l := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		serve(&peer{c, bufio.NewReader(c)})
	}()
	return "http://" + l.Addr().String(), done
}

// The client ignores proxies in the environment.
func TestSendIgnoresProxies(t *testing.T) {
	url, ended := serveTCP(t, respondAndClose("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, url)
	}
	s := loopbackClient(t)
	s.dialer.connect = func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errors.New("no route") }
	if a := s.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorConnect {
		t.Errorf("got %+v, want a connect error", a)
	}
	s.dialer.connect = s.dialer.connectTCP
	s.Send(t.Context(), testRequest(url, 10)) // lets the receiver return
	<-ended
}

// BenchmarkSend makes attempts over loopback to a minimal receiver. BenchmarkBare does the
// same with net/http's client alone.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{512, 64 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			url := sink(b)
			s := loopbackClient(b)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				q := testRequest(url, size)
				rand.Read(q.Body)
				for pb.Next() {
					if a := s.Send(b.Context(), q); a.Result != webhook.ResultSuccess {
						b.Errorf("attempt: %+v", a)
						return
					}
				}
			})
		})
	}
}

func BenchmarkBare(b *testing.B) {
	url := sink(b)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, DisableCompression: true}}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		body := strings.Repeat("x", 512)
		for pb.Next() {
			resp, err := client.Post(url, "application/json", strings.NewReader(body))
			if err != nil {
				b.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
}

// sink is a receiver for benchmarks. It parses only the length of requests, so the
// benchmark measures the client.
func sink(b *testing.B) string {
	l := listen(b)
	ok := []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReaderSize(c, 64<<10)
				for skipRequest(in) == nil {
					if _, err := c.Write(ok); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// skipRequest reads and drops a request.
func skipRequest(in *bufio.Reader) error {
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if v, found := strings.CutPrefix(string(line), "Content-Length: "); found {
			length, _ = strconv.Atoi(strings.TrimSpace(v))
		}
	}
	_, err := in.Discard(length)
	return err
}

// Without AllowHTTP nothing is sent over http://, not even to an existing
// subscription.
func TestPlainHTTPIsBlocked(t *testing.T) {
	s := New(&Config{Timeout: harness.Timeout(), MaxIdle: 1})
	defer s.CloseIdle()
	s.dialer.connect = func(context.Context, netip.AddrPort) (net.Conn, error) {
		t.Error("got a connection, want none")
		return nil, net.ErrClosed
	}
	if a := s.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorBlocked || a.Result != webhook.ResultFailed {
		t.Errorf("got %s, %q; want failed, blocked", a.Result, a.Error)
	}
}

// MaySend returns false before an attempt, and within a request. The attempt is
// interrupted immediately.
func TestMaySend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var forbidden atomic.Bool
		var read atomic.Int64
		p := newTestClient(t, func(r *peer) {
			for {
				n, err := r.in.WriteTo(io.Discard)
				if read.Add(n); err != nil || n == 0 {
					return
				}
			}
		})
		p.maySend = func() bool { return !forbidden.Load() }
		forbidden.Store(true)
		start := time.Now()
		if a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorInterrupted || p.dialed.Load() != 0 {
			t.Errorf("before the attempt: got %+v and %d connections, want interrupted and 0", a, p.dialed.Load())
		}
		forbidden.Store(false)
		const allowed = 2 // parts of the request
		asked := 0
		p.maySend = func() bool { asked++; return asked <= 1+allowed }
		a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 512<<10))
		time.Sleep(time.Millisecond)
		if a.Error != webhook.ErrorInterrupted || a.Result != webhook.ResultRetryable {
			t.Errorf("within the request: got %+v, want interrupted and retryable", a)
		}
		if n := read.Load(); n == 0 || n > bufferSize+maxWrite {
			t.Errorf("got %d bytes sent, want 1 to %d", n, bufferSize+maxWrite)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("the attempts took %s, want no wait for the timeout", took)
		}
	})
}

// FuzzHeaders checks that headers which pass the check of a subscription arrive unchanged, and add
// no other header to the request.
func FuzzHeaders(f *testing.F) {
	f.Add("X-Api-Key", "4f2b8a6c", "X-Team", "ü")
	f.Add("X-A", "a\r\nX-B: c", "Host", "a")
	f.Add("x-a:b", " a", "Content-Length", "9")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		headers := []webhook.Header{{Name: name1, Value: value1}, {Name: name2, Value: value2}}
		if webhook.CheckHeaders(headers) != nil {
			return
		}
		q := testRequest("http://1.1.1.1/", 5)
		received := func() http.Header {
			text := string(q.appendHead(nil, time.Now())) + string(q.Body)
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if body, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(body, q.Body) {
				t.Fatalf("%q: got body %q, %v", text, body, err)
			}
			return r.Header
		}
		want := received()
		q.Headers = headers
		for _, h := range headers {
			want[http.CanonicalHeaderKey(h.Name)] = []string{h.Value}
		}
		if diff := cmp.Diff(want, received()); diff != "" {
			t.Errorf("want -, got +:\n%s", diff)
		}
	})
}
