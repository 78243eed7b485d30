package dispatcher

import (
	"context"
	"fmt"
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
		_, _, err := sw.Programs().Put("p", fields, webhook.AuditEntry{})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// slowReceivers are six subscribers that respond after a second and count their requests in
// flight together.
type slowReceivers struct {
	*testbed
	each           []*subscriber
	inFlight, most atomic.Int64
	sent           int
}

func newSlowReceivers(w *testbed) *slowReceivers {
	r := &slowReceivers{testbed: w, each: make([]*subscriber, 6)}
	slow := func(int, http.ResponseWriter, *http.Request) {
		n := r.inFlight.Add(1)
		for old := r.most.Load(); n > old && !r.most.CompareAndSwap(old, n); old = r.most.Load() {
		}
		time.Sleep(time.Second)
		r.inFlight.Add(-1)
	}
	for i := range r.each {
		r.each[i] = w.subscriber(slow)
		w.subscribe(r.each[i], nil)
	}
	time.Sleep(10 * time.Second) // the pings end
	return r
}

// publishEight publishes eight events, and resets the count of requests in flight.
func (r *slowReceivers) publishEight() {
	r.most.Store(0)
	r.publishN(8, "content_updated")
	r.sent += 8
}

// takeTurns checks for 48 seconds that no queue is behind another by more than a few.
func (r *slowReceivers) takeTurns(limit int) {
	for range 48 {
		time.Sleep(time.Second)
		least, largest := 1<<30, 0
		for _, one := range r.each {
			least, largest = min(least, len(one.posts())), max(largest, len(one.posts()))
		}
		if largest-least > 3 {
			r.t.Fatalf("limit %d: one receiver has got %d deliveries and another %d", limit, largest, least)
		}
	}
}

// complete checks that each receiver has received all events.
func (r *slowReceivers) complete(limit int) {
	for i, one := range r.each {
		one.wantPosts(r.t, r.sent, fmt.Sprintf("at receiver %d with the limit %d", i, limit))
	}
}

// A program never has more deliveries in flight than its limit, inline deliveries included, and
// a change of the limit takes effect at once and after a restart.
func TestProgramLimit(t *testing.T) {
	cfg := Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, MaxInFlight: 4}
	runInBubble(t, cfg, func(w *testbed) {
		r := newSlowReceivers(w)
		for _, test := range []struct{ limit, want int }{{2, 2}, {1, 1}, {5, 5}, {0, 24}, {3, 3}} {
			r.checkLimit(w, test.limit, test.want)
		}

		// The limit is read at the start.
		w.end()
		w.start()
		synctest.Wait()
		r.publishEight()
		time.Sleep(time.Minute)
		if got := r.most.Load(); got != 3 {
			t.Errorf("after a restart: got %d deliveries in flight, want 3", got)
		}
	})
}

// checkLimit publishes under a program limit, and counts the deliveries in flight.
func (r *slowReceivers) checkLimit(w *testbed, limit, want int) {
	t := w.t
	t.Helper()
	w.limit(limit)
	r.publishEight()
	synctest.Wait()
	if got := int(r.most.Load()); got > want || limit > 0 && got != want {
		t.Errorf("limit %d: got %d deliveries in flight, want %d", limit, got, want)
	}
	limited := w.d.limitedPrograms()
	if limit == 0 && len(limited) > 0 {
		t.Errorf("without a limit the metrics contain %+v", limited)
	}
	if limit > 0 {
		if len(limited) != 1 || limited[0] != (limitedProgram{"p", limit, limit, limited[0].held}) || limited[0].held == 0 {
			t.Errorf("limit %d: the metrics contain %+v", limit, limited)
		}
		r.takeTurns(limit)
	}
	time.Sleep(time.Minute)
	if got := int(r.most.Load()); got > want {
		t.Errorf("limit %d: got %d deliveries in flight, want at most %d", limit, got, want)
	}
	r.complete(limit)
}

// A program at its limit delays no other, and lowering the limit while deliveries are in flight
// stops new ones until enough have ended.
func TestProgramLimitIsLowered(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, MaxInFlight: 8}, func(w *testbed) {
		hanging := w.subscriber(hang)
		w.subscribe(hanging, nil)
		time.Sleep(time.Minute) // its ping fails
		w.publishN(8, "content_updated")
		synctest.Wait()
		if len(hanging.posts()) < 2 {
			t.Fatalf("got %d deliveries in flight, want several", len(hanging.posts()))
		}
		w.limit(1)
		quick := w.subscriber(nil)
		w.subscribe(quick, nil)
		w.publish("content_deleted")
		synctest.Wait()
		quick.wantPosts(t, 0, "while the program is over its limit")
		w.limit(0)
		quick.wantPosts(t, 1, "without a limit")
	})
}

// Cutting the attempts of a program records only these as interrupted, at once. New ones follow.
func TestCut(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
		w.createProgram("q")
		answer := func(n int, rw http.ResponseWriter, r *http.Request) {
			if n == 2 { // after the ping
				hang(n, rw, r)
			}
		}
		cut, other := w.subscriber(answer), w.subscriber(answer)
		sub := w.subscribe(cut, nil)
		w.subscribeIn("q", other, "content_updated")
		synctest.Wait()
		w.publish("content_updated")
		w.publishIn("q", newEvent("content_updated"))
		synctest.Wait()
		id := cut.posts()[0].delivery
		w.d.Cut("p")
		synctest.Wait()
		d := w.delivery(sub, id)
		if len(d.Attempts) != 2 || d.Attempts[0].Error != webhook.ErrorInterrupted || d.Status != webhook.StatusSuccess {
			t.Errorf("after the cut: got %+v, want an attempt that was interrupted and one that succeeded", d)
		}
		other.mu.Lock()
		if n := other.openRequests; n != 1 {
			t.Errorf("the attempt of the other program has %d requests in flight, want 1", n)
		}
		other.mu.Unlock()
	})
}

// A program whose limit cannot be read pauses no claims, neither at the start nor at run time.
func TestUnreadableLimitPausesNothing(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		good := w.subscriber(nil)
		w.subscribe(good, nil)
		w.createProgram("q")
		w.kill()
		w.alter("PRAGMA writable_schema = ON", "UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '') WHERE name = 'programs'")
		w.alter("PRAGMA ignore_check_constraints = ON", "UPDATE programs SET max_in_flight = 'one' WHERE id = 'q'")
		w.start()
		w.wantImmediate(good)
		w.d.readLimits(context.Background(), map[string]struct{}{"q": {}}) // the loop of Run is idle
		w.wantImmediate(good)
		if len(w.d.staleLimits) > 0 {
			t.Error("the limit is read again without a change")
		}
	})
}
