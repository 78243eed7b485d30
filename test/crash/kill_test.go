package crash

import (
	"flag"
	"testing"

	"service/test/harness"
	"service/test/harness/chaos"
)

var kills = flag.Int("crash.kills", 30, "how often TestKill kills the service")

// TestKill kills the service with SIGKILL at random moments while events are published and
// delivered.
func TestKill(t *testing.T) {
	n := harness.Drill(t, 8, *kills)
	c := chaos.New(t, harness.Build(t), t.TempDir())
	c.Run(n, c.Instance.Kill)
	c.Check()
	c.Finish()
}
