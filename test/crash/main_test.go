// Package crash tests what the service keeps when its process ends: by SIGKILL, by
// SIGTERM under load, and by systemd's watchdog.
package crash

import (
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
