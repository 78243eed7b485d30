package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"service/store/sqlite/sqlitetest"
	"service/webhook"
)

// erase begins to erase a program.
func erase(t testing.TB, s *Store, id string) {
	t.Helper()
	must(t, s.Write(t.Context(), func(w Write) error {
		_, err := w.Programs().Erase(id, webhook.AuditEntry{})
		return err
	}))
}

// TestErase checks that an erasure leaves only IDs of a program in the audit log, and all
// records of another program.
func TestErase(t *testing.T) {
	s := open(t)
	kept, gone := fillProgram(t, s, "kept-program"), fillProgram(t, s, "gone-program")
	checkFixture(t, s)
	platform, _, err := s.Tokens().Create(t.Context(), webhook.NewToken{UserID: "ops", Scopes: []webhook.Scope{webhook.ScopePlatform}})
	must(t, err)
	answers := func(programID string) *StoredResponse {
		key := webhook.IdempotencyKey{TokenID: platform.ID, ProgramID: programID, Key: "in " + programID}
		a, err := s.StoredResponse(t.Context(), &key)
		must(t, err)
		if a == nil {
			must(t, s.Write(t.Context(), func(w Write) error {
				return w.StoreResponse(&key, &StoredResponse{Status: 201, Body: []byte("secret of " + programID)})
			}))
		}
		return a
	}
	for _, p := range []*filledProgram{kept, gone} {
		answers(p.id)
	}
	others := occurrences(t, s, kept.names())
	rows := make(map[string]int64)
	for table := range tables(t, s) {
		rows[table] = count(t, s, "SELECT count(*) FROM "+table)
	}
	erase(t, s, gone.id)
	must(t, s.eraseAll(t.Context(), false))

	found := occurrences(t, s, gone.names())
	for column := range found {
		if column == "audit.detail" { // of runs over all programs; the program's own are checked below
			continue
		}
		if column != "audit.program_id" && column != "audit.subject_id" && !strings.HasPrefix(column, "bulk_runs.") {
			t.Errorf("%s has %d values of the program", column, found[column])
		}
	}
	if n := count(t, s, "SELECT count(*) FROM bulk_runs WHERE program_id = ?", gone.id); n != 0 {
		t.Errorf("%d bulk runs of the program are left", n)
	}
	if n := count(t, s, "SELECT count(*) FROM audit WHERE program_id = ? AND action <> 'program.delete' AND "+
		"(admin <> '' OR address <> '' OR detail <> '' OR salt <> x'')", gone.id); n != 0 {
		t.Errorf("%d entries of the audit log have personal parts", n)
	}
	if summary := verifyAudit(t, s); summary.Erased == 0 {
		t.Error("no entry of the audit log is erased")
	}
	if got := occurrences(t, s, kept.names()); !maps.Equal(got, others) {
		t.Errorf("of the other program are left\n%v, want\n%v", got, others)
	}
	for _, table := range []string{"attempts", "responses", "stored_responses", "delivery_events", "deliveries", "events", "failures"} {
		left := count(t, s, "SELECT count(*) FROM "+table)
		if table == "deliveries" {
			left -= count(t, s, "SELECT count(*) FROM deliveries WHERE program_id = ''") // see blankNewest
		}
		if 2*left != rows[table] {
			t.Errorf("%s has %d rows, want half of %d", table, left, rows[table])
		}
	}
	all, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, "page[size]=100"))
	must(t, err)
	for _, d := range all {
		if d.ProgramID != kept.id {
			t.Errorf("listed: %+v", d)
		}
	}
	checkIntegrity(t, s)
	if answers(kept.id) == nil || answers(gone.id) != nil {
		t.Error("want the response to the platform token only in the program that is left")
	}
}

// checkFixture checks that the programs have a row in each table: without one, its erasure would
// prove nothing.
func checkFixture(t *testing.T, s *Store) {
	t.Helper()
	for table := range tables(t, s) {
		switch table {
		case "settings", "admins", "sessions", "certificate_files", "certificate_locks", "dictionaries", "alert_channels", "alert_sends",
			"program_states", "program_moves", "imported_ranges", "event_types", "invitations", "passkeys", "audit_anchor", "retention_marks",
			"erasures", "blanks":
			continue
		}
		if n := count(t, s, "SELECT count(*) FROM "+table); n == 0 {
			t.Errorf("the fixture has no row in %s", table)
		}
	}
}

// checkIntegrity checks the database and its foreign keys.
func checkIntegrity(t *testing.T, s *Store) {
	t.Helper()
	var found string
	must(t, s.db.Scan(t.Context(), "PRAGMA integrity_check", nil, &found))
	if found != "ok" {
		t.Errorf("the database is damaged: %s", found)
	}
	wantNumber(t, "rows that refer to others that do not exist", count(t, s, "SELECT count(*) FROM pragma_foreign_key_check"), 0)
}

// TestEraseAtOnce checks that a program cannot be used from the commit that begins its
// erasure, and that its ID can be used again only once the erasure has finished.
func TestEraseAtOnce(t *testing.T) {
	s := open(t)
	p := fillProgram(t, s, "p")
	sub := &p.subscriptions[1]
	before := queue(t, s, sub.ID)
	waiting, err := s.Queues().waiting(t.Context(), before, before.Wanted, 1, webhook.MaxDeliveryBytes)
	must(t, err)
	watcher := s.Watch()
	defer watcher.Close()
	erase(t, s, "p")

	for _, secret := range p.tokens {
		_, err := s.Tokens().Authenticate(t.Context(), secret)
		wantCode(t, err, webhook.CodeUnauthenticated)
	}
	if len(waiting.Seqs) > 0 {
		if _, err := s.Queues().form(&Credit{Queue: before}, &waiting).Wait(); !errors.Is(err, ErrStale) {
			t.Errorf("an event was sent: %v", err)
		}
	}
	execute(t, s, "UPDATE deliveries SET next_attempt_at = 1 WHERE next_attempt_at IS NOT NULL")
	for _, sub := range p.subscriptions {
		for _, credit := range []*Credit{duePing(s, sub.ID), due(s, sub.ID)} {
			credit.Queue.ProgramID = "p"
			if c, _, err := s.Queues().claimDue(t.Context(), credit); err != nil || c != nil {
				t.Errorf("a delivery was claimed: %v, %v", c, err)
			}
		}
		_, err := s.Queues().Get(t.Context(), sub.ID)
		wantCode(t, err, webhook.CodeNotFound)
	}
	if all, err := s.Queues().All(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("got %d queues, %v; want none", len(all), err)
	}
	_, err = s.Events().Publish(t.Context(), "p", []webhook.Event{event("content_updated")})
	wantCode(t, err, webhook.CodeConflict)
	_, err = create(s, "p", "content_updated")
	wantCode(t, err, webhook.CodeConflict)
	newToken := webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()}
	_, _, err = s.Tokens().Create(t.Context(), newToken)
	wantCode(t, err, webhook.CodeConflict)
	_, err = s.Subscriptions().Delete(t.Context(), "p", sub.ID)
	wantCode(t, err, webhook.CodeNotFound)
	if all, _, err := s.Deliveries().PageAll(t.Context(), query(t, webhook.AllDeliveryList, "")); err != nil || len(all) != 0 {
		t.Errorf("%d deliveries are listed, %v", len(all), err)
	}

	// The program has deliveries in flight.
	must(t, s.eraseAll(t.Context(), true))
	wantNumber(t, "deliveries left that are not in flight",
		count(t, s, "SELECT count(*) FROM deliveries WHERE claimed_at IS NULL AND program_id <> ''"), 0)
	if n := count(t, s, "SELECT count(*) FROM deliveries WHERE claimed_at IS NOT NULL"); n == 0 {
		t.Error("no delivery in flight is left")
	}
	if changes := watcher.Take(); len(changes.Subscriptions) != len(p.subscriptions) {
		t.Errorf("the dispatcher learned of %d subscriptions, want %d", len(changes.Subscriptions), len(p.subscriptions))
	}
	_, _, err = s.Tokens().Create(t.Context(), newToken)
	wantCode(t, err, webhook.CodeConflict)
	if n, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy()); err != nil || n == 0 {
		t.Errorf("recovered %d deliveries, %v", n, err)
	}
	must(t, s.eraseAll(t.Context(), true))

	// The ID is free, and its log starts from the beginning, although the old log was in memory.
	fresh := fillProgram(t, s, "p")
	if e := fresh.events[0]; count(t, s, "SELECT seq FROM events WHERE id = ?", e.ID) != 1 {
		t.Error("the new log does not begin with seq 1")
	}
	wantNumber(t, "events in the log", count(t, s, "SELECT count(*) FROM events"), int64(len(fresh.events)))
}

// TestEraseContinues interrupts an erasure after each of its steps. The next process continues.
func TestEraseContinues(t *testing.T) {
	dir := memoryDir(t)
	s := openDir(t, dir)
	p, kept := fillProgram(t, s, "gone"), fillProgram(t, s, "kept")
	others := occurrences(t, s, kept.names())
	erase(t, s, "gone")
	steps := 0
	for done := false; !done; steps++ {
		// Each erasure is interrupted after more steps than the last, since a step may have nothing to do.
		err := s.eraseAll(interruptedAt(t, s, 1+2*steps), false)
		if done = err == nil; !done && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		must(t, s.Close())
		if steps > 2000 {
			t.Fatal("it does not end")
		}
		s = openDir(t, dir)
	}
	if steps < 4 {
		t.Errorf("the erasure was interrupted %d times, want more", steps)
	}
	found := slices.DeleteFunc(slices.Collect(maps.Keys(occurrences(t, s, p.names()))), func(column string) bool {
		return strings.HasPrefix(column, "audit.") || strings.HasPrefix(column, "bulk_runs.")
	})
	if len(found) > 0 {
		t.Errorf("left: %v", found)
	}
	if got := occurrences(t, s, kept.names()); !maps.Equal(got, others) {
		t.Errorf("of the other program are left\n%v, want\n%v", got, others)
	}
	checkIntegrity(t, s)
}

// TestEraseInBackground checks that Housekeep erases a program in short steps, with writes of
// others in between.
func TestEraseInBackground(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		program(t, s, "gone")
		sub := subscribe(t, s, "gone", "content_updated")
		insertWaiting(t, s, &sub, 5000)
		stop := background(t, s.Housekeep)
		erase(t, s, "gone")
		for n := 0; s.programStates.of("gone").phase != phaseActive; n++ {
			if n == 60_000 {
				t.Fatal("it does not end")
			}
			publish(t, s, "p", "content_updated")
			time.Sleep(time.Millisecond)
		}
		stop()
		wantNumber(t, "deliveries that are left", count(t, s, "SELECT count(*) FROM deliveries WHERE program_id = 'gone'"), 0)
	})
}

// TestEraseWakes checks that Housekeep, once woken, sees the erasure it is woken for, whichever
// goroutine is faster.
func TestEraseWakes(t *testing.T) {
	s := open(t)
	for i := range 500 {
		id := "p" + strconv.Itoa(i)
		program(t, s, id)
		for len(s.housekeeping.erasures) > 0 {
			<-s.housekeeping.erasures
		}
		visible := make(chan bool)
		go func() {
			<-s.housekeeping.erasures
			visible <- s.programStates.of(id).phase != phaseActive
		}()
		erase(t, s, id)
		if !<-visible {
			t.Fatalf("erasure %d is not visible when Housekeep is woken", i)
		}
	}
}

func TestEraseUnknown(t *testing.T) {
	s := open(t)
	err := s.Write(t.Context(), func(w Write) error {
		_, err := w.Programs().Erase("p", webhook.AuditEntry{})
		return err
	})
	wantCode(t, err, webhook.CodeNotFound)
}

// TestErasePlans checks that the steps of an erasure read no whole table.
func TestErasePlans(t *testing.T) {
	s := open(t)
	for _, query := range append(slices.Clone(eraseOfSubscriptions), eraseOfProgram...) {
		sqlitetest.CheckPlan(t, s.db, query, 2, "")
	}
	for _, c := range []struct {
		query string
		args  int
		want  string
	}{
		{eraseEvents, 2, "SEARCH events USING COVERING INDEX events_by_seq (program_id=?)"},
		{eraseKeys, 2, "SEARCH idempotency_keys USING"},
		{eraseAnswers, 2, "SEARCH idempotency_keys USING COVERING INDEX idempotency_keys_by_program (program_id=?)"},
		{selectErased, 2, "deliveries_of_subscription (subscription=?)"},
		{selectAnErased, 2, "deliveries_of_subscription (subscription=?)"},
		{unlinkErased, 2, "SEARCH b USING PRIMARY KEY (subscription_id=?)"},
		{selectErasedPings, 1, "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid=?)"},
		{blankNewest, 3, "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid=?)"},
		{removeUnlessBlank, 1, "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid=?)"},
		{selectErasedSubscriptions, 1, "subscriptions_of_program (program_id=?)"},
		{selectErasedAudit, 3, "SEARCH audit USING INDEX audit_by_program (program_id=? AND num>? AND num<?)"},
		{selectLastDelete, 1, "SEARCH audit USING INDEX audit_by_program (program_id=?)"},
		{selectLateAudit, 2, "SEARCH audit USING INDEX audit_by_program (program_id=? AND num>?)"},
		{eraseAudit, 1, "SEARCH audit USING INTEGER PRIMARY KEY (rowid=?)"},
	} {
		sqlitetest.CheckPlan(t, s.db, c.query, c.args, c.want)
	}
}
