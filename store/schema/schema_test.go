package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
)

// digestFile contains a line for the newest schema: its version and the SHA-256 of schema.sql.
const digestFile = "testdata/schema.sha256"

// The schema version increases with every change of schema.sql, so that no two schemas have the
// same version.
func TestSchemaVersion(t *testing.T) {
	golden, err := os.ReadFile(digestFile)
	if err != nil {
		t.Fatal(err)
	}
	version, digest, ok := strings.Cut(strings.TrimSpace(string(golden)), " ")
	known, err := strconv.Atoi(version)
	if !ok || err != nil {
		t.Fatalf("%s: got %q, want a version and a digest", digestFile, golden)
	}
	sum := sha256.Sum256([]byte(Script))
	got := hex.EncodeToString(sum[:])
	switch {
	case got == digest && Version == known:
	case got == digest:
		t.Errorf("Version (schema.go) is %d, but schema.sql is that of version %d", Version, known)
	case Version <= known:
		t.Errorf("schema.sql has changed since version %d: raise Version (schema.go) to %d, and then write %q to %s. "+
			"See docs/decisions/0056-one-schema.md.", known, known+1, strconv.Itoa(known+1)+" "+got, digestFile)
	default:
		t.Errorf("write %q to %s", strconv.Itoa(Version)+" "+got, digestFile)
	}
}
