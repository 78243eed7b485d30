package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// processMemory returns a figure of a process's memory in bytes, by its name on
// Linux: VmRSS is what is resident, VmHWM the most that ever was. Elsewhere it
// is 0.
func processMemory(pid int, field string) (int64, error) {
	name := fmt.Sprintf("/proc/%d/status", pid)
	status, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	_, after, _ := strings.Cut(string(status), "\n"+field+":")
	line, _, _ := strings.Cut(after, "\n")
	kB, parseErr := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(line, "kB")), 10, 64)
	if err := errors.Join(err, parseErr); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", name, field, err)
	}
	return kB << 10, nil
}

// percentile returns the least of the times that p percent are not above.
func percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*p+99)/100-1]
}
