// Package network tests the service in network namespaces: which addresses it
// connects to, and what unreachable ones do to the rest.
package network

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
