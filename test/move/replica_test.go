package move

import (
	"strings"
	"sync"
	"testing"

	"service/test/harness"
)

// selectState returns the state of the program, whether a move to it is active, and the number of
// its events.
const selectState = `SELECT coalesce((SELECT state FROM program_states WHERE program_id = 'acme'), 'none') || ' ' ||
	coalesce((SELECT activated_at IS NOT NULL FROM program_moves WHERE program_id = 'acme' AND direction = 'in'), '-') || ' ' ||
	(SELECT count(*) FROM events WHERE program_id = 'acme')`

// TestReplica moves a program between installations whose replicas are written without
// --acknowledge. Each mark of the move is in the bucket before the next step, so that a host that
// takes over at any moment knows it. While the source's bucket is unreachable, the target does not
// become active.
func TestReplica(t *testing.T) {
	harness.Long(t)
	t.Setenv("AWS_ACCESS_KEY_ID", harness.GatewayKey) // for restore
	t.Setenv("AWS_SECRET_ACCESS_KEY", harness.GatewaySecret)
	from, to := startReplicated(t, harness.NewGateway(t)), startReplicated(t, harness.NewGateway(t))
	token, receiver := from.fill()
	b := newBetween(t, to.URL(), false)

	copies := make(map[string]replica) // content of a bucket at a step
	var mu sync.Mutex
	keep := func(when string, in *installation) {
		r := in.copyBucket()
		mu.Lock()
		defer mu.Unlock()
		if _, ok := copies[when]; !ok {
			copies[when] = r
		}
	}
	activating := make(chan struct{}, 100)
	before := func(step string) {
		if step == "PUT rest" || step == "POST activate" {
			keep("source before "+step, from)
		}
		if step == "POST activate" {
			activating <- struct{}{}
		}
	}
	after := func(step string) {
		if step == "PUT rest" || step == "POST activate" {
			keep("target after "+step, to)
		}
		if step == "PUT rest" {
			from.bucket.SetMode(harness.ProxyCut)
		}
	}
	b.before.Store(&before)
	b.after.Store(&after)

	m := from.startMove(b.URL, to.tokenFile)
	harness.WaitFor(t, "the source to record the move", func() bool { return strings.HasPrefix(from.status(), "moved") })
	m.await("Waiting for the replica of this installation.")
	select {
	case <-activating:
		t.Error("the source activates the target before its bucket has the move")
	default:
	}
	if status := to.status(); status != "arriving" {
		t.Errorf("the target is %s", status)
	}
	from.bucket.SetMode(harness.ProxyForward)
	if output, err := m.wait(); err != nil {
		t.Fatalf("the move: %v\n%s", err, output)
	}
	to.checkSends(token, receiver)
	for when, want := range map[string]string{
		"source before PUT rest": "moving - 1", "target after PUT rest": "arriving 0 1",
		"source before POST activate": "moved - 1", "target after POST activate": "none 1 1",
	} {
		in := from
		if strings.HasPrefix(when, "target") {
			in = to
		}
		if r, ok := copies[when]; !ok {
			t.Errorf("%s: there is no copy", when)
		} else if got := in.query(r, selectState); got != want {
			t.Errorf("%s: the bucket has %s, want %s", when, got, want)
		}
	}
	if log := from.logs(); !strings.Contains(log, "the move of a program waits for the replica") {
		t.Errorf("the source's log:\n%s", log)
	}
}

// TestReplicaUnreachable moves a program while the source's bucket is unreachable: the program is
// not frozen. Then it moves.
func TestReplicaUnreachable(t *testing.T) {
	harness.Long(t)
	from, to := startReplicated(t, harness.NewGateway(t)), start(t)
	token, receiver := from.fill()
	from.bucket.SetMode(harness.ProxyCut)
	from.checkSends(token, receiver)
	m := from.startMove(to.URL(), to.tokenFile)
	m.await("Waiting for the replica")
	output, err := m.interrupt()
	if err == nil || !strings.Contains(output, "the server continues the move") {
		t.Fatalf("the move: %v\n%s", err, output)
	}
	from.checkSends(token, receiver)
	from.bucket.SetMode(harness.ProxyForward)
	if output, err = from.moveFrom(to.URL(), to.tokenFile); err != nil {
		if !strings.Contains(output, "has already moved to") { // the first command's move has ended
			t.Fatalf("the move: %v\n%s", err, output)
		}
	}
	to.checkSends(token, receiver)
}
