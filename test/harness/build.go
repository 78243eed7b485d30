package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Mutation replaces the first occurrence of Old in a source file with New. File
// is relative to the root of the repository.
type Mutation struct{ File, Old, New string }

// plain is the binary without mutations, built once per test process.
var plain struct {
	once sync.Once
	path string
	err  error
}

// Build builds the service as its users do: without the race detector, with the SQLite driver
// that the test runs with. It returns the binary's absolute path.
//
// Mutations show that a test can fail: the binary is built from a mutated copy of the sources.
// Without mutations it is built at most once per test process, and not at all if
// SERVICE_TEST_BINARY names a binary.
func Build(tb testing.TB, mutations ...Mutation) string {
	tb.Helper()
	if len(mutations) > 0 {
		return buildMutated(tb, mutations)
	}
	plain.once.Do(func() { plain.path, plain.err = buildPlain() })
	if plain.err != nil {
		tb.Fatal(plain.err)
	}
	return plain.path
}

func buildPlain() (string, error) {
	if path := os.Getenv("SERVICE_TEST_BINARY"); path != "" {
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("SERVICE_TEST_BINARY is %s, want an absolute path", path)
		}
		_, err := os.Stat(path)
		return path, err
	}
	// The binary outlives the test that builds it: Main removes it.
	dir, err := os.MkdirTemp("", "service-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "service")
	return path, goBuild(path)
}

// Main runs the tests of a package and removes the programs built for them. The package's TestMain
// must call it.
func Main(m *testing.M) {
	m.Run() // the testing package exits with its result
	if toolsDir != "" {
		os.RemoveAll(toolsDir)
	}
	if faultyBinary.path != "" {
		os.RemoveAll(filepath.Dir(faultyBinary.path))
	}
	if providerBinary.path != "" {
		os.RemoveAll(filepath.Dir(providerBinary.path))
	}
	if plain.path != "" && plain.path != os.Getenv("SERVICE_TEST_BINARY") {
		os.RemoveAll(filepath.Dir(plain.path))
	}
}

// buildMutated builds the service with mutations and other go build flags.
func buildMutated(tb testing.TB, mutations []Mutation, flags ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for i, m := range mutations {
		from := Path(m.File)
		read := from
		if mutated := overlay.Replace[from]; mutated != "" {
			read = mutated
		}
		source := string(Read(tb, read))
		if m.Old == "" || !strings.Contains(source, m.Old) {
			tb.Fatalf("%s no longer has %q", m.File, m.Old)
		}
		to := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(to, []byte(strings.Replace(source, m.Old, m.New, 1)), 0o600); err != nil {
			tb.Fatal(err)
		}
		overlay.Replace[from] = to
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		tb.Fatal(err)
	}
	binary := filepath.Join(dir, "service")
	if err := goBuild(binary, append(flags, "-overlay", path)...); err != nil {
		tb.Fatal(err)
	}
	return binary
}

func goBuild(binary string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", binary}, flags...), ".")...)
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}
