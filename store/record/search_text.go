package record

import (
	"context"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// matchesText is the condition that the name or the URL of a row of s, a table or an alias, matches a pattern. The
// query of a URL is not searched: it may contain a secret that could be guessed.
func matchesText(s, pattern string) string {
	return "(" + s + ".description LIKE " + pattern + ` ESCAPE '\'
		OR substr(` + s + ".url, 1, instr(" + s + ".url || '?', '?') - 1) LIKE " + pattern + ` ESCAPE '\')`
}

var (
	findSubscriptionsByText = "SELECT " + SubscriptionColumns + ` FROM subscriptions INDEXED BY subscriptions_by_program
		WHERE deleted_at IS NULL AND program_id` + list.CanBeUsed + " AND " + matchesText("subscriptions", "?1") + " LIMIT ?2"

	findProgramsByText = `SELECT id FROM programs WHERE id` + list.CanBeUsed + ` AND (id LIKE ?1 ESCAPE '\'
		OR name LIKE ?1 ESCAPE '\') ORDER BY id LIMIT ?2`
)

// Containing returns a LIKE pattern for values that contain text.
func Containing(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(text) + "%"
}

// Text returns subscriptions whose description or URL contains text, and programs whose ID
// or name does, at most limit of each. ASCII letters match in either case. It reads all
// subscriptions that are not deleted. An empty text finds nothing.
func (s Search) Text(ctx context.Context, text string, limit int) (subs []webhook.Subscription, programs []string, err error) {
	if text == "" {
		return nil, nil, nil
	}
	err = s.view(ctx, func(v *view) error {
		err := v.Each(findSubscriptionsByText, []any{Containing(text), limit}, sqlite.ScanInto(&subs, ScanSubscription))
		if err != nil {
			return err
		}
		return v.Each(findProgramsByText, []any{Containing(text), limit}, sqlite.Into(&programs))
	})
	return subs, programs, err
}

// EventSearch selects the events whose JSON contains a value in a field, see [webhook.FieldHas].
type EventSearch struct {
	ProgramID    string // "" for all programs
	Field, Value string
	From         time.Time     // earliest received_at; zero for no bound
	Cursor       string        // More of the previous page, or ""
	Limit        int           // maximum number of events found
	Within       time.Duration // maximum duration of the search
}

// EventsFound is a page of search results, newest first.
type EventsFound struct {
	Events []webhook.Event
	Read   int       // number of events read
	Until  time.Time // when the oldest event read was received; zero if none was read
	More   string    // cursor to continue the search, "" at its end
}

// searchStep is how many events one query reads.
const searchStep = 500

const searchEvents = "SELECT rowid, program_id, seq, id, name, received_at, json, erased_at FROM events WHERE rowid < ? " +
	"ORDER BY rowid DESC LIMIT ?"

// Search reads events, newest first, until it has found Limit events, reached From, or searched
// for Within.
func (s Events) Search(ctx context.Context, q EventSearch) (EventsFound, error) {
	scope := list.Scope{List: "event search", ProgramID: q.ProgramID, Selection: q.Field + ":" + q.Value}
	x := eventSearch{EventSearch: q, position: []int64{1<<63 - 1}, imported: s.lists.Imported.Of("events")}
	if q.Cursor != "" {
		if err := s.lists.Key.ParseCursor(scope, q.Cursor, x.position); err != nil {
			return x.found, err
		}
	}
	for end := time.Now().Add(q.Within); ; {
		read := x.found.Read
		err := s.view(ctx, func(v *view) error {
			return v.Each(searchEvents, []any{x.position[0], searchStep}, func(scan func(...any) error) error {
				var row int64
				var program string
				e, err := ScanEvent(s.dictionaries, "", func(dest ...any) error { return scan(append([]any{&row, &program}, dest...)...) })
				if err != nil {
					return err
				}
				e.ProgramID = program
				if s.use(program, "event") != nil {
					e.JSON = []byte("{}") // hidden
				}
				return x.take(row, &e)
			})
		})
		switch {
		case err != nil:
			return x.found, err
		case x.ended || x.found.Read-read < searchStep && !x.full():
			return x.found, nil
		case x.full() || !time.Now().Before(end):
			x.found.More = s.lists.Key.Cursor(scope, x.position)
			return x.found, nil
		}
	}
}

// eventSearch is a search in progress.
type eventSearch struct {
	EventSearch
	found    EventsFound
	position []int64 // the rowid of the last event read
	ended    bool    // From was reached
	imported []list.ImportedRange
}

func (x *eventSearch) full() bool { return len(x.found.Events) >= x.Limit }

// take examines the next event. It returns [sqlite.ErrStop] if the search must not read more
// events.
func (x *eventSearch) take(row int64, e *webhook.Event) error {
	// Events of different programs may be slightly out of order.
	if e.ReceivedAt.Before(x.From.Add(-disorder)) && list.RangeOf(x.imported, row, e.ReceivedAt.UnixMilli()) == nil {
		x.ended = true
		return sqlite.ErrStop
	}
	x.position[0] = row
	x.found.Read, x.found.Until = x.found.Read+1, e.ReceivedAt
	if (x.ProgramID == "" || e.ProgramID == x.ProgramID) && !e.ReceivedAt.Before(x.From) && webhook.FieldHas(e.JSON, x.Field, x.Value) {
		x.found.Events = append(x.found.Events, *e)
	}
	if x.full() {
		return sqlite.ErrStop
	}
	return nil
}
