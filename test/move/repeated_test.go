package move

import (
	"encoding/json"
	"strings"
	"testing"

	"service/test/harness"
)

// TestNewToken revokes the token of a move after the source has recorded it. The move continues
// once the command is repeated with another token.
func TestNewToken(t *testing.T) {
	harness.Long(t)
	from, to := start(t), start(t)
	token, receiver := from.fill()
	b := newBetween(t, to.URL(), false)
	first := to.tokenFile
	var ids []struct{ ID string }
	out, err := to.Command("token", "list", "--data", to.Data, "--json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &ids)
	}
	if err != nil || len(ids) != 1 {
		t.Fatalf("token list: %v\n%s", err, out)
	}
	revoked := false
	before := func(step string) {
		if step == "POST activate" && !revoked {
			revoked = true
			if out, err := to.Command("token", "revoke", "--yes", ids[0].ID, "--data", to.Data); err != nil {
				t.Errorf("token revoke: %v\n%s", err, out)
			}
		}
	}
	b.before.Store(&before)
	m := from.startMove(b.URL, first)
	m.await("Not active there yet")
	if output, err := m.interrupt(); err == nil {
		t.Fatalf("the interrupted move succeeded:\n%s", output)
	}
	other := start(t).tokenFile // of another installation
	if output, err := from.moveFrom(b.URL, other); err == nil || !strings.Contains(output, "refused the request") {
		t.Errorf("with a token of another installation: %v\n%s", err, output)
	}
	to.newToken()
	if output, err := from.moveFrom(b.URL, to.tokenFile); err != nil || !strings.Contains(output, "is active at") {
		t.Fatalf("with a new token: %v\n%s", err, output)
	}
	to.checkSends(token, receiver)
	if log := from.logs(); strings.Contains(log, "svc_") {
		t.Errorf("the log contains a token:\n%s", log)
	}
}

// TestArrived moves a program to a target that has it from a move of another installation, which
// may have recorded that: the target removes nothing. It removes what the source itself left there.
func TestArrived(t *testing.T) {
	harness.Long(t)
	from, other, to := start(t), start(t), start(t)
	token, receiver := from.fill()
	otherToken, otherReceiver := other.fill()
	b := newBetween(t, to.URL(), false)

	// Aborted: the program is at the target, which cannot be reached.
	refuses, arrived := func(string) bool { return false }, false
	after := func(step string) {
		if step == "PUT rest" && !arrived {
			arrived = true
			refuses = func(string) bool { return true }
			b.refuses.Store(&refuses)
			b.CloseClientConnections()
		}
	}
	b.after.Store(&after)
	output, err := from.moveFrom(b.URL, to.tokenFile)
	if err == nil || !strings.Contains(output, "the program is active here") || to.status() != "arriving" {
		t.Fatalf("the move: %v, the target is %s\n%s", err, to.status(), output)
	}
	from.checkSends(token, receiver)
	if output, err := other.moveFrom(to.URL(), to.tokenFile); err == nil || !strings.Contains(output, "did not begin here") {
		t.Errorf("a move of another installation: %v\n%s", err, output)
	}
	if status := to.status(); status != "arriving" {
		t.Errorf("the target is %s", status)
	}

	// Repeated, and recorded, but not active.
	activate := func(step string) bool { return step == "POST activate" }
	b.refuses.Store(&activate)
	m := from.startMove(b.URL, to.tokenFile)
	harness.WaitFor(t, "the source to record the move", func() bool { return strings.HasPrefix(from.status(), "moved") })
	if output, err := other.moveFrom(to.URL(), to.tokenFile); err == nil || !strings.Contains(output, "did not begin here") {
		t.Errorf("a move of another installation: %v\n%s", err, output)
	}
	other.checkSends(otherToken, otherReceiver)
	b.refuses.Store(nil)
	m.wait()
	to.checkSends(token, receiver)
}
