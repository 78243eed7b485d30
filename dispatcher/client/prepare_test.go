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

// A prepared attempt sends nothing before Send, carries the time of Send, and uses
// no connection that its server may have closed.
func TestPrepare(t *testing.T) {
	for _, c := range []struct {
		name   string
		wait   time.Duration
		dialed int32
	}{
		{"immediately", 0, 1},
		{"within maxPrepared", maxPrepared / 2, 1},
		{"after more than maxPrepared", 2 * maxPrepared, 2},
	} {
		runInBubble(t, c.name, func(t *testing.T) { sendPrepared(t, c.wait, c.dialed) })
	}
}

// sendPrepared sends an attempt wait after it was prepared, and checks it. dialed is
// the expected number of connections, including that of an earlier attempt.
func sendPrepared(t *testing.T, wait time.Duration, dialed int32) {
	var seen atomic.Int32
	var last atomic.Value
	p := newTestClient(t, func(r *peer) {
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
	time.Sleep(maxPrepared * 3 / 4) // so that Send happens in another second
	ready := p.Prepare(testRequest("http://1.1.1.1/", 10))
	time.Sleep(wait)
	synctest.Wait()
	if n := seen.Load(); n != 1 {
		t.Fatalf("got %d requests before Send, want 1", n)
	}
	a := ready.Send(t.Context())
	if a.Result != webhook.ResultSuccess || !a.StartedAt.Equal(time.Now()) {
		t.Errorf("got %+v, want success, started now", a)
	}
	want := fmt.Sprintf("\r\nwebhook-timestamp: %d\r\n", time.Now().Unix())
	if text := last.Load().(string); !strings.Contains(text, want) {
		t.Errorf("got request %q, want it to contain %q", text, want)
	}
	if n := p.dialed.Load(); n != dialed {
		t.Errorf("got %d connections, want %d", n, dialed)
	}
}

// A discarded attempt returns its connection to the pool.
func TestDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestClient(t, respond("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		q := testRequest("http://1.1.1.1/", 10)
		p.Send(t.Context(), q)
		p.Prepare(q).Discard()
		if a := p.Send(t.Context(), q); a.Result != webhook.ResultSuccess || p.dialed.Load() != 1 {
			t.Errorf("got %+v over %d connections, want success over 1", a, p.dialed.Load())
		}
	})
}
