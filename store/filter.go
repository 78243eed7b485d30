package store

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/store/tail"
	"service/store/watch"
	"service/webhook"
)

// Bounds of the events that are examined for one purpose, since a filter may let none of them pass.
const (
	examinedEvents = 1000
	examinedBytes  = 1 << 20
	// inlineBytes bounds what one commit examines, since its publishers wait for it.
	inlineBytes = 256 << 10
)

// parsed holds fields for reuse: an event is parsed into them.
var parsed = sync.Pool{New: func() any { return new(webhook.Fields) }}

// eventMatches is the SQL function event_matches: whether a filter, in its stored form, lets an event
// pass.
func (s *core) eventMatches(filter, id string, stored []byte) (bool, error) {
	f, err := record.ParseFilter(filter)
	if err != nil {
		return false, err
	}
	event, err := s.dictionaries.Unpack(id, stored)
	if err != nil {
		return false, err
	}
	of := parsed.Get().(*webhook.Fields)
	defer parsed.Put(of)
	of.Parse(event)
	return f.Match(of), nil
}

// Examined contains the events of one name in a part of a log, to be filtered for the queues that wait
// for them. It is not safe for concurrent use.
type Examined struct {
	// Complete is false if the part is too large or no longer in memory: any filter may then
	// match an event in it.
	Complete bool

	seqs   []int64
	events []webhook.Fields
}

// Examine reads the events of a name, after one seq of a log and up to another, from memory.
func (s Queues) Examine(key watch.EventKey, after, to int64) *Examined {
	x, size := new(Examined), 0
	x.Complete = s.tail.Scan(key.ProgramID, after, func(seq int64, e *tail.Event) bool {
		if seq > to {
			return false
		}
		if e.Name == key.Name {
			size += len(e.Json)
			x.seqs = append(x.seqs, seq)
			x.events = append(x.events, webhook.Fields{})
			x.events[len(x.events)-1].Parse(e.Json)
		}
		return size <= inlineBytes && len(x.seqs) <= examinedEvents
	}) && size <= inlineBytes && len(x.seqs) <= examinedEvents
	return x
}

// Newest returns the newest seq of an event that an interest in their name includes, 0 if there is none.
func (x *Examined) Newest(in *Interest) int64 {
	for n := len(x.seqs) - 1; n >= 0; n-- {
		if seq := x.seqs[n]; in.After < seq && seq <= in.Until && in.Filter.Match(&x.events[n]) {
			return seq
		}
	}
	return 0
}

// Passed is a queue without a waiting event up to a seq of its log.
type Passed struct {
	SubscriptionID       string
	From, To             int64 // its cursor before and after
	subscriptionRevision int64
}

// Pass moves the cursor of a queue, which the caller must own, to its Seen.
func (q *Queue) Pass() Passed {
	p := Passed{q.SubscriptionID, q.Cursor, q.Seen, q.Revision}
	q.Cursor = q.Seen
	return p
}

const passCursors = `UPDATE cursors SET seq = j.value ->> 2 FROM json_each(?) j WHERE subscription_id = j.value ->> 0 AND seq = j.value ->> 1
	AND EXISTS (SELECT 1 FROM subscriptions s WHERE s.id = cursors.subscription_id AND s.revision = j.value ->> 3)`

// StorePassed begins to store cursors, many in one write. The caller must call the function that it
// returns, which waits for the writes: one of them may lead a commit. If a cursor could not be stored,
// the next delivery of its queue is [ErrStale].
func (s Queues) StorePassed(all []Passed) (wait func() error) {
	var ops []*sqlite.Op
	for some := range slices.Chunk(all, examinedEvents) {
		rows := make([][4]any, len(some))
		for i, p := range some {
			rows[i] = [4]any{p.SubscriptionID, p.From, p.To, p.subscriptionRevision}
		}
		ops = append(ops, s.writer.Submit(func(*sqlite.Tx) error { return s.writer.tx.Exec(passCursors, sqlite.JSONText(rows)) }, true))
	}
	return func() (err error) {
		for _, op := range ops {
			err = errors.Join(err, s.writer.Wait(op))
		}
		return err
	}
}

// FilterCount is the effect of a filter on stored events of one name.
type FilterCount struct {
	Read, Matched    int64
	Complete         bool            // false if only the newest events were read in dryRunTime
	Passed, Excluded []FilterExample // the newest, at most webhook.MaxFilterExamples of each
}

// FilterExample is an event with the values that decided whether it passes.
type FilterExample struct {
	ID         string
	ReceivedAt time.Time
	Values     []webhook.FilterValue
}

const selectTried = "SELECT seq, id, name, received_at, json, erased_at FROM events WHERE program_id = ? AND name = ? " +
	"AND seq > ? AND seq <= ? AND erased_at IS NULL " +
	"ORDER BY seq DESC LIMIT ?"

// RunFilterTest reads the stored events of a range, newest first, for at most dryRunTime, and counts those
// that each filter lets pass, in the order of t.Events. The error is [ErrDryRuns] if the program has
// maxDryRuns.
func (s Events) RunFilterTest(ctx context.Context, programID string, t *webhook.FilterTest) ([]FilterCount, error) {
	end, err := s.beginDryRun(programID)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := s.use(programID, ""); err != nil {
		return nil, err
	}
	ctx = asList(ctx)
	began := time.Now()
	first, err := s.records.SeqBefore(ctx, programID, t.From)
	if err != nil {
		return nil, err
	}
	last := int64(math.MaxInt64)
	if !t.To.IsZero() {
		if last, err = s.records.SeqBefore(ctx, programID, t.To); err != nil {
			return nil, err
		}
	}
	counts := make([]FilterCount, len(t.Events))
	for i, name := range t.Events {
		n, to := &counts[i], last
		share := dryRunTime * time.Duration(i+1) / time.Duration(len(t.Events)) // of the time, so that each name gets one
		for !n.Complete && time.Since(began) < share {
			// Each step is a read of its own, so that other programs have their turns in between.
			events, err := s.tried(ctx, selectTried, programID, name, first, to, examinedEvents)
			if err != nil {
				return nil, err
			}
			for i := range events {
				n.add(&events[i], t.Filters[name])
				to = events[i].Seq - 1
			}
			n.Complete = len(events) < examinedEvents
		}
	}
	return counts, nil
}

// tried returns the events of a query.
func (s Events) tried(ctx context.Context, query string, args ...any) (events []webhook.Event, err error) {
	err = s.db.Each(ctx, query, args, func(scan func(...any) error) error {
		e, err := record.ScanEvent(&s.dictionaries, "", scan)
		events = append(events, e)
		return err
	})
	return events, err
}

// add counts an event.
func (n *FilterCount) add(e *webhook.Event, f *webhook.EventFilter) {
	of := parsed.Get().(*webhook.Fields)
	defer parsed.Put(of)
	of.Parse(e.JSON)
	n.Read++
	examples := &n.Excluded
	if f.Match(of) {
		n.Matched++
		examples = &n.Passed
	}
	if len(*examples) < webhook.MaxFilterExamples {
		*examples = append(*examples, FilterExample{e.ID, e.ReceivedAt, f.Values(of)})
	}
}
