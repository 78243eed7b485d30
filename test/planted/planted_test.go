//go:build cgo

// Package planted proves that tests find bugs: it plants one at a time into the
// source, by an overlay of the go command, and runs a test that must fail. The
// bugs of the dispatcher are found by its simulation. Those of a failover, and
// those that need two writes in a certain order, are found by a test of their own.
//
// It needs cgo: the bugs have nothing to do with the database's driver, and one
// driver is enough.
package planted

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// root is the module's.
const root = "../.."

// bug is a change to the source that breaks a promise.
type bug struct {
	name  string
	edits []edit
}

// testBug is a bug that a test other than the simulation finds.
type testBug struct {
	bug
	test  string // its name
	fails string // what it says
	pkg   string // where the test is; "" is store/replica
}

// edit replaces from, which must occur exactly once in the file, by to.
type edit struct{ file, from, to string }

// maxPlans is in how many plans a planted bug must be found. Most take a dozen;
// those that depend on the scheduler took up to 2,400.
const maxPlans = "12000"

// TestBugsApply fails when the code has changed so that a bug can no longer be
// planted. It takes no time, so it also runs with -short.
func TestBugsApply(t *testing.T) {
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) { b.plant(t) })
	}
}

// TestFailoverBugsApply is TestBugsApply for the bugs that other tests find.
func TestFailoverBugsApply(t *testing.T) {
	for _, b := range slices.Concat(failoverBugs, raceBugs) {
		t.Run(b.name, func(t *testing.T) { b.plant(t) })
	}
}

// TestFailoverBugs builds the tests of a package with each bug, and runs the one
// that must fail.
func TestFailoverBugs(t *testing.T) { findByTests(t, failoverBugs) }

// TestRaceBugs is TestFailoverBugs for bugs that need two writes in a certain order.
func TestRaceBugs(t *testing.T) { findByTests(t, raceBugs) }

func findByTests(t *testing.T, bugs []testBug) {
	t.Helper()
	if testing.Short() {
		t.Skip("each planted bug is a build of its own; run without -short")
	}
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			pkg := cmp.Or(b.pkg, "store/replica")
			ctx := bounded(t)
			dir := t.TempDir()
			run := exec.CommandContext(ctx, b.build(ctx, t, dir, "./"+pkg), "-test.run=^"+b.test+"$")
			run.Dir = filepath.Join(root, pkg)
			out, err := run.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), b.fails) {
				t.Errorf("%s: %v, want a failure that says %q\n%s", b.test, err, b.fails, out)
			}
		})
	}
}

// TestPlantedBugs builds the dispatcher's tests with each bug, and runs the
// simulation until it finds the bug.
func TestPlantedBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("each planted bug is a build of its own; run without -short")
	}
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			b.find(t)
		})
	}
}

// plant returns the text of each file that the bug changes, with the bug in it.
func (b *bug) plant(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	for _, e := range b.edits {
		if _, ok := texts[e.file]; !ok {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				t.Fatal(err)
			}
			texts[e.file] = string(text)
		}
		if n := strings.Count(texts[e.file], e.from); n != 1 {
			t.Fatalf("%s has %q %d times, want once: adapt the bug to the code", e.file, e.from, n)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.from, e.to, 1)
	}
	return texts
}

// bounded returns a context that ends a little before the tests have to, so that what
// hangs is named. How long a bug takes to be found depends on the machine.
func bounded(t *testing.T) context.Context {
	deadline, ok := t.Deadline()
	if !ok {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline.Add(-time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// build compiles the tests of a package with the bug, and returns the path of the
// binary.
func (b *bug) build(ctx context.Context, t *testing.T, dir, pkg string) string {
	t.Helper()
	module, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for name, text := range b.plant(t) {
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(module, name)] = to
	}
	text, err := json.Marshal(&overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "planted.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-ldflags=-s -w", "-o", binary, pkg)
	build.Dir = module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the bug does not build: %v\n%s", err, out)
	}
	return binary
}

// find fails the test unless the simulation finds the bug: a promise that is broken.
func (b *bug) find(t *testing.T) {
	ctx := bounded(t)
	dir := t.TempDir()
	run := exec.CommandContext(ctx, b.build(ctx, t, dir, "./dispatcher"), "-test.run=^TestSimulation$", "-simulation.plans="+maxPlans, "-rapid.shrinktime=1ns")
	run.Dir = dir
	run.Env = append(os.Environ(), "GOMAXPROCS=2") // some bugs need two threads
	out, err := run.CombinedOutput()
	if err == nil {
		t.Fatalf("the simulation did not find it in %s plans", maxPlans)
	}
	var exit *exec.ExitError
	found := regexp.MustCompile(`plan (\d+) broke a promise: ([^:]*): (.*)`).FindSubmatch(out)
	if !errors.As(err, &exit) || found == nil {
		t.Fatalf("the simulation failed in another way: %v\n%s", err, out)
	}
	t.Logf("found by plan %s: %s: %s", found[1], found[2], found[3])
}
