package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
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

// TestStandbyNotifies checks the notifications of a standby to systemd: when it follows,
// takes over and serves.
func TestStandbyNotifies(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	l, _ := systemdSocket(t, dir)
	await := func(want string) {
		t.Helper()
		b := make([]byte, 4096)
		n, err := l.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), want) {
			t.Fatalf("got the notification %q, %v; want %q", b[:n], err, want)
		}
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	t.Setenv("WATCHDOG_USEC", "")
	for _, data := range []string{"one", "two"} {
		text := "dbs:\n  - path: " + data + "/service.db\n    replica: {path: copy, sync-interval: 100ms}\n"
		if err := errors.Join(os.Mkdir(data, 0o700), os.WriteFile(data+".yml", []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	start := func(command, data string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var stderr bytes.Buffer
		done := make(chan int, 1)
		go func() {
			args := []string{command, "--data", data, "--litestream", data + ".yml", "--listen", "127.0.0.1:0", "--log-level", "error"}
			done <- Run(ctx, args, Streams{strings.NewReader(""), io.Discard, &stderr})
		}()
		return func() {
			t.Helper()
			cancel()
			if status := <-done; status != exitDone {
				t.Errorf("%s: got exit status %d, want %d: %s", command, status, exitDone, &stderr)
			}
		}
	}
	stop := start("serve", "one")
	await("READY=1\nSTATUS=Serving https://127.0.0.1:")
	stop()
	await("STOPPING=1")
	key, err := os.ReadFile("one/secret.key")
	if err == nil {
		err = os.WriteFile("two/secret.key", key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}

	stop = start("standby", "two")
	await("READY=1\nSTATUS=Following file://")
	var out bytes.Buffer
	if status := Run(t.Context(), []string{"promote", "--data", "two"}, Streams{strings.NewReader(""), &out, &out}); status != exitDone {
		t.Errorf("promote: got exit status %d, want %d: %s", status, exitDone, &out)
	}
	await("READY=1\nSTATUS=Taking over")
	await("READY=1\nSTATUS=Serving https://127.0.0.1:")
	stop()
	await("STOPPING=1")
}
