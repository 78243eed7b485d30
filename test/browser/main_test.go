// Package browser tests the admin UI in a browser, and the response time and size of its
// pages.
package browser

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
