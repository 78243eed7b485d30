package record

import (
	"context"
	"slices"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// OwedEvent is an event that the names and filters of a subscription select, and what has become of it.
type OwedEvent struct {
	webhook.Event
	DeliveryState
	DeliveryID string // of the delivery that decides its status, "" if there is none
}

// Owed counts events that the names and filters of a subscription select.
type Owed struct {
	Total    int
	States   map[DeliveryState]int
	Complete bool // false: there are more
	// Truncated reports that retention has removed events of the log that may have been among them.
	Truncated bool
}

// Group returns the value of the filter status of [webhook.ReconciliationList] that selects a state.
func (d DeliveryState) Group() string {
	switch d.Status {
	case DeliveryStatus(webhook.StatusSuccess):
		return "delivered"
	case DeliveryStatus(webhook.StatusFailed):
		return "failed"
	case DeliveryNone:
		return "not_sent"
	}
	return "waiting"
}

// owedStates returns the states in groups, in their stored form.
func owedStates(groups []string) (stored []string) {
	all := []DeliveryState{{Status: DeliveryWaiting}}
	for _, status := range []webhook.Status{webhook.StatusPending, webhook.StatusRetryable, webhook.StatusSuccess} {
		all = append(all, DeliveryState{Status: DeliveryStatus(status)})
	}
	for _, reason := range webhook.FailureReasons() {
		all = append(all, DeliveryState{DeliveryStatus(webhook.StatusFailed), string(reason)})
	}
	for _, reason := range []string{NotSentNew, NotSentPaused, NotSentGone, NotSentErased, string(webhook.FailureSubscriptionDeleted)} {
		all = append(all, DeliveryState{DeliveryNone, reason})
	}
	for _, d := range all {
		if slices.Contains(groups, d.Group()) {
			stored = append(stored, strings.TrimSpace(string(d.Status)+" "+d.Reason))
		}
	}
	return stored
}

const (
	// ?1 is the program, ?2 the subscription, ?3 seqs.
	selectOwed = "SELECT e.seq, e.id, e.name, e.received_at, e.json, e.erased_at, " + deliveryState + ", d.id" + fromOwed + " ORDER BY i.key"
	countOwed  = "SELECT " + deliveryState + ", count(*)" + fromOwed + " GROUP BY 1"
	fromOwed   = " FROM subscriptions s CROSS JOIN json_each(?3) i CROSS JOIN events e ON e.program_id = ?1 AND e.seq = i.value" +
		joinDeciding + " WHERE s.id = ?2"

	hasState = deliveryState + " IN (SELECT value FROM json_each(:states))"

	// maxOpen is how many open deliveries are read to find where the events that wait begin.
	maxOpen = 1000

	// selectOldestOpen selects the oldest event of a subscription that may wait, and how many open
	// deliveries were read for it. ?1 is the subscription, ?2 the maximum of those.
	selectOldestOpen = `SELECT min((SELECT coalesce(min(c.seq) + 1, 0) FROM cursors c WHERE c.subscription_id = ?1),
			coalesce(min(o.seq), 1 << 62)), count(*) FROM (
		SELECT (SELECT min(j.value) FROM json_each(d.seqs) j) AS seq FROM deliveries d INDEXED BY deliveries_by_status
			WHERE d.status IN ('pending', 'retryable') AND d.status <> 'success' AND d.subscription_id = ?1
		UNION ALL SELECT (SELECT min(j.value) FROM json_each(d.seqs) j) FROM splits p CROSS JOIN deliveries d ON d.num = p.delivery
			WHERE p.subscription_id = ?1
		LIMIT ?2) o`
)

// The events of one name with a status.
var owedByName = list.Along("e.seq", "e.seq", "(:filter IS NULL OR event_matches(:filter, e.id, e.json)) AND "+hasState,
	"FROM subscriptions s CROSS JOIN events e INDEXED BY events_by_name"+joinDeciding+
		" WHERE s.id = :subscription AND e.program_id = :program AND e.name = :value")

// The failed events are among the undelivered ones, which are few. An event may have several rows.
var owedUndelivered = list.Along("u.seq", "u.seq", "e.name IN (SELECT value FROM json_each(:names)) AND NOT EXISTS (SELECT 1 "+
	"FROM json_each(:filters) f WHERE f.key = e.name AND NOT event_matches(f.value, e.id, e.json)) AND "+hasState,
	"FROM subscriptions s CROSS JOIN undelivered u ON u.subscription = s.num CROSS JOIN events e ON e.program_id = :program AND e.seq = u.seq"+
		joinDeciding+" WHERE s.id = :subscription")

// Owed returns a page of the events that the names and filters of a subscription select, and the cursor
// of the next page, "" on the last. It reads a bounded number of events, so a page with a status may be
// short or empty although more follow. The status of an event is as of the page.
func (s Events) Owed(ctx context.Context, sub *webhook.Subscription, q *webhook.ListQuery) (events []OwedEvent, next string, err error) {
	f, err := s.owedFeed(ctx, sub, q)
	if err != nil {
		return nil, "", err
	}
	return list.Rows(ctx, f, selectOwed, []any{sub.ProgramID, sub.ID}, func(scan func(...any) error) (o OwedEvent, err error) {
		o.Event, err = ScanEvent(s.dictionaries, sub.ProgramID, func(dest ...any) error {
			return scan(append(dest, &o.DeliveryState, (*DeliveryID)(&o.DeliveryID))...)
		})
		return o, err
	})
}

// NewerOwed returns the cursor of the page before the one at the cursor of q, "" if that is the first.
func (s Events) NewerOwed(ctx context.Context, sub *webhook.Subscription, q *webhook.ListQuery) (string, error) {
	f, err := s.owedFeed(ctx, sub, q)
	if err != nil {
		return "", err
	}
	return f.Newer(ctx)
}

// owedChunk is how many events one read counts.
const owedChunk = 1000

// CountOwed counts the events of q by state, whatever page and status it selects, and stops after a time.
// It reads at most owedChunk events at a time. Those whose status changes during the count are
// counted with either.
func (s Events) CountOwed(ctx context.Context, sub *webhook.Subscription, q *webhook.ListQuery, limit time.Duration) (Owed, error) {
	all := *q
	all.Filters, all.Cursor, all.Size = nil, "", owedChunk
	o := Owed{States: make(map[DeliveryState]int)}
	f, err := s.owedFeed(ctx, sub, &all)
	if err != nil {
		return o, err
	}
	f.Budget = max(f.Budget, owedChunk+1)
	err = s.view(ctx, func(v *view) error {
		l, err := v.log(sub.ProgramID)
		o.Truncated = l.oldest > 1 && f.Low < l.oldest
		return err
	})
	if err != nil {
		return o, err
	}
	descending := all.Sort[0].Descending
	for deadline, at := time.Now().Add(limit), list.Start(descending); !o.Complete; {
		err := s.view(ctx, func(v *view) error {
			seqs, to, more, err := f.Walk(v.View, descending, at)
			if at, o.Complete = to, !more; err != nil {
				return err
			}
			return v.Each(countOwed, []any{sub.ProgramID, sub.ID, sqlite.JSON(seqs)}, func(scan func(...any) error) error {
				var state DeliveryState
				var n int
				err := scan(&state, &n)
				o.States[state] += n
				o.Total += n
				return err
			})
		})
		if err != nil || !time.Now().Before(deadline) {
			return o, err
		}
	}
	return o, nil
}

// owedFeed returns the feed of the events that the names and filters of a subscription select, in the
// order of the log.
func (s Events) owedFeed(ctx context.Context, sub *webhook.Subscription, q *webhook.ListQuery) (*list.Feed, error) {
	if err := s.use(sub.ProgramID, ""); err != nil {
		return nil, err
	}
	l, err := s.logFeed(ctx, sub.ProgramID, sub, q)
	if err != nil {
		return nil, err
	}
	f := l.Feed
	f.Scope = list.Scope{List: "owed", ProgramID: sub.ProgramID, Parent: sub.ID, Selection: webhook.ReconciliationList.Selection(q)}
	groups := q.Filters["status"]
	if groups == nil {
		return f, nil
	}
	f.Budget = s.lists.Limits.CostlyScan
	f.Binds["subscription"], f.Binds["states"] = sub.ID, sqlite.JSON(owedStates(groups))
	for i := range f.Streams {
		f.Streams[i].Access = owedByName
	}
	if len(groups) > 1 {
		return f, nil
	}
	switch groups[0] {
	case "failed":
		f.Binds["names"], f.Binds["filters"] = sqlite.JSON(sub.Events), sqlite.JSONText(sub.Filters)
		f.Streams = []list.Stream{{Access: owedUndelivered}}
	case "waiting":
		var oldest int64
		var open int
		if err := s.lists.DB.Scan(ctx, selectOldestOpen, []any{sub.ID, maxOpen}, &oldest, &open); err != nil {
			return nil, err
		}
		if open < maxOpen {
			f.Low = max(f.Low, oldest-1)
		}
	}
	return f, nil
}
