//go:build linux

// Package matrix tests a primary and its standby under load with every fault of a list
// and each value of --acknowledge. After each fault it checks that no more acknowledged
// events were lost than documented, that the old primary sends nothing and does not
// change the bucket, and that the replica equals the serving database.
//
// The S3 server is a real one. Each machine reaches it through its own proxy, and has
// its own clocks if a fault needs them. The subscriber finds out which machine sent a
// request by the process at the other end of the connection, so the tests need Linux.
package matrix

import (
	"flag"
	"testing"
	"time"

	"service/test/harness"
)

var (
	full = flag.Bool("matrix.full", false, "stop processes for a minute, use leases of the default length too, and measure the "+
		"takeover of a large database")
	leaseFlag = flag.Duration("matrix.lease", 6*time.Second, "the lease of every primary")
	repeat    = flag.Int("matrix.repeat", 1, "how often each cell of the matrix runs")
)

// lease is the duration of a lease.
func lease() time.Duration { return harness.Scale(*leaseFlag) }

func TestMain(m *testing.M) {
	// The cells mostly wait: seven in parallel use half of two processors. A flag on
	// the command line takes precedence.
	if err := flag.Set("test.parallel", "7"); err != nil {
		panic(err)
	}
	harness.Main(m)
}
