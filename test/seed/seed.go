// Package seed chooses the seeds of random tests. Every run explores new seeds and prints them;
// SERVICE_TEST_SEED repeats one. A seed that has found a fault is kept in testdata/seeds of the
// test's package, and every run plays it. Only tests import it.
package seed

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Variable is the environment variable with the seed to repeat, a whole number from 1.
const Variable = "SERVICE_TEST_SEED"

// Fresh returns SERVICE_TEST_SEED or a new seed of at most 32 bits, and logs it.
func Fresh(tb testing.TB) uint64 {
	tb.Helper()
	if text := os.Getenv(Variable); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 {
			tb.Fatalf("%s is %q, want a whole number from 1 to 4294967295", Variable, text)
		}
		return n
	}
	n := uint64(rand.Uint32N(1<<32-1)) + 1
	tb.Logf("to repeat this run: %s=%d go test -run '^%s$'", Variable, n, topLevel(tb))
	return n
}

// Rand returns a generator with a seed of [Fresh].
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	return New(Fresh(tb))
}

// New returns the generator of a seed.
func New(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// Each runs a subtest for every kept seed, and for n fresh ones in a row.
func Each(t *testing.T, n int, test func(t *testing.T, seed uint64)) {
	t.Helper()
	for _, s := range Kept(t) {
		t.Run(fmt.Sprint("kept ", s), func(t *testing.T) { test(t, s) })
	}
	first := Fresh(t)
	for i := range uint64(n) {
		t.Run(fmt.Sprint(first+i), func(t *testing.T) { test(t, first+i) })
	}
}

// Kept returns the seeds in testdata/seeds/TESTNAME: one per line, followed by what the seed found.
func Kept(tb testing.TB) (seeds []uint64) {
	tb.Helper()
	path := filepath.Join("testdata", "seeds", topLevel(tb))
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		number, found, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || n == 0 || found == "" {
			tb.Fatalf("%s: got %q, want a seed from 1 and what it found", path, line)
		}
		seeds = append(seeds, n)
	}
	return seeds
}

// topLevel returns the name of the test function.
func topLevel(tb testing.TB) string {
	name, _, _ := strings.Cut(tb.Name(), "/")
	return name
}
