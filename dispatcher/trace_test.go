package dispatcher

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// The trace of an event is sent with every attempt of its deliveries, each with its
// own span: the first attempt, a retry, a retry after a restart, and a redelivery.
// A batch uses the first trace among its events.
func TestTracePropagation(t *testing.T) {
	const (
		one = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		two = "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	)
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 10, BatchWindow: time.Second}, func(w *testbed) {
		var mu sync.Mutex
		var sent []string
		taken := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			got := sent
			sent = nil
			return got
		}
		r := w.subscriber(nil)
		r.respond = func(n int, rw http.ResponseWriter, req *http.Request) {
			mu.Lock()
			sent = append(sent, req.Header.Get("Traceparent"))
			mu.Unlock()
			if n == 2 || n == 3 {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
		}
		sub := w.subscribe(r, nil)
		taken() // discard the ping's header
		publish := func(traces ...webhook.Trace) {
			t.Helper()
			events := make([]webhook.Event, len(traces))
			for i, trace := range traces {
				events[i] = newEvent("content_updated")
				events[i].Trace = trace
			}
			w.publishIn("p", events...)
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		want := func(when string, delivery webhook.Delivery, trace webhook.Trace, numbers ...int) {
			t.Helper()
			var spans []string
			for _, n := range numbers {
				spans = append(spans, trace.Attempt(delivery.ID, n))
			}
			if got := taken(); !slices.Equal(got, spans) {
				t.Errorf("%s: got traces %q, want %q", when, got, spans)
			}
		}
		newest := func() webhook.Delivery {
			t.Helper()
			posts := r.posts()
			return w.delivery(sub, posts[len(posts)-1].delivery)
		}

		publish("", one, two)
		first := newest()
		want("first attempt", first, one, 1)
		if len(first.Events) != 3 {
			t.Fatalf("got %d events in the delivery, want 3", len(first.Events))
		}
		time.Sleep(10 * time.Second)
		want("retry", first, one, 2)
		w.crash() // clears the memory
		time.Sleep(10 * time.Minute)
		want("retry after a restart", first, one, 3)
		if d := w.delivery(sub, first.ID); d.Status != webhook.StatusSuccess {
			t.Errorf("got status %s, want success", d.Status)
		}

		w.redeliver(sub, first.ID)
		synctest.Wait()
		want("redelivery", newest(), one, 1)

		publish("", "")
		want("without a trace", newest(), "", 1)
	})
}
