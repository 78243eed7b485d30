package dispatcher

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/webhook"
)

// TestErasedProgram erases a program with deliveries in flight, waiting for a retry, queued and
// waiting in the log, with and without a crash after the commit. After the commit no request is
// sent for it, in all the time that retries take; the other program gets all its attempts.
func TestErasedProgram(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(map[bool]string{false: "running", true: "crash"}[crash], func(t *testing.T) {
			runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, MaxInFlight: 1}, func(w *testbed) {
				eraseProgram(w, crash)
			})
		})
	}
}

// eraseProgram erases a program with deliveries of each kind, and lets hours pass.
func eraseProgram(w *testbed, crash bool) {
	t := w.t
	kept := w.subscriber(respondWith(http.StatusServiceUnavailable))
	w.subscribe(kept, nil)
	erased := []*subscriber{w.subscriber(kept.respond), w.subscriber(hang), w.subscriber(nil)}
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.d.store.Write(ctx, func(sw store.Write) error {
		_, _, err := sw.Programs().Put("q", &webhook.ProgramFields{}, webhook.AuditEntry{})
		return err
	}))
	for _, r := range erased {
		w.subscribeIn("q", r, "content_updated")
	}
	time.Sleep(30 * time.Second) // the pings end
	w.publish("content_updated")
	for range 3 {
		w.publishIn("q", newEvent("content_updated"))
	}
	synctest.Wait()

	must(w.d.store.Write(ctx, func(sw store.Write) error {
		_, err := sw.Programs().Erase("q", webhook.AuditEntry{})
		return err
	}))
	var before []int
	for _, r := range erased {
		before = append(before, len(r.all()))
		if len(r.posts()) == 0 {
			t.Error("a receiver of the erased program got nothing before the erasure")
		}
	}
	if crash {
		w.crash()
	}
	keeping, stop := context.WithCancel(ctx)
	housekept := make(chan error, 1)
	s := w.d.store
	go func() { housekept <- s.Housekeep(keeping) }()
	time.Sleep(6 * time.Hour)
	for i, r := range erased {
		if got := len(r.all()); got != before[i] {
			t.Errorf("receiver %d of the erased program got %d requests after the commit", i, got-before[i])
		}
	}
	kept.wantPosts(t, webhook.MaxAttempts, "of the other program")
	if s.Programs().Hidden("q") {
		t.Error("the program is not erased")
	}
	stop()
	if err := <-housekept; err != nil && keeping.Err() == nil {
		t.Error(err)
	}
}
