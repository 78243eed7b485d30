package store

import (
	"context"
	"errors"
	"time"

	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// maxReplays is the maximum number of running replays of one subscription.
const maxReplays = 4

// replayStep is how many seqs of the log one step of a replay reads.
const replayStep = 1000

// Plan determines the part of the log that a replay of valid fields covers. It writes nothing.
func (s Replays) Plan(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields) (*ReplayPlan, error) {
	r, err := s.newReplay(ctx, programID, subscriptionID, f)
	return &ReplayPlan{r}, err
}

// ReplayPlan is a replay that can be created.
type ReplayPlan struct{ cursor record.ReplayCursor }

// Create starts a planned replay.
func (w ReplayWrites) Create(p *ReplayPlan, by webhook.AuditEntry) (webhook.Replay, error) {
	s, t, r := w.t.s, w.t, &p.cursor
	sub, err := t.subscription(r.ProgramID, r.SubscriptionID)
	if err != nil {
		return webhook.Replay{}, err
	}
	if !sub.Active {
		return webhook.Replay{}, notActive()
	}
	var running int
	if err := t.Scan("SELECT count(*) FROM replays WHERE subscription_id = ? AND status = 'running'", []any{r.SubscriptionID},
		&running); err != nil {
		return webhook.Replay{}, err
	}
	if running >= maxReplays {
		return webhook.Replay{}, webhook.NewError(webhook.CodeConflict, "The subscription has "+webhook.Count(running, "replay")+
			" running, the maximum. Wait for one to finish, or cancel one.")
	}
	t.AfterCommit(func() { s.watchers.SubscriptionChanged(r.SubscriptionID) })
	err = t.Exec("INSERT INTO replays ("+record.ReplayColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'running', 0, 0, ?, NULL)",
		r.ID, r.SubscriptionID, r.ProgramID, string(r.Only), r.From.UnixMilli(), r.To.UnixMilli(), r.Names, r.Filters, r.First, r.After, r.Until,
		r.CreatedAt.UnixMilli())
	if err != nil {
		return r.Replay, err
	}
	return r.Replay, SubscriptionWrites(w).Record(by, webhook.ActionSubscriptionReplay, &sub,
		string(r.Only)+" from "+webhook.FormatTime(r.From)+" to "+webhook.FormatTime(r.To)+"; replay "+r.ID)
}

// ReplayCount is the size of a replay if it started now.
type ReplayCount struct {
	Events     int64
	Deliveries int64 // minimum number of deliveries that carry the events
	Complete   bool  // false if only the oldest events were counted in dryRunTime
}

// Count counts the events that a replay would send, for at most dryRunTime. batchSize is the
// operator's. The error is [ErrDryRuns] if the program has maxDryRuns.
func (s Replays) Count(ctx context.Context, programID, subscriptionID string, f *webhook.ReplayFields,
	batchSize int) (n ReplayCount, err error) {
	end, err := s.beginDryRun(programID)
	if err != nil {
		return n, err
	}
	defer end()
	ctx = asList(ctx)
	began := time.Now()
	r, err := s.newReplay(ctx, programID, subscriptionID, f)
	if err != nil {
		return n, err
	}
	query, args := countReplayed+replayCondition(r.Only), r.Args()
	for r.After < r.Until && time.Since(began) < dryRunTime {
		// Each step is a read of its own, so that other programs have their turns in between.
		end := min(r.After+replayStep, r.Until)
		var counted int64
		if err := s.db.Scan(ctx, query, append(args, r.After, end), &counted); err != nil {
			return n, err
		}
		n.Events += counted
		r.After = end
	}
	size := int64(webhook.BatchSize(batchSize, r.MaxEvents))
	n.Deliveries, n.Complete = (n.Events+size-1)/size, r.After >= r.Until
	return n, nil
}

// newReplay determines the range of the log that a replay covers. The subscription must be
// active.
func (s Replays) newReplay(ctx context.Context, programID, subscriptionID string,
	f *webhook.ReplayFields) (r record.ReplayCursor, err error) {
	sub, err := s.records.Subscription(ctx, programID, subscriptionID)
	if err != nil {
		return r, err
	}
	if !sub.Active {
		return r, notActive()
	}
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	r.Replay = webhook.Replay{
		ID: webhook.NewID(), SubscriptionID: subscriptionID, ProgramID: programID,
		Only: f.Only, From: f.From, To: f.To, Events: f.Events, Status: webhook.ReplayRunning, CreatedAt: now,
	}
	r.MaxEvents = sub.MaxEvents
	open := r.To.IsZero() // up to the newest event, even if the clock was set back since
	if open {
		r.To = now
	}
	if r.Events == nil {
		r.Events = sub.Events
	}
	r.Names, r.Filters = sqlite.JSONText(r.Events), sqlite.OrNull(sub.Filters.String())
	if r.First, err = s.records.SeqBefore(ctx, programID, r.From); err != nil {
		return r, err
	}
	if open {
		err = s.db.Scan(ctx, "SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ?", []any{programID}, &r.Until)
	} else {
		r.Until, err = s.records.SeqBefore(ctx, programID, r.To)
	}
	r.Until = max(r.Until, r.First)
	r.After = r.First
	r.Total = r.Until - r.First
	return r, err
}

// Get returns a replay of a subscription.
func (s Replays) Get(ctx context.Context, programID, subscriptionID, id string) (webhook.Replay, error) {
	if _, err := s.records.Subscription(ctx, programID, subscriptionID); err != nil {
		return webhook.Replay{}, err
	}
	r, err := record.ScanReplay(s.db.Row(ctx, selectReplay, id, subscriptionID))
	return r.Replay, sqlite.NoRows(err, webhook.NotFound("replay"))
}

// Page returns a page of a subscription's replays, for a query of webhook.ReplayList, and the
// cursor of the next page, "" on the last.
func (s Replays) Page(ctx context.Context, programID, subscriptionID string,
	q *webhook.ListQuery) (page []webhook.Replay, next string, err error) {
	if _, err := s.records.Subscription(ctx, programID, subscriptionID); err != nil {
		return nil, "", err
	}
	b := list.BindsOf(q)
	b["subscription"], b["limit"] = subscriptionID, q.Size+1
	scope := list.Scope{List: "replays", ProgramID: programID, Parent: subscriptionID, Selection: webhook.ReplayList.Selection(q)}
	if q.Cursor != "" {
		if b["behind"], err = s.lists.Key.ParseIDCursor(scope, q.Cursor); err != nil {
			return nil, "", err
		}
	}
	query := selectReplays[q.Sort[0].Descending]
	err = s.db.Each(ctx, query.Text, query.Args(b), func(scan func(...any) error) error {
		r, err := record.ScanReplay(scan)
		page = append(page, r.Replay)
		return err
	})
	if err == nil && len(page) > q.Size {
		page = page[:q.Size]
		next = s.lists.Key.IDCursor(scope, page[q.Size-1].ID)
	}
	return page, next, err
}

// selectReplays lists the replays of a subscription by their IDs, which rise in the order of
// creation; the key says whether they descend.
var selectReplays = map[bool]list.Statement{
	false: listedReplays.With(" AND (:behind IS NULL OR id > :behind) ORDER BY id LIMIT :limit"),
	true:  listedReplays.With(" AND (:behind IS NULL OR id < :behind) ORDER BY id DESC LIMIT :limit"),
}

var listedReplays = list.Statement{}.With("SELECT " + record.ReplayColumns + " FROM replays INDEXED BY replays_by_subscription " +
	"WHERE subscription_id = :subscription AND " +
	list.AllOf(list.IsIn("status"), list.IsWithin("created_at", "created_at")))

const selectReplay = "SELECT " + record.ReplayColumns + " FROM replays WHERE id = ? AND subscription_id = ?"

// Cancel stops a running replay. Its deliveries continue. The error has CodeConflict if the replay
// no longer runs; the replay is returned nevertheless.
func (w ReplayWrites) Cancel(programID, subscriptionID, id string, by webhook.AuditEntry) (webhook.Replay, error) {
	s, t := w.t.s, w.t
	sub, err := t.subscription(programID, subscriptionID)
	if err != nil {
		return webhook.Replay{}, err
	}
	r, err := record.ScanReplay(t.Row(selectReplay, id, subscriptionID))
	if err != nil {
		return r.Replay, sqlite.NoRows(err, webhook.NotFound("replay"))
	}
	if r.Status != webhook.ReplayRunning {
		return r.Replay, webhook.NewError(webhook.CodeConflict, "The replay is no longer running: its status is "+string(r.Status)+".")
	}
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	r.Status, r.CompletedAt = webhook.ReplayCancelled, now
	err = t.Exec("UPDATE replays SET status = 'cancelled', completed_at = ?, counted_at = ? WHERE id = ?", now.UnixMilli(), t.counted(), id)
	if err != nil {
		return r.Replay, err
	}
	t.AfterCommit(func() { s.watchers.SubscriptionChanged(subscriptionID) })
	return r.Replay, SubscriptionWrites(w).Record(by, webhook.ActionSubscriptionCancelReplay, &sub,
		"replay "+id+" after "+webhook.Count(int(r.EventsSent), "event"))
}

// replayed returns up to count seqs after a replay's cursor whose events it sends, and how far
// it read: at most replayStep seqs. It skips events that the subscription's own cursor has yet
// to reach, and those of types that the subscription no longer selects.
func (s *core) replayed(ctx context.Context, r *record.ReplayCursor, count int) (seqs []int64, after int64, err error) {
	end := min(r.After+replayStep, r.Until)
	err = s.db.Each(ctx, selectReplayed+replayCondition(r.Only)+" ORDER BY e.seq LIMIT ?7", append(r.Args(), r.After, end, count),
		sqlite.Into(&seqs))
	if len(seqs) == count {
		end = seqs[count-1]
	}
	return seqs, end, err
}

// replayCondition returns the part of replayedEvents that depends on the kind of replay.
func replayCondition(only webhook.ReplayOnly) string {
	switch only {
	case webhook.ReplayMissed:
		return " AND NOT EXISTS (" + itsDeliveries + ") AND NOT " + wasDelivered
	case webhook.ReplayFailed:
		return " AND EXISTS (" + itsFailures + ") AND NOT EXISTS (" + itsDeliveries + " AND d.status IN ('pending', 'retryable')) " +
			"AND NOT EXISTS (" + itsFailures + " AND u.delivery IN (SELECT p.delivery FROM splits p))"
	}
	return ""
}

const (
	selectReplayed = "SELECT e.seq" + replayedEvents
	countReplayed  = "SELECT count(*)" + replayedEvents
	replayedEvents = ` FROM events e WHERE e.program_id = ?1 AND e.seq > ?5 AND e.seq <= ?6 AND ` + record.NotErased + `
		AND e.name IN (SELECT value FROM json_each(?3))
		AND e.name IN (SELECT value FROM json_each((SELECT events FROM subscriptions WHERE id = ?2)))
		AND NOT (e.seq > (SELECT seq FROM cursors WHERE subscription_id = ?2) AND EXISTS (
			SELECT 1 FROM interests i WHERE i.subscription_id = ?2 AND i.name = e.name AND i.after_seq < e.seq
			AND (i.until_seq IS NULL OR e.seq <= i.until_seq) AND ` + record.PassesFilter + `))
		AND (?4 IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(?4) i WHERE i.key = e.name AND NOT event_matches(i.value, e.id, e.json)))`
	itsDeliveries = `SELECT 1 FROM delivery_events x JOIN deliveries d ON d.num = x.delivery
		WHERE x.program_id = e.program_id AND x.seq = e.seq AND d.subscription_id = ?2`
	itsFailures = `SELECT 1 FROM undelivered u WHERE u.subscription = (SELECT num FROM subscriptions WHERE id = ?2) AND u.seq = e.seq`
)

// stepReplay forms the next delivery of the queue's oldest running replay with its first
// attempt counted, and returns its claim, nil if this step of the log contained no event. more
// reports whether a replay of the queue continues. The error is [ErrStale] if the subscription
// or the replay has changed.
func (s Queues) stepReplay(ctx context.Context, q *Queue, count, size int) (c *Claim, more bool, err error) {
	const query = "SELECT " + record.ReplayColumns + " FROM replays WHERE subscription_id = ? AND status = 'running' " +
		"ORDER BY created_at, id LIMIT 1"
	r, err := record.ScanReplay(s.db.Row(ctx, query, q.SubscriptionID))
	if err != nil {
		return nil, false, sqlite.NoRows(err, nil)
	}
	b, err := s.replayBatch(ctx, &r, count, size)
	if err != nil {
		return nil, false, err
	}
	if len(b.seqs) > 0 {
		made := q.newClaim(b.bodies, b.trace)
		c = &made
	}
	err = s.writer.do(func(t *tx) (err error) {
		if t.use(q.ProgramID, "") != nil {
			return ErrStale
		}
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

// replayBatch is the result of one step of a replay.
type replayBatch struct {
	eventParts
	seqs  []int64
	after int64 // the replay's cursor after the step
}

// replayBatch reads the next step of a replay: at most count events, and as many as fit into size
// bytes, but at least one. The error is [ErrStale] if retention removed one of the events.
func (s Queues) replayBatch(ctx context.Context, r *record.ReplayCursor, count, size int) (b replayBatch, err error) {
	if b.seqs, b.after, err = s.replayed(ctx, r, count); err != nil {
		return b, err
	}
	all := len(b.seqs)
	b.eventParts, b.seqs, err = s.fitting(ctx, r.ProgramID, b.seqs, size)
	if len(b.seqs) < all {
		b.after = b.seqs[len(b.seqs)-1]
	}
	return b, err
}

// fitting reads the first of some events that together have at most size bytes, but at least one
// if there is one, and returns their seqs. The error is [ErrStale] if one of them is gone.
func (s Queues) fitting(ctx context.Context, programID string, seqs []int64, size int) (c eventParts, fit []int64, err error) {
	read, _ := s.db.Reads(ctx)
	for {
		if c, err = s.eventBodies(read, programID, seqs); err != nil {
			if errors.Is(err, errGone) || errors.Is(err, errErased) {
				err = ErrStale
			}
			return c, seqs, err
		}
		n, bytes := 0, 0
		for n < len(c.bodies) && (n == 0 || bytes+len(c.bodies[n]) <= size) {
			bytes += len(c.bodies[n])
			n++
		}
		if n == len(seqs) {
			return c, seqs, nil
		}
		seqs = seqs[:n] // read again: the trace may be from an omitted event
	}
}

// advanceReplay moves a replay past a batch, and reports whether a replay of the queue
// continues.
func (t *tx) advanceReplay(r *record.ReplayCursor, b *replayBatch, q *Queue) (more bool, err error) {
	var running int
	if err := t.Scan("SELECT count(*) FROM replays WHERE subscription_id = ? AND status = 'running'", []any{q.SubscriptionID},
		&running); err != nil {
		return false, err
	}
	status, completed, counted := webhook.ReplayRunning, any(nil), any(nil)
	if b.after == r.Until {
		status, completed, counted = webhook.ReplayDone, t.s.clock.Now().UnixMilli(), t.counted()
		running--
	}
	n, err := t.Affected("UPDATE replays SET after_seq = ?, events = events + ?, deliveries = deliveries + ?, status = ?, "+
		"completed_at = ?, counted_at = ? WHERE id = ? AND status = 'running' AND after_seq = ? AND EXISTS (SELECT 1 FROM subscriptions "+
		"WHERE id = ? AND revision = ? AND active = 1)",
		b.after, len(b.seqs), min(len(b.seqs), 1), string(status), completed, counted, r.ID, r.After, q.SubscriptionID, q.Revision)
	if err == nil && n == 0 {
		err = ErrStale
	}
	return running > 0, err
}

// insertReplayed stores the delivery of a batch. It returns [ErrStale] if retention or an erasure has
// removed some of its events since they were read.
func (t *tx) insertReplayed(c *Claim, r *record.ReplayCursor, b *replayBatch) error {
	seqs := appendSeqs(nil, b.seqs)
	var there int
	if err := t.Scan("SELECT count(*) FROM events WHERE program_id = ? AND erased_at IS NULL AND seq IN (SELECT value FROM json_each(?))",
		[]any{r.ProgramID, seqs}, &there); err != nil {
		return err
	}
	if there != len(b.seqs) {
		return ErrStale
	}
	return t.insertFormed(c, seqs, maker{replay: r.ID})
}
