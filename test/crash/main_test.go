// Package crash tests what is left of the service when its process ends: by
// SIGKILL, by SIGTERM under load, and by the watchdog of systemd.
package crash

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
