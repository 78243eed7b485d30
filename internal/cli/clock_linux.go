package cli

import "syscall"

// clockSynchronized reports whether the kernel considers the clock synchronized, for example by
// NTP, and whether that is known.
func clockSynchronized() (synchronized, known bool) {
	const unsynchronized = 0x40 // STA_UNSYNC of adjtimex(2)
	var t syscall.Timex
	if _, err := syscall.Adjtimex(&t); err != nil {
		return false, false
	}
	return t.Status&unsynchronized == 0, true
}
