package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"service/store/clock"
	"service/store/datadir"
	"service/store/record"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// otherTables have no records of programs, or follow from tables that have.
var otherTables = []string{
	"settings", "admins", "sessions", "audit", "certificate_files", "certificate_locks", "alert_channels", "alert_sends", "program_states",
	"program_moves", "imported_ranges", "idempotency_use", "response_use", "event_types", "invitations", "passkeys",
	"portal_links", "portal_sessions", "shares", "audit_anchor", "retention_marks", "blanks",
}

// TestProgramTables checks that every table has a place in exports.
func TestProgramTables(t *testing.T) {
	s := open(t)
	known := slices.Clone(otherTables)
	for _, p := range programTables {
		known = append(known, p.name)
	}
	for table := range tables(t, s) {
		if !slices.Contains(known, table) {
			t.Errorf("the table %s is neither in programTables, and so part of an export, nor in otherTables; "+
				"if it has records of programs, erasure must remove them too", table)
		}
	}
}

// described is everything that a program's partner, or its subscriptions' receivers, can see.
type described map[string]string

func (d described) put(key string, value any) {
	b, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	d[key] = string(b)
}

// describeProgram reads a program.
func describeProgram(t *testing.T, s *Store, p *filledProgram) described {
	t.Helper()
	d := make(described)
	subs, total, err := s.Subscriptions().Page(t.Context(), p.id, query(t, webhook.SubscriptionList, "page[size]=100"))
	must(t, err)
	d.put("subscriptions", subs)
	d.put("total", total)
	events, _, err := s.Events().Page(t.Context(), p.id, query(t, webhook.EventList, "page[size]=100"))
	must(t, err)
	for i := range events {
		d.put("event "+events[i].ID, events[i])
		d["event JSON "+events[i].ID] = string(events[i].JSON)
	}
	for _, sub := range subs {
		p.describeSubscription(t, s, d, sub.ID)
	}
	incidents, _, err := s.Incidents().Page(t.Context(), p.id, query(t, webhook.IncidentList, "page[size]=100"))
	must(t, err)
	d.put("incidents", incidents)
	for _, i := range incidents {
		one, err := s.Incidents().Get(t.Context(), p.id, i.ID)
		must(t, err)
		one.Timeline = slices.DeleteFunc(one.Timeline, func(e webhook.IncidentEntry) bool { return e.Kind == webhook.IncidentEntryResent })
		d.put("incident "+i.ID, one)
	}
	runs, _, err := s.BulkRuns().Page(t.Context(), p.id, query(t, webhook.BulkRunList, "page[size]=100"))
	must(t, err)
	for i := range runs {
		runs[i].Newest = 0
	}
	d.put("bulk runs", runs)
	tokens, _, err := s.Tokens().Page(t.Context(), p.id, query(t, webhook.TokenList, "page[size]=100"))
	must(t, err)
	for i := range tokens {
		tokens[i].UsedAt = time.Time{} // compared below
	}
	d.put("tokens", tokens)
	for id, secret := range p.tokens {
		token, err := s.Tokens().Authenticate(t.Context(), secret)
		if err != nil || token.ID != id {
			t.Errorf("a token does not work: %v", err)
		}
		answer, err := s.StoredResponse(t.Context(), &webhook.IdempotencyKey{TokenID: id, Key: "k", Request: sha256.Sum256([]byte("r"))})
		must(t, err)
		d.put("answer "+id, answer)
	}
	return d
}

// describeSubscription reads a subscription with its deliveries.
func (p *filledProgram) describeSubscription(t *testing.T, s *Store, d described, id string) {
	t.Helper()
	q := queue(t, s, id)
	q.NextDue, q.NextPing, q.NextProbe, q.Expiry = time.Time{}, time.Time{}, time.Time{}, nil
	d.put("queue "+id, q)
	if want := p.secrets[id]; want != nil && string(q.Secrets[0]) != string(want) {
		t.Errorf("subscription %s has another secret", id)
	}
	page, _, err := s.Deliveries().Page(t.Context(), p.id, id, query(t, webhook.DeliveryList, "page[size]=100"))
	must(t, err)
	for i := range page {
		d.put(fmt.Sprintf("delivery %d of %s", i, id), page[i].ID)
		one, err := s.Deliveries().Get(t.Context(), p.id, id, page[i].ID)
		must(t, err)
		d.put("delivery "+page[i].ID, one)
		view, err := s.Deliveries().View(t.Context(), page[i].ID)
		must(t, err)
		d.put("replay of "+page[i].ID, view.ReplayID)
	}
	replays, _, err := s.Replays().Page(t.Context(), p.id, id, query(t, webhook.ReplayList, "page[size]=100"))
	must(t, err)
	d.put("replays "+id, replays)
	d.put("lost "+id, lostEvents(t, s, id))
	now := s.clock.Now()
	stats, err := s.Figures().Stats(t.Context(), p.id, id, record.StatMinute, now.Add(-time.Hour), now.Add(time.Minute))
	must(t, err)
	d.put("stats "+id, stats)
}

// compare reports how two descriptions differ.
func (d described) compare(t *testing.T, other described) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(d)) {
		if other[key] != d[key] {
			t.Errorf("%s\n\tbefore %s\n\tafter  %s", key, d[key], other[key])
		}
	}
	for key := range other {
		if _, ok := d[key]; !ok {
			t.Errorf("%s is new: %s", key, other[key])
		}
	}
}

// exported exports a program of a store without attempts in flight.
func exported(t *testing.T, s *Store, id string) *ProgramImport {
	t.Helper()
	x, err := s.Programs().Export(t.Context(), id, 0)
	must(t, err)
	t.Cleanup(func() { x.Remove() })
	return &ProgramImport{Path: x.Path, Key: x.Key}
}

// copyOf copies an export, since an import changes it.
func copyOf(t *testing.T, x *ProgramImport) *ProgramImport {
	t.Helper()
	b, err := os.ReadFile(x.Path)
	must(t, err)
	c := *x
	c.Path = t.TempDir() + "/copy.db"
	must(t, os.WriteFile(c.Path, b, 0o600))
	return &c
}

// exportSource returns a store with two programs, of which p has no attempts in flight.
func exportSource(t *testing.T) (s *Store, p *filledProgram) {
	t.Helper()
	s = open(t)
	fillProgram(t, s, "neighbor")
	p = fillProgram(t, s, "moved-program")
	_, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy())
	must(t, err)
	fillProgram(t, s, "neighbor-2")
	return s, p
}

// TestImport imports a program into an empty installation and into one with programs, which have
// other dictionaries, keys and clocks: nothing differs.
func TestImport(t *testing.T) {
	from, p := exportSource(t)
	before := describeProgram(t, from, p)
	if got := before["queue "+p.subscriptions[2].ID]; !strings.Contains(got, `"MaxPerSecond":200,"MaxEvents":20,`) {
		t.Errorf("got the queue %s, want one with limits", got)
	}
	x := exported(t, from, p.id)
	for name, target := range map[string]func(s *Store){
		"empty": func(*Store) {},
		"with programs": func(s *Store) {
			fillProgram(t, s, "other-program")
			hour := strconv.FormatInt(time.Hour.Milliseconds(), 10)
			execute(t, s, schema.Set, clock.WaitOffset, []byte(hour))
			scan, _ := s.db.Reads(t.Context())
			must(t, s.clock.Open(scan))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := opened(t, Config{Dir: memoryDir(t), Dictionary: []byte(strings.Repeat("another dictionary ", 20))})
			t.Cleanup(func() { must(t, s.Close()) })
			target(s)
			hidden := 0
			s.afterStep = func() {
				if s.programStates.of(p.id).phase == phaseActive {
					return
				}
				hidden++
				checkHidden(t, s, p)
			}
			y, err := s.Programs().Import(t.Context(), copyOf(t, x))
			must(t, err)
			if y.ProgramID != p.id || y.Events != len(p.events) || y.Subscriptions != len(p.subscriptions) || y.Deliveries == 0 {
				t.Errorf("imported %+v", y)
			}
			if hidden < 20 {
				t.Errorf("the import had %d steps, want many", hidden)
			}
			before.compare(t, describeProgram(t, s, p))
			checkIntegrity(t, s)
			checkRanges(t, s)
			_, err = s.Programs().Import(t.Context(), copyOf(t, x))
			wantCode(t, err, webhook.CodeConflict)
			before.compare(t, describeProgram(t, s, p))
			if next := publish(t, s, p.id, "content_updated"); next[0].Seq != int64(len(p.events))+1 {
				t.Errorf("the log continues with seq %d", next[0].Seq)
			}

			// It is erased like any other, and can then be imported again.
			s.afterStep = nil
			erase(t, s, p.id)
			must(t, s.eraseAll(t.Context(), false))
			_, err = s.Programs().Import(t.Context(), copyOf(t, x))
			must(t, err)
			before.compare(t, describeProgram(t, s, p))
			checkRanges(t, s)
		})
	}
}

// checkHidden checks that nothing of a program that is being imported can be seen.
func checkHidden(t *testing.T, s *Store, p *filledProgram) {
	t.Helper()
	for _, secret := range p.tokens {
		_, err := s.Tokens().Authenticate(context.Background(), secret)
		wantCode(t, err, webhook.CodeUnauthenticated)
	}
	deliveries, _, err := s.Deliveries().PageAll(context.Background(), query(t, webhook.AllDeliveryList, "page[size]=100"))
	must(t, err)
	for _, d := range deliveries {
		if d.ProgramID == p.id {
			t.Fatal("a delivery is listed")
		}
	}
	events, _, err := s.Events().PageAll(context.Background(), query(t, webhook.EventList, "page[size]=100"))
	must(t, err)
	for _, e := range events {
		if e.ProgramID == p.id {
			t.Fatal("an event is listed")
		}
	}
	queues, err := s.Queues().All(context.Background())
	must(t, err)
	for _, q := range queues {
		if q.ProgramID == p.id {
			t.Fatal("the dispatcher would send")
		}
	}
}

// checkRanges checks that lists find all records of a time, including those that were imported
// behind newer ones.
func checkRanges(t *testing.T, s *Store) {
	t.Helper()
	var times []int64
	must(t, s.db.Each(t.Context(), "SELECT DISTINCT created_at FROM deliveries WHERE program_id <> '' ORDER BY 1", nil,
		func(scan func(...any) error) error {
			var at int64
			err := scan(&at)
			times = append(times, at)
			return err
		}))
	step := max(len(times)/7, 1)
	for i := 0; i < len(times); i += step {
		for j := i; j < len(times); j += step {
			from, to := time.UnixMilli(times[i]), time.UnixMilli(times[j]) // inclusive
			want := count(t, s, "SELECT count(*) FROM deliveries WHERE created_at >= ? AND created_at <= ? AND program_id <> ''",
				times[i], times[j])
			raw := "page[size]=100&filter[created_at.from]=" + webhook.FormatTime(from) + "&filter[created_at.to]=" + webhook.FormatTime(to)
			got, cursor := int64(0), ""
			for {
				list := query(t, webhook.AllDeliveryList, raw)
				list.Cursor = cursor
				page, next, err := s.Deliveries().PageAll(t.Context(), list)
				must(t, err)
				got += int64(len(page))
				if cursor = next; next == "" {
					break
				}
			}
			if got != want {
				t.Errorf("from %s to %s: listed %d deliveries, want %d", from, to, got, want)
			}
		}
	}
}

// TestImportContinuesAttempts checks that attempts that were in flight count as interrupted.
func TestImportContinuesAttempts(t *testing.T) {
	from := open(t)
	p := fillProgram(t, from, "moved")
	inFlight := count(t, from, "SELECT count(*) FROM deliveries WHERE claimed_at IS NOT NULL")
	if inFlight == 0 {
		t.Fatal("the fixture has nothing in flight")
	}
	x := exported(t, from, "moved")
	policy := webhook.DefaultRetryPolicy()
	x.Retry = &policy
	s := open(t)
	y, err := s.Programs().Import(t.Context(), copyOf(t, x))
	must(t, err)
	if int64(y.Interrupted) != inFlight {
		t.Errorf("%d attempts were in flight, want %d", y.Interrupted, inFlight)
	}
	wantNumber(t, "attempts in flight", count(t, s, "SELECT count(*) FROM deliveries WHERE claimed_at IS NOT NULL"), 0)
	wantNumber(t, "attempts recorded as interrupted", count(t, s, "SELECT count(*) FROM attempts WHERE error = 'interrupted'"), inFlight)
	_, err = from.Queues().RecoverInterrupted(policy)
	must(t, err)
	before, after := describeProgram(t, from, p), describeProgram(t, s, p)
	for _, d := range []described{before, after} { // the times of interruption differ
		maps.DeleteFunc(d, func(key, _ string) bool {
			return strings.HasPrefix(key, "delivery ") || strings.HasPrefix(key, "incident")
		})
	}
	before.compare(t, after)
}

// TestImportContinues interrupts an import after each of its steps. Nothing of the program is
// visible, and the import can be repeated, even by another process.
func TestImportContinues(t *testing.T) {
	from, p := exportSource(t)
	before := describeProgram(t, from, p)
	x := exported(t, from, p.id)
	dir := memoryDir(t)
	s := openDir(t, dir)
	other := fillProgram(t, s, "other")
	others := occurrences(t, s, other.names())
	for stop := 1; ; stop += 3 {
		_, err := s.Programs().Import(interruptedAt(t, s, stop), copyOf(t, x))
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		s.afterStep = nil
		checkHidden(t, s, p)
		if stop%2 == 0 { // another process
			must(t, s.Close())
			s = openDir(t, dir)
			checkHidden(t, s, p)
		}
		if stop > 1000 {
			t.Fatal("it does not end")
		}
	}
	s.afterStep = nil
	before.compare(t, describeProgram(t, s, p))
	if got := occurrences(t, s, other.names()); !maps.Equal(got, others) {
		t.Errorf("of the other program are left\n%v, want\n%v", got, others)
	}
	checkIntegrity(t, s)
}

// TestImportRefuses checks that exports that cannot be used change nothing.
func TestImportRefuses(t *testing.T) {
	from, p := exportSource(t)
	x := exported(t, from, p.id)
	s := open(t)
	fillProgram(t, s, "other")
	changed := func(query string) *ProgramImport {
		c := copyOf(t, x)
		db, err := sqlite.OpenWritable(c.Path)
		must(t, err)
		_, err = db.Exec(query)
		must(t, err)
		must(t, db.Close())
		return c
	}
	garbage := copyOf(t, x)
	must(t, os.WriteFile(garbage.Path, []byte(strings.Repeat("not a database ", 1000)), 0o600))
	otherKey := copyOf(t, x)
	otherKey.Key = exported(t, from, "neighbor").Key
	for name, c := range map[string]*ProgramImport{
		"newer schema": changed("PRAGMA user_version = 9999"),
		"two programs": changed("INSERT INTO programs (id, created_at, updated_at) VALUES ('second', 0, 0)"),
		"garbage":      garbage,
		"another key":  otherKey,
	} {
		before := changes(t, s)
		if _, err := s.Programs().Import(t.Context(), c); !errors.Is(err, datadir.ErrUnusable) {
			t.Errorf("%s: got %v, want %v", name, err, datadir.ErrUnusable)
		}
		if after := changes(t, s); after > before+2 { // the clock
			t.Errorf("%s: %d rows were changed", name, after-before)
		}
	}
	if _, err := from.Programs().Export(t.Context(), "unknown", 0); err == nil {
		t.Error("an unknown program was exported")
	}
}
