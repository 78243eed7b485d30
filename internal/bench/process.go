package bench

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

// processMemory returns a memory size of a process in bytes, by its field name in
// /proc/PID/status: VmRSS is the resident memory, VmHWM its peak. It returns 0 if there is no
// /proc.
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

// percentile returns the p-th percentile of times, by the nearest-rank method.
func percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*p+99)/100-1]
}
