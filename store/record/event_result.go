package record

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"service/store/sqlite"
	"service/webhook"
)

// EventResult counts the subscriptions of an event by state. The event is delivered to a
// subscription if any of its deliveries succeeded; otherwise the newest delivery decides.
type EventResult struct {
	Delivered int
	Failed    int
	Retrying  int
	Sending   int
	Waiting   int  // select it and have not reached it
	More      bool // the counts are lower bounds
}

// Total returns the number of subscriptions.
func (r *EventResult) Total() int {
	return r.Delivered + r.Failed + r.Retrying + r.Sending + r.Waiting
}

// The bounds of EventResult.
const (
	resultDeliveries    = 100   // of one event
	resultSubscriptions = 2_000 // of a program
	resultSpans         = 5_000
)

const (
	// ?1 are programs and seqs, ?2 is how many deliveries are read per event.
	// A scheduled delivery of a deleted subscription has failed, see scanDelivery.
	selectEventResults = `SELECT i.key,
		(SELECT count(*) FROM (SELECT 1 FROM delivery_events x WHERE x.program_id = i.value ->> 0 AND x.seq = i.value ->> 1 LIMIT ?2)),
		(SELECT json_group_array(n.status) FROM (
			SELECT CASE WHEN sum(d.status = 'success') > 0 THEN 'success'
				WHEN d.next_attempt_at IS NOT NULL AND s.deleted_at IS NOT NULL THEN 'failed'
				WHEN d.status = 'failed' AND EXISTS (SELECT 1 FROM splits p WHERE p.delivery = d.num) THEN 'retryable'
				ELSE d.status END AS status, max(d.num)
			FROM (SELECT x.delivery FROM delivery_events x WHERE x.program_id = i.value ->> 0 AND x.seq = i.value ->> 1
			ORDER BY x.delivery DESC LIMIT ?2) l
			CROSS JOIN deliveries d ON d.num = l.delivery CROSS JOIN subscriptions s ON s.id = d.subscription_id GROUP BY d.subscription_id) n)
		FROM json_each(?1) i`

	// ?1 are programs, each with a first and a last seq; ?2 is the maximum number of
	// subscriptions of a program, ?3 that of rows. The first SELECT returns the ranges that
	// a subscription has yet to reach, the second those that it accepted in deliveries that
	// were removed.
	selectEventSpans = `SELECT p.value ->> 0, i.name, max(i.after_seq, c.seq), i.until_seq, i.filter, 0
		FROM json_each(?1) p CROSS JOIN subscriptions s INDEXED BY subscriptions_by_program ON s.program_id = p.value ->> 0
		AND s.deleted_at IS NULL
		CROSS JOIN cursors c ON c.subscription_id = s.id AND c.seq < p.value ->> 2
		CROSS JOIN interests i ON i.subscription_id = s.id AND i.after_seq < p.value ->> 2
		AND (i.until_seq IS NULL OR i.until_seq >= p.value ->> 1)
		WHERE ` + fewSubscriptions + `
		UNION ALL SELECT p.value ->> 0, r.name, r.first_seq - 1, r.last_seq, NULL, 1
		FROM json_each(?1) p CROSS JOIN subscriptions s INDEXED BY subscriptions_of_program ON s.program_id = p.value ->> 0
		CROSS JOIN delivered r ON r.subscription_id = s.id AND r.first_seq <= p.value ->> 2 AND r.last_seq >= p.value ->> 1
		WHERE ` + fewSubscriptions + ` LIMIT ?3`

	fewSubscriptions = `(SELECT count(*) FROM (SELECT 1 FROM subscriptions z INDEXED BY subscriptions_of_program
		WHERE z.program_id = p.value ->> 0 LIMIT ?2 + 1)) <= ?2`

	// ?1 are programs, ?2 is the maximum number of subscriptions of a program.
	selectManySubscriptions = `SELECT p.value ->> 0 FROM json_each(?1) p WHERE NOT ` + fewSubscriptions
)

// eventSpan is a range of events of one name that a subscription waits for or has accepted:
// after one seq, up to and including another.
type eventSpan struct {
	name     string
	after    int64
	until    sql.NullInt64 // NULL if the range is open
	filter   *webhook.EventFilter
	accepted bool
}

// has reports whether an event is in the span. fields are the event's, which has parses into them if a
// filter needs them.
func (s *eventSpan) has(e *webhook.Event, fields **webhook.Fields) bool {
	if s.name != e.Name || s.after >= e.Seq || s.until.Valid && s.until.Int64 < e.Seq {
		return false
	}
	if s.filter != nil && *fields == nil {
		*fields = new(webhook.Fields)
		(*fields).Parse(e.JSON)
	}
	return s.filter.Match(*fields)
}

// Results returns the results of events, in their order, with a fixed number of queries.
func (s Events) Results(ctx context.Context, events []webhook.Event) ([]EventResult, error) {
	results := make([]EventResult, len(events))
	if len(events) == 0 {
		return results, nil
	}
	var places [][]any // programs and seqs
	spans := make(map[string][2]int64)
	for i := range events {
		e := &events[i]
		places = append(places, []any{e.ProgramID, e.Seq})
		span, ok := spans[e.ProgramID]
		if !ok {
			span = [2]int64{e.Seq, e.Seq}
		}
		spans[e.ProgramID] = [2]int64{min(span[0], e.Seq), max(span[1], e.Seq)}
	}
	var programs [][]any
	for id, span := range spans {
		programs = append(programs, []any{id, span[0], span[1]})
	}
	err := s.view(ctx, func(v *view) error {
		err := v.Each(selectEventResults, []any{sqlite.JSON(places), resultDeliveries + 1}, func(scan func(...any) error) error {
			var i, deliveries int
			var states []byte
			if err := scan(&i, &deliveries, &states); err != nil {
				return err
			}
			results[i].More = deliveries > resultDeliveries
			return results[i].count(states)
		})
		if err != nil {
			return err
		}
		return v.addSpans(results, events, sqlite.JSON(programs))
	})
	return results, err
}

// count adds the statuses of deliveries, a JSON array.
func (r *EventResult) count(states []byte) error {
	var all []webhook.Status
	if err := json.Unmarshal(states, &all); err != nil {
		return err
	}
	for _, status := range all {
		switch status {
		case webhook.StatusSuccess:
			r.Delivered++
		case webhook.StatusFailed:
			r.Failed++
		case webhook.StatusRetryable:
			r.Retrying++
		default:
			r.Sending++
		}
	}
	return nil
}

// addSpans counts the subscriptions without a delivery: those that have not reached an event,
// and those whose deliveries were removed.
func (v *view) addSpans(results []EventResult, events []webhook.Event, programs any) error {
	all := make(map[string][]eventSpan)
	n := 0
	err := v.Each(selectEventSpans, []any{programs, resultSubscriptions, resultSpans}, func(scan func(...any) error) error {
		var program string
		var span eventSpan
		var filter sql.NullString
		err := scan(&program, &span.name, &span.after, &span.until, &filter, &span.accepted)
		if err == nil && filter.Valid {
			span.filter, err = ParseFilter(filter.String)
		}
		all[program] = append(all[program], span)
		n++
		return err
	})
	if err != nil {
		return err
	}
	var many []string
	err = v.Each(selectManySubscriptions, []any{programs, resultSubscriptions}, sqlite.Into(&many))
	for i := range events {
		e, r := &events[i], &results[i]
		r.More = r.More || n == resultSpans || slices.Contains(many, e.ProgramID)
		var fields *webhook.Fields
		for _, span := range all[e.ProgramID] {
			switch {
			case !e.ErasedAt.IsZero() && !span.accepted:
			case !span.has(e, &fields):
			case span.accepted:
				r.Delivered++
			default:
				r.Waiting++
			}
		}
	}
	return err
}
