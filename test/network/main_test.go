// Package network tests in network namespaces which addresses the service connects to,
// and how unreachable receivers affect the others.
package network

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
