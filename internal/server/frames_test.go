package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// serveFrameConns serves HTTP/2 over in-memory connections, which dial returns, in the bubble of
// the test. An ordinary client must not run out of frames; any other must.
func serveFrameConns(t *testing.T, handler http.Handler, ordinary bool) (dial func() net.Conn) {
	f := serveFrames(newHTTPServer(handler, time.Minute))
	ended := make(chan error, 1)
	go func() { ended <- f.http.Serve(f.conns) }()
	t.Cleanup(func() {
		f.http.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return func() net.Conn {
		client, server := net.Pipe()
		conn := newFrameConn(server, handler)
		go f.conns.pass(conn)
		t.Cleanup(func() {
			if conn.mu.Lock(); conn.exhausted == ordinary {
				t.Errorf("the client has run out of frames: %t", conn.exhausted)
			}
			conn.mu.Unlock()
		})
		return client
	}
}

// frameHandler waits for the client to disconnect, or answers at once.
func frameHandler(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/wait":
		<-r.Context().Done()
	case "/upload":
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	case "/download":
		for range 256 {
			w.Write(make([]byte, 16<<10))
		}
	case "/trickle":
		for range 1000 {
			io.WriteString(w, "x")
			http.NewResponseController(w).Flush()
		}
	}
}

// frameClient is a client that sends arbitrary frames and reads everything.
type frameClient struct {
	*http2.Framer
	stream uint32 // the last stream, odd; the first is 1

	statuses chan string        // of the answers
	goAway   chan http2.ErrCode // the code of GOAWAY, then closed
}

func newFrameClient(t *testing.T, c net.Conn) *frameClient {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := &frameClient{http2.NewFramer(c, c), math.MaxUint32, make(chan string, 100), make(chan http2.ErrCode, 1)}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	go func() {
		defer close(f.goAway)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.GoAwayFrame:
				if len(f.goAway) == 0 {
					f.goAway <- frame.ErrCode
				}
			case *http2.MetaHeadersFrame:
				f.statuses <- frame.PseudoValue("status")
			}
		}
	}()
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// begin sends the header of a request on a new stream.
func (f *frameClient) begin(method, path string, p http2.HeadersFrameParam) error {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", method}, {":path", path}, {":scheme", "https"}, {":authority", "h"}} {
		e.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	f.stream += 2
	p.StreamID, p.BlockFragment = f.stream, block.Bytes()
	return f.WriteHeaders(p)
}

// A client that sends frames which earn no answer is cut off, whatever their type.
func TestFrameFloods(t *testing.T) {
	for _, test := range []struct {
		name  string
		begin func(*frameClient) error
		send  func(*frameClient) error
	}{
		{"PING", nil, func(f *frameClient) error { return f.WritePing(false, [8]byte{}) }},
		{"answers to no PING", nil, func(f *frameClient) error { return f.WritePing(true, [8]byte{}) }},
		{"SETTINGS", nil, func(f *frameClient) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
		}},
		{"PRIORITY", nil, func(f *frameClient) error { return f.WritePriority(1, http2.PriorityParam{Weight: 3}) }},
		{"WINDOW_UPDATE", nil, func(f *frameClient) error { return f.WriteWindowUpdate(0, 1) }},
		{"unknown frames", nil, func(f *frameClient) error { return f.WriteRawFrame(0x42, 0, 0, []byte("unknown")) }},
		{"PRIORITY_UPDATE", nil, func(f *frameClient) error { return f.WriteRawFrame(0x10, 0, 0, []byte("\x00\x00\x00\x01u=1")) }},
		{"empty DATA", post, func(f *frameClient) error { return f.WriteData(1, false, nil) }},
		{"DATA of padding", post, func(f *frameClient) error { return f.WriteDataPadded(1, false, nil, make([]byte, 255)) }},
		{"empty CONTINUATION", func(f *frameClient) error {
			return f.begin("GET", "/", http2.HeadersFrameParam{EndStream: true})
		}, func(f *frameClient) error { return f.WriteContinuation(1, false, nil) }},
		{"empty HEADERS", nil, func(f *frameClient) error {
			f.stream += 2
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, EndStream: true, EndHeaders: true})
		}},
		{"resets", nil, func(f *frameClient) error {
			return errors.Join(f.begin("GET", "/wait", http2.HeadersFrameParam{EndStream: true, EndHeaders: true}),
				f.WriteRSTStream(f.stream, http2.ErrCodeCancel))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := serveFrameConns(t, http.HandlerFunc(frameHandler), false)()
				defer c.Close()
				f := newFrameClient(t, c)
				if test.begin != nil {
					if err := test.begin(f); err != nil {
						t.Fatal(err)
					}
				}
				sent := 0
				for sent <= 2*frameBurst && test.send(f) == nil {
					sent++
				}
				if sent > frameBurst {
					t.Errorf("the server took %d, want at most %d", sent, frameBurst)
				}
				if code, ok := <-f.goAway; !ok || code != http2.ErrCodeEnhanceYourCalm {
					t.Errorf("got GOAWAY %t with %v, want ENHANCE_YOUR_CALM", ok, code)
				}
			})
		})
	}
}

// A client learns why the connection ends, even if the server was in the middle of a frame.
func TestGoAwayWithinFrame(t *testing.T) {
	for name, sent := range map[string][]byte{
		"PING":          {0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8},
		"RST_STREAM":    {0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 1},
		"WINDOW_UPDATE": {0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0},
		"DATA":          {0, 0, 2, 0, 1, 0, 0, 0, 1, 'o', 'k'},
	} {
		for cut := range len(sent) + 1 {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				c := newFrameConn(server, nil)
				c.exhausted = true
				go func() {
					c.Write(sent[:cut])
					c.Close()
				}()
				defer client.Close()
				f := http2.NewFramer(client, client)
				for {
					frame, err := f.ReadFrame()
					if err != nil {
						t.Errorf("after %d bytes of a %s: got no GOAWAY, %v", cut, name, err)
						return
					}
					if frame, ok := frame.(*http2.GoAwayFrame); ok {
						if frame.ErrCode != http2.ErrCodeEnhanceYourCalm {
							t.Errorf("after %d bytes of a %s: got %v", cut, name, frame.ErrCode)
						}
						return
					}
				}
			})
		}
	}
}

// The last write ends although the client does not read and the server clears its deadline.
func TestGoAwayUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		c := newFrameConn(server, nil)
		c.exhausted = true
		ended := make(chan error)
		go func() { ended <- c.Close() }()
		synctest.Wait() // it is writing
		c.SetWriteDeadline(time.Time{})
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func post(f *frameClient) error {
	return f.begin("POST", "/upload", http2.HeadersFrameParam{EndHeaders: true})
}

// A client that sends a PING each second for hours, or a window update for each frame that it
// receives, is served.
func TestFramesOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serveFrameConns(t, http.HandlerFunc(frameHandler), true)()
		defer c.Close()
		f := newFrameClient(t, c)
		for second := range 3 * 60 * 60 {
			if err := f.WritePing(false, [8]byte{}); err != nil {
				t.Fatalf("after %d s: %v", second, err)
			}
			time.Sleep(time.Second)
			if second%60 > 0 {
				continue // a request, before the connection is idle for too long
			}
			if err := f.begin("GET", "/", http2.HeadersFrameParam{EndStream: true, EndHeaders: true}); err != nil {
				t.Fatalf("after %d s: %v", second, err)
			}
			if status := <-f.statuses; status != "200" {
				t.Fatalf("after %d s: got %s", second, status)
			}
		}
	})
}

// Net/http's client is never cut off, however it uses a connection.
func TestFramesOfOrdinaryClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := serveFrameConns(t, http.HandlerFunc(frameHandler), true)
		transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) {
			return dial(), nil
		}}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		do := func(ctx context.Context, method, path string, body io.Reader) (int, string, error) {
			return ordinaryRequest(ctx, transport, method, path, body)
		}
		for range 2 {
			ordinaryRound(t, do)
		}
	})
}

// ordinaryRound makes requests of all kinds.
func ordinaryRound(t *testing.T, do func(ctx context.Context, method, path string, body io.Reader) (int, string, error)) {
	t.Helper()
	for i := range 1000 {
		if _, _, err := do(t.Context(), "GET", "/", nil); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	atOnce(func() {
		if n, _, err := do(t.Context(), "GET", "/trickle", nil); err != nil || n != 1000 {
			t.Errorf("trickle: got %d bytes, %v", n, err)
		}
	}).Wait()
	if n, _, err := do(t.Context(), "GET", "/download", nil); err != nil || n != 4<<20 {
		t.Errorf("download: got %d bytes, %v", n, err)
	}
	pieces := struct{ io.Reader }{io.LimitReader(threeBytes{}, 30_000)}
	if _, text, err := do(t.Context(), "POST", "/upload", pieces); err != nil || text != "30000" {
		t.Errorf("upload in pieces: got %s, %v", text, err)
	}
	if _, text, err := do(t.Context(), "POST", "/upload", bytes.NewReader(make([]byte, 8<<20))); err != nil || text != fmt.Sprint(8<<20) {
		t.Errorf("upload: got %s, %v", text, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	many := atOnce(func() {
		if _, _, err := do(ctx, "GET", "/wait", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("wait: got %v", err)
		}
	})
	synctest.Wait()
	cancel()
	many.Wait()
}

// ordinaryRequest makes a request with net/http's client, and returns the size and text of the
// response.
func ordinaryRequest(ctx context.Context, transport *http.Transport, method, path string, body io.Reader) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://h"+path, body)
	if err != nil {
		return 0, "", err
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var text strings.Builder
	small := make([]byte, 256) // so that the client updates its window often
	n, err := io.CopyBuffer(struct{ io.Writer }{&text}, struct{ io.Reader }{resp.Body}, small)
	return int(n), text.String(), err
}

// atOnce starts a function 90 times.
func atOnce(do func()) *sync.WaitGroup {
	many := new(sync.WaitGroup)
	for range 90 {
		many.Go(do)
	}
	return many
}

// threeBytes is read three bytes at a time.
type threeBytes struct{}

func (threeBytes) Read(p []byte) (int, error) { return min(len(p), 3), nil }
