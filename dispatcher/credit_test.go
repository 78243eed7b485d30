package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"service/store"
	"service/store/sqlite"
	"service/store/storetest"
	"service/store/watch"
	"service/test/harness"
	"service/webhook"
)

// openStore opens a store, which is closed when the test ends.
func openStore(t *testing.T, dir string, fault func(string, bool) sqlite.Fault) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Dir: dir, Fault: fault})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	_, _, err = storetest.CreateToken(t.Context(), s, webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// idleDispatcher returns a dispatcher that does not run, with idle queues.
func idleDispatcher(t *testing.T, s *store.Store, queues ...*store.Queue) *Dispatcher {
	t.Helper()
	d := New(Config{Store: s})
	t.Cleanup(d.workers.Wait)
	s.Queues().SetCredits(d.credits)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range queues {
		d.install(&subscriptionQueue{Queue: q})
	}
	d.dispatch(context.Background(), time.Now())
	return d
}

// fakeQueues returns queues of subscriptions that do not exist.
func fakeQueues(n int) (queues []*store.Queue) {
	for i := range n {
		queues = append(queues, &store.Queue{SubscriptionID: fmt.Sprint(i), ProgramID: "p",
			Active: true, Interests: []store.Interest{{Name: "content_updated", Until: math.MaxInt64}}})
	}
	return queues
}

// newQueue returns the queue of a new subscription whose deliveries are blocked.
func newQueue(t *testing.T, s *store.Store) *store.Queue {
	t.Helper()
	url := "https://10.0.0.1/hook"
	sub, _, err := storetest.CreateSubscription(t.Context(), s, "p", "u",
		&webhook.SubscriptionFields{URL: &url, Events: &[]string{"content_updated"}})
	if err != nil {
		t.Fatal(err)
	}
	q, err := s.Queues().Get(t.Context(), sub.ID)
	if err != nil {
		t.Fatal(err)
	}
	q.NextPing = time.Time{}
	return q
}

var contentUpdated = watch.EventKey{ProgramID: "p", Name: "content_updated"}

// publish publishes one event.
func publish(t *testing.T, s *store.Store) {
	t.Helper()
	if _, err := s.Events().Publish(context.Background(), "p", []webhook.Event{newEvent(contentUpdated.Name)}); err != nil {
		t.Fatal(err)
	}
}

// A publisher waits for few inline deliveries of its event, however many subscriptions
// select it.
func TestCommitSpendsFewCredits(t *testing.T) {
	d := idleDispatcher(t, openStore(t, memoryDir(t), nil), fakeQueues(10_000)...)
	publish(t, d.store)
	if n := d.credits.Taken(); n == 0 || n > maxInlineSubscriptions {
		t.Errorf("got %d credits spent, want 1 to %d", n, maxInlineSubscriptions)
	}
	publish(t, d.store)
	if n := d.credits.Taken(); n > maxInlineSubscriptions {
		t.Errorf("got %d credits spent after the second event, want at most %d", n, maxInlineSubscriptions)
	}
}

// Events published while the store forms an inline delivery do not wait for its
// attempt.
func TestEventsDuringInlineDeliveryAreSentImmediately(t *testing.T) {
	s := openStore(t, memoryDir(t), nil)
	d := idleDispatcher(t, s, newQueue(t, s))
	publish(t, d.store)
	f := <-d.credits.C
	publish(t, d.store)
	d.mu.Lock()
	q := d.queues[f.Queue.SubscriptionID]
	d.mu.Unlock()
	d.apply(watch.Changes{Events: map[watch.EventKey]int64{contentUpdated: 2}})
	d.mu.Lock()
	d.dispatch(t.Context(), time.Now())
	j := job{queue: q, id: q.SubscriptionID, kind: store.CreditEvents, class: q.credit.Class}
	d.occupy(j)
	d.mu.Unlock()
	if claim := d.awaitClaim(t.Context(), j, f); claim == nil || len(claim.Events) != 1 {
		t.Fatalf("got claim %+v, want the first event", claim)
	}
	d.workers.Wait() // the attempt of the first delivery is never made
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.readSeq != 2 || q.inFlight != 1 {
		t.Errorf("got %d events read with %d deliveries in flight, want 2 with 1", q.readSeq, q.inFlight)
	}
}

// A ping that is sent while the store forms a delivery does not change the queue.
func TestPingDuringInlineDelivery(t *testing.T) {
	s := openStore(t, memoryDir(t), nil)
	d := idleDispatcher(t, s, newQueue(t, s))
	publish(t, s)
	f := <-d.credits.C
	d.mu.Lock()
	q := d.queues[f.Queue.SubscriptionID]
	ping := job{queue: q, id: q.SubscriptionID, kind: store.CreditPing, credit: d.credit(q, store.CreditPing)}
	d.mu.Unlock()
	if claim := d.awaitClaim(t.Context(), ping, d.spendCredit(t.Context(), ping)); claim == nil || !claim.Ping {
		t.Fatalf("got claim %+v, want the ping after creation", claim)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.phase != phaseOffered || q.readSeq != 0 {
		t.Errorf("got phase %d and readSeq %d, want %d and 0: the store owns the cursor", q.phase, q.readSeq, phaseOffered)
	}
}

// The ping of a probe is noticed as a change while it is in flight, which starts a second
// ping. The second ping is no probe, even if the first ends before its credit is spent.
func TestPingDuringProbe(t *testing.T) {
	s := openStore(t, memoryDir(t), nil)
	q := newQueue(t, s)
	publish(t, s)
	claim, err := s.Queues().Spend(t.Context(), &store.Credit{Queue: q, Kind: store.CreditEvents, Newest: 1, Count: 1}).Wait()
	if err != nil {
		t.Fatal(err)
	}
	rejected := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultFailed, ResponseStatus: http.StatusGone}
	step := webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected}
	if _, err := s.Queues().Record(claim, &rejected, step, webhook.HealthPolicy{RejectingAfter: 1}); err != nil {
		t.Fatal(err)
	}
	publish(t, s)
	if q, err = s.Queues().Get(t.Context(), q.SubscriptionID); err != nil || !q.Rejecting {
		t.Fatalf("got queue %+v and error %v, want a rejecting queue", q, err)
	}
	q.NextProbe = time.Now()
	d := idleDispatcher(t, s)
	d.mu.Lock()
	d.stopping = true // no other worker starts
	d.install(&subscriptionQueue{Queue: q})
	d.mu.Unlock()
	reserve := func() job {
		d.mu.Lock()
		defer d.mu.Unlock()
		j, ok := d.reservePing(time.Now())
		if !ok {
			t.Fatal("no ping may be sent")
		}
		return j
	}
	probe := reserve()
	if claim := d.awaitClaim(t.Context(), probe, d.spendCredit(t.Context(), probe)); claim == nil || !claim.Probe {
		t.Fatalf("got claim %+v, want a probe", claim)
	}
	d.apply(watch.Changes{Queued: map[string]struct{}{q.SubscriptionID: {}}})
	ping := reserve()
	d.mu.Lock()
	d.release(probe, &store.Recorded{HealthChanged: true}, time.Now())
	d.mu.Unlock()
	if claim := d.awaitClaim(t.Context(), ping, d.spendCredit(t.Context(), ping)); claim != nil {
		t.Errorf("got claim %+v, want none: no ping is due", claim)
	}
}

// A suspended queue offers no credit.
func TestSuspendedQueueOffersNoCredit(t *testing.T) {
	d := idleDispatcher(t, openStore(t, memoryDir(t), nil), fakeQueues(1)...)
	d.mu.Lock()
	d.pauseClaims(d.queues["0"], "0", errors.New("record is unusable"))
	d.mu.Unlock()
	publish(t, d.store)
	if n := d.credits.Taken(); n != 0 {
		t.Errorf("got %d slots in use, want 0", n)
	}
}

// No offered credit is spent while a worker proceeds to its next job, so workers never use
// more slots than there are.
func TestNoCreditIsSpentBetweenJobs(t *testing.T) {
	for _, kind := range []store.CreditKind{store.CreditEvents, store.CreditPing} {
		d := idleDispatcher(t, openStore(t, memoryDir(t), nil), fakeQueues(2)...)
		d.mu.Lock()
		q := d.queues["0"]
		if kind == store.CreditPing {
			d.pings.acquire(q)
			q.pingsInFlight = 1
		} else {
			d.credits.Wait(q.program.slots, store.SlotSlow, true)
			d.credits.Take()
			d.credits.Wait(q.program.slots, store.SlotSlow, false)
			d.occupy(job{queue: q})
		}
		d.release(job{queue: q, id: "0", kind: kind, class: store.SlotSlow}, &store.Recorded{}, time.Now())
		publish(t, d.store)
		if n := d.credits.Taken(); n != 0 {
			t.Errorf("kind %d: got %d slots in use, want 0", kind, n)
		}
		d.mu.Unlock()
	}
}

// A publisher does not wait for the dispatcher's lock, not even for a worker that
// waits for that lock and is about to store a delivery.
func TestPublisherDoesNotWaitForDispatcherLock(t *testing.T) {
	dir := memoryDir(t)
	s := openStore(t, dir, nil)
	q := newQueue(t, s)
	publish(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var d *Dispatcher
	var armed atomic.Bool
	locked := make(chan struct{})
	s = openStore(t, dir, func(_ string, write bool) sqlite.Fault {
		if !write && armed.CompareAndSwap(true, false) { // a worker reads waiting events
			d.mu.Lock()
			close(locked)
		}
		return sqlite.NoFault
	})
	d = idleDispatcher(t, s)
	q.Wanted = 1
	armed.Store(true)
	d.mu.Lock()
	d.install(&subscriptionQueue{Queue: q})
	d.dispatch(context.Background(), time.Now())
	d.mu.Unlock()
	<-locked
	published := make(chan struct{})
	go func() {
		defer close(published)
		publish(t, s)
	}()
	select {
	case <-published:
	case <-time.After(harness.Timeout()):
		t.Error("the publisher is blocked by the dispatcher's lock")
	}
	d.mu.Unlock()
	<-published
}

// A delivery fails while its queue is read again, so the queue that was read does not know of its split.
func TestReloadKeepsSplit(t *testing.T) {
	s := openStore(t, t.TempDir(), nil)
	read := newQueue(t, s)
	d := idleDispatcher(t, s, read)
	q := d.queues[read.SubscriptionID]
	d.mu.Lock()
	defer d.mu.Unlock()
	q.recordAttempt(&store.Claim{}, &webhook.Attempt{Result: webhook.ResultFailed}, &store.Recorded{Split: true}, time.Now(), &d.cfg)
	d.install(q)
	if !q.splitting {
		t.Error("the queue has forgotten the split")
	}
}
