package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"service/webhook"
)

func (s *service) sendLines(body io.Reader) response {
	s.t.Helper()
	r := s.request("POST", "/v2/events", body)
	r.Header.Set("Content-Type", mediaNDJSON)
	return s.serve(r)
}

// count returns the number of events in the log, at most one page.
func (s *service) count() int {
	s.t.Helper()
	return len(data[[]identified](s.t, s.send("GET", "/v2/events?page[size]=100", "")))
}

// line returns event n of a series.
func line(n int) string {
	return fmt.Sprintf(`{"id":"0198f6a2-7c1e-7d4b-9a41-%012d","name":"content_updated","version":"1","content_id":%d}`, n, n)
}

func TestStream(t *testing.T) {
	all := start(t)
	programs := 0
	long := func(size int) string {
		head, tail := `{"name":"channel_created","version":"1","channel_id":1,"channel_name":"`, `"}`
		return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	}
	conflict := strings.Replace(line(1), `"content_id":1`, `"content_id":2`, 1)
	for _, test := range []struct {
		name, body string
		want       string // in the response
		status     int
		stored     int
	}{
		{"one", line(1), `{"accepted":1,"added":1}`, 201, 1},
		{"two", line(1) + "\n" + line(2) + "\n", `{"accepted":2,"added":2}`, 201, 2},
		{"blank lines", "\n\n  \n" + line(1) + "\n\t\n\n" + line(2) + "\n\n", `{"accepted":2,"added":2}`, 201, 2},
		{"CRLF", line(1) + "\r\n\r\n" + line(2) + "\r\n", `{"accepted":2,"added":2}`, 201, 2},
		{"final line without line feed", line(1) + "\n" + line(2), `{"accepted":2,"added":2}`, 201, 2},
		{"twice the same", line(1) + "\n" + line(1) + "\n", `{"accepted":2,"added":1}`, 201, 1},
		{"nothing", "", `"parameter":"events"`, 400, 0},
		{"only blank lines", "\n \n", `"parameter":"events"`, 400, 0},
		{"first bad", "{}\n" + line(1), "No event was accepted.", 400, 0},
		{"second bad", line(1) + "\n\n" + `{"name":"content_updated","version":"1"}` + "\n" + line(2),
			`The first event was accepted.","validations":[{"code":"required","detail":"is required","parameter":"events[1].content_id"}`, 400, 1},
		{"third no JSON", line(1) + "\n" + line(2) + "\nhello",
			`The first 2 events were accepted.","validations":[{"code":"invalid_format",` +
				`"detail":"is not valid JSON: column 1: unexpected 'h'.","parameter":"events[2]"}`, 400, 2},
		{"the number of a line", line(1) + "\n\n \n{x}\n",
			`"detail":"Line 4 of the stream is invalid. One parameter is not valid. The first event was accepted.",` +
				`"validations":[{"code":"invalid_format","detail":"is not valid JSON: column 2: unexpected 'x'.",` +
				`"parameter":"events[1]"}`, 400, 1},
		{"two on a line", line(1) + line(2), `"parameter":"events[0]"`, 400, 0},
		{"an array", "[" + line(1) + "]", `"code":"invalid_type","detail":"must be an object","parameter":"events[0]"`, 400, 0},
		{"a batch", `{"events":[` + line(1) + `]}`, `"parameter":"events[0].name"`, 400, 0},
		{"a taken id", line(1) + "\n\n" + line(2) + "\n" + conflict + "\n" + line(3),
			`"detail":"Line 4 of the stream: events[2] was rejected: An event with the id 0198f6a2-7c1e-7d4b-9a41-000000000001 ` +
				`and different content already exists. The first 2 events were accepted."`, 409, 2},
		{"the longest line", long(webhook.MaxEventBytes) + "\n" + line(1), `{"accepted":2,"added":2}`, 201, 2},
		{"a line too long", line(1) + "\n" + long(webhook.MaxEventBytes+1) + "\n" + line(2),
			`The first event was accepted.","validations":[{"code":"too_large","detail":"must be at most 262144 bytes","parameter":"events[1]"}`,
			400, 1},
		{"a line far too long", line(1) + "\n" + long(4<<20),
			`"code":"too_large","detail":"must be at most 262144 bytes","parameter":"events[1]"`, 400, 1},
		{"an endless line of blanks", line(1) + "\n" + strings.Repeat(" ", 4<<20),
			`"code":"too_large","detail":"must be at most 262144 bytes","parameter":"events[1]"`, 400, 1},
		{"white space around", strings.Repeat(" ", 200<<10) + line(1) + strings.Repeat(" ", 200<<10) + "\n" + line(2),
			`{"accepted":2,"added":2}`, 201, 2},
	} {
		for how, reader := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "with EOF": iotest.DataErrReader,
			"bytes": iotest.OneByteReader,
		} {
			if how == "bytes" && len(test.body) > 1<<20 {
				continue
			}
			t.Run(test.name+", "+how, func(t *testing.T) {
				s := *all
				s.t = t
				programs++
				s.token = s.newToken(fmt.Sprint("p", programs), "u", webhook.Scopes()...) // a log of its own
				r := s.sendLines(reader(strings.NewReader(test.body)))
				wantBody(t, "the stream", r, test.status, test.want)
				if n := s.count(); n != test.stored {
					t.Errorf("%d events are stored, want %d", n, test.stored)
				}
			})
		}
	}
}

// A truncated stream stores its complete lines and not the last, incomplete one.
func TestTruncatedStream(t *testing.T) {
	s := start(t)
	r := s.sendLines(io.MultiReader(strings.NewReader(line(1)+"\n"+line(2)), iotest.ErrReader(io.ErrUnexpectedEOF)))
	wantBody(t, "the stream", r, 400, "The first event was accepted.")
	if n := s.count(); n != 1 {
		t.Errorf("got %d events, want 1", n)
	}
}

func TestLongStream(t *testing.T) {
	s := start(t)
	const n = 20000
	pr, pw := io.Pipe()
	go func() {
		w := bufio.NewWriterSize(pw, 1<<16)
		for i := range n {
			fmt.Fprintln(w, line(i))
		}
		w.Flush()
		pw.Close()
	}()
	r := s.sendLines(pr)
	wantBody(t, "the stream", r, 201, fmt.Sprintf(`{"accepted":%d,"added":%[1]d}`, n))
	newest := data[[]struct{ Seq, ContentID int }](t, s.send("GET", "/v2/events?page[size]=1", ""))
	if len(newest) != 1 || newest[0].Seq != n {
		t.Errorf("the newest event is %+v, want the one with seq %d", newest, n)
	}
}

// A stream names the position of a conflict within a chunk.
func TestConflictInAChunk(t *testing.T) {
	s := start(t)
	for at := range 9 {
		var body strings.Builder
		for n := range 9 {
			text := line(100*at + n)
			if n == at {
				text = line(1000000 + at)
				wantStatus(t, "take the id", s.send("POST", "/v2/events", text), 201)
				text = strings.Replace(text, `"content_id":1`, `"content_id":2`, 1)
			}
			body.WriteString(text + "\n")
		}
		r := s.sendLines(strings.NewReader(body.String()))
		wantBody(t, "the stream", r, 409, fmt.Sprintf("events[%d] was rejected: ", at))
		for n := range 9 {
			r := s.send("GET", fmt.Sprintf("/v2/events/0198f6a2-7c1e-7d4b-9a41-%012d", 100*at+n), "")
			if stored := r.status == 200; stored != (n < at) {
				t.Errorf("conflict at %d: event %d: got %d", at, n, r.status)
			}
		}
	}
}

// pipes is a listener without a network, for use with synctest.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// connect returns the client's end of a new connection.
func (p *pipes) connect() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) { return p.connect(), nil }

// servePipes serves in a bubble until the end of the test.
func servePipes(t *testing.T, server *http.Server) *pipes {
	p := &pipes{make(chan net.Conn), make(chan struct{})}
	go server.Serve(p)
	t.Cleanup(func() { server.Close() })
	return p
}

// http2Transport returns a client's connections to a handler in a bubble, over HTTP/2.
func http2Transport(t *testing.T, handler http.Handler) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols, DialContext: servePipes(t, &http.Server{Handler: handler, Protocols: &protocols}).dial}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// A stream may take any time as long as data arrives; each line is stored before the next arrives.
// A silent stream times out.
func TestSlowStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		listener := servePipes(t, &http.Server{Handler: s.api})
		transport := &http.Transport{DialContext: listener.dial, DisableKeepAlives: true}
		defer transport.CloseIdleConnections()

		post := func(write func(io.Writer)) (status int, body string, err error) {
			pr, pw := io.Pipe()
			go func() {
				write(pw)
				pw.Close()
			}()
			r, _ := http.NewRequest("POST", "http://service/v2/events", pr)
			r.Header.Set("Content-Type", "application/x-ndjson")
			r.Header.Set("Authorization", "Bearer "+s.token)
			resp, err := transport.RoundTrip(r)
			if err != nil {
				return 0, "", err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			return resp.StatusCode, string(b), err
		}

		began := time.Now()
		status, body, err := post(func(w io.Writer) {
			for n := range 20 {
				fmt.Fprintln(w, line(n))
				time.Sleep(DefaultRequestTimeout - time.Second)
				if stored := s.count(); stored != n+1 {
					t.Errorf("after line %d got %d events", n, stored)
				}
			}
		})
		if err != nil || status != 201 || !strings.Contains(body, `"accepted":20`) {
			t.Errorf("a slow stream: got %d %s (%v), want 201", status, body, err)
		}
		if took := time.Since(began); took < 9*time.Minute {
			t.Errorf("the slow stream took only %s", took)
		}

		silence := make(chan struct{})
		began = time.Now()
		status, body, err = post(func(w io.Writer) {
			fmt.Fprintln(w, line(100))
			io.WriteString(w, line(101)[:20])
			<-silence
		})
		close(silence)
		if err != nil || status != 408 || !strings.Contains(body, "The first event was accepted.") {
			t.Errorf("a silent stream: got %d %s (%v), want 408", status, body, err)
		}
		if took := time.Since(began); took != DefaultRequestTimeout {
			t.Errorf("the silent stream lasted %s, want %s", took, DefaultRequestTimeout)
		}
	})
}

// An invalid line gets a response while the client is still sending.
func TestInvalidLineEndsTheStream(t *testing.T) {
	t.Parallel()
	s := start(t)
	got := exchange(t, connect(t, s), "POST /v2/events HTTP/1.1\nHost: h\nAuthorization: Bearer "+s.token+
		"\nContent-Type: application/x-ndjson\nContent-Length: 1000000\n\n"+line(1)+"\n{}\n")
	if !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "The first event was accepted.") {
		t.Errorf("got %s, want 400", got)
	}
}
