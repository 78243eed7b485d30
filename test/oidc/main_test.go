// Package oidc tests the built binary with a real OpenID Connect provider. The tests of package web
// cover responses that break the rules.
package oidc

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
