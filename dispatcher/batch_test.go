package dispatcher

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// publishOf publishes an event of about size bytes.
func (w *testbed) publishOf(size int) {
	w.t.Helper()
	id := webhook.NewID()
	e := webhook.Event{ID: id, Name: "content_updated", ReceivedAt: time.Now(),
		JSON: fmt.Appendf(nil, `{"id":%q,"name":"content_updated","text":%q}`, id, strings.Repeat("x", size))}
	if _, err := w.d.store.Events().Publish(context.Background(), "p", []webhook.Event{e}); err != nil {
		w.t.Fatal(err)
	}
}

// The body of a delivery of several events is below 100 KB, the default limit of Express
// and NestJS. A larger event is sent alone.
func TestBatchBytes(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 1}, func(w *testbed) {
		gate := make(chan struct{})
		r := w.subscriber(func(int, http.ResponseWriter, *http.Request) { <-gate })
		w.subscribe(r, nil)
		w.publishOf(10) // occupies the slot
		synctest.Wait()
		for range 40 {
			w.publishOf(4 << 10)
		}
		w.publishOf(200 << 10)
		w.publishOf(10)
		close(gate)
		var sizes []int
		for _, p := range r.posts() {
			sizes = append(sizes, len(p.ids))
			if len(p.ids) > 1 && p.size >= 100_000 {
				t.Errorf("got a body of %d bytes for %d events", p.size, len(p.ids))
			}
		}
		if want := []int{1, 15, 15, 10, 1, 1}; !slices.Equal(sizes, want) {
			t.Errorf("got deliveries of %v events, want %v", sizes, want)
		}
	})
}
