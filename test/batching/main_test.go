// Package batching tests that no event fails because of the events sent with it, and that all
// queries agree on what is left to resend.
package batching

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
