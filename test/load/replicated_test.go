package load

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"service/internal/bench"
	"service/internal/terminal"
	"service/test/harness"
)

// The flags of service bench, for TestReplicatedWorkloads.
var (
	workloadCase       = flag.String("workload.case", "", "cases to measure, separated by commas; all if empty")
	workloadData       = flag.String("workload.data", "", "directory on the disk to measure")
	workloadTime       = flag.Duration("workload.time", 200*time.Millisecond, "time to publish in each case")
	workloadPublishers = flag.Int("workload.publishers", 16, "publishers at a time in the cases without a bucket")
	workloadRounds     = flag.Int("workload.rounds", 1, "number of rounds")
	workloadStored     = flag.Int("workload.stored", 1000, "events to store before a case starts")
	workloadOthers     = flag.Int("workload.others", 20, "subscriptions to other events to create before a case starts")
	workloadCores      = flag.Int("workload.cores", 0, "processors for everything together; 0 is all")
	workloadCPUProfile = flag.String("workload.cpuprofile", "", "file for a CPU profile of the service")
)

const (
	bucketLatency = 20 * time.Millisecond // per request to the bucket
	// uploadPrice is the list price of a PUT in Amazon S3 Standard (us-east-1), in dollars.
	uploadPrice = 0.005 / 1000
	month       = 30 * 24 * time.Hour
	// manyPublishers is enough to keep the service busy although each publisher waits for uploads.
	manyPublishers = 2048

	replicatedSuffix   = "-replicated"   // of cases with a replica in a directory
	acknowledgedSuffix = "-acknowledged" // of cases with --acknowledge replica
)

// TestReplicatedWorkloads measures a service with a replica: every event must arrive once. In full:
//
//	go test ./test/load -run ReplicatedWorkloads -v -workload.time 5s -workload.publishers 128 -workload.rounds 5 \
//	  -workload.stored 0 -workload.others 0 -timeout 30m
func TestReplicatedWorkloads(t *testing.T) {
	harness.Long(t)
	if *workloadCores > 0 {
		if err := bench.UseCores(*workloadCores); err != nil {
			t.Fatal(err)
		}
	}
	if *workloadData == "" {
		*workloadData = t.TempDir()
	}
	about, err := bench.NewMachine(*workloadData, "under test")
	if err != nil {
		t.Fatal(err)
	}
	r := newReplicas(t)
	chosen := slices.DeleteFunc(r.workloads(), func(w bench.Workload) bool {
		return *workloadCase != "" && !slices.Contains(strings.Split(*workloadCase, ","), w.Name)
	})
	report, err := bench.Run(t.Context(), bench.Config{
		Binary: harness.Build(t), Data: *workloadData, Time: *workloadTime, Publishers: *workloadPublishers, Rounds: *workloadRounds,
		Stored: *workloadStored, Others: *workloadOthers, Workloads: chosen, CPUProfile: *workloadCPUProfile,
		Env: slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SERVICE_") }),
		Log: t.Output(), Progress: terminal.NewProgress(io.Discard),
	}, about)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s%s", about, report)
	if len(report.Results) != len(chosen) {
		t.Errorf("got %d results, want %d", len(report.Results), len(chosen))
	}
	for _, got := range report.Results {
		if got.Lost != 0 || got.Duplicated != 0 || got.Acknowledged == 0 || got.Delivered != got.Acknowledged || got.Commits == 0 {
			t.Errorf("%s: got %+v", got.Case, got)
		}
		if all := r.ratios[got.Case]; len(all) > 0 {
			t.Logf("%s: %.2f of the rate without that", got.Case, harness.Median(all))
		}
		all := r.figures[got.Case]
		if len(all) == 0 {
			continue
		}
		var f [6]float64
		for i := range f {
			f[i] = median(all, i)
		}
		t.Logf("%s: requests take %.1f ms (p50), %.1f ms (p99); an upload takes %.1f ms at the bucket, %.1f ms with copying the log; "+
			"%.1f uploads/s, $%.0f per month at $5 per million", got.Case, f[0], f[1], f[2], f[3], f[4], f[5])
		if strings.HasSuffix(got.Case, acknowledgedSuffix) && (f[0] < f[2] || f[1] < f[0] || f[2] < 20 || f[3] <= 0 || f[4] <= 0) {
			t.Errorf("%s: got %v", got.Case, f)
		}
	}
}

// median returns the median of the figures with an index.
func median(all [][6]float64, index int) float64 {
	var values []float64
	for _, f := range all {
		values = append(values, f[index])
	}
	return harness.Median(values)
}

// replicas contains the bucket of the workloads and the measurements of their rounds.
type replicas struct {
	url   string             // of the bucket
	rates map[string]float64 // of the last round, by case
	// ratios contains each round's rate relative to that without a replica, or without waiting for
	// it.
	ratios map[string][]float64
	// figures contains for each round with a bucket: p50 and p99 of publishing, an upload at the
	// bucket and with the copying before it, all in ms; uploads per second, and their price in
	// dollars per month.
	figures map[string][][6]float64

	mu      sync.Mutex
	uploads []time.Duration // of changes
}

func newReplicas(t *testing.T) *replicas {
	backend := s3mem.New()
	if err := backend.CreateBucket("bench"); err != nil {
		t.Fatal(err)
	}
	s3 := gofakes3.New(backend).Server()
	r := &replicas{rates: make(map[string]float64), ratios: make(map[string][]float64), figures: make(map[string][][6]float64)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		began := time.Now()
		<-time.After(bucketLatency)
		s3.ServeHTTP(w, req)
		if req.Method == http.MethodPut && strings.Contains(req.URL.Path, "/0000/") {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.uploads = append(r.uploads, time.Since(began))
		}
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// workloads returns all workloads, and the workloads of service bench for comparison.
func (r *replicas) workloads() []bench.Workload {
	const bucket = "bucket"
	withBucket := fmt.Sprintf("natural with %d publishers and a replica in a bucket with a latency of %s", manyPublishers, bucketLatency)
	var all []bench.Workload
	for _, c := range []struct {
		base, name, about string
		publishers, rate  int
	}{
		{"natural", "natural", "", 0, 0},
		{"natural", "natural" + replicatedSuffix, "the same, with a replica in a directory", 0, 0},
		{"stream", "stream", "", 0, 0},
		{"stream", "stream" + replicatedSuffix, "the same, with a replica in a directory", 0, 0},
		{"natural", bucket, withBucket, manyPublishers, 0},
		{"natural", bucket + acknowledgedSuffix, "the same, acknowledged by the replica", manyPublishers, 0},
		{"natural", "steady" + acknowledgedSuffix, "the same with 500 events per second", manyPublishers, 500},
		{"natural", "few" + acknowledgedSuffix, "the same with 64 publishers", 64, 0},
		{"natural", "one" + acknowledgedSuffix, "the same with one publisher", 1, 0},
	} {
		w := bench.Workloads(c.base)[0]
		w.Watch = func(url string) (func(*bench.Result) error, error) { return r.watch(url, c.publishers > 0) }
		if c.name != c.base {
			w.Name, w.About, w.Publishers, w.Rate = c.name, c.about, c.publishers, c.rate
			w.Prepare = func(data string) ([]string, error) { return r.prepare(data, c.publishers > 0) }
		}
		if strings.HasSuffix(c.name, acknowledgedSuffix) {
			w.Flags = []string{"--acknowledge", "replica"}
		}
		all = append(all, w)
	}
	return all
}

// prepare configures the replica.
func (r *replicas) prepare(data string, bucket bool) ([]string, error) {
	dir := filepath.Dir(data)
	text := fmt.Sprintf("dbs:\n  - path: %q\n    replica:\n", filepath.Join(data, "service.db"))
	if bucket {
		text += fmt.Sprintf("      type: s3\n      bucket: bench\n      path: %s\n      endpoint: %s\n      region: us-east-1\n"+
			"      access-key-id: bench\n      secret-access-key: bench\n", filepath.Base(dir), r.url)
	} else {
		text += fmt.Sprintf("      path: %q\n", filepath.Join(dir, "replica"))
	}
	name := filepath.Join(dir, "litestream.yml")
	return []string{"--litestream", name}, os.WriteFile(name, []byte(text), 0o600)
}

// watch begins to measure a service's uploads.
func (r *replicas) watch(url string, bucket bool) (done func(*bench.Result) error, err error) {
	uploads, seconds, err := replicaUploads(url)
	r.takeUploads()
	return func(got *bench.Result) error {
		r.rates[got.Case] = got.DeliveredPerSecond
		base := strings.TrimSuffix(strings.TrimSuffix(got.Case, replicatedSuffix), acknowledgedSuffix)
		if without := r.rates[base]; base != got.Case && without > 0 {
			r.ratios[got.Case] = append(r.ratios[got.Case], got.DeliveredPerSecond/without)
		}
		took := r.takeUploads()
		if !bucket || len(took) == 0 {
			return nil
		}
		uploadsAfter, secondsAfter, err := replicaUploads(url)
		rate := float64(len(took)) * got.AcknowledgedPerSecond / float64(got.Acknowledged)
		r.figures[got.Case] = append(r.figures[got.Case], [6]float64{
			milliseconds(harness.Percentile(got.Published, 50)), milliseconds(harness.Percentile(got.Published, 99)),
			milliseconds(harness.Percentile(took, 50)), 1000 * (secondsAfter - seconds) / max(uploadsAfter-uploads, 1),
			rate, rate * month.Seconds() * uploadPrice,
		})
		return err
	}, err
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// takeUploads returns the durations of uploads of changes since the last call.
func (r *replicas) takeUploads() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.uploads
	r.uploads = nil
	return all
}

var uploadMetric = regexp.MustCompile(`(?m)^webhooks_replica_upload_duration_seconds_(sum|count) (\S+)$`)

// replicaUploads returns the number of a service's uploads and their total seconds, 0 without a
// replica.
func replicaUploads(url string) (uploads, seconds float64, err error) {
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	for _, found := range uploadMetric.FindAllSubmatch(text, -1) {
		value, _ := strconv.ParseFloat(string(found[2]), 64)
		if string(found[1]) == "count" {
			uploads = value
		} else {
			seconds = value
		}
	}
	return uploads, seconds, err
}
