// Package failover tests a standby that takes over from its primary.
package failover

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
