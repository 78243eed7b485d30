package dispatcher

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"service/store"
	"service/store/storetest"
	"service/store/watch"
	"service/webhook"
)

// dispatcherWithSubscriptions returns a dispatcher that does not run, with
// subscriptions to contentUpdated.
func dispatcherWithSubscriptions(tb testing.TB, subscriptions int, window time.Duration) *Dispatcher {
	tb.Helper()
	s, err := store.Open(tb.Context(), store.Config{Dir: tb.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	d := New(Config{Store: s, BatchWindow: window})
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range fakeQueues(subscriptions) {
		d.install(&subscriptionQueue{Queue: q})
	}
	return d
}

// longestLockWait calls do, and returns the longest time that another goroutine waited for
// d.mu in between.
func (d *Dispatcher) longestLockWait(do func()) (longest time.Duration) {
	ended, waits := make(chan struct{}), make(chan time.Duration)
	go func() {
		var longest time.Duration
		for {
			select {
			case <-ended:
				waits <- longest
				return
			default:
			}
			began := time.Now()
			d.mu.Lock()
			waited := time.Since(began)
			d.mu.Unlock()
			longest = max(longest, waited)
			runtime.Gosched()
		}
	}()
	do()
	close(ended)
	return <-waits
}

// BenchmarkApplyManySubscriptions measures how long it takes to note an event for many
// subscriptions, and how long others wait for d.mu.
func BenchmarkApplyManySubscriptions(b *testing.B) {
	for _, window := range []time.Duration{0, time.Nanosecond} {
		b.Run(fmt.Sprint("window=", window), func(b *testing.B) {
			const subscriptions = 10_000
			d := dispatcherWithSubscriptions(b, subscriptions, window)
			var longest, total time.Duration
			seq := int64(0)
			for b.Loop() {
				seq++
				wait := d.longestLockWait(func() {
					d.apply(watch.Changes{Events: map[watch.EventKey]int64{contentUpdated: seq}})
					d.mu.Lock()
					d.expire(time.Now())
					d.mu.Unlock()
				})
				longest, total = max(longest, wait), total+wait
				d.mu.Lock()
				for _, q := range d.queues {
					q.readSeq = seq
					d.leaveRunQueue(q)
				}
				d.mu.Unlock()
			}
			b.ReportMetric(float64(total.Microseconds())/float64(b.N), "µs-wait")
			b.ReportMetric(float64(longest.Microseconds()), "µs-longest-wait")
		})
	}
}

// While apply notes an event for many subscriptions, other goroutines can lock d.mu
// in between.
func TestApplyReleasesLock(t *testing.T) {
	d := dispatcherWithSubscriptions(t, 10_000, 0)
	for seq := range int64(100) { // the Go scheduler decides whether this goroutine gets the lock in time
		applied := make(chan struct{})
		go func() {
			defer close(applied)
			d.apply(watch.Changes{Events: map[watch.EventKey]int64{contentUpdated: seq + 1}})
		}()
		noted := 0
		for noted == 0 {
			runtime.Gosched()
			d.mu.Lock()
			for _, q := range d.queues {
				if q.wantedSeq == seq+1 {
					noted++
				}
			}
			d.mu.Unlock()
		}
		<-applied
		if noted < len(d.queues) {
			return
		}
	}
	t.Error("apply did not release the lock before it had noted the event for all subscriptions")
}

// BenchmarkApplyFilters measures how long it takes to determine that none of 10,000 different filters
// matches an event, and to pass it.
func BenchmarkApplyFilters(b *testing.B) {
	d, key := dispatcherWithSubscriptions(b, 10_000, 0), contentUpdated
	_, _, err := storetest.CreateToken(b.Context(), d.store,
		webhook.NewToken{ProgramID: key.ProgramID, UserID: "u", Scopes: []webhook.Scope{webhook.ScopeEventsWrite}})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 10_000 {
		q := d.queues[fmt.Sprint(i)]
		d.uninstall(q)
		is := settings{names: 1, below: -i - 1} // n is never below
		q.Interests[0].Filter = is.filters()[key.Name]
		d.mu.Lock()
		d.install(q)
		d.mu.Unlock()
	}
	for b.Loop() {
		b.StopTimer()
		id := webhook.NewID()
		events := []webhook.Event{{ID: id, Name: key.Name, ReceivedAt: time.Now(), JSON: simulatedJSON(id, key.Name, 0)}}
		if _, err := d.store.Events().Publish(b.Context(), key.ProgramID, events); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		d.apply(watch.Changes{Events: map[watch.EventKey]int64{key: events[0].Seq}})
	}
	for _, q := range d.queues {
		if q.wantedSeq != q.readSeq {
			b.Fatalf("a queue waits: it has read %d of %d", q.readSeq, q.wantedSeq)
		}
	}
}
