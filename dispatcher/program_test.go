package dispatcher

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/webhook"
)

// limit sets the limit of program p, 0 for none.
func (w *testbed) limit(n int) {
	w.t.Helper()
	fields := &webhook.ProgramFields{MaxInFlight: new(*int)}
	if n > 0 {
		*fields.MaxInFlight = &n
	}
	err := w.d.store.Write(context.Background(), func(sw store.Write) error {
		_, _, err := sw.PutProgram("p", fields)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// A program never has more deliveries in flight than its limit, inline deliveries included, and
// a change of the limit takes effect at once and after a restart.
func TestProgramLimit(t *testing.T) {
	cfg := Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, MaxInFlight: 4}
	runInBubble(t, cfg, func(w *testbed) {
		var inFlight, most atomic.Int64
		slow := func(int, http.ResponseWriter, *http.Request) {
			n := inFlight.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			time.Sleep(time.Second)
			inFlight.Add(-1)
		}
		receivers := make([]*subscriber, 6)
		for i := range receivers {
			receivers[i] = w.subscriber(slow)
			w.subscribe(receivers[i], nil)
		}
		time.Sleep(10 * time.Second) // the pings end
		sent := 0
		for _, test := range []struct{ limit, want int }{{2, 2}, {1, 1}, {5, 5}, {0, 24}, {3, 3}} {
			w.limit(test.limit)
			most.Store(0)
			for range 8 {
				w.publish("content_updated")
			}
			sent += 8
			synctest.Wait()
			if got := int(most.Load()); got > test.want || test.limit > 0 && got != test.want {
				t.Errorf("limit %d: got %d deliveries in flight, want %d", test.limit, got, test.want)
			}
			// All are sent, and the queues take turns: none is behind by more than a few.
			for range 48 {
				time.Sleep(time.Second)
				least, largest := 1<<30, 0
				for _, r := range receivers {
					least, largest = min(least, len(r.posts())), max(largest, len(r.posts()))
				}
				if test.limit > 0 && largest-least > 3 {
					t.Fatalf("limit %d: one receiver has got %d deliveries and another %d", test.limit, largest, least)
				}
			}
			time.Sleep(10 * time.Second)
			if got := int(most.Load()); got > test.want {
				t.Errorf("limit %d: got %d deliveries in flight, want at most %d", test.limit, got, test.want)
			}
			for i, r := range receivers {
				if got := len(r.posts()); got != sent {
					t.Errorf("limit %d: receiver %d has got %d deliveries, want %d", test.limit, i, got, sent)
				}
			}
		}

		// The limit is read at the start.
		w.stop()
		if err := <-w.done; err != nil {
			t.Fatal(err)
		}
		if err := w.d.store.Close(); err != nil {
			t.Fatal(err)
		}
		w.start()
		synctest.Wait()
		most.Store(0)
		for range 8 {
			w.publish("content_updated")
		}
		time.Sleep(time.Minute)
		if got := most.Load(); got != 3 {
			t.Errorf("after a restart: got %d deliveries in flight, want 3", got)
		}
	})
}

// A program at its limit delays no other, and lowering the limit while deliveries are in flight
// stops new ones until enough have ended.
func TestProgramLimitIsLowered(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, MaxInFlight: 8}, func(w *testbed) {
		hanging := w.subscriber(hang)
		w.subscribe(hanging, nil)
		time.Sleep(time.Minute) // its ping fails
		for range 8 {
			w.publish("content_updated")
		}
		synctest.Wait()
		if len(hanging.posts()) < 2 {
			t.Fatalf("got %d deliveries in flight, want several", len(hanging.posts()))
		}
		w.limit(1)
		quick := w.subscriber(nil)
		w.subscribe(quick, nil)
		w.publish("content_deleted")
		synctest.Wait()
		if got := len(quick.posts()); got != 0 {
			t.Errorf("got %d deliveries while the program is over its limit, want 0", got)
		}
		w.limit(0)
		if got := len(quick.posts()); got != 1 {
			t.Errorf("got %d deliveries without a limit, want 1", got)
		}
	})
}
