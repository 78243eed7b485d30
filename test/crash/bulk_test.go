package crash

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"service/test/harness"
	"service/webhook"
)

// bulkRun is a bulk run as the API returns it.
type bulkRun struct {
	ID      string
	Status  string
	Total   int
	Done    int
	Skipped map[string]int
}

// TestBulkRunKilled kills the service in the middle of a bulk run: the next process continues it,
// and every delivery has one redelivery at the end. The run needs more redeliveries than a
// subscription may have open, so it has to wait in between.
func TestBulkRunKilled(t *testing.T) {
	harness.Long(t)
	const failed, kills = 3000, 6
	receiver := &gatedReceiver{refuses: true, blocked: make(chan struct{}, 1)}
	server := harness.Listen(t, receiver)
	t.Cleanup(func() { receiver.accept(failed) }) // before the server closes, which waits for it
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
	receiver.accept(0)
	id := begin(map[string]any{}).ID
	read := func() bulkRun {
		r, _, err := harness.Get[bulkRun](in, token, "/v2/bulk_runs/"+id)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for kill := range kills {
		// The receiver accepts some more redeliveries and blocks the others, so the run cannot end.
		receiver.accept(1 + rand.IntN((failed-webhook.MaxOpenRedeliveries)/2/kills))
		harness.Receive(t, "a blocked redelivery", receiver.blocked)
		in.Kill(process)
		process = in.MustStart()
		if is := read().Status; is != "running" {
			t.Errorf("after kill %d the run is %s", kill+1, is)
		}
	}
	receiver.accept(failed)
	harness.WaitForCount(t, "the redeliveries", failed, func() int { return read().Done })
	harness.WaitFor(t, "the end of the run", func() bool { return read().Status == "done" })
	if r := read(); r.Total != failed || r.Done != failed || len(r.Skipped) != 0 {
		t.Errorf("bulk run: got %+v, want %d done", r, failed)
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

// gatedReceiver refuses deliveries at first. Later it accepts a number of deliveries, and blocks
// the others.
type gatedReceiver struct {
	blocked chan struct{} // receives when a delivery is blocked

	mu      sync.Mutex
	refuses bool
	left    int           // deliveries to accept
	more    chan struct{} // closed and replaced when there are more
}

// accept accepts n more deliveries. The next kill ends the blocked ones.
func (g *gatedReceiver) accept(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuses = false
	g.left += n
	if g.more != nil {
		close(g.more)
	}
	g.more = make(chan struct{})
	select {
	case <-g.blocked: // by the last number
	default:
	}
}

func (g *gatedReceiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if harness.IsPing(body) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	for {
		g.mu.Lock()
		refuses, more, accepted := g.refuses, g.more, g.left > 0
		if accepted {
			g.left--
		}
		g.mu.Unlock()
		switch {
		case refuses:
			w.WriteHeader(http.StatusGone)
			return
		case accepted:
			return
		}
		select {
		case g.blocked <- struct{}{}:
		default:
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}
