//go:build linux

// Package matrix strikes a primary and its standby with every fault of a list,
// under load and in each mode of acknowledgement, and then checks the promises of
// a failover: nothing acknowledged is lost beyond the bound, an old primary sends
// nothing and changes nothing in the bucket, and the replica can be restored and
// equals the database that serves.
//
// The S3 server is a real one. Each machine reaches it through a proxy of its
// own, and has clocks of its own where a fault needs them. A machine is known to
// the subscriber by the process at the other end of its connection, so these
// tests need Linux.
package matrix

import (
	"flag"
	"testing"
	"time"

	"service/test/harness"
)

var (
	full      = flag.Bool("matrix.full", false, "stop processes for a minute, use leases of the default length too, and measure the takeover of a large database")
	leaseFlag = flag.Duration("matrix.lease", 6*time.Second, "the lease of every primary")
	repeat    = flag.Int("matrix.repeat", 1, "how often each cell of the matrix runs")
)

// lease is how long a lease lasts.
func lease() time.Duration { return harness.Scale(*leaseFlag) }

func TestMain(m *testing.M) {
	// The cells mostly wait: two processors are half busy with seven. A flag on the
	// command line has precedence.
	if err := flag.Set("test.parallel", "7"); err != nil {
		panic(err)
	}
	harness.Main(m)
}
