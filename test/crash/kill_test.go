package crash

import (
	"flag"
	"fmt"
	"testing"

	"service/test/harness"
	"service/test/harness/chaos"
)

var kills = flag.Int("crash.kills", 30, "how often TestKill kills the service")

// TestKill kills the service with SIGKILL at random moments while events are published, delivered and
// pulled.
func TestKill(t *testing.T) {
	n := harness.Drill(t, 8, *kills)
	c := chaos.New(t, harness.Build(t), t.TempDir())
	pullers := c.Pull()
	c.Run(n, func(p *harness.Process) {
		pullers.Strike()
		c.Instance.Kill(p)
	})
	pullers.Finish()
	pullers.Check(fmt.Sprint(n, " kills"), c.Published, false)
	c.Check()
	c.Finish()
}
