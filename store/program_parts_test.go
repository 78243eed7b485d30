package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/record"
	"service/webhook"
)

// newMove returns a move of a program without running bulk runs.
func newMove(t *testing.T) (*moveParts, *filledProgram) {
	t.Helper()
	from, p := exportSource(t)
	execute(t, from, "UPDATE bulk_runs SET status = 'completed', completed_at = created_at WHERE status = 'running'")
	return &moveParts{id: webhook.NewID(), from: from, to: open(t), program: p.id}, p
}

// TestMoveTrimmed trims the responses of a subscription at the source after the first part has
// copied them. The target trims them as well.
func TestMoveTrimmed(t *testing.T) {
	m, p := newMove(t)
	sub := p.subscriptions[0].ID
	must(t, m.from.writer.do(func(t *tx) error { // deliveries of one millisecond are trimmed together
		return t.Exec("UPDATE deliveries SET completed_at = created_at + num WHERE completed_at IS NOT NULL")
	}))
	const kept = "SELECT count(*) FROM responses WHERE delivery IN (SELECT num FROM deliveries WHERE subscription_id = ?)"
	trim := func(s *Store) int64 {
		s.quotas.successes = 1
		trimming := s.newSteps(t.Context(), sweepPace)
		must(t, trimming.trimSuccesses(sub))
		return count(t, s, kept, sub)
	}
	before := count(t, m.from, kept, sub)
	x, r := m.first(t)
	left := trim(m.from)
	if left == 0 || left >= before {
		t.Fatalf("the source has %d responses of %d", left, before)
	}
	m.changes(t, x, r)
	m.freeze(t)
	m.finish(t, x, r)
	m.activate(t)
	if n := trim(m.to); n != left {
		t.Errorf("the target keeps %d responses, the source kept %d", n, left)
	}
}

// TestMoveGone moves a program whose incident names a delivery that was open in the first part and
// is removed before the next. The target does not name another program's delivery instead.
func TestMoveGone(t *testing.T) {
	m, p := newMove(t)
	fillProgram(t, m.to, "other-program")
	sub := p.subscriptions[0].ID
	publish(t, m.from, p.id, "content_updated")
	form(t, m.from, queue(t, m.from, sub), 1)
	var gone int64
	must(t, m.from.db.Scan(t.Context(), "SELECT max(num) FROM deliveries", nil, &gone))
	x, r := m.first(t)
	const ofProgram = "subscription_id IN (SELECT id FROM subscriptions WHERE program_id = ?)"
	must(t, m.from.writer.do(func(t *tx) error {
		return errors.Join(t.Exec("UPDATE incidents SET last_delivery = ? WHERE program_id = ?", gone, p.id),
			t.Exec("UPDATE failures SET last_delivery = ? WHERE "+ofProgram, gone, p.id),
			t.Exec("DELETE FROM delivery_events WHERE delivery = ?", gone), t.Exec("DELETE FROM deliveries WHERE num = ?", gone))
	}))
	m.freeze(t)
	m.finish(t, x, r)
	m.activate(t)
	if n := count(t, m.to, "SELECT count(*) FROM incidents WHERE program_id = ?", p.id); n == 0 {
		t.Error("the program has no incident")
	}
	for _, query := range []string{
		"SELECT count(*) FROM incidents WHERE program_id = ? AND last_delivery IS NOT NULL",
		"SELECT count(*) FROM failures WHERE last_delivery IS NOT NULL AND " + ofProgram,
	} {
		wantNumber(t, "from "+query, count(t, m.to, query, p.id), 0)
	}
}

// TestMoveErased erases events of a program before each part of its move, after an earlier part has copied
// their payloads and what receivers responded. Neither side keeps any of it.
func TestMoveErased(t *testing.T) {
	m := &moveParts{id: webhook.NewID(), from: open(t), to: open(t), program: "p"}
	program(t, m.from, "p")
	sub := subscribe(t, m.from, "p", "content_updated")
	events := publishText(t, m.from, 12, erasedText)
	for range 3 {
		retryLater(t, m.from, form(t, m.from, queue(t, m.from, sub.ID), 2))
	}
	eraseSome := func(some []webhook.Event) {
		for i := range some {
			eraseEvent(t, m.from, &some[i])
		}
	}
	eraseSome(events[:3])
	x, r := m.first(t)
	eraseSome(events[3:6])
	must(t, m.from.Events().ClearErased(t.Context()))
	m.changes(t, x, r)
	eraseSome(events[6:9])
	m.changes(t, x, r)
	eraseSome(events[9:])
	m.freeze(t)
	m.finish(t, x, r)
	m.activate(t)
	must(t, m.from.Programs().Erase(t.Context()))
	must(t, m.to.Events().ClearErased(t.Context()))
	for _, s := range []*Store{m.from, m.to} {
		wantNumber(t, "rows left of the erasures", count(t, s, "SELECT (SELECT count(*) FROM erasures) + (SELECT count(*) FROM blanks)"), 0)
		checkFiles(t, s.dir, erasedText)
	}
	wantNumber(t, "erased events at the target",
		count(t, m.to, "SELECT count(*) FROM events WHERE erased_at IS NOT NULL"), int64(len(events)))
	wantNumber(t, "deliveries that wait at the target",
		count(t, m.to, "SELECT count(*) FROM deliveries WHERE next_attempt_at IS NOT NULL AND ping IS NULL"), 0)
}

// TestMoveReplaced erases a program after the first part and creates another with its ID: neither
// changes nor the rest can be exported.
func TestMoveReplaced(t *testing.T) {
	m, p := newMove(t)
	x, r := m.first(t)
	erase(t, m.from, p.id)
	must(t, m.from.eraseAll(t.Context(), false))
	_, _, err := m.from.Tokens().Create(t.Context(), webhook.NewToken{ProgramID: p.id, UserID: "ada", Scopes: webhook.Scopes()})
	must(t, err)
	publish(t, m.from, p.id, "content_updated")
	var refused *webhook.Error
	if _, err := x.Changes(t.Context()); !errors.As(err, &refused) || refused.Code != webhook.CodeConflict {
		t.Errorf("changes: %v", err)
	}
	m.freeze(t)
	if _, err := x.Rest(t.Context()); !errors.As(err, &refused) || refused.Code != webhook.CodeConflict {
		t.Errorf("the rest: %v", err)
	}
	must(t, x.Close())
	must(t, r.Close())
}

// TestMoveKeyReplaced sends a key of a token in the first part, and the response of a later request
// with this key in the next. The space that the token's keys use is counted exactly.
func TestMoveKeyReplaced(t *testing.T) {
	m, p := newMove(t)
	x, r := m.first(t)
	for id := range p.tokens {
		key := webhook.IdempotencyKey{TokenID: id, Key: "k", Request: sha256.Sum256([]byte("later"))}
		mustWrite(t, m.from, func(w Write) error {
			return errors.Join(w.t.Exec("DELETE FROM idempotency_keys WHERE token_id = ?", id),
				w.StoreResponse(&key, &StoredResponse{Status: 201, Body: []byte(strings.Repeat("a longer answer ", 10))}))
		})
	}
	m.changes(t, x, r)
	m.freeze(t)
	m.finish(t, x, r)
	m.activate(t)
	checkIntegrity(t, m.to)
	const wrong = "SELECT count(*) FROM idempotency_use u WHERE (keys, bytes) <> " +
		"(SELECT count(*), sum(length(body)) FROM idempotency_keys k WHERE k.token_id = u.token_id)"
	wantNumber(t, "tokens whose use is wrong", count(t, m.to, wrong), 0)
}

// TestReceiveWaits ends a reception that waits for another. The other can continue, and no lock
// is left.
func TestReceiveWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newMove(t)
		x, r := m.first(t)
		other, part, err := m.from.Programs().ExportMove(t.Context(), "neighbor", 0)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := m.to.Programs().Receive(ctx, webhook.NewID(), &ProgramImport{Path: part.Path, Key: part.Key})
			ended <- err
		}()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("two receptions at once: %v", err)
		default:
		}
		cancel()
		wantError(t, "after the end of its context", <-ended, context.Canceled)
		m.changes(t, x, r)
		must(t, errors.Join(part.Remove(), other.Close(), x.Close(), r.Close()))
		if !m.to.sweeping.TryAcquire(1) {
			t.Error("the receptions left the lock")
		}
	})
}

// TestMoveStats moves a program with the statistics of a day. The part that is sent while the
// program is frozen contains only those that may still change.
func TestMoveStats(t *testing.T) {
	m, p := newMove(t)
	sub := p.subscriptions[0].ID
	must(t, m.from.writer.do(func(t *tx) error {
		now := time.Now().Truncate(time.Minute)
		var errs []error
		for i := 2; i < 24*60; i++ {
			errs = append(errs, t.Exec("INSERT INTO stats (program_id, subscription_id, span, at, success, failed, retryable, answers, "+
				"durations, counted_at) VALUES (?, ?, 60000, ?, 1, 0, 0, '{}', '{}', ?)",
				p.id, sub, now.Add(-time.Duration(i)*time.Minute).UnixMilli(), t.counted()))
		}
		return errors.Join(errs...)
	}))
	const ofMinutes = "SELECT count(*), sum(success) FROM stats WHERE span = 60000 AND subscription_id = ?"
	type found struct{ rows, success int64 }
	stats := func(s *Store) (f found) {
		must(t, s.db.Scan(t.Context(), ofMinutes, []any{sub}, &f.rows, &f.success))
		return f
	}
	before := stats(m.from)
	x, r := m.first(t)
	m.changes(t, x, r)
	m.freeze(t)
	rest, err := x.Rest(t.Context())
	must(t, err)
	export := &ProgramImport{Path: rest.Path, Key: rest.Key}
	db, err := m.to.Programs().openExport(t.Context(), export)
	must(t, err)
	var left found
	must(t, db.QueryRowContext(t.Context(), ofMinutes, sub).Scan(&left.rows, &left.success))
	must(t, db.Close())
	if left.rows == 0 || left.rows > 2+int64(statsChange/record.StatMinute) {
		t.Errorf("the last part has the statistics of %d minutes", left.rows)
	}
	_, err = r.Complete(t.Context(), export)
	must(t, err)
	must(t, errors.Join(rest.Remove(), x.Close(), r.Close()))
	m.activate(t)
	if got := stats(m.to); got != before {
		t.Errorf("the target has %+v, want %+v", got, before)
	}
	// The source may have pruned responses that the target keeps.
	if _, due := m.to.housekeeping.prune[p.id]; !due {
		t.Error("the responses of the program are not due for pruning")
	}
}

// TestForgottenAlerts removes a subscription after its retention, but before its alerts are due for
// removal, because an import stored them late. Its alerts are removed with it.
func TestForgottenAlerts(t *testing.T) {
	m, p := newMove(t)
	sub := p.subscriptions[3].ID
	unsubscribe(t, m.from, p.id, sub)
	must(t, m.from.writer.do(func(t *tx) error {
		for range firstStep + 1 {
			if err := m.from.alert(t, &webhook.Alert{Name: webhook.AlertFailing, Subscription: p.subscriptions[0]}, 0); err != nil {
				return err
			}
		}
		if err := m.from.alert(t, &webhook.Alert{Name: webhook.AlertFailing, Subscription: p.subscriptions[3]}, 0); err != nil {
			return err
		}
		errs := []error{t.Exec("UPDATE subscriptions SET deleted_at = 2, counted_at = -7200 WHERE id = ?", sub)}
		for _, table := range []string{"delivery_events", "attempts", "responses", "stored_responses"} {
			errs = append(errs, t.Exec("DELETE FROM "+table+" WHERE delivery IN (SELECT num FROM deliveries WHERE subscription_id = ?)", sub))
		}
		return errors.Join(append(errs, t.Exec("DELETE FROM deliveries WHERE subscription_id = ?", sub))...)
	}))
	sweepAt(t, m.from, time.Now().Add(-time.Hour))
	if n := count(t, m.from, "SELECT count(*) FROM subscriptions WHERE id = ?", sub); n > 0 {
		t.Fatal("the subscription is left")
	}
	wantNumber(t, "alerts that are left", count(t, m.from, "SELECT count(*) FROM alerts WHERE subscription_id = ?", sub), 0)
}
