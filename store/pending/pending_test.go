package pending

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"service/store/schema"
	"service/store/sqlite"
	"service/store/sqlite/sqlitetest"
	"service/webhook"
)

// A flush writes everything, even in the transaction in which the chore has written a few.
func TestFlush(t *testing.T) {
	b := values[int, int]{pending: make(map[int]int)}
	for key := range 10 {
		b.pending[key] = 1
	}
	stored := make(map[int]int)
	write := func(n int, transaction uint64) {
		for _, values := range b.some(n, transaction) {
			for key, value := range values {
				stored[key] += value
			}
		}
	}
	write(3, 1)
	b.pending[0]++ // an attempt between the two
	write(100, 1)
	write(100, 1)
	for key := range 10 {
		want := 1
		if key == 0 {
			want = 2
		}
		if stored[key] != want {
			t.Errorf("value %d: got %d, want %d", key, stored[key], want)
		}
	}

	// The transaction fails: the next one writes the same values, and newer ones.
	clear(stored)
	b.pending[20] = 1
	write(100, 2)
	b.written(0)
	write(100, 3)
	sum := 0
	for _, value := range stored {
		sum += value
	}
	if sum != 12 || stored[20] != 1 {
		t.Errorf("after a failed transaction: got %v", stored)
	}
}

func BenchmarkCountStats(b *testing.B) {
	var s Stats
	id := webhook.NewID()
	a := &webhook.Attempt{Result: webhook.ResultSuccess, ResponseStatus: 200, Duration: 7 * time.Millisecond}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		s.Count("p", id, a, now)
	}
}

// The statistics of many subscriptions are found by the primary key.
func TestPlan(t *testing.T) {
	db, err := sqlite.Open(t.Context(), sqlite.Config{
		Path: filepath.Join(t.TempDir(), "service.db"), Schema: schema.Current, Logger: slog.New(slog.DiscardHandler),
		Readers: [...]int{sqlite.Service: 1, sqlite.Lookup: 1, sqlite.List: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(nil)
	sqlitetest.CheckPlan(t, db, selectStatCounts, 4,
		"SEARCH t USING PRIMARY KEY (program_id=? AND subscription_id=? AND span=? AND at>? AND at<?)")
}
