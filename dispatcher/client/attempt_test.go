package client

import (
	"bufio"
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

	"service/webhook"
)

// post is a client in a bubble of fake time, whose every connection is a
// net.Pipe with a receiver at the other end.
type post struct {
	*Client
	dialled, open atomic.Int32
}

// settle is time enough for every peer to see that its connection has ended,
// and less than an unused one is kept.
const settle = 2 * time.Second

// newPost must be called in a bubble. At the end of the test every connection
// must have an end.
func newPost(t *testing.T, serve func(*peer)) *post {
	p := &post{Client: New(&Config{AllowHTTP: true, Timeout: attemptTime, MaxIdle: 8})}
	p.dialer.connect = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		here, there := net.Pipe()
		p.dialled.Add(1)
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
			t.Errorf("%d connections are open after close", n)
		}
	})
	return p
}

func testRequest(url string, size int) *Request {
	return &Request{
		DeliveryID: "d-1", SubscriptionID: "s-1", ProgramID: "p-1", To: NewTarget(url), Number: 1,
		Secrets: []webhook.SigningSecret{webhook.SigningSecret(strings.Repeat("k", 32))},
		Body:    []byte(strings.Repeat("x", size)),
	}
}

// readText returns a request as it is on the wire, with a body of so many bytes.
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

// TestSendRequest compares a request on the wire, byte for byte.
func TestSendRequest(t *testing.T) {
	for _, tt := range []struct {
		name, url, authorization string
		host, line               string
	}{
		{"plain", "http://1.1.1.1", "", "1.1.1.1", "/"},
		{"port, path and query", "http://1.1.1.1:8080/a%2Fb/?q=%20&x", "", "1.1.1.1:8080", "/a%2Fb/?q=%20&x"},
		{"IPv6", "http://[2606:4700:4700::1111]/", "", "[2606:4700:4700::1111]", "/"},
		{"authorization", "http://1.1.1.1/", "Bearer a  b;c=\"d\" ü", "1.1.1.1", "/"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := make(chan string, 1)
				p := newPost(t, func(r *peer) {
					text := r.readText(5)
					r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					got <- text
				})
				q := testRequest(tt.url, 5)
				q.Authorization = tt.authorization
				if a := p.Send(t.Context(), q); a.Result != webhook.ResultSuccess {
					t.Fatalf("attempt: %+v", a)
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
				if diff := cmp.Diff(want, strings.Split(head, "\r\n")); diff != "" {
					t.Errorf("head (-want +got):\n%s", diff)
				}
				if body != "xxxxx" {
					t.Errorf("body %q, want xxxxx", body)
				}
			})
		})
	}
}

// TestSendVerifies: a receiver with the reference library of Standard Webhooks
// accepts what is sent, with the old and with the new secret of a rotation.
func TestSendVerifies(t *testing.T) {
	secrets := []webhook.SigningSecret{webhook.NewSigningSecret(), webhook.NewSigningSecret()}
	body := []byte(`{"delivery_id":"d-1","text":"ü \u2028"}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != string(body) {
			t.Errorf("body %q, %v", got, err)
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
		t.Errorf("attempt: %+v", a)
	}
}

// loopbackClient returns a client with real connections to 127.0.0.1 and ::1.
func loopbackClient(t testing.TB) *Client {
	d, err := webhook.ParseDestinations([]string{"127.0.0.0/8", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	s := New(&Config{AllowHTTP: true, Timeout: attemptTime, MaxIdle: 8, Destinations: d})
	t.Cleanup(s.CloseIdle)
	return s
}

// TestSendEveryStatus: what an attempt makes of each status, and what follows.
func TestSendEveryStatus(t *testing.T) {
	policy := webhook.DefaultRetryPolicy()
	synctest.Test(t, func(t *testing.T) {
		for status := 100; status <= 599; status++ {
			p := newPost(t, answerAndClose(fmt.Sprintf("HTTP/1.1 %d What\r\nContent-Length: 0\r\n\r\n", status)))
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
				t.Errorf("%d: status %d, error %q, result %s; want %d, %q, %s", status,
					a.ResponseStatus, a.Error, a.Result, want.ResponseStatus, want.Error, want.Result)
			}
			for number := 1; number <= webhook.MaxAttempts; number++ {
				a.Number = number
				retried := !policy.After(&a, time.Now(), 0).NextAttemptAt.IsZero()
				if want := want.Result == webhook.ResultRetryable && number < webhook.MaxAttempts; retried != want {
					t.Errorf("%d, attempt %d: retried %v, want %v", status, number, retried, want)
				}
			}
			if n := p.dialled.Load(); n != 1 {
				t.Errorf("%d: %d connections, want 1", status, n)
			}
		}
	})
}

// TestSendAnswer: what is kept of an answer.
func TestSendAnswer(t *testing.T) {
	full := strings.Repeat("y", webhook.MaxKeptBody)
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
			name:   "as much body as is kept",
			answer: "HTTP/1.1 200 OK\r\nContent-Length: 16384\r\n\r\n" + full,
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 16384\n", ResponseBody: []byte(full)},
			reused: true,
		},
		{
			name:   "one byte more",
			answer: "HTTP/1.1 200 OK\r\nContent-Length: 16385\r\n\r\n" + full + "z",
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 16385\n", ResponseBody: []byte(full), ResponseTruncated: true},
			reused: true,
		},
		{
			name:   "as much body as is drained",
			answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n13fff\r\n" + strings.Repeat("y", 0x13fff) + "\r\n0\r\n\r\n",
			want:   webhook.Attempt{ResponseBody: []byte(full), ResponseTruncated: true},
			reused: true,
		},
		{
			name:   "more body than is drained",
			answer: "HTTP/1.1 200 OK\r\nContent-Length: 81921\r\n\r\n" + strings.Repeat("y", 81921),
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 81921\n", ResponseBody: []byte(full), ResponseTruncated: true},
		},
		{
			name:   "the server wants no more",
			answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
			want:   webhook.Attempt{ResponseHeader: "Content-Length: 2\n", ResponseBody: []byte("ok")},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, answer(tt.answer))
				a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
				if a.Result != webhook.ResultSuccess || a.Number != 1 || a.StartedAt.IsZero() {
					t.Fatalf("attempt: %+v", a)
				}
				if tt.want.ResponseHeader == "" {
					a.ResponseHeader = ""
				}
				got := webhook.Attempt{ResponseHeader: a.ResponseHeader, ResponseBody: a.ResponseBody, ResponseTruncated: a.ResponseTruncated}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
				if reused := p.dialled.Load() == 1; reused != tt.reused {
					t.Errorf("connection reused: %v, want %v", reused, tt.reused)
				}
			})
		})
	}
}

// TestSendHeaderBound: an answer's header is taken up to the bound.
func TestSendHeaderBound(t *testing.T) {
	for size, want := range map[int]webhook.ErrorCode{
		maxResponseHeader - 100: webhook.ErrorNone,
		maxResponseHeader + 100: webhook.ErrorProtocol,
	} {
		synctest.Test(t, func(t *testing.T) {
			// Latin-1, which grows when it is made UTF-8.
			p := newPost(t, answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nA: "+strings.Repeat("\xe9x", size/2)+"\r\n\r\n"))
			a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
			if a.Error != want {
				t.Errorf("a header of %d bytes: error %q, want %q", size, a.Error, want)
			}
			if n := len(a.ResponseHeader); n > maxResponseHeader || want == "" && n < maxResponseHeader-3 {
				t.Errorf("a header of %d bytes: kept %d", size, n)
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
			p := newPost(t, answer(fmt.Sprintf("HTTP/1.1 %d What\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n", status)))
			if got := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10)).RetryAfter; got != want {
				t.Errorf("%d with Retry-After: 60: %v, want %v", status, got, want)
			}
		})
	}
}

// TestSendInterrupted: the end of the service is told from the end of time.
func TestSendInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serve  func(*peer)
		status int
		code   webhook.ErrorCode
	}{
		{"while nothing is read", (*peer).hang, 0, webhook.ErrorInterrupted},
		{"before the answer", answer(""), 0, webhook.ErrorInterrupted},
		{"within the header", answer("HTTP/1.1 200 OK\r\n"), 0, webhook.ErrorInterrupted},
		{"within the body", answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), 200, webhook.ErrorNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, tt.serve)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(3*time.Second, cancel)
				a := p.Send(ctx, testRequest("http://1.1.1.1/", 10))
				if a.Error != tt.code || a.ResponseStatus != tt.status || a.Duration != 3*time.Second {
					t.Errorf("error %q, status %d after %v; want %q, %d after 3s", a.Error, a.ResponseStatus, a.Duration, tt.code, tt.status)
				}
				if a := p.Send(ctx, testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorInterrupted || a.Result != webhook.ResultRetryable {
					t.Errorf("after the end: %+v, want interrupted", a)
				}
				if n := p.dialled.Load(); n != 1 {
					t.Errorf("%d connections, want 1", n)
				}
			})
		})
	}
}

// TestSendEarlyAnswer: a receiver that answers before it has read the request,
// and hangs up, has answered; every time.
func TestSendEarlyAnswer(t *testing.T) {
	for _, status := range []int{200, 401, 413, 503} {
		text := fmt.Sprintf("HTTP/1.1 %d Early\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno", status)
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t, func(r *peer) {
					r.in.ReadString('\n')
					r.write(text)
				})
				q := testRequest("http://1.1.1.1/", 200_000)
				a := p.Send(t.Context(), q)
				if a.ResponseStatus != status || string(a.ResponseBody) != "no" {
					t.Errorf("status %d, error %q, body %q; want %d", a.ResponseStatus, a.Error, a.ResponseBody, status)
				}
			})
		}
	}
}

// TestSendLateReader: a receiver that goes on reading a request that it has
// answered does not keep the connection.
func TestSendLateReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, func(r *peer) {
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
			t.Errorf("attempt: %+v", a)
		}
		time.Sleep(settle)
		if n := p.open.Load(); n != 0 {
			t.Errorf("%d connections are open, want the half-written one closed", n)
		}
	})
}

// staleConn is a connection that the receiver has closed while it was unused:
// of the next request, it takes the first bytes or nothing.
type staleConn struct {
	net.Conn
	takes  int
	writes int
	closed chan struct{}
	once   sync.Once
}

func (c *staleConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 1 {
		return c.Conn.Write(p)
	}
	defer c.Close()
	return min(c.takes, len(p)), errors.New("broken pipe")
}

func (c *staleConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestSendStaleConnection: a request of which nothing left is sent on another
// connection, unseen; one of which a byte left is not sent twice.
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
		t.Run(fmt.Sprintf("%d bytes taken", tt.takes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen atomic.Int32
				p := newPost(t, func(r *peer) {
					for r.read() && r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") {
						seen.Add(1)
					}
				})
				connect := p.dialer.connect
				p.dialer.connect = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
					c, err := connect(ctx, a)
					if p.dialled.Load() == 1 {
						c = &staleConn{Conn: c, takes: tt.takes, closed: make(chan struct{})}
					}
					return c, err
				}
				if a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != "" {
					t.Fatalf("first: %+v", a)
				}
				a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
				synctest.Wait()
				if a.Error != tt.code || seen.Load() != tt.seen {
					t.Errorf("second: error %q, %d requests seen; want %q, %d", a.Error, seen.Load(), tt.code, tt.seen)
				}
			})
		})
	}
}

// TestSendConnections: connections serve many attempts, but are not kept long.
func TestSendConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, answer("HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"))
		q := testRequest("http://1.1.1.1/", 10)
		for range 10 {
			p.Send(t.Context(), q)
			time.Sleep(idleTimeout - 1)
		}
		if n := p.dialled.Load(); n != 1 {
			t.Errorf("%d connections for 10 attempts, want 1", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := p.open.Load(); n != 0 {
			t.Errorf("%d connections are open after %v, want 0", n, idleTimeout)
		}
		// No more are kept than there may be attempts.
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() { p.Send(t.Context(), testRequest(fmt.Sprintf("http://1.1.1.%d/", i), 10)) })
		}
		all.Wait()
		synctest.Wait()
		if n := p.open.Load(); n != 8 {
			t.Errorf("%d idle connections are kept, want 8", n)
		}
	})
}

// TestSendOverTCP repeats with real sockets what a pipe cannot show: resets.
func TestSendOverTCP(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serve  func(*peer)
		status int
		code   webhook.ErrorCode
	}{
		{"reset at once", func(r *peer) { reset(r) }, 0, webhook.ErrorConnect},
		{"reset before the answer", func(r *peer) { r.read(); reset(r) }, 0, webhook.ErrorConnect},
		{"reset within the header", func(r *peer) { r.read(); r.write("HTTP/1.1 200 OK\r\nA: "); reset(r) }, 0, webhook.ErrorConnect},
		{"an early answer", func(r *peer) {
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
				t.Errorf("status %d, error %q; want %d, %q", a.ResponseStatus, a.Error, tt.status, tt.code)
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
			<-seen // or the reset could overtake what was written
			reset(r)
		})
		s := loopbackClient(t)
		time.AfterFunc(50*time.Millisecond, func() { close(seen) })
		if a := s.Send(t.Context(), testRequest(url, 10)); a.ResponseStatus != 200 || a.Result != webhook.ResultSuccess || !a.ResponseTruncated {
			t.Errorf("attempt: status %d, error %q, truncated %v; want 200", a.ResponseStatus, a.Error, a.ResponseTruncated)
		}
		s.CloseIdle()
		<-ended
	})

	t.Run("refused", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if a := loopbackClient(t).Send(t.Context(), testRequest("http://"+l.Addr().String(), 10)); a.Error != webhook.ErrorConnect || a.Result != webhook.ResultRetryable {
			t.Errorf("attempt: %+v, want connect", a)
		}
	})
}

func reset(r *peer) { r.Conn.(*net.TCPConn).SetLinger(0) }

// serveTCP plays a receiver for the first connection to a real socket. The
// channel is closed when that connection has ended.
func serveTCP(t testing.TB, serve func(*peer)) (url string, ended <-chan struct{}) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
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

// TestSendIgnoresProxies: the environment does not decide who sees deliveries.
func TestSendIgnoresProxies(t *testing.T) {
	url, ended := serveTCP(t, answerAndClose("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, url)
	}
	s := loopbackClient(t)
	s.dialer.connect = func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, errors.New("no route") }
	if a := s.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorConnect {
		t.Errorf("attempt: %+v, want connect", a)
	}
	s.dialer.connect = s.dialer.connectTCP
	s.Send(t.Context(), testRequest(url, 10)) // lets the receiver end
	<-ended
}

// BenchmarkSend makes attempts over loopback to a receiver that does as little
// as can be; BenchmarkBare is the same with net/http's client and no more.
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

// sink is a receiver for benchmarks. It does not parse what it is sent beyond
// its length, so that what is measured is the client.
func sink(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
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

// skipRequest reads a request and drops it.
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

// Without AllowHTTP nothing is sent in the clear, not even to a subscription
// that was made while it was allowed.
func TestPlainHTTPIsBlocked(t *testing.T) {
	s := New(&Config{Timeout: attemptTime, MaxIdle: 1})
	defer s.CloseIdle()
	s.dialer.connect = func(context.Context, netip.AddrPort) (net.Conn, error) {
		t.Error("a connection was made")
		return nil, net.ErrClosed
	}
	if a := s.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorBlocked || a.Result != webhook.ResultFailed {
		t.Errorf("got %s %q, want failed, blocked", a.Result, a.Error)
	}
}

// TestSendMayNotSend forbids sending before an attempt, and in the middle of a
// request. The attempt is interrupted at once.
func TestSendMayNotSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var forbidden atomic.Bool
		var read atomic.Int64
		p := newPost(t, func(r *peer) {
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
		if a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 10)); a.Error != webhook.ErrorInterrupted || p.dialled.Load() != 0 {
			t.Errorf("an attempt that may not be sent: %+v, %d connections", a, p.dialled.Load())
		}
		forbidden.Store(false)
		const allowed = 2 // parts of the request
		asked := 0
		p.maySend = func() bool { asked++; return asked <= 1+allowed }
		a := p.Send(t.Context(), testRequest("http://1.1.1.1/", 512<<10))
		time.Sleep(time.Millisecond)
		if a.Error != webhook.ErrorInterrupted || a.Result != webhook.ResultRetryable {
			t.Errorf("a request that may not be sent to its end: %+v", a)
		}
		if n := read.Load(); n == 0 || n > bufferSize+maxWrite {
			t.Errorf("%d bytes were sent, want some and at most %d", n, bufferSize+maxWrite)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %s, want no wait for the end of the attempt's time", took)
		}
	})
}
