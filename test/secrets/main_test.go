// Package secrets tests that no secret is found where it must not be.
package secrets

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
