package store

import (
	"context"
	"strings"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const (
	// Of a URL the query is left out: it may hold a secret, which no search may guess.
	findSubscriptionsByText = "SELECT " + subscriptionColumns + ` FROM subscriptions INDEXED BY subscriptions_by_program
		WHERE deleted_at IS NULL AND (description LIKE ?1 ESCAPE '\' OR substr(url, 1, instr(url || '?', '?') - 1) LIKE ?1 ESCAPE '\') LIMIT ?2`
	findProgramsByText = `SELECT id FROM programs WHERE id LIKE ?1 ESCAPE '\' ORDER BY id LIMIT ?2`
)

// containing returns the pattern of LIKE for all that contains text.
func containing(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(text) + "%"
}

// FindByText returns subscriptions whose description or URL contains text, and programs
// whose id does, of each at most limit. The case of ASCII letters does not matter. It
// reads all subscriptions that are not deleted. An empty text finds nothing.
func (s *Store) FindByText(ctx context.Context, text string, limit int) (subs []webhook.Subscription, programs []string, err error) {
	if text == "" {
		return nil, nil, nil
	}
	err = s.view(ctx, func(v *view) error {
		err := v.Each(findSubscriptionsByText, []any{containing(text), limit}, func(scan func(...any) error) error {
			sub, err := scanSubscription(scan)
			subs = append(subs, sub)
			return err
		})
		if err != nil {
			return err
		}
		return v.Each(findProgramsByText, []any{containing(text), limit}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			programs = append(programs, id)
			return err
		})
	})
	return subs, programs, err
}

// EventSearch asks for the events whose JSON has a value in a field; see
// [webhook.FieldHas].
type EventSearch struct {
	ProgramID    string // "" is all
	Field, Value string
	From         time.Time     // no event is read that was received before; zero for no bound
	Cursor       string        // More of the page before, or ""
	Limit        int           // of events that are found
	Within       time.Duration // how long events are read
}

// EventsFound is a page of what a search found, the newest first.
type EventsFound struct {
	Events []webhook.Event
	Read   int       // how many events were read
	Until  time.Time // when the oldest of them was received, zero when none was read
	More   string    // the cursor of the search further back, "" when it reached its end
}

// searchStep is how many events are read by one query.
const searchStep = 500

const searchEvents = "SELECT rowid, program_id, seq, id, name, received_at, json FROM events WHERE rowid < ? ORDER BY rowid DESC LIMIT ?"

// Search reads events from the newest, until it has found enough, has reached the time
// From, or was at it for long enough.
func (s Events) Search(ctx context.Context, q EventSearch) (found EventsFound, err error) {
	scope := cursorScope{"event search", q.ProgramID, "", q.Field + ":" + q.Value}
	place := []int64{1<<63 - 1}
	if q.Cursor != "" {
		if err := s.place(scope, q.Cursor, place); err != nil {
			return found, err
		}
	}
	end := time.Now().Add(q.Within)
	for {
		read, ended := 0, false
		err := s.view(ctx, func(v *view) error {
			return v.Each(searchEvents, []any{place[0], searchStep}, func(scan func(...any) error) error {
				var row int64
				var program string
				e, err := s.dictionaries.scanEvent("", func(dest ...any) error { return scan(append([]any{&row, &program}, dest...)...) })
				if err != nil {
					return err
				}
				e.ProgramID = program
				// Events of several programs may be a little out of the order of their times.
				if e.ReceivedAt.Before(q.From.Add(-disorder)) {
					ended = true
					return sqlite.ErrStop
				}
				read, place[0], found.Until = read+1, row, e.ReceivedAt
				if (q.ProgramID == "" || program == q.ProgramID) && !e.ReceivedAt.Before(q.From) && webhook.FieldHas(e.JSON, q.Field, q.Value) {
					found.Events = append(found.Events, e)
				}
				if len(found.Events) == q.Limit {
					return sqlite.ErrStop
				}
				return nil
			})
		})
		found.Read += read
		full := len(found.Events) >= q.Limit
		switch {
		case err != nil:
			return found, err
		case ended || read < searchStep && !full:
			return found, nil
		case full || !time.Now().Before(end):
			found.More = s.cursor(scope, place)
			return found, nil
		}
	}
}
