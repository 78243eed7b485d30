// Package load tests the service with many subscriptions and a long backlog, and runs
// its benchmark.
package load

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
