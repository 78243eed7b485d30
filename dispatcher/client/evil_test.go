package client

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// evilReceiver is a misbehaving server and the expected result of an attempt to it.
type evilReceiver struct {
	name  string
	serve func(*peer)

	status    int
	code      webhook.ErrorCode
	duration  time.Duration // exact
	body      string        // stored body; "" is not checked
	truncated bool
}

// evilReceivers respond in every way but the right one. They run on a net.Pipe in a
// bubble of fake time, where an attempt has exactly 10 s, and where a leaked
// goroutine or connection fails the test.
var evilReceivers = []evilReceiver{
	// Silent.
	{name: "never reads", serve: (*peer).hang, code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "reads, then silent", serve: respond(""), code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "silent within the status line", serve: respond("HTTP/1.1 200"), code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "silent within the header", serve: respond("HTTP/1.1 200 OK\r\nA: b\r\n"), code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "silent before the body", serve: respond("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), status: 200, duration: testTimeout,
		truncated: true},
	{name: "silent within the body", serve: respond("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), status: 200, duration: testTimeout,
		body: "abc", truncated: true},
	{name: "silent after the body", serve: respond("HTTP/1.1 500 No\r\n\r\nabc"), status: 500, duration: testTimeout, body: "abc",
		truncated: true},
	{name: "silent within a chunk", serve: respond("HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"), status: 404,
		duration: testTimeout, body: "abc", truncated: true},

	// Slow.
	{name: "trickling status line", serve: trickle("", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorTimeout,
		duration: testTimeout},
	{name: "trickling headers", serve: trickle("HTTP/1.1 200 OK\r\n", strings.Repeat("A: b\r\n", 100)), code: webhook.ErrorTimeout,
		duration: testTimeout},
	{name: "trickling body", serve: trickle("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 100)), status: 200, duration: testTimeout,
		body: "xxxxxxxxx", truncated: true},
	{name: "trickling body after a 500", serve: trickle("HTTP/1.1 500 No\r\n\r\n", strings.Repeat("x", 100)), status: 500,
		duration: testTimeout, body: "xxxxxxxxx", truncated: true},
	{name: "trickling chunks", serve: trickle("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\nx\r\n", 100)),
		status: 200, duration: testTimeout, truncated: true},
	{name: "slow response within the timeout", serve: trickle("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "abcde"), status: 200,
		duration: 5500 * time.Millisecond, body: "abcde"},

	// Endless.
	{name: "endless headers", serve: endless("HTTP/1.1 200 OK\r\n", "A: b\r\n"), code: webhook.ErrorProtocol},
	{name: "endless header line", serve: endless("HTTP/1.1 200 OK\r\nA: ", "b"), code: webhook.ErrorProtocol},
	{name: "too many header lines", serve: respond("HTTP/1.1 200 OK\r\n" + lines(2*maxResponseLines) + "Content-Length: 2\r\n\r\nok"),
		status: 200, body: "ok"},
	{name: "too many header lines, then silent", serve: respond("HTTP/1.1 200 OK\r\n" + lines(2*maxResponseLines)),
		code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "too long header, then silent", serve: respond("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 2*maxResponseHeader)),
		code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "too long header, then closes", serve: respondAndClose("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 2*maxResponseHeader)),
		code: webhook.ErrorConnect},
	{name: "too long header, then body without end", serve: endless("HTTP/1.1 500 No\r\nA: "+strings.Repeat("b", 2*maxResponseHeader)+
		"\r\n\r\n", "x"), status: 500, body: longestBody, truncated: true},
	{name: "too long reason phrase", serve: respond("HTTP/1.1 200 " + strings.Repeat("OK ", maxResponseHeader) +
		"\r\nContent-Length: 2\r\n\r\nok"), status: 200, body: "ok"},
	{name: "two lengths beyond the limit", serve: respond("HTTP/1.1 200 OK\r\n" + lines(2*maxResponseLines) +
		"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok"), code: webhook.ErrorProtocol},
	{name: "as many header lines as are allowed",
		serve: respond("HTTP/1.1 200 OK\r\n" + lines(maxResponseLines-3) + "Content-Length: 0\r\n\r\n"), status: 200},
	{name: "many header lines, then silent", serve: respond("HTTP/1.1 200 OK\r\n" + lines(maxResponseLines-3)), code: webhook.ErrorTimeout,
		duration: testTimeout},
	{name: "long header, then silent", serve: respond("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", maxResponseHeader-100)),
		code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "body of many lines", serve: respond("HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n" + strings.Repeat("\n", 4000)),
		status: 200, body: strings.Repeat("\n", 4000)},
	{name: "103 with many lines, then 200 with as many",
		serve: respond("HTTP/1.1 103 Early Hints\r\n" + lines(maxResponseLines/2) + "\r\nHTTP/1.1 200 OK\r\n" + lines(maxResponseLines/2) +
			"Content-Length: 2\r\n\r\nok"), status: 200, body: "ok"},
	{name: "103 with an extra space, then 200 with many lines",
		serve: respond("HTTP/1.1  103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n" + lines(maxResponseLines) +
			"Content-Length: 0\r\n\r\n"), status: 200},
	{name: "too many header lines, each in two writes", serve: func(r *peer) {
		if !r.read() || !r.write("HTTP/1.1 200 OK\r\n"+lines(maxResponseLines-1)) {
			return
		}
		for n := 0; n < 100 && r.write("x:") && r.write("\n"); n++ {
		}
		r.hang()
	}, code: webhook.ErrorTimeout, duration: testTimeout},
	{name: "endless reason phrase", serve: endless("HTTP/1.1 200 ", "OK "), code: webhook.ErrorProtocol},
	{name: "endless blank lines", serve: endless("", "\r\n"), code: webhook.ErrorProtocol},
	{name: "endless body", serve: endless("HTTP/1.1 200 OK\r\n\r\n", "x"), status: 200, body: longestBody, truncated: true},
	{name: "endless body after a 404", serve: endless("HTTP/1.1 404 No\r\n\r\n", "x"), status: 404, body: longestBody, truncated: true},
	{name: "body of an exabyte", serve: endless("HTTP/1.1 200 OK\r\nContent-Length: 1152921504606846976\r\n\r\n", "x"), status: 200,
		body: longestBody, truncated: true},
	{name: "endless chunks", serve: endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"), status: 200,
		body: longestBody, truncated: true},
	{name: "endless chunk extension", serve: endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=", "b"), status: 200,
		truncated: true},
	{name: "endless trailers", serve: endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n1\r\nx\r\n0\r\n",
		"A: b\r\n"), status: 200, body: "x", truncated: true},
	{name: "gzip bomb", serve: respond("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: " + fmt.Sprint(len(gzipBomb)) +
		"\r\n\r\n" + gzipBomb), status: 200, body: gzipBomb},

	// 1xx responses.
	{name: "endless 103s", serve: endless("", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "endless 100s", serve: endless("", "HTTP/1.1 100 Continue\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "as many 103s as are read, then 200", serve: respond(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", maxInterim) +
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), status: 200},
	{name: "one 103 too many, then 200", serve: respond(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", maxInterim+1) +
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "103 with endless headers", serve: endless("HTTP/1.1 103 Early Hints\r\n", "A: b\r\n"), code: webhook.ErrorProtocol},
	{name: "102, then silent", serve: respond("HTTP/1.1 102 Processing\r\n\r\n"), code: webhook.ErrorProtocol, duration: testTimeout},
	{name: "100, then close", serve: respondAndClose("HTTP/1.1 100 Continue\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "101, then silent", serve: respond("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"),
		code: webhook.ErrorProtocol},
	{name: "101, then endless data", serve: endless("HTTP/1.1 101 Switching Protocols\r\n\r\n", "x"), code: webhook.ErrorProtocol},
	{name: "101, then 200", serve: respond("HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
		code: webhook.ErrorProtocol},
	{name: "103, then 200", serve: respond("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
		status: 200},
	{name: "100, then 500", serve: respond("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"), status: 500},

	// Closed early.
	{name: "closes immediately", serve: func(*peer) {}, code: webhook.ErrorConnect},
	{name: "closes without a response", serve: respondAndClose(""), code: webhook.ErrorConnect},
	{name: "closes within the status line", serve: respondAndClose("HTTP/1.1 200"), code: webhook.ErrorConnect},
	{name: "closes within the header", serve: respondAndClose("HTTP/1.1 200 OK\r\nA: b\r\n"), code: webhook.ErrorConnect},
	{name: "closes within the body", serve: respondAndClose("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), status: 200, body: "abc",
		truncated: true},
	{name: "closes within the body of a 503", serve: respondAndClose("HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nabc"), status: 503,
		body: "abc", truncated: true},
	{name: "closes within a chunk", serve: respondAndClose("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"), status: 200,
		body: "abc", truncated: true},
	{name: "closes at the end", serve: respondAndClose("HTTP/1.1 200 OK\r\n\r\nabc"), status: 200, body: "abc"},

	// Not HTTP.
	{name: "SSH, which speaks first", serve: speakFirst("SSH-2.0-OpenSSH_9.9\r\n"), code: webhook.ErrorProtocol},
	{name: "SMTP, which speaks first", serve: speakFirst("220 mail ESMTP\r\n"), code: webhook.ErrorProtocol},
	{name: "HTTP/0.9", serve: respond("<html>hello</html>\r\n"), code: webhook.ErrorProtocol},
	{name: "HTTP/2", serve: respond("\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80\x00\x04" +
		"\x00\x01\x00\x00\x00\x05\x00\xff\xff\xff\r\n"), code: webhook.ErrorProtocol},
	{name: "TLS", serve: respond("\x15\x03\x01\x00\x02\x02\x46\r\n"), code: webhook.ErrorProtocol},
	{name: "noise", serve: respond("\x00\xff\x00\xff\n\n\n"), code: webhook.ErrorProtocol},

	// Nearly HTTP.
	{name: "status 999", serve: respond("HTTP/1.1 999 Denied\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), status: 999},
	{name: "status 600", serve: respondAndClose("HTTP/1.1 600 What\r\n\r\nbody"), status: 600, body: "body"},
	{name: "status 099", serve: respond("HTTP/1.1 099 What\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status 000", serve: respond("HTTP/1.1 000 What\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status 20", serve: respond("HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status 2000", serve: respond("HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status -20", serve: respond("HTTP/1.1 -20 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status two", serve: respond("HTTP/1.1 two OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "no status", serve: respond("HTTP/1.1\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "no reason", serve: respond("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), status: 200},
	{name: "bare newlines", serve: respond("HTTP/1.1 200 OK\nContent-Length: 2\n\nok"), status: 200, body: "ok"},
	{name: "HTTP/1.0", serve: respondAndClose("HTTP/1.0 200 OK\r\n\r\nok"), status: 200, body: "ok"},
	{name: "two lengths", serve: respond("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"), code: webhook.ErrorProtocol},
	{name: "the same length twice", serve: respond("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok"), status: 200,
		body: "ok"},
	{name: "negative length", serve: respond("HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok"), code: webhook.ErrorProtocol},
	{name: "unknown transfer encoding", serve: respond("HTTP/1.1 200 OK\r\nTransfer-Encoding: cipher\r\n\r\nok"), code: webhook.ErrorProtocol},
	{name: "invalid chunk", serve: respond("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n"), status: 200,
		body: "ok", truncated: true},
	{name: "header without a colon", serve: respond("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "header without a name", serve: respond("HTTP/1.1 200 OK\r\n: v\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "header with a NUL", serve: respond("HTTP/1.1 200 OK\r\nA: a\x00b\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "length with a 204", serve: respondAndClose("HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n"), status: 204},

	// Redirects.
	{name: "redirect to itself", serve: respond("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"), status: 302},
	{name: "redirect to a private address",
		serve: respond("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"), status: 307},
	{name: "proxy authentication", serve: respond("HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"), status: 407},
}

const testTimeout = 10 * time.Second

// longestBody is the stored part of an endless body of x.
var longestBody = strings.Repeat("x", webhook.MaxStoredBody)

// lines returns n short header lines with different names.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%x:\r\n", i)
	}
	return b.String()
}

// gzipBomb is 10 MB of zeros in 10 kB.
var gzipBomb = func() string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(make([]byte, 10<<20))
	w.Close()
	return b.String()
}()

func TestEvilReceivers(t *testing.T) {
	for _, tt := range evilReceivers {
		// A request that fits into one write, and one that does not.
		for _, size := range []int{300, 200_000} {
			runInBubble(t, fmt.Sprintf("%s, %d bytes", tt.name, size), func(t *testing.T) { tt.check(t, size) })
		}
	}
}

// check makes an attempt with a body of size bytes.
func (tt *evilReceiver) check(t *testing.T, size int) {
	p := newTestClient(t, tt.serve)
	started := time.Now()
	a := p.Send(t.Context(), testRequest("http://1.1.1.1/hook", size))
	if a.ResponseStatus != tt.status || a.Error != tt.code {
		t.Errorf("got status %d, error %q; want %d, %q", a.ResponseStatus, a.Error, tt.status, tt.code)
	}
	if want := webhook.Classify(tt.status, tt.code); a.Result != want {
		t.Errorf("got result %s, want %s", a.Result, want)
	}
	if took := time.Since(started); took != tt.duration || a.Duration != took {
		t.Errorf("the attempt took %v (recorded %v), want %v", took, a.Duration, tt.duration)
	}
	if tt.body != "" && string(a.ResponseBody) != tt.body || len(a.ResponseBody) > webhook.MaxStoredBody {
		t.Errorf("got %d bytes of the body (%.20q), want %d (%.20q)", len(a.ResponseBody), a.ResponseBody, len(tt.body), tt.body)
	}
	if a.ResponseTruncated != tt.truncated {
		t.Errorf("got truncated %t, want %t", a.ResponseTruncated, tt.truncated)
	}
	if len(a.ResponseHeader) > maxResponseHeader {
		t.Errorf("got %d bytes of headers, want at most %d", len(a.ResponseHeader), maxResponseHeader)
	}
	time.Sleep(settle)
	if dialed, open := p.dialed.Load(), p.open.Load(); dialed != 1 || open > 1 || open == 1 && (tt.code != "" || tt.truncated) {
		t.Errorf("got %d connections made and %d left open, want 1 and at most 1", dialed, open)
	}
}

// peer plays a receiver on one connection.
type peer struct {
	net.Conn
	in *bufio.Reader
}

// read reads one request with its body, and reports whether there was one.
func (r *peer) read() bool {
	req, err := http.ReadRequest(r.in)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// write reports whether the other side has read the text.
func (r *peer) write(text string) bool {
	_, err := io.WriteString(r, text)
	return err == nil
}

// hang waits until the other side closes the connection, without reading.
func (r *peer) hang() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		// Only an empty write notices that on a pipe without reading.
		if _, err := r.Write(nil); err != nil {
			return
		}
		<-tick.C
	}
}

// respond answers each request with text, and is silent in between.
func respond(text string) func(*peer) {
	return func(r *peer) {
		for r.read() && r.write(text) {
		}
	}
}

func respondAndClose(text string) func(*peer) {
	return func(r *peer) {
		if r.read() {
			r.write(text)
		}
	}
}

// trickle answers with start and then one byte of rest every 1.1 s.
func trickle(start, rest string) func(*peer) {
	return func(r *peer) {
		if !r.read() || !r.write(start) {
			return
		}
		tick := time.NewTicker(1100 * time.Millisecond)
		defer tick.Stop()
		for i := range rest {
			<-tick.C
			if !r.write(rest[i : i+1]) {
				return
			}
		}
		io.Copy(io.Discard, r)
	}
}

func endless(start, again string) func(*peer) {
	block := strings.Repeat(again, 1+4096/len(again))
	return func(r *peer) {
		if r.read() && r.write(start) {
			for r.write(block) {
			}
		}
	}
}

// speakFirst sends text without waiting for a request. It also reads, since a pipe,
// unlike a socket, has no buffer.
func speakFirst(text string) func(*peer) {
	return func(r *peer) {
		said := make(chan struct{})
		go func() {
			defer close(said)
			r.write(text)
		}()
		io.Copy(io.Discard, r.in)
		<-said
	}
}
