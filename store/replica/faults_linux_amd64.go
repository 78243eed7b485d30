//go:build faults

package replica

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"unsafe"
)

// In a binary built with the tag faults, a test can set the clocks. The file faults.clock
// in the working directory contains the seconds to add to the wall clock and to the
// monotonic clock, each as a native int64. A change takes effect immediately.
// CLOCK_BOOTTIME is not changed: setting the monotonic clock back simulates a suspended
// machine.
//
// Releases are built without this tag; test/matrix checks that they contain none of this
// code.

// vdsoClock is the address of the function with which Go's runtime reads clocks, or 0 if
// it uses a system call.
//
//go:linkname vdsoClock runtime.vdsoClockgettimeSym
var vdsoClock uintptr

var (
	realClock   uintptr   // the original vdsoClock
	clockOffset *[2]int64 // by clock ID
)

// shiftedClock is the address of the assembly function that calls realClock and
// adds clockOffset.
var shiftedClock uintptr

func init() {
	f, err := os.Open("faults.clock")
	if errors.Is(err, fs.ErrNotExist) {
		return
	} else if err != nil {
		panic(err)
	}
	defer f.Close()
	b, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(*clockOffset)), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	if vdsoClock == 0 {
		panic("faults.clock: this kernel has no vDSO, which is needed to set the clocks")
	}
	clockOffset, realClock = (*[2]int64)(unsafe.Pointer(&b[0])), vdsoClock
	vdsoClock = shiftedClock
}
