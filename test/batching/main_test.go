// Package batching tests that no event fails for what it was sent with, and that what is left to
// resend has one answer.
package batching

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
