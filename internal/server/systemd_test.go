package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestNotify checks the notifications to systemd: ready; alive while the store answers, even
// with an error, but not while it hangs; and stopping.
func TestNotify(t *testing.T) {
	l, socket := notifySocket(t, t.TempDir())
	next := func() string {
		b := make([]byte, 4096)
		n, err := l.Read(b)
		if err != nil {
			t.Fatalf("got no notification: %v", err)
		}
		return string(b[:n])
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "60000")
	t.Setenv("WATCHDOG_PID", "")

	const hanging = 3 // number of checks that hang, after the first
	var checks atomic.Int64
	check := func(ctx context.Context) error {
		switch n := checks.Add(1); {
		case n == 1:
			return nil
		case n <= 1+hanging:
			<-ctx.Done()
			return ctx.Err()
		}
		return errors.New("the disk is full\nREADY=1")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- notify(ctx, "Serving https://localhost:8443", check, 38*time.Second, slog.New(slog.DiscardHandler))
	}()

	for _, want := range []string{"READY=1\nSTATUS=Serving https://localhost:8443", "WATCHDOG=1"} {
		if got := next(); got != want {
			t.Fatalf("got the notification %q, want %q", got, want)
		}
	}
	if got, want := next(), `STATUS=Not ready: the disk is full\nREADY=1`; got != want {
		t.Errorf("after the hanging checks: got the notification %q, want %q", got, want)
	}
	if got := checks.Load(); got < 2+hanging {
		t.Errorf("got a notification after %d checks, want none while checks hang", got)
	}
	if got := next(); got != "WATCHDOG=1" {
		t.Errorf("after a check with an error: got the notification %q, want WATCHDOG=1", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for {
		if got := next(); got == "STOPPING=1\nEXTEND_TIMEOUT_USEC=38000000" {
			break
		} else if !strings.HasPrefix(got, "WATCHDOG") {
			t.Fatalf("got the notification %q, want STOPPING=1", got)
		}
	}
}

// notifySocket returns a notification socket in dir, like systemd's, with a read deadline of
// 30 s, and its path.
func notifySocket(t *testing.T, dir string) (*net.UnixConn, string) {
	t.Helper()
	socket := filepath.Join(dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.SetReadDeadline(time.Now().Add(30 * time.Second))
	return l, socket
}
