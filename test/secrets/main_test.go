// Package secrets tests that the service does not leak secrets.
package secrets

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
