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

// testLease is a lease that a test ends and renews.
type testLease struct {
	ctx    atomic.Pointer[context.Context]
	cancel context.CancelFunc
}

func (l *testLease) renew() {
	ctx, cancel := context.WithCancel(context.Background())
	l.ctx.Store(&ctx)
	l.cancel = cancel
}

// fence makes the dispatcher's store depend on a lease.
func (w *testbed) fence() *testLease {
	l := new(testLease)
	l.renew()
	held := func() context.Context { return *l.ctx.Load() }
	if err := w.d.store.Fence(1, store.Lease{Valid: func() bool { return held().Err() == nil }, Held: held}); err != nil {
		w.t.Fatal(err)
	}
	return l
}

// TestLeaseEnds has the lease end while a server hangs. The attempt is cut off at
// once, nothing is sent until the lease is renewed, and then the delivery is
// repeated at once.
func TestLeaseEnds(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
		l := w.fence()
		cut := make(chan time.Time, 1)
		r := w.subscriber(func(n int, _ http.ResponseWriter, r *http.Request) {
			if n == 2 { // after the ping
				<-r.Context().Done()
				cut <- time.Now()
			}
		})
		well := w.subscriber(nil)
		sub := w.subscribe(r, nil)
		wellSub := w.subscribe(well, nil)
		w.publish("content_updated")
		time.Sleep(3 * time.Second)
		ended := time.Now()
		l.cancel()
		if at := <-cut; !at.Equal(ended) {
			t.Errorf("the attempt was cut off %s after the end of the lease", at.Sub(ended))
		}
		sent := len(r.all()) + len(well.all())
		time.Sleep(time.Hour)
		if n := len(r.all()) + len(well.all()) - sent; n != 0 {
			t.Errorf("%d requests were sent without the lease", n)
		}
		renewed := time.Now()
		l.renew()
		time.Sleep(2 * storeRetryWait)
		posts := r.posts()
		if len(posts) != 2 || posts[1].at.Sub(renewed) > 2*storeRetryWait {
			t.Fatalf("after the renewal of the lease there are %d requests", len(posts))
		}
		d := w.delivery(sub, posts[0].delivery)
		if len(d.Attempts) != 2 || d.Status != webhook.StatusSuccess ||
			d.Attempts[0].Error != webhook.ErrorInterrupted || d.Attempts[0].Duration != 3*time.Second {
			t.Errorf("the delivery is %+v", d)
		}
		if d := w.delivery(wellSub, well.posts()[0].delivery); len(d.Attempts) != 1 || d.Status != webhook.StatusSuccess {
			t.Errorf("a delivery that had succeeded is %+v", d)
		}
		// A connection that was idle when the lease ended is not used again.
		w.publish("content_updated")
		synctest.Wait()
		if n := len(well.posts()); n != 2 {
			t.Errorf("%d requests arrived, want 2", n)
		}
	})
}

// TestShutdownWithoutLease: nothing that ends then can be recorded, so the grace
// period is not used up.
func TestShutdownWithoutLease(t *testing.T) {
	for _, before := range []bool{true, false} {
		runInBubble(t, Config{Grace: 8 * time.Second}, func(w *testbed) {
			l := w.fence()
			r := w.subscriber(hang)
			w.subscribe(r, nil)
			w.publish("content_updated")
			if before {
				l.cancel()
				synctest.Wait()
			}
			began := time.Now()
			w.stop()
			time.Sleep(time.Second)
			l.cancel()
			synctest.Wait()
			if err := <-w.done; err != nil {
				t.Error(err)
			}
			w.done <- nil
			if took := time.Since(began); took != time.Second {
				t.Errorf("lease ended before: %t: it took %s, want 1s", before, took)
			}
		})
	}
}
