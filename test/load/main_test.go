// Package load tests the service with many subscriptions and a long backlog, runs its
// benchmark, and measures it with a replica.
package load

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
