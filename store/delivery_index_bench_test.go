package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/store/record"
	"service/webhook"
)

// BenchmarkDeliveryIndexes measures what each index of deliveries costs: how much more processor time
// the writes of a delivery take on a database with the index than on one without it, in alternating
// chunks. The deliveries are of a kind that the index contains, such as retried ones; hot-µs is the
// cost of a delivery that succeeds at the first attempt. bytes is the size of an entry.
//
//	go test -run '^$' -bench DeliveryIndexes -benchtime 1x ./store
//
// Processor time excludes waits for the disk and for other processes. Events are not published,
// so only the rows of deliveries, attempts and delivery_events are written.
func BenchmarkDeliveryIndexes(b *testing.B) {
	stored, rounds, chunk := 40_000, 120, 100
	if testing.Short() {
		stored, rounds, chunk = 1000, 3, 20
	}
	full := b.TempDir()
	w := newIndexWorkload(openDir(b, full), b)
	for n := 0; n < stored; n += chunk {
		w.write(chunk, "")
	}
	must(b, w.s.Close())
	for _, x := range []struct{ index, kind string }{
		{"deliveries_of_subscription", "success"},
		{"deliveries_completed", "success"},
		{"deliveries_by_status", "failed"},
		{"deliveries_due", "retried"},
		{"deliveries_due_pings", "retried ping"},
		{"deliveries_by_response", "failed"},
		{"deliveries_by_error", "error"},
		{"deliveries_pings", "ping"},
		{"deliveries_by_trouble", "failed"},
		{"deliveries_by_answer", "failed"},
		{"deliveries_by_fault", "error"},
		{"deliveries_retried", "retried"},
		{"deliveries_by_original", "redelivery"},
		{"deliveries_by_split", "split"},
		{"deliveries_by_replay", "replay"},
		{"deliveries_open_redeliveries", "redelivery"},
	} {
		b.Run(x.index, func(b *testing.B) {
			with, without := w.copy(b, full), w.copy(b, full)
			without.exec("DROP INDEX " + x.index)
			for b.Loop() {
				b.ReportMetric(costOf(with, without, rounds, chunk, x.kind), "µs")
				b.ReportMetric(costOf(with, without, rounds, chunk, "success"), "hot-µs")
			}
			before := databaseBytes(b, with.s)
			entries := with.entries(x.index)
			if with.exec("DROP INDEX " + x.index); entries > 0 {
				b.ReportMetric(float64(before-databaseBytes(b, with.s))/float64(entries), "bytes")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// costOf returns how much more processor time a delivery of a kind takes with than without, in
// microseconds. It compares the first quartiles, because other work on the machine only adds time.
func costOf(with, without *indexWorkload, rounds, chunk int, kind string) float64 {
	sides := [2]*indexWorkload{with, without}
	var times [2][]time.Duration
	for i := range rounds {
		for j := range sides {
			side := (i + j) % 2
			times[side] = append(times[side], sides[side].write(chunk, kind))
		}
	}
	slices.Sort(times[0])
	slices.Sort(times[1])
	return (times[0][rounds/4] - times[1][rounds/4]).Seconds() * 1e6 / float64(chunk)
}

// indexWorkload writes deliveries as the dispatcher does, without events and receivers.
type indexWorkload struct {
	s    *Store
	b    testing.TB
	r    *rand.Rand
	subs []webhook.Subscription
}

func newIndexWorkload(s *Store, b testing.TB) *indexWorkload {
	w := &indexWorkload{s: s, b: b, r: rand.New(rand.NewPCG(1, 2))}
	program(b, s, "p")
	for range 50 {
		w.subs = append(w.subs, subscribe(b, s, "p", "content_updated"))
	}
	return w
}

// copy opens a copy of the closed database in a directory.
func (w *indexWorkload) copy(b *testing.B, dir string) *indexWorkload {
	b.Helper()
	to := b.TempDir()
	must(b, errors.Join(os.CopyFS(to, os.DirFS(dir)), os.Chmod(filepath.Join(to, "secret.key"), 0o600)))
	return &indexWorkload{s: openDir(b, to), b: b, r: rand.New(rand.NewPCG(1, 2)), subs: w.subs}
}

func (w *indexWorkload) exec(query string) {
	w.b.Helper()
	must(w.b, w.s.writer.do(func(t *tx) error { return t.Exec(query) }))
}

// entries returns the number of rows of a partial index.
func (w *indexWorkload) entries(index string) (n int64) {
	w.b.Helper()
	var text string
	must(w.b, w.s.db.Scan(w.b.Context(), "SELECT sql FROM sqlite_schema WHERE name = ?", []any{index}, &text))
	_, where, partial := strings.Cut(text, " WHERE ")
	if !partial {
		where = "TRUE"
	}
	must(w.b, w.s.db.Scan(w.b.Context(), "SELECT count(*) FROM deliveries WHERE "+where, nil, &n))
	return n
}

// write writes deliveries of a kind, "" for a mixture, in one transaction, and returns its
// processor time.
func (w *indexWorkload) write(n int, kind string) time.Duration {
	w.b.Helper()
	kinds := make([]string, n)
	for i := range kinds {
		if kinds[i] = kind; kind == "" {
			kinds[i] = "success"
			if w.r.IntN(5) == 0 {
				kinds[i] = []string{"failed", "retried", "error", "ping", "retried ping", "redelivery", "replay", "split"}[w.r.IntN(8)]
			}
		}
	}
	began := processorTime(w.b)
	must(w.b, w.s.writer.do(func(t *tx) error {
		var open []*Claim
		for i := range n {
			c := &Claim{ID: webhook.NewID(), ProgramID: "p", SubscriptionID: w.subs[w.r.IntN(len(w.subs))].ID}
			if err := w.insert(t, c, kinds[i]); err != nil {
				return err
			}
			open = append(open, c)
		}
		w.r.Shuffle(n, func(i, j int) { open[i], open[j], kinds[i], kinds[j] = open[j], open[i], kinds[j], kinds[i] })
		for i, c := range open {
			if err := w.finish(t, c, kinds[i]); err != nil {
				return err
			}
		}
		return nil
	}))
	return processorTime(w.b) - began
}

// insert stores a delivery whose first attempt is in flight.
func (w *indexWorkload) insert(t *tx, c *Claim, kind string) error {
	var by maker
	switch kind {
	case "replay":
		by.replay = "0198f6a3-7c1e-7d4b-9a41-000000000001"
	case "split":
		by.split = record.ShortID("0198f6a3-7c1e-7d4b-9a41-000000000002")
	}
	if err := t.insertFormed(c, fmt.Sprintf("[%d]", w.r.Int64N(1<<40)), by); err != nil {
		return err
	}
	switch kind {
	case "ping", "retried ping":
		return t.Exec("UPDATE deliveries SET seqs = NULL, ping = x'7b7d' WHERE num = ?", c.num)
	case "redelivery":
		return t.Exec("UPDATE deliveries SET redelivery_of = id WHERE num = ?", c.num)
	}
	return nil
}

// finish records the attempts of a delivery.
func (w *indexWorkload) finish(t *tx, c *Claim, kind string) error {
	a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Duration: 20 * time.Millisecond, Result: webhook.ResultSuccess, ResponseStatus: 200}
	done, again := webhook.Step{Status: webhook.StatusSuccess}, webhook.Step{Status: webhook.StatusRetryable, NextAttemptAt: time.Now()}
	switch kind {
	case "failed":
		a.Result, a.ResponseStatus = webhook.ResultFailed, 404
		return t.finishAttempt(c, &a, webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected})
	case "retried", "retried ping", "error":
		first := a
		if first.Result, first.ResponseStatus = webhook.ResultRetryable, 503; kind == "error" {
			first.ResponseStatus, first.Error = 0, webhook.ErrorTimeout
		}
		if err := t.finishAttempt(c, &first, again); err != nil {
			return err
		}
		if kind == "error" { // it stays in the index
			return nil
		}
		if err := t.Exec("UPDATE deliveries SET status = 'pending', attempts_made = 2, claimed_at = created_at, next_attempt_at = NULL "+
			"WHERE num = ?", c.num); err != nil {
			return err
		}
		a.Number = 2
	}
	return t.finishAttempt(c, &a, done)
}

// processorTime returns the processor time of this process so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
