package record

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// disorder bounds how far the times of events of different programs may be out of the order in
// which they were stored.
const disorder = time.Minute

// PageAll returns a page of the logs of all programs, in the order in which the events were stored,
// and the cursor of the next page, "" on the last. [store.Events.Page] returns the log of one program.
// A page with filters reads a bounded number of events, so it may be short or empty although more
// follow. Filters by ID, and by rare names, cost one index lookup per value and program.
func (s Events) PageAll(ctx context.Context, q *webhook.ListQuery) (events []webhook.Event, next string, err error) {
	f, err := s.feedAll(ctx, q)
	if err != nil {
		return nil, "", err
	}
	return list.Rows(ctx, f, selectListedRows, nil, func(scan func(...any) error) (e webhook.Event, err error) {
		var program string
		e, err = ScanEvent(s.dictionaries, "", func(dest ...any) error { return scan(append([]any{&program}, dest...)...) })
		e.ProgramID = program
		return e, err
	})
}

// feedAll returns the feed of events of all programs that match q.
func (s Events) feedAll(ctx context.Context, q *webhook.ListQuery) (*list.Feed, error) {
	received := q.Ranges["received_at"]
	wide := received // bounds the rowids; the filter then checks each row
	if !wide.From.IsZero() {
		wide.From = wide.From.Add(-disorder)
	}
	if !wide.To.IsZero() {
		wide.To = wide.To.Add(disorder)
	}
	low, high, err := s.lists.Between(ctx, "events", wide, s.rowBefore)
	if err != nil {
		return nil, err
	}
	f := &list.Feed{Reader: s.lists, Query: q, Low: low, High: high, Scope: list.Scope{List: "all events",
		Selection: webhook.EventList.Selection(q)}}
	f.Binds = bindsOfEvents(q)
	switch {
	case q.Filters["id"] != nil:
		f.Streams = []list.Stream{{Access: allEventsByID}}
	case q.Filters["name"] != nil:
		f.Find = func(lv *sqlite.View, descending bool, from int64) ([]list.Stream, error) {
			v := &view{lv, s.Reads}
			low, high := list.Beyond(from, descending, low, high)
			if few, err := v.namedEvents(q.Filters["name"], low, high); err != nil || few != nil {
				return few, err
			}
			return []list.Stream{{Access: allEvents}}, nil
		}
	default:
		f.Streams = []list.Stream{{Access: allEvents}}
	}
	f.Budget = q.Size + 1
	switch {
	case q.Filters["id"] != nil, q.Ranges["timestamp"] != (webhook.TimeRange{}):
		f.Budget = s.lists.Limits.CostlyScan
	case q.Filters != nil || q.Ranges != nil:
		f.Budget = s.lists.Limits.Scan / 2 // reads whole rows with their JSON, not index entries
	}
	return f, nil
}

// The rows of the logs of all programs, in the order in which events were stored.
var (
	rowMatches    = list.AllOf(list.IsWithin("received_at", "e.received_at"), "e.program_id"+list.CanBeUsed, eventMatches)
	allEvents     = list.Along("e.rowid", "e.rowid", rowMatches, "FROM events e WHERE TRUE")
	allEventsByID = list.Along("e.rowid", "e.rowid", rowMatches, `FROM json_each(:id) i CROSS JOIN programs p
		CROSS JOIN events e INDEXED BY events_by_id
		ON e.program_id = p.id AND e.id = i.value WHERE TRUE`)

	// One program and one name, between two seqs. The rowid rises with the seq, so a walk
	// continues where it stopped.
	allEventsByName = list.Along("e.rowid", "e.seq", rowMatches,
		"FROM events e INDEXED BY events_by_name WHERE e.program_id = :program AND e.name = :value AND e.seq > :from AND e.seq < :to")
)

const (
	selectListedRows = "SELECT e.program_id, e.seq, e.id, e.name, e.received_at, e.json, e.erased_at FROM json_each(?1) i " +
		"CROSS JOIN events e ON e.rowid = i.value ORDER BY i.key"
	selectRowFrom = "SELECT rowid, received_at FROM events WHERE rowid >= ? ORDER BY rowid LIMIT 1"
	selectRowEnds = "SELECT coalesce((SELECT min(rowid) FROM events), 1) - 1, coalesce((SELECT max(rowid) FROM events), 0) + 1"
)

// maxNamedLogs bounds the combinations of program and name that are searched by the index of
// names.
const maxNamedLogs = 128

// namedEvents returns a stream per program and name, limited to rows between two rowids, or
// nil if there would be too many.
func (v *view) namedEvents(names []string, low, high int64) ([]list.Stream, error) {
	programs, err := v.allPrograms()
	if err != nil || len(programs)*len(names) == 0 || len(programs)*len(names) > maxNamedLogs {
		return nil, err
	}
	var streams []list.Stream
	for _, program := range programs {
		from, to := int64(0), int64(math.MaxInt64)
		if low > 0 {
			if from, err = v.seqAtMost(program, low); err != nil {
				return nil, err
			}
		}
		if high < math.MaxInt64 {
			if to, err = v.seqAtMost(program, high-1); err != nil {
				return nil, err
			}
			to++
		}
		for _, name := range names {
			// "name" is nil: the index already selects the name.
			streams = append(streams, list.Stream{Access: allEventsByName, Binds: list.Binds{"program": program, "value": name, "name": nil,
				"from": from,
				"to":   to}})
		}
	}
	return streams, nil
}

// seqAtMost returns the seq of the newest event of a program whose rowid is at most row, 0 if
// there is none.
func (v *view) seqAtMost(programID string, row int64) (int64, error) {
	return lastSeq(v.Scan, selectSeqRow, programID, func(at, _ int64) bool { return at <= row })
}

// rowBefore returns the highest rowid of an event that was received before a time, 0 if there
// is none, give or take disorder.
func (s Events) rowBefore(ctx context.Context, at time.Time) (int64, error) {
	return s.lists.LastBefore(ctx, "events", selectRowEnds, selectRowFrom, at)
}

// EventDelivery is a delivery that carries an event, with its target.
type EventDelivery struct {
	webhook.Delivery // without its events
	ReplayID         string
	URL              string // of the subscription
	Description      string // of the subscription
	ResponseStatus   int    // of the last completed attempt, 0 if none
	Error            webhook.ErrorCode
}

// EventWait is a subscription that selects an event and has not reached it yet.
type EventWait struct {
	Subscription webhook.Subscription
	Behind       int64 // how many events its cursor is behind
}

// EventView is an event with its deliveries.
type EventView struct {
	webhook.Event
	Deliveries []EventDelivery // newest first
	Older      string          // cursor of older deliveries, "" if there are none
	Waiting    []EventWait     // at most MaxEventWaits
	Filtered   []EventWait     // the subscriptions whose filter excludes it; at most MaxEventWaits
	Removed    int             // subscriptions whose successful delivery retention has removed; at most MaxEventWaits
}

const (
	MaxEventWaits   = 100 // maximum of EventView.Waiting and Removed
	EventDeliveries = 50  // deliveries on a page of EventView
)

const (
	selectEventDeliveries = `SELECT d.num, d.id, d.subscription_id, d.status, d.failure_reason, d.attempts_made, d.next_attempt_at,
		d.redelivery_of, d.split_of, d.replay_id,
		CASE WHEN d.status = 'failed' THEN (SELECT r.at FROM recovered r WHERE r.delivery = d.num) END,
		d.status = 'failed' AND EXISTS (SELECT 1 FROM splits p WHERE p.delivery = d.num),
		d.created_at, d.completed_at, d.response_status, d.error, s.url, s.description, iif(d.next_attempt_at IS NULL, NULL, s.deleted_at)
		FROM delivery_events x CROSS JOIN deliveries d ON d.num = x.delivery CROSS JOIN subscriptions s ON s.id = d.subscription_id
		WHERE x.program_id = ?1 AND x.seq = ?2 AND x.delivery < ?3 ORDER BY x.delivery DESC LIMIT ?4`

	selectEventWaits = `SELECT ?3 - c.seq, NOT ` + PassesFilter + `, s.id, s.program_id, s.url, s.active, s.description, s.events, s.ordered, s.max_in_flight,
		s.authorization_header IS NOT NULL, s.header_names, s.filters, s.status, s.disabled_reason, s.revision, s.created_at, s.updated_at, s.deleted_at,
		s.max_per_second, coalesce(s.max_events, 0), f.failing_reason, f.failing_since, f.next_probe_at
		FROM subscriptions s INDEXED BY subscriptions_by_program CROSS JOIN interests i ON i.subscription_id = s.id CROSS JOIN cursors c
		ON c.subscription_id = s.id CROSS JOIN events e ON e.program_id = ?1 AND e.seq = ?3
		LEFT JOIN failures f ON f.subscription_id = s.id
		WHERE s.program_id = ?1 AND s.deleted_at IS NULL AND i.name = ?2 AND i.after_seq < ?3 AND (i.until_seq IS NULL OR i.until_seq >= ?3)
		AND (c.seq < ?3 OR NOT ` + PassesFilter + `) LIMIT ?4`

	countEventRemoved = `SELECT count(*) FROM (SELECT 1 FROM subscriptions s INDEXED BY subscriptions_of_program WHERE s.program_id = ?1
		AND coalesce((SELECT r.last_seq FROM delivered r
		WHERE r.subscription_id = s.id AND r.name = ?2 AND r.first_seq <= ?3 ORDER BY r.first_seq DESC LIMIT 1), 0) >= ?3 LIMIT ?4)`
)

// View returns an event of a program, with a page of the deliveries that carry it and the
// subscriptions that have not reached it. cursor is Older of the previous page, or "".
func (s Events) View(ctx context.Context, programID, id, cursor string) (e EventView, err error) {
	if e.Event, err = s.Get(ctx, programID, id); err != nil {
		return e, err
	}
	id = e.ID
	scope := list.Scope{List: "event deliveries", ProgramID: programID, Parent: id}
	position := []int64{1<<63 - 1}
	if cursor != "" {
		if err := s.lists.Key.ParseCursor(scope, cursor, position); err != nil {
			return e, err
		}
	}
	err = s.view(ctx, func(v *view) error {
		var nums []int64
		err := v.Each(selectEventDeliveries, []any{programID, e.Seq, position[0], EventDeliveries + 1}, func(scan func(...any) error) error {
			d, num, err := s.scanEventDelivery(programID, scan)
			e.Deliveries, nums = append(e.Deliveries, d), append(nums, num)
			return err
		})
		if err != nil {
			return err
		}
		if len(nums) > EventDeliveries {
			e.Deliveries = e.Deliveries[:EventDeliveries]
			e.Older = s.lists.Key.Cursor(scope, nums[EventDeliveries-1:EventDeliveries])
		}
		if err := v.Scan(countEventRemoved, []any{programID, e.Name, e.Seq, MaxEventWaits}, &e.Removed); err != nil {
			return err
		}
		if !e.ErasedAt.IsZero() {
			return nil // it waits for nobody
		}
		return v.Each(selectEventWaits, []any{programID, e.Name, e.Seq, MaxEventWaits}, func(scan func(...any) error) error {
			var w EventWait
			var filtered bool
			w.Subscription, err = ScanSubscription(func(dest ...any) error { return scan(append([]any{&w.Behind, &filtered}, dest...)...) })
			if filtered {
				e.Filtered = append(e.Filtered, w)
			} else {
				e.Waiting = append(e.Waiting, w)
			}
			return err
		})
	})
	return e, err
}

// scanEventDelivery reads a row of selectEventDeliveries.
func (s *Reads) scanEventDelivery(programID string, scan func(...any) error) (d EventDelivery, num int64, err error) {
	var next sql.NullInt64
	var deleted time.Time
	err = scan(&num, (*DeliveryID)(&d.ID), &d.SubscriptionID, &d.Status, sqlite.OrZero(&d.FailureReason), &d.AttemptsMade, &next,
		(*DeliveryID)(&d.RedeliveryOf), (*DeliveryID)(&d.SplitOf), sqlite.OrZero(&d.ReplayID), (*sqlite.Time)(&d.RecoveredAt), &d.Splitting,
		(*sqlite.Time)(&d.CreatedAt), (*sqlite.Time)(&d.CompletedAt), sqlite.OrZero(&d.ResponseStatus), sqlite.OrZero(&d.Error), &d.URL,
		&d.Description, (*sqlite.Time)(&deleted))
	d.ProgramID, d.NextAttemptAt = programID, s.clock.Shown(next)
	if !deleted.IsZero() { // see scanDelivery
		d.Status, d.FailureReason, d.NextAttemptAt, d.CompletedAt = webhook.StatusFailed, webhook.FailureSubscriptionDeleted, time.Time{}, deleted
	}
	return d, num, err
}

// EventSubscribers counts the subscriptions that select an event type.
type EventSubscribers struct {
	Active, Paused int
}

// maxCountedSubscriptions bounds how many subscriptions are read to count the subscribers of
// event types.
const maxCountedSubscriptions = 10_000

const (
	// Many subscriptions have the same list of events: parse each list once.
	countSubscribersOfAll = countSubscribers + "SELECT active, events FROM subscriptions INDEXED BY subscriptions_by_program " +
		"WHERE deleted_at IS NULL LIMIT ?1" + bySubscribed
	countSubscribersOfProgram = countSubscribers + "SELECT active, events FROM subscriptions INDEXED BY subscriptions_by_program " +
		"WHERE program_id = ?2 AND deleted_at IS NULL LIMIT ?1" + bySubscribed

	countSubscribers = "SELECT n.value, sum(s.active), sum(s.paused) FROM (SELECT events, sum(active) AS active, sum(1 - active) AS " +
		"paused FROM ("
	bySubscribed = ") GROUP BY events) s CROSS JOIN json_each(s.events) n GROUP BY n.value"

	selectSubscribersOfAll = "SELECT " + SubscriptionColumns + ` FROM subscriptions INDEXED BY subscriptions_by_program
		WHERE deleted_at IS NULL AND EXISTS (SELECT 1 FROM json_each(events) WHERE value = ?1) LIMIT ?2`
	selectSubscribersOfProgram = "SELECT " + SubscriptionColumns + ` FROM subscriptions INDEXED BY subscriptions_by_program
		WHERE program_id = ?3 AND deleted_at IS NULL AND EXISTS (SELECT 1 FROM json_each(events) WHERE value = ?1) LIMIT ?2`
)

// CountSubscribers counts the subscriptions of a program, "" for all, by event type, among the
// first maxCountedSubscriptions.
func (s Events) CountSubscribers(ctx context.Context, programID string) (map[string]EventSubscribers, error) {
	query, args := countSubscribersOfAll, []any{maxCountedSubscriptions}
	if programID != "" {
		query, args = countSubscribersOfProgram, append(args, programID)
	}
	counts := make(map[string]EventSubscribers)
	err := s.lists.DB.Each(ctx, query, args, func(scan func(...any) error) error {
		var name string
		var c EventSubscribers
		err := scan(&name, &c.Active, &c.Paused)
		counts[name] = c
		return err
	})
	return counts, err
}

// Subscribers returns at most limit subscriptions of a program, "" for all, that select an
// event type.
func (s Events) Subscribers(ctx context.Context, programID, name string, limit int) ([]webhook.Subscription, error) {
	query, args := selectSubscribersOfAll, []any{name, limit}
	if programID != "" {
		query, args = selectSubscribersOfProgram, append(args, programID)
	}
	var subs []webhook.Subscription
	err := s.lists.DB.Each(ctx, query, args, sqlite.ScanInto(&subs, ScanSubscription))
	return subs, err
}

// Page returns a page of a program's log, and the cursor of the next page, "" on the last. A
// page with filters reads a bounded number of events, so it may be short or empty although more
// follow.
func (s Events) Page(ctx context.Context, programID string, q *webhook.ListQuery) (events []webhook.Event, next string, err error) {
	f, err := s.feed(ctx, programID, q)
	if err != nil {
		return nil, "", err
	}
	return list.Rows(ctx, f, selectListedEvents, []any{programID}, func(scan func(...any) error) (webhook.Event, error) {
		return ScanEvent(s.dictionaries, programID, scan)
	})
}

// Newer returns the cursor of the page before the one at the cursor of q, "" if that is the
// first. programID is "" for all programs.
func (s Events) Newer(ctx context.Context, programID string, q *webhook.ListQuery) (string, error) {
	f, err := s.feedOf(ctx, programID, q)
	if err != nil {
		return "", err
	}
	return f.Newer(ctx)
}

// feedOf returns the feed of a program, or for "" that of all programs.
func (s Events) feedOf(ctx context.Context, programID string, q *webhook.ListQuery) (*list.Feed, error) {
	if programID == "" {
		return s.feedAll(ctx, q)
	}
	return s.feed(ctx, programID, q)
}

// feed returns the feed of a program's events that match q.
func (s Events) feed(ctx context.Context, programID string, q *webhook.ListQuery) (*list.Feed, error) {
	low, high, err := s.lists.Between(ctx, "", q.Ranges["received_at"], func(ctx context.Context, at time.Time) (int64, error) {
		return s.SeqBefore(ctx, programID, at)
	})
	if err != nil {
		return nil, err
	}
	f := &list.Feed{Reader: s.lists, Query: q, Low: low, High: high, Scope: list.Scope{List: "events", ProgramID: programID,
		Selection: webhook.EventList.Selection(q)},
		Budget: q.Size + 1}
	f.Binds = bindsOfEvents(q)
	f.Binds["program"] = programID
	switch names := q.Filters["name"]; {
	case q.Filters["id"] != nil:
		f.Streams = []list.Stream{{Access: eventsByID}}
	case names == nil:
		f.Streams = []list.Stream{{Access: eventsBySeq}}
	default:
		for _, name := range names {
			f.Streams = append(f.Streams, list.Stream{Access: eventsByName, Binds: list.Binds{"name": nil, "value": name}})
		}
	}
	if q.Ranges["timestamp"] != (webhook.TimeRange{}) || q.Filters["id"] != nil {
		f.Budget = s.lists.Limits.CostlyScan
	}
	return f, nil
}

func bindsOfEvents(q *webhook.ListQuery) list.Binds {
	b, stamps := list.BindsOf(q), q.Ranges["timestamp"]
	b["timestamp_from"], b["timestamp_to"] = stampOf(stamps.From), stampOf(stamps.To)
	return b
}

// The timestamp of an event is at a fixed offset of its JSON, at another offset if the JSON
// is compressed. It is UTC with Z or +00:00; without that suffix, timestamps sort as text.
const (
	eventStamp = "replace(rtrim(substr(" + stampFrom + ", 1, instr(" + stampFrom + ", '\"') - 1), 'Z'), '+00:00', '')"
	stampFrom  = "CAST(substr(e.json, iif(substr(e.json, 1, 1) = x'7b', 59, 2), 40) AS TEXT)"
)

var (
	eventMatches = list.AllOf(list.IsIn("e.name"), list.IsWithin("timestamp", eventStamp))
	eventsBySeq  = list.Along("e.seq", "e.seq", eventMatches, "FROM events e INDEXED BY events_by_seq WHERE e.program_id = :program")
	eventsByName = list.Along("e.seq", "e.seq", eventMatches,
		"FROM events e INDEXED BY events_by_name WHERE e.program_id = :program AND e.name = :value")
	eventsByFilter = list.Along("e.seq", "e.seq", ":filter IS NULL OR event_matches(:filter, e.id, e.json)",
		"FROM events e INDEXED BY events_by_name WHERE e.program_id = :program AND e.name = :value")
	eventsByID = list.Along("e.seq", "e.seq", eventMatches,
		"FROM events e INDEXED BY events_by_id WHERE e.program_id = :program AND e.id IN (SELECT value FROM json_each(:id))")
)

const selectListedEvents = "SELECT e.seq, e.id, e.name, e.received_at, e.json, e.erased_at FROM json_each(?2) i " +
	"CROSS JOIN events e ON e.program_id = ?1 AND e.seq = i.value ORDER BY i.key"

// stampOf formats a time for comparison with eventStamp; the zero time is NULL.
func stampOf(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999999") // 9s omit trailing zeros
}

// Get returns one event of a program.
func (s Events) Get(ctx context.Context, programID, id string) (webhook.Event, error) {
	id = strings.ToLower(id) // events are stored in lower case, and some publishers write capitals
	if err := s.use(programID, "event"); err != nil {
		return webhook.Event{}, err
	}
	e, err := ScanEvent(s.dictionaries, programID, s.lists.DB.Row(ctx, SelectEvent, programID, id))
	return e, sqlite.NoRows(err, webhook.NotFound("event"))
}

// SeqBefore returns the newest seq of a program's log that was received before a time, 0 if
// there is none.
func (s *Reads) SeqBefore(ctx context.Context, programID string, at time.Time) (int64, error) {
	return s.LastSeq(ctx, programID, func(_, received int64) bool { return received < at.UnixMilli() })
}

// LastSeq returns the newest seq of a program's log for whose rowid and acceptance time is returns
// true. is must be true for all seqs before that one as well. LastSeq returns 0 if there is none.
func (s *Reads) LastSeq(ctx context.Context, programID string, is func(row, received int64) bool) (int64, error) {
	scan, _ := s.lists.DB.Reads(ctx)
	return lastSeq(scan, selectAtMost, programID, is)
}

// lastSeq is LastSeq with scan, and with a query for the newest event up to a seq.
func lastSeq(scan sqlite.ScanRow, atMost, programID string, is func(row, received int64) bool) (int64, error) {
	var low, high int64 // true; not true
	err := scan(selectSeqEnds, []any{programID}, &low, &high)
	for err == nil && high-low > 1 {
		// Retention leaves gaps, so check the newest seq up to the middle.
		middle := low + (high-low)/2
		var seq, row, received int64
		err = scan(atMost, []any{programID, middle}, &seq, &row, &received)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			low, err = middle, nil
		case err == nil && is(row, received):
			low = middle
		default:
			high = seq
		}
	}
	return low, err
}

const (
	selectSeqEnds = "SELECT coalesce((SELECT min(seq) FROM events WHERE program_id = ?1), 1) - 1, coalesce((SELECT max(seq) FROM events " +
		"WHERE program_id = ?1), 0) + 1"
	// Only for the rowid, by the index alone.
	selectSeqRow = "SELECT seq, rowid, 0 FROM events WHERE program_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
	selectAtMost = "SELECT seq, rowid, received_at FROM events WHERE program_id = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
)
