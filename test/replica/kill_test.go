package replica

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
	"service/test/harness/chaos"
)

var replicaKills = flag.Int("replica.kills", 5, "how often TestReplicaKilled kills the service while it is replicated")

// TestReplicaKilled kills the service at random moments while it uploads to a replica. Every
// acknowledged event must be in the live database, and a restored copy may contain no row that the
// live database lacks.
func TestReplicaKilled(t *testing.T) {
	harness.Long(t)
	data, replica := t.TempDir(), t.TempDir()
	c := chaos.New(t, harness.Build(t), data, "--litestream", writeReplica(t, data, "20ms", "path: "+replica))
	copies, rows := 0, 0
	c.Run(*replicaKills, func(p *harness.Process) {
		c.Instance.Kill(p)
		to := filepath.Join(t.TempDir(), "restored")
		out, err := c.Instance.Command("restore", "--data", to, "--from", "file://"+replica)
		if err != nil {
			if strings.Contains(out, "the replica is empty") {
				return // killed before the first upload
			}
			t.Fatalf("restore: %v\n%s", err, out)
		}
		live := harness.Rows(t, copyDatabase(t, data))
		for row := range harness.Rows(t, to) {
			rows++
			if !live[row] {
				t.Errorf("the restored copy has a row that the live database lacks: %s", row)
			}
		}
		for _, fault := range harness.DatabaseFaults(t, to) {
			t.Errorf("the restored copy: %s", fault)
		}
		copies++
	})
	c.Check()
	c.Finish()
	t.Logf("restored %d copies with %d rows in all after %d kills", copies, rows, *replicaKills)
	if copies == 0 {
		t.Error("no replica had anything to restore: the test checked nothing")
	}
}
