// Package harness runs the built binary for the end-to-end tests in test/: it builds the binary,
// with mutations where a test checks that it can fail, starts and kills it, calls its API, and
// provides receivers, S3 servers and the requirement checks that the tests share. Only tests import
// it.
//
// Environment variables:
//
//   - SERVICE_TEST_BINARY is the absolute path of a binary that [Build] returns
//     instead of building one. It must have the SQLite driver that the tests are
//     built with (CGO_ENABLED). Each test package builds its own without it.
//   - SERVICE_TEST_FAULTY_BINARY is the absolute path of a binary that
//     [BuildFaulty] returns instead of building one.
//   - SERVICE_TEST_REQUIRE lists, separated by commas, the requirements whose
//     tests must not be skipped; see [Unavailable].
//   - SERVICE_TEST_TOOLS is a folder with litestream and versitygw. Each test
//     package that needs them builds its own without it.
//   - SERVICE_TEST_DRILLS makes -short run drills as well; see [Drill].
//   - SERVICE_TEST_SLOW multiplies every bound on a measured time in the deep
//     shards; see [Scale].
package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The exit statuses of the service.
const (
	ExitOK     = 0
	ExitFailed = 1
)

// maxWait is how long a test waits for a condition before it reports a deadlock. A passing test
// does not wait that long, however slow the machine.
const maxWait = 2 * time.Minute

// Timeout returns how long a test waits for a condition.
func Timeout() time.Duration { return maxWait }

// MemoryDir returns a temporary directory, in memory (/dev/shm) if possible, since most tests
// need no durability. For benchmarks it is on disk, whose speed they measure.
func MemoryDir(tb testing.TB) string {
	tb.Helper()
	if _, ok := tb.(*testing.B); ok {
		return tb.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "service-test-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Scale returns d multiplied by SERVICE_TEST_SLOW, which is 3 by default if the
// tests may use only one processor, else 1. Only the deep shards measure the service
// against a time; see test/layout.
func Scale(d time.Duration) time.Duration { return time.Duration(slowness() * float64(d)) }

var slowness = sync.OnceValue(func() float64 {
	text := os.Getenv("SERVICE_TEST_SLOW")
	if text == "" {
		if runtime.NumCPU() == 1 {
			return 3
		}
		return 1
	}
	factor, err := strconv.ParseFloat(text, 64)
	if err != nil || factor < 1 {
		panic(fmt.Sprintf("SERVICE_TEST_SLOW is %q, want a number of at least 1", text))
	}
	return factor
})

// Pause lets the load of a test wait between two requests, at most until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// WaitFor waits until condition returns true, and fails the test if that takes
// longer than [Timeout]. what completes the sentence "timed out waiting for".
func WaitFor(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Timeout()); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("timed out after %s waiting for %s", Timeout(), what)
		}
	}
}

// WaitForCount waits until count returns want, and fails the test if the count does not change for
// [Timeout]. Use it for tests with much work, whose duration depends on the disk and on other
// tests. what completes the sentence "timed out waiting for".
func WaitForCount(tb testing.TB, what string, want int, count func() int) {
	tb.Helper()
	for last := count(); last != want; {
		WaitFor(tb, fmt.Sprintf("%s, got %d and want %d", what, last, want), func() bool {
			now := count()
			changed := now != last
			last = now
			return changed
		})
	}
}

// WaitForFileTime waits until new files get a time later than at. The times in a replica are in
// milliseconds, and the clock of a file system may tick less often.
func WaitForFileTime(tb testing.TB, at time.Time) {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), "now")
	WaitFor(tb, "a later time of files", func() bool {
		err := os.WriteFile(name, nil, 0o600)
		info, statErr := os.Stat(name)
		if err != nil || statErr != nil {
			tb.Fatal(err, statErr)
		}
		return info.ModTime().UnixMilli() > at.UnixMilli()
	})
}

// Receive returns the next value of c, and fails the test if there is none within [Timeout].
func Receive[T any](tb testing.TB, what string, c <-chan T) T {
	tb.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Timeout()):
		tb.Fatalf("timed out after %s waiting for %s", Timeout(), what)
		panic("unreachable")
	}
}

// Long skips a slow test when -short is set.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("takes long; not run with -short")
	}
}

// drillsVariable makes -short run drills, in their short form.
const drillsVariable = "SERVICE_TEST_DRILLS"

// Drill returns how often a drill repeats its fault: smoke in .ci/run, full without -short. With
// only -short it skips the test. In both forms a drill counts, orders and compares; its result does
// not depend on the speed of the machine.
func Drill(tb testing.TB, smoke, full int) int {
	tb.Helper()
	switch {
	case !testing.Short():
		return full
	case os.Getenv(drillsVariable) == "":
		tb.Skip("a drill; not run with -short unless " + drillsVariable + " is set")
	}
	return smoke
}

// Required reports whether tests with a requirement must not be skipped.
func Required(requirement string) bool {
	return slices.Contains(strings.Split(os.Getenv("SERVICE_TEST_REQUIRE"), ","), requirement)
}

// Unavailable ends a test whose requirement is not met on this machine: it is skipped, or fails
// if SERVICE_TEST_REQUIRE lists the requirement.
func Unavailable(tb testing.TB, requirement string, why any) {
	tb.Helper()
	if Required(requirement) {
		tb.Fatalf("SERVICE_TEST_REQUIRE lists %s, which is not available: %v", requirement, why)
	}
	tb.Skipf("NOT TESTED: %s is not available: %v", requirement, why)
}

// Tool returns the path of a program that a test needs, or ends the test as
// [Unavailable] does.
func Tool(tb testing.TB, requirement, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Unavailable(tb, requirement, err)
	}
	return path
}

// Root returns the absolute path of the repository.
var Root = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module service\n") {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			panic("the tests do not run inside the repository")
		}
		dir = above
	}
})

// Path returns the absolute path of a file of the repository.
func Path(elem ...string) string { return filepath.Join(append([]string{Root()}, elem...)...) }

// Read returns the content of a file.
func Read(tb testing.TB, path string) []byte {
	tb.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Environment returns the environment without the variables that configure the
// service.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "SERVICE_") })
}

// Exec runs a command. The error contains its output.
func Exec(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// CommandsOf returns the shell commands in a section of a Markdown file, block by block. The
// heading is a whole line, such as "## Walk-through".
func CommandsOf(tb testing.TB, file, heading string) (blocks []string) {
	tb.Helper()
	_, section, found := strings.Cut("\n"+string(Read(tb, Path(file))), "\n"+heading+"\n")
	level, _, _ := strings.Cut(heading, " ")
	section, _, _ = strings.Cut(section, "\n"+level+" ")
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, regexp.MustCompile("(?m)^ +").ReplaceAllString(block[1], ""))
	}
	if !found || len(blocks) == 0 {
		tb.Fatalf("%s has no commands in %q", file, heading)
	}
	return blocks
}
