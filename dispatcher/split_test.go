package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/storetest"
	"service/test/seed"
	"service/webhook"
)

// judge is a receiver whose verdict depends on the events and the size of a request. It counts how
// often it accepted each event.
type judge struct {
	*subscriber
	verdict  func(p receivedRequest, bytes int64) int
	accepted map[string]int
}

func (w *testbed) judge(verdict func(p receivedRequest, bytes int64) int) *judge {
	j := &judge{verdict: verdict, accepted: make(map[string]int)}
	j.subscriber = w.subscriber(func(n int, rw http.ResponseWriter, r *http.Request) {
		j.mu.Lock()
		defer j.mu.Unlock()
		p := j.requests[n-1]
		code := j.verdict(p, r.ContentLength)
		if code == http.StatusOK && p.names[0] != webhook.EventPing {
			for _, id := range p.ids {
				j.accepted[id]++
			}
		}
		rw.WriteHeader(code)
	})
	return j
}

// do calls fn while no request is being answered, to change the verdict or to read what was
// accepted.
func (j *judge) do(fn func()) {
	synctest.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	fn()
}

// times returns how often an event was accepted.
func (j *judge) times(id string) (n int) {
	j.do(func() { n = j.accepted[id] })
	return n
}

// count returns how many events were accepted.
func (j *judge) count() (n int) {
	j.do(func() { n = len(j.accepted) })
	return n
}

// failedAlone returns the events whose own, last delivery failed, sorted. It also checks a rule that
// holds once nothing is open: a failed delivery of several events is recovered if and only if all
// its events were accepted.
func (w *testbed) failedAlone(j *judge, sub webhook.Subscription) (failed []string) {
	w.t.Helper()
	for _, d := range w.all(sub) {
		if !d.Status.Final() || d.Splitting {
			w.t.Fatalf("delivery %s of %d events is open: %s, splitting %t", d.ID, len(d.Events), d.Status, d.Splitting)
		}
		if d.Status == webhook.StatusSuccess || d.Events[0].Name == webhook.EventPing {
			continue
		}
		recovered := true
		for _, e := range d.Events {
			if j.times(e.ID) == 0 {
				recovered = false
				if len(d.Events) == 1 {
					failed = append(failed, e.ID)
				}
			}
		}
		if recovered == d.RecoveredAt.IsZero() {
			w.t.Errorf("delivery %s (%d events, %s, %s): recovered at %v, want recovered %t", d.ID, len(d.Events), d.FailureReason, d.SplitOf,
				d.RecoveredAt, recovered)
		}
	}
	slices.Sort(failed)
	return slices.Compact(failed)
}

// all returns the deliveries of a subscription, oldest first.
func (w *testbed) all(sub webhook.Subscription) (all []webhook.Delivery) {
	w.t.Helper()
	q := webhook.ListQuery{Sort: webhook.DeliveryList.Default, Size: webhook.MaxPageSize, Number: 1}
	for {
		page, next, err := w.d.store.Deliveries().Page(context.Background(), "p", sub.ID, &q)
		if err != nil {
			w.t.Fatal(err)
		}
		if all = append(all, page...); next == "" {
			slices.Reverse(all)
			return all
		}
		q.Cursor = next
	}
}

// held creates a subscription whose receiver answers nothing until release is called, so that events
// published once its slots are occupied wait.
func (w *testbed) held(verdict func(p receivedRequest, bytes int64) int,
	change func(*webhook.SubscriptionFields)) (j *judge, sub webhook.Subscription, release func()) {
	gate := make(chan struct{})
	j = w.judge(verdict)
	respond := j.respond
	j.respond = func(n int, rw http.ResponseWriter, r *http.Request) {
		<-gate
		respond(n, rw, r)
	}
	sub = w.subscribe(j.subscriber, change)
	return j, sub, func() { close(gate) }
}

// refuses returns the verdict of a receiver that answers code to requests with one of the events.
func refuses(code int, poison *[]string) func(receivedRequest, int64) int {
	return func(p receivedRequest, _ int64) int {
		if slices.ContainsFunc(p.ids, func(id string) bool { return slices.Contains(*poison, id) }) {
			return code
		}
		return http.StatusOK
	}
}

// Refused events fail alone, whatever other events were sent with them: with 422 at
// once, with 500 after five attempts.
func TestSplitByEvent(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		for _, code := range []int{http.StatusUnprocessableEntity, http.StatusInternalServerError} {
			cfg := breakerConfig()
			cfg.MaxInFlight = 1
			runInBubble(t, cfg, func(w *testbed) {
				var poison []string
				j, sub, release := w.held(refuses(code, &poison), func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
				w.publish("content_updated")
				synctest.Wait()
				ids := w.publishN(500, "content_updated", "content_deleted")
				j.do(func() { poison = []string{ids[7], ids[8], ids[250], ids[499]} })
				release()
				time.Sleep(48 * time.Hour)
				synctest.Wait()
				want := slices.Sorted(slices.Values(poison))
				if got := w.failedAlone(j, sub); !slices.Equal(got, want) {
					t.Errorf("ordered %t, %d: got failed events %v, want %v", ordered, code, got, want)
				}
				if j.count() != 501-len(poison) {
					t.Errorf("ordered %t, %d: got %d events, want %d", ordered, code, j.count(), 501-len(poison))
				}
			})
		}
	}
}

// A receiver that refuses large requests costs no event, and the service learns a smaller size.
func TestSplitBySize(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		refused := 0
		j, sub, release := w.held(func(p receivedRequest, bytes int64) int {
			if bytes > 3000 {
				refused++
				return http.StatusRequestEntityTooLarge
			}
			return http.StatusOK
		}, nil)
		w.publish("content_updated")
		synctest.Wait()
		w.publishN(2000, "content_updated")
		release()
		time.Sleep(time.Hour)
		if got := w.failedAlone(j, sub); len(got) > 0 || j.count() != 2001 {
			t.Errorf("got %d failed and %d delivered events, want 0 and 2001", len(got), j.count())
		}
		if refused > 24 {
			t.Errorf("got %d refused requests, want a bound to be learned", refused)
		}
		w.wantHealth(sub, webhook.HealthHealthy, "in the end")
		if open, err := w.d.store.Incidents().Open(context.Background(), "p", 10, 0); err != nil || len(open) > 0 {
			t.Errorf("got %d incidents (%v), want none", len(open), err)
		}
	})
}

// After a 429 the events are sent again as one delivery, and alone only after a second 429.
func TestSplitByRate(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		limited := 2
		var sizes []int // excluding the ping
		j, sub, release := w.held(func(p receivedRequest, _ int64) int {
			if p.names[0] != webhook.EventPing {
				sizes = append(sizes, len(p.ids))
			}
			if len(p.ids) > 1 && limited > 0 {
				limited--
				return http.StatusTooManyRequests
			}
			return http.StatusOK
		}, func(f *webhook.SubscriptionFields) { f.MaxInFlight = new(1) })
		w.publish("content_updated")
		synctest.Wait()
		w.publishN(10, "content_updated")
		release()
		time.Sleep(time.Hour)
		if got := w.failedAlone(j, sub); len(got) > 0 || j.count() != 11 {
			t.Errorf("got %d failed and %d delivered events, want 0 and 11", len(got), j.count())
		}
		if want := []int{1, 10, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}; !slices.Equal(sizes, want) {
			t.Errorf("got requests of %v events, want %v", sizes, want)
		}
	})
}

// The events of an ordered subscription arrive in order, even those that were refused together.
func TestSplitOrdered(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		var poison []string
		var got []string
		verdict := refuses(http.StatusBadRequest, &poison)
		j, _, release := w.held(func(p receivedRequest, bytes int64) int {
			code := verdict(p, bytes)
			if code == http.StatusOK && p.names[0] != webhook.EventPing {
				got = append(got, p.ids...)
			}
			return code
		}, inOrder)
		ids := w.publishN(1, "content_updated")
		synctest.Wait()
		ids = append(ids, w.publishN(300, "content_updated", "content_deleted")...)
		j.do(func() { poison = []string{ids[50], ids[150]} })
		release()
		time.Sleep(time.Hour)
		synctest.Wait()
		want := slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(poison, id) })
		if !slices.Equal(got, want) {
			t.Errorf("got %d of %d events, or in the wrong order", len(got), len(want))
		}
	})
}

// With a wrong credential the events wait until it is right, including those that were refused
// together. Only events that are sent alone before the breaker opens fail.
func TestSplitWaitsWhileFailing(t *testing.T) {
	cfg := breakerConfig()
	cfg.MaxInFlight = 1
	runInBubble(t, cfg, func(w *testbed) {
		accepted, broken := false, true
		j, sub, release := w.held(func(p receivedRequest, _ int64) int {
			if accepted && broken {
				return http.StatusUnauthorized
			}
			accepted = accepted || p.names[0] != webhook.EventPing
			return http.StatusOK
		}, nil)
		w.publish("content_updated")
		synctest.Wait()
		w.publishN(900, "content_updated", "content_deleted")
		release()
		time.Sleep(time.Hour)
		w.wantHealth(sub, webhook.HealthFailing, "with a wrong credential")
		j.do(func() { broken = false })
		time.Sleep(time.Hour)
		if got := w.failedAlone(j, sub); len(got) > 4 || j.count()+len(got) != 901 {
			t.Errorf("got %d failed and %d delivered events, want at most 4, and the others", len(got), j.count())
		}
	})
}

// oneSlot is a configuration in which events that wait behind one in flight are in one batch.
func oneSlot() Config {
	cfg := breakerConfig()
	cfg.MaxInFlight = 1
	return cfg
}

// splitHalfway has a receiver refuse one of 100 events that wait in a batch, and returns after a split
// has sent some of them at a rate per second for 20 s.
func (w *testbed) splitHalfway(rate float64) (j *judge, sub webhook.Subscription, poison []string) {
	w.t.Helper()
	j, sub, release := w.held(refuses(http.StatusBadRequest, &poison), nil)
	w.publish("content_updated")
	synctest.Wait()
	ids := w.publishN(100, "content_updated")
	j.do(func() { poison = ids[50:51] })
	w.update(sub, &webhook.SubscriptionFields{MaxPerSecond: &rate})
	synctest.Wait() // the dispatcher has read the rate
	release()
	time.Sleep(20 * time.Second)
	if j.count() < 10 || j.count() > 90 {
		w.t.Fatalf("%d events were delivered, want some of 100", j.count())
	}
	return j, sub, poison
}

// A split continues after a crash, and sends no event again whose delivery was recorded.
func TestSplitSurvivesCrash(t *testing.T) {
	runInBubble(t, oneSlot(), func(w *testbed) {
		j, sub, poison := w.splitHalfway(2)
		w.crash()
		time.Sleep(time.Hour)
		if got := w.failedAlone(j, sub); !slices.Equal(got, poison) || j.count() != 100 {
			t.Errorf("got failed events %v and %d delivered, want %v and 100", got, j.count(), poison)
		}
	})
}

// Cancelling the failed delivery ends its split.
func TestSplitIsCancelled(t *testing.T) {
	runInBubble(t, oneSlot(), func(w *testbed) {
		j, sub, _ := w.splitHalfway(1)
		all := w.all(sub)
		at := slices.IndexFunc(all, func(d webhook.Delivery) bool { return d.Splitting })
		if at < 0 {
			t.Fatal("no delivery is splitting")
		}
		if err := storetest.Cancel(context.Background(), w.d.store, "p", sub.ID, all[at].ID); err != nil {
			t.Fatal(err)
		}
		before := j.count()
		time.Sleep(time.Hour)
		if n := j.count() - before; n > 1 {
			t.Errorf("%d events were sent after the split was cancelled", n)
		}
		if d := w.delivery(sub, all[at].ID); d.Splitting || d.Status != webhook.StatusFailed {
			t.Errorf("got %+v, want failed and not splitting", d)
		}
	})
}

var batchingPlans = flag.Int("batching.plans", 0, "how many plans TestBatchSizeDecidesNothing plays; 0 for 20, or 4 with -short")

// The set of failed events does not depend on the batch size, for receivers whose verdict depends
// on the event or on the size of the body.
func TestBatchSizeDecidesNothing(t *testing.T) {
	n := 20
	if testing.Short() {
		n = 4
	}
	seed.Each(t, cmp.Or(*batchingPlans, n), func(t *testing.T, s uint64) {
		batched, single := failedOf(t, s, 100), failedOf(t, s, 1)
		if !slices.Equal(batched, single) {
			t.Errorf("with batches the events %v failed, without %v", batched, single)
		}
	})
}

// refusal returns the status of a response: that of the first refused event.
func refusal(p *receivedRequest, bad map[int]int, number map[string]int) int {
	for _, id := range p.ids {
		if code, ok := bad[number[id]]; ok && p.names[0] != webhook.EventPing {
			return code
		}
	}
	return http.StatusOK
}

// failedOf plays a random plan, and returns the numbers of the events that failed.
func failedOf(t *testing.T, s uint64, batch int) (numbers []int) {
	t.Helper()
	cfg := breakerConfig()
	cfg.BatchSize = batch
	runInBubble(t, cfg, func(w *testbed) {
		r := seed.New(s)
		n := 1 + r.IntN(400)
		codes := []int{400, 401, 404, 409, 413, 422, 500, 503}
		bad := make(map[int]int) // number of a refused event: the status
		for range r.IntN(6) {
			bad[r.IntN(n)] = codes[r.IntN(len(codes))]
		}
		most := int64(1000 + r.IntN(20000))
		large := make(map[int]bool) // number of an event that is too large by itself
		for range r.IntN(4) {
			large[r.IntN(n)] = true
		}
		ordered := r.IntN(3) == 0
		number := make(map[string]int)
		j, sub, release := w.held(func(p receivedRequest, bytes int64) int {
			if bytes > most {
				return http.StatusRequestEntityTooLarge
			}
			return refusal(&p, bad, number)
		}, func(f *webhook.SubscriptionFields) { f.Ordered = &ordered })
		for i := range n {
			size := r.IntN(500)
			if large[i] {
				size = int(most)
			}
			number[w.publishOfSize([]string{"content_updated", "content_deleted"}[r.IntN(2)], size)] = i
			if r.IntN(50) == 0 {
				synctest.Wait()
			}
		}
		release()
		time.Sleep(96 * time.Hour)
		synctest.Wait()
		for _, id := range w.failedAlone(j, sub) {
			numbers = append(numbers, number[id])
		}
		if j.count()+len(numbers) != n {
			t.Errorf("%d events were delivered and %d failed, of %d", j.count(), len(numbers), n)
		}
	})
	slices.Sort(numbers)
	return numbers
}

// A retry is not sent once one of its event types was removed from the subscription (spec,
// section 6.1.4): it fails as unsubscribed, its other events are sent alone, and waiting events
// of that type are not sent either.
func TestRemovedType(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		broken := statusSwitch{code: http.StatusInternalServerError}
		broken.Store(true)
		j, sub, release := w.held(func(receivedRequest, int64) int { return broken.status(nil) }, inOrder)
		w.publish("content_deleted")
		synctest.Wait()
		release()
		time.Sleep(time.Second)
		var kept []string
		broken.Store(false)
		time.Sleep(time.Minute)
		broken.Store(true)
		ids := w.publishN(1, "content_updated")
		synctest.Wait() // in flight, and refused
		batch := w.publishN(10, "content_updated", "content_deleted")
		for i, id := range batch {
			if i%2 == 1 {
				kept = append(kept, id)
			}
		}
		w.update(sub, &webhook.SubscriptionFields{Events: &[]string{"content_deleted"}})
		synctest.Wait()
		broken.Store(false)
		time.Sleep(12 * time.Hour)
		for _, id := range append(ids, batch...) {
			if got, want := j.times(id), slices.Contains(kept, id); (got > 0) != want {
				t.Errorf("event %s was delivered %d times, want it delivered: %t", id, got, want)
			}
		}
		at := slices.IndexFunc(w.all(sub), func(d webhook.Delivery) bool { return d.Events[0].ID == ids[0] })
		d := w.delivery(sub, w.all(sub)[at].ID)
		if d.FailureReason != webhook.FailureUnsubscribed || d.AttemptsMade != 1 || !d.RecoveredAt.IsZero() {
			t.Errorf("got %+v, want it unsubscribed after one attempt", d)
		}
		var refused *webhook.Error
		_, err := storetest.Redeliver(context.Background(), w.d.store, "p", sub.ID, d.ID)
		if !errors.As(err, &refused) || refused.Code != webhook.CodeConflict || !strings.Contains(refused.Detail, "content_updated") {
			t.Errorf("redelivery: got %v, want a conflict that names content_updated", err)
		}
	})
}

// A batch with a removed type fails as unsubscribed before its retry, and only its other events are
// sent.
func TestRemovedTypeOfBatch(t *testing.T) {
	runInBubble(t, breakerConfig(), func(w *testbed) {
		var refused []string
		j, sub, release := w.held(refuses(http.StatusInternalServerError, &refused),
			func(f *webhook.SubscriptionFields) { f.MaxInFlight = new(1) })
		w.publish("content_deleted")
		synctest.Wait()
		ids := w.publishN(10, "content_updated", "content_deleted")
		j.do(func() { refused = ids[:1] })
		release()
		time.Sleep(time.Second) // the batch was refused, and waits for its retry
		w.update(sub, &webhook.SubscriptionFields{Events: &[]string{"content_deleted"}})
		time.Sleep(time.Hour)
		for i, id := range ids {
			if got, want := j.times(id), i%2; got != want {
				t.Errorf("event %d was delivered %d times, want %d", i, got, want)
			}
		}
	})
}
