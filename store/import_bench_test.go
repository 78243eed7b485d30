package store

import (
	"slices"
	"testing"

	"service/webhook"
)

// BenchmarkImport imports a program with 20,000 events, each in a delivery that succeeded.
func BenchmarkImport(b *testing.B) {
	from := open(b)
	program(b, from, "p")
	sub := subscribe(b, from, "p", "content_updated")
	const events, batch = 20_000, 500
	for range events / batch {
		names := slices.Repeat([]string{"content_updated"}, batch)
		publish(b, from, "p", names...)
		q := queue(b, from, sub.ID)
		for c := form(b, from, q, 1); c != nil; c = form(b, from, q, 1) {
			end(b, from, c, webhook.StatusSuccess)
		}
	}
	x, err := from.Programs().Export(b.Context(), "p", 0)
	must(b, err)
	b.Cleanup(func() { x.Remove() })
	to := open(b)
	for b.Loop() {
		_, err := to.Programs().Import(b.Context(), &ProgramImport{Path: x.Path, Key: x.Key, Idle: true})
		must(b, err)
		b.StopTimer()
		erase(b, to, "p")
		must(b, to.eraseAll(b.Context(), false))
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)*events/b.Elapsed().Seconds(), "events/s")
}
