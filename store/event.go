package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/store/tail"
	"service/webhook"
)

// Publish appends events to a program's log, all or none, sets their Seq, and returns how many
// it added. An event whose ID exists with the same content is replaced by the stored one and
// adds nothing, as is one whose ID an erased event has, whatever the content. The error is a
// *webhook.Error with CodeConflict if an ID exists with other content, and with CodeUnavailable if the
// disk is nearly full.
//
// The store owns the events from then on. Publish may be called again with the same events if
// its write was rolled back.
func (w Write) Publish(programID string, events []webhook.Event) (added int, err error) {
	s, t := w.t.s, w.t
	if err := t.use(programID, ""); err != nil {
		return 0, err
	}
	if err := s.room(t); err != nil {
		return 0, err
	}
	head, err := t.head(programID)
	if err != nil {
		return 0, err
	}
	fresh := make([]webhook.Event, 0, len(events))
	for i := range events {
		e := &events[i]
		e.ProgramID = programID
		if !t.useType(s.catalog, e.Name, e.TypeID) {
			return 0, webhook.NewError(webhook.CodeConflict, "The event type "+e.Name+" was deleted at the same time. Nothing was published.")
		}
		received := max(e.ReceivedAt.UnixMilli(), head.received)
		packed := s.dictionaries.Pack(&t.w.packed, e)
		var n int64
		if e.Trace == "" { // the usual case pays nothing for the column
			n, err = t.Affected("INSERT INTO events (program_id, seq, id, name, received_at, json) VALUES (?, ?, ?, ?, ?, ?) "+
				"ON CONFLICT (program_id, id) DO NOTHING",
				programID, head.seq+1, e.ID, e.Name, received, packed)
		} else {
			n, err = t.Affected("INSERT INTO events (program_id, seq, id, name, received_at, json, traceparent) VALUES (?, ?, ?, ?, ?, ?, ?) "+
				"ON CONFLICT (program_id, id) DO NOTHING",
				programID, head.seq+1, e.ID, e.Name, received, packed, string(e.Trace))
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			if err := t.repeat(e); err != nil {
				return 0, placed(err, events, i)
			}
			continue
		}
		head.seq++
		head.received = received
		e.Seq, e.ReceivedAt = head.seq, time.UnixMilli(received).UTC()
		fresh = append(fresh, *e)
	}
	if added = len(fresh); added > 0 {
		t.setHead(programID, head)
		t.accept(fresh)
		t.AfterCommit(func() {
			s.metrics.Accept(programID, len(fresh))
			s.tail.Add(fresh)
			s.watchers.Published(fresh)
		})
	}
	return added, nil
}

// repeat replaces a repeated event with the stored one.
func (t *tx) repeat(e *webhook.Event) error {
	stored, err := record.ScanEvent(&t.s.dictionaries, e.ProgramID, t.Row(record.SelectEvent, e.ProgramID, e.ID))
	if err != nil {
		return err
	}
	if stored.ErasedAt.IsZero() && !webhook.SameEvent(&stored, e) {
		return webhook.NewError(webhook.CodeConflict, "An event with the id "+e.ID+" and different content already exists.")
	}
	*e = stored
	return nil
}

// placed adds the position of events[i] in the request to a conflict, and that of the other event if
// it is in the request as well.
func placed(err error, events []webhook.Event, i int) error {
	var e *webhook.Error
	if len(events) == 1 || !errors.As(err, &e) || e.Code != webhook.CodeConflict {
		return err
	}
	id := events[i].ID
	if first := slices.IndexFunc(events, func(e webhook.Event) bool { return e.ID == id }); first < i {
		return webhook.NewError(e.Code, fmt.Sprintf("events[%d] and events[%d] have the same id, %s, and different content.", first, i, id))
	}
	return webhook.NewError(e.Code, fmt.Sprintf("events[%d] was rejected: %s", i, e.Detail))
}

// Reasons why an event cannot be sent.
var (
	errGone   = errors.New("removed by retention")
	errErased = errors.New("erased")
)

// eventParts is what the attempts of a delivery need of its events.
type eventParts struct {
	bodies [][]byte      // the JSON of each; read-only
	trace  webhook.Trace // of the first event that has one
	oldest int64         // when the first event was accepted, in Unix milliseconds
}

// add appends the next event, in the order of the log.
func (c *eventParts) add(body []byte, trace webhook.Trace, received int64) {
	if len(c.bodies) == 0 {
		c.oldest = received
	}
	if c.trace == "" {
		c.trace = trace
	}
	c.bodies = append(c.bodies, body)
}

// eventBodies returns the events at the given seqs, all of them or an error errGone or errErased. It
// reads with scan what is no longer in memory.
func (s *core) eventBodies(scan sqlite.ScanRow, programID string, seqs []int64) (c eventParts, err error) {
	c.bodies = make([][]byte, 0, len(seqs))
	if len(seqs) > 0 {
		s.tail.Scan(programID, seqs[0]-1, func(seq int64, e *tail.Event) bool {
			if seq == seqs[len(c.bodies)] {
				if e.Erased {
					return false
				}
				c.add(e.Json, e.Trace, e.Received)
			}
			return len(c.bodies) < len(seqs)
		})
	}
	for _, seq := range seqs[len(c.bodies):] {
		var id string
		var body []byte
		var received int64
		var trace sql.NullString
		var erased bool
		err := scan("SELECT id, received_at, json, traceparent, erased_at IS NOT NULL FROM events WHERE program_id = ? AND seq = ?",
			[]any{programID, seq}, &id, &received, &body, &trace, &erased)
		if errors.Is(err, sql.ErrNoRows) {
			return eventParts{}, fmt.Errorf("store: event %d of program %s: %w", seq, programID, errGone)
		}
		if erased {
			return eventParts{}, fmt.Errorf("store: event %d of program %s: %w", seq, programID, errErased)
		}
		if err == nil {
			body, err = s.dictionaries.Unpack(id, body)
		}
		if err != nil {
			return eventParts{}, err
		}
		c.add(body, webhook.Trace(trace.String), received)
	}
	return c, nil
}

// Missing returns the IDs that no event of a program has, in the given order. Known is false if
// there is no such program.
func (s Events) Missing(ctx context.Context, programID string, ids []string) (missing []string, known bool, err error) {
	if err := s.db.Scan(ctx, "SELECT EXISTS (SELECT 1 FROM programs WHERE id = ?)", []any{programID}, &known); err != nil {
		return nil, false, err
	}
	err = s.db.Each(ctx, selectMissing, []any{programID, sqlite.JSON(ids)}, sqlite.Into(&missing))
	return missing, known, err
}

const selectMissing = `SELECT x.value FROM json_each(?2) x
	WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.program_id = ?1 AND e.id = x.value) ORDER BY x.key`
