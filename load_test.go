package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/internal/bench"
)

// trip is so many events on their way, each with its number in it.
type trip struct {
	sent    []time.Time    // by the event's number, before it is published
	took    []atomic.Int64 // nanoseconds until its arrival, 0 before
	left    atomic.Int64
	arrived chan struct{} // closed with the last
}

func newTrip(events int) *trip {
	t := &trip{sent: make([]time.Time, events), took: make([]atomic.Int64, events), arrived: make(chan struct{})}
	t.left.Store(int64(events))
	return t
}

// arrive notes the events of a delivery's body.
func (t *trip) arrive(body []byte, now time.Time) {
	for n := range bench.EventNumbers(body) {
		if t.took[n].CompareAndSwap(0, int64(now.Sub(t.sent[n]))) && t.left.Add(-1) == 0 {
			close(t.arrived)
		}
	}
}

// times returns how long each event took; one that has not arrived, until now.
func (t *trip) times(now time.Time) []time.Duration {
	all := make([]time.Duration, len(t.sent))
	for n := range all {
		if all[n] = time.Duration(t.took[n].Load()); all[n] == 0 {
			all[n] = now.Sub(t.sent[n])
		}
	}
	return all
}

func median[T float64 | time.Duration](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func megabytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// readBody reads the body of a delivery.
func readBody(r *http.Request) ([]byte, error) {
	body := make([]byte, max(r.ContentLength, 0))
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

// serve serves HTTP until the test ends.
func serve(tb testing.TB, l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	tb.Cleanup(func() {
		s.Close()
		<-done
	})
}

// processorTime returns how long a process has had a processor, to 10 ms; 0
// where the system does not tell.
func processorTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if os.IsNotExist(err) {
		return 0
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name may hold anything
	f := strings.Fields(after)
	if err != nil || len(f) < 13 {
		tb.Fatalf("/proc/%d/stat: %q, %v", pid, stat, err)
	}
	var ticks int64
	for _, field := range f[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // Linux shows hundredths of a second, always
}

// residentMemory returns how much memory a process has, in bytes; 0 where the
// system does not tell.
func residentMemory(tb testing.TB, pid int) int64 {
	tb.Helper()
	n, err := processMemory(pid, "VmRSS")
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// watchSize looks at the size of a file now and then, until the function that
// it returns is called, which returns the greatest.
func watchSize(tb testing.TB, path string) func() int64 {
	var most int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if info, err := os.Stat(path); err == nil {
				most = max(most, info.Size())
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
	tb.Cleanup(end)
	return func() int64 {
		end()
		return most
	}
}
