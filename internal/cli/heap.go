package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// defaultGCPercent is the runtime's default for GOGC.
	defaultGCPercent = 100
	// heapFloor is the heap size in bytes below which a busy service does not collect
	// garbage, however small the live heap is.
	heapFloor = 40 << 20
	// busyWithin is the interval between two collections below which the service counts
	// as busy. An idle service keeps a small heap.
	busyWithin = time.Second
)

// gcTuner adjusts GOGC after each garbage collection. Its method collected is the cleanup of an
// object that the collection frees.
type gcTuner struct {
	last    time.Time // of the last collection
	percent int       // the current GOGC
	samples []metrics.Sample
}

// tuneGC makes garbage collection less frequent while the service is busy and its live
// heap small: by default, a heap of 10 MB would be collected a dozen times per second. It
// does nothing if the operator has set GOGC.
func tuneGC() {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	g := &gcTuner{percent: defaultGCPercent, samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}}
	g.await()
}

// await makes collected run after the next collection.
func (g *gcTuner) await() {
	type marker struct{ _ *gcTuner }
	runtime.AddCleanup(&marker{}, (*gcTuner).collected, g)
}

func (g *gcTuner) collected() {
	now := time.Now()
	metrics.Read(g.samples)
	heap, stacks, globals := g.samples[0].Value.Uint64(), g.samples[1].Value.Uint64(), g.samples[2].Value.Uint64()
	percent := gcPercent(heap, stacks+globals, now.Sub(g.last))
	if percent != g.percent {
		debug.SetGCPercent(percent)
	}
	g.last, g.percent = now, percent
	g.await()
}

// gcPercent returns GOGC for a live heap and GC roots of the given sizes in bytes. since is the
// time between the last two collections.
func gcPercent(heap, roots uint64, since time.Duration) int {
	if since > busyWithin || heap+roots == 0 || heap >= heapFloor {
		return defaultGCPercent
	}
	return max(defaultGCPercent, int((heapFloor-heap)*100/(heap+roots)))
}
