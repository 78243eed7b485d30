package crash

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// TestAborted sends SIGABRT, as systemd's watchdog does, with the unit's environment. The service
// must not exit with the status of a Go crash, after which systemd would not restart the unit.
func TestAborted(t *testing.T) {
	unit := harness.Read(t, harness.Path("packaging/service-webhooks.service"))
	final := regexp.MustCompile(`(?m)^RestartPreventExitStatus=(.*)`).FindSubmatch(unit)
	if final == nil {
		t.Fatal("the unit has no exit status after which it is not restarted")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetReadDeadline(time.Now().Add(harness.Timeout()))

	cmd := exec.Command(harness.Build(t), "serve", "--data", filepath.Join(dir, "d"), "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	for _, set := range regexp.MustCompile(`(?m)^Environment=(.*)`).FindAllSubmatch(unit, -1) {
		if !bytes.HasPrefix(set[1], []byte("SERVICE_DATA=")) {
			cmd.Env = append(cmd.Env, string(set[1]))
		}
	}
	cmd.Dir = dir // where a core would be written
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, readErr := l.Read(make([]byte, 4096)) // the service reports that it is ready
	if err := cmd.Process.Signal(syscall.SIGABRT); err != nil {
		t.Error(err)
	}
	err = cmd.Wait()
	if readErr != nil {
		t.Fatalf("the service did not start: %v\n%s", readErr, &log)
	}
	state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || err == nil || state.Exited() && slices.Contains(strings.Fields(string(final[1])), strconv.Itoa(state.ExitStatus())) {
		t.Errorf("after SIGABRT: got %v, after which systemd does not restart the service", err)
	}
	if !strings.Contains(log.String(), "goroutine ") {
		t.Errorf("after SIGABRT: the log contains no goroutine stacks:\n%s", &log)
	}
}
