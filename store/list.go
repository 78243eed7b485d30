package store

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// listLimits bound what a page of a feed costs, however many rows there are: it
// either knows its rows by an index, or walks along the list's order and leaves
// off after so many rows, or so long, with a cursor, having found what it found.
type listLimits struct {
	set        int           // rows that a page picks out by the index of a filter, to put them in order itself
	scan       int           // rows that a page looks at while it walks along the list's order
	costlyScan int           // the same where judging a row looks into events
	time       time.Duration // after that a walk leaves off that has looked at leastScan rows; 0 is no limit
	plan       time.Duration // after that a plan of a bulk action picks no more; the same
}

// leastScan is how many rows a walk looks at however long it takes: what is
// asked for without a filter is a whole page.
const leastScan = 500

// defaultListLimits are those of every store but in tests. A row takes about a
// microsecond when it lies beside the one before, ten when it has to be read,
// and a hundred when it is a delivery of a hundred events to be looked into.
var defaultListLimits = listLimits{set: 2500, scan: 10_000, costlyScan: 5000, time: 15 * time.Millisecond, plan: 20 * time.Millisecond}

// over returns when the time of a walk that begins now is over.
func (l *listLimits) over(now time.Time) time.Time { return now.Add(l.time) }

// late says whether a walk that has looked at so many rows is to leave off since
// its time is over.
func (l *listLimits) late(looked int, over time.Time) bool {
	return l.time > 0 && looked >= leastScan && time.Now().After(over)
}

// Page returns a page of a program's subscriptions, and how many the
// filters let through in all.
func (s Subscriptions) Page(ctx context.Context, programID string, q *webhook.ListQuery) (subs []webhook.Subscription, total int, err error) {
	var active []int
	for _, word := range q.Filters["active"] {
		active = append(active, map[string]int{"false": 0, "true": 1}[word])
	}
	created, updated := q.Ranges["created_at"], q.Ranges["updated_at"]
	args := []any{programID, 0, 0, jsonOf(active), jsonOf(q.Filters["status"]), jsonOf(q.Filters["url"]),
		millis(created.From), millis(created.To), millis(updated.From), millis(updated.To), jsonOf(q.Filters["event"])}
	err = s.view(ctx, func(v *view) error {
		if err := v.Scan("SELECT count(*)"+listedSubscriptions, args, &total); err != nil || q.Number-1 > total/q.Size {
			return err
		}
		args[1], args[2] = q.Size, (q.Number-1)*q.Size
		return v.Each("SELECT "+subscriptionColumns+listedSubscriptions+orderSubscriptions(q.Sort)+" LIMIT ?2 OFFSET ?3", args, func(scan func(...any) error) error {
			sub, err := scanSubscription(scan)
			subs = append(subs, sub)
			return err
		})
	})
	return subs, total, err
}

const listedSubscriptions = ` FROM subscriptions WHERE program_id = ?1 AND deleted_at IS NULL
	AND (?4 IS NULL OR active IN (SELECT value FROM json_each(?4)))
	AND (?5 IS NULL OR status IN (SELECT value FROM json_each(?5)))
	AND (?6 IS NULL OR url IN (SELECT value FROM json_each(?6)))
	AND (?7 IS NULL OR created_at >= ?7) AND (?8 IS NULL OR created_at < ?8)
	AND (?9 IS NULL OR updated_at >= ?9) AND (?10 IS NULL OR updated_at < ?10)
	AND (?11 IS NULL OR EXISTS (SELECT 1 FROM json_each(events) WHERE value IN (SELECT value FROM json_each(?11))))`

// orderSubscriptions renders an order of the list's own fields; ids, which rise
// in the order of creation, break the last ties.
func orderSubscriptions(order []webhook.SortField) string {
	var terms []string
	for _, f := range append(slices.Clone(order), webhook.SortField{Name: "id", Descending: order[0].Descending}) {
		if !slices.Contains(webhook.SubscriptionList.Sort, f.Name) && f.Name != "id" {
			panic("store: no order of subscriptions: " + f.Name)
		}
		if f.Descending {
			f.Name += " DESC"
		}
		terms = append(terms, f.Name)
	}
	return " ORDER BY " + strings.Join(terms, ", ")
}

// stream is the rows of one query in the order of a key, such as num or seq,
// by an index. Its first arguments are how many rows it may look at, and the
// bounds of the key, both exclusive; its rows are the key and whether the
// filters let it through.
type stream struct {
	up, down string // the query in either direction
	args     []any  // from ?4 on
}

// walk reads the keys of several streams that have no row in common, merged,
// between low and high, until want were let through. It looks at no more than
// budget rows, but for one of each stream, and leaves off when its time is over.
// more says that it left off at the key at, and not for want of rows.
func (v *view) walk(streams []stream, descending bool, low, high int64, want, budget int) (keys []int64, at int64, more bool, err error) {
	if len(streams) == 0 {
		return nil, 0, false, nil
	}
	// Of each stream a few rows are read at a time, since which of them the next
	// keys are in is not known; of one alone, as many as may be needed.
	w := walker{view: v, descending: descending, budget: budget, over: v.s.lists.over(time.Now())}
	few := max(want*2/len(streams), 8)
	heads := make([]reading, len(streams))
	for i := range heads {
		h := &heads[i]
		*h = reading{stream: &streams[i], low: low, high: high, size: min(few, max(budget/len(streams), 1))}
		if err := w.read(h); err != nil {
			return nil, 0, false, err
		}
	}
	for {
		next := w.first(heads)
		if next == nil {
			return keys, 0, false, nil
		}
		row := next.rows[0]
		next.rows = next.rows[1:]
		if row.ok {
			if keys = append(keys, row.key); len(keys) == want {
				return keys, row.key, true, nil
			}
		}
		if len(next.rows) > 0 || next.done {
			continue
		}
		// What comes after in the others is not known to be next without this one.
		if w.looked >= budget || v.s.lists.late(w.looked, w.over) {
			return keys, row.key, true, nil
		}
		next.size *= 4
		next.low, next.high = beyond(row.key, descending, next.low, next.high)
		if err := w.read(next); err != nil {
			return nil, 0, false, err
		}
	}
}

// reading is where a walk stands in one stream.
type reading struct {
	*stream
	rows      []walked // read, and not yet come to
	low, high int64    // of what was not read
	size      int      // how many rows to read next
	done      bool     // there is no more to read
}

type walked struct {
	key int64
	ok  bool
}

type walker struct {
	*view
	descending bool
	budget     int
	over       time.Time
	looked     int
}

// first returns the stream whose next row comes first, nil when none has any.
func (w *walker) first(heads []reading) *reading {
	var first *reading
	for i := range heads {
		if h := &heads[i]; len(h.rows) > 0 && (first == nil || w.descending == (h.rows[0].key > first.rows[0].key)) {
			first = h
		}
	}
	return first
}

// read reads the next rows of a stream, at least one if there is any.
func (w *walker) read(h *reading) error {
	query := h.up
	if w.descending {
		query = h.down
	}
	size := max(min(h.size, w.budget-w.looked), 1)
	h.rows = h.rows[:0]
	late := false
	err := w.Each(query, append([]any{size, h.low, h.high}, h.args...), func(scan func(...any) error) error {
		var row walked
		if err := scan(&row.key, &row.ok); err != nil {
			return err
		}
		h.rows = append(h.rows, row)
		w.looked++
		if late = w.s.lists.late(w.looked, w.over); late {
			return sqlite.ErrStop
		}
		return nil
	})
	h.done = len(h.rows) < size && !late
	return err
}

// jsonOf renders the values of a filter as an array to bind; nil is NULL: no
// filter.
func jsonOf[T any](values []T) any {
	if values == nil {
		return nil
	}
	b, err := json.Marshal(values)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

// Page returns a page of a program's log, and the cursor of the next page,
// "" on the last. A page that filters looks at a bounded number of events: it
// may be short or empty, and there is more all the same when there is a cursor.
func (s Events) Page(ctx context.Context, programID string, q *webhook.ListQuery) (events []webhook.Event, next string, err error) {
	f, err := s.feed(ctx, programID, q)
	if err != nil {
		return nil, "", err
	}
	err = s.view(ctx, func(v *view) error {
		var seqs []int64
		if seqs, next, err = f.page(v); err != nil {
			return err
		}
		return v.Each(selectListedEvents, []any{programID, jsonOf(seqs)}, func(scan func(...any) error) error {
			e, err := scanEvent(programID, scan)
			events = append(events, e)
			return err
		})
	})
	return events, next, err
}

// Newer returns the cursor of the page before the one that a query of the
// log of a program, or of all programs when that is "", asks for by its cursor;
// "" when that is the first.
func (s Events) Newer(ctx context.Context, programID string, q *webhook.ListQuery) (string, error) {
	var f *feed
	var err error
	if programID == "" {
		f, err = s.feedAll(ctx, q)
	} else {
		f, err = s.feed(ctx, programID, q)
	}
	if err != nil {
		return "", err
	}
	return f.newer(ctx)
}

// feed is where the places of a program's log are found.
func (s Events) feed(ctx context.Context, programID string, q *webhook.ListQuery) (*feed, error) {
	low, high, err := s.between(ctx, q.Ranges["received_at"], func(ctx context.Context, at time.Time) (int64, error) {
		return s.seqBefore(ctx, programID, at)
	})
	if err != nil {
		return nil, err
	}
	f := &feed{s: s.core, q: q, low: low, high: high, scope: cursorScope{"events", programID, "", webhook.EventList.Selection(q)}, budget: q.Size + 1}
	stamps := q.Ranges["timestamp"]
	names := q.Filters["name"]
	args := []any{programID, nil, stampOf(stamps.From), stampOf(stamps.To)}
	if ids := q.Filters["id"]; ids != nil {
		f.streams = []stream{{eventsByID + seqsUp, eventsByID + seqsDown, append(slices.Clone(args), jsonOf(ids), jsonOf(names))}}
	} else if names == nil {
		f.streams = []stream{{eventsBySeq + seqsUp, eventsBySeq + seqsDown, args}}
	}
	if f.streams == nil {
		for _, name := range names {
			named := slices.Clone(args)
			named[1] = name
			f.streams = append(f.streams, stream{eventsByName + seqsUp, eventsByName + seqsDown, named})
		}
	}
	if stamps != (webhook.TimeRange{}) || q.Filters["id"] != nil {
		f.budget = s.lists.costlyScan
	}
	return f, nil
}

// The streams of events: ?4 is the program, ?5 a name, ?6 and ?7 the span of
// timestamps, ?8 ids, ?9 names.
const (
	eventsBySeq  = "SELECT e.seq, " + eventMatches + " FROM events e INDEXED BY events_by_seq WHERE e.program_id = ?4 AND e.seq > ?2 AND e.seq < ?3"
	eventsByName = "SELECT e.seq, " + eventMatches + " FROM events e INDEXED BY events_by_name WHERE e.program_id = ?4 AND e.name = ?5 AND e.seq > ?2 AND e.seq < ?3"
	eventsByID   = "SELECT e.seq, " + eventMatches + " AND (?9 IS NULL OR e.name IN (SELECT value FROM json_each(?9))) FROM events e INDEXED BY events_by_id WHERE e.program_id = ?4 AND e.id IN (SELECT value FROM json_each(?8)) AND e.seq > ?2 AND e.seq < ?3"

	seqsUp, seqsDown = " ORDER BY e.seq LIMIT ?1", " ORDER BY e.seq DESC LIMIT ?1"

	// The timestamp of an event stands at a fixed place of its JSON, and is UTC
	// with Z or +00:00; without that, timestamps are in the order of their text.
	eventMatches = "(?6 IS NULL OR " + eventStamp + " >= ?6) AND (?7 IS NULL OR " + eventStamp + " < ?7)"
	eventStamp   = "replace(rtrim(substr(CAST(substr(e.json, 59, 40) AS TEXT), 1, instr(CAST(substr(e.json, 59, 40) AS TEXT), '\"') - 1), 'Z'), '+00:00', '')"

	selectListedEvents = "SELECT e.seq, e.id, e.name, e.received_at, e.json FROM json_each(?2) i CROSS JOIN events e ON e.program_id = ?1 AND e.seq = i.value ORDER BY i.key"
)

// stampOf renders a time as eventStamp compares them; zero is NULL.
func stampOf(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999999") // 9: no zeros at the end
}

// between turns a span of time into the span of a key along which time never
// falls. Both bounds are exclusive.
func (s *core) between(ctx context.Context, r webhook.TimeRange, before func(context.Context, time.Time) (int64, error)) (low, high int64, err error) {
	high = math.MaxInt64
	if !r.From.IsZero() {
		if low, err = before(ctx, r.From); err != nil {
			return low, high, err
		}
	}
	if !r.To.IsZero() {
		high, err = before(ctx, r.To)
		high++
	}
	return low, high, err
}

// beyond narrows the bounds of a key to what comes after a place.
func beyond(place int64, descending bool, low, high int64) (int64, int64) {
	if descending {
		return low, min(high, place)
	}
	return max(low, place), high
}

// Page returns a page of a subscription's deliveries, and the cursor of
// the next page, "" on the last. A page that filters looks at a bounded number
// of deliveries: it may be short or empty, and there is more all the same when
// there is a cursor.
func (s Deliveries) Page(ctx context.Context, programID, subscriptionID string, q *webhook.ListQuery) (page []webhook.Delivery, next string, err error) {
	if _, err := Subscriptions(s).Get(ctx, programID, subscriptionID); err != nil {
		return nil, "", err
	}
	return s.list(ctx, programID, subscriptionID, webhook.DeliveryList, q)
}

// PageAll is Deliveries over all programs, for admins: of a query of
// webhook.AllDeliveryList.
func (s Deliveries) PageAll(ctx context.Context, q *webhook.ListQuery) (page []webhook.Delivery, next string, err error) {
	return s.list(ctx, "", "", webhook.AllDeliveryList, q)
}

// list lists those of one subscription, or of all when that is "".
func (s Deliveries) list(ctx context.Context, programID, subscriptionID string, list *webhook.List, q *webhook.ListQuery) (page []webhook.Delivery, next string, err error) {
	l := deliveryList{q: q, programID: programID, subscriptionID: subscriptionID}
	if l.low, l.high, err = s.between(ctx, q.Ranges["created_at"], s.numBefore); err != nil {
		return nil, "", err
	}
	scope := cursorScope{"deliveries", programID, subscriptionID, list.Selection(q)}
	place := make([]int64, 1)
	if q.Sort[0].Name == "completed_at" {
		place = make([]int64, completedPlace)
	}
	if q.Cursor != "" {
		if err := s.place(scope, q.Cursor, place); err != nil {
			return nil, "", err
		}
	}
	err = s.view(ctx, func(v *view) error {
		var nums []int64
		var after []int64 // the place to go on from, nil at the end
		l.view = v
		if q.Sort[0].Name == "completed_at" {
			nums, after, err = l.byCompletion(place)
		} else {
			nums, after, err = l.byCreation(place)
		}
		if err != nil {
			return err
		}
		if after != nil {
			next = s.cursor(scope, after)
		}
		return v.Each(selectListedDeliveries, []any{jsonOf(nums)}, func(scan func(...any) error) error {
			d, _, err := s.scanDelivery(scan)
			page = append(page, d)
			return err
		})
	})
	return page, next, err
}

const selectListedDeliveries = "SELECT " + deliveryColumns + " FROM json_each(?) i CROSS JOIN deliveries d ON d.num = i.value ORDER BY i.key"

// numBefore returns the greatest num of a delivery that was created before a
// time, 0 when there is none.
func (s *core) numBefore(ctx context.Context, at time.Time) (int64, error) {
	var low, high int64 // created before, and not
	err := s.db.Scan(ctx, "SELECT coalesce((SELECT min(num) FROM deliveries), 1) - 1, coalesce((SELECT max(num) FROM deliveries), 0) + 1", nil, &low, &high)
	for err == nil && high-low > 1 {
		middle := low + (high-low)/2
		var num, created int64 // of the first from the middle on: what is old may be gone
		if err = s.db.Scan(ctx, selectFromNum, []any{middle}, &num, &created); err == nil && created < at.UnixMilli() {
			low = num
		} else {
			high = middle
		}
	}
	return low, err
}

const selectFromNum = "SELECT num, created_at FROM deliveries WHERE num >= ? ORDER BY num LIMIT 1"

// deliveryList reads one page of deliveries.
type deliveryList struct {
	*view
	q                         *webhook.ListQuery
	programID, subscriptionID string
	low, high                 int64 // bounds of num, exclusive
}

// The queries of deliveries have the arguments of a stream, then: ?4 the
// subscription, ?5 the value that the index is searched for, ?6 and ?7 a place
// in completed_at and num, and from ?8 the filters, of which NULL is none.
const (
	// What waits for an attempt of a deleted subscription has failed.
	overtaken       = "(d.next_attempt_at IS NOT NULL AND EXISTS (SELECT 1 FROM subscriptions z WHERE z.id = d.subscription_id AND z.deleted_at IS NOT NULL))"
	deliveryMatches = `((?8 IS NULL OR iif(` + overtaken + `, 'failed', d.status) IN (SELECT value FROM json_each(?8)))
		AND (?9 IS NULL OR d.response_status IN (SELECT value FROM json_each(?9)))
		AND (?10 IS NULL OR d.error IN (SELECT value FROM json_each(?10)))
		AND (?11 IS NULL OR d.completed_at >= ?11) AND (?12 IS NULL OR d.completed_at < ?12)
		AND (?13 IS NULL OR d.next_attempt_at >= ?13) AND (?14 IS NULL OR d.next_attempt_at < ?14) AND (?13 IS NULL AND ?14 IS NULL OR NOT ` + overtaken + `)
		AND (?15 IS NULL OR d.ping IS NOT NULL AND 'ping' IN (SELECT value FROM json_each(?15))
			OR EXISTS (SELECT 1 FROM json_each(d.seqs) x CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = x.value WHERE e.name IN (SELECT value FROM json_each(?15))))
		AND (?16 IS NULL OR d.program_id IN (SELECT value FROM json_each(?16)))
		AND (?17 IS NULL OR d.subscription_id IN (SELECT value FROM json_each(?17)))
		AND (?18 IS NULL OR d.attempts_made >= ?18)
		AND (?19 IS NULL OR d.id IN (SELECT value FROM json_each(?19)))
		AND (?20 IS NULL OR d.redelivery_of IN (SELECT value FROM json_each(?20)))
		AND (?21 IS NULL OR d.replay_id IN (SELECT value FROM json_each(?21)))) IS TRUE`

	withinNums = " AND d.num > ?2 AND d.num < ?3"

	deliveriesOfAll          = "SELECT d.num, " + deliveryMatches + " FROM deliveries d WHERE TRUE" + withinNums
	deliveriesBySubscription = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_subscription WHERE d.subscription_id = ?4" + withinNums
	deliveriesByStatus       = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_status WHERE d.status = ?5 AND d.status <> 'success' AND d.subscription_id = ?4" + withinNums
	deliveriesByResponse     = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_response WHERE d.subscription_id = ?4 AND d.response_status = ?5 AND d.response_status NOT BETWEEN 200 AND 299" + withinNums
	deliveriesByError        = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_error WHERE d.subscription_id = ?4 AND d.error = ?5 AND d.error IS NOT NULL" + withinNums
	deliveriesPings          = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_pings WHERE d.subscription_id = ?4 AND d.ping IS NOT NULL" + withinNums

	numsUp, numsDown = " ORDER BY d.num LIMIT ?1", " ORDER BY d.num DESC LIMIT ?1"

	deliveriesOfSet = "SELECT d.num, coalesce(d.completed_at, 0), d.completed_at IS NOT NULL FROM json_each(?5) i CROSS JOIN deliveries d ON d.num = i.value WHERE d.subscription_id = ?4 AND " + deliveryMatches + withinNums

	// The rows that a filter lets through, by its index, in no order.
	setOfStatus    = "SELECT num FROM deliveries INDEXED BY deliveries_by_status WHERE status IN (SELECT value FROM json_each(?3)) AND status <> 'success' AND subscription_id = ?1 LIMIT ?2"
	setOfResponse  = "SELECT num FROM deliveries INDEXED BY deliveries_by_response WHERE subscription_id = ?1 AND response_status IN (SELECT value FROM json_each(?3)) AND response_status NOT BETWEEN 200 AND 299 LIMIT ?2"
	setOfError     = "SELECT num FROM deliveries INDEXED BY deliveries_by_error WHERE subscription_id = ?1 AND error IN (SELECT value FROM json_each(?3)) AND error IS NOT NULL LIMIT ?2"
	setOfPings     = "SELECT num FROM deliveries INDEXED BY deliveries_pings WHERE subscription_id = ?1 AND ping IS NOT NULL LIMIT ?2"
	setOfEvents    = "SELECT x.delivery FROM events e INDEXED BY events_by_name CROSS JOIN delivery_events x ON x.program_id = e.program_id AND x.seq = e.seq WHERE e.program_id = ?1 AND e.name IN (SELECT value FROM json_each(?3)) LIMIT ?2"
	setOfCreated   = "SELECT num FROM deliveries INDEXED BY deliveries_by_subscription WHERE subscription_id = ?1 AND num > ?3 AND num < ?4 LIMIT ?2"
	setOfCompleted = "SELECT num FROM deliveries INDEXED BY deliveries_by_completion WHERE subscription_id = ?1 AND completed_at IS NOT NULL AND completed_at >= ?3 AND completed_at < ?4 LIMIT ?2"
	setOfDue       = "SELECT num FROM deliveries INDEXED BY deliveries_due WHERE subscription_id = ?1 AND next_attempt_at IS NOT NULL AND next_attempt_at >= ?3 AND next_attempt_at < ?4 LIMIT ?2"

	nextResponse = "SELECT coalesce(min(response_status), 1000) FROM deliveries INDEXED BY deliveries_by_response WHERE subscription_id = ? AND response_status > ? AND response_status NOT BETWEEN 200 AND 299"

	// Along completed_at; ties in the order of num, in either direction. Downwards
	// it ends at ?5. The bounds of num are not those of the index here: rows
	// beyond them count as looked at.
	alongCompletion = "SELECT d.completed_at, d.num, " + deliveryMatches + withinNums + " FROM deliveries d INDEXED BY deliveries_by_completion WHERE d.subscription_id = ?4 AND d.completed_at IS NOT NULL"
	completionUp    = alongCompletion + " AND d.completed_at >= ?6 AND d.completed_at < coalesce(?12, 9223372036854775807)"
	completionDown  = alongCompletion + " AND d.completed_at <= ?6 AND d.completed_at >= ?5"

	completionUpNumUp     = completionUp + " AND (d.completed_at > ?6 OR d.num > ?7) ORDER BY d.completed_at, d.num LIMIT ?1"
	completionUpNumDown   = completionUp + " AND (d.completed_at > ?6 OR d.num < ?7) ORDER BY d.completed_at, d.num DESC LIMIT ?1"
	completionDownNumUp   = completionDown + " AND (d.completed_at < ?6 OR d.num > ?7) ORDER BY d.completed_at DESC, d.num LIMIT ?1"
	completionDownNumDown = completionDown + " AND (d.completed_at < ?6 OR d.num < ?7) ORDER BY d.completed_at DESC, d.num DESC LIMIT ?1"

	lastCompletion = "SELECT coalesce(max(completed_at), 0) FROM deliveries INDEXED BY deliveries_by_completion WHERE subscription_id = ? AND completed_at IS NOT NULL"
)

// args returns the arguments from ?4 on; value is that of ?5, at and num those
// of ?6 and ?7.
func (l *deliveryList) args(value any, at, num int64) []any {
	f, r := l.q.Filters, l.q.Ranges
	completed, next := r["completed_at"], r["next_attempt_at"]
	return []any{l.subscriptionID, value, at, num, jsonOf(f["status"]), jsonOf(l.responses()), jsonOf(f["error"]),
		millis(completed.From), millis(completed.To), l.s.clock.waitOrNull(next.From), l.s.clock.waitOrNull(next.To), jsonOf(f["event"]),
		jsonOf(f["program_id"]), jsonOf(f["subscription_id"]), least(f["attempts_made.from"]), jsonOf(f["id"]), jsonOf(f["redelivery_of"]), jsonOf(f["replay_id"])}
}

// argEvent is where args has the filter by event.
const argEvent = 11

// least binds the value of a filter for what is that much or more; nil is NULL.
func least(values []string) any {
	if values == nil {
		return nil
	}
	n, err := strconv.Atoi(values[0])
	if err != nil {
		panic(err) // webhook.List.Parse has read it
	}
	return n
}

// responses returns the HTTP statuses that are asked for, classes in full.
func (l *deliveryList) responses() []int {
	var statuses []int
	for _, word := range l.q.Filters["response_status"] {
		if class, ok := strings.CutSuffix(word, "xx"); ok {
			first := int(class[0]-'0') * 100
			for status := first; status < first+100; status++ {
				statuses = append(statuses, status)
			}
		} else if status, err := strconv.Atoi(word); err == nil {
			statuses = append(statuses, status)
		}
	}
	slices.Sort(statuses)
	return slices.Compact(statuses)
}

// budget is how many rows a page looks at.
func (l *deliveryList) budget() int {
	if l.q.Filters["event"] != nil {
		return l.s.lists.costlyScan
	}
	return l.s.lists.scan
}

// byCreation returns a page in the order of num, and the place to go on from.
func (l *deliveryList) byCreation(place []int64) ([]int64, []int64, error) {
	descending := l.q.Sort[0].Descending
	if l.q.Cursor != "" {
		l.low, l.high = beyond(place[0], descending, l.low, l.high)
	}
	size := l.q.Size
	if l.subscriptionID == "" {
		if err := l.named(); err != nil {
			return nil, nil, err
		}
		if err := l.one(); err != nil {
			return nil, nil, err
		}
	}
	if l.subscriptionID == "" {
		return l.acrossByCreation(descending, size)
	}
	set, ok, err := l.set("next_attempt_at", "event", "completed_at")
	if err != nil {
		return nil, nil, err
	}
	var nums []int64
	var at int64
	more := false
	if ok {
		slices.SortFunc(set, func(a, b completion) int { return int(a.num - b.num) })
		for _, c := range set {
			nums = append(nums, c.num)
		}
		if descending {
			slices.Reverse(nums)
		}
		more = len(nums) > size
	} else {
		streams, err := l.streams()
		if err != nil {
			return nil, nil, err
		}
		if nums, at, more, err = l.walk(streams, descending, l.low, l.high, size+1, l.budget()); err != nil {
			return nil, nil, err
		}
	}
	if len(nums) > size {
		nums = nums[:size]
		at = nums[size-1]
	}
	if !more {
		return nums, nil, nil
	}
	return nums, []int64{at}, nil
}

// streams returns the streams that have all that the filters may let through,
// by an index of what is exceptional if there is one.
func (l *deliveryList) streams() ([]stream, error) {
	f := l.q.Filters
	switch responses := l.responses(); {
	case f["error"] != nil:
		return l.alongEach(deliveriesByError, f["error"]), nil
	case responses != nil && !slices.ContainsFunc(responses, isSuccess):
		return l.alongResponses(deliveriesByResponse, responses, nextResponse, l.subscriptionID)
	case f["status"] != nil && !slices.Contains(f["status"], string(webhook.StatusSuccess)):
		return l.alongEach(deliveriesByStatus, f["status"]), nil
	case slices.Equal(f["event"], []string{webhook.EventPing}):
		return []stream{l.along(deliveriesPings, nil)}, nil
	}
	return []stream{l.along(deliveriesBySubscription, nil)}, nil
}

// along returns the stream of a query whose index is searched for a value.
func (l *deliveryList) along(query string, value any) stream {
	return stream{query + numsUp, query + numsDown, l.args(value, 0, 0)}
}

// alongEach returns the stream of each of the values.
func (l *deliveryList) alongEach(query string, values []string) (streams []stream) {
	for _, v := range values {
		streams = append(streams, l.along(query, v))
	}
	return streams
}

// alongResponses returns the streams of those HTTP statuses of which there are
// rows. next selects the smallest status above its last argument; of are its
// other arguments.
func (l *deliveryList) alongResponses(query string, statuses []int, next string, of ...any) (streams []stream, err error) {
	for status := 0; status < 1000; {
		if err := l.Scan(next, append(of[:len(of):len(of)], status), &status); err != nil {
			return nil, err
		}
		if slices.Contains(statuses, status) {
			streams = append(streams, l.along(query, status))
		}
	}
	return streams, nil
}

func isSuccess(status int) bool {
	return webhook.Classify(status, webhook.ErrorNone) == webhook.ResultSuccess
}

// completion is a delivery by what it is sorted by.
type completion struct {
	num, at   int64
	completed bool
}

// set returns all that the filters let through when one of those named has at
// most limits.set rows of its own, by its index; ok is false when none has.
func (l *deliveryList) set(names ...string) (all []completion, ok bool, err error) {
	limit := min(l.s.lists.set, l.budget())
	for _, name := range names {
		query, args := l.setOf(name, limit+1)
		if query == "" {
			continue
		}
		var nums []int64
		collect := func(scan func(...any) error) error {
			var num int64
			err := scan(&num)
			nums = append(nums, num)
			return err
		}
		if err := l.Each(query, args, collect); err != nil {
			return nil, false, err
		}
		if name == "event" && slices.Contains(l.q.Filters["event"], webhook.EventPing) {
			if err := l.Each(setOfPings, []any{l.subscriptionID, limit + 1}, collect); err != nil {
				return nil, false, err
			}
		}
		if len(nums) > limit {
			continue
		}
		slices.Sort(nums)
		nums = slices.Compact(nums) // a delivery may have several of the events
		args = l.args(jsonOf(append([]int64{}, nums...)), 0, 0)
		if name == "event" {
			args[argEvent] = nil // they have it
		}
		err := l.Each(deliveriesOfSet, append([]any{0, l.low, l.high}, args...), func(scan func(...any) error) error {
			var c completion
			err := scan(&c.num, &c.at, &c.completed)
			all = append(all, c)
			return err
		})
		return all, true, err
	}
	return nil, false, nil
}

// setOf returns the query of a filter's own rows, up to limit, "" when there is
// no filter or no index.
func (l *deliveryList) setOf(name string, limit int) (query string, args []any) {
	args = []any{l.subscriptionID, limit}
	switch values, r := l.q.Filters[name], l.q.Ranges[name]; name {
	case "event":
		if values == nil {
			return "", nil
		}
		return setOfEvents, []any{l.programID, limit, jsonOf(values)}
	case "status":
		if values == nil || slices.Contains(values, string(webhook.StatusSuccess)) {
			return "", nil
		}
		return setOfStatus, append(args, jsonOf(values))
	case "error":
		if values == nil {
			return "", nil
		}
		return setOfError, append(args, jsonOf(values))
	case "response_status":
		responses := l.responses()
		if responses == nil || slices.ContainsFunc(responses, isSuccess) {
			return "", nil
		}
		return setOfResponse, append(args, jsonOf(responses))
	case "created_at":
		if r == (webhook.TimeRange{}) {
			return "", nil
		}
		return setOfCreated, append(args, l.low, l.high)
	case "completed_at", "next_attempt_at":
		if r == (webhook.TimeRange{}) {
			return "", nil
		}
		query, stored := setOfDue, l.s.clock.wait
		if name == "completed_at" {
			query, stored = setOfCompleted, time.Time.UnixMilli
		}
		from, to := int64(math.MinInt64), int64(math.MaxInt64)
		if !r.From.IsZero() {
			from = stored(r.From)
		}
		if !r.To.IsZero() {
			to = stored(r.To)
		}
		return query, append(args, from, to)
	}
	panic(fmt.Sprintf("store: no set of deliveries by %s", name))
}
