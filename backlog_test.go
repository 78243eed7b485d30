package main

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"service/internal/bench"
)

var backlogEvents = flag.Int("backlog.events", 50_000, "how many events TestBacklog lets wait behind a dead subscriber")

const (
	backlogWarm   = 100_000          // events that fill the tail and the caches, as they are most of the time
	backlogRounds = 20               // of publishing, with and without a subscriber in turn
	backlogMemory = 32 << 20         // that resident memory may rise by: the garbage of the moment, whatever waits
	backlogStart  = 2 * time.Second  // from the start of the process until it is ready
	backlogSlower = 2.0              // publishing may take so many times as long with a dead subscriber; what was measured is logged
	backlogLog    = 64 << 20         // that the database's write-ahead log may take
	backlogDrain  = 10 * time.Minute // that all of it may take to arrive
)

// TestBacklog lets events wait behind two subscribers that are dead, one of
// them ordered: memory stays flat, publishing as fast as without, the service
// starts in no time, killed or not, and when the subscribers are back all
// arrives, nothing twice, in order for the one that wants it so. In full:
//
//	go test -run Backlog -v -backlog.events 1000000 -timeout 30m .
func TestBacklog(t *testing.T) {
	var ordered, unordered backlogSubscriber
	ordered.ordered = true
	back := make(chan struct{}) // closed: the subscribers live
	working := sync.OnceFunc(func() { close(back) })
	t.Cleanup(working)
	var all sync.WaitGroup
	for _, s := range []*backlogSubscriber{&ordered, &unordered} {
		s.back, s.arrived = back, make([]uint8, *backlogEvents)
		all.Add(*backlogEvents)
		s.first = all.Done
	}

	// An attempt that hangs lasts longer than the test: each of the slots is lost until the end of the process.
	in := newInstance(t, buildBinary(t), t.TempDir(), "--attempt-timeout", "5m", "--grace", "500ms", "--log-level", "warn", "--retry-schedule", "1s,1s,1s,1s")
	free, owed := in.token("free"), in.token("owed")
	run := in.mustStart()
	logSize := watchSize(t, filepath.Join(in.data, "service.db-wal"))
	in.subscribe(owed, newSubscription{URL: listenLoopback(t, &ordered), Events: eventList("content_published"), Ordered: true})
	in.subscribe(owed, newSubscription{URL: listenLoopback(t, &unordered), Events: eventList("content_published")})
	chunk := *backlogEvents / backlogRounds
	var lines ndjson
	publish := func(token string, from int) time.Duration {
		t.Helper()
		lines = lines[:0]
		for n := range chunk {
			lines = append(bench.AppendEvent(lines, bench.EventName, from+n), '\n')
		}
		base, _ := in.await(t.Context())
		began := time.Now()
		if status, err := in.call(t.Context(), token, "POST", base+"/v2/events", lines, nil); err != nil || status != http.StatusCreated {
			t.Fatalf("publish: status %d, %v", status, err)
		}
		return time.Since(began)
	}
	for n := 0; n < backlogWarm; n += chunk {
		publish(free, 0)
	}
	before := residentMemory(t, run.process.Pid)
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
	after := residentMemory(t, run.process.Pid)
	rate := func(took time.Duration) float64 { return float64(chunk) / took.Seconds() }
	t.Logf("%d events wait: published at %.0f/s without a subscriber and %.0f/s with the dead ones (medians); resident memory %.1f MB before, %.1f MB after",
		*backlogEvents, rate(median(without)), rate(median(with)), megabytes(before), megabytes(after))
	if slower := float64(median(with)) / float64(median(without)); slower > backlogSlower {
		t.Errorf("publishing took %.2f times as long with dead subscribers, want at most %.1f times", slower, backlogSlower)
	}
	if after-before > backlogMemory {
		t.Errorf("resident memory rose from %.1f MB to %.1f MB with %d events that wait, want at most %d MB more", megabytes(before), megabytes(after), *backlogEvents, backlogMemory>>20)
	}

	in.kill(run)
	for _, end := range []string{"it was killed", "SIGTERM"} {
		run = in.mustStart()
		took := run.ready.Sub(run.started)
		t.Logf("after %s it was ready %s after its start", end, took.Round(time.Millisecond))
		if took > backlogStart {
			t.Errorf("after %s it was ready %s after its start, want at most %s", end, took, backlogStart)
		}
		if end != "SIGTERM" {
			if status := in.stop(run); status != exitDone {
				t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
			}
		}
	}

	before = residentMemory(t, run.process.Pid)
	began := time.Now()
	working()
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(backlogDrain):
		t.Errorf("%d and %d of %d events have not arrived %s after the subscribers were back", ordered.missing(), unordered.missing(), *backlogEvents, backlogDrain)
	}
	after = residentMemory(t, run.process.Pid)
	t.Logf("the backlog flowed at %.0f events/s to the ordered subscriber, %.0f events/s to the other; resident memory %.1f MB before, %.1f MB after",
		ordered.rate(began), unordered.rate(began), megabytes(before), megabytes(after))
	if after-before > backlogMemory {
		t.Errorf("resident memory rose from %.1f MB to %.1f MB while the backlog flowed, want at most %d MB more", megabytes(before), megabytes(after), backlogMemory>>20)
	}
	most := logSize()
	t.Logf("the write-ahead log took up to %.1f MB", megabytes(most))
	if most > backlogLog {
		t.Errorf("the write-ahead log grew to %.1f MB, want at most %d MB", megabytes(most), backlogLog>>20)
	}
	for name, s := range map[string]*backlogSubscriber{"ordered": &ordered, "other": &unordered} {
		s.mu.Lock()
		if s.twice > 0 || s.early > 0 {
			t.Errorf("the %s subscriber: %d events arrived twice, %d before an older one; want none", name, s.twice, s.early)
		}
		s.mu.Unlock()
	}
}

// backlogSubscriber hangs until it is back, and counts what it has taken then.
type backlogSubscriber struct {
	back    chan struct{}
	first   func() // called when an event arrives for the first time
	ordered bool

	mu           sync.Mutex
	arrived      []uint8 // how often, by the event's number
	count        int
	last         time.Time // when the last arrived
	newest       int       // number of the newest event, if it is ordered
	twice, early int
}

func (s *backlogSubscriber) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || bytes.Contains(body, []byte(`"name":"ping"`)) {
		return
	}
	select {
	case <-s.back:
	case <-r.Context().Done():
		return
	}
	if r.Context().Err() != nil {
		return // the service was killed while it waited
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range bench.EventNumbers(body) {
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
