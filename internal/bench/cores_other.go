//go:build !linux

package bench

import (
	"errors"
	"runtime"
)

// UseCores cannot be done here.
func UseCores(int) error {
	return errors.New("only Linux can limit a process to some of its processors")
}

// processors returns how many processors this machine has.
func processors() int { return runtime.NumCPU() }
