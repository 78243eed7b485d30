//go:build linux

package matrix

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

// TestMatrixFindsBugs runs cells of the matrix with a binary that has a bug: each cell
// must fail.
func TestMatrixFindsBugs(t *testing.T) {
	harness.Long(t)
	if !*full {
		t.Skip("takes minutes; run with -matrix.full. test/planted finds the same bugs by shorter tests")
	}
	for _, bug := range []struct {
		name, cell string
		fails      string // part of the cell's failure message
		mutations  []harness.Mutation
	}{
		{"any process continues the lease of its data directory", "cloned data directory", "a standby that could take over", []harness.Mutation{
			{File: "store/replica/leasekeep.go", Old: "ours && last.sameDir(now) && last.ended()",
				New: "ours && (last.sameDir(now) || !last.ended())"},
		}},
		{"a lease ends when it expires by the standby's clock", "clock \\+1 h standby", "while the primary was running", []harness.Mutation{
			{File: "store/replica/leasewatch.go", Old: "asked-w.since >= period\n",
				New: "asked-w.since >= period || time.Now().After(state.Expires)\n"},
		}},
		{"a lease is renewed whatever is in the bucket", "SIGSTOP and SIGCONT", "a standby that could take over", []harness.Mutation{
			{File: "store/replica/leasekeep.go", Old: "renewed, err := l.put(",
				New: "now, err := l.read(ctx)\n\tif err != nil {\n\t\treturn err\n\t}\n\tfound.etag = now.etag\n\trenewed, err := l.put("},
		}},
		{"the lease stands still while the machine is suspended", "suspended", "after the end of its lease", []harness.Mutation{
			{File: "store/replica/clock_linux.go", Old: "// uptime returns", New: "var processStarted = time.Now()\n\n// uptime returns"},
			{File: "store/replica/clock_linux.go", Old: "return time.Duration(ts.Nano())", New: "return time.Since(processStarted)"},
		}},
	} {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			binary := harness.BuildFaulty(t, bug.mutations...)
			cell := strings.ReplaceAll(bug.cell, " ", "_") + ",_local"
			ctx, cancel := context.WithTimeout(t.Context(), 5*harness.Timeout())
			defer cancel()
			run := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.run=^TestMatrix$/^"+cell+"$", "-matrix.lease="+leaseFlag.String())
			run.WaitDelay = 10 * time.Second
			run.Env = append(os.Environ(), "SERVICE_TEST_BINARY="+binary, "SERVICE_TEST_FAULTY_BINARY="+binary)
			out, err := run.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), bug.fails) {
				t.Errorf("cell %q: got %v, want a failure that says %q\n%s", bug.cell, err, bug.fails, out)
			}
		})
	}
}
