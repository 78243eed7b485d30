// Package disk tests the service on disks that lose power, fill up, fail and are
// damaged.
package disk

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
