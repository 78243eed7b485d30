package harness

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
)

func listenLoopback(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// Listen serves HTTP on a free loopback port until the test ends, and returns the base URL.
func Listen(tb testing.TB, h http.Handler) string {
	tb.Helper()
	l := listenLoopback(tb)
	Serve(tb, l, h)
	return "http://" + l.Addr().String()
}

// Serve serves HTTP on a listener until the test ends.
func Serve(tb testing.TB, l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	tb.Cleanup(func() {
		s.Close()
		<-done
	})
}

// IsPing reports whether the body of a delivery is a ping.
func IsPing(body []byte) bool { return bytes.Contains(body, []byte(`"name":"ping"`)) }

// ReadBody reads the body of a delivery, which always has a Content-Length.
func ReadBody(r *http.Request) ([]byte, error) {
	body := make([]byte, max(r.ContentLength, 0))
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

// NumberedEvent is the name of the events of [AppendEvent].
const NumberedEvent = "content_published"

const numberField = `"content_id":`

// AppendEvent appends a publishable event with a number that [Numbers] finds.
func AppendEvent(dst []byte, number int) []byte {
	dst = append(dst, `{"name":"`+NumberedEvent+`","version":"1",`+numberField...)
	return append(strconv.AppendInt(dst, int64(number), 10), `,"channel_ids":[11,12,13]}`...)
}

// Numbers yields the numbers of the events in the body of a delivery, in order.
func Numbers(body []byte) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for rest := body; ; {
			_, after, found := bytes.Cut(rest, []byte(numberField))
			if !found {
				return
			}
			digits := 0
			for digits < len(after) && '0' <= after[digits] && after[digits] <= '9' {
				digits++
			}
			n, err := strconv.Atoi(string(after[:digits]))
			if err != nil || !yield(n) {
				return
			}
			rest = after
		}
	}
}
