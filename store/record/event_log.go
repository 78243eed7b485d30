package record

import (
	"context"
	"slices"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// LogPage is a page of a program's log in ascending order.
type LogPage struct {
	Events   []webhook.Event
	Statuses []DeliveryStatus // of the events, for the log of a subscription
	Next     string           // the cursor after the page; "" at the end of a range with an upper bound
	Head     bool             // the page reaches the end of the log
	// Truncated reports that retention has removed events between the position of the request and
	// the oldest event.
	Truncated bool
	Newest    int64 // the seq at the end of the log

	key   list.Key
	scope list.Scope
	epoch logEpoch
}

// Cursor returns the cursor after an event of the page.
func (p *LogPage) Cursor(seq int64) string {
	return p.key.Cursor(p.scope, []int64{p.epoch.parent, p.epoch.id, p.epoch.head, seq})
}

// logEpoch is the part of a log's history between two restores or takeovers. Later events than its head
// belong to it.
type logEpoch struct{ parent, id, head int64 }

// logEpochs are all epochs of a log, in order.
type logEpochs []logEpoch

// resolve returns the position from which a cursor of an epoch continues without skipping an event. An
// epoch that began after the cursor may have reassigned the seqs beyond its head. The log may lack the
// cursor's epoch after a restore of an older copy; then its parent decides, or else only the beginning
// is safe.
func (all logEpochs) resolve(of logEpoch, seq int64) int64 {
	at := slices.IndexFunc(all, func(e logEpoch) bool { return e.id == of.id })
	if at < 0 {
		seq = min(seq, of.head)
		at = slices.IndexFunc(all, func(e logEpoch) bool { return e.id == of.parent })
	}
	if at < 0 {
		return 0
	}
	for _, later := range all[at+1:] {
		seq = min(seq, later.head)
	}
	return seq
}

const (
	selectLog = "SELECT p.log_key, coalesce((SELECT min(seq) FROM events WHERE program_id = p.id), 0), " +
		"coalesce((SELECT max(seq) FROM events WHERE program_id = p.id), 0) FROM programs p WHERE p.id = ?1"
	selectEpochs = "SELECT num, id, head FROM log_epochs WHERE program_id = ? ORDER BY num"

	// ?1 is the program, ?2 the subscription, ?3 the seqs of a page.
	selectLogEvents = "SELECT e.seq, e.id, e.name, e.received_at, e.json, e.erased_at, " + deliveryState +
		" FROM subscriptions s CROSS JOIN json_each(?3) i CROSS JOIN events e ON e.program_id = ?1 AND e.seq = i.value" + joinDeciding +
		" WHERE s.id = ?2 ORDER BY i.key"
)

// log is the state of a log as of one view.
type log struct {
	key            list.Key
	oldest, newest int64 // seqs, 0 if there are none
	epochs         logEpochs
}

// log reads the state of a program's log.
func (v *view) log(programID string) (l log, err error) {
	if err := v.Scan(selectLog, []any{programID}, (*[]byte)(&l.key), &l.oldest, &l.newest); err != nil {
		return l, sqlite.NoRows(err, webhook.NoProgram(programID))
	}
	l.epochs = logEpochs{{}}
	rows := 0
	err = v.Each(selectEpochs, []any{programID}, func(scan func(...any) error) error {
		var e logEpoch
		var num int64
		if err := scan(&num, &e.id, &e.head); err != nil {
			return err
		}
		e.parent = l.epochs[len(l.epochs)-1].id
		if rows++; rows == 1 && num > 1 { // those before it were dropped, with their heads
			l.epochs, e.parent = nil, e.id
		}
		l.epochs = append(l.epochs, e)
		return nil
	})
	return l, err
}

// Log returns a page of a program's log in ascending order, or of the events that the names and
// filters of a subscription select. It reads a bounded number of events, so a page may be short or
// empty although more follow: only Head tells. Without a cursor and a lower bound, the page begins at
// the start of the log, or with a subscription at its end. The error names page[cursor] if the cursor
// is not from the program's log.
func (s Events) Log(ctx context.Context, programID string, sub *webhook.Subscription, q *webhook.ListQuery) (p LogPage, err error) {
	if err := s.use(programID, ""); err != nil {
		return p, err
	}
	f, err := s.logFeed(ctx, programID, sub, q)
	if err != nil {
		return p, err
	}
	err = s.view(ctx, func(v *view) error {
		l, err := v.log(programID)
		if err != nil {
			return err
		}
		from, err := f.start(&l, sub != nil)
		if err != nil {
			return err
		}
		p = LogPage{Newest: l.newest, key: l.key, scope: f.Scope, epoch: l.epochs[len(l.epochs)-1], Truncated: l.oldest > from+1}
		if q.Cursor == "" && from > 0 { // with a lower bound, it is unknown whether events after it were removed
			p.Truncated = l.oldest > 1 && from < l.oldest
		}
		f.High = min(f.High, l.newest+1)
		keys, at, more, err := f.Walk(v.View, false, from)
		if err != nil {
			return err
		}
		if !more {
			at, p.Head = max(from, f.High-1), f.High > l.newest
		}
		if more || f.followed {
			p.Next = p.Cursor(at)
		}
		return p.read(v, programID, sub, keys)
	})
	return p, err
}

// logFeed is the feed of a log.
type logFeed struct {
	*list.Feed
	followed bool
}

// logFeed returns the feed of the events that a query and a subscription, unless it is nil, select.
func (s Events) logFeed(ctx context.Context, programID string, sub *webhook.Subscription, q *webhook.ListQuery) (*logFeed, error) {
	f, err := s.feed(ctx, programID, q)
	if err != nil {
		return nil, err
	}
	f.Scope = list.Scope{List: "log", ProgramID: programID} // any query continues from a position
	if sub == nil {
		return &logFeed{f, q.Ranges["received_at"].To.IsZero()}, nil
	}
	f.Streams = nil
	for _, name := range sub.Events {
		b := list.Binds{"value": name}
		if filter := sub.Filters[name]; filter != nil {
			b["filter"] = filter.JSON()
			f.Budget = s.lists.Limits.CostlyScan
		}
		f.Streams = append(f.Streams, list.Stream{Access: eventsByFilter, Binds: b})
	}
	return &logFeed{f, q.Ranges["received_at"].To.IsZero()}, nil
}

// start returns the position after which the page begins. atEnd says that a query without a position
// begins at the end of the log.
func (f *logFeed) start(l *log, atEnd bool) (int64, error) {
	switch {
	case f.Query.Cursor != "":
		at := make([]int64, 4)
		if err := l.key.ParseCursor(f.Scope, f.Query.Cursor, at); err != nil {
			return 0, webhook.Invalid(webhook.Validation{
				Code: webhook.InvalidFormat, Parameter: "page[cursor]",
				Detail: "must be meta.pagination.next or the id of a streamed event, of an earlier response from the log of this program",
			})
		}
		return max(f.Low, min(l.epochs.resolve(logEpoch{at[0], at[1], at[2]}, at[3]), l.newest)), nil
	case f.Low == 0 && atEnd && f.Query.Ranges["received_at"].From.IsZero():
		return l.newest, nil
	}
	return f.Low, nil
}

// read reads the events of the page but for erased ones.
func (p *LogPage) read(v *view, programID string, sub *webhook.Subscription, seqs []int64) error {
	query, args := selectListedEvents, []any{programID, sqlite.JSON(seqs)}
	if sub != nil {
		query, args = selectLogEvents, []any{programID, sub.ID, sqlite.JSON(seqs)}
	}
	return v.Each(query, args, func(scan func(...any) error) error {
		var state DeliveryState
		e, err := ScanEvent(v.s.dictionaries, programID, func(dest ...any) error {
			if sub != nil {
				dest = append(dest, &state)
			}
			return scan(dest...)
		})
		if e.ErasedAt.IsZero() {
			p.Events, p.Statuses = append(p.Events, e), append(p.Statuses, state.Status)
		}
		return err
	})
}
