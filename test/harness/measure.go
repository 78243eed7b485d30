package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Median returns the median, or the greater of the two middle values.
func Median[T float64 | time.Duration](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// Percentile returns the smallest time that is at least as long as p percent of the times.
func Percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*p+99)/100-1]
}

// Megabytes converts bytes to units of 2^20 bytes.
func Megabytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// ProcessorTime returns the processor time of a process, in steps of 10 ms; 0 after its end and on
// systems without /proc.
func ProcessorTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name may contain any character
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
	return time.Duration(ticks) * 10 * time.Millisecond // Linux always reports hundredths of a second
}

// AwaitWork waits until a starting process has used an amount of processor time, or serves. A
// strike at such a moment hits the same stage of the start even on a slow machine. AwaitWork
// returns false if the process ends first.
func AwaitWork(tb testing.TB, p *Process, work time.Duration) bool {
	tb.Helper()
	alive := true
	WaitFor(tb, "the service to start", func() bool {
		select {
		case <-p.Exited:
			alive = false
		default:
		}
		return !alive || len(p.URL) > 0 || ProcessorTime(tb, p.PID()) >= work
	})
	return alive
}

// ResidentMemory returns the resident memory of a process in bytes; 0 on systems
// without /proc.
func ResidentMemory(tb testing.TB, pid int) int64 {
	tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "\nVmRSS:")
	line, _, _ := strings.Cut(after, "\n")
	kB, parseErr := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	if err := errors.Join(err, parseErr); err != nil {
		tb.Fatalf("/proc/%d/status: %v", pid, err)
	}
	return kB << 10
}

// WatchSize samples the size of a file until the returned function is called, which returns the
// maximum.
func WatchSize(tb testing.TB, path string) func() int64 {
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

// Trip measures the time from publication to arrival of numbered events.
type Trip struct {
	Sent    []time.Time   // by the event's number; set it before publishing
	Arrived chan struct{} // closed after the last arrival

	took []atomic.Int64 // nanoseconds until the arrival, 0 before
	left atomic.Int64
}

// NewTrip returns a Trip of n events, numbered from 0.
func NewTrip(events int) *Trip {
	t := &Trip{Sent: make([]time.Time, events), took: make([]atomic.Int64, events), Arrived: make(chan struct{})}
	t.left.Store(int64(events))
	return t
}

// Arrive records the events in the body of a delivery.
func (t *Trip) Arrive(body []byte, now time.Time) {
	for n := range Numbers(body) {
		if t.took[n].CompareAndSwap(0, int64(now.Sub(t.Sent[n]))) && t.left.Add(-1) == 0 {
			close(t.Arrived)
		}
	}
}

// Left returns how many events have not arrived.
func (t *Trip) Left() int64 { return t.left.Load() }

// Times returns the time that each event took. For an event that has not arrived, that is the time
// until now.
func (t *Trip) Times(now time.Time) []time.Duration {
	all := make([]time.Duration, len(t.Sent))
	for n := range all {
		if all[n] = time.Duration(t.took[n].Load()); all[n] == 0 {
			all[n] = now.Sub(t.Sent[n])
		}
	}
	return all
}
