//go:build !linux

package replica

import "time"

var started = time.Now()

// uptime returns the time since the process started. It takes the larger of what
// the monotonic clock and the wall clock say: while the machine is suspended
// only the wall clock runs. A wall clock that jumps ahead makes a lease expire
// early, which is safe.
func uptime() time.Duration {
	now := time.Now()
	return max(now.Sub(started), now.Round(0).Sub(started.Round(0)))
}
