package replica

import (
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"service/test/harness"
)

var replicaFlat = flag.Duration("replica.flat", 4*time.Second, "for how long TestReplicaFlatOut publishes as fast as it can")

// TestReplicaFlatOut publishes as fast as possible: the write-ahead log must stay small.
func TestReplicaFlatOut(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	data, replica := t.TempDir(), t.TempDir()
	in := harness.NewInstance(t, binary, data, "--litestream", writeReplica(t, data, "500ms", "path: "+replica), "--log-level", "warn")
	token := in.Token("acme")
	run := in.MustStart()
	awaitReplica(in, "running")
	most := harness.WatchSize(t, filepath.Join(data, "service.db-wal"))
	n := publishFor(in, t.Context(), token, *replicaFlat)
	t.Logf("%d events in %s; the log had at most %.1f MB", n, *replicaFlat, float64(most())/1e6)
	if most() > 100e6 {
		t.Errorf("write-ahead log: got %d bytes", most())
	}
	in.MustStop(run)
}

// publishFor publishes batches with eight publishers for a time, and returns the number
// of acknowledged events.
func publishFor(in *harness.Instance, ctx context.Context, token string, d time.Duration) (events int64) {
	in.TB.Helper()
	base := in.URL()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var working sync.WaitGroup
	for range 8 {
		working.Go(func() {
			for ctx.Err() == nil {
				var all []json.RawMessage
				for range 200 {
					all = append(all, json.RawMessage(`{"name":"content_updated","version":"1","content_id":7}`))
				}
				status, err := in.Call(context.WithoutCancel(ctx), token, "POST", base+"/v2/events", map[string]any{"events": all}, nil)
				if err != nil || status != http.StatusCreated {
					in.TB.Errorf("publish: status %d, %v", status, err)
					return
				}
				mu.Lock()
				events += int64(len(all))
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return events
}

// BenchmarkReplica publishes as fast as possible, alternately without and with a replica, and
// reports the ratio of the two medians.
func BenchmarkReplica(b *testing.B) {
	binary := harness.Build(b)
	data, replica := b.TempDir(), b.TempDir()
	config := writeReplica(b, data, "500ms", "path: "+replica)
	harness.NewInstance(b, binary, data).Token("acme")
	var rates [2][]float64
	for range max(3, b.N) {
		for i, name := range []string{"off", config} {
			in := harness.NewInstance(b, binary, data, "--litestream", name, "--log-level", "warn")
			token := in.Token("acme")
			run := in.MustStart()
			if i == 1 {
				awaitReplica(in, "running")
			}
			n := publishFor(in, b.Context(), token, 5*time.Second)
			rates[i] = append(rates[i], float64(n)/5)
			in.Kill(run)
		}
	}
	b.ReportMetric(harness.Median(rates[0]), "events/s-without")
	b.ReportMetric(harness.Median(rates[1]), "events/s-with")
	b.ReportMetric(harness.Median(rates[1])/harness.Median(rates[0]), "ratio")
}
