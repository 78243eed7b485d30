package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"service/store/list"
	"service/store/record"
	"service/webhook"
)

// The answers of operations on a program, besides "" for success.
const (
	missing  = string(webhook.CodeNotFound)
	conflict = string(webhook.CodeConflict)
	retry    = string(webhook.CodeUnavailable)
	invalid  = string(webhook.CodeUnauthenticated)
	nothing  = "nothing" // the list or queue contains none of its records
)

// TestPhases checks what each phase of a program allows: every operation of a kind gives the same
// answer, in this process and in the next.
func TestPhases(t *testing.T) {
	for _, tt := range []struct {
		phase phase
		path  []phase // from active
		stays phase   // in the next process

		record, change, list, token, admin, erase string
	}{
		{phaseActive, nil, phaseActive, "", "", "", "", "", ""},
		{phaseErasing, []phase{phaseErasing}, phaseErasing, missing, conflict, nothing, invalid, "", ""},
		{phaseImporting, []phase{phaseImporting}, phaseErasing, missing, conflict, nothing, invalid, "", conflict},
		{phaseMoving, []phase{phaseMoving}, phaseMoving, retry, retry, nothing, "", "", retry},
		{phaseMoved, []phase{phaseMoving, phaseMoved}, phaseMoved, retry, retry, nothing, "", "", retry},
		{phaseLeaving, []phase{phaseMoving, phaseMoved, phaseLeaving}, phaseLeaving, missing, conflict, nothing, "", "", ""},
		{phaseGone, []phase{phaseMoving, phaseMoved, phaseLeaving, phaseGone}, phaseGone, missing, conflict, nothing, "", "", ""},
		{phaseReceiving, []phase{phaseMoving, phaseMoved, phaseLeaving, phaseGone, phaseReceiving}, phaseLeaving,
			missing, conflict, nothing, "", "", conflict},
		{phaseArriving, []phase{phaseImporting, phaseArriving}, phaseArriving, retry, retry, nothing, "", "", ""},
	} {
		t.Run(fmt.Sprint(tt.phase, phases[tt.phase].stored), func(t *testing.T) {
			s := open(t)
			p := fillProgram(t, s, "p")
			for _, next := range tt.path {
				enterPhase(t, s, p.id, next)
			}
			if got := s.programStates.of(p.id).phase; got != tt.phase {
				t.Fatalf("the phase is %d", got)
			}
			for name, op := range programOperations(t, s, p) {
				var want string
				switch op.kind {
				case "record":
					want = tt.record
				case "change":
					want = tt.change
				case "list":
					want = tt.list
				case "token":
					want = tt.token
				case "admin":
					want = tt.admin
				case "erase":
					want = tt.erase
				}
				if got := answerOf(op.do()); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			s.programStates.current.Store(nil)
			must(t, s.openProgramStates(t.Context()))
			if got := s.programStates.of(p.id).phase; got != tt.stays {
				t.Errorf("the next process has it in phase %d, want %d", got, tt.stays)
			}
		})
	}
}

// enterPhase changes the phase of a program, with the row of its move.
func enterPhase(t *testing.T, s *Store, id string, next phase) {
	t.Helper()
	must(t, s.writer.do(func(t *tx) error {
		state := programState{phase: next, at: s.clock.Now(), out: t.state(id).out}
		var err error
		switch next {
		case phaseMoving:
			state.out = storedMove{id: "move", url: "https://target.example"}
			err = t.Exec("INSERT INTO program_moves (program_id, direction, id, url, ca, began_at) VALUES (?, 'out', 'move', ?, '', 1)",
				id, state.out.url)
		case phaseArriving:
			state.in = "move"
			err = t.Exec("INSERT INTO program_moves (program_id, direction, id, url, ca, began_at) VALUES (?, 'in', 'move', '', '', 1)", id)
		case phaseLeaving:
			err = t.Exec("UPDATE program_moves SET activated_at = 1")
		case phaseGone:
			err = t.Exec("UPDATE program_moves SET emptied_at = 1")
		case phaseReceiving:
			err = t.Exec("UPDATE program_moves SET emptied_at = NULL")
		}
		return errors.Join(err, s.setProgramState(t, id, state))
	}))
}

var (
	errUndo    = errors.New("undo this write")
	errNothing = errors.New(nothing)
)

// answerOf returns the code of a *webhook.Error, "" if err only undoes the write.
func answerOf(err error) string {
	var e *webhook.Error
	switch {
	case errors.As(err, &e):
		return string(e.Code)
	case err == nil || errors.Is(err, errUndo):
		return ""
	}
	return err.Error()
}

type programOperation struct {
	kind string
	do   func() error
}

// programOperations returns operations on a program, by name. Writes among them are rolled back.
func programOperations(t *testing.T, s *Store, p *filledProgram) map[string]programOperation {
	t.Helper()
	ctx, sub := t.Context(), p.subscriptions[0]
	var delivery, incident, token string
	must(t, s.db.Scan(ctx, "SELECT id FROM deliveries WHERE program_id = ? LIMIT 1", []any{p.id}, (*record.DeliveryID)(&delivery)))
	must(t, s.db.Scan(ctx, "SELECT id FROM incidents WHERE program_id = ? LIMIT 1", []any{p.id}, &incident))
	must(t, s.db.Scan(ctx, "SELECT id FROM tokens WHERE program_id = ? LIMIT 1", []any{p.id}, &token))
	all := make(map[string]programOperation)
	read := func(name string, do func() error) { all[name] = programOperation{"record", do} }
	change := func(name string, do func(Write) error) {
		all[name] = programOperation{"change", func() error {
			return s.Write(ctx, func(w Write) error { return errors.Join(do(w), errUndo) })
		}}
	}
	show := func(name string, do func() (int, error)) {
		all[name] = programOperation{"list", func() error {
			n, err := do()
			if n == 0 && err == nil {
				err = errNothing
			}
			return err
		}}
	}
	read("read a subscription", func() error { _, err := s.Subscriptions().Get(ctx, p.id, sub.ID); return err })
	read("look at a subscription", func() error { _, err := s.Subscriptions().View(ctx, sub.ID, 5); return err })
	read("read an event", func() error { _, err := s.Events().Get(ctx, p.id, p.events[0].ID); return err })
	read("look at a delivery", func() error { _, err := s.Deliveries().View(ctx, delivery); return err })
	read("look at an incident", func() error { _, err := s.Incidents().Get(ctx, "", incident); return err })
	read("read an incident", func() error { _, err := s.Incidents().Get(ctx, p.id, incident); return err })
	read("look at a token", func() error { _, err := s.Tokens().Get(ctx, token); return err })
	all["change a subscription"] = programOperation{"record", func() error {
		return s.Write(ctx, func(w Write) error {
			_, err := w.Subscriptions().Update(p.id, sub.ID, &webhook.SubscriptionFields{}, webhook.AuditEntry{})
			return errors.Join(err, errUndo)
		})
	}}

	var by webhook.AuditEntry
	change("change it", func(w Write) error { _, _, err := w.Programs().Put(p.id, &webhook.ProgramFields{}, by); return err })
	change("subscribe", func(w Write) error {
		url, names := "https://a.example/", []string{"content_updated"}
		_, _, err := w.Subscriptions().Create(p.id, "ada", &webhook.SubscriptionFields{URL: &url, Events: &names}, 0, webhook.AuditEntry{})
		return err
	})
	change("publish", func(w Write) error {
		_, err := w.Publish(p.id, []webhook.Event{event("content_updated")})
		return err
	})
	change("create a token", func(w Write) error {
		_, _, err := w.Tokens().Create(webhook.NewToken{ProgramID: p.id, UserID: "ada", Scopes: webhook.Scopes()}, webhook.AuditEntry{})
		return err
	})
	change("revoke a token", func(w Write) error { _, err := w.Tokens().Revoke(token, webhook.AuditEntry{}); return err })
	change("link to the portal", func(w Write) error {
		_, _, err := w.Programs().CreatePortalLink(webhook.NewPortalLink{ProgramID: p.id, Role: webhook.PortalRead}, webhook.AuditEntry{})
		return err
	})
	change("share a delivery", func(w Write) error { return shareIn(w, p.id, delivery) })
	change("move", func(w Write) error { return w.Moves().Begin(p.id, "other", &MoveTarget{URL: "https://b.example"}) })
	all["check before a move"] = programOperation{"change", func() error { return s.Programs().CheckMovable(ctx, p.id) }}
	all["export"] = programOperation{"change", func() error { return s.checkProgram(ctx, p.id) }}

	listOperations(t, s, sub.ID, show)
	all["authenticate"] = programOperation{"token", func() error { _, err := s.Tokens().Authenticate(ctx, p.tokens[token]); return err }}
	all["look at it"] = programOperation{"admin", func() error { _, err := s.Programs().Lookup(ctx, p.id); return err }}
	all["list it"] = programOperation{"admin", func() error {
		programs, _, err := s.Programs().View(ctx, "", query(t, webhook.AllProgramList, ""))
		if len(programs) != 1 && err == nil {
			err = errNothing
		}
		return err
	}}
	all["erase"] = programOperation{"erase", func() error {
		return s.Write(ctx, func(w Write) error {
			_, err := w.Programs().Erase(p.id, webhook.AuditEntry{})
			return errors.Join(err, errUndo)
		})
	}}
	return all
}

// listOperations passes to show the operations whose result is empty for a closed program.
func listOperations(t *testing.T, s *Store, subscriptionID string, show func(name string, do func() (int, error))) {
	t.Helper()
	ctx := t.Context()
	show("list programs for the switch", func() (int, error) { ids, err := s.Programs().IDs(ctx, 10); return len(ids), err })
	show("list subscriptions", func() (int, error) {
		found, _, err := s.Subscriptions().PageAll(ctx, "", query(t, webhook.AllSubscriptionList, ""))
		return len(found), err
	})
	show("list deliveries", func() (int, error) {
		found, _, err := s.Deliveries().PageAll(ctx, query(t, webhook.AllDeliveryList, ""))
		return len(found), err
	})
	show("list incidents", func() (int, error) {
		found, _, err := s.Incidents().Page(ctx, "", query(t, webhook.AllIncidentList, ""))
		return len(found), err
	})
	show("list tokens", func() (int, error) { found, err := s.Tokens().List(ctx); return len(found), err })
	show("search", func() (int, error) { found, err := s.Search().Prefix(ctx, subscriptionID, 1); return len(found), err })
	show("deliver", func() (int, error) { queues, err := s.Queues().All(ctx); return len(queues), err })
	show("deliver one", func() (int, error) {
		_, err := s.Queues().Get(ctx, subscriptionID)
		if answerOf(err) == missing {
			return 0, nil
		}
		return 1, err
	})
	show("show a shared delivery", func() (int, error) {
		var n int
		return n, s.db.Scan(ctx, "SELECT count(*) FROM shares WHERE program_id"+list.CanBeUsed, nil, &n)
	})
}

// TestPhaseTransitions checks that a program can only enter a phase that follows its own, including
// one set by an earlier write of the same commit.
func TestPhaseTransitions(t *testing.T) {
	s := openProgram(t)
	for from, rules := range phases {
		for to := range phases {
			from, to := phase(from), phase(to)
			s.programStates.set("p", programState{phase: from, at: time.Now()})
			err := s.writer.do(func(t *tx) error {
				if err := s.setProgramState(t, "p", programState{phase: to, at: time.Now()}); err != nil {
					return err
				}
				if got := t.state("p").phase; got != to {
					return fmt.Errorf("phase %d is %d in the same commit", to, got)
				}
				return errUndo
			})
			if allowed := from == to || slices.Contains(rules.next, to); errors.Is(err, errUndo) != allowed {
				t.Errorf("from %d to %d: %v", from, to, err)
			}
			if got := s.programStates.of("p").phase; got != from {
				t.Errorf("from %d to %d: the write was undone, and it is in %d", from, to, got)
			}
		}
	}
}
