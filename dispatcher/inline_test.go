//go:build cgo

package dispatcher

import (
	"testing"
	"testing/synctest"
	"time"
)

// If a delivery cannot be stored inline with its event, it is formed later.
func TestInlineDeliveryFailureIsRetried(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		r := w.subscriber(nil)
		w.subscribe(r, nil)
		w.publish("content_updated")
		before := len(r.posts())
		w.alter("CREATE TRIGGER broken BEFORE INSERT ON delivery_events BEGIN SELECT RAISE(ABORT, 'broken'); END")
		w.publish("content_updated")
		synctest.Wait()
		if n := len(r.posts()); n != before {
			t.Errorf("got %d requests, want %d", n, before)
		}
		w.alter("DROP TRIGGER broken")
		time.Sleep(suspendTime + time.Second)
		synctest.Wait()
		if n := len(r.posts()); n != before+1 {
			t.Errorf("got %d requests after the suspension, want %d", n, before+1)
		}
		w.d.mu.Lock()
		if w.d.credits.Taken() != 0 {
			t.Errorf("got %d slots in use, want 0", w.d.credits.Taken())
		}
		w.d.mu.Unlock()
	})
}
