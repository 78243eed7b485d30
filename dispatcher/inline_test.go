//go:build cgo

package dispatcher

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
)

func (w *testbed) sql(query string) {
	w.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, "service.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(query); err != nil {
		w.t.Fatal(err)
	}
}

// If a delivery cannot be stored inline with its event, it is formed later.
func TestInlineDeliveryFailureIsRetried(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		r := w.subscriber(nil)
		w.subscribe(r, nil)
		w.publish("content_updated")
		before := len(r.posts())
		w.sql("CREATE TRIGGER broken BEFORE INSERT ON delivery_events BEGIN SELECT RAISE(ABORT, 'broken'); END")
		w.publish("content_updated")
		synctest.Wait()
		if n := len(r.posts()); n != before {
			t.Errorf("got %d requests, want %d", n, before)
		}
		w.sql("DROP TRIGGER broken")
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

// A result for a delivery that does not exist cannot be stored.
// TestUnstorableResultBlocksOnlyItsQueue depends on that.
func TestResultOfMissingDelivery(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		sub := w.subscribe(w.subscriber(nil), nil)
		synctest.Wait()
		w.d.mu.Lock()
		q := w.d.queues[sub.ID]
		w.d.mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.d.attempt(ctx, q, &store.Claim{ID: "d", SubscriptionID: sub.ID, ProgramID: sub.ProgramID, Number: 1, Revision: q.Revision},
				nil) // of no row
		}()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the result of a missing delivery was stored, want attempt to keep trying")
		default:
		}
	})
}
