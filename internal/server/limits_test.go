package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// startService runs a service until the test ends. It returns the service, its public
// address and a token with every scope.
func startService(t *testing.T, s *Config) (svc *Server, address, token string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	svc, err := Open(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	_, token, err = storetest.CreateToken(ctx, svc.store, webhook.NewToken{ProgramID: "acme", UserID: "ada", Scopes: webhook.Scopes()})
	if err != nil {
		t.Fatal(err)
	}
	return svc, svc.public.Addr().String(), token
}

// plainService runs a service without TLS until the test ends. It returns its address and a token.
// change modifies its configuration and may be nil.
func plainService(t *testing.T, change func(*Config)) (address, token string) {
	t.Helper()
	cfg := testConfig(t)
	cfg.TLS = false
	if change != nil {
		change(cfg)
	}
	_, address, token = startService(t, cfg)
	return address, token
}

// dial connects to an address until the test ends.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// exchange sends raw bytes and returns the response.
func exchange(t *testing.T, address, raw string) (*http.Response, string) {
	t.Helper()
	return exchangeOver(t, dial(t, address), raw)
}

// exchangeOver is exchange over an open connection, which it keeps open until the test ends.
func exchangeOver(t *testing.T, c net.Conn, raw string) (*http.Response, string) {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, strings.ReplaceAll(raw, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// limitedRequest is a raw request that exceeds a limit of the server.
type limitedRequest struct {
	name, raw string
	status    int
	closes    bool // the server closes the connection
}

func (l *limitedRequest) check(t *testing.T, resp *http.Response, body string) {
	t.Helper()
	var envelope struct {
		Error struct {
			Code          int
			Title, Detail string
		}
	}
	err := json.Unmarshal([]byte(body), &envelope)
	if resp.StatusCode != l.status || err != nil || envelope.Error.Code != l.status ||
		envelope.Error.Title == "" || envelope.Error.Detail == "" {
		t.Errorf("%s: got %s %s, want %d in the envelope", l.name, resp.Status, body, l.status)
	}
	if resp.Close != l.closes {
		t.Errorf("%s: got Connection: close %t, want %t", l.name, resp.Close, l.closes)
	}
}

// rawHead returns the header of a request with a token, without the empty line at its end.
func rawHead(token, method, path string, more ...string) string {
	return method + " " + path + " HTTP/1.1\nHost: h\nAuthorization: Bearer " + token + "\n" + strings.Join(more, "\n") + "\n"
}

// TestRequestTimeouts stalls requests for longer than the server permits.
func TestRequestTimeouts(t *testing.T) {
	const sub = `{"url":"https://partner.example/","events":[{"name":"content_updated"}]}`
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t)
		cfg.Dir, cfg.TLS = dir, false
		s, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		listener, stop := servePipes(t, cfg.RequestTimeout, func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr = "127.0.0.1:1" // loopback may send a token without TLS
			s.handler.ServeHTTP(w, r)
		})
		_, token, err := storetest.CreateToken(t.Context(), s.store, webhook.NewToken{ProgramID: "acme", UserID: "ada", Scopes: webhook.Scopes()})
		if err != nil {
			t.Fatal(err)
		}
		const media = "Content-Type: application/json"
		subscriptions := "/v2/webhooks/subscriptions"
		length := fmt.Sprint("Content-Length: ", len(sub))
		resp, body := exchangeOver(t, listener.dial(), rawHead(token, "POST", subscriptions, media, length, "")+sub)
		var created struct{ Data struct{ ID string } }
		if err := json.Unmarshal([]byte(body), &created); err != nil || resp.StatusCode != 201 {
			t.Fatalf("subscribe: got %s %s (%v)", resp.Status, body, err)
		}
		for _, test := range []limitedRequest{
			{"an incomplete body", rawHead(token, "POST", "/v2/events", media, "Content-Length: 100", "") + `{"name":`, 408, true},
			{"a stalled stream", rawHead(token, "POST", "/v2/events", "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked", "") +
				"1\n{\n", 408, true},
			{"work that takes too long", rawHead(token, "POST", subscriptions+"/"+created.Data.ID+"/ping", "Content-Length: 0", ""), 504, false},
		} {
			begun := time.Now()
			resp, body := exchangeOver(t, listener.dial(), test.raw)
			test.check(t, resp, body)
			if took := time.Since(begun); took < cfg.RequestTimeout || took > cfg.RequestTimeout+2*time.Second {
				t.Errorf("%s: got a response after %s, want it after %s", test.name, took, cfg.RequestTimeout)
			}
		}
		stop()
	})
}

// TestServerLimits exceeds every other limit of the server with raw requests.
func TestServerLimits(t *testing.T) {
	address, token := plainService(t, func(cfg *Config) { cfg.RateLimit = 20 })
	head := func(method, path string, more ...string) string { return rawHead(token, method, path, more...) }
	for _, test := range []limitedRequest{
		{"a Content-Length that is too large",
			head("POST", "/v2/events", "Content-Type: application/json", "Content-Length: 6000000", ""), 413, true},
		{"a path that is too long", head("GET", "/v2/events?x="+strings.Repeat("a", 9<<10), ""), 414, false},
		{"a header that is too large", head("GET", "/v2/events", "X: "+strings.Repeat("a", 17<<10), ""), 431, false},
		{"a header just below maxHeaderBytes", head("GET", "/v2/events", "X: "+strings.Repeat("a", 60<<10), ""), 431, false},
		{"CONNECT", head("CONNECT", "h:443", ""), 404, false},
		{"an unknown path", head("GET", "/v2/nothing", ""), 404, false},
	} {
		resp, body := exchange(t, address, test.raw)
		test.check(t, resp, body)
	}

	// Above maxHeaderBytes, net/http responds and closes the connection.
	resp, _ := exchange(t, address, head("GET", "/v2/events", "X: "+strings.Repeat("a", maxHeaderBytes+8<<10), ""))
	if resp.StatusCode != 431 || !resp.Close {
		t.Errorf("a header above maxHeaderBytes: got %s, close %t; want 431, true", resp.Status, resp.Close)
	}

	for i := range 30 {
		resp, _ = exchange(t, address, head("GET", "/v2/event_types/ping", ""))
		if resp.StatusCode == 429 {
			if i < 10 || resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit-Policy") != `"program";q=20;w=60` {
				t.Errorf("request %d: got 429 with %v", i, resp.Header)
			}
			return
		}
	}
	t.Error("got no 429 with a rate limit of 20")
}

// TestResponsesOfNetHTTP checks the errors that net/http itself responds with. The API
// reference lists them.
func TestResponsesOfNetHTTP(t *testing.T) {
	address, token := plainService(t, nil)
	head := func(method, path string, more ...string) string { return rawHead(token, method, path, more...) }
	for _, test := range []struct {
		raw    string
		status int
	}{
		{head("GET", "/v2/events/%zz", ""), 400},
		{"GET /v2/events HTTP/1.1\n\n", 400},
		{head("GET", "/v2/events", "A name: x", ""), 400},
		{head("GET", "/v2/events", "Expect: x", ""), 417},
		{head("GET", "/v2/events", "Transfer-Encoding: gzip", ""), 501},
		{"GET /v2/events HTTP/3.0\nHost: h\n\n", 505},
	} {
		resp, body := exchange(t, address, test.raw)
		if resp.StatusCode != test.status || !resp.Close || strings.Contains(body, "{") {
			t.Errorf("%q: got %s %s, close %t, want %d without the envelope", test.raw, resp.Status, body, resp.Close, test.status)
		}
	}
}

// TestLimitsOverHTTP2 checks the HTTP/2 settings, and that errors have the envelope.
func TestLimitsOverHTTP2(t *testing.T) {
	_, address, token := startService(t, testConfig(t))
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	c, err := tls.Dial("tcp", address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Send the preface and an empty SETTINGS frame, and read the server's SETTINGS frame.
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 9)
	if _, err := io.ReadFull(c, frame); err != nil || frame[3] != 4 {
		t.Fatalf("got frame %x (%v), want SETTINGS", frame, err)
	}
	entries := make([]byte, int(frame[1])<<8|int(frame[2]))
	if _, err := io.ReadFull(c, entries); err != nil {
		t.Fatal(err)
	}
	got := make(map[uint16]uint32)
	for ; len(entries) >= 6; entries = entries[6:] {
		got[binary.BigEndian.Uint16(entries)] = binary.BigEndian.Uint32(entries[2:])
	}
	for id, want := range map[uint16]uint32{3: 100, 4: 256 << 10, 5: 64 << 10} { // RFC 9113, section 6.5.2
		if got[id] != want {
			t.Errorf("setting %d: got %d, want %d", id, got[id], want)
		}
	}
	if n := got[6]; n < maxHeaderBytes || n > maxHeaderBytes+4096 {
		t.Errorf("got the maximum header size %d, want about %d", n, maxHeaderBytes)
	}

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	for _, test := range []struct {
		path, header string
		want         int
	}{
		{"/v2/event_types/ping", "a", 200},
		{"/v2/event_types/ping", strings.Repeat("a", 20<<10), 431},
		{"/v2/" + strings.Repeat("a", 10<<10), "a", 414},
	} {
		r, err := http.NewRequest("GET", "https://"+address+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("X", test.header)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != test.want ||
			test.want > 400 && !strings.HasPrefix(string(body), `{"error":{"code":`) {
			t.Errorf("%.40s: got %s %s %s (%v), want %d", test.path, resp.Proto, resp.Status, body, err, test.want)
		}
	}
}

// TestRequestSmuggling checks that a request with two lengths cannot hide a second request in
// its body, whichever length a proxy uses.
func TestRequestSmuggling(t *testing.T) {
	address, token := plainService(t, nil)
	const hidden = "GET /healthz HTTP/1.1\nHost: h\n\n"
	head := "POST /v2/events HTTP/1.1\nHost: h\nContent-Type: application/json\nAuthorization: Bearer " + token + "\n"
	for _, headers := range []string{
		"Content-Length: 100\nTransfer-Encoding: chunked\n", "Transfer-Encoding: chunked\nContent-Length: 100\n",
		"Content-Length: 6\nContent-Length: 7\n", "Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n",
		"Transfer-Encoding: chunked, identity\nContent-Length: 5\n",
		"Transfer-Encoding : chunked\nContent-Length: 5\n", "Content-Length: +5\n", "Content-Length: 5, 5\n",
	} {
		c := dial(t, address)
		c.SetDeadline(time.Now().Add(harness.Timeout())) // in case the server does not close it
		if _, err := io.WriteString(c, strings.ReplaceAll(head+headers+"\n0\n\n"+hidden, "\n", "\r\n")); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if n := bytes.Count(got, []byte("HTTP/1.1 ")); err != nil || n != 1 || bytes.Contains(got, []byte("alive")) {
			t.Fatalf("%q: got %s (%v), want one response and a closed connection", headers, got, err)
		}
	}
}

// TestEarlyResponse checks that a client that reads the response only after sending the whole body
// receives the response.
func TestEarlyResponse(t *testing.T) {
	// A busy machine may take longer than the default for 20 MB.
	address, token := plainService(t, func(cfg *Config) { cfg.RequestTimeout = time.Hour })
	post := func(media, length string) string {
		text := "POST /v2/events HTTP/1.1\nHost: h\nAuthorization: Bearer " + token + "\nContent-Type: " + media + "\n" + length + "\n\n"
		return strings.ReplaceAll(text, "\n", "\r\n")
	}
	chunk := "10000\r\n" + strings.Repeat("x", 1<<16) + "\r\n"
	for _, test := range []struct {
		name, raw string
		status    int
	}{
		{"6 MB", post("application/json", "Content-Length: 6000000") + strings.Repeat("x", 6000000), 413},
		{"6 MB in chunks", post("application/json", "Transfer-Encoding: chunked") + strings.Repeat(chunk, 92) + "0\r\n\r\n", 413},
		{"a line of 20 MB", post("application/x-ndjson", "Content-Length: 20000000") + strings.Repeat("x", 20000000), 400},
		{"a line of 20 MB in chunks",
			post("application/x-ndjson", "Transfer-Encoding: chunked") + strings.Repeat(chunk, 306) + "0\r\n\r\n", 400},
		{"another media type", post("text/plain", "Content-Length: 6000000") + strings.Repeat("x", 6000000), 415},
	} {
		c := dial(t, address)
		if _, err := io.WriteString(c, test.raw); err != nil {
			t.Errorf("%s: the server closed the connection: %v", test.name, err)
		} else if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Errorf("%s: %v", test.name, err)
		} else if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != test.status ||
			!bytes.HasPrefix(body, []byte(`{"error":`)) || !resp.Close {
			t.Errorf("%s: got %s %s (%v), want %d and a closed connection", test.name, resp.Status, body, err, test.status)
		}
		c.Close()
	}

	// The server does not wait for the body of a client that expects 100 Continue.
	expecting := strings.ReplaceAll(post("application/json", "Expect: 100-continue\nContent-Length: 6000000"), "\r", "")
	resp, _ := exchange(t, address, expecting)
	if resp.StatusCode != 413 {
		t.Errorf("after Expect: got %s, want 413", resp.Status)
	}
}

// beginHTTP2Post opens a connection and sends the header of a POST of JSON as stream 1.
func beginHTTP2Post(t *testing.T, address, token string) *http2.Framer {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	var header bytes.Buffer
	encoder := hpack.NewEncoder(&header)
	for _, f := range [][2]string{
		{":method", "POST"}, {":path", "/v2/events"}, {":scheme", "https"}, {":authority", "h"},
		{"authorization", "Bearer " + token}, {"content-type", "application/json"},
	} {
		encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	framer := http2.NewFramer(c, c)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	headers := http2.HeadersFrameParam{StreamID: 1, BlockFragment: header.Bytes(), EndHeaders: true}
	if err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(headers)); err != nil {
		t.Fatal(err)
	}
	return framer
}

// TestEarlyResponseOverHTTP2 checks that the stream is not reset while the body arrives. A
// reset would make clients drop the response.
func TestEarlyResponseOverHTTP2(t *testing.T) {
	cfg := testConfig(t)
	cfg.RequestTimeout = time.Hour
	_, address, token := startService(t, cfg)
	framer := beginHTTP2Post(t, address, token)
	left, status := 6000000, ""
	window := map[uint32]int{0: 65535, 1: 65535} // initial flow-control windows
	for body := ""; ; {
		for left > 0 && window[0] > 0 && window[1] > 0 {
			n := min(left, window[0], window[1], 16<<10)
			if err := framer.WriteData(1, left == n, make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			left, window[0], window[1] = left-n, window[0]-n, window[1]-n
		}
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("%v, with status %q and %d bytes left to send", err, status, left)
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if n, ok := frame.Value(http2.SettingInitialWindowSize); ok {
				window[1] += int(n) - 65535
			}
		case *http2.WindowUpdateFrame:
			window[frame.StreamID] += int(frame.Increment)
		case *http2.MetaHeadersFrame:
			status = frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			t.Fatalf("the stream was reset (%v) with status %q and %d bytes left to send", frame.ErrCode, status, left)
		case *http2.DataFrame:
			if body += string(frame.Data()); frame.StreamEnded() {
				if status != "413" || !strings.HasPrefix(body, `{"error":`) || left > 0 {
					t.Errorf("got %s %s with %d bytes left to send, want 413 in the envelope", status, body, left)
				}
				return
			}
		}
	}
}

// pipeListener is a listener for in-memory connections, which work with fake time.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

func TestSlowClientsAreCutOff(t *testing.T) {
	cutOff(t, "sends nothing", headerTimeout, func(c net.Conn) { c.Read(make([]byte, 1)) })
	cutOff(t, "sends its header slowly", headerTimeout, func(c net.Conn) {
		for _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "); err == nil; _, err = c.Write([]byte("h")) {
			time.Sleep(time.Second)
		}
	})
	cutOff(t, "sends its body slowly", slowRequestTimeout+requestSlack, func(c net.Conn) {
		go io.Copy(io.Discard, c)
		_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n")
		for ; err == nil; _, err = c.Write([]byte("b")) {
			time.Sleep(time.Second)
		}
	})
	cutOff(t, "reads slowly", slowRequestTimeout+requestSlack, func(c net.Conn) {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		for _, err := c.Read(make([]byte, 1)); err == nil; _, err = c.Read(make([]byte, 1)) {
			time.Sleep(time.Second)
		}
	})
	cutOff(t, "is idle", idleTimeout, func(c net.Conn) {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		io.Copy(io.Discard, c)
	})
}

// slowRequestTimeout is the request timeout of the server of cutOff.
const slowRequestTimeout = 30 * time.Second

// cutOff connects a client, which returns when the server closes the connection.
func cutOff(t *testing.T, name string, after time.Duration, client func(net.Conn)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, stop := servePipes(t, slowRequestTimeout, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Write(make([]byte, 100_000))
			})
			c := l.dial()
			begun := time.Now()
			client(c)
			if took := time.Since(begun); took < after || took > after+2*time.Second {
				t.Errorf("got a closed connection after %s, want %s", took, after)
			}
			c.Close()
			stop()
		})
	})
}

// servePipes serves in-memory connections in a bubble until stop is called.
func servePipes(t *testing.T, timeout time.Duration, handler http.HandlerFunc) (l pipeListener, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	l = pipeListener{make(chan net.Conn), make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, newHTTPServer(handler, timeout), l, time.Second) }()
	return l, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestConnectionLimits(t *testing.T) {
	var logged bytes.Buffer
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// The limit of 1 per network does not apply to loopback.
	l := newLimitedListener(inner, 3, 1, nil, slog.New(slog.NewTextHandler(&logged, nil)))
	defer l.Close()
	dial := func() net.Conn { t.Helper(); return dial(t, inner.Addr().String()) }
	accept := func() net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var open []net.Conn
	for range 3 {
		dial()
		open = append(open, accept())
	}
	refused := []net.Conn{dial(), dial()}
	accepted := make(chan net.Conn)
	go func() { accepted <- accept() }()
	for _, c := range refused {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection above the limit was accepted")
		}
	}
	open[0].Close()
	open[0].Close() // a second Close does not count
	dial()
	<-accepted
	if n := strings.Count(logged.String(), "too many open connections"); n != 1 {
		t.Errorf("got %d warnings, want one per minute: %s", n, &logged)
	}
	c := dial()
	go l.Accept() // until l is closed
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, net.ErrClosed) || err == nil {
		t.Errorf("after one was closed, two more were accepted (%v)", err)
	}

	// The limit per network, which loopback is exempt from.
	l = newLimitedListener(nil, 10, 2, nil, nil)
	for _, test := range []struct {
		from string
		want bool
	}{
		{"192.0.2.1", true}, {"192.0.2.1", true}, {"192.0.2.1", false}, {"192.0.2.2", true},
		{"2001:db8::1", true}, {"2001:db8::2", true}, {"2001:db8::3", false}, {"2001:db8:0:1::3", true},
		{"::1", true}, {"::1", true}, {"::1", true}, {"127.0.0.1", true},
	} {
		if got := l.acquire(netip.MustParseAddr(test.from)); got != test.want {
			t.Errorf("%s: got accepted %t, want %t", test.from, got, test.want)
		}
	}
	l.release(netip.MustParseAddr("192.0.2.1"))
	l.release(netip.MustParseAddr("192.0.2.2"))
	if !l.acquire(netip.MustParseAddr("192.0.2.1")) || !l.byNetwork.Take(webhook.Network(netip.MustParseAddr("192.0.2.2")), 1) {
		t.Errorf("closed connections still count")
	}
}
