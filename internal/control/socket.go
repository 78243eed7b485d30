// Package control lets the commands of this binary ask the running server of a data
// directory, over a Unix socket in that directory: both ends of it.
//
// The socket has mode 0600 and asks for no token: a user who may open it may read
// the data directory. It speaks HTTP with JSON bodies, to this binary alone.
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

// maxSocketPath is the longest path of a socket, in bytes, that every system
// takes (sun_path has 104 on some, with the final zero).
const maxSocketPath = 103

// socketAddress returns a path of the socket in dir, which is valid until the
// returned closer is closed.
//
// A path that is too long for the system's address is reached on Linux through
// a descriptor of its directory.
func socketAddress(dir string) (string, io.Closer, error) {
	path := filepath.Join(dir, socketName)
	if len(path) <= maxSocketPath {
		return path, io.NopCloser(nil), nil
	}
	if runtime.GOOS != "linux" {
		return "", nil, fmt.Errorf("the data directory's path is too long for a socket in it: %s has %d bytes, and may have %d", path, len(path), maxSocketPath)
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

// Listen opens the socket of the data directory dir, for this user alone. The
// caller holds the lock of the directory: a socket that exists was left behind by
// a process that has ended, and is replaced.
func Listen(ctx context.Context, dir string) (net.Listener, error) {
	path, address, err := socketAddress(dir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, address.Close())
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// On systems that apply this, the socket never exists with a wider mode.
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
