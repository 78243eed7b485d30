package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// systemdSocket returns a notification socket in dir, like systemd's, with a read deadline
// of 30 s, and its path.
func systemdSocket(t *testing.T, dir string) (*net.UnixConn, string) {
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

// TestServeNotifies checks the notifications of serve to systemd.
func TestServeNotifies(t *testing.T) {
	dir := t.TempDir()
	l, socket := systemdSocket(t, dir)
	t.Setenv("NOTIFY_SOCKET", socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	done := make(chan int, 1)
	go func() {
		args := []string{"serve", "--data", filepath.Join(dir, "d"), "--listen", "127.0.0.1:0", "--grace", "30s", "--log-level", "error"}
		done <- Run(ctx, args, Streams{strings.NewReader(""), io.Discard, &stderr})
	}()
	for _, want := range []string{"READY=1\nSTATUS=Serving https://127.0.0.1:", "STOPPING=1\nEXTEND_TIMEOUT_USEC=70000000"} {
		b := make([]byte, 4096)
		n, err := l.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), want) {
			t.Errorf("got the notification %q, %v; want %q", b[:n], err, want)
		}
		cancel()
	}
	if status := <-done; status != exitDone {
		t.Errorf("got exit status %d, want %d: %s", status, exitDone, &stderr)
	}
}
