package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"syscall"
)

// ExplainListen turns an error of listening on an address that a flag sets into one that says what
// is wrong and what to do.
func ExplainListen(ctx context.Context, flag, addr string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("--%s: %w: ports below 1024 need root or CAP_NET_BIND_SERVICE", flag, err)
	case !errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--%s: %w", flag, err)
	}
	host, port, _ := net.SplitHostPort(addr)
	return fmt.Errorf("port %s is in use; choose another with --%s %s", port, flag, net.JoinHostPort(host, otherPort(ctx, host, port)))
}

// otherPort returns a free port of host, if possible a memorable one above port.
func otherPort(ctx context.Context, host, port string) string {
	n, _ := strconv.Atoi(port)
	for _, candidate := range []int{n + 1000, n + 2000, n + 8000, 0} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(candidate)))
		if err != nil {
			continue
		}
		defer l.Close()
		_, free, _ := net.SplitHostPort(l.Addr().String())
		return free
	}
	return "0" // the system chooses
}
