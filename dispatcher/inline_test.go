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
		r.wantPosts(t, before, "while deliveries cannot be stored")
		w.alter("DROP TRIGGER broken")
		time.Sleep(suspendTime + time.Second)
		synctest.Wait()
		r.wantPosts(t, before+1, "after the suspension")
		w.d.mu.Lock()
		if w.d.credits.Taken() != 0 {
			t.Errorf("got %d slots in use, want 0", w.d.credits.Taken())
		}
		w.d.mu.Unlock()
	})
}
