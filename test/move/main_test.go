// Package move tests moves of programs between two installations with replicas, and the moves and
// files that the target refuses.
package move

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
