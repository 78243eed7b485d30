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

// systemdSocket is where systemd would listen for what a service tells it, in a
// directory, for half a minute.
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

// TestServeNotifies has systemd told by serve itself.
func TestServeNotifies(t *testing.T) {
	dir := t.TempDir()
	l, socket := systemdSocket(t, dir)
	t.Setenv("NOTIFY_SOCKET", socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var complaints bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, []string{"serve", "--data", filepath.Join(dir, "d"), "--listen", "127.0.0.1:0", "--grace", "30s", "--log-level", "error"}, Streams{strings.NewReader(""), io.Discard, &complaints})
	}()
	for _, want := range []string{"READY=1\nSTATUS=Serving https://127.0.0.1:", "STOPPING=1\nEXTEND_TIMEOUT_USEC=70000000"} {
		b := make([]byte, 4096)
		n, err := l.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), want) {
			t.Errorf("systemd is told %q, %v; want %q", b[:n], err, want)
		}
		cancel()
	}
	if status := <-done; status != exitDone {
		t.Errorf("exit status %d: %s", status, &complaints)
	}
}

// TestStandbyNotifies has systemd told by a standby: that it follows, that it
// takes over, for however long that takes, and that it serves.
func TestStandbyNotifies(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	l, _ := systemdSocket(t, dir)
	told := func(want string) {
		t.Helper()
		b := make([]byte, 4096)
		n, err := l.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), want) {
			t.Fatalf("systemd is told %q, %v; want %q", b[:n], err, want)
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
		var complaints bytes.Buffer
		done := make(chan int, 1)
		go func() {
			done <- Run(ctx, []string{command, "--data", data, "--litestream", data + ".yml", "--listen", "127.0.0.1:0", "--log-level", "error"}, Streams{strings.NewReader(""), io.Discard, &complaints})
		}()
		return func() {
			t.Helper()
			cancel()
			if status := <-done; status != exitDone {
				t.Errorf("%s: exit status %d: %s", command, status, &complaints)
			}
		}
	}
	stop := start("serve", "one")
	told("READY=1\nSTATUS=Serving https://127.0.0.1:")
	stop()
	told("STOPPING=1")
	key, err := os.ReadFile("one/secret.key")
	if err == nil {
		err = os.WriteFile("two/secret.key", key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}

	stop = start("standby", "two")
	told("READY=1\nSTATUS=Following file://")
	var said bytes.Buffer
	if status := Run(t.Context(), []string{"promote", "--data", "two"}, Streams{strings.NewReader(""), &said, &said}); status != exitDone {
		t.Errorf("promote: exit status %d: %s", status, &said)
	}
	told("READY=1\nSTATUS=Taking over")
	told("READY=1\nSTATUS=Serving https://127.0.0.1:")
	stop()
	told("STOPPING=1")
}
