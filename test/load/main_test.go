// Package load tests the service with many subscriptions, with a long backlog,
// and by its own benchmark.
package load

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
