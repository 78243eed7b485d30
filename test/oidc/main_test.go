// Package oidc tests the built binary with a real OpenID Connect provider. Responses that
// break the rules are in the tests of package web.
package oidc

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
