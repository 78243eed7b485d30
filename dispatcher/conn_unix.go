//go:build unix

package dispatcher

import "syscall"

// isQuiet says whether nothing can be read from an open socket, its end
// included. It takes nothing from it.
func isQuiet(socket syscall.RawConn) bool {
	quiet := false
	err := socket.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		quiet = err == syscall.EAGAIN
		return true // whatever it said, without waiting
	})
	return err == nil && quiet
}
