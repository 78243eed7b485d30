package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/internal/bench"
	"service/test/harness"
)

// TestBench runs service bench: every case must have results, and every event must
// arrive once.
func TestBench(t *testing.T) {
	harness.Long(t)
	dir := t.TempDir()
	profile := filepath.Join(dir, "cpu.out")
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), harness.Build(t), "bench", "--data", dir, "--time", "200ms", "--publishers", "16", "--stored",
		"1000", "--others", "20", "--cores", "1",
		"--case", "single,natural,stream", "--case", "light,fanout-100", "--json", "--cpuprofile", profile)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &log)
	}
	var r bench.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	if r.Raw <= 0 || r.Machine.Synchronous != "FULL" || r.Machine.FileSystem == "" || r.Machine.Processors != 1 || len(r.Results) != 5 {
		t.Errorf("got %s", &out)
	}
	for _, r := range r.Results {
		if r.Lost != 0 || r.Duplicated != 0 || r.Acknowledged == 0 || r.Delivered != r.Acknowledged*r.Subscriptions || r.Commits == 0 ||
			r.P50 <= 0 || r.P99 < r.P50 || r.Max < r.P99 || r.OfRaw <= 0 || r.Case == "natural" && r.Bytes <= 0 ||
			(r.Publish > 0 && r.PublishToOne > 0) != (r.Case == "fanout-100") {
			t.Errorf("%s: got %+v", r.Case, r)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 5 {
		t.Errorf("data directory: got %q, %v; want only a profile for each case", left, err)
	}
}

// TestBenchInterrupted interrupts service bench during its second round: it must report
// the finished rounds and fail.
func TestBenchInterrupted(t *testing.T) {
	harness.Long(t)
	dir := t.TempDir()
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), harness.Build(t), "bench", "--data", dir, "--time", "100ms", "--publishers", "4", "--rounds", "99",
		"--case", "natural", "--json")
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rounds := make(map[string]bool) // by data directory
	harness.WaitFor(t, "the second round", func() bool {
		folders, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range folders {
			rounds[f] = true
		}
		return len(rounds) >= 2
	})
	cmd.Process.Signal(os.Interrupt)
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != harness.ExitFailed ||
		!strings.Contains(log.String(), "of 99 rounds") {
		t.Errorf("got %v: %s", err, &log)
	}
	var r bench.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Rounds == 0 || len(r.Results) != 1 {
		t.Errorf("got %v: %s", err, &out)
	}
}

// TestBenchSettings checks that wrong settings are reported before anything is measured.
func TestBenchSettings(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), harness.Build(t), "bench", "--data", filepath.Join(t.TempDir(), "none"), "--case", "fast").
		CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--data: must be an existing directory") ||
		!strings.Contains(string(out), "--case: must be one of") {
		t.Errorf("got %v: %s", err, out)
	}
}
