package store

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"service/webhook"
)

// BenchmarkPublishDuringRetention measures the latency of publishing while retention removes
// old records, while a program is erased, and while nothing is removed. 8 publishers each publish
// one event at a time for 5 s (with -short 0.1 s, on a hundredth of the records).
//
//	go test -run '^$' -bench PublishDuringRetention -benchtime 1x -count 5 ./store
func BenchmarkPublishDuringRetention(b *testing.B) {
	b.Run("alone", func(b *testing.B) { benchPublish(b, "") })
	b.Run("retention", func(b *testing.B) { benchPublish(b, "retention") })
	b.Run("erasure", func(b *testing.B) { benchPublish(b, "erasure") })
}

func benchPublish(b *testing.B, during string) {
	const publishers = 8
	lasts, old := 5*time.Second, 200_000
	if testing.Short() {
		lasts, old = 100*time.Millisecond, 2000
	}
	for b.Loop() {
		b.StopTimer()
		s := open(b)
		oldEvents(b, s, old)
		program(b, s, "q")
		time.Sleep(2 * time.Millisecond)
		edge := olderThan(b, s, time.Now())
		edge.counted += time.Second // counted_at is rounded up
		ctx, cancel := context.WithTimeout(context.Background(), lasts)
		b.StartTimer()
		var mu sync.Mutex
		var waits []time.Duration
		var all sync.WaitGroup
		for range publishers {
			all.Go(func() {
				var mine []time.Duration
				for ctx.Err() == nil {
					began := time.Now()
					publish(b, s, "q", "content_updated")
					mine = append(mine, time.Since(began))
				}
				mu.Lock()
				defer mu.Unlock()
				waits = append(waits, mine...)
			})
		}
		w := &sweepResult{}
		switch during {
		case "retention":
			w.run(ctx, b, s, edge)
		case "erasure":
			w.erase(ctx, b, s)
		}
		all.Wait()
		b.StopTimer()
		cancel()
		slices.Sort(waits)
		at := func(share float64) float64 {
			return float64(waits[int(float64(len(waits)-1)*share)].Microseconds()) / 1000
		}
		b.ReportMetric(at(0.5), "p50-ms")
		b.ReportMetric(at(0.99), "p99-ms")
		b.ReportMetric(at(1), "most-ms")
		b.ReportMetric(float64(len(waits))/lasts.Seconds(), "published/s")
		b.ReportMetric(float64(w.events), "removed")
		b.ReportMetric(float64(w.longest.Microseconds())/1000, "longest-step-ms")
		b.StartTimer() // Loop requires a running timer
	}
}

// sweepResult is the result of a sweep during the benchmark.
type sweepResult struct {
	events  int64
	longest time.Duration
}

func (r *sweepResult) run(ctx context.Context, b *testing.B, s *Store, old cutoff) {
	w, err := s.sweep(ctx, old, old)
	if err != nil && ctx.Err() == nil {
		b.Error(err)
	}
	r.events, r.longest = w.swept.Events, w.steps.longest
	if ctx.Err() == nil {
		b.Log("the sweep finished before the time was over")
	}
}

func (r *sweepResult) erase(ctx context.Context, b *testing.B, s *Store) {
	err := s.Write(ctx, func(w Write) error {
		_, err := w.Programs().Erase("p", webhook.AuditEntry{})
		return err
	})
	e := &programErasure{steps: s.newSteps(ctx, sweepPace), programID: "p"}
	if err == nil {
		err = e.run()
	}
	if err != nil && ctx.Err() == nil {
		b.Error(err)
	}
	r.events, r.longest = e.swept.Events, e.steps.longest
	if ctx.Err() == nil {
		b.Log("the erasure finished before the time was over")
	}
}

// oldEvents publishes count events, delivered in successful deliveries of 100 events each.
func oldEvents(b *testing.B, s *Store, count int) {
	program(b, s, "p")
	sub := subscribe(b, s, "p", "content_updated")
	for range count / 1000 {
		publish(b, s, "p", slices.Repeat([]string{"content_updated"}, 1000)...)
	}
	l := queue(b, s, sub.ID)
	for range count / 100 {
		end(b, s, form(b, s, l, 100), webhook.StatusSuccess)
	}
}
