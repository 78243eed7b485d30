package store

import (
	"bytes"
	"testing"

	"service/webhook"
)

// moveParts contains the two installations of a move.
type moveParts struct {
	id       string // of the move
	from, to *Store
	program  string
}

func (m *moveParts) first(t *testing.T) (*MoveExport, *Reception) {
	t.Helper()
	x, first, err := m.from.Programs().ExportMove(t.Context(), m.program, 0)
	must(t, err)
	r, err := m.to.Programs().Receive(t.Context(), m.id, &ProgramImport{Path: first.Path, Key: first.Key})
	must(t, err)
	must(t, first.Remove())
	return x, r
}

// changes transfers the rows that have changed since the previous part.
func (m *moveParts) changes(t *testing.T, x *MoveExport, r *Reception) {
	t.Helper()
	part, err := x.Changes(t.Context())
	must(t, err)
	for range 2 { // the response to the first may be lost
		must(t, r.Add(t.Context(), &ProgramImport{Path: part.Path, Key: part.Key}))
	}
	must(t, part.Remove())
}

// freeze begins the move at the source.
func (m *moveParts) freeze(t *testing.T) {
	t.Helper()
	must(t, m.from.Write(t.Context(), func(w Write) error {
		return w.Moves().Begin(m.program, m.id, &MoveTarget{URL: "https://target.example.com", Token: "secret"})
	}))
}

// finish transfers the rest.
func (m *moveParts) finish(t *testing.T, x *MoveExport, r *Reception) {
	t.Helper()
	rest, err := x.Rest(t.Context())
	must(t, err)
	_, err = r.Complete(t.Context(), &ProgramImport{Path: rest.Path, Key: rest.Key})
	must(t, err)
	must(t, rest.Remove())
	must(t, x.Close())
	must(t, r.Close())
}

// activate completes the move on both sides.
func (m *moveParts) activate(t *testing.T) {
	t.Helper()
	must(t, m.from.Write(t.Context(), func(w Write) error { return w.Moves().Complete(m.program, m.id) }))
	for i := range 2 { // repeated, it changes nothing
		must(t, m.to.Write(t.Context(), func(w Write) error {
			activated, err := w.Moves().Activate(m.program, m.id)
			if activated != (i == 0) {
				t.Errorf("activation %d: %v", i, activated)
			}
			return err
		}))
	}
	must(t, m.from.Write(t.Context(), func(w Write) error { return w.Moves().Activated(m.program, m.id) }))
}

// TestMove moves a program that changes between the parts, and back. Nothing differs.
func TestMove(t *testing.T) {
	m, p := newMove(t)
	from, to := m.from, m.to
	fillProgram(t, to, "other-program")
	x, r := m.first(t)
	checkHidden(t, to, p)
	// The program continues.
	for _, sub := range p.subscriptions[:2] {
		m.changes(t, x, r)
		publish(t, from, p.id, "content_updated")
		q := queue(t, from, sub.ID)
		claims := 0
		for _, kind := range []CreditKind{CreditDue, CreditEvents} {
			credit := Credit{Queue: q, Kind: kind, Newest: q.Wanted, Count: 10, Size: webhook.MaxDeliveryBytes, BeforeDue: true}
			f := from.Queues().Spend(t.Context(), &credit)
			f.Submit()
			c, err := f.Wait()
			must(t, err)
			if c == nil {
				continue
			}
			claims++
			end(t, from, c, webhook.StatusSuccess)
		}
		t.Logf("%d attempts", claims)
	}
	m.changes(t, x, r)
	m.changes(t, x, r)
	publish(t, from, p.id, "content_updated")
	before := describeProgram(t, from, p)
	m.freeze(t)
	checkMoving(t, from, p, webhook.ProgramMoving, false)
	m.finish(t, x, r)
	checkMoving(t, to, p, webhook.ProgramArriving, false)
	m.activate(t)
	before.compare(t, describeProgram(t, to, p))
	checkIntegrity(t, to)
	checkRanges(t, to)
	if next := publish(t, to, p.id, "content_updated"); next[0].Seq != int64(len(p.events))+4 {
		t.Errorf("the log continues with seq %d", next[0].Seq)
	}

	// The source keeps tokens, which the requests it forwards carry.
	checkMoving(t, from, p, webhook.ProgramMoved, true)
	must(t, from.eraseAll(t.Context(), false))
	checkMoving(t, from, p, webhook.ProgramMoved, true)
	wantNumber(t, "events that are left", count(t, from, "SELECT count(*) FROM events WHERE program_id = ?", p.id), 0)

	// And back.
	before = describeProgram(t, to, p)
	m = &moveParts{id: webhook.NewID(), from: to, to: from, program: p.id}
	x, r = m.first(t)
	checkMoving(t, from, p, webhook.ProgramMoved, true)
	m.freeze(t)
	m.finish(t, x, r)
	checkMoving(t, from, p, webhook.ProgramArriving, true)
	m.activate(t)
	before.compare(t, describeProgram(t, from, p))
	if from.Programs().Move(p.id) != nil {
		t.Error("the program still forwards")
	}
	checkIntegrity(t, from)
	checkRanges(t, from)
}

// checkMoving checks that a program in a move is not used, and that its tokens are still known.
func checkMoving(t *testing.T, s *Store, p *filledProgram, status string, forwards bool) {
	t.Helper()
	for id, secret := range p.tokens {
		if token, err := s.Tokens().Authenticate(t.Context(), secret); err != nil || token.ID != id {
			t.Errorf("a token: %v", err)
		}
	}
	if m := s.Programs().Move(p.id); m == nil || m.Status != status || m.Forwards != forwards {
		t.Errorf("the move is %+v", m)
	}
	all, err := s.Queues().All(t.Context())
	must(t, err)
	for _, q := range all {
		if q.ProgramID == p.id {
			t.Error("the dispatcher would send")
		}
	}
	err = s.Write(t.Context(), func(w Write) error {
		_, err := w.Publish(p.id, []webhook.Event{{Name: "content_updated", JSON: []byte("{}")}})
		return err
	})
	if err == nil {
		t.Error("an event was published")
	}
}

// TestMoveAlerts moves a program with an unsent alert. The target sends it, once the program is
// active, to its own --alert-url and channels.
func TestMoveAlerts(t *testing.T) {
	m, p := newMove(t)
	from, to := m.from, m.to
	to.sendAlerts = true
	for _, s := range []*Store{from, to} {
		mustWrite(t, s, func(w Write) error {
			_, err := w.Channels().Create(channel(webhook.ChannelSlack, webhook.AlertFailing))
			return err
		})
	}
	must(t, from.writer.do(func(t *tx) error {
		alert := webhook.Alert{Name: webhook.AlertFailing, Subscription: p.subscriptions[0]}
		return from.alert(t, &alert, 0)
	}))
	x, r := m.first(t)
	m.freeze(t)
	if got := claimAlerts(t, from); len(got) > 0 {
		t.Errorf("the source sends %d alerts", len(got))
	}
	m.finish(t, x, r)
	if got := claimAlerts(t, to); len(got) > 0 {
		t.Errorf("the target sends %d alerts before it is active", len(got))
	}
	m.activate(t)
	got := claimAlerts(t, to)
	if len(got) != 2 || got[0].Channel != nil || got[1].Channel == nil || got[0].ID != got[1].ID || got[0].ProgramID != p.id ||
		!bytes.Contains(got[1].JSON, []byte(p.subscriptions[0].ID)) {
		t.Errorf("the target sends %+v", got)
	}
	if got := claimAlerts(t, from); len(got) > 0 {
		t.Errorf("the source sends %d alerts", len(got))
	}
}

// TestRenewMove replaces the token and the certificates of a move until it ends.
func TestRenewMove(t *testing.T) {
	m, p := newMove(t)
	from := m.from
	renew := func(id string, want bool) {
		t.Helper()
		mustWrite(t, from, func(w Write) error {
			got, err := w.Moves().Renew(p.id, id, &MoveTarget{URL: "https://target.example.com", CA: "new", Token: "new-secret"})
			if got != want {
				t.Errorf("renewed: %v, want %v", got, want)
			}
			return err
		})
	}
	aborted := func(want string) {
		t.Helper()
		if id, err := from.Programs().AbortedMove(t.Context(), p.id); err != nil || id != want {
			t.Errorf("the aborted move is %q, %v, want %q", id, err, want)
		}
	}
	renew(m.id, false)
	m.freeze(t)
	aborted("")
	mustWrite(t, from, func(w Write) error { return w.Moves().Abort(p.id, m.id) })
	aborted(m.id)
	renew(m.id, false)
	first := m.id
	m.id = webhook.NewID()
	m.freeze(t)
	aborted("")
	renew(first, false)
	renew(m.id, true)
	mustWrite(t, from, func(w Write) error { return w.Moves().Complete(p.id, m.id) })
	renew(m.id, true)
	all, err := from.Programs().OutgoingMoves(t.Context())
	if err != nil || len(all) != 1 || all[0].Token != "new-secret" || all[0].CA != "new" {
		t.Errorf("the moves are %+v, %v", all, err)
	}
	if move := from.Programs().Move(p.id); move == nil || move.CA != "new" {
		t.Errorf("the move is %+v", move)
	}
	mustWrite(t, from, func(w Write) error { return w.t.Exec("UPDATE program_moves SET token = x'00'") })
	all, err = from.Programs().OutgoingMoves(t.Context())
	if err != nil || len(all) != 1 || all[0].Token != "" || all[0].Unusable == nil {
		t.Errorf("with a damaged token: the moves are %+v, %v", all, err)
	}
	mustWrite(t, from, func(w Write) error { return w.Moves().Activated(p.id, m.id) })
	renew(m.id, false)
	aborted("")
}
