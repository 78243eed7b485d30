package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"service/store/datadir"
	"service/test/harness"
	"service/webhook"
)

// TestBytesPerEvent bounds the database size of an event of 363 bytes with its delivery to one
// subscription and all indexes. It is deterministic except for IDs and times, which have a
// fixed size. With KEEP_DATABASES=DIR it keeps the databases there, for SQLite's dbstat.
func TestBytesPerEvent(t *testing.T) {
	harness.Long(t)
	for _, c := range []struct {
		name      string
		batch     int
		randomIDs bool
		most      float64
	}{
		{"single", 1, false, 550},
		{"single, publisher's ids", 1, true, 550},
		{"batched", 100, false, 420},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := bytesPerEvent(t, c.batch, c.randomIDs)
			t.Logf("%.0f bytes of database per event", got)
			if got > c.most {
				t.Errorf("%.0f bytes, want at most %.0f", got, c.most)
			}
		})
	}
}

// bytesPerEvent publishes events, delivers them to one subscription in batches, and returns the
// database bytes per event.
func bytesPerEvent(t *testing.T, batch int, randomIDs bool) float64 {
	const (
		events   = 10_000
		together = 100 // events per request
		inFlight = 32  // deliveries
	)
	dir := memoryDir(t)
	s := openDir(t, dir)
	program(t, s, "acme")
	sub := subscribe(t, s, "acme", "user_notification_updated")
	before := databaseBytes(t, s)
	r := rand.New(rand.NewPCG(1, 2))
	at := time.Now().Add(-time.Hour)
	var claims []*Claim
	record := func(left int) {
		for len(claims) > left {
			i := r.IntN(len(claims)) // completed in random order
			recordSuccess(t, s, r, claims[i], at)
			claims[i] = claims[len(claims)-1]
			claims = claims[:len(claims)-1]
		}
	}
	for range events / together {
		published := make([]webhook.Event, together)
		for i := range published {
			id := webhook.NewID()
			if randomIDs {
				id = randomID(r)
			}
			at = at.Add(time.Duration(r.IntN(50)) * time.Millisecond)
			published[i] = notification(r, id, at)
		}
		publishAll(t, s, "acme", published...)
		l := queue(t, s, sub.ID)
		for c := form(t, s, l, batch); c != nil; c = form(t, s, l, batch) {
			claims = append(claims, c)
			record(inFlight)
		}
		must(t, s.removeResponses(t.Context()))
	}
	record(0)
	must(t, s.removeResponses(t.Context()))
	size := databaseBytes(t, s) - before
	if to := os.Getenv("KEEP_DATABASES"); to != "" {
		must(t, s.Close()) // checkpoints the WAL
		db, err := os.ReadFile(filepath.Join(dir, datadir.Database))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, fmt.Sprintf("%d-%v.db", batch, randomIDs)), db, 0o600))
	}
	return float64(size) / events
}

// recordSuccess records an attempt with status 200.
func recordSuccess(t *testing.T, s *Store, r *rand.Rand, c *Claim, at time.Time) {
	t.Helper()
	a := webhook.Attempt{
		Number: 1, StartedAt: time.Now(), Duration: time.Duration(20+r.IntN(200)) * time.Millisecond,
		Result: webhook.ResultSuccess, ResponseStatus: 200, ResponseHeader: responseHeader, ResponseBody: []byte("ok"),
		Phases: webhook.Phases{FirstByte: time.Duration(10_000+r.IntN(9000)) * time.Microsecond},
	}
	if r.IntN(50) == 0 { // on a new connection
		a.Phases.DNS, a.Phases.Connect, a.Phases.TLS = 2*time.Millisecond, 10*time.Millisecond, 25*time.Millisecond
	}
	recordResult(t, s, c, &a, webhook.Step{Status: webhook.StatusSuccess}, webhook.HealthPolicy{})
}

// notification returns an event of 363 bytes of an event type in the catalog.
func notification(r *rand.Rand, id string, at time.Time) webhook.Event {
	const name, size = "user_notification_updated", 363
	json := fmt.Appendf(nil, `{"id":%q,"timestamp":%q,"name":%q,"version":"1","notification_id":%d,"user_id":%d,`+
		`"category":"like","acknowledged":%v,"label":"Likes",`,
		id, webhook.FormatTime(at), name, 1_000_000+r.IntN(9_000_000), 10_000+r.IntN(90_000), r.IntN(2) == 0)
	json = fmt.Appendf(json, `"text":"%s %s and 2 others liked your post","details":{"like_count":3,"content_id":%d,"acting_user_ids":[%d`,
		title(r), title(r), 10_000+r.IntN(90_000), 10_000+r.IntN(90_000))
	for len(json)+len(`,10000]}}`) <= size {
		json = fmt.Appendf(json, ",%d", 10_000+r.IntN(90_000))
	}
	for len(json)+len(`]}}`) < size {
		json = append(json, '7')
	}
	return webhook.Event{ID: id, Name: name, Version: "1", ReceivedAt: at, TimestampGiven: true, JSON: append(json, "]}}"...)}
}

// title returns a name of random letters.
func title(r *rand.Rand) string {
	name := make([]byte, 3+r.IntN(6))
	for i := range name {
		name[i] = byte('a' + r.IntN(26))
	}
	name[0] -= 'a' - 'A'
	return string(name)
}

func randomID(r *rand.Rand) string {
	return fmt.Sprintf("%08x-%04x-4%03x-9%03x-%012x", r.Uint32(), r.IntN(1<<16), r.IntN(1<<12), r.IntN(1<<12), r.Uint64()>>16)
}

// databaseBytes returns the bytes of the database in use.
func databaseBytes(t testing.TB, s *Store) (n int64) {
	t.Helper()
	must(t, s.db.Scan(t.Context(),
		"SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size", nil, &n))
	return n
}
