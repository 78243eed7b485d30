package crash

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"service/test/harness"
)

// bulkRun is a bulk run as the API returns it.
type bulkRun struct {
	ID      string
	Status  string
	Total   int
	Done    int
	Skipped map[string]int
}

// TestBulkRunKilled kills the service in the middle of a bulk run: the next process
// continues it, and every delivery has one redelivery at the end. The run needs more
// redeliveries than a subscription may have open, so it has to wait in between.
func TestBulkRunKilled(t *testing.T) {
	harness.Long(t)
	const failed, kills = 3000, 6
	var status atomic.Int64
	status.Store(http.StatusGone)
	server := harness.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if harness.IsPing(body) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(int(status.Load()))
	}))
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--log-level", "warn", "--batch-size", "1", "--rejecting-after", "0")
	token := in.Token("acme")
	process := in.MustStart()
	sub := in.Subscribe(token, harness.Subscription{URL: server, Events: harness.Events("content_deleted"), MaxInFlight: 32})
	for range failed / 500 {
		events := make([]map[string]any, 500)
		for i := range events {
			events[i] = map[string]any{"name": "content_deleted", "version": "1", "content_id": i + 1}
		}
		in.Publish(token, map[string]any{"events": events})
	}
	begin := func(fields map[string]any) (r bulkRun) {
		t.Helper()
		fields["action"], fields["filter"] = "redeliver", map[string]any{"status": "failed"}
		var answer struct{ Data bulkRun }
		if code, err := in.Call(t.Context(), token, "POST", in.URL()+"/v2/bulk_runs", fields, &answer); err != nil || code > 299 {
			t.Fatalf("start a bulk run: status %d, %v", code, err)
		}
		return answer.Data
	}
	t.Cleanup(func() {
		if t.Failed() {
			open, _, err := harness.Get[json.RawMessage](in, token, "/v2/webhooks/subscriptions/"+sub+
				"/deliveries?filter[status]=pending,retryable&page[size]=3")
			t.Logf("open deliveries: %s (%v)", open, err)
		}
	})
	harness.WaitForCount(t, "the failures", failed, func() int { return begin(map[string]any{"dry_run": true}).Done })
	status.Store(http.StatusOK)
	id := begin(map[string]any{}).ID
	read := func() bulkRun {
		r, _, err := harness.Get[bulkRun](in, token, "/v2/bulk_runs/"+id)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	random, cut := rand.New(rand.NewPCG(18, 6)), 0
	for range kills {
		time.Sleep(time.Duration(random.IntN(int(harness.Scale(80 * time.Millisecond))))) // at a random moment of the run
		in.Kill(process)
		process = in.MustStart()
		if read().Status == "running" {
			cut++
		}
	}
	harness.WaitForCount(t, "the redeliveries", failed, func() int { return read().Done })
	harness.WaitFor(t, "the end of the run", func() bool { return read().Status == "done" })
	if r := read(); r.Total != failed || r.Done != failed || len(r.Skipped) != 0 {
		t.Errorf("bulk run: got %+v, want %d done", r, failed)
	}
	t.Logf("%d of %d kills interrupted the run", cut, kills)
	if cut == 0 {
		t.Error("no kill interrupted the run")
	}
	in.MustStop(process)
	db := harness.OpenDatabase(t, in.Data)
	defer db.Close()
	var all, distinct int
	err := db.QueryRow("SELECT count(*), count(DISTINCT redelivery_of) FROM deliveries WHERE redelivery_of IS NOT NULL").Scan(&all, &distinct)
	if err != nil || all != failed || distinct != failed {
		t.Errorf("got %d redeliveries of %d deliveries (%v), want one of each of %d", all, distinct, err, failed)
	}
}
