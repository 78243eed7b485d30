package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// UseCores leaves this process, and those that it starts from now on, only so many of
// its processors.
func UseCores(n int) error {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("which processors there are: %w", err)
	}
	if all.Count() < n {
		return fmt.Errorf("this process may use %d processors, not %d", all.Count(), n)
	}
	for cpu := 0; some.Count() < n; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	runtime.GOMAXPROCS(n)
	// A thread inherits the set of the one that starts it; so threads are looked for
	// until there is no new one.
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
				return fmt.Errorf("processors of thread %d: %w", id, err)
			}
			done[id] = true
		}
	}
	return nil
}

// processors returns how many processors this process may use.
func processors() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return runtime.NumCPU()
	}
	return set.Count()
}
