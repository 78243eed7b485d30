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

// testLease is a lease that a test can end and renew.
type testLease struct {
	ctx    atomic.Pointer[context.Context]
	cancel context.CancelFunc
}

func (l *testLease) renew() {
	ctx, cancel := context.WithCancel(context.Background())
	l.ctx.Store(&ctx)
	l.cancel = cancel
}

// fence makes the store depend on a lease.
func (w *testbed) fence() *testLease {
	l := new(testLease)
	l.renew()
	held := func() context.Context { return *l.ctx.Load() }
	if err := w.d.store.Replica().Fence(1, store.Lease{Valid: func() bool { return held().Err() == nil }, Context: held}); err != nil {
		w.t.Fatal(err)
	}
	return l
}

// The lease ends while a receiver hangs: the attempt is cut off immediately and
// nothing more is sent. After the lease is renewed, the delivery is retried
// immediately.
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
			t.Errorf("the attempt was cut off %s after the end of the lease, want 0s", at.Sub(ended))
		}
		sent := len(r.all()) + len(well.all())
		time.Sleep(time.Hour)
		if n := len(r.all()) + len(well.all()) - sent; n != 0 {
			t.Errorf("got %d requests without the lease, want 0", n)
		}
		renewed := time.Now()
		l.renew()
		time.Sleep(2 * storeRetryWait)
		posts := r.posts()
		if len(posts) != 2 || posts[1].at.Sub(renewed) > 2*storeRetryWait {
			t.Fatalf("got %d requests after the lease was renewed, want 2, the second within 2 s", len(posts))
		}
		d := w.delivery(sub, posts[0].delivery)
		if len(d.Attempts) != 2 || d.Status != webhook.StatusSuccess ||
			d.Attempts[0].Error != webhook.ErrorInterrupted || d.Attempts[0].Duration != 3*time.Second {
			t.Errorf("got delivery %+v, want success after an interrupted attempt of 3s", d)
		}
		if d := w.delivery(wellSub, well.posts()[0].delivery); len(d.Attempts) != 1 || d.Status != webhook.StatusSuccess {
			t.Errorf("got delivery %+v, want the earlier success unchanged", d)
		}
		// A connection that was idle when the lease ended is not reused.
		w.publish("content_updated")
		synctest.Wait()
		well.wantPosts(t, 2, "with the lease")
	})
}

// Without the lease nothing can be recorded, so a shutdown does not use up the
// grace period.
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
				t.Errorf("lease ended before the shutdown: %t: shutdown took %s, want 1s", before, took)
			}
		})
	}
}
