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

// TestReleaseHasNoFaults checks that a binary that was built without the tag
// faults has no clocks that can be set, and that the check finds them in one that
// has.
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
		t.Errorf("%s: %q", filepath.Base(harness.Build(t)), found)
	}
	if found := hooks(harness.BuildFaulty(t)); len(found) != 4 {
		t.Errorf("a binary with the tag: found %q, want the tag, two symbols and the name of the file", found)
	}
}
