package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"service/webhook"
)

// maxReplays is how many replays of one subscription can run at a time.
const maxReplays = 4

// replayStep is how many places of the log one step of a replay looks at.
const replayStep = 1000

const replayColumns = "id, subscription_id, program_id, only_which, from_at, to_at, names, first_seq, after_seq, until_seq, status, events, deliveries, created_at, completed_at"

// replayCursor is a replay with its place in the log.
type replayCursor struct {
	webhook.Replay
	first, after, until int64
	names               string
	whole               bool // of all the subscription's events until now
}

// Plan finds out what part of the log a replay of fields that have passed
// their rules would go along. Nothing is written yet.
func (s Replays) Plan(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields) (*ReplayPlan, error) {
	r, err := s.newReplay(ctx, programID, subscriptionID, f)
	return &ReplayPlan{r}, err
}

// ReplayPlan is a replay that can be begun.
type ReplayPlan struct{ cursor replayCursor }

// CreateReplay begins a replay as planned.
func (w Write) CreateReplay(p *ReplayPlan) (webhook.Replay, error) {
	s, t, r := w.s, w.t, &p.cursor
	sub, err := t.subscription(r.ProgramID, r.SubscriptionID)
	if err != nil {
		return webhook.Replay{}, err
	}
	if !sub.Active {
		return webhook.Replay{}, notActive()
	}
	var running int
	if err := t.Scan("SELECT count(*) FROM replays WHERE subscription_id = ? AND status = 'running'", []any{r.SubscriptionID}, &running); err != nil {
		return webhook.Replay{}, err
	}
	if running >= maxReplays {
		return webhook.Replay{}, webhook.NewError(webhook.CodeConflict, "The subscription has "+webhook.Count(running, "replay")+" running, which is the most there can be; wait for one, or cancel it.")
	}
	if r.Only != webhook.ReplayMissed && r.whole {
		// What is offered to be sent again is.
		err := t.Exec("UPDATE subscriptions SET resend_from = NULL WHERE id = ? AND resend_from >= ?", r.SubscriptionID, r.From.UnixMilli())
		if err != nil {
			return webhook.Replay{}, err
		}
	}
	t.AfterCommit(func() { s.watchers.subscriptionChanged(r.SubscriptionID) })
	return r.Replay, t.Exec("INSERT INTO replays ("+replayColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'running', 0, 0, ?, NULL)",
		r.ID, r.SubscriptionID, r.ProgramID, string(r.Only), r.From.UnixMilli(), r.To.UnixMilli(), r.names, r.first, r.after, r.until, r.CreatedAt.UnixMilli())
}

// Count returns how many events a replay would send now, and in how many
// deliveries of at most size events at the least.
func (s Replays) Count(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields, size int) (events, deliveries int64, err error) {
	r, err := s.newReplay(ctx, programID, subscriptionID, f)
	for err == nil && r.after < r.until {
		if err = ctx.Err(); err != nil {
			break
		}
		var seqs []int64
		if seqs, r.after, err = s.replayed(ctx, &r, replayStep); err == nil {
			events += int64(len(seqs))
		}
	}
	return events, (events + int64(size) - 1) / int64(size), err
}

func (s Replays) newReplay(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields) (r replayCursor, err error) {
	sub, err := Subscriptions(s).Get(ctx, programID, subscriptionID)
	if err != nil {
		return r, err
	}
	if !sub.Active {
		return r, notActive()
	}
	now := s.clock.now().UTC().Truncate(time.Millisecond)
	r.Replay = webhook.Replay{
		ID: webhook.NewID(), SubscriptionID: subscriptionID, ProgramID: programID,
		Only: f.Only, From: f.From, To: f.To, Events: f.Events, Status: webhook.ReplayRunning, CreatedAt: now,
	}
	open := r.To.IsZero() // up to what is newest, even if the clock was set back since
	if open {
		r.To = now
	}
	r.whole = open && r.Events == nil
	if r.Events == nil {
		r.Events = sub.Events
	}
	names, err := json.Marshal(r.Events)
	if err != nil {
		return r, err
	}
	r.names = string(names)
	if r.first, err = s.seqBefore(ctx, programID, r.From); err != nil {
		return r, err
	}
	if open {
		err = s.db.Scan(ctx, "SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ?", []any{programID}, &r.until)
	} else {
		r.until, err = s.seqBefore(ctx, programID, r.To)
	}
	r.until = max(r.until, r.first)
	r.after = r.first
	r.Total = r.until - r.first
	return r, err
}

// Get returns one replay of a subscription.
func (s Replays) Get(ctx context.Context, programID, subscriptionID, id string) (webhook.Replay, error) {
	if _, err := Subscriptions(s).Get(ctx, programID, subscriptionID); err != nil {
		return webhook.Replay{}, err
	}
	r, err := scanReplay(func(dest ...any) error {
		return s.db.Scan(ctx, selectReplay, []any{id, subscriptionID}, dest...)
	})
	return r.Replay, notFound(err, "replay")
}

const selectReplay = "SELECT " + replayColumns + " FROM replays WHERE id = ? AND subscription_id = ?"

// CancelReplay ends a replay: it forms no further delivery. What it has formed
// goes on. A replay that is at its end stays as it is.
func (w Write) CancelReplay(programID, subscriptionID, id string) (webhook.Replay, error) {
	s, t := w.s, w.t
	if _, err := w.Replay(programID, subscriptionID, id); err != nil {
		return webhook.Replay{}, err
	}
	err := t.Exec("UPDATE replays SET status = 'cancelled', completed_at = ? WHERE id = ? AND subscription_id = ? AND status = 'running'", s.clock.now().UnixMilli(), id, subscriptionID)
	if err != nil {
		return webhook.Replay{}, err
	}
	t.AfterCommit(func() { s.watchers.subscriptionChanged(subscriptionID) })
	return w.Replay(programID, subscriptionID, id)
}

// Replay returns one replay of a subscription as it is in this write.
func (w Write) Replay(programID, subscriptionID, id string) (webhook.Replay, error) {
	if _, err := w.t.subscription(programID, subscriptionID); err != nil {
		return webhook.Replay{}, err
	}
	r, err := scanReplay(func(dest ...any) error { return w.t.Scan(selectReplay, []any{id, subscriptionID}, dest...) })
	return r.Replay, notFound(err, "replay")
}

func scanReplay(scan func(...any) error) (r replayCursor, err error) {
	var from, to, created int64
	var completed sql.NullInt64
	err = scan(&r.ID, &r.SubscriptionID, &r.ProgramID, &r.Only, &from, &to, &r.names, &r.first, &r.after, &r.until, &r.Status, &r.EventsSent, &r.Deliveries, &created, &completed)
	if err != nil {
		return r, err
	}
	r.From, r.To = time.UnixMilli(from).UTC(), time.UnixMilli(to).UTC()
	r.CreatedAt, r.CompletedAt = time.UnixMilli(created).UTC(), fromMillis(completed)
	r.Scanned, r.Total = r.after-r.first, r.until-r.first
	return r, json.Unmarshal([]byte(r.names), &r.Events)
}

// replayed returns up to count places behind a replay's cursor whose events it
// sends, and how far that goes: it looks at replayStep places at the most. What
// the subscription's own cursor has yet to bring is left to it.
func (s *core) replayed(ctx context.Context, r *replayCursor, count int) (seqs []int64, after int64, err error) {
	end := min(r.after+replayStep, r.until)
	query := selectReplayed
	switch r.Only {
	case webhook.ReplayMissed:
		query += " AND NOT EXISTS (" + itsDeliveries + ") AND NOT " + wasDelivered
	case webhook.ReplayFailed:
		query += " AND EXISTS (" + itsDeliveries + ") AND NOT EXISTS (" + itsDeliveries + " AND d.status <> 'failed') AND NOT " + wasDelivered
	}
	err = s.db.Each(ctx, query+" ORDER BY e.seq LIMIT ?5", []any{r.ProgramID, r.SubscriptionID, r.after, end, count, r.names}, func(scan func(...any) error) error {
		var seq int64
		err := scan(&seq)
		seqs = append(seqs, seq)
		return err
	})
	if len(seqs) == count {
		end = seqs[count-1]
	}
	return seqs, end, err
}

const (
	selectReplayed = `SELECT e.seq FROM events e WHERE e.program_id = ?1 AND e.seq > ?3 AND e.seq <= ?4
		AND e.name IN (SELECT value FROM json_each(?6))
		AND NOT (e.seq > (SELECT seq FROM cursors WHERE subscription_id = ?2) AND EXISTS (
			SELECT 1 FROM interests i WHERE i.subscription_id = ?2 AND i.name = e.name AND i.after_seq < e.seq AND (i.until_seq IS NULL OR e.seq <= i.until_seq)))`
	itsDeliveries = `SELECT 1 FROM delivery_events x JOIN deliveries d ON d.num = x.delivery
		WHERE x.program_id = e.program_id AND x.seq = e.seq AND d.subscription_id = ?2`
)

// stepReplay makes the next delivery of the queue's oldest running replay, with
// its first attempt counted, and returns the claim on it: nil when this step of
// the log held none. more says whether a replay of the queue goes on. The error
// is [ErrStale] when the subscription, or the replay, has changed meanwhile.
func (s Queues) stepReplay(ctx context.Context, q *Queue, count, size int) (c *Claim, more bool, err error) {
	r, err := scanReplay(func(dest ...any) error {
		return s.db.Scan(ctx, "SELECT "+replayColumns+" FROM replays WHERE subscription_id = ? AND status = 'running' ORDER BY created_at, id LIMIT 1", []any{q.SubscriptionID}, dest...)
	})
	if err != nil {
		return nil, false, ignoreNoRows(err)
	}
	b, err := s.replayBatch(ctx, &r, count, size)
	if err != nil {
		return nil, false, err
	}
	if len(b.seqs) > 0 {
		c = &Claim{ID: webhook.NewID(), SubscriptionID: q.SubscriptionID, ProgramID: q.ProgramID, Number: 1, Revision: q.Revision, Probe: q.Failing, Events: b.bodies, Trace: b.trace}
	}
	err = s.writer.do(func(t *tx) (err error) {
		if more, err = t.advanceReplay(&r, &b, q); err != nil || c == nil {
			return err
		}
		return t.insertReplayed(c, &r, &b)
	})
	if err != nil {
		return nil, false, err
	}
	return c, more, nil
}

// replayBatch is what one step of a replay sends.
type replayBatch struct {
	carried
	seqs  []int64
	after int64 // how far the step goes
}

// replayBatch reads the next step of a replay: at most count events, and as many
// as fit into size bytes, but one at least when there is one. The error is
// [ErrStale] when retention removes one of them before that.
func (s Queues) replayBatch(ctx context.Context, r *replayCursor, count, size int) (b replayBatch, err error) {
	if b.seqs, b.after, err = s.replayed(ctx, r, count); err != nil {
		return b, err
	}
	read := func(query string, args []any, dest ...any) error { return s.db.Scan(ctx, query, args, dest...) }
	if b.carried, err = s.eventBodies(read, r.ProgramID, b.seqs); err != nil {
		if errors.Is(err, errGone) {
			err = ErrStale
		}
		return b, err
	}
	fit, bytes := 0, 0
	for fit < len(b.bodies) && (fit == 0 || bytes+len(b.bodies[fit]) <= size) {
		bytes += len(b.bodies[fit])
		fit++
	}
	if fit == len(b.seqs) {
		return b, nil
	}
	// They are read again: the trace may be that of an event which is left out.
	b.seqs, b.after = b.seqs[:fit], b.seqs[fit-1]
	if b.carried, err = s.eventBodies(read, r.ProgramID, b.seqs); err != nil {
		return b, ErrStale
	}
	return b, nil
}

// advanceReplay moves a replay past a batch, and says whether a replay of the
// queue goes on.
func (t *tx) advanceReplay(r *replayCursor, b *replayBatch, q *Queue) (more bool, err error) {
	var running int
	if err := t.Scan("SELECT count(*) FROM replays WHERE subscription_id = ? AND status = 'running'", []any{q.SubscriptionID}, &running); err != nil {
		return false, err
	}
	status, completed := webhook.ReplayRunning, any(nil)
	if b.after == r.until {
		status, completed = webhook.ReplayDone, t.w.clock.now().UnixMilli()
		running--
	}
	n, err := t.Affected("UPDATE replays SET after_seq = ?, events = events + ?, deliveries = deliveries + ?, status = ?, completed_at = ? WHERE id = ? AND status = 'running' AND after_seq = ? AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ? AND revision = ? AND active = 1)",
		b.after, len(b.seqs), min(len(b.seqs), 1), string(status), completed, r.ID, r.after, q.SubscriptionID, q.Revision)
	if err == nil && n == 0 {
		err = ErrStale
	}
	return running > 0, err
}

// insertReplayed stores the delivery of a batch, or returns [ErrStale] when
// retention has removed some of its events since they were read.
func (t *tx) insertReplayed(c *Claim, r *replayCursor, b *replayBatch) error {
	seqs := appendSeqs(nil, b.seqs)
	var there int
	if err := t.Scan("SELECT count(*) FROM events WHERE program_id = ? AND seq IN (SELECT value FROM json_each(?))", []any{r.ProgramID, seqs}, &there); err != nil {
		return err
	}
	if there != len(b.seqs) {
		return ErrStale
	}
	return t.insertFormed(c, seqs, r.ID)
}
