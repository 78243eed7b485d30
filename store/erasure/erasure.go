// Package erasure removes the payloads of erased events from a database: from the log, from the
// responses that receivers gave to their deliveries, from stored answers to requests, and from unused
// space in the file. Every step can be repeated, so an erasure continues after a crash. See
// docs/decisions/0082-erasure.md.
package erasure

import (
	"database/sql"
	"errors"
	"time"

	"service/store/dictionary"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

const (
	selectEvent = "SELECT " + record.EventColumns + " FROM events WHERE program_id = ? AND seq = ? AND erased_at IS NULL"
	eraseEvent  = "UPDATE events SET json = ?3, traceparent = NULL, erased_at = ?4 WHERE program_id = ?1 AND seq = ?2"
	addErasure  = "INSERT INTO erasures (program_id, seq, at) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET cleared = 0"
)

// Conditions and columns of a delivery d with the events at its seqs.
const (
	ofItsEvents = "FROM json_each(d.seqs) j CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = j.value WHERE e.erased_at IS "
	HasErased   = "EXISTS (SELECT 1 " + ofItsEvents + "NOT NULL)"
	AllErased   = "(" + HasErased + " AND NOT EXISTS (SELECT 1 " + ofItsEvents + "NULL))"
	CountErased = "(SELECT count(*) " + ofItsEvents + "NOT NULL)"

	// RemainingSeqs are the seqs of those that were not erased.
	RemainingSeqs = "CASE WHEN " + HasErased + " THEN (SELECT json_group_array(j.value ORDER BY j.key) " +
		ofItsEvents + "NULL) ELSE d.seqs END"
)

// Mark erases the payload of an event in the log as of a time in Unix milliseconds, and notes that
// copies of it are left. An event that retention has removed is left alone. One that was erased before is noted
// again: copies may have come with it from another installation.
func Mark(t *sqlite.Tx, d *dictionary.Set, programID string, seq, at int64) error {
	e, err := record.ScanEvent(d, programID, t.Row(selectEvent, programID, seq))
	if errors.Is(err, sql.ErrNoRows) {
		return t.Exec(addErasure, programID, seq, at)
	}
	if err != nil {
		return err
	}
	e.Erase(time.UnixMilli(at))
	return errors.Join(t.Overwrite(), t.Exec(eraseEvent, programID, seq, e.JSON, at), t.Exec(addErasure, programID, seq, at))
}

const selectAny = `SELECT EXISTS (SELECT 1 FROM json_each(?2) j CROSS JOIN events e ON e.program_id = ?1 AND e.seq = j.value
	WHERE e.erased_at IS NOT NULL)`

// Any reports whether one of some events, an array of seqs, was erased.
func Any(t *sqlite.Tx, programID, seqs string) (erased bool, err error) {
	err = t.Scan(selectAny, []any{programID, seqs}, &erased)
	return erased, err
}

// MarkProgram notes as of a time in Unix milliseconds that only free pages and the WAL have copies of the
// records of a program that was removed.
func MarkProgram(t *sqlite.Tx, at int64) error { return t.Exec(addErasure, "", 1, at) }

// Pending is an erased event that may have copies.
type Pending struct {
	ProgramID string // "" for all records of a removed program
	Seq       int64
	Event     webhook.Event // without an ID if retention has removed it
}

// AtOnce is how many erased events are cleared together: each search of the stored answers looks for
// all of them.
const AtOnce = 256

const selectPending = `SELECT x.program_id, x.seq, coalesce(e.seq, 0), coalesce(e.id, ''), coalesce(e.name, ''), e.received_at, e.json,
	e.erased_at FROM erasures x LEFT JOIN events e ON e.program_id = x.program_id AND e.seq = x.seq
	WHERE x.cleared = 0 AND (x.program_id, x.seq) > (?, ?) ORDER BY x.program_id, x.seq LIMIT ?`

// Next returns the erased events with copies after one of them, of programs in the order of their IDs.
func Next(each sqlite.EachRow, d *dictionary.Set, programID string, seq int64) (all []Pending, err error) {
	err = each(selectPending, []any{programID, seq, AtOnce}, func(scan func(...any) error) error {
		var p Pending
		// A deletion of the program may have removed the event already.
		p.Event, err = record.ScanEvent(d, "", func(dest ...any) error {
			return scan(append([]any{&p.ProgramID, &p.Seq}, dest...)...)
		})
		p.Event.ProgramID = p.ProgramID
		all = append(all, p)
		return err
	})
	return all, err
}

// Carrier is a delivery that carries an erased event.
type Carrier struct {
	Num            int64
	SubscriptionID string
	InFlight       bool
	Waits          bool // for an attempt, of a subscription that exists
	Events         int
}

// SelectCarriers returns the nums of the deliveries that carry the event ?2 of the program ?1 after
// ?3, at most ?4.
const SelectCarriers = "SELECT delivery FROM delivery_events WHERE program_id = ?1 AND seq = ?2 AND delivery > ?3 " +
	"ORDER BY delivery LIMIT ?4"

const (
	selectStates = `SELECT d.num, d.subscription_id, d.claimed_at IS NOT NULL, d.next_attempt_at IS NOT NULL AND s.deleted_at IS NULL,
		json_array_length(d.seqs)
		FROM json_each(?) i CROSS JOIN deliveries d ON d.num = i.value
		CROSS JOIN subscriptions s ON s.id = d.subscription_id`
	clearAttempts = `UPDATE attempts SET response_header = '', response_body = x'', response_removed = 1
		WHERE delivery IN (SELECT value FROM json_each(?1)) AND (response_header <> '' OR response_body <> x'')`
	clearResponses = "DELETE FROM responses WHERE delivery IN (SELECT value FROM json_each(?1))"
	clearStored    = `DELETE FROM stored_responses WHERE (program_id, delivery) IN (SELECT d.program_id, d.num FROM json_each(?1) i
		CROSS JOIN deliveries d ON d.num = i.value)`
	clearUndelivered = "DELETE FROM undelivered WHERE delivery IN (SELECT value FROM json_each(?1)) AND seq = ?2 RETURNING delivery"
)

// Carriers returns the deliveries with some nums as of a write.
func Carriers(t *sqlite.Tx, nums any) (all []Carrier, err error) {
	err = t.Each(selectStates, []any{nums}, func(scan func(...any) error) error {
		var c Carrier
		err := scan(&c.Num, &c.SubscriptionID, &c.InFlight, &c.Waits, &c.Events)
		all = append(all, c)
		return err
	})
	return all, err
}

// Clear removes the responses of deliveries, which may repeat what was sent, and what says that the
// event seq is left to resend. It returns the deliveries of which it was left. nums is a JSON array.
func Clear(t *sqlite.Tx, nums any, seq int64) (left []int64, err error) {
	err = t.Overwrite()
	for _, query := range []string{clearAttempts, clearResponses, clearStored} {
		if err == nil {
			err = t.Exec(query, nums)
		}
	}
	if err == nil {
		err = t.Each(clearUndelivered, []any{nums, seq}, sqlite.Into(&left))
	}
	return left, err
}

// Cleared notes that no row has a copy of an event any more.
func Cleared(t *sqlite.Tx, p *Pending) error {
	return t.Exec("UPDATE erasures SET cleared = 1 WHERE program_id = ? AND seq = ?", p.ProgramID, p.Seq)
}

const (
	// HasCleared reports whether only free pages and the WAL have copies of some events.
	HasCleared = "SELECT EXISTS (SELECT 1 FROM erasures WHERE cleared = 1) OR EXISTS (SELECT 1 FROM blanks)"
	// RemoveCleared removes at most ?1 of those events.
	RemoveCleared = "DELETE FROM erasures WHERE (program_id, seq) IN (SELECT program_id, seq FROM erasures WHERE cleared = 1 LIMIT ?1)"
)
