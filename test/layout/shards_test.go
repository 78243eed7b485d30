package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestShards checks that .ci/deep runs every package of end-to-end tests. All other packages are
// in the shards units and units-log.
func TestShards(t *testing.T) {
	deep, err := os.ReadFile("../../.ci/deep")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("got the test files %v, %v", files, err)
	}
	packages := map[string]bool{"layout": true, "wording": true} // .ci/run runs all of their tests
	for _, f := range files {
		if name := filepath.Base(filepath.Dir(f)); !packages[name] {
			packages[name] = true
			if !regexp.MustCompile(`\./test/` + name + `\b`).Match(deep) {
				t.Errorf("no shard of .ci/deep runs ./test/%s", name)
			}
		}
	}
	for _, m := range regexp.MustCompile(`\./test/(\w+)`).FindAllSubmatch(deep, -1) {
		if name := string(m[1]); !packages[name] {
			t.Errorf(".ci/deep runs ./test/%s, which has no tests", name)
		}
	}
}
