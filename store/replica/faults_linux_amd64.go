//go:build faults

package replica

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"unsafe"
)

// A binary built with the tag faults has clocks that a test sets: the file
// faults.clock in its working directory holds the seconds that are added to the
// wall clock and to the monotonic clock, each a native int64. A change has effect
// at once. CLOCK_BOOTTIME stays that of the machine: setting the monotonic clock
// back simulates a machine that was suspended.
//
// No release is built with this tag; test/matrix checks that a binary without it
// contains nothing of this.

// vdsoClock is the address of the function by which Go's runtime reads clocks, 0
// for a system call.
//
//go:linkname vdsoClock runtime.vdsoClockgettimeSym
var vdsoClock uintptr

var (
	realClock   uintptr   // what vdsoClock was
	clockOffset *[2]int64 // by clock id
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
		panic("faults.clock: this kernel offers no vDSO, through which the clocks are set")
	}
	clockOffset, realClock = (*[2]int64)(unsafe.Pointer(&b[0])), vdsoClock
	vdsoClock = shiftedClock
}
