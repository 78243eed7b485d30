package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/internal/durable"
	"service/test/harness"
)

// TestCompactFullDisk compacts a database when the disk has no room for the copy: the command
// refuses at once, or, if a write fails halfway, leaves the database unchanged and removes the
// copy.
func TestCompactFullDisk(t *testing.T) {
	harness.Long(t)
	d, err := newMemoryDisk(t)
	if err != nil {
		harness.Unavailable(t, "tmpfs", err)
	}
	binary, data, copied := harness.Build(t), filepath.Join(d.mount, "data"), t.TempDir()
	in := harness.NewInstance(t, binary, data, "--log-level", "warn", "--min-free-disk", "0")
	token := in.Token("acme")
	run := in.MustStart()
	for range 5 {
		events := make([]map[string]any, 500)
		for i := range events {
			events[i] = map[string]any{"name": "content_deleted", "version": "1", "content_id": i + 1}
		}
		in.Publish(token, map[string]any{"events": events})
	}
	in.MustStop(run)
	if err := os.CopyFS(copied, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	unchanged := func(when string) {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(data, "service.db"+durable.TempSuffix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range append(harness.DatabaseDifferences(t, copied, data), left...) {
			t.Errorf("%s: %s", when, found)
		}
	}

	// A write fails halfway: the limit on file sizes simulates a disk that another program fills.
	info, err := os.Stat(filepath.Join(data, "service.db"))
	if err != nil {
		t.Fatal(err)
	}
	limit := fmt.Sprint(info.Size() / 2 / 512) // in blocks of 512 bytes
	out, err := exec.Command("sh", "-c", `ulimit -f "$1"; exec "$2" compact --data "$3"`, "sh", limit, binary, data).CombinedOutput()
	failed(t, "a write that fails", out, err, "the database is unchanged")
	unchanged("a write that fails")

	d.fill()
	out, err = exec.Command(binary, "compact", "--data", data).CombinedOutput()
	failed(t, "a full disk", out, err, "not enough room")
	d.enlarge()
	unchanged("a full disk")

	if out, err := in.Command("compact", "--data", data); err != nil {
		t.Fatalf("with room: %v: %s", err, out)
	}
	unchanged("with room")
	in.MustStop(in.MustStart())
}

// failed checks that a command exited with status 1 and said why.
func failed(t *testing.T, when string, out []byte, err error, why string) {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), why) {
		t.Errorf("%s: got %v, want exit status 1 and %q\n%s", when, err, why, out)
	}
}
