// Package scale tests several installations behind HAProxy, with the configuration in
// packaging/haproxy.cfg.
package scale

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
