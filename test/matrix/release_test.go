//go:build linux

package matrix

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// TestReleaseHasNoFaults checks that a binary built without the tag faults contains no code to set
// its clocks, and that the check finds that code in a binary built with the tag.
func TestReleaseHasNoFaults(t *testing.T) {
	harness.Long(t)
	hooks := func(binary string) (found []string) {
		info, err := exec.Command("go", "version", "-m", binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(info)) {
			if strings.Contains(line, "-tags=") && strings.Contains(line, "faults") {
				found = append(found, strings.TrimSpace(line))
			}
		}
		symbols, err := exec.Command("go", "tool", "nm", binary).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(symbols)) {
			if strings.Contains(strings.ToLower(line), "shiftedclock") {
				found = append(found, strings.TrimSpace(line))
			}
		}
		if bytes.Contains(harness.Read(t, binary), []byte("faults.clock")) {
			found = append(found, "the name of the file that sets the clocks")
		}
		return found
	}
	if found := hooks(harness.Build(t)); len(found) > 0 {
		t.Errorf("%s: found %q, want no fault code", filepath.Base(harness.Build(t)), found)
	}
	if found := hooks(harness.BuildFaulty(t)); len(found) != 4 {
		t.Errorf("binary with the tag: found %q, want the tag, two symbols and the name of the file", found)
	}
}
