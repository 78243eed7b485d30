package load

import (
	"flag"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"service/test/harness"
)

var backlogEvents = flag.Int("backlog.events", 50_000, "how many events TestBacklog lets wait behind a dead subscriber")

const (
	backlogWarm   = 100_000          // events published beforehand, to fill the tail and the caches
	backlogRounds = 20               // alternately with and without subscribers
	backlogMemory = 56 << 20         // limit for the growth of resident memory; up to 40 MB of it is garbage
	backlogStart  = 2 * time.Second  // limit from the start of the process until it is ready
	backlogSlower = 2.0              // limit for the ratio of publishing times with and without hanging subscribers
	backlogLog    = 64 << 20         // limit for the size of the write-ahead log
	backlogDrain  = 10 * time.Minute // limit for the delivery of the backlog
)

// TestBacklog publishes events for two hanging subscribers, one of them ordered. Memory, publishing
// and restarts must not suffer from the backlog. Once the subscribers work again, every event must
// arrive once, and in order if ordered. In full:
//
//	go test ./test/load -run Backlog -v -backlog.events 1000000 -timeout 30m
func TestBacklog(t *testing.T) {
	harness.Long(t)
	var ordered, unordered backlogSubscriber
	ordered.ordered = true
	back := make(chan struct{}) // closed when the subscribers work again
	working := sync.OnceFunc(func() { close(back) })
	t.Cleanup(working)
	var all sync.WaitGroup
	for _, s := range []*backlogSubscriber{&ordered, &unordered} {
		s.back, s.arrived = back, make([]uint8, *backlogEvents)
		all.Add(*backlogEvents)
		s.first = all.Done
	}

	// A hanging attempt lasts longer than the test: it uses its slot until the process ends.
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--attempt-timeout", "5m", "--grace", "500ms", "--log-level", "warn",
		"--retry-schedule", "1s,1s,1s,1s")
	free, owed := in.Token("free"), in.Token("owed")
	run := in.MustStart()
	logSize := harness.WatchSize(t, filepath.Join(in.Data, "service.db-wal"))
	in.Subscribe(owed, harness.Subscription{URL: harness.Listen(t, &ordered), Events: harness.Events("content_published"), Ordered: true})
	in.Subscribe(owed, harness.Subscription{URL: harness.Listen(t, &unordered), Events: harness.Events("content_published")})
	publishBacklog(t, in, run, free, owed)

	in.Kill(run)
	run = restartWithBacklog(t, in)

	before := harness.ResidentMemory(t, run.PID())
	began := time.Now()
	working()
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(harness.Scale(backlogDrain)):
		t.Errorf("%d and %d of %d events did not arrive within %s of the subscribers working again",
			ordered.missing(), unordered.missing(), *backlogEvents, backlogDrain)
	}
	after := harness.ResidentMemory(t, run.PID())
	t.Logf("delivered %.0f events/s to the ordered subscriber, %.0f events/s to the other; resident memory %.1f MB before, %.1f MB after",
		ordered.rate(began), unordered.rate(began), harness.Megabytes(before), harness.Megabytes(after))
	if after-before > backlogMemory {
		t.Errorf("resident memory: got %.1f MB before, %.1f MB after delivering the backlog, want at most %d MB more",
			harness.Megabytes(before), harness.Megabytes(after), backlogMemory>>20)
	}
	most := logSize()
	t.Logf("the write-ahead log had up to %.1f MB", harness.Megabytes(most))
	if most > backlogLog {
		t.Errorf("write-ahead log: got %.1f MB, want at most %d MB", harness.Megabytes(most), backlogLog>>20)
	}
	ordered.check(t, "ordered")
	unordered.check(t, "other")
}

// publishBacklog publishes the backlog in rounds, alternating with as many events of a
// program without subscriptions, and compares the times. Memory must not grow.
func publishBacklog(t *testing.T, in *harness.Instance, run *harness.Process, free, owed string) {
	t.Helper()
	chunk := *backlogEvents / backlogRounds
	var lines harness.NDJSON
	publish := func(token string, from int) time.Duration {
		t.Helper()
		lines = lines[:0]
		for n := range chunk {
			lines = append(harness.AppendEvent(lines, from+n), '\n')
		}
		began := time.Now()
		in.Publish(token, lines)
		return time.Since(began)
	}
	for n := 0; n < backlogWarm; n += chunk {
		publish(free, 0)
	}
	before := harness.ResidentMemory(t, run.PID())
	var without, with []time.Duration
	for n := range backlogRounds {
		if n%2 == 0 {
			without = append(without, publish(free, 0))
			with = append(with, publish(owed, n*chunk))
		} else {
			with = append(with, publish(owed, n*chunk))
			without = append(without, publish(free, 0))
		}
	}
	after := harness.ResidentMemory(t, run.PID())
	rate := func(took time.Duration) float64 { return float64(chunk) / took.Seconds() }
	t.Logf("published %d events, %.0f/s without subscribers and %.0f/s with hanging ones (medians); resident memory %.1f MB before, "+
		"%.1f MB after",
		*backlogEvents, rate(harness.Median(without)), rate(harness.Median(with)), harness.Megabytes(before), harness.Megabytes(after))
	if slower := float64(harness.Median(with)) / float64(harness.Median(without)); slower > backlogSlower {
		t.Errorf("publishing with hanging subscribers: got %.2f times the time, want at most %.1f", slower, backlogSlower)
	}
	if after-before > backlogMemory {
		t.Errorf("resident memory: got %.1f MB before, %.1f MB with a backlog of %d events, want at most %d MB more",
			harness.Megabytes(before), harness.Megabytes(after), *backlogEvents, backlogMemory>>20)
	}
}

// restartWithBacklog starts the service after a kill and after a shutdown, and checks how long each
// start takes.
func restartWithBacklog(t *testing.T, in *harness.Instance) (run *harness.Process) {
	t.Helper()
	for _, end := range []string{"SIGKILL", "SIGTERM"} {
		run = in.MustStart()
		took := run.Ready.Sub(run.Started)
		t.Logf("start after %s: ready after %s", end, took.Round(time.Millisecond))
		if took > harness.Scale(backlogStart) {
			t.Errorf("start after %s: got ready after %s, want at most %s", end, took, harness.Scale(backlogStart))
		}
		if end == "SIGKILL" {
			in.MustStop(run)
		}
	}
	return run
}

// backlogSubscriber hangs until back is closed, and then counts the events.
type backlogSubscriber struct {
	back    chan struct{}
	first   func() // called when an event arrives for the first time
	ordered bool

	mu           sync.Mutex
	arrived      []uint8 // how often each event arrived, by its number
	count        int
	last         time.Time // when the last arrived
	newest       int       // number of the newest event, if the subscriber is ordered
	twice, early int
}

func (s *backlogSubscriber) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || harness.IsPing(body) {
		return
	}
	select {
	case <-s.back:
	case <-r.Context().Done():
		return
	}
	if r.Context().Err() != nil {
		return // the service was killed during the request
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range harness.Numbers(body) {
		if s.ordered && s.count > 0 && n <= s.newest {
			s.early++
		}
		s.newest = n
		if s.arrived[n]++; s.arrived[n] > 1 {
			s.twice++
			continue
		}
		s.count++
		s.first()
	}
	s.last = time.Now()
}

func (s *backlogSubscriber) check(t *testing.T, name string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.twice > 0 || s.early > 0 {
		t.Errorf("%s subscriber: got %d events twice, %d before an older one; want none", name, s.twice, s.early)
	}
}

func (s *backlogSubscriber) missing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.arrived) - s.count
}

func (s *backlogSubscriber) rate(began time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.count) / s.last.Sub(began).Seconds()
}
