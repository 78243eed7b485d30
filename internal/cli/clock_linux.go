package cli

import "syscall"

// clockSynchronized says whether the kernel knows the clock to be kept right,
// by NTP for one, and whether it can be asked.
func clockSynchronized() (synchronized, known bool) {
	const unsynchronized = 0x40 // STA_UNSYNC of adjtimex(2)
	var t syscall.Timex
	if _, err := syscall.Adjtimex(&t); err != nil {
		return false, false
	}
	return t.Status&unsynchronized == 0, true
}
