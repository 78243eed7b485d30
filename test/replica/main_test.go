// Package replica tests what can be recovered from a replica and from a backup.
package replica

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
