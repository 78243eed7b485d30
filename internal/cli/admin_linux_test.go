package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"service/test/harness"
)

// pty opens a pseudo-terminal. Writes to master are typed input for terminal; reads from
// master return what the terminal shows. The caller closes terminal.
func pty(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	var number, unlock uint32
	ioctl(t, master, syscall.TIOCGPTN, unsafe.Pointer(&number))
	ioctl(t, master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock))
	if terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return master, terminal
}

func ioctl(t *testing.T, f *os.File, request uintptr, arg unsafe.Pointer) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) { _, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg)) })
	if err != nil || errno != 0 {
		t.Fatal(err, errno)
	}
}

// awaitEcho waits until the echo of a terminal is on or off, as wanted.
func awaitEcho(t *testing.T, master *os.File, want bool) {
	t.Helper()
	harness.WaitFor(t, fmt.Sprintf("echo %v", want), func() bool {
		var state syscall.Termios
		ioctl(t, master, syscall.TCGETS, unsafe.Pointer(&state))
		return state.Lflag&syscall.ECHO != 0 == want
	})
}

func TestPasswordPromptHasNoEcho(t *testing.T) {
	master, terminal := pty(t)
	prompts, prompted := io.Pipe()
	done := make(chan error, 1)
	var got string
	go func() {
		var err error
		got, err = askForPassword(t.Context(), Streams{In: terminal, Err: prompted}, "password", "New password: ", true)
		prompted.Close()
		done <- err
	}()
	for _, prompt := range []string{"New password: ", "Repeat: "} {
		b := make([]byte, len(prompt))
		if _, err := io.ReadFull(prompts, b); err != nil || string(b) != prompt {
			t.Fatalf("got prompt %q, %v; want %q", b, err, prompt)
		}
		awaitEcho(t, master, false)
		if _, err := master.WriteString("correct horse battery\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(prompts, b[:1]); err != nil || b[0] != '\n' {
			t.Fatalf("after the password: got %q, %v; want a newline", b[0], err)
		}
	}
	if err := <-done; err != nil || got != "correct horse battery" {
		t.Errorf("got %q, %v, want the password", got, err)
	}
	awaitEcho(t, master, true)
	if _, err := terminal.WriteString("end\n"); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for b := make([]byte, 100); !strings.Contains(shown.String(), "end"); {
		n, err := master.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(b[:n])
	}
	terminal.Close()
	if strings.Contains(shown.String(), "horse") {
		t.Errorf("the terminal showed the password: %q", &shown)
	}
}

// TestInterruptedPassword checks that an interrupt at the prompt turns the echo on again.
func TestInterruptedPassword(t *testing.T) {
	master, terminal := pty(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := askForPassword(ctx, Streams{In: terminal, Err: io.Discard}, "password", "New password: ", true)
		done <- err
	}()
	awaitEcho(t, master, false)
	cancel()
	if err := <-done; err == nil || err.Error() != "interrupted: nothing was changed" {
		t.Errorf("got %v, want interrupted", err)
	}
	awaitEcho(t, master, true)
	if _, err := master.WriteString("\n"); err != nil { // ends the pending read
		t.Fatal(err)
	}
}
