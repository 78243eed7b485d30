package harness

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// faultyBinary is built with the tag faults, once per test process.
var faultyBinary struct {
	once sync.Once
	path string
	err  error
}

// BuildFaulty is [Build] with clocks that a test can set, see [Clock] (requirement clocks).
// SERVICE_TEST_FAULTY_BINARY names a binary to use instead.
func BuildFaulty(tb testing.TB, mutations ...Mutation) string {
	tb.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		Unavailable(tb, "clocks", "the clocks of a process can be set on linux/amd64 only")
	}
	if len(mutations) > 0 {
		return buildMutated(tb, mutations, "-tags", "faults")
	}
	if path := os.Getenv("SERVICE_TEST_FAULTY_BINARY"); path != "" {
		return path
	}
	b := &faultyBinary
	b.once.Do(func() {
		var dir string
		if dir, b.err = os.MkdirTemp("", "service-test-"); b.err != nil {
			return
		}
		b.path = filepath.Join(dir, "service")
		b.err = goBuild(b.path, "-tags", "faults")
	})
	if b.err != nil {
		tb.Fatal(b.err)
	}
	return b.path
}

// Clock sets the clocks of the processes in a directory. They must run a binary of [BuildFaulty].
type Clock struct {
	tb   testing.TB
	file *os.File
}

// NewClock returns a clock for processes that are started in dir later. Until it is set, they use
// the machine's time.
func NewClock(tb testing.TB, dir string) *Clock {
	tb.Helper()
	f, err := os.Create(filepath.Join(dir, "faults.clock"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	c := &Clock{tb, f}
	c.Set(0, 0)
	return c
}

// Set sets by how many whole seconds the wall clock and the monotonic clock are ahead of the
// machine's.
func (c *Clock) Set(wall, monotonic time.Duration) {
	c.tb.Helper()
	var b []byte
	for _, d := range []time.Duration{wall, monotonic} {
		b = binary.NativeEndian.AppendUint64(b, uint64(d/time.Second))
	}
	if _, err := c.file.WriteAt(b, 0); err != nil {
		c.tb.Fatal(err)
	}
}
