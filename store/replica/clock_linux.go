package replica

import (
	"time"

	"golang.org/x/sys/unix"
)

// uptime returns the time since the machine started. Unlike Go's monotonic clock, it
// includes the time for which the machine was suspended, so a lease expires during that.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return time.Duration(ts.Nano())
}
