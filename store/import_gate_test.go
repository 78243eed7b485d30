package store

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"service/store/sqlite"
	"service/store/transit"
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

// edit executes queries in a copy of an export, which its constraints do not stop.
func edit(t *testing.T, x *ProgramImport, queries ...string) *ProgramImport {
	t.Helper()
	c := copyOf(t, x)
	db, err := sqlite.OpenPrivate(t.Context(), c.Path, schema)
	must(t, err)
	must(t, execAll(t.Context(), db, append([]string{"PRAGMA ignore_check_constraints = ON"}, queries...)...))
	must(t, db.Close())
	return c
}

// everythingElse describes what a database has of other programs.
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
		case "deliveries": // an erasure leaves one without a program, which holds the last num
			column = "iif(program_id = '', ?1, program_id)"
		}
		rows, err := s.db.Readers().QueryContext(t.Context(), "SELECT * FROM "+table+" WHERE "+column+" IS NOT ?1 ORDER BY 1", but)
		must(t, err)
		columns, err := rows.Columns()
		must(t, err)
		for rows.Next() {
			values, dest := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
			for i := range values {
				dest[i] = &values[i]
			}
			must(t, rows.Scan(dest...))
			fmt.Fprintf(&all, "%s %q\n", table, values)
		}
		must(t, errors.Join(rows.Err(), rows.Close()))
	}
	return all.String()
}

// A file that was made by hand is refused with an error that names what is wrong, before anything of
// it is written.
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
		"another version":   {[]string{"PRAGMA user_version = " + fmt.Sprint(schemaVersion-1)}, "cannot be used"},
		"two programs": {[]string{"INSERT INTO programs (id, created_at, updated_at) VALUES ('second', 1, 1)"},
			"not the export of one program"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Programs().Import(t.Context(), edit(t, x, test.edit...))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
			var refused *webhook.Error
			if !errors.Is(err, ErrUnusable) && !errors.As(err, &refused) {
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

// firstDelivery returns the stored id of a delivery of a program.
func firstDelivery(t *testing.T, s *Store, program string) (id string) {
	t.Helper()
	must(t, s.db.Scan(t.Context(), "SELECT id FROM deliveries WHERE program_id = ? LIMIT 1", []any{program}, &id))
	return id
}

// Whatever one value of an export is replaced by, no byte of another program changes, and nothing
// panics. What is accepted can be used and erased like any program.
func TestMutatedExports(t *testing.T) {
	from, p := exportSource(t)
	x := exported(t, from, p.id)
	s := open(t)
	other := fillProgram(t, s, "other-program")
	before := everythingElse(t, s, p.id)
	values := []string{"NULL", "0", "-1", "1", "7", "1 << 62", "0.5", "''", "'x'", "'other-program'", "'" + other.subscriptions[0].ID + "'",
		"'" + firstKey(other.tokens) + "'", "'" + firstDelivery(t, s, other.id) + "'", "'a' || char(13, 10) || 'b: c'", "'[1,{}]'", "'{}'",
		"x''", "x'00ff'", "zeroblob(100000)", "'platform'", "'https://127.0.0.1/'", "char(0)"}
	random := rand.New(rand.NewPCG(seed.Fresh(t), 0))
	accepted, refused := 0, 0
	all := tables(t, s)
	for i := range programTables {
		table := programTables[i].name
		for _, column := range all[table] {
			few := values
			if testing.Short() {
				few = []string{values[random.IntN(len(values))]}
			}
			for _, value := range few {
				query := fmt.Sprintf("UPDATE %s SET %s = %s", table, column, value)
				if hasRowID(table) {
					query += " WHERE rowid = (SELECT max(rowid) FROM " + table + ")"
				}
				c, err := tryEdit(t, x, query)
				if err != nil {
					continue // SQLite refuses the value
				}
				if importMutated(t, s, c, p.id, before, query) {
					accepted++
				} else {
					refused++
				}
			}
		}
	}
	t.Logf("%d mutated exports refused, %d accepted", refused, accepted)
	if refused < 50 {
		t.Errorf("only %d were refused", refused)
	}
}

// importMutated imports a mutated export and erases it again. before describes everything else. It
// returns whether the export was accepted.
func importMutated(t *testing.T, s *Store, x *ProgramImport, id, before, query string) bool {
	t.Helper()
	_, err := s.Programs().Import(t.Context(), x)
	if err == nil {
		readEverything(t, s, id)
		erase(t, s, id)
	}
	must(t, s.eraseAll(t.Context(), false))
	if after := everythingElse(t, s, id); after != before {
		known := strings.Split(before, "\n")
		for line := range strings.SplitSeq(after, "\n") {
			if !slices.Contains(known, line) {
				t.Logf("new: %s", line)
			}
		}
		t.Fatalf("%s changed another program; the import returned %v", query, err)
	}
	return err == nil
}

// hasRowID reports whether a table has numbered rows.
func hasRowID(table string) bool {
	return slices.Contains([]string{"events", "deliveries", "incidents", "alerts", "bulk_runs", "idempotency_keys", "responses", "splits",
		"recovered"}, table)
}

// tryEdit is edit for a query that SQLite may refuse.
func tryEdit(t *testing.T, x *ProgramImport, query string) (*ProgramImport, error) {
	t.Helper()
	c := copyOf(t, x)
	db, err := sqlite.OpenPrivate(t.Context(), c.Path, schema)
	must(t, err)
	err = execAll(t.Context(), db, "PRAGMA ignore_check_constraints = ON", query)
	must(t, db.Close())
	return c, err
}

// readEverything reads what lists and the dispatcher read of a program.
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

// A part of a move is checked as a file is: it changes nothing of another program, which may be here
// already, and the reception can go on.
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
			if n := count(t, m.to, "SELECT count(*) FROM audit WHERE action = 'program.move_abort'"); n != aborts+1 {
				t.Errorf("%d entries about aborted moves in the audit log, want %d", n, aborts+1)
			}
			if everythingElse(t, m.to, p.id) != before {
				t.Error("another program has changed")
			}
		})
	}
}

// The audit log names each token and each subscription that came in, before they can be used.
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
