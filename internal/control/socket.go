// Package control connects the commands of this binary to the server that runs on a data directory,
// through a Unix socket in that directory, or to a handler in the same process. The protocol is the
// API, with the owner's routes.
//
// The socket has mode 0600 and requires no token: a user who can open it can also read the
// data directory.
package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// socketName is the name of the socket in the data directory.
const socketName = "admin.sock"

// maxSocketPath is the longest socket path, in bytes, that every system supports. On some, sun_path
// has 104 bytes, including the final zero.
const maxSocketPath = 103

// socketAddress returns a path of the socket in dir, valid until the returned closer is closed. If
// the path is too long, Linux reaches the socket through a descriptor of the directory.
func socketAddress(dir string) (string, io.Closer, error) {
	path := filepath.Join(dir, socketName)
	if len(path) <= maxSocketPath {
		return path, io.NopCloser(nil), nil
	}
	if runtime.GOOS != "linux" {
		return "", nil, fmt.Errorf("the path of the admin socket is too long: %s has %d bytes, the limit is %d; use a shorter data directory",
			path, len(path), maxSocketPath)
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/" + strconv.FormatUint(uint64(d.Fd()), 10) + "/" + socketName, d, nil
}

// listener is the listener of the socket. Closing it removes the socket.
type listener struct {
	net.Listener
	address io.Closer
}

func (l listener) Close() error {
	return errors.Join(l.Listener.Close(), l.address.Close())
}

// Listen opens the socket of the data directory dir, accessible only to this user. The caller must
// hold the lock of the directory, so an existing socket is stale and is replaced.
func Listen(ctx context.Context, dir string) (net.Listener, error) {
	path, address, err := socketAddress(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, address.Close())
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// On systems that support this, the socket never has a wider mode.
		return c.Control(func(fd uintptr) { syscall.Fchmod(int(fd), 0o600) })
	}}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), address.Close())
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close(), address.Close())
	}
	return listener{l, address}, nil
}
