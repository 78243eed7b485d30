package assets

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVendoredFilesAreAsPublished compares third-party files with the checksums in
// vendor/README.md.
func TestVendoredFilesAreAsPublished(t *testing.T) {
	readme, err := os.ReadFile("vendor/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("vendor/*.js")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files (%v)", len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		hash := sha256.Sum256(content)
		row := "`" + filepath.Base(file) + "`"
		found := false
		for line := range strings.SplitSeq(string(readme), "\n") {
			found = found || strings.Contains(line, row) && strings.Contains(line, hex.EncodeToString(hash[:]))
		}
		if !found {
			t.Errorf("%s has the SHA-256 %x, which vendor/README.md does not say of it", file, hash)
		}
	}
}

// TestBundleTellsNoPlaces checks that the bundle contains neither paths of the build machine nor
// a source map.
func TestBundleTellsNoPlaces(t *testing.T) {
	a := New()
	for name, path := range a.paths {
		for _, place := range []string{"sourceMappingURL", "/home/", "/root/", "/tmp/", "node_modules", "vendor/"} {
			if strings.Contains(string(a.files[path].plain), place) {
				t.Errorf("%s has %q", name, place)
			}
		}
	}
}
