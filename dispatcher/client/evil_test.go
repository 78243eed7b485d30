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
	"testing/synctest"
	"time"

	"service/webhook"
)

// evilReceiver is a server that does not do what a subscriber's should, and what an
// attempt to it must come to.
type evilReceiver struct {
	name  string
	serve func(*peer)

	status    int
	code      webhook.ErrorCode
	takes     time.Duration // exactly
	body      string        // kept, when it is told
	truncated bool
}

// evil are receivers that answer in every way but the right one, each beside
// what an attempt must make of it. They are played over a net.Pipe in a bubble
// of fake time, where an attempt has 10 s to the nanosecond, and where a
// goroutine or connection that an attempt leaves behind fails the test.
var evil = []evilReceiver{
	// Silence.
	{name: "never reads", serve: (*peer).hang, code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "reads and is silent", serve: answer(""), code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "silent within the status line", serve: answer("HTTP/1.1 200"), code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "silent within the header", serve: answer("HTTP/1.1 200 OK\r\nA: b\r\n"), code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "silent before the body", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), status: 200, takes: attemptTime, truncated: true},
	{name: "silent within the body", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), status: 200, takes: attemptTime, body: "abc", truncated: true},
	{name: "silent instead of an end", serve: answer("HTTP/1.1 500 No\r\n\r\nabc"), status: 500, takes: attemptTime, body: "abc", truncated: true},
	{name: "silent within a chunk", serve: answer("HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"), status: 404, takes: attemptTime, body: "abc", truncated: true},

	// Slowness.
	{name: "a status line that trickles", serve: trickle("", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "a header that trickles", serve: trickle("HTTP/1.1 200 OK\r\n", strings.Repeat("A: b\r\n", 100)), code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "a body that trickles", serve: trickle("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 100)), status: 200, takes: attemptTime, body: "xxxxxxxxx", truncated: true},
	{name: "a body that trickles after a 500", serve: trickle("HTTP/1.1 500 No\r\n\r\n", strings.Repeat("x", 100)), status: 500, takes: attemptTime, body: "xxxxxxxxx", truncated: true},
	{name: "chunks that trickle", serve: trickle("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\nx\r\n", 100)), status: 200, takes: attemptTime, truncated: true},
	{name: "a slow answer that ends in time", serve: trickle("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "abcde"), status: 200, takes: 5500 * time.Millisecond, body: "abcde"},

	// No end.
	{name: "endless headers", serve: endless("HTTP/1.1 200 OK\r\n", "A: b\r\n"), code: webhook.ErrorProtocol},
	{name: "an endless header", serve: endless("HTTP/1.1 200 OK\r\nA: ", "b"), code: webhook.ErrorProtocol},
	{name: "more header lines than anybody needs", serve: answer("HTTP/1.1 200 OK\r\n" + lines(maxResponseLines) + "Content-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "as many as are allowed", serve: answer("HTTP/1.1 200 OK\r\n" + lines(maxResponseLines-3) + "Content-Length: 0\r\n\r\n"), status: 200},
	{name: "many header lines, and silence", serve: answer("HTTP/1.1 200 OK\r\n" + lines(maxResponseLines-3)), code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "a long header, and silence", serve: answer("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", maxResponseHeader-100)), code: webhook.ErrorTimeout, takes: attemptTime},
	{name: "a body of many lines", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n" + strings.Repeat("\n", 4000)), status: 200, body: strings.Repeat("\n", 4000)},
	{name: "103 with many lines, and 200 with as many", serve: answer("HTTP/1.1 103 Early Hints\r\n" + lines(maxResponseLines/2) + "\r\nHTTP/1.1 200 OK\r\n" + lines(maxResponseLines/2) + "Content-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "103 with a blank too many, and 200 with many lines", serve: answer("HTTP/1.1  103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n" + lines(maxResponseLines) + "Content-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "header lines beyond the bound, each in two pieces", serve: func(r *peer) {
		if !r.read() || !r.write("HTTP/1.1 200 OK\r\n"+lines(maxResponseLines-1)) {
			return
		}
		for n := 0; n < 100 && r.write("x:") && r.write("\n"); n++ {
		}
		r.hang()
	}, code: webhook.ErrorProtocol},
	{name: "an endless reason", serve: endless("HTTP/1.1 200 ", "OK "), code: webhook.ErrorProtocol},
	{name: "endless blank lines", serve: endless("", "\r\n"), code: webhook.ErrorProtocol},
	{name: "an endless body", serve: endless("HTTP/1.1 200 OK\r\n\r\n", "x"), status: 200, body: kept, truncated: true},
	{name: "an endless body after a 404", serve: endless("HTTP/1.1 404 No\r\n\r\n", "x"), status: 404, body: kept, truncated: true},
	{name: "a body of an exabyte", serve: endless("HTTP/1.1 200 OK\r\nContent-Length: 1152921504606846976\r\n\r\n", "x"), status: 200, body: kept, truncated: true},
	{name: "endless chunks", serve: endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"), status: 200, body: kept, truncated: true},
	{name: "an endless chunk extension", serve: endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=", "b"), status: 200, truncated: true},
	{name: "endless trailers", serve: endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n1\r\nx\r\n0\r\n", "A: b\r\n"), status: 200, body: "x", truncated: true},
	{name: "a gzip bomb", serve: answer("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: " + fmt.Sprint(len(bomb)) + "\r\n\r\n" + bomb), status: 200, body: bomb},

	// 1xx without an end.
	{name: "endless 103s", serve: endless("", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "endless 100s", serve: endless("", "HTTP/1.1 100 Continue\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "a 103 with endless headers", serve: endless("HTTP/1.1 103 Early Hints\r\n", "A: b\r\n"), code: webhook.ErrorProtocol},
	{name: "102, and silence", serve: answer("HTTP/1.1 102 Processing\r\n\r\n"), code: webhook.ErrorProtocol, takes: attemptTime},
	{name: "100, and the end", serve: answerAndClose("HTTP/1.1 100 Continue\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "101, and silence", serve: answer("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "101, and no end", serve: endless("HTTP/1.1 101 Switching Protocols\r\n\r\n", "x"), code: webhook.ErrorProtocol},
	{name: "101, and 200", serve: answer("HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "103, and 200", serve: answer("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), status: 200},
	{name: "100, and 500", serve: answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"), status: 500},

	// An early end.
	{name: "closes at once", serve: func(*peer) {}, code: webhook.ErrorConnect},
	{name: "closes without an answer", serve: answerAndClose(""), code: webhook.ErrorConnect},
	{name: "closes within the status line", serve: answerAndClose("HTTP/1.1 200"), code: webhook.ErrorConnect},
	{name: "closes within the header", serve: answerAndClose("HTTP/1.1 200 OK\r\nA: b\r\n"), code: webhook.ErrorConnect},
	{name: "closes within the body", serve: answerAndClose("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"), status: 200, body: "abc", truncated: true},
	{name: "closes within the body of a 503", serve: answerAndClose("HTTP/1.1 503 No\r\nContent-Length: 5\r\n\r\nabc"), status: 503, body: "abc", truncated: true},
	{name: "closes within a chunk", serve: answerAndClose("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"), status: 200, body: "abc", truncated: true},
	{name: "closes at the end", serve: answerAndClose("HTTP/1.1 200 OK\r\n\r\nabc"), status: 200, body: "abc"},

	// Not HTTP.
	{name: "SSH, which speaks first", serve: speakFirst("SSH-2.0-OpenSSH_9.9\r\n"), code: webhook.ErrorProtocol},
	{name: "SMTP, which speaks first", serve: speakFirst("220 mail ESMTP\r\n"), code: webhook.ErrorProtocol},
	{name: "HTTP/0.9", serve: answer("<html>hello</html>\r\n"), code: webhook.ErrorProtocol},
	{name: "HTTP/2", serve: answer("\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80\x00\x04\x00\x01\x00\x00\x00\x05\x00\xff\xff\xff\r\n"), code: webhook.ErrorProtocol},
	{name: "TLS", serve: answer("\x15\x03\x01\x00\x02\x02\x46\r\n"), code: webhook.ErrorProtocol},
	{name: "noise", serve: answer("\x00\xff\x00\xff\n\n\n"), code: webhook.ErrorProtocol},

	// Nearly HTTP.
	{name: "status 999", serve: answer("HTTP/1.1 999 Denied\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), status: 999},
	{name: "status 600", serve: answerAndClose("HTTP/1.1 600 What\r\n\r\nbody"), status: 600, body: "body"},
	{name: "status 099", serve: answer("HTTP/1.1 099 What\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status 000", serve: answer("HTTP/1.1 000 What\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status 20", serve: answer("HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status 2000", serve: answer("HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status -20", serve: answer("HTTP/1.1 -20 OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "status two", serve: answer("HTTP/1.1 two OK\r\nContent-Length: 0\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "no status", serve: answer("HTTP/1.1\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "no reason", serve: answer("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), status: 200},
	{name: "bare newlines", serve: answer("HTTP/1.1 200 OK\nContent-Length: 2\n\nok"), status: 200, body: "ok"},
	{name: "HTTP/1.0", serve: answerAndClose("HTTP/1.0 200 OK\r\n\r\nok"), status: 200, body: "ok"},
	{name: "two lengths", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"), code: webhook.ErrorProtocol},
	{name: "the same length twice", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok"), status: 200, body: "ok"},
	{name: "a negative length", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok"), code: webhook.ErrorProtocol},
	{name: "an unknown transfer encoding", serve: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: cipher\r\n\r\nok"), code: webhook.ErrorProtocol},
	{name: "a bad chunk", serve: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n"), status: 200, body: "ok", truncated: true},
	{name: "a header without a colon", serve: answer("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "a header without a name", serve: answer("HTTP/1.1 200 OK\r\n: v\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "a header with a NUL", serve: answer("HTTP/1.1 200 OK\r\nA: a\x00b\r\n\r\n"), code: webhook.ErrorProtocol},
	{name: "a body where none may be", serve: answerAndClose("HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n"), status: 204},

	// Elsewhere.
	{name: "a redirect to itself", serve: answer("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"), status: 302},
	{name: "a redirect inside", serve: answer("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"), status: 307},
	{name: "proxy authentication", serve: answer("HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"), status: 407},
}

const attemptTime = 10 * time.Second

// kept is what is kept of an endless body of x.
var kept = strings.Repeat("x", webhook.MaxKeptBody)

// lines is so many short header lines, each with a name of its own.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%x:\r\n", i)
	}
	return b.String()
}

// bomb is 10 MB of zeros in 10 kB.
var bomb = func() string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(make([]byte, 10<<20))
	w.Close()
	return b.String()
}()

func TestEvilReceivers(t *testing.T) {
	for _, tt := range evil {
		// The body of a request fits into one write, or does not.
		for _, size := range []int{300, 200_000} {
			t.Run(fmt.Sprintf("%s, %d bytes", tt.name, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { tt.check(t, size) })
			})
		}
	}
}

// check makes an attempt with a body of size bytes.
func (tt *evilReceiver) check(t *testing.T, size int) {
	p := newPost(t, tt.serve)
	started := time.Now()
	a := p.Send(t.Context(), testRequest("http://1.1.1.1/hook", size))
	if a.ResponseStatus != tt.status || a.Error != tt.code {
		t.Errorf("status %d, error %q; want %d, %q", a.ResponseStatus, a.Error, tt.status, tt.code)
	}
	if want := webhook.Classify(tt.status, tt.code); a.Result != want {
		t.Errorf("result %s, want %s", a.Result, want)
	}
	if took := time.Since(started); took != tt.takes || a.Duration != took {
		t.Errorf("took %v (duration %v), want %v", took, a.Duration, tt.takes)
	}
	if tt.body != "" && string(a.ResponseBody) != tt.body || len(a.ResponseBody) > webhook.MaxKeptBody {
		t.Errorf("kept %d bytes of the body (%.20q), want %d (%.20q)", len(a.ResponseBody), a.ResponseBody, len(tt.body), tt.body)
	}
	if a.ResponseTruncated != tt.truncated {
		t.Errorf("truncated %v, want %v", a.ResponseTruncated, tt.truncated)
	}
	if len(a.ResponseHeader) > maxResponseHeader {
		t.Errorf("kept %d bytes of the header, want at most %d", len(a.ResponseHeader), maxResponseHeader)
	}
	time.Sleep(settle)
	if dialled, open := p.dialled.Load(), p.open.Load(); dialled != 1 || open > 1 || open == 1 && (tt.code != "" || tt.truncated) {
		t.Errorf("%d connections made, %d left open", dialled, open)
	}
}

// peer plays the part of a subscriber's server on one connection.
type peer struct {
	net.Conn
	in *bufio.Reader
}

// read reads one request with its body, and says whether there was one.
func (r *peer) read() bool {
	req, err := http.ReadRequest(r.in)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// write says whether the other side has taken the text.
func (r *peer) write(text string) bool {
	_, err := io.WriteString(r, text)
	return err == nil
}

// hang waits until the other side closes the connection, without reading.
func (r *peer) hang() {
	for {
		// The one way to learn of it on a pipe without taking anything.
		if _, err := r.Write(nil); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// answer reads a request, answers it with the text, and is silent.
func answer(text string) func(*peer) {
	return func(r *peer) {
		for r.read() && r.write(text) {
		}
	}
}

func answerAndClose(text string) func(*peer) {
	return func(r *peer) {
		if r.read() {
			r.write(text)
		}
	}
}

// trickle answers with start, and then a byte of the rest every 1.1 s.
func trickle(start, rest string) func(*peer) {
	return func(r *peer) {
		if !r.read() || !r.write(start) {
			return
		}
		for i := range rest {
			time.Sleep(1100 * time.Millisecond)
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

// speakFirst does not wait for a request to say what it says. A socket has
// room for both to speak at once, a pipe has not.
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
