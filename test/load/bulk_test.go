package load

import (
	"encoding/json"
	"flag"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/test/harness"
)

var bulkDeliveries = flag.Int("bulk.deliveries", 4000, "how many failed deliveries TestBulkRun redelivers")

const (
	bulkSubscriptions = 4
	bulkPublishers    = 8
	bulkPublishing    = 5 * time.Second // before the run, and during it
)

// TestBulkRun redelivers all failed deliveries while events of another program are published, and
// kills the service in between. The run continues by itself, counts every delivery, and redelivers
// each. The test prints how long publishers waited. In full:
//
//	go test ./test/load -run BulkRun -v -bulk.deliveries 100000 -timeout 30m
func TestBulkRun(t *testing.T) {
	harness.Long(t)
	b := &bulk{t: t, total: *bulkDeliveries / bulkSubscriptions * bulkSubscriptions}
	b.in = harness.NewInstance(t, harness.Build(t), t.TempDir(), "--batch-size", "1", "--max-in-flight", "32", "--rejecting-after", "0",
		"--rate-limit", "0", "--log-level", "warn")
	b.token, b.other = b.in.Token("acme"), b.in.Token("other")
	process := b.in.MustStart()
	for range bulkSubscriptions {
		b.in.Subscribe(b.token, harness.Subscription{URL: harness.Listen(t, &b.receiver), Events: harness.Events("content_published")})
	}
	b.fail()

	t.Logf("publishing without the run: %s", b.publishTimed())
	b.receiver.accepts.Store(true)
	var begun struct{ Data bulkRun }
	status, err := b.in.Call(t.Context(), b.token, "POST", b.in.URL()+"/v2/bulk_runs", b.request(false), &begun)
	if err != nil || status != http.StatusAccepted {
		t.Fatalf("begin the run: status %d, %v", status, err)
	}
	t.Logf("publishing during the run: %s", b.publishTimed())
	b.in.Kill(process)
	began := time.Now()
	b.in.MustStart()
	var r bulkRun
	for last := -1; ; { // as long as it makes progress
		harness.WaitFor(t, "progress of the run", func() bool {
			if r, _, err = harness.Get[bulkRun](b.in, b.token, "/v2/bulk_runs/"+begun.Data.ID); err != nil {
				t.Fatal(err)
			}
			return r.progress() > last || r.Status == "done"
		})
		// The last redelivery may succeed before the run records its end.
		if last = r.progress(); last == 2*b.total && r.Status == "done" {
			break
		}
	}
	t.Logf("%d deliveries; the rest took %s after kill -9", b.total, time.Since(began).Round(100*time.Millisecond))
	if r.Total == nil || *r.Total != b.total || r.Status != "done" || len(r.Skipped) > 0 {
		t.Errorf("got the run %+v, want %d deliveries, all done", r, b.total)
	}
	if got := b.receiver.distinct(); got != b.total {
		t.Errorf("got %d redeliveries, want %d", got, b.total)
	}
}

type bulk struct {
	t            *testing.T
	in           *harness.Instance
	token, other string
	total        int
	receiver     bulkReceiver
}

// bulkRun is a bulk run as the API returns it.
type bulkRun struct {
	ID           string
	Status       string
	Total        *int
	Done         int
	Skipped      map[string]int
	Redeliveries struct{ Success int }
}

// progress increases with each delivery that is redelivered, and with each redelivery that
// succeeds.
func (r *bulkRun) progress() int { return r.Done + r.Redeliveries.Success }

func (b *bulk) request(dryRun bool) any {
	return map[string]any{"action": "redeliver", "filter": map[string]string{"status": "failed"}, "dry_run": dryRun}
}

// fail publishes events until enough deliveries have failed for the test.
func (b *bulk) fail() {
	b.t.Helper()
	var lines harness.NDJSON
	for n := range b.total / bulkSubscriptions {
		if lines = append(harness.AppendEvent(lines, n), '\n'); n%1000 == 999 {
			b.in.Publish(b.token, lines)
			lines = lines[:0]
		}
	}
	if len(lines) > 0 {
		b.in.Publish(b.token, lines)
	}
	var count struct{ Data bulkRun }
	for last := -1; last < b.total; last = *count.Data.Total {
		harness.WaitFor(b.t, "more failed deliveries", func() bool {
			began := time.Now()
			status, err := b.in.Call(b.t.Context(), b.token, "POST", b.in.URL()+"/v2/bulk_runs", b.request(true), &count)
			if err != nil || status != http.StatusOK || count.Data.Total == nil {
				b.t.Fatalf("count: status %d, %v, %+v", status, err, count)
			}
			if *count.Data.Total == b.total {
				b.t.Logf("counting %d deliveries took %s", b.total, time.Since(began).Round(time.Millisecond))
			}
			return *count.Data.Total > last
		})
	}
}

// publishTimed publishes single events for a while, and returns how long publishers waited.
func (b *bulk) publishTimed() string {
	b.t.Helper()
	var mu sync.Mutex
	var times []time.Duration
	var publishers sync.WaitGroup
	until := time.Now().Add(bulkPublishing)
	for range bulkPublishers {
		publishers.Go(func() {
			for time.Now().Before(until) {
				began := time.Now()
				status, err := b.in.Call(b.t.Context(), b.other, "POST", b.in.URL()+"/v2/events", harness.AppendEvent(nil, 0), nil)
				if err != nil || status != http.StatusCreated {
					b.t.Errorf("publish: status %d, %v", status, err)
					return
				}
				mu.Lock()
				times = append(times, time.Since(began))
				mu.Unlock()
			}
		})
	}
	publishers.Wait()
	text, err := json.Marshal(map[string]string{
		"p50": harness.Percentile(times, 50).String(), "p99": harness.Percentile(times, 99).String(),
		"max": harness.Percentile(times, 100).String(),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// bulkReceiver rejects deliveries until accepts is set, and then remembers their IDs.
type bulkReceiver struct {
	accepts atomic.Bool

	mu   sync.Mutex
	seen map[string]bool
}

func (r *bulkReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := harness.ReadBody(req)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	case harness.IsPing(body):
	case !r.accepts.Load():
		w.WriteHeader(http.StatusGone)
	default:
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.seen == nil {
			r.seen = make(map[string]bool)
		}
		r.seen[req.Header.Get("webhook-id")] = true
	}
}

func (r *bulkReceiver) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}
