//go:build !linux

package replica

import "time"

var started = time.Now()

// uptime returns the time since the process started, by the monotonic clock or the wall
// clock, whichever is later: while the machine is suspended, only the wall clock runs. A
// wall clock that jumps ahead makes a lease expire early, which is safe.
func uptime() time.Duration {
	now := time.Now()
	return max(now.Sub(started), now.Round(0).Sub(started.Round(0)))
}
