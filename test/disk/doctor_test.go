package disk

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"service/test/harness"
)

// nobody is the ID of a user without rights.
const nobody = 65534

// TestDoctorDisk runs service doctor where it cannot write: on a full file system, on a read-only
// one, and as another user than the service's. The doctor reports the problem and what to do, and
// changes nothing.
func TestDoctorDisk(t *testing.T) {
	harness.Long(t)
	d, err := newMemoryDisk(t)
	if err != nil {
		harness.Unavailable(t, "tmpfs", err)
	}
	binary, data := harness.Build(t), filepath.Join(d.mount, "data")
	in := harness.NewInstance(t, binary, data, "--log-level", "warn")
	in.Token("acme")
	in.MustStop(in.MustStart())
	anyone := filepath.Join(t.TempDir(), "service") // the tests' binary is in a directory of the tests' user
	text, err := os.ReadFile(binary)
	if err := errors.Join(err, os.WriteFile(anyone, text, 0o755), os.Chmod(filepath.Dir(filepath.Dir(anyone)), 0o755)); err != nil {
		t.Fatal(err)
	}
	contents := func() map[string]string {
		sums := checksums(t, data)
		delete(sums, "service.db-wal") // reading creates it, empty
		return sums
	}
	before := contents()
	doctor := func(when string, user int, wants ...string) {
		t.Helper()
		cmd := exec.Command(anyone, "doctor", "--data", data, "--listen", "127.0.0.1:0", "--tls", "off", "--litestream", "off")
		cmd.Dir, cmd.Env = os.TempDir(), harness.Environment()
		if user != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
		}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != harness.ExitFailed {
			t.Errorf("%s: got %v, want exit status %d", when, err, harness.ExitFailed)
		}
		for _, want := range wants {
			if !strings.Contains(strings.Join(strings.Fields(string(out)), " "), want) {
				t.Errorf("%s: want %q in\n%s", when, want, out)
			}
		}
	}
	d.fill()
	doctor("full", 0, "Free space on the data directory's disk, or enlarge it.")
	d.enlarge()
	for _, mode := range []string{"ro", "rw"} {
		if err := harness.Exec("mount", "-o", "remount,"+mode, d.mount); err != nil {
			t.Fatal(err)
		}
		if mode == "ro" {
			doctor("read-only", 0, data+" is on a read-only file system", "Mount it writable.")
		}
	}
	doctor("as another user", nobody, "permission denied", "Run this command as the service's user or as root.")
	if after := contents(); !maps.Equal(before, after) {
		t.Errorf("got the files %v, want %v", after, before)
	}
}
