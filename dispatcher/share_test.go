package dispatcher

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// slowLoad publishes events until it is stopped, to many receivers of some programs that answer
// with 200 after nine seconds. The programs begin one after the other.
func (w *testbed) slowLoad(programs, each int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	for i := range programs {
		id := fmt.Sprint("slow-", i)
		w.createProgram(id)
		for range each {
			slow := func(int, http.ResponseWriter, *http.Request) { time.Sleep(9 * time.Second) }
			w.subscribeIn(id, w.subscriber(afterPing(slow)), "content_updated")
		}
	}
	synctest.Wait()
	go func() {
		defer close(done)
		for n := 1; ctx.Err() == nil; n++ {
			for i := range min(n, programs) {
				w.publishIn(fmt.Sprint("slow-", i), newEvent("content_updated"))
			}
			time.Sleep(2 * time.Second)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// A receiver that is quick and has nothing in flight gets a slot at once, however many receivers of
// its own program or of others answer slowly with 200. A single program uses seven eighths of the
// slots.
func TestSlowReceiversLeaveSlots(t *testing.T) {
	cases := []struct{ slots, programs, each int }{{64, 1, 100}, {64, 10, 30}, {512, 1, 100}, {512, 10, 30}}
	if testing.Short() {
		cases = cases[:2]
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("slots=%d/programs=%d", c.slots, c.programs), func(t *testing.T) {
			runInBubble(t, Config{MaxConnections: c.slots, RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
				w.createProgram("quick")
				other, own := w.subscriber(nil), w.subscriber(nil)
				w.subscribeIn("quick", other, "content_deleted")
				stop := w.slowLoad(c.programs, c.each)
				w.subscribeIn("slow-0", own, "content_deleted")
				time.Sleep(time.Minute) // until each has made its first attempt
				for i := range 60 {
					at := time.Now()
					w.publishIn("quick", newEvent("content_deleted"))
					w.publishIn("slow-0", newEvent("content_deleted"))
					time.Sleep(time.Second)
					for r, most := range map[*subscriber]time.Duration{other: 50 * time.Millisecond, own: 200 * time.Millisecond} {
						got := r.posts()
						if len(got) != i+1 || got[i].at.Sub(at) > most {
							t.Fatalf("after %d events: got %d requests within a second, want the last within %s", i+1, len(got), most)
						}
					}
					if n := w.d.credits.Taken(); c.programs == 1 && n != c.slots-c.slots/8 {
						t.Errorf("slow receivers of one program use %d of %d slots, want seven eighths", n, c.slots)
					}
				}
				stop()
			})
		})
	}
}

// Programs with more work than slots get the same number of slots.
func TestProgramsShareSlots(t *testing.T) {
	runInBubble(t, Config{MaxConnections: 64, RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
		stop := w.slowLoad(3, 30)
		time.Sleep(2 * time.Minute)
		for i := range 3 {
			w.d.mu.Lock()
			n := w.d.credits.Program(w.d.programs[fmt.Sprint("slow-", i)].slots)
			w.d.mu.Unlock()
			if n < 15 || n > 17 {
				t.Errorf("program %d has %d of 64 slots in flight, want a quarter, as the two others", i, n)
			}
		}
		stop()
	})
}
