//go:build linux

package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// fault is a row of the matrix.
type fault struct {
	name string
	// deposes means that the standby takes over because of the fault. Otherwise the
	// primary must survive it, and the test kills it afterwards.
	deposes bool
	clocks  bool   // needs machines with their own clocks
	large   bool   // the database is large
	binary  string // of the primary, "" for the usual one
	// outage means that the primary cannot reach the bucket. With --acknowledge local, events that
	// it acknowledges during the rest of its lease may be lost.
	outage bool
	// longer is how much longer a standby watches a lease because of the fault: a missing lease may
	// be recreated.
	longer time.Duration
	// pauses means that the primary's process is stopped. When it continues, it may make the
	// request that it was about to make.
	pauses bool
	// strike causes the fault and waits until the machines have reacted.
	strike func(*cell)
}

// pause is how long a process is stopped: several leases.
func pause() time.Duration {
	if *full {
		return max(60*time.Second, 3*lease())
	}
	return 2*lease() + 2*time.Second
}

// outage is how long the bucket is unreachable.
func outage() time.Duration { return 2 * lease() }

func faults() []*fault {
	all := []*fault{
		{name: "SIGSTOP and SIGCONT", deposes: true, pauses: true, strike: func(c *cell) {
			c.signal(syscall.SIGSTOP)
			c.awaitTakeover(c.struck)
			c.await("the end of the pause", func() bool { return time.Since(c.struck) > pause() })
			c.signal(syscall.SIGCONT)
			c.awaitDeposed()
		}},
		{name: "suspended", deposes: true, clocks: true, pauses: true, strike: func(c *cell) {
			c.signal(syscall.SIGSTOP)
			c.awaitTakeover(c.struck)
			c.await("the end of the pause", func() bool { return time.Since(c.struck) > pause() })
			c.one.clock.Set(0, -time.Since(c.struck)) // it has not run since
			c.signal(syscall.SIGCONT)
			c.awaitDeposed()
		}},
		{name: "cloned data directory", strike: func(c *cell) {
			c.mustFollow(c.clone("clone"), c.leaseFlags()...)
			c.hold(lease())
			c.checkSteady()
		}},
		{name: "serve without --lease", strike: func(c *cell) {
			flags := c.leaseFlags()[2:] // without the lease
			c.mustRefuse(c.clone("clone"), flags...)
			empty := c.machine("empty")
			c.copyKey(c.one, empty)
			c.mustRefuse(empty, flags...)
			c.hold(lease())
			c.checkSteady()
		}},
		{name: "lease deleted", strike: func(c *cell) {
			c.removeLease()
			c.hold(2 * lease())
			c.checkSteady()
		}},
		{name: "lease overwritten", strike: func(c *cell) {
			if err := os.WriteFile(c.leases.file, []byte("not a lease"), 0o600); err != nil {
				c.t.Fatal(err)
			}
			c.hold(2 * lease())
			c.checkSteady()
		}},
		{name: "kill -9 and lease deleted", deposes: true, longer: 2 * time.Second, strike: func(c *cell) {
			c.one.in.Kill(c.one.process)
			c.removeLease()
			c.awaitTakeover(c.struck)
		}},
		{name: "kill -9", deposes: true, strike: func(c *cell) {
			c.one.in.Kill(c.one.process)
			c.awaitTakeover(c.struck)
		}},
	}
	return slices.Concat(all, bucketFaults(), clockFaults())
}

// bucketFaults are buckets that misbehave for a while.
func bucketFaults() []*fault {
	return []*fault{
		{name: "bucket hangs for the primary", deposes: true, outage: true, strike: func(c *cell) {
			c.one.proxy.SetMode(harness.ProxyHang)
			c.awaitTakeover(c.struck)
			c.await("the end of the outage", func() bool { return time.Since(c.struck) > outage() })
			c.one.proxy.SetMode(harness.ProxyForward)
			c.awaitDeposed()
		}},
		{name: "bucket unreachable for the primary", deposes: true, outage: true, strike: func(c *cell) {
			c.one.proxy.SetMode(harness.ProxyCut)
			c.awaitTakeover(c.struck)
			c.await("the end of the outage", func() bool { return time.Since(c.struck) > outage() })
			c.one.proxy.SetMode(harness.ProxyForward)
			c.awaitDeposed()
		}},
		{name: "writes refused for the primary", deposes: true, outage: true, strike: func(c *cell) {
			c.one.proxy.SetMode(harness.ProxyReadOnly)
			c.awaitTakeover(c.struck)
			c.await("the end of the outage", func() bool { return time.Since(c.struck) > outage() })
			c.one.proxy.SetMode(harness.ProxyForward)
			c.awaitDeposed()
		}},
		{name: "writes refused for both", outage: true, strike: func(c *cell) { c.outageOfBoth(harness.ProxyReadOnly) }},
		{name: "bucket unreachable for both", outage: true, strike: func(c *cell) { c.outageOfBoth(harness.ProxyCut) }},
		{name: "bucket hangs for both", outage: true, strike: func(c *cell) { c.outageOfBoth(harness.ProxyHang) }},
		{name: "bucket unreachable for the standby", strike: func(c *cell) {
			c.two.proxy.SetMode(harness.ProxyCut)
			c.hold(outage())
			copied := c.position()
			c.two.proxy.SetMode(harness.ProxyForward)
			c.await("the standby to follow again", func() bool { return c.position() != copied })
			c.hold(lease() + 2*time.Second)
			c.checkSteady()
		}},
	}
}

// clockFaults are clocks that jump while both machines run.
func clockFaults() (all []*fault) {
	for _, by := range []struct {
		name  string
		shift time.Duration
	}{{"60 s", time.Minute}, {"1 h", time.Hour}, {"1 day", 24 * time.Hour}} {
		for _, sign := range []struct {
			name   string
			factor time.Duration
		}{{"+", 1}, {"-", -1}} {
			for _, on := range []string{"primary", "standby"} {
				all = append(all, &fault{name: "clock " + sign.name + by.name + " " + on, clocks: true, strike: func(c *cell) {
					m := c.one
					if on == "standby" {
						m = c.two
					}
					m.setClock(sign.factor * by.shift)
					c.checkClock(c.one)
					c.hold(lease() + lease()/2)
					c.checkSteady()
				}})
			}
		}
	}
	return all
}

// removeLease deletes the lease object from the bucket.
func (c *cell) removeLease() {
	c.t.Helper()
	if err := os.Remove(c.leases.file); err != nil {
		c.t.Fatal(err)
	}
}

// outageOfBoth makes the bucket unreachable for both machines for longer than a lease. The primary
// must stop accepting events, and continue once the bucket is back.
func (c *cell) outageOfBoth(mode harness.ProxyMode) {
	c.one.proxy.SetMode(mode)
	c.two.proxy.SetMode(mode)
	c.hold(outage())
	c.recovered = time.Now()
	c.one.proxy.SetMode(harness.ProxyForward)
	c.two.proxy.SetMode(harness.ProxyForward)
	c.await("the primary to accept again", func() bool {
		c.checkNoTakeover()
		_, ok := c.load.after(c.one.name, c.recovered)
		return ok
	})
	c.hold(lease() + 2*time.Second)
}

// position returns the position of the standby's copy, or "".
func (c *cell) position() string {
	txid, _ := os.ReadFile(filepath.Join(c.two.in.Data, "standby", "service.db-txid"))
	return string(txid)
}

// await waits for a condition that must become true.
func (c *cell) await(what string, condition func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(harness.Timeout() + pause())
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for ; !condition(); <-tick.C {
		if time.Now().After(deadline) {
			c.t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// checkSteady checks that the fault did not affect the primary: it has accepted events without a
// gap since.
func (c *cell) checkSteady() {
	c.t.Helper()
	most := harness.Scale(2 * time.Second)
	last := c.struck
	for _, a := range c.load.all() {
		if a.machine != c.one.name || a.at.Before(c.struck) {
			continue
		}
		if gap := a.at.Sub(last); gap > most {
			after := last.Sub(c.struck).Round(time.Millisecond)
			c.t.Errorf("the primary accepted no event for %s, from %s after the fault", gap.Round(time.Millisecond), after)
		}
		last = a.at
	}
	if gap := time.Since(last); gap > most {
		c.t.Errorf("the primary accepted no event for %s", gap.Round(time.Millisecond))
	}
}

// modes returns the values of --acknowledge, or "" for a binary without that flag.
func modes(t *testing.T) []string {
	t.Helper()
	in := harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "data"))
	help, err := in.Command("serve", "--help")
	if err != nil {
		t.Fatalf("serve --help: %v\n%s", err, help)
	}
	if !strings.Contains(help, "--acknowledge") {
		t.Log("NOT TESTED: --acknowledge replica: this binary does not have the flag")
		return []string{""}
	}
	return []string{"local", "replica"}
}

// TestMatrix tests every fault with each value of --acknowledge, and logs a table of
// the results.
func TestMatrix(t *testing.T) {
	harness.Long(t)
	g := harness.NewGateway(t)
	harness.Build(t)
	var mu sync.Mutex
	var results []*result
	t.Cleanup(func() { // after the parallel tests
		table := tableHead
		for _, r := range results {
			table += "\n" + r.String()
		}
		t.Log("\n" + table)
	})
	for _, ack := range modes(t) {
		for n, f := range slices.Repeat(faults(), *repeat) {
			name := f.name
			if ack != "" {
				name += ", " + ack
			}
			if *repeat > 1 {
				name += fmt.Sprintf(", run %d", n/len(faults())+1)
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := &result{name: f.name, ack: ack}
				mu.Lock()
				results = append(results, r)
				mu.Unlock()
				t.Cleanup(func() { r.failed = t.Failed() })
				c := newCell(t, g, f, ack, name)
				c.result = r
				c.run()
			})
		}
	}
}
