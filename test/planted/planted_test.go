//go:build cgo

// Package planted proves that tests find bugs: it plants them into the source, by an overlay of the
// go command, and runs a test that must fail with each. The simulation finds the bugs of the
// dispatcher. Separate tests find failover bugs, and bugs that need two writes in a certain order.
//
// One build contains all bugs. The environment variable PLANTED_BUG selects the bug of a run.
//
// It needs cgo: the bugs do not concern the database driver, so one driver is enough.
package planted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"service/test/seed"
)

// root is the root of the module.
const root = "../.."

// bug is a change to the source that breaks a promise.
type bug struct {
	name  string
	edits []edit
}

// testBug is a bug that a test other than the simulation must find.
type testBug struct {
	bug
	test  string // name of the test
	fails string // part of its failure message
	pkg   string // package of the test; "" is store/replica
}

// edit replaces from, which must occur exactly once in the file, with to. It changes function
// bodies and the values of constants, which must be strings.
type edit struct{ file, from, to string }

// maxPlans is the maximum number of plans to find a planted bug. Most bugs need a dozen; a bug that
// depends on the scheduler needed up to 1,200.
const maxPlans = "12000"

// TestBugsApply fails if a code change prevents planting a bug, or if the bug's test was renamed.
// It is fast, so -short runs it too.
func TestBugsApply(t *testing.T) {
	s, names := make(sources), make(map[string]bool)
	for _, b := range all() {
		if names[b.name] {
			t.Errorf("two bugs have the name %q", b.name)
		}
		names[b.name] = true
		if err := s.plant(b); err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
	}
	for _, b := range testBugs() {
		if !hasTest(t, cmp.Or(b.pkg, "store/replica"), b.test) {
			t.Errorf("%s: the test %s does not exist", b.name, b.test)
		}
	}
	for name := range firstPlans {
		if !names[name] {
			t.Errorf("firstPlans has %q, which is no bug", name)
		}
	}
}

// hasTest reports whether a package has a test.
func hasTest(t *testing.T, pkg, name string) bool {
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "func "+name+"(")
	})
}

// all returns every bug.
func all() []*bug {
	var all []*bug
	for i := range bugs {
		all = append(all, &bugs[i])
	}
	for _, b := range testBugs() {
		all = append(all, &b.bug)
	}
	return all
}

// testBugs returns the bugs that other tests must find.
func testBugs() []testBug { return slices.Concat(failoverBugs, raceBugs, filterBugs, pullBugs) }

// TestPlantedBugs builds the tests with all bugs. With each bug selected, the simulation or the
// bug's own test must fail. With none selected, all must pass.
func TestPlantedBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes; run without -short")
	}
	built := build(t)
	for i := range bugs {
		t.Run(bugs[i].name, func(t *testing.T) {
			t.Parallel()
			built.simulate(t, bugs[i].name)
		})
	}
	for _, b := range testBugs() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			out, err := built.run(t, b.name, cmp.Or(b.pkg, "store/replica"), b.test)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(out, b.fails) {
				t.Errorf("%s: %v, want a failure that says %q\n%s", b.test, err, b.fails, out)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		built.passWithNone(t)
	})
}

// testsByPackage returns the tests that find bugs.
func testsByPackage() map[string][]string {
	tests := map[string][]string{"dispatcher": {"TestSimulation"}}
	for _, b := range testBugs() {
		pkg := cmp.Or(b.pkg, "store/replica")
		tests[pkg] = append(tests[pkg], b.test)
	}
	return tests
}

// passWithNone fails the test if a test that finds bugs fails even without one.
func (dir binaries) passWithNone(t *testing.T) {
	for pkg, names := range testsByPackage() {
		var flags []string
		if pkg == "dispatcher" {
			flags = append(flags, "-simulation.plans=200")
		}
		if out, err := dir.run(t, "", pkg, strings.Join(names, "|"), flags...); err != nil {
			t.Errorf("the tests of %s fail without a bug: %v\n%s", pkg, err, out)
		}
	}
}

// binaries is a directory with the test binaries of packages, which contain all bugs.
type binaries string

// build compiles the tests that find bugs.
func build(t *testing.T) binaries {
	t.Helper()
	s, dir := make(sources), t.TempDir()
	for _, b := range all() {
		if err := s.plant(b); err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
	}
	overlay, err := s.overlay(dir)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"test", "-c", "-vet=off", "-overlay", overlay, "-ldflags=-s -w", "-o", dir}
	for pkg := range testsByPackage() {
		args = append(args, "./"+pkg)
	}
	build := exec.CommandContext(bounded(t), "go", args...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the bugs do not build: %v\n%s", err, out)
	}
	return binaries(dir)
}

// bounded returns a context that ends shortly before the test deadline, so that a hanging run is
// reported by name. The time to find a bug depends on the machine.
func bounded(t *testing.T) context.Context {
	deadline, ok := t.Deadline()
	if !ok {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline.Add(-time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// run runs named tests of a package with a bug selected, "" for none.
func (dir binaries) run(t *testing.T, bug, pkg, tests string, flags ...string) (out string, err error) {
	run := exec.CommandContext(bounded(t), filepath.Join(string(dir), path.Base(pkg)+".test"), append(flags, "-test.run=^("+tests+")$")...)
	run.Dir = filepath.Join(root, pkg)
	// Some bugs need two threads. The same seed in each run makes the results reproducible.
	run.Env = append(os.Environ(), selector+"="+bug, "GOMAXPROCS=2", seed.Variable+"=1")
	text, err := run.CombinedOutput()
	if p := run.ProcessState; p != nil {
		t.Logf("%s of processor time", (p.UserTime() + p.SystemTime()).Round(10*time.Millisecond))
	}
	return string(text), err
}

// simulate fails the test unless the simulation finds the bug as a broken promise.
func (dir binaries) simulate(t *testing.T, bug string) {
	first := max(1, firstPlans[bug])
	out, err := dir.run(t, bug, "dispatcher", "TestSimulation", "-simulation.plans="+maxPlans, fmt.Sprint("-simulation.seed=", first),
		"-rapid.shrinktime=1ns")
	if err == nil {
		t.Fatalf("the simulation did not find it in %s plans", maxPlans)
	}
	var exit *exec.ExitError
	found := regexp.MustCompile(`plan (\d+) broke a promise: ([^:]*): (.*)`).FindStringSubmatch(out)
	if !errors.As(err, &exit) || found == nil {
		t.Fatalf("the simulation failed in another way: %v\n%s", err, out)
	}
	t.Logf("found by plan %s, beginning with %d: %s: %s", found[1], first, found[2], found[3])
}
