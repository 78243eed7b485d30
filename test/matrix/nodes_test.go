//go:build linux

package matrix

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

// play is a sequence of faults for nodes that all run the same command under load.
type play struct {
	name string
	// newer means that the first node runs a binary with a later schema than the others.
	newer bool
	// loses bounds the acknowledged events that may be lost, see [uploadBound]: after kill -9 with
	// --acknowledge local.
	loses bool
	// deletes means that the replica itself is lost, with what the standby had not yet copied.
	deletes bool
	act     func(*nodes)
}

// nodes are several machines, a subscriber, and a load on all of them.
type nodes struct {
	*cell
	all   []*machine
	newer string // the newer binary, "" without one
}

// restarts are plays in which nodes end and return.
func restarts() []*play {
	return []*play{
		{name: "restart the primary, then the other, then the first", act: func(n *nodes) {
			for _, m := range []*machine{n.all[0], n.all[1], n.all[0]} {
				n.restartNode(m)
			}
		}},
		{name: "upgrade the standby, then the primary", act: func(n *nodes) {
			n.restartNode(n.all[1])
			n.awaitPrimary(n.all[0])
			n.restartNode(n.all[0])
			n.awaitPrimary(n.all[1])
		}},
		{name: "reboot both, the primary first", act: func(n *nodes) {
			n.stopNode(n.all[0])
			n.awaitPrimary(n.all[1])
			n.stopNode(n.all[1])
			n.bootNodes(n.all[0], n.all[1])
		}},
		{name: "reboot both, the standby first", act: func(n *nodes) {
			n.stopNode(n.all[1])
			n.stopNode(n.all[0])
			n.bootNodes(n.all[1], n.all[0])
		}},
		{name: "both lose power, and return in the other order", loses: true, act: func(n *nodes) {
			for _, m := range n.all {
				n.killNode(m)
			}
			n.bootNodes(n.all[1], n.all[0])
		}},
		{name: "three nodes, two of which die", loses: true, act: func(n *nodes) {
			n.addNode()
			n.killNode(n.all[0])
			second := n.awaitAnyPrimary()
			n.killNode(second)
			third := n.awaitAnyPrimary()
			n.launchNode(n.all[0])
			n.launchNode(second)
			n.awaitFollowing(n.all[0])
			n.awaitFollowing(second)
			n.awaitPrimary(third)
		}},
	}
}

// losses are plays in which data of a node or of the replica is missing.
func losses() []*play {
	return []*play{
		{name: "kill -9, then salvage", loses: true, act: func(n *nodes) {
			n.killNode(n.all[0])
			n.awaitPrimary(n.all[1])
			n.launchNode(n.all[0])
			n.awaitFollowing(n.all[0])
			n.salvageFrom(n.all[0], n.all[1])
		}},
		{name: "the key is rotated", loses: true, act: func(n *nodes) {
			out, err := n.all[0].in.Command("key", "rotate", "--yes", "--data", n.all[0].in.Data)
			if err != nil || !strings.Contains(out, "cannot take over until it has this file too") {
				n.t.Fatalf("key rotate: %v, want the standby\n%s", err, out)
			}
			n.awaitReason(n.all[1], "secret.key")
			n.killNode(n.all[0])
			n.checkNobody()
			n.copyKey(n.all[0], n.all[1])
			n.awaitPrimary(n.all[1])
		}},
		{name: "the standby's binary is older", newer: true, loses: true, act: func(n *nodes) {
			n.awaitReason(n.all[1], "use a newer binary")
			n.killNode(n.all[0])
			n.checkNobody()
			n.stopNode(n.all[1])
			n.binary = n.newer
			n.launchNode(n.all[1])
			n.awaitPrimary(n.all[1])
		}},
		{name: "the whole bucket is emptied", act: func(n *nodes) {
			n.emptyBucket()
			began := time.Now()
			n.await("the primary to go on for two leases", func() bool {
				_, ok := n.load.after(n.all[0].name, began.Add(2*lease()))
				return ok
			})
			n.await("the replica to be whole again", func() bool {
				_, text := n.all[0].in.Scrape()
				terms, err := filepath.Glob(filepath.Join(n.gateway.Dir, "bucket", n.path, "terms", "*", "*", "*.ltx"))
				return err == nil && len(terms) > 0 && strings.Contains(string(text), `webhooks_replica_state{state="running"} 1`)
			})
			n.awaitFollowing(n.all[1])
			n.stopNode(n.all[0])
			n.awaitPrimary(n.all[1])
		}},
		{name: "the bucket is emptied and the primary dies", loses: true, deletes: true, act: func(n *nodes) {
			n.killNode(n.all[0])
			n.emptyBucket()
			n.awaitReason(n.all[1], "The replica is empty")
			if out, err := n.all[1].in.Command("promote", "--force", "--data", n.all[1].in.Data); err != nil {
				n.t.Fatalf("promote --force: %v\n%s", err, out)
			}
			n.awaitPrimary(n.all[1])
		}},
	}
}

// TestNodes plays with nodes that all run the same command under load: there is one primary at a
// time, all others follow, and no acknowledged event is lost except by kill -9 with --acknowledge
// local.
func TestNodes(t *testing.T) {
	harness.Long(t)
	g := harness.NewGateway(t)
	harness.Build(t)
	for _, ack := range modes(t) {
		for _, p := range append(restarts(), losses()...) {
			t.Run(p.name+", "+ack, func(t *testing.T) {
				t.Parallel()
				n := newNodes(t, g, p, ack)
				n.warmUp()
				n.struck = time.Now()
				p.act(n)
				n.finishPlay(p)
			})
		}
	}
}

func newNodes(t *testing.T, g *harness.Gateway, p *play, ack string) *nodes {
	n := &nodes{}
	f := &fault{name: p.name}
	if p.newer {
		n.newer = harness.Build(t, harness.Mutation{File: "store/schema/schema.go", Old: "Version: Version,", New: "Version: Version + 1,"})
		f.binary = n.newer
	}
	n.cell = newCell(t, g, f, ack, "nodes "+p.name+" "+ack)
	n.result = &result{name: p.name, ack: ack}
	n.all = []*machine{n.one, n.two}
	return n
}

// addNode starts a third node.
func (n *nodes) addNode() {
	n.t.Helper()
	m := n.machine("third")
	n.copyKey(n.all[0], m)
	n.all = append(n.all, m)
	for range publishers {
		n.working.Go(func() { n.load.publish(n.ctx, m, n.token) })
	}
	n.launchNode(m)
	n.awaitFollowing(m)
}

// emptyBucket deletes everything in the replica, including the lease.
func (n *nodes) emptyBucket() {
	n.t.Helper()
	gone := func() bool {
		err := harness.Exec("find", filepath.Join(n.gateway.Dir, "bucket", n.path), "-mindepth", "1", "-delete")
		if err != nil {
			n.t.Logf("emptying the bucket, again: %v", err) // a node was writing
		}
		return err == nil
	}
	n.await("an empty bucket", gone)
}

// launchNode starts the service on a machine.
func (n *nodes) launchNode(m *machine) {
	n.t.Helper()
	n.start(m, "serve", n.leaseFlags()...)
	n.announce(m)
}

func (n *nodes) stopNode(m *machine) {
	n.t.Helper()
	m.in.MustStop(m.process)
}

func (n *nodes) killNode(m *machine) { m.in.Kill(m.process) }

// restartNode restarts the service on a machine. Afterwards the machine follows, unless it was the
// only node.
func (n *nodes) restartNode(m *machine) {
	n.t.Helper()
	n.stopNode(m)
	n.awaitAnyPrimary()
	n.launchNode(m)
	n.awaitFollowing(m)
}

// bootNodes starts machines one after another without waiting, as after a power cut. One of them
// serves, and the others follow.
func (n *nodes) bootNodes(all ...*machine) {
	n.t.Helper()
	for _, m := range all {
		n.launchNode(m)
	}
	primary := n.awaitAnyPrimary()
	for _, m := range all {
		if m != primary {
			n.awaitFollowing(m)
		}
	}
}

// awaitPrimary waits until a machine accepts events.
func (n *nodes) awaitPrimary(m *machine) {
	n.t.Helper()
	now := time.Now()
	n.await("the "+m.name+" to serve", func() bool {
		_, ok := n.load.after(m.name, now)
		return ok
	})
}

// awaitAnyPrimary waits until a machine accepts events, and returns it.
func (n *nodes) awaitAnyPrimary() (primary *machine) {
	n.t.Helper()
	now := time.Now()
	n.await("a primary", func() bool {
		for _, m := range n.all {
			if _, ok := n.load.after(m.name, now); ok {
				primary = m
			}
		}
		return primary != nil
	})
	return primary
}

// readyz returns a machine's answer, "" if there is none.
func (n *nodes) readyz(m *machine) string {
	base := ""
	select {
	case base = <-m.process.Standby:
		m.process.Standby <- base
	default:
		return ""
	}
	resp, err := m.in.Client.Get(base + "/readyz")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

// awaitFollowing waits until a machine follows and could take over.
func (n *nodes) awaitFollowing(m *machine) {
	n.t.Helper()
	n.await("the "+m.name+" to follow", func() bool { return strings.Contains(n.readyz(m), `"can_take_over":true`) })
}

// awaitReason waits until a machine says why it cannot take over.
func (n *nodes) awaitReason(m *machine, reason string) {
	n.t.Helper()
	text := ""
	defer func() {
		if n.t.Failed() {
			n.t.Logf("the %s says %s", m.name, text)
		}
	}()
	n.await("the "+m.name+" to say "+reason, func() bool {
		text = n.readyz(m)
		return strings.Contains(text, `"can_take_over":false`) && strings.Contains(text, reason)
	})
}

// checkNobody checks that no node takes the lease, although the primary's lease has expired.
func (n *nodes) checkNobody() {
	n.t.Helper()
	writes := len(n.leases.all())
	began := time.Now()
	n.await("two leases without a primary", func() bool { return time.Since(began) > 2*lease() })
	if more := len(n.leases.all()) - writes; more > 1 { // a last renewal may have been in flight
		n.t.Errorf("got %d writes of the lease, want none", more)
	}
}

// salvageFrom publishes on the primary events that only an earlier primary has.
func (n *nodes) salvageFrom(old, primary *machine) {
	n.t.Helper()
	kept, err := filepath.Glob(filepath.Join(old.in.Data, "replaced-*"))
	if err != nil || len(kept) == 0 {
		n.t.Logf("the old primary has nothing of its own: %v", err)
		return
	}
	for _, dir := range kept {
		out, err := primary.in.Command("salvage", "--from", dir, "--data", primary.in.Data)
		if err != nil {
			n.t.Errorf("salvage: %v\n%s", err, out)
		}
	}
}

// finishPlay ends the load and checks that there was one sender at a time, that everything
// acknowledged is stored and was delivered, and that the replica contains it.
func (n *nodes) finishPlay(p *play) {
	t := n.t
	t.Helper()
	primary := n.awaitAnyPrimary()
	n.stopLoad()
	n.two = primary // for the checks of a cell
	n.two.in.Binary = n.binary
	there := n.awaitDelivered()
	n.checkSenders()
	n.checkGap(primary)
	lost := 0
	for _, a := range n.load.all() {
		n.result.acked++
		if !there[a.id] {
			lost++
		}
	}
	salvaged := strings.Contains(p.name, "salvage")
	if lost > 0 && (!p.loses || n.ack == "replica" && !p.deletes || salvaged) {
		t.Errorf("lost %d of %d acknowledged events", lost, n.result.acked)
	}
	for _, m := range n.all {
		select {
		case <-m.process.Exited: // the play killed it
		default:
			if m != primary {
				n.stopNode(m)
			}
		}
	}
	n.stopNode(primary)
	n.checkRestore()
	t.Logf("%s: acknowledged %d, lost %d, %.1f s without a primary at most", t.Name(), n.result.acked, lost, n.result.takeover.Seconds())
}

// checkSenders checks that the machines sent in turn: as often as the lease changed owners.
func (n *nodes) checkSenders() {
	n.t.Helper()
	all := n.receiver.all()
	slices.SortStableFunc(all, func(a, b arrival) int { return a.at.Compare(b.at) })
	last, turns := "", 0
	for _, a := range all {
		if a.sender != "" && a.sender != last {
			last, turns = a.sender, turns+1
		}
	}
	owners, owner := 0, ""
	for _, w := range n.leases.all() {
		if w.Owner != owner {
			owner, owners = w.Owner, owners+1
		}
	}
	if turns > owners {
		n.t.Errorf("the nodes sent in %d turns, but the lease had %d owners", turns, owners)
	}
}

// checkGap measures the longest time in which no event was accepted after the play began. If the
// play waits deliberately, checkGap only reports it.
func (n *nodes) checkGap(primary *machine) {
	n.t.Helper()
	times := []time.Time{n.struck}
	for _, a := range n.load.all() {
		if a.at.After(n.struck) {
			times = append(times, a.at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	for i := range times[1:] {
		n.result.takeover = max(n.result.takeover, times[i+1].Sub(times[i]))
	}
	if _, err := os.Stat(filepath.Join(primary.in.Data, "service.db")); err != nil {
		n.t.Error(fmt.Errorf("the primary has no database: %w", err))
	}
}
