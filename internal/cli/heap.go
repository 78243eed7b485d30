package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// usualPercent is how much new memory, in percent of what is in use, the runtime
	// hands out before it collects garbage by default.
	usualPercent = 100
	// heapFloor is the size in bytes up to which the heap of a busy service grows
	// before garbage is collected, however little of it is in use.
	heapFloor = 40 << 20
	// busyWithin is how soon after a collection the next one must come for the service
	// to be busy. At rest the heap stays small.
	busyWithin = time.Second
)

// garbage is what is remembered of the last collection. Its method collected runs after
// each one, as the cleanup of an object that the collection frees.
type garbage struct {
	last    time.Time // collection
	percent int       // in force
	samples []metrics.Sample
}

// tuneGarbage collects garbage less often while the service is busy and little
// memory is in use: with the usual rule a heap of 10 MB would be collected a dozen
// times a second. An operator who has set GOGC decides instead.
func tuneGarbage() {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	g := &garbage{percent: usualPercent, samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}}
	g.await()
}

// await has collected called after the next collection.
func (g *garbage) await() {
	type marker struct{ _ *garbage }
	runtime.AddCleanup(&marker{}, (*garbage).collected, g)
}

func (g *garbage) collected() {
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

// gcPercent returns how much new memory may be handed out before the next collection,
// in percent of what is in use: of the heap and of the roots it is searched from, both
// in bytes. The last collection came so long after the one before it.
func gcPercent(heap, roots uint64, since time.Duration) int {
	if since > busyWithin || heap+roots == 0 || heap >= heapFloor {
		return usualPercent
	}
	return max(usualPercent, int((heapFloor-heap)*100/(heap+roots)))
}
