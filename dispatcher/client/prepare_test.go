package client

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// TestPrepare: a prepared attempt sends nothing before Send, with the time of Send in
// its header, and over no connection that its server may have closed since.
func TestPrepare(t *testing.T) {
	for _, c := range []struct {
		name    string
		wait    time.Duration
		dialled int32
	}{
		{"at once", 0, 1},
		{"within a second", maxPrepared / 2, 1},
		{"after more than a second", 2 * maxPrepared, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sendPrepared(t, c.wait, c.dialled) })
		})
	}
}

// sendPrepared sends an attempt this long after it was prepared, and checks it and how
// many connections were dialled, with that of the attempt before it.
func sendPrepared(t *testing.T, wait time.Duration, dialled int32) {
	var seen atomic.Int32
	var last atomic.Value
	p := newPost(t, func(r *peer) {
		for {
			text := r.readText(10)
			if text == "" {
				return
			}
			last.Store(text)
			seen.Add(1)
			r.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	p.Send(t.Context(), testRequest("http://1.1.1.1/", 10))
	time.Sleep(maxPrepared * 3 / 4) // so that the second within which it is sent is another one
	ready := p.Prepare(testRequest("http://1.1.1.1/", 10))
	time.Sleep(wait)
	synctest.Wait()
	if n := seen.Load(); n != 1 {
		t.Fatalf("%d requests were sent before Send, want 1", n)
	}
	a := ready.Send(t.Context())
	if a.Result != webhook.ResultSuccess || !a.StartedAt.Equal(time.Now()) {
		t.Errorf("got %+v, want a success that started now", a)
	}
	want := fmt.Sprintf("\r\nwebhook-timestamp: %d\r\n", time.Now().Unix())
	if text := last.Load().(string); !strings.Contains(text, want) {
		t.Errorf("got the request %q, want it to have %q", text, want)
	}
	if n := p.dialled.Load(); n != dialled {
		t.Errorf("%d connections, want %d", n, dialled)
	}
}

// A discarded attempt gives its connection back.
func TestDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		q := testRequest("http://1.1.1.1/", 10)
		p.Send(t.Context(), q)
		p.Prepare(q).Discard()
		if a := p.Send(t.Context(), q); a.Result != webhook.ResultSuccess || p.dialled.Load() != 1 {
			t.Errorf("got %+v over %d connections, want a success over 1", a, p.dialled.Load())
		}
	})
}
