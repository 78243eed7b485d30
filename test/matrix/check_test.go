//go:build linux

package matrix

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

// Tolerances.
const (
	// uploadBound is how long an acknowledged event may be missing from a reachable
	// bucket: the sync interval and the duration of an upload.
	uploadBound = 1500 * time.Millisecond
	// clockTolerance is how long after a process wrote to a connection the test may read the clock
	// of that process.
	clockTolerance = 250 * time.Millisecond
)

// settle ends the load, waits until the serving machine has delivered everything, shuts
// it down, restores the replica, and checks everything.
func (c *cell) settle() {
	t := c.t
	t.Helper()
	now := time.Now()
	c.await("the new primary to accept events for two seconds", func() bool {
		_, ok := c.load.after(c.two.name, now.Add(2*time.Second))
		return ok
	})
	c.stopLoad()
	there := c.awaitDelivered()
	if status := c.two.in.Stop(c.two.process); status != harness.ExitOK {
		t.Errorf("standby: got exit status %d, want 0:\n%s", status, &c.two.process.Log)
	}
	c.checkRestore()
	c.checkLost(there)
	c.checkLeases()
	c.checkArrivals()
	c.checkWrites()
	c.checkRepeated()
}

// awaitDelivered waits until every event in the serving database has arrived, and
// returns these events.
func (c *cell) awaitDelivered() map[string]bool {
	c.t.Helper()
	there := make(map[string]bool)
	events, err := harness.Feed[struct{ ID string }](c.two.in, c.token, "/v2/events")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range events {
		there[e.ID] = true
		if !c.load.sent[e.ID] {
			c.t.Errorf("event %s was never published", e.ID)
		}
	}
	c.await("the arrival of all events", func() bool { return c.receiver.has(there) })
	return there
}

// checkRestore restores the replica and compares it with the database of the last serving machine.
func (c *cell) checkRestore() {
	t := c.t
	t.Helper()
	to := filepath.Join(t.TempDir(), "restored")
	config := c.litestream(t.TempDir(), to, c.gateway.Address)
	if out, err := c.two.in.Command("restore", "--data", to, "--litestream", config); err != nil {
		t.Errorf("restore: %v\n%s", err, out)
		return
	}
	for _, fault := range harness.DatabaseFaults(t, to) {
		t.Errorf("the restored database: %s", fault)
	}
	for _, fault := range harness.DatabaseFaults(t, c.two.in.Data) {
		t.Errorf("the database that served: %s", fault)
	}
	epochs := 0
	differences := slices.DeleteFunc(harness.DatabaseDifferences(t, c.two.in.Data, to), func(d string) bool {
		// The marks of the restore: settings, and an epoch of the program's log that begins.
		if strings.HasPrefix(d, "1 times instead of 0: log_epochs ") {
			epochs++
			return epochs == 1
		}
		return slices.ContainsFunc([]string{"restored", "restored_newest", "audit_continued"}, func(name string) bool {
			return strings.Contains(d, "settings '"+name+"',")
		})
	})
	if n := len(differences); n > 0 {
		t.Errorf("the restored database differs from the one that served, %d times: %s", n, strings.Join(differences[:min(n, 5)], "\n"))
	}
	if epochs == 0 {
		t.Error("the restore began no epoch of the program's log")
	}
}

// checkLost checks which events the last serving database lacks.
func (c *cell) checkLost(there map[string]bool) {
	t := c.t
	t.Helper()
	end := c.killed // events acknowledged within uploadBound before end may be lost
	if c.fault.deposes {
		end = c.struck
	}
	var worst time.Duration
	for _, a := range c.load.all() {
		c.result.acked++
		if there[a.id] {
			continue
		}
		c.result.lost++
		worst = max(worst, end.Sub(a.at))
		switch {
		case c.ack == "replica":
			t.Errorf("lost event %s, which the %s acknowledged %s before the end", a.id, a.machine, end.Sub(a.at).Round(time.Millisecond))
		case a.machine != c.one.name:
			t.Errorf("lost event %s, which the %s acknowledged after its takeover", a.id, a.machine)
		}
	}
	c.result.oldest = worst
	if worst > harness.Scale(uploadBound) {
		t.Errorf("a lost event was acknowledged %s before the end, want at most %s", worst.Round(time.Millisecond), harness.Scale(uploadBound))
	}
}

// overrun returns how long before a moment the lease of a machine had expired, or 0 if
// it had not.
func (c *cell) overrun(writes []leaseWrite, owners map[string]string, machine string, at time.Time) time.Duration {
	ended := time.Time{}
	for _, w := range writes {
		if w.at.After(at) {
			break
		}
		switch {
		case owners[w.Owner] != machine || w.Released:
			if w.at.Before(ended) {
				ended = w.at
			}
		default:
			ended = w.at.Add(lease())
		}
	}
	if ended.IsZero() {
		return at.Sub(writes[0].at)
	}
	return max(0, at.Sub(ended))
}

// tenures returns the versions of the lease and the machine of each owner.
func (c *cell) tenures() ([]leaseWrite, map[string]string) {
	writes := c.leases.all()
	return writes, tenures(writes, c.one.name, c.two.name)
}

// checkLeases checks that only the two machines took the lease, and that neither took
// it before it had expired.
func (c *cell) checkLeases() {
	c.t.Helper()
	writes, owners := c.tenures()
	for i, w := range writes {
		if owners[w.Owner] == "" {
			c.t.Errorf("the lease was taken by a third owner: %s", w.Owner)
		}
		if i == 0 || w.Owner == writes[i-1].Owner || writes[i-1].Released {
			continue
		}
		if early := lease() - w.at.Sub(writes[i-1].at); early > 50*time.Millisecond {
			c.t.Errorf("the %s took the lease %s before it expired", owners[w.Owner], early)
		}
	}
}

// checkArrivals checks that the machines sent requests and accepted events only while they held the
// lease.
func (c *cell) checkArrivals() {
	c.t.Helper()
	writes, owners := c.tenures()
	for _, a := range c.receiver.all() {
		if a.sender == "" {
			c.result.unknown++
			continue
		}
		over := c.overrun(writes, owners, a.sender, a.at)
		switch {
		case over > harness.Scale(clockTolerance):
			c.t.Errorf("a request of the %s arrived %s after the end of its lease", a.sender, over.Round(time.Millisecond))
		case over > 0:
			c.result.late++
		}
	}
	for _, a := range c.load.all() {
		over := c.overrun(writes, owners, a.machine, a.at)
		switch {
		case over <= harness.Scale(clockTolerance):
		case a.sent.Before(a.at.Add(-over)):
			c.result.lateAcks++ // committed before the process was paused, acknowledged when it continued
		default:
			c.t.Errorf("the %s acknowledged an event %s after the end of its lease", a.machine, over.Round(time.Millisecond))
		}
	}
}

// checkWrites checks that no machine without the lease tried to change anything in the bucket
// except the lease itself and its sign of life. A process that was stopped between checking the
// lease and its request may make that one request, in its own term, which is no longer read.
func (c *cell) checkWrites() {
	c.t.Helper()
	writes, owners := c.tenures()
	for _, m := range []*machine{c.one, c.two} {
		faults := 0
		for _, r := range m.proxy.Requests() {
			if r.Method == "GET" || r.Method == "HEAD" || strings.Contains(r.Path, "lock.json") || strings.Contains(r.Path, "/nodes/") {
				continue
			}
			if over := c.overrun(writes, owners, m.name, r.At); over > harness.Scale(clockTolerance) {
				if c.fault.pauses && m == c.one && faults == 0 && strings.Contains(r.Path, "/terms/0001/") {
					faults++
					continue
				}
				if faults++; faults <= 3 {
					c.t.Errorf("the %s changed the bucket %s after the end of its lease: %s %s", m.name, over.Round(time.Millisecond), r.Method, r.Path)
				}
			}
		}
	}
}

// checkRepeated checks that the new primary repeats only what the old one sent after
// its last upload, and that no delivery arrives too often.
func (c *cell) checkRepeated() {
	c.t.Helper()
	end := c.killed
	if c.fault.deposes {
		end = c.struck
	}
	first := make(map[string]time.Time) // event ID → when the primary last sent it
	times := make(map[string]int)
	for _, a := range c.receiver.all() {
		times[a.delivery]++
		if a.sender == c.two.name {
			continue
		}
		for _, id := range a.events {
			first[id] = a.at
		}
	}
	both := make(map[string]bool)
	for _, a := range c.receiver.all() {
		for _, id := range a.events {
			at, ok := first[id]
			if a.sender != c.two.name || !ok {
				continue
			}
			both[id] = true
			if before := end.Sub(at); before > harness.Scale(uploadBound) {
				c.t.Errorf("event %s was repeated, which the primary had sent %s before the end", id, before.Round(time.Millisecond))
			}
		}
	}
	c.result.repeated = len(both)
	for delivery, n := range times {
		if n > 10 {
			c.t.Errorf("delivery %s: got %d arrivals", delivery, n)
		}
	}
}

// TestTablesDiffer checks that the comparison of databases finds a difference.
func TestTablesDiffer(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for i, dir := range []string{a, b} {
		db := harness.OpenDatabase(t, dir)
		_, err := db.Exec(fmt.Sprintf("CREATE TABLE same(x); INSERT INTO same VALUES (1), (x'00'), (NULL); CREATE TABLE other(x); INSERT INTO "+
			"other VALUES (%d)", i))
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if d := harness.DatabaseDifferences(t, a, a); len(d) > 0 {
		t.Errorf("a database and itself: got differences %q", d)
	}
	if d := harness.DatabaseDifferences(t, a, b); len(d) != 2 || !strings.Contains(d[0], "other") {
		t.Errorf("got differences %q, want a row of other in each", d)
	}
}
