package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"service/store/erasure"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// Erase begins to erase all records of a program, and returns the time of the beginning. After
// the commit its tokens are invalid and no attempt of it is started. [Store.Housekeep] erases
// the records in steps; the ID can be used again once the erasure has finished. Erasing it
// again changes nothing. The error is a *webhook.Error if there is no such program.
func (w ProgramWrites) Erase(id string, by webhook.AuditEntry) (began time.Time, err error) {
	s, t := w.t.s, w.t
	switch state := t.state(id); state.phase {
	case phaseErasing:
		return state.at, nil
	case phaseLeaving, phaseGone, phaseArriving:
	default:
		if err := t.use(id, ""); err != nil {
			return began, err
		}
	}
	var exists bool
	if err := t.Scan("SELECT EXISTS (SELECT 1 FROM programs WHERE id = ?)", []any{id}, &exists); err != nil {
		return began, err
	}
	if !exists {
		return began, webhook.NoProgram(id)
	}
	began = s.clock.Now().UTC().Truncate(time.Millisecond)
	if err := t.Exec("UPDATE bulk_runs SET status = 'cancelled', completed_at = ?, counted_at = ? "+
		"WHERE program_id = ? AND status = 'running'", began.UnixMilli(), t.counted(), id); err != nil {
		return began, err
	}
	if err := s.setProgramState(t, id, programState{phase: phaseErasing, at: began}); err != nil {
		return began, err
	}
	return began, w.t.people.Record(by, webhook.ActionProgramDelete, id, id, "")
}

// Erasure describes the erasure of a program that began at a time.
func (s Programs) Erasure(programID string, began time.Time) webhook.Erasure {
	return webhook.Erasure{ProgramID: programID, Began: began, Replica: s.replicaKeeps}
}

// Erase erases all programs that are being erased, and returns when nothing is left of them. It
// is for a process without [Store.Housekeep] and without a dispatcher.
func (s Programs) Erase(ctx context.Context) error {
	if err := s.eraseAll(ctx, false); err != nil {
		return err
	}
	_, err := s.clearErased(ctx)
	return err
}

// errInFlight reports that attempts of the program are in flight.
var errInFlight = errors.New("store: attempts of the program are in flight")

// eraseAll erases all programs that are being erased. With attempts in flight it leaves their
// deliveries; [Queues.Record] wakes it.
func (s *core) eraseAll(ctx context.Context, dispatching bool) error {
	s.erasing.Lock()
	defer s.erasing.Unlock()
	var errs []error
	for _, id := range s.programStates.in(phaseErasing, phaseLeaving) {
		e := &programErasure{steps: s.newSteps(ctx, sweepPace), programID: id, dispatching: dispatching}
		if state := s.programStates.of(id); state.phase == phaseLeaving {
			e.moved = state.out.id
		}
		began := time.Now()
		switch err := e.run(); {
		case errors.Is(err, errInFlight):
		case err != nil:
			errs = append(errs, err)
		default:
			s.logger.Info("erased a program", "program", id, "events", e.swept.Events, "deliveries", e.swept.Deliveries,
				"duration", time.Since(began).Round(time.Millisecond), "longest_step", e.longest)
			wake(s.housekeeping.erased)
		}
	}
	return errors.Join(errs...)
}

// programErasure erases one program. Every step can be repeated, so it continues after a crash.
type programErasure struct {
	steps
	swept         Swept
	programID     string
	moved         string   // ID of the move after which only tokens stay, "" to erase everything
	dispatching   bool     // a dispatcher may have attempts of the program in flight
	subscriptions []string // IDs, including those of deleted subscriptions
}

func (e *programErasure) run() error {
	shrink := func() error { return e.shrink(&e.swept.Shrunk) }
	parts := []func() error{e.close, e.tokens, e.deliveries, e.events, e.runs, e.ofSubscriptions, e.ofProgram, e.audit, e.finish, shrink}
	if e.moved != "" {
		parts = []func() error{e.close, e.tokens, e.deliveries, e.events, e.runs, e.ofSubscriptions, e.ofProgram, e.empty, shrink}
	}
	return e.each(parts...)
}

// Conditions and queries of an erasure. ?1 is the program, the subscription or the token.
const (
	selectErasedSubscriptions = "SELECT id, deleted_at IS NULL OR active OR signing_secret <> x'' FROM subscriptions " +
		"INDEXED BY subscriptions_of_program WHERE program_id = ? ORDER BY id"
	closeErased = `UPDATE subscriptions SET deleted_at = coalesce(deleted_at, ?2), counted_at = coalesce(counted_at, ?3), active = 0,
		authorization_header = NULL, header_names = '[]', headers = NULL, signing_secret = x'', revision = revision + 1 WHERE id IN (SELECT value FROM json_each(?1))`
	eraseOldSecrets = "DELETE FROM old_signing_secrets WHERE subscription_id IN (SELECT value FROM json_each(?1))"

	eraseKeys    = "DELETE FROM idempotency_keys WHERE rowid IN (SELECT rowid FROM idempotency_keys WHERE token_id = ?1 LIMIT ?2)"
	eraseAnswers = "DELETE FROM idempotency_keys WHERE rowid IN (SELECT rowid FROM idempotency_keys WHERE program_id = ?1 LIMIT ?2)"
	eraseEvents  = "DELETE FROM events WHERE program_id = ?1 AND seq IN (SELECT seq FROM events WHERE program_id = ?1 ORDER BY seq LIMIT ?2)"

	// An all-programs bulk run may have redelivered some of the deliveries.
	unlinkErased = `DELETE FROM bulk_run_deliveries WHERE (run, delivery) IN (SELECT b.run, i.value FROM json_each(?1) i
		CROSS JOIN bulk_run_subscriptions b ON b.subscription_id = ?2)`
	selectErasedPings = "SELECT id FROM deliveries WHERE num IN (SELECT value FROM json_each(?1)) AND ping IS NOT NULL " +
		"AND completed_at IS NULL"
	// The newest delivery stays, without content, so that its num is not reused.
	blankNewest = `UPDATE deliveries SET id = ?2, program_id = '', subscription_id = '', subscription = 0, status = 'failed',
		failure_reason = 'cancelled', attempts_made = 0, claimed_at = NULL, next_attempt_at = NULL, response_status = NULL, error = NULL,
		seqs = NULL, ping = CAST('{}' AS BLOB), redelivery_of = NULL, split_of = NULL, replay_id = NULL, created_at = ?3, completed_at = ?3,
		started_after = NULL, duration_ms = NULL, response = NULL, dns_us = NULL, connect_us = NULL, tls_us = NULL, first_byte_us = NULL
		WHERE num = (SELECT max(num) FROM deliveries) AND num IN (SELECT value FROM json_each(?1))`

	// The hashes of the audit log contain IDs and a salted digest of the rest, so the rest can be
	// erased. A later entry has to say that the program was deleted.
	selectLastDelete = "SELECT coalesce(max(num), 0) FROM audit INDEXED BY audit_by_program " +
		"WHERE program_id = ? AND action = 'program.delete'"
	selectErasedAudit = "SELECT num, salt <> x'' AND action <> 'program.delete' FROM audit INDEXED BY audit_by_program " +
		"WHERE program_id = ?2 AND num > ?1 AND num < ?3 ORDER BY num LIMIT 1000"
	eraseAudit = "UPDATE audit SET admin = '', address = '', detail = '', salt = x'' WHERE num IN (SELECT value FROM json_each(?1))"
	// An entry by a request that was running when the erasure began.
	selectLateAudit = "SELECT EXISTS (SELECT 1 FROM audit INDEXED BY audit_by_program WHERE program_id = ? AND num > ? AND salt <> x'')"
)

var (
	selectErased   = "SELECT d.num " + record.CreatedOf("?1") + " AND d.claimed_at IS NULL LIMIT ?2"
	selectClaimed  = "SELECT EXISTS (SELECT 1 " + record.CreatedOf("?1") + ")"
	selectAnErased = "SELECT d.num " + record.CreatedOf("?1") + " LIMIT ?2"
)

// close removes the secrets of all subscriptions and makes the dispatcher drop their queues.
func (e *programErasure) close() error {
	var left []string
	err := e.s.db.Each(e.ctx, selectErasedSubscriptions, []any{e.programID}, func(scan func(...any) error) error {
		var id string
		var open bool
		err := scan(&id, &open)
		if e.subscriptions = append(e.subscriptions, id); open {
			left = append(left, id)
		}
		return err
	})
	if err != nil {
		return err
	}
	now := e.s.clock.Now().UnixMilli()
	return inSteps(&e.steps, left, func(t *tx, some []string) error {
		t.AfterCommit(func() {
			for _, id := range some {
				e.s.watchers.Probes.End(id, nil)
				e.s.housekeeping.forget(id)
				e.s.watchers.SubscriptionChanged(id)
			}
		})
		return errors.Join(t.Exec(closeErased, sqlite.JSON(some), now, t.counted()), t.Exec(eraseOldSecrets, sqlite.JSON(some)))
	})
}

// tokens removes the tokens with their stored responses, and what is stored for platform tokens
// that acted in the program.
func (e *programErasure) tokens() error {
	if err := e.remove(eraseAnswers, e.programID); err != nil {
		return err
	}
	ids, err := e.s.ids(e.ctx, "SELECT id FROM tokens WHERE program_id = ?", e.programID)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := e.remove(eraseKeys, id); err != nil {
			return err
		}
		err := e.write(func(t *tx) error {
			if err := t.Exec("DELETE FROM idempotency_use WHERE token_id = ?", id); err != nil || e.moved != "" {
				return err // forwarding needs the tokens
			}
			return t.Exec("DELETE FROM tokens WHERE id = ?", id)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// deliveries removes the deliveries with their attempts and responses. The error is errInFlight
// if some are left for that reason.
func (e *programErasure) deliveries() error {
	find := selectAnErased
	if e.dispatching {
		find = selectErased
	}
	left := false
	for _, id := range e.subscriptions {
		for {
			nums, err := e.s.nums(e.ctx, find, id, e.size)
			if err != nil {
				return err
			}
			if len(nums) == 0 {
				break
			}
			if err := e.removeNums(id, nums); err != nil {
				return err
			}
		}
		var claimed bool
		if err := e.s.db.Scan(e.ctx, selectClaimed, []any{id}, &claimed); err != nil {
			return err
		}
		left = left || claimed
	}
	if left {
		return errInFlight
	}
	return nil
}

// removeNums removes deliveries of a subscription.
func (e *programErasure) removeNums(subscriptionID string, nums []int64) error {
	list := sqlite.JSON(nums)
	return e.write(func(t *tx) error {
		err := t.Each(selectErasedPings, []any{list}, func(scan func(...any) error) error {
			var id string
			err := scan((*record.DeliveryID)(&id))
			t.AfterCommit(func() { e.s.watchers.Attempts.End(id, nil) })
			return err
		})
		if err != nil {
			return err
		}
		if err := t.Exec(unlinkErased, list, subscriptionID); err != nil {
			return err
		}
		for _, query := range removalByNum.parts {
			if err := t.Exec(query, list); err != nil {
				return err
			}
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		kept, err := t.Affected(blankNewest, list, record.ShortID(webhook.NewID()), now)
		if err != nil {
			return err
		}
		t.deliveryChanged(0)
		removed, err := t.Affected(removeUnlessBlank, list)
		e.swept.Deliveries += removed + kept
		return err
	})
}

const removeUnlessBlank = "DELETE FROM deliveries WHERE num IN (SELECT value FROM json_each(?1)) AND program_id <> ''"

// events removes the log.
func (e *programErasure) events() (err error) {
	e.swept.Events, err = e.repeat(func(t *tx, size int) (n int64, err error) {
		if n, err = t.Affected(eraseEvents, e.programID, size); err == nil {
			err = t.Exec(lowerMarks)
		}
		return n, err
	})
	return err
}

// runs removes the bulk runs of the program.
func (e *programErasure) runs() error {
	runs, err := e.s.nums(e.ctx, "SELECT num FROM bulk_runs WHERE program_id = ?", e.programID)
	for _, num := range runs {
		if err != nil {
			return err
		}
		err = e.remove("DELETE FROM bulk_run_deliveries WHERE run = ?1 AND delivery IN "+
			"(SELECT delivery FROM bulk_run_deliveries WHERE run = ?1 LIMIT ?2)", num)
		if err == nil {
			err = e.remove("DELETE FROM bulk_run_subscriptions WHERE run = ?1 AND subscription_id IN "+
				"(SELECT subscription_id FROM bulk_run_subscriptions WHERE run = ?1 LIMIT ?2)", num)
		}
		if err == nil {
			err = e.write(func(t *tx) error {
				return errors.Join(t.Exec("DELETE FROM bulk_run_waits WHERE run = ?", num), t.Exec("DELETE FROM bulk_runs WHERE num = ?", num))
			})
		}
	}
	return err
}

// erasedAtOnce is how many subscriptions are removed together.
const erasedAtOnce = 64

// ofSubscriptions removes what belongs to the subscriptions, and these.
func (e *programErasure) ofSubscriptions() error {
	for ids := range slices.Chunk(e.subscriptions, erasedAtOnce) {
		some := sqlite.JSON(ids)
		for _, query := range eraseOfSubscriptions {
			if err := e.remove(query, some); err != nil {
				return err
			}
		}
		err := e.write(func(t *tx) error {
			for _, table := range eraseSingle {
				if err := t.Exec("DELETE FROM "+table+" WHERE subscription_id IN (SELECT value FROM json_each(?))", some); err != nil {
					return err
				}
			}
			return t.Exec("DELETE FROM subscriptions WHERE id IN (SELECT value FROM json_each(?))", some)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	// Tables with any number of rows per subscription. ?1 is an array of subscriptions.
	eraseOfSubscriptions = []string{
		"DELETE FROM delivered WHERE (subscription_id, name, first_seq) IN (SELECT x.subscription_id, x.name, x.first_seq" +
			ofErased("delivered x ON x.subscription_id"),
		"DELETE FROM interests WHERE (subscription_id, name, after_seq) IN (SELECT x.subscription_id, x.name, x.after_seq" +
			ofErased("interests x ON x.subscription_id"),
		"DELETE FROM alert_sends WHERE num IN (SELECT y.num FROM json_each(?1) i CROSS JOIN alerts x ON x.subscription_id = i.value " +
			"CROSS JOIN alert_sends y ON y.alert = x.num LIMIT ?2)",
		"DELETE FROM alerts WHERE num IN (SELECT x.num" + ofErased("alerts x ON x.subscription_id"),
		"DELETE FROM incidents WHERE num IN (SELECT x.num" + ofErased("incidents x ON x.subscription_id"),
		"DELETE FROM replays WHERE id IN (SELECT x.id" + ofErased("replays x ON x.subscription_id"),
		"DELETE FROM bulk_run_subscriptions WHERE (subscription_id, run) IN (SELECT x.subscription_id, x.run" +
			ofErased("bulk_run_subscriptions x ON x.subscription_id"),
	}
	// Tables with few rows per subscription.
	eraseSingle = []string{"bulk_run_waits", "cursors", "failures", "losses", "old_signing_secrets", "old_urls",
		"response_marks", "size_bounds", "splits"}

	eraseOfProgram = []string{
		"DELETE FROM erasures WHERE program_id = ?1 AND seq IN (SELECT seq FROM erasures WHERE program_id = ?1 LIMIT ?2)",
		"DELETE FROM delivery_events WHERE program_id = ?1 AND (seq, delivery) IN (SELECT seq, delivery FROM delivery_events " +
			"WHERE program_id = ?1 LIMIT ?2)",
		"DELETE FROM stored_responses WHERE program_id = ?1 AND (delivery, number) IN (SELECT delivery, number FROM stored_responses " +
			"WHERE program_id = ?1 LIMIT ?2)",
		"DELETE FROM log_epochs WHERE program_id = ?1 AND num IN (SELECT num FROM log_epochs WHERE program_id = ?1 LIMIT ?2)",
		"DELETE FROM response_use WHERE program_id = ?1 AND ?2 > 0",
		"DELETE FROM portal_links WHERE program_id = ?1 AND hash IN (SELECT hash FROM portal_links WHERE program_id = ?1 LIMIT ?2)",
		"DELETE FROM portal_sessions WHERE program_id = ?1 AND hash IN (SELECT hash FROM portal_sessions WHERE program_id = ?1 LIMIT ?2)",
		"DELETE FROM shares WHERE program_id = ?1 AND hash IN (SELECT hash FROM shares WHERE program_id = ?1 LIMIT ?2)",
		"DELETE FROM stats WHERE program_id = ?1 AND (subscription_id, span, at) IN (SELECT subscription_id, span, at FROM stats " +
			"WHERE program_id = ?1 LIMIT ?2)",
	}
)

// ofErased continues a query of the rows of an array of subscriptions, by an index.
func ofErased(table string) string {
	return " FROM json_each(?1) i CROSS JOIN " + table + " = i.value LIMIT ?2)"
}

// ofProgram removes everything else.
func (e *programErasure) ofProgram() error {
	// In a write, since a chore of the writer writes them.
	err := e.write(func(*tx) error {
		e.s.stats.Forget(e.programID)
		return nil
	})
	if err != nil {
		return err
	}
	for _, query := range eraseOfProgram {
		if err := e.remove(query, e.programID); err != nil {
			return err
		}
	}
	return nil
}

// audit erases the personal parts of the program's entries of the audit log. The entries keep
// ids. If requests made entries while the erasure began, another entry says that these are
// erased too.
func (e *programErasure) audit() error {
	var deleted int64
	var late bool
	if err := e.s.db.Scan(e.ctx, selectLastDelete, []any{e.programID}, &deleted); err != nil {
		return err
	}
	if err := e.s.db.Scan(e.ctx, selectLateAudit, []any{e.programID, deleted}, &late); err != nil {
		return err
	}
	if late {
		err := e.write(func(t *tx) error {
			if err := t.people.Audit(webhook.AuditEntry{Admin: webhook.Service, Action: webhook.ActionProgramDelete,
				ProgramID: e.programID, SubjectID: e.programID}); err != nil {
				return err
			}
			return t.Scan(selectLastDelete, []any{e.programID}, &deleted)
		})
		if err != nil {
			return err
		}
	}
	for after, more := int64(0), true; more; {
		var nums []int64
		more = false
		err := e.s.db.Each(e.ctx, selectErasedAudit, []any{after, e.programID, deleted}, func(scan func(...any) error) error {
			var personal bool
			err := scan(&after, &personal)
			if more = true; personal {
				nums = append(nums, after)
			}
			return err
		})
		if err == nil {
			err = inSteps(&e.steps, nums, func(t *tx, some []int64) error { return t.Exec(eraseAudit, sqlite.JSON(some)) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish removes the program, after which its ID can be used again.
func (e *programErasure) finish() error {
	return e.write(func(t *tx) error {
		// A write that began before the erasure may have added something.
		var left sql.NullString
		if err := t.Scan(selectErasedRest, []any{e.programID}, &left); err != nil {
			return err
		}
		if left.Valid {
			return errors.New("store: a record of the program was added: " + left.String)
		}
		delete(t.w.heads, e.programID)
		e.s.metrics.Forget(e.programID)
		e.s.tail.Forget(e.programID)
		e.s.pulled.Forget(e.programID)
		if err := t.Exec("DELETE FROM programs WHERE id = ?", e.programID); err != nil {
			return err
		}
		if err := erasure.MarkProgram(t.Tx, e.s.clock.Now().UnixMilli()); err != nil {
			return err
		}
		if err := t.Exec("DELETE FROM program_moves WHERE program_id = ?", e.programID); err != nil {
			return err
		}
		return e.s.setProgramState(t, e.programID, programState{})
	})
}

// empty records that the program has no records here but its tokens.
func (e *programErasure) empty() error {
	return e.write(func(t *tx) error {
		delete(t.w.heads, e.programID)
		e.s.tail.Forget(e.programID)
		e.s.pulled.Forget(e.programID)
		state := t.state(e.programID)
		if state.phase != phaseLeaving || state.out.id != e.moved {
			return nil
		}
		state.phase = phaseGone
		now := e.s.clock.Now().UnixMilli()
		return errors.Join(t.Exec("UPDATE program_moves SET emptied_at = ? WHERE program_id = ? AND direction = 'out'", now, e.programID),
			erasure.MarkProgram(t.Tx, now), e.s.setProgramState(t, e.programID, state))
	})
}

const selectErasedRest = `SELECT CASE
	WHEN EXISTS (SELECT 1 FROM subscriptions WHERE program_id = ?1) THEN 'subscription'
	WHEN EXISTS (SELECT 1 FROM tokens WHERE program_id = ?1) THEN 'token'
	WHEN EXISTS (SELECT 1 FROM events WHERE program_id = ?1) THEN 'event'
	WHEN EXISTS (SELECT 1 FROM audit INDEXED BY audit_by_program WHERE program_id = ?1 AND action <> 'program.delete' AND salt <> x'')
		THEN 'audit entry' END`
