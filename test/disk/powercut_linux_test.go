package disk

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

// shutdownFS makes the kernel stop a mounted file system at once, without writing
// what is only in memory, not even the journal.
func shutdownFS(mount string) error {
	const (
		ioctlShutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
		noLogFlush    = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH
	)
	dir, err := os.Open(mount)
	if err != nil {
		return err
	}
	flags := uint32(noLogFlush)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, dir.Fd(), ioctlShutdown, uintptr(unsafe.Pointer(&flags)))
	if errno != 0 {
		err = os.NewSyscallError("ioctl", errno)
	}
	return errors.Join(err, dir.Close())
}
