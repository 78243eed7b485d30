package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// UseCores limits this process, and those it starts later, to n processors.
func UseCores(n int) error {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("read the available processors: %w", err)
	}
	if all.Count() < n {
		return fmt.Errorf("only %d processors are available, not %d", all.Count(), n)
	}
	for cpu := 0; some.Count() < n; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	runtime.GOMAXPROCS(n)
	// A new thread inherits the set of its creator. Repeat until there are no new threads.
	done := make(map[int]bool)
	for before := -1; before < len(done); {
		before = len(done)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[id] {
				continue
			}
			if err := unix.SchedSetaffinity(id, &some); err != nil && err != unix.ESRCH {
				return fmt.Errorf("set the processors of thread %d: %w", id, err)
			}
			done[id] = true
		}
	}
	return nil
}

// processors returns the number of processors that this process may use.
func processors() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return runtime.NumCPU()
	}
	return set.Count()
}
