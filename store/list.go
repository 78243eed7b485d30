package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/webhook"
)

// listLimits bound the cost of a page of a feed, regardless of the number of rows. A page finds
// its rows by an index, or walks along the order of the list and stops with a cursor after so
// many rows or so much time.
type listLimits struct {
	set        int           // rows that a page reads by the index of a filter and sorts
	scan       int           // rows that a page reads in the order of the list
	costlyScan int           // the same if the filters need the events of each row
	time       time.Duration // a walk stops after this time and minScan rows; 0 for no limit
}

// minScan is how many rows a walk reads regardless of the time, so that a page without filters
// is always full.
const minScan = 500

// defaultListLimits are the production values. Reading a row takes about 1 µs if it is next to
// the previous one, 10 µs if it must be looked up, and 100 µs for a delivery of a hundred
// events that must be read.
var defaultListLimits = listLimits{set: 2500, scan: 10_000, costlyScan: 5000, time: 15 * time.Millisecond}

// deadline returns when a walk that begins now must stop.
func (l *listLimits) deadline(now time.Time) time.Time { return now.Add(l.time) }

// late reports whether a walk must stop because its time is up.
func (l *listLimits) late(looked int, deadline time.Time) bool {
	return l.time > 0 && looked >= minScan && time.Now().After(deadline)
}

// statement is a query with named parameters, such as :status.
type statement struct {
	text  string
	names []string // of ?1, ?2 and so on
}

// binds are the values of parameters by name. A missing name is NULL, which means no filter.
type binds map[string]any

var parameterName = regexp.MustCompile(`:[a-z_]+`)

// with returns the statement with text appended.
func (s statement) with(text string) statement {
	s.names = slices.Clone(s.names)
	s.text += parameterName.ReplaceAllStringFunc(text, func(name string) string {
		i := slices.Index(s.names, name[1:])
		if i < 0 {
			i = len(s.names)
			s.names = append(s.names, name[1:])
		}
		return "?" + strconv.Itoa(i+1)
	})
	return s
}

// args returns the arguments of the statement. If several layers have a name, the first one
// wins.
func (s statement) args(layers ...binds) []any {
	args := make([]any, len(s.names))
	for i, name := range s.names {
		for _, b := range layers {
			if value, ok := b[name]; ok {
				args[i] = value
				break
			}
		}
	}
	return args
}

// allOf combines conditions with AND.
func allOf(conditions ...string) string {
	return "(" + strings.Join(conditions, ")\n\t\tAND (") + ")"
}

// truthOf returns the expression of a condition that SQLite stops evaluating at the first part
// that decides it.
func truthOf(condition string) string { return "iif(" + condition + ", 1, 0)" }

// isIn is the condition of a filter by a column, whose values are an array bound to the
// column's name.
func isIn(column string) string {
	name := column[strings.LastIndexByte(column, '.')+1:]
	return ":" + name + " IS NULL OR " + column + " IN (SELECT value FROM json_each(:" + name + "))"
}

// isWithin is the condition of a filter by a time range.
func isWithin(name, column string) string {
	return "(:" + name + "_from IS NULL OR " + column + " >= :" + name + "_from)" +
		" AND (:" + name + "_to IS NULL OR " + column + " < :" + name + "_to)"
}

// bindsOf binds the filters of a query to their names, and both ends of each time range.
func bindsOf(q *webhook.ListQuery) binds {
	b := make(binds, 16)
	for name, values := range q.Filters {
		b[name] = jsonOf(values)
	}
	for name, r := range q.Ranges {
		b[name+"_from"], b[name+"_to"] = millis(r.From), millis(r.To)
	}
	return b
}

// jsonOf binds values as a JSON array; nil is NULL, which means no filter.
func jsonOf[T any](values []T) any {
	if values == nil {
		return nil
	}
	b, err := json.Marshal(values)
	if err != nil {
		panic(err) // cannot happen for strings and numbers
	}
	return string(b)
}

// truths converts the words of a boolean filter to SQLite's values.
func truths(words []string) (all []int) {
	for _, word := range words {
		all = append(all, map[string]int{"false": 0, "true": 1}[word])
	}
	return all
}

// column returns the results of a query with one column.
func column[T any](v *view, s statement, layers ...binds) (all []T, err error) {
	err = v.Each(s.text, s.args(layers...), into(&all))
	return all, err
}

// into returns a function that appends the only value of a row to all.
func into[T any](all *[]T) func(scan func(...any) error) error {
	return scanInto(all, func(scan func(...any) error) (one T, err error) {
		err = scan(&one)
		return one, err
	})
}

// scanInto returns a function that appends a row, as scanRow reads it, to all.
func scanInto[T any](all *[]T, scanRow func(scan func(...any) error) (T, error)) func(scan func(...any) error) error {
	return func(scan func(...any) error) error {
		one, err := scanRow(scan)
		*all = append(*all, one)
		return err
	}
}

// start returns the position before all others, a key that no row has.
func start(descending bool) int64 {
	if descending {
		return math.MaxInt64
	}
	return 0
}

// down reverses a comparison if the order descends.
func down(descending bool, c int) int {
	if descending {
		return -c
	}
	return c
}

// access reads rows through an index in ascending or descending order of a key. Its statements
// select the key, and whether the row matches the filters.
type access struct {
	up, down statement
}

// along returns the access to the rows of a FROM and WHERE clause whose key is between :low and
// :high, both exclusive. The index is ordered by a column that rises with the key.
func along(key, order, matches, from string) *access {
	s := statement{}.with("SELECT " + key + ", " + truthOf(matches) + " " + from +
		" AND " + key + " > :low AND " + key + " < :high ORDER BY " + order)
	return &access{up: s.with(" LIMIT :limit"), down: s.with(" DESC LIMIT :limit")}
}

// between converts a time range to a range of a key along which time never decreases. Both
// bounds are exclusive. Imported rows of the table may be out of this order: the caller checks
// the time of each row.
func (s *core) between(ctx context.Context, table string, r webhook.TimeRange,
	before func(context.Context, time.Time) (int64, error)) (low, high int64, err error) {
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
	low, high = widen(s.imported.of(table), low, high, r)
	return low, high, err
}

// lastBefore returns the highest key of a row with an earlier time, the lower end if there is
// none. ends selects a key below and one above all rows; from selects the key and the time of
// the first row from a key on, since old rows may have been removed. It ignores imported rows of
// the table.
func (s *core) lastBefore(ctx context.Context, table, ends, from string, at time.Time) (int64, error) {
	imported := s.imported.of(table)
	var low, high int64 // before at; not before at
	err := s.db.Scan(ctx, ends, nil, &low, &high)
	for err == nil && high-low > 1 {
		middle := low + (high-low)/2
		var key, t int64
		err = s.db.Scan(ctx, from, []any{middle}, &key, &t)
		for r := rangeOf(imported, key, t); err == nil && r != nil; r = rangeOf(imported, key, t) {
			err = s.db.Scan(ctx, from, []any{r.last + 1}, &key, &t)
		}
		switch {
		case errors.Is(err, sql.ErrNoRows):
			high, err = middle, nil
		case err == nil && t < at.UnixMilli():
			low = key
		default:
			high = middle
		}
	}
	return low, err
}

// Page returns a page of a program's subscriptions, and how many match the filters.
func (s Subscriptions) Page(ctx context.Context, programID string,
	q *webhook.ListQuery) (subs []webhook.Subscription, total int, err error) {
	b := bindsOf(q)
	b["program"], b["active"] = programID, jsonOf(truths(q.Filters["active"]))
	return numberedPage(ctx, s.core, q, b, countSubscriptions, selectSubscriptions, scanSubscription)
}

var (
	listedSubscriptions = " FROM subscriptions WHERE program_id = :program AND deleted_at IS NULL AND " +
		allOf(isIn("active"), isIn("status"), isIn("url"), isWithin("created_at", "created_at"), isWithin("updated_at", "updated_at"),
			":event IS NULL OR EXISTS (SELECT 1 FROM json_each(events) WHERE value IN (SELECT value FROM json_each(:event)))")
	countSubscriptions  = statement{}.with("SELECT count(*)" + listedSubscriptions)
	selectSubscriptions = statement{}.with("SELECT " + subscriptionColumns + listedSubscriptions)
)

// numberedPage reads the page with the number of q, and counts all rows. b has values besides the
// number.
func numberedPage[T any](ctx context.Context, s *core, q *webhook.ListQuery, b binds, count, all statement,
	scanRow func(scan func(...any) error) (T, error)) (rows []T, total int, err error) {
	b["size"], b["offset"] = q.Size, (q.Number-1)*q.Size
	err = s.view(ctx, func(v *view) error {
		if err := v.Scan(count.text, count.args(b), &total); err != nil || q.Number-1 > total/q.Size {
			return err
		}
		page := all.ordered(q.Sort)
		return v.Each(page.text, page.args(b), scanInto(&rows, scanRow))
	})
	return rows, total, err
}

// ordered returns the query of a page in an order. Ids, which rise in the order of creation unless
// they are chosen, are the last criterion.
func (s statement) ordered(order []webhook.SortField) statement {
	var terms []string
	for _, f := range append(slices.Clone(order), webhook.SortField{Name: "id", Descending: order[0].Descending}) {
		if f.Descending {
			f.Name += " DESC"
		}
		terms = append(terms, f.Name)
	}
	return s.with(" ORDER BY " + strings.Join(terms, ", ") + " LIMIT :size OFFSET :offset")
}

// Page returns a page of a program's log, and the cursor of the next page, "" on the last. A
// page with filters reads a bounded number of events, so it may be short or empty although more
// follow.
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
			e, err := s.dictionaries.scanEvent(programID, scan)
			events = append(events, e)
			return err
		})
	})
	return events, next, err
}

// Newer returns the cursor of the page before the one at the cursor of q, "" if that is the
// first. programID is "" for all programs.
func (s Events) Newer(ctx context.Context, programID string, q *webhook.ListQuery) (string, error) {
	f, err := s.feedAll(ctx, q)
	if programID != "" {
		f, err = s.feed(ctx, programID, q)
	}
	if err != nil {
		return "", err
	}
	return f.newer(ctx)
}

// feed returns the feed of a program's events that match q.
func (s Events) feed(ctx context.Context, programID string, q *webhook.ListQuery) (*feed, error) {
	low, high, err := s.between(ctx, "", q.Ranges["received_at"], func(ctx context.Context, at time.Time) (int64, error) {
		return s.seqBefore(ctx, programID, at)
	})
	if err != nil {
		return nil, err
	}
	f := &feed{s: s.core, q: q, low: low, high: high, scope: cursorScope{"events", programID, "", webhook.EventList.Selection(q)},
		budget: q.Size + 1}
	f.binds = bindsOfEvents(q)
	f.binds["program"] = programID
	switch names := q.Filters["name"]; {
	case q.Filters["id"] != nil:
		f.streams = []stream{{access: eventsByID}}
	case names == nil:
		f.streams = []stream{{access: eventsBySeq}}
	default:
		for _, name := range names {
			f.streams = append(f.streams, stream{access: eventsByName, binds: binds{"name": nil, "value": name}})
		}
	}
	if q.Ranges["timestamp"] != (webhook.TimeRange{}) || q.Filters["id"] != nil {
		f.budget = s.lists.costlyScan
	}
	return f, nil
}

func bindsOfEvents(q *webhook.ListQuery) binds {
	b, stamps := bindsOf(q), q.Ranges["timestamp"]
	b["timestamp_from"], b["timestamp_to"] = stampOf(stamps.From), stampOf(stamps.To)
	return b
}

// The timestamp of an event is at a fixed offset of its JSON, a different one if that is
// compressed. It is UTC with Z or +00:00; without that suffix, timestamps sort as text.
const (
	eventStamp = "replace(rtrim(substr(" + stampFrom + ", 1, instr(" + stampFrom + ", '\"') - 1), 'Z'), '+00:00', '')"
	stampFrom  = "CAST(substr(e.json, iif(substr(e.json, 1, 1) = x'7b', 59, 2), 40) AS TEXT)"
)

var (
	eventMatches = allOf(isIn("e.name"), isWithin("timestamp", eventStamp))
	eventsBySeq  = along("e.seq", "e.seq", eventMatches, "FROM events e INDEXED BY events_by_seq WHERE e.program_id = :program")
	eventsByName = along("e.seq", "e.seq", eventMatches,
		"FROM events e INDEXED BY events_by_name WHERE e.program_id = :program AND e.name = :value")
	eventsByID = along("e.seq", "e.seq", eventMatches,
		"FROM events e INDEXED BY events_by_id WHERE e.program_id = :program AND e.id IN (SELECT value FROM json_each(:id))")
)

const selectListedEvents = "SELECT e.seq, e.id, e.name, e.received_at, e.json FROM json_each(?2) i " +
	"CROSS JOIN events e ON e.program_id = ?1 AND e.seq = i.value ORDER BY i.key"

// stampOf formats a time for comparison with eventStamp; the zero time is NULL.
func stampOf(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999999") // 9s omit trailing zeros
}
