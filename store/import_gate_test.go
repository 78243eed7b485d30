package store

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"service/store/datadir"
	"service/store/record"
	"service/store/schema"
	"service/store/sqlite"
	"service/store/transit"
	"service/test/harness"
	"service/test/seed"
	"service/webhook"
)

// Every column of every table with records of programs has a check.
func TestColumnsAreChecked(t *testing.T) {
	all := tables(t, open(t))
	for i := range programTables {
		name := programTables[i].name
		want := slices.Clone(all[name])
		if name == "events" {
			want = append(want, "rowid")
		}
		slices.Sort(want)
		if got := transit.Columns(name); !slices.Equal(got, want) {
			t.Errorf("%s has the columns %q, and checks of %q", name, want, got)
		}
	}
}

// An import knows references to records by the names of their columns: a new column that happens to
// have such a name must have another one, or be listed here.
func TestRenumberedColumns(t *testing.T) {
	const added = 1000
	im := importer{
		deliveries: []numberedPart{{last: 1, added: added}}, events: added, incidents: added,
		subscriptions: map[int64]int64{1: 1 + added}, runs: map[int64]int64{1: 1 + added},
	}
	all := tables(t, open(t))
	all["events"] = append(all["events"], "rowid")
	var got []string
	for i := range programTables {
		table := &programTables[i]
		names := all[table.name]
		r, row := &importRows{column: make(map[string]int)}, make([]any, len(names))
		for i, name := range names {
			r.column[name], row[i] = i, int64(1)
		}
		im.renumber(table, r, row)
		for i, name := range names {
			if row[i] != int64(1) {
				got = append(got, table.name+"."+name)
			}
		}
	}
	slices.Sort(got)
	want := []string{
		"alerts.incident", "alerts.num", "attempts.delivery", "bulk_run_deliveries.delivery", "bulk_run_deliveries.run",
		"bulk_run_subscriptions.run", "bulk_run_waits.after_num", "bulk_run_waits.run", "bulk_runs.after_num", "bulk_runs.newest",
		"deliveries.num", "deliveries.subscription", "delivery_events.delivery", "events.rowid", "failures.incident",
		"failures.last_delivery", "incidents.last_delivery", "incidents.num", "old_urls.last_delivery", "recovered.delivery",
		"responses.delivery", "splits.delivery", "stored_responses.delivery", "undelivered.delivery", "undelivered.incident",
		"undelivered.subscription",
	}
	if !slices.Equal(got, want) {
		t.Errorf("an import converts the numbers of %q, want %q", got, want)
	}
}

// edit executes queries in a copy of an export, without its constraints.
func edit(t *testing.T, x *ProgramImport, queries ...string) *ProgramImport {
	t.Helper()
	c, err := tryEdit(t, x, queries...)
	must(t, err)
	return c
}

// tryEdit is edit for queries that SQLite may refuse.
func tryEdit(t *testing.T, x *ProgramImport, queries ...string) (*ProgramImport, error) {
	t.Helper()
	c := copyOf(t, x)
	db, err := sqlite.OpenPrivate(t.Context(), c.Path, schema.Current)
	must(t, err)
	err = execAll(t.Context(), db, append([]string{"PRAGMA ignore_check_constraints = ON"}, queries...)...)
	must(t, db.Close())
	return c, err
}

// everythingElse describes the records of other programs in a database.
func everythingElse(t *testing.T, s *Store, but string) string {
	t.Helper()
	var all strings.Builder
	for _, table := range []string{"programs", "tokens", "subscriptions", "events", "deliveries", "incidents", "alerts", "replays",
		"bulk_runs", "settings", "event_types", "admins", "alert_channels", "program_states", "program_moves"} {
		column := "program_id"
		switch table {
		case "programs":
			column = "id"
		case "settings":
			column = "iif(name IN ('commits', 'clock', 'counted'), ?1, '')"
		case "event_types", "admins", "alert_channels":
			column = "''"
		case "deliveries": // an erasure leaves one without a program, with the last num
			column = "iif(program_id = '', ?1, program_id)"
		}
		eachValues(t, s, "SELECT * FROM "+table+" WHERE "+column+" IS NOT ?1 ORDER BY 1", []any{but}, func(values []sql.RawBytes) {
			fmt.Fprintf(&all, "%s %q\n", table, values)
		})
	}
	return all.String()
}

// A handmade file is refused before anything is written, with an error that names the fault.
func TestForgedExports(t *testing.T) {
	from, p := exportSource(t)
	x := exported(t, from, p.id)
	s := open(t)
	other := fillProgram(t, s, "other-program")
	before := everythingElse(t, s, p.id)
	foreign := other.subscriptions[0].ID
	for name, test := range map[string]struct {
		edit []string
		want string
	}{
		"a platform token": {[]string{"UPDATE tokens SET program_id = NULL, scopes = 'platform'"},
			"table tokens, row 1, column program_id"},
		"a platform token of the program": {[]string{"UPDATE tokens SET scopes = 'platform'"}, "column scopes"},
		"a token of another program":      {[]string{"UPDATE tokens SET program_id = 'other-program'"}, "column program_id"},
		"a token with the id of another": {[]string{"DELETE FROM idempotency_keys",
			"UPDATE tokens SET id = '" + firstKey(other.tokens) + "' WHERE id = (SELECT min(id) FROM tokens)"},
			"Another program here has tokens"},
		"a subscription of another program": {[]string{"UPDATE subscriptions SET program_id = 'other-program'"},
			"table subscriptions, row 1"},
		"a subscription with the id of another": {[]string{"UPDATE subscriptions SET id = '" + foreign +
			"' WHERE id = (SELECT min(id) FROM subscriptions)"},
			"cannot be used"},
		"an event of another program": {[]string{"UPDATE events SET program_id = 'other-program' WHERE seq = 2"},
			"table events, row 2"},
		"a policy in the portal's origins": {[]string{
			"UPDATE programs SET portal_origins = 'https://a.example; script-src * ''unsafe-inline'''"},
			"table programs, row 1, column portal_origins"},
		"events that are no names": {[]string{"UPDATE subscriptions SET events = '[1,{}]'"}, "column events"},
		"a delivery of another": {[]string{"UPDATE deliveries SET subscription_id = '" + foreign + "'"},
			"table deliveries, row 1"},
		"a number that is unknown": {[]string{"UPDATE attempts SET delivery = 9999 " +
			"WHERE delivery = (SELECT max(delivery) FROM attempts)"}, "column delivery"},
		"a redelivery of another's": {[]string{"UPDATE deliveries SET redelivery_of = '" + firstDelivery(t, s, other.id) + "'"},
			"has deliveries"},
		"an incident that is unknown":  {[]string{"UPDATE failures SET incident = 77"}, "column incident"},
		"a cursor beyond the log":      {[]string{"UPDATE cursors SET seq = 1000000"}, "column seq"},
		"a time that is far ahead":     {[]string{"UPDATE deliveries SET created_at = 99999999999999"}, "column created_at"},
		"an age that is far ahead":     {[]string{"UPDATE deliveries SET counted_at = 99999999999"}, "column counted_at"},
		"a clock of another age":       {[]string{"UPDATE settings SET value = CAST('9000000000000' AS BLOB) WHERE name = 'ahead'"}, "its clock"},
		"a clock that is no number":    {[]string{"UPDATE settings SET value = x'ff' WHERE name = 'counted'"}, "its clock"},
		"numbers of a huge range":      {[]string{"UPDATE events SET seq = seq + (1 << 60)"}, "column seq"},
		"an event with another's name": {[]string{"UPDATE events SET name = 'content_published'"}, "column json"},
		"a header with a line break": {[]string{"UPDATE idempotency_keys SET location = " +
			"'/v2/x' || char(13, 10) || 'Set-Cookie: a=b'"}, "column location"},
		"a view for a table": {[]string{"ALTER TABLE losses RENAME TO gone", "CREATE VIEW losses AS WITH RECURSIVE n(i) AS (" +
			"SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT '' AS subscription_id, i AS events, 1 AS first_at, 1 AS last_at FROM n"},
			"is not the one of schema"},
		"a further table":   {[]string{"CREATE TABLE more (a)"}, "has no table more"},
		"a further trigger": {[]string{"CREATE TRIGGER t AFTER INSERT ON events BEGIN SELECT 1; END"}, "has no trigger t"},
		"another version":   {[]string{"PRAGMA user_version = " + fmt.Sprint(schema.Version-1)}, "cannot be used"},
		"two programs": {[]string{"INSERT INTO programs (id, created_at, updated_at) VALUES ('second', 1, 1)"},
			"not the export of one program"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Programs().Import(t.Context(), edit(t, x, test.edit...))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
			var refused *webhook.Error
			if !errors.Is(err, datadir.ErrUnusable) && !errors.As(err, &refused) {
				t.Errorf("got %v, want one that says that the file cannot be used", err)
			}
			if s.programStates.of(p.id).phase != phaseActive || everythingElse(t, s, p.id) != before {
				t.Error("something was written")
			}
		})
	}
	y, err := s.Programs().Import(t.Context(), copyOf(t, x))
	if err != nil || y.Events != len(p.events) {
		t.Errorf("the true export: got %+v, %v", y, err)
	}
}

func firstKey[V any](m map[string]V) string {
	for key := range m {
		return key
	}
	return ""
}

// firstDelivery returns the stored ID of a delivery of a program.
func firstDelivery(t *testing.T, s *Store, program string) (id string) {
	t.Helper()
	must(t, s.db.Scan(t.Context(), "SELECT id FROM deliveries WHERE program_id = ? LIMIT 1", []any{program}, &id))
	return id
}

// Whatever replaces one value of an export, no byte of another program changes, and nothing
// panics. An accepted program can be used and erased like any other.
func TestMutatedExports(t *testing.T) {
	from, p := exportSource(t)
	x := exported(t, from, p.id)
	s := open(t)
	other := fillProgram(t, s, "other-program")
	before := everythingElse(t, s, p.id)
	accepted, refused := 0, 0
	for _, query := range mutations(t, s, other, 300, math.MaxInt) {
		c, err := tryEdit(t, x, query)
		if err != nil {
			continue // SQLite refuses the value
		}
		_, err = s.Programs().Import(t.Context(), c)
		if checkMutated(t, s, p.id, before, query, err); err == nil {
			accepted++
		} else {
			refused++
		}
	}
	t.Logf("%d mutated exports refused, %d accepted", refused, accepted)
	if refused < 50 {
		t.Errorf("only %d were refused", refused)
	}
}

// mutations returns queries that each change one value of an export, at most short of them in a
// short run and long in another, drawn from all columns and many values.
func mutations(t *testing.T, s *Store, other *filledProgram, short, long int) (queries []string) {
	t.Helper()
	values := []string{"NULL", "0", "-1", "1", "7", "1 << 62", "0.5", "''", "'x'", "'other-program'", "'" + other.subscriptions[0].ID + "'",
		"'" + firstKey(other.tokens) + "'", "'" + firstDelivery(t, s, other.id) + "'", "'a' || char(13, 10) || 'b: c'", "'[1,{}]'", "'{}'",
		"x''", "x'00ff'", "zeroblob(100000)", "'platform'", "'https://127.0.0.1/'", "char(0)"}
	all := tables(t, s)
	for i := range programTables {
		table := programTables[i].name
		which := ""
		if hasRowID(table) {
			which = " WHERE rowid = (SELECT max(rowid) FROM " + table + ")"
		}
		for _, column := range all[table] {
			for _, value := range values {
				queries = append(queries, "UPDATE "+table+" SET "+column+" = "+value+which)
			}
		}
	}
	random := rand.New(rand.NewPCG(seed.Fresh(t), 0))
	random.Shuffle(len(queries), func(i, j int) { queries[i], queries[j] = queries[j], queries[i] })
	if testing.Short() {
		return queries[:short]
	}
	return queries[:min(long, len(queries))]
}

// checkMutated checks the result of importing a mutated program, and erases it. before describes
// everything else, and err is why the import was refused.
func checkMutated(t *testing.T, s *Store, id, before, query string, err error) {
	t.Helper()
	if err == nil {
		readEverything(t, s, id)
		checkForms(t, s, id, query)
		erase(t, s, id)
	}
	must(t, s.eraseAll(t.Context(), false))
	after := everythingElse(t, s, id)
	if after == before {
		return
	}
	known := strings.Split(before, "\n")
	for line := range strings.SplitSeq(after, "\n") {
		if !slices.Contains(known, line) {
			t.Logf("new: %s", line)
		}
	}
	t.Fatalf("%s changed another program; it returned %v", query, err)
}

// checkForms checks that the API of an installation that allows every address could have made the
// tokens, subscriptions and limits of a program.
func checkForms(t *testing.T, s *Store, id, query string) {
	t.Helper()
	everywhere, err := webhook.ParseDestinations([]string{"0.0.0.0/0", "::/0"})
	must(t, err)
	p, err := s.Programs().Lookup(t.Context(), id)
	must(t, err)
	faults := webhook.CheckPortalOrigins("portal_origins", p.PortalOrigins)
	must(t, s.db.Each(t.Context(),
		"SELECT "+record.SubscriptionColumns+" FROM subscriptions WHERE program_id = ? AND deleted_at IS NULL", []any{id},
		func(scan func(...any) error) error {
			sub, err := record.ScanSubscription(scan)
			rules := webhook.SubscriptionRules{AllowHTTP: true, Destinations: everywhere, Catalog: webhook.NewCatalog(), Kept: sub.Events}
			faults = append(faults, rules.Check(&webhook.SubscriptionFields{URL: &sub.URL, Events: &sub.Events, Description: &sub.Description,
				MaxInFlight: &sub.MaxInFlight, MaxPerSecond: &sub.MaxPerSecond, MaxEvents: &sub.MaxEvents}, true)...)
			return err
		}))
	tokens, err := s.Tokens().List(t.Context())
	must(t, err)
	for i := range tokens {
		for _, scope := range tokens[i].Scopes {
			if tokens[i].ProgramID == id && !slices.Contains(webhook.Scopes(), scope) {
				t.Errorf("%s gave a token the scope %q", query, scope)
			}
		}
	}
	if len(faults) > 0 {
		t.Errorf("%s was accepted, which the API does not: %+v", query, faults)
	}
}

// Whatever replaces one value of a part of a move, no byte of another program changes, and an
// accepted program can be used.
func TestMutatedParts(t *testing.T) {
	harness.Long(t)
	m, p := newMove(t)
	other := fillProgram(t, m.to, "other-program")
	before := everythingElse(t, m.to, p.id)
	x, first, err := m.from.Programs().ExportMove(t.Context(), p.id, 0)
	must(t, err)
	publish(t, m.from, p.id, "content_updated")
	attempt(t, m.from, &p.subscriptions[0], 200, 10)
	changes, err := x.Changes(t.Context())
	must(t, err)
	publish(t, m.from, p.id, "content_updated")
	m.freeze(t)
	rest, err := x.Rest(t.Context())
	must(t, err)
	var parts [3]*ProgramImport
	for i, part := range []*ProgramExport{first, changes, rest} {
		parts[i] = copyOf(t, &ProgramImport{Path: part.Path, Key: part.Key})
		must(t, part.Remove())
	}
	must(t, x.Close())

	// arrive moves the program with these parts.
	arrive := func(parts [3]*ProgramImport) error {
		r, err := m.to.Programs().Receive(t.Context(), m.id, copyOf(t, parts[0]))
		if err != nil {
			return err
		}
		if err = r.Add(t.Context(), copyOf(t, parts[1])); err == nil {
			_, err = r.Complete(t.Context(), copyOf(t, parts[2]))
		}
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
		return m.to.Write(t.Context(), func(w Write) error {
			_, err := w.Moves().Activate(p.id, m.id)
			return err
		})
	}
	err = arrive(parts)
	must(t, err)
	checkMutated(t, m.to, p.id, before, "nothing", err)
	accepted, refused := 0, 0
	for next, query := range mutations(t, m.to, other, 100, 800) {
		mutated, i := parts, next%len(parts)
		if mutated[i], err = tryEdit(t, parts[i], query); err != nil {
			continue // SQLite refuses the value
		}
		err = arrive(mutated)
		if checkMutated(t, m.to, p.id, before, fmt.Sprintf("%s in part %d", query, i), err); err == nil {
			accepted++
		} else {
			refused++
		}
	}
	t.Logf("%d moves with a mutated part refused, %d accepted", refused, accepted)
	if refused < 5 || accepted < 5 {
		t.Errorf("%d were refused and %d accepted, want many of each", refused, accepted)
	}
}

// hasRowID reports whether a table has numbered rows.
func hasRowID(table string) bool {
	return slices.Contains([]string{"events", "deliveries", "incidents", "alerts", "bulk_runs", "idempotency_keys", "responses", "splits",
		"recovered"}, table)
}

// readEverything reads all records of a program that lists and the dispatcher read.
func readEverything(t *testing.T, s *Store, id string) {
	t.Helper()
	ctx := t.Context()
	var errs [8]error
	_, errs[0] = s.Queues().All(ctx)
	_, _, errs[1] = s.Deliveries().PageAll(ctx, query(t, webhook.AllDeliveryList, "page[size]=100"))
	_, _, errs[2] = s.Events().PageAll(ctx, query(t, webhook.EventList, "page[size]=100"))
	_, _, errs[3] = s.Subscriptions().Page(ctx, id, query(t, webhook.SubscriptionList, ""))
	_, _, errs[4] = s.BulkRuns().Page(ctx, id, query(t, webhook.BulkRunList, ""))
	_, _, errs[5] = s.Incidents().Page(ctx, id, query(t, webhook.IncidentList, ""))
	_, _, errs[6] = s.Tokens().Page(ctx, id, query(t, webhook.TokenList, ""))
	_, _, errs[7] = s.Programs().Page(ctx, query(t, webhook.ProgramList, ""))
	must(t, errors.Join(errs[:]...))
}

// A part of a move is checked like a file: it changes nothing of another program, which may already
// be here, and the reception can continue.
func TestForgedParts(t *testing.T) {
	m, p := newMove(t)
	other := fillProgram(t, m.to, "other-program")
	before := everythingElse(t, m.to, p.id)
	foreign, token := other.subscriptions[0], firstKey(other.tokens)
	for name, query := range map[string]string{
		"the URL of another program's subscription": "UPDATE subscriptions SET id = '" + foreign.ID +
			"' WHERE id = (SELECT min(id) FROM subscriptions)",
		"the program of another's token":    "UPDATE tokens SET id = '" + token + "' WHERE id = (SELECT min(id) FROM tokens)",
		"a platform token":                  "UPDATE tokens SET program_id = NULL, scopes = 'platform'",
		"a subscription of another program": "UPDATE subscriptions SET program_id = 'other-program'",
	} {
		t.Run(name, func(t *testing.T) {
			aborts := count(t, m.to, "SELECT count(*) FROM audit WHERE action = 'program.move_abort'")
			x, r := m.first(t)
			part, err := x.Changes(t.Context())
			must(t, err)
			if err := r.Add(t.Context(), edit(t, &ProgramImport{Path: part.Path, Key: part.Key}, query)); err == nil {
				t.Error("the part was accepted")
			}
			must(t, errors.Join(part.Remove(), x.Close(), r.Close()))
			must(t, m.to.eraseAll(t.Context(), true))
			wantNumber(t, "entries about aborted moves in the audit log",
				count(t, m.to, "SELECT count(*) FROM audit WHERE action = 'program.move_abort'"), aborts+1)
			if everythingElse(t, m.to, p.id) != before {
				t.Error("another program has changed")
			}
		})
	}
}

// The audit log names each imported token and subscription before they can be used.
func TestImportIsAudited(t *testing.T) {
	from, p := exportSource(t)
	s := open(t)
	x := copyOf(t, exported(t, from, p.id))
	x.Audit = webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionProgramImport}
	y, err := s.Programs().Import(t.Context(), x)
	must(t, err)
	if len(y.Named) != len(p.tokens)+len(p.subscriptions) {
		t.Errorf("got %q, want each token and each subscription", y.Named)
	}
	for _, id := range append(slices.Collect(maps.Keys(p.tokens)), p.subscriptions[0].ID, p.subscriptions[3].ID) {
		entries, _, err := s.Audit().Page(t.Context(), query(t, webhook.AuditList, "filter[subject_id]="+id))
		if err != nil || len(entries) != 1 || entries[0].ProgramID != p.id || !strings.Contains(entries[0].Detail, id) {
			t.Errorf("%s: got %+v, %v", id, entries, err)
		}
	}
}
