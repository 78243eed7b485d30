package store

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"service/store/record"
	"service/webhook"
)

// TestHiddenPrograms checks that admins see nothing of a program that is being erased or imported,
// in lists, counts and by ID, except in the list of programs. Afterwards it checks that nothing was
// removed: the test must have had something to hide.
func TestHiddenPrograms(t *testing.T) {
	for _, hidden := range []phase{phaseErasing, phaseImporting} {
		t.Run(phases[hidden].stored, func(t *testing.T) {
			hideProgram(t, hidden)
		})
	}
}

// hideProgram compares the visible records of a program before, in and after a state that hides it.
func hideProgram(t *testing.T, hidden phase) {
	t.Helper()
	s := opened(t, Config{Dir: t.TempDir(), SendAlerts: true})
	kept, gone := fillProgram(t, s, "kept-program"), fillProgram(t, s, "gone-program")
	for _, p := range []*filledProgram{kept, gone} {
		sub := p.subscriptions[1]
		must(t, s.writer.do(func(t *tx) error {
			return s.alert(t, &webhook.Alert{Name: webhook.AlertFailing, Subscription: sub}, 0)
		}))
	}
	visible := seen(t, s, gone)
	for name, n := range visible {
		if n == 0 {
			t.Errorf("%s has nothing of the program to hide", name)
		}
	}
	totals, err := s.Figures().Totals(t.Context())
	must(t, err)
	setState := func(state programState) {
		must(t, s.writer.do(func(t *tx) error { return s.setProgramState(t, gone.id, state) }))
	}
	setState(programState{phase: hidden, at: time.Now()})
	for name, n := range seen(t, s, gone) {
		if n != 0 {
			t.Errorf("%s shows the program, %d times", name, n)
		}
	}
	for name, n := range seen(t, s, kept) {
		if n == 0 {
			t.Errorf("%s does not show the other program", name)
		}
	}
	half, err := s.Figures().Totals(t.Context())
	must(t, err)
	if 2*half.Subscriptions != totals.Subscriptions || 2*half.Waiting != totals.Waiting {
		t.Errorf("the totals are %+v, want half of %+v", half, totals)
	}
	programs, n, err := s.Programs().View(t.Context(), "", query(t, webhook.AllProgramList, ""))
	must(t, err)
	if i := slices.IndexFunc(programs, func(p webhook.Program) bool { return p.ID == gone.id }); n != 2 || i < 0 ||
		programs[i].Status() != phases[hidden].stored {
		t.Errorf("admins see %d programs, %+v; want both, one %s", n, programs, phases[hidden].stored)
	}
	if p, err := s.Programs().Lookup(t.Context(), gone.id); err != nil || p.Status() != phases[hidden].stored {
		t.Errorf("an admin looks at %+v, %v", p, err)
	}
	setState(programState{})
	for name, n := range seen(t, s, gone) {
		if n != visible[name] {
			t.Errorf("%s has %d of the program afterwards, want %d", name, n, visible[name])
		}
	}
}

// seen counts the program's records in each list that admins see, and in each record read by ID.
func seen(t *testing.T, s *Store, p *filledProgram) map[string]int {
	t.Helper()
	found := make(map[string]int)
	count := func(name string, v any, err error) {
		t.Helper()
		must(t, err)
		b, err := json.Marshal(v)
		must(t, err)
		found[name] += strings.Count(string(b), p.id)
	}
	ctx, mine := t.Context(), func(id string) bool { return id == p.id }
	subs, _, err := s.Subscriptions().PageAll(ctx, "", query(t, webhook.AllSubscriptionList, "page[size]=100"))
	count("subscriptions", subs, err)
	deliveries, _, err := s.Deliveries().PageAll(ctx, query(t, webhook.AllDeliveryList, "page[size]=100"))
	count("deliveries", deliveries, err)
	incidents, _, err := s.Incidents().Page(ctx, "", query(t, webhook.AllIncidentList, "page[size]=100"))
	count("incidents", incidents, err)
	open, err := s.Incidents().Open(ctx, "", 100, 10)
	count("open incidents", open, err)
	n, err := s.Incidents().CountOpen(ctx, "")
	must(t, err)
	if n != len(open) {
		t.Errorf("%d open incidents are counted, and %d listed", n, len(open))
	}
	losses, totals, err := s.Subscriptions().Losses(ctx, 100)
	count("losses", losses, err)
	if totals.Subscriptions != len(losses) {
		t.Errorf("%d losses are counted, and %d listed", totals.Subscriptions, len(losses))
	}
	alerts, err := s.Alerts().Last(ctx, 100)
	count("alerts", alerts, err)
	tokens, err := s.Tokens().List(ctx)
	count("all tokens", tokens, err)
	tokens, n, err = s.Tokens().Page(ctx, "", query(t, webhook.TokenList, "page[size]=100"))
	count("tokens", tokens, err)
	if n != len(tokens) {
		t.Errorf("%d tokens are counted, and %d listed", n, len(tokens))
	}
	tokens, err = s.Tokens().After(ctx, "", query(t, webhook.TokenList, "page[size]=100"), nil)
	count("exported tokens", tokens, err)
	ids, err := s.Programs().IDs(ctx, 100)
	count("the switch of programs", ids, err)
	bySubs, byPrograms, err := s.Search().Text(ctx, p.id, 100)
	count("a search for programs", byPrograms, err)
	count("a search for subscriptions", bySubs, err)

	// Records by their IDs.
	one := func(name, programID string, err error) {
		if err == nil && mine(programID) {
			found[name]++
		} else if err != nil {
			wantCode(t, err, webhook.CodeNotFound)
		}
	}
	u, err := s.Subscriptions().View(ctx, p.subscriptions[0].ID, 5)
	one("a subscription", u.ProgramID, err)
	var delivery, incident, token string
	must(t, s.db.Scan(ctx, "SELECT id FROM deliveries WHERE program_id = ? LIMIT 1", []any{p.id}, (*record.DeliveryID)(&delivery)))
	must(t, s.db.Scan(ctx, "SELECT id FROM incidents WHERE program_id = ? LIMIT 1", []any{p.id}, &incident))
	must(t, s.db.Scan(ctx, "SELECT id FROM tokens WHERE program_id = ? LIMIT 1", []any{p.id}, &token))
	d, err := s.Deliveries().View(ctx, delivery)
	one("a delivery", d.ProgramID, err)
	i, err := s.Incidents().Get(ctx, "", incident)
	one("an incident", i.ProgramID, err)
	tk, err := s.Tokens().Get(ctx, token)
	one("a token", tk.ProgramID, err)
	e, err := s.Events().View(ctx, p.id, p.events[0].ID, "")
	one("an event", e.ProgramID, err)
	return found
}

// TestAlertsOfHiddenPrograms checks that no alert of a program that is being erased is sent, on any
// channel, that none is created, and that another program's alerts are sent.
func TestAlertsOfHiddenPrograms(t *testing.T) {
	s := opened(t, Config{Dir: t.TempDir(), SendAlerts: true})
	var subs []webhook.Subscription
	for _, id := range []string{"gone", "kept"} {
		program(t, s, id)
		sub, err := create(s, id, "content_updated")
		must(t, err)
		subs = append(subs, sub)
	}
	must(t, s.Write(t.Context(), func(w Write) error {
		_, err := w.Channels().Create(webhook.AlertChannel{Kind: webhook.ChannelSlack, Name: "c", URL: "https://chat.example/x",
			Alerts: webhook.AlertNames(), Active: true})
		return err
	}))
	alert := func(sub webhook.Subscription) {
		must(t, s.writer.do(func(t *tx) error { return s.alert(t, &webhook.Alert{Name: webhook.AlertFailing, Subscription: sub}, 0) }))
	}
	alert(subs[0])
	erase(t, s, "gone")
	if queues, err := s.Alerts().Queues(t.Context()); len(queues) > 0 || err != nil {
		t.Fatalf("got queues %v, %v, want none", queues, err)
	}
	alert(subs[0])
	wantNumber(t, "alerts", count(t, s, "SELECT count(*) FROM alerts"), 1) // the one from before the erasure
	alert(subs[1])
	claims := claimAlerts(t, s)
	if len(claims) != 2 || claims[0].ProgramID != "kept" || claims[1].ProgramID != "kept" {
		t.Fatalf("got claims %+v, want the alert of the other program, for --alert-url and the channel", claims)
	}
	must(t, s.eraseAll(t.Context(), false))
	wantNumber(t, "alerts and sends that are left", // those of the other program
		count(t, s, "SELECT count(*) FROM alert_sends")+count(t, s, "SELECT count(*) FROM alerts"), 2)
}

// TestProgramView compares the filters and orders of the list of programs with a model.
func TestProgramView(t *testing.T) {
	s := open(t)
	names := map[string]string{"a": "Müller", "B": "muller_x", "c-100%": "", "d": "ZOO", "e": "zoo_2"}
	for id, name := range names {
		must(t, s.Write(t.Context(), func(w Write) error {
			_, _, err := w.Programs().Put(id, &webhook.ProgramFields{Name: &name}, webhook.AuditEntry{})
			return err
		}))
	}
	sub, err := create(s, "d", "content_updated")
	must(t, err)
	execute(t, s, "UPDATE subscriptions SET status = 'failing' WHERE id = ?", sub.ID)
	for q, want := range map[string]string{
		"sort=id":                                    "B a c-100% d e",
		"sort=-id":                                   "e d c-100% a B",
		"sort=name":                                  "c-100% a d B e",
		"sort=id&page[size]=2&page[number]=2":        "c-100% d",
		"sort=id&filter[program_name]=zoo":           "d e",
		"sort=id&filter[program_name]=M%C3%BCl":      "a",
		"sort=id&filter[program_name]=_":             "B e",
		"sort=id&filter[program_name]=%25":           "c-100%",
		"sort=id&filter[program_name]=muller,C-1":    "B c-100%",
		"sort=id&filter[failing]=true":               "d",
		"sort=id&filter[failing]=false":              "B a c-100% e",
		"filter[created_at.to]=2001-01-01T00:00:00Z": "",
	} {
		programs, _, err := s.Programs().View(t.Context(), "", query(t, webhook.AllProgramList, q))
		must(t, err)
		var ids []string
		for _, p := range programs {
			ids = append(ids, p.ID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: got %q, want %q", q, got, want)
		}
	}
	one, n, err := s.Programs().View(t.Context(), "a", query(t, webhook.AllProgramList, ""))
	if err != nil || n != 1 || len(one) != 1 || one[0].ID != "a" {
		t.Errorf("one program: %v, %d, %v", one, n, err)
	}
}
