//go:build !linux

package bench

import (
	"errors"
	"runtime"
)

// UseCores returns an error: only Linux supports it.
func UseCores(int) error {
	return errors.New("limiting processors is only supported on Linux")
}

// processors returns the number of processors of this host.
func processors() int { return runtime.NumCPU() }
