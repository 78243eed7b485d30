package cli

import (
	"os"
	"testing"
)

// TestMain gives the test binary the name that texts expect.
func TestMain(m *testing.M) {
	os.Args[0] = usualName
	os.Exit(m.Run())
}
