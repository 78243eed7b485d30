package store

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"service/store/list"
	"service/webhook"
)

var listRows = flag.Int("list.rows", 0, "deliveries in the largest list of BenchmarkList; 0: 1,000,000, or 10,000 with -short")

// BenchmarkList measures one page for different numbers of deliveries in the list, on which the time
// must not depend:
//
// go test ./store -run '^$' -bench List
func BenchmarkList(b *testing.B) {
	sizes := []int{10_000, 1_000_000}
	if testing.Short() {
		sizes = sizes[:1]
	}
	if *listRows > 0 {
		sizes = []int{*listRows}
	}
	for _, rows := range sizes {
		b.Run(fmt.Sprint("rows=", rows), func(b *testing.B) {
			s, sub := manyDeliveries(b, rows)
			half := webhook.FormatTime(time.UnixMilli(date("2026-01-01") + int64(rows)*5))
			benchmarkOne(b, s, sub.ID, rows, half)
			benchmarkAll(b, s, sub.ID, rows, half)
			benchmarkPlans(b, s)
			benchmarkEvents(b, s, half)
		})
	}
}

// benchmarkOne reads the deliveries of one subscription. half is a time in the middle of the
// rows.
func benchmarkOne(b *testing.B, s *Store, subscriptionID string, rows int, half string) {
	for _, page := range []struct{ name, raw string }{
		{"first", ""},
		{"deep", ""},
		{"from a time in the middle", "filter[created_at.to]=" + half},
		{"oldest first", "sort=created_at"},
		{"rare status", "filter[status]=retryable"},
		{"common failure", "filter[status]=failed"},
		{"rare response", "filter[response_status]=404"},
		{"class of responses", "filter[response_status]=5xx"},
		{"rare success", "filter[response_status]=202"},
		{"rare error", "filter[error]=tls"},
		{"rare event", "filter[event]=channel_created"},
		{"common event", "filter[event]=content_updated"},
		{"event that never was", "filter[event]=user_notification_deleted"},
		{"pings", "filter[event]=ping"},
		{"nothing matches", "filter[status]=success&filter[response_status]=299"},
		{"due", "filter[next_attempt_at.from]=2000-01-01"},
		{"all at once", "filter[status]=failed,success&filter[event]=content_updated&filter[completed_at.from]=" + half},
	} {
		b.Run(page.name, func(b *testing.B) {
			q := query(b, webhook.DeliveryList, page.raw)
			if page.name == "deep" {
				q.Cursor = s.lists.Key.Cursor(list.Scope{List: "deliveries", ProgramID: "p", Parent: subscriptionID,
					Selection: webhook.DeliveryList.Selection(q)}, []int64{int64(rows / 10)})
			}
			benchmarkPage(b, func() (int, error) {
				got, _, err := s.Deliveries().Page(context.Background(), "p", subscriptionID, q)
				return len(got), err
			})
		})
	}
}

// benchmarkAll reads the deliveries of all programs.
func benchmarkAll(b *testing.B, s *Store, subscriptionID string, rows int, half string) {
	for _, page := range []struct{ name, raw string }{
		{"first", ""},
		{"deep", ""},
		{"oldest first", "sort=created_at"},
		{"from a time in the middle", "filter[created_at.to]=" + half},
		{"of a program", "filter[program_id]=p"},
		{"of a subscription", "filter[subscription_id]=" + subscriptionID},
		{"rare status", "filter[status]=retryable"},
		{"pending", "filter[status]=pending"},
		{"common failure", "filter[status]=failed"},
		{"failures of a program", "filter[status]=failed&filter[program_id]=p"},
		{"rare response", "filter[response_status]=404"},
		{"class of responses", "filter[response_status]=5xx"},
		{"rare success", "filter[response_status]=202"},
		{"rare error", "filter[error]=tls"},
		{"rare event", "filter[event]=channel_created"},
		{"common event", "filter[event]=content_updated"},
		{"failures with a common event", "filter[event]=content_updated&filter[status]=failed"},
		{"event that never was", "filter[event]=user_notification_deleted"},
		{"pings", "filter[event]=ping"},
		{"retried", "filter[attempts_made.from]=2"},
		{"redeliveries", "filter[redelivery_of]=0198f6a3-7c1e-7d4b-9a41-000000000001"},
		{"one", "filter[id]=0198f6a3-7c1e-7d4b-9a41-000000000001"},
		{"due", "filter[next_attempt_at.from]=2000-01-01"},
		{"completed early", "filter[completed_at.to]=2026-01-01T00:00:00.100Z"},
		{"nothing matches", "filter[status]=success&filter[response_status]=299"},
	} {
		b.Run("all, "+page.name, func(b *testing.B) {
			q := query(b, webhook.AllDeliveryList, page.raw)
			if page.name == "deep" {
				q.Cursor = s.lists.Key.Cursor(list.Scope{List: "deliveries", Selection: webhook.AllDeliveryList.Selection(q)},
					[]int64{int64(rows / 10)})
			}
			benchmarkPage(b, func() (int, error) {
				got, _, err := s.Deliveries().PageAll(context.Background(), q)
				return len(got), err
			})
		})
	}
}

func benchmarkPlans(b *testing.B, s *Store) {
	for _, plan := range []struct{ name, raw string }{
		{"failures", "filter[status]=failed"}, {"everything", ""}, {"nothing", "filter[status]=success&filter[response_status]=299"},
	} {
		b.Run("plan, "+plan.name, func(b *testing.B) {
			q := query(b, webhook.AllDeliveryList, plan.raw)
			benchmarkPage(b, func() (int, error) {
				p, err := s.BulkRuns().Plan(context.Background(), webhook.BulkRedeliver, q, 0, 2*time.Second, nil)
				return p.Matched, err
			})
		})
	}
}

func benchmarkEvents(b *testing.B, s *Store, half string) {
	for _, page := range []struct{ name, raw string }{
		{"events, first", ""},
		{"events, rare name", "filter[name]=channel_created"},
		{"events, from a time in the middle", "filter[received_at.to]=" + half},
		{"events, of a timestamp", "filter[timestamp.to]=2000-01-01"},
	} {
		b.Run(page.name, func(b *testing.B) {
			q := query(b, webhook.EventList, page.raw)
			benchmarkPage(b, func() (int, error) {
				got, _, err := s.Events().Page(context.Background(), "p", q)
				return len(got), err
			})
		})
	}
}

// benchmarkPage measures read, which returns the number of rows found.
func benchmarkPage(b *testing.B, read func() (int, error)) {
	found := 0
	for b.Loop() {
		n, err := read()
		must(b, err)
		found = n
	}
	b.ReportMetric(float64(found), "found")
}

// manyDeliveries fills a store with deliveries of one event each, one every 10 ms. Of 100, two
// have status 500 and failed; of 20,000, one has status 404, one a TLS error, one will be
// retried, one has status 202 and one carries a rare event. A tenth belongs to another
// subscription.
func manyDeliveries(b *testing.B, rows int) (*Store, webhook.Subscription) {
	s := openProgram(b)
	sub, other := subscribe(b, s, "p", "content_updated", "channel_created"), subscribe(b, s, "p", "content_updated")
	const step = 50_000
	for first := 0; first < rows; first += step {
		err := s.writer.do(func(t *tx) error {
			args := []any{first + 1, min(first+step, rows), date("2026-01-01"), sub.ID, other.ID}
			const numbers = "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) "
			for _, fill := range []struct {
				query string
				args  int
			}{
				{numbers + `INSERT INTO events (program_id, seq, id, name, received_at, json)
					SELECT 'p', i, printf('0198f6a2-7c1e-7d4b-9a41-%012x', i), iif(i % 20000 = 7, 'channel_created', 'content_updated'), ?3 + 10 * i,
						CAST(printf('{"id":"0198f6a2-7c1e-7d4b-9a41-%012x","timestamp":"2026-01-02T03:04:05.000Z",' ||
			'"name":"content_updated","version":"1","content_id":%d}', i, i) AS BLOB) FROM n`, 3},
				{numbers + `INSERT INTO deliveries (num, id, subscription_id, subscription, program_id, status, failure_reason, attempts_made, next_attempt_at,
					response_status, error, seqs, created_at, completed_at, counted_at)
					SELECT 10 + i, printf('0198f6a3-7c1e-7d4b-9a41-%012x', i), iif(i % 10 = 9, ?5, ?4), (SELECT num FROM subscriptions WHERE id = iif(i % 10 = 9, ?5, ?4)), 'p',
						CASE WHEN i % 20000 = 1 THEN 'retryable' WHEN i % 20000 IN (2, 3) OR i % 100 IN (50, 51) THEN 'failed' ELSE 'success' END,
						CASE WHEN i % 20000 = 1 THEN NULL WHEN i % 20000 IN (2, 3) OR i % 100 IN (50, 51) THEN 'rejected' END,
						1, iif(i % 20000 = 1, ?3 + 10 * i, NULL),
						CASE WHEN i % 20000 = 1 THEN 503 WHEN i % 20000 = 2 THEN 404 WHEN i % 20000 = 3 THEN NULL
			WHEN i % 20000 = 4 THEN 202 WHEN i % 100 IN (50, 51) THEN 500 ELSE 200 END,
						iif(i % 20000 = 3, 'tls', NULL), '[' || i || ']', ?3 + 10 * i, iif(i % 20000 = 1, NULL, ?3 + 10 * i + i % 97), 1 FROM n`, 5},
				{numbers + "INSERT INTO delivery_events (program_id, seq, delivery) SELECT 'p', i, 10 + i FROM n", 2},
			} {
				if err := t.Exec(fill.query, args[:fill.args]...); err != nil {
					return err
				}
			}
			return nil
		})
		must(b, err)
	}
	return s, sub
}
