package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"service/store/tail"
	"service/webhook"
)

// BenchmarkPublish measures acknowledged publishes; each is fsynced.
func BenchmarkPublish(b *testing.B) {
	for _, publishers := range []int{1, 32, 256} {
		b.Run(fmt.Sprint("publishers=", publishers), func(b *testing.B) {
			s := openProgram(b)
			before := ran(b, s)
			b.ReportAllocs()
			b.SetParallelism((publishers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			if publishers == 1 {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
				b.SetParallelism(1)
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := s.Events().Publish(context.Background(), "p", []webhook.Event{event("content_updated")}); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "publishes/s")
			b.ReportMetric(float64(ran(b, s)-before)/float64(b.N), "statements/op")
		})
	}
}

// BenchmarkPublishAgain publishes events in transactions of 1,000: new ones, those of a log
// of 50,000 again in order, and again in random order, where each stored event to compare
// with is on another page.
func BenchmarkPublishAgain(b *testing.B) {
	const stored, atOnce = 50_000, 1000
	for _, order := range []string{"new", "again", "again, in another order"} {
		b.Run(order, func(b *testing.B) {
			s := openProgram(b)
			publish := func(events []webhook.Event) {
				publishAll(b, s, "p", slices.Clone(events)...)
			}
			log := newEvents(max(stored, b.N))
			if order != "new" {
				for chunk := range slices.Chunk(log[:stored], atOnce) {
					publish(chunk)
				}
			}
			if strings.HasSuffix(order, "another order") {
				rand.New(rand.NewPCG(1, 2)).Shuffle(stored, func(i, j int) { log[i], log[j] = log[j], log[i] })
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += atOnce {
				at := n
				if order != "new" {
					at %= stored
				}
				publish(log[at:min(at+atOnce, at+b.N-n)])
			}
		})
	}
}

// BenchmarkDeliver measures the store's part of delivering one event: it forms the delivery,
// with its attempt counted, and records the result.
func BenchmarkDeliver(b *testing.B) {
	b.Run("response=none", func(b *testing.B) { benchmarkDeliver(b, 200, "", 0) })
	b.Run("response=200", func(b *testing.B) { benchmarkDeliver(b, 200, responseHeader, 0) })
	b.Run("response=404", func(b *testing.B) { benchmarkDeliver(b, 404, responseHeader, 500) })
}

const responseHeader = "Date: Fri, 20 Mar 2026 10:00:00 GMT\nContent-Type: application/json; charset=utf-8\nContent-Length: " +
	"2\nServer: nginx\nX-Request-Id: 0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5\n"

// benchmarkDeliver records responses with a status and a body of the given bytes, and removes
// those above the quotas.
func benchmarkDeliver(b *testing.B, status int, header string, body int) {
	s := open(b)
	s.quotas.responses = 1 << 20
	ctx, stop := context.WithCancel(context.Background())
	housekeeper := make(chan error, 1)
	go func() { housekeeper <- s.Housekeep(ctx) }()
	defer func() {
		stop()
		if err := <-housekeeper; err != nil {
			b.Error(err)
		}
	}()
	program(b, s, "p")
	sub := subscribe(b, s, "p", "content_updated")
	events := newEvents(b.N)
	for len(events) > 0 {
		n := min(len(events), 1000)
		publishAll(b, s, "p", events[:n]...)
		events = events[n:]
	}
	l := queue(b, s, sub.ID)
	before := ran(b, s)
	b.ReportAllocs()
	b.ResetTimer()
	const inFlight = 64
	slots := make(chan struct{}, inFlight)
	for range b.N {
		w, err := s.Queues().waiting(context.Background(), l, l.Wanted, 1, webhook.MaxDeliveryBytes)
		if err != nil || len(w.Seqs) != 1 {
			b.Fatalf("%d events wait (%v)", len(w.Seqs), err)
		}
		slots <- struct{}{} // before Submit, which must be followed by Wait
		f := s.Queues().form(&Credit{Queue: l}, &w)
		f.Submit()
		go func() {
			defer func() { <-slots }()
			c, err := f.Wait()
			if err == nil {
				a := webhook.Attempt{
					Number: 1, StartedAt: time.Now(), Result: webhook.Classify(status, webhook.ErrorNone), ResponseStatus: status,
					ResponseHeader: header, ResponseBody: make([]byte, body),
				}
				_, err = s.Queues().Record(c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{})
			}
			if err != nil {
				b.Error(err)
			}
		}()
	}
	for range inFlight {
		slots <- struct{}{}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
	b.ReportMetric(float64(ran(b, s)-before)/float64(b.N), "statements/op")
}

// BenchmarkRecordRefused records that a delivery of several events was refused, which makes them
// undelivered and opens a split. The events are in deliveries to other subscriptions, too.
func BenchmarkRecordRefused(b *testing.B) {
	for _, x := range []struct{ size, others int }{{1, 0}, {100, 0}, {1000, 0}, {100, 100}, {1000, 100}} {
		b.Run(fmt.Sprintf("events=%d/others=%d", x.size, x.others), func(b *testing.B) { benchmarkRecordRefused(b, x.size, x.others) })
	}
}

func benchmarkRecordRefused(b *testing.B, size, others int) {
	s, sub := openSubscribed(b)
	events := make([]webhook.Event, size)
	l := queue(b, s, sub.ID)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for i := range events {
			events[i] = event("content_updated")
		}
		publishAll(b, s, "p", events...)
		l.Wanted = queue(b, s, sub.ID).Wanted
		w, err := s.Queues().waiting(context.Background(), l, l.Wanted, size, webhook.MaxDeliveryBytes*size)
		if err != nil || len(w.Seqs) != size {
			b.Fatalf("%d events wait (%v)", len(w.Seqs), err)
		}
		f := s.Queues().form(&Credit{Queue: l}, &w)
		f.Submit()
		c, err := f.Wait()
		must(b, err)
		must(b, s.writer.do(func(t *tx) error { // the others' deliveries alone, without their other records
			for i := range int64(others) {
				num := c.num + i + 1
				err := errors.Join(t.linkEvents("p", num, f.seqs), t.Exec("INSERT INTO deliveries (num, id, subscription_id, subscription, "+
					"program_id, status, attempts_made, seqs, created_at, completed_at, counted_at) "+
					"VALUES (?1, ?1, 'other', ?2 + 1000, 'p', 'success', 1, ?3, 0, 0, 0)",
					num, i, f.seqs))
				if err != nil {
					return err
				}
			}
			return nil
		}))
		a := webhook.Attempt{
			Number: 1, StartedAt: time.Now(), Result: webhook.Classify(422, webhook.ErrorNone), ResponseStatus: 422,
			ResponseHeader: responseHeader,
		}
		step := webhook.DefaultRetryPolicy().After(&a, time.Now(), 0)
		b.StartTimer()
		r, err := s.Queues().Record(c, &a, step, webhook.HealthPolicy{})
		if err != nil || r.Split != (size > 1) {
			b.Fatalf("got split %t, want %t (%v)", r.Split, size > 1, err)
		}
	}
}

// ran returns the number of statements the writer has run, including transaction control.
func ran(b *testing.B, s *Store) (n int64) {
	b.Helper()
	must(b, s.writer.do(func(t *tx) error { n = t.Statements(); return nil }))
	return n
}

// BenchmarkCatchUp reads the backlog of a queue from the database, 100 events at a time.
func BenchmarkCatchUp(b *testing.B) {
	const stored, each = 20_000, 100
	s, sub := openSubscribed(b)
	for range stored / each {
		events := newEvents(each)
		publishAll(b, s, "p", events...)
	}
	s.tail = tail.New(0)
	l := queue(b, s, sub.ID)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		w, err := s.Queues().waiting(context.Background(), l, l.Wanted, each, webhook.MaxDeliveryBytes)
		if err != nil || len(w.Seqs) != each {
			b.Fatalf("%d events wait (%v)", len(w.Seqs), err)
		}
		n += each
		if l.Seen = w.To; l.Seen == stored {
			l.Seen = 0
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}
