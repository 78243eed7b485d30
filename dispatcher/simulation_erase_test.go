package dispatcher

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"

	"service/store"
	"service/store/sqlite"
	"service/webhook"
)

const doEraseEvents operation = "erase events"

// erasureDelays are the times after which events are erased while a plan goes on: when attempts end, a
// batch window does, or a retry is due.
var erasureDelays = [...]time.Duration{0, 0, 3 * time.Second, attemptTimeout, 0, 2 * time.Second, time.Second, 15 * time.Second}

// erasures draws the steps of a plan that erase events.
func erasures() *rapid.Generator[[]extra] {
	one := rapid.Custom(func(t *rapid.T) extra {
		return extra{Place: rapid.IntRange(0, 31).Draw(t, "place"), step: step{Do: doEraseEvents,
			Subscription: rapid.IntRange(0, 5).Draw(t, "subscription"), N: rapid.IntRange(0, 7).Draw(t, "n"),
			NoWait: rapid.Bool().Draw(t, "no wait")}}
	})
	return rapid.SliceOfN(one, 0, 4)
}

// modelErasure is the erasure of an event, which has been committed.
type modelErasure struct {
	at   time.Time
	made map[string]int // attempts counted at the commit, by delivery: none may follow
}

// erasureView reads which attempts have been counted when the commit of an erasure ends, and before the
// next write.
type erasureView struct {
	store *store.Store
	event string

	mu                    sync.Mutex
	written, ended, taken bool // the erasure is in the transaction; its COMMIT has begun; made is set
	made                  map[string]int
	err                   error
}

// beforeStatement is called before each statement of the writer, and at last with none.
func (v *erasureView) beforeStatement(query string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		v.readMade()
	}
	v.ended = v.ended || v.written && query == "COMMIT"
}

// readMade reads the deliveries of the event. The caller holds v.mu.
func (v *erasureView) readMade() {
	if v.taken {
		return
	}
	v.taken, v.made = true, make(map[string]int)
	values := url.Values{"filter[event_id]": {v.event}, "page[size]": {"100"}}
	for {
		query, invalid := webhook.AllDeliveryList.Parse(values)
		if invalid != nil {
			v.err = invalid
			return
		}
		page, next, err := v.store.Deliveries().PageAll(context.Background(), &query)
		for _, d := range page {
			v.made[d.ID] = d.AttemptsMade
		}
		if v.err = err; err != nil || next == "" {
			return
		}
		values.Set("page[cursor]", next)
	}
}

// faultOf is the fault of a statement, see [faults].
func (s *simulation) faultOf(query string, write bool) sqlite.Fault {
	if write {
		s.views.Range(func(v, _ any) bool {
			s.faults.without(func() { v.(*erasureView).beforeStatement(query) })
			return true
		})
	}
	return s.faults.fault(query, write)
}

// eraseEvents erases one or two events of a program, at once or while the plan goes on.
func (s *simulation) eraseEvents(program string, n int, noWait bool) {
	s.mu.Lock()
	st, generation := s.d.store, s.generation
	s.mu.Unlock()
	if noWait {
		time.AfterFunc(erasureDelays[n], func() { s.eraseSome(st, generation, program, n) })
		return
	}
	s.eraseSome(st, generation, program, n)
}

func (s *simulation) eraseSome(st *store.Store, generation int, program string, n int) {
	s.mu.Lock()
	var known []int
	for i := range s.log {
		if e := &s.log[i]; e.program == program && s.published[i] != 0 && !e.erasing {
			known = append(known, i)
		}
	}
	s.mu.Unlock()
	newest := len(known) - 1
	for _, i := range []int{newest - n/2%2, newest * n / 8}[:1+n%2] {
		if i >= 0 && newest >= 0 {
			s.eraseEvent(st, generation, program, known[i])
		}
	}
}

// eraseEvent erases an event. After a crash, learnErasures finds whether it was.
func (s *simulation) eraseEvent(st *store.Store, generation int, program string, event int) {
	s.mu.Lock()
	if s.generation != generation || s.down || s.log[event].erasing {
		s.mu.Unlock()
		return
	}
	s.expectErasure(event)
	v := &erasureView{store: st, event: s.eventID(event)}
	s.mu.Unlock()
	s.views.Store(v, nil)
	err := st.Write(context.Background(), func(w store.Write) error {
		_, err := w.EraseEvent(program, v.event, webhook.AuditEntry{})
		v.mu.Lock()
		defer v.mu.Unlock()
		v.written = err == nil
		return err
	})
	if err == nil {
		s.faults.without(func() { v.beforeStatement("") })
	}
	s.views.Delete(v)
	s.mu.Lock()
	down := s.down || s.generation != generation || s.crashed && (err != nil || v.err != nil) // a restart may have closed the store
	s.mu.Unlock()
	if down {
		return
	}
	s.allowRefusal(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log[event].erasing = err == nil; err != nil {
		return
	}
	s.unexpected(v.err)
	s.committed()
	s.log[event].erasure = &modelErasure{time.Now(), v.made}
	for _, sub := range s.subs {
		for _, d := range sub.received {
			if slices.Contains(d.events, event) {
				s.checkErased(sub, d)
			}
		}
	}
}

// eventID returns the ID of an event. The caller holds s.mu.
func (s *simulation) eventID(event int) string {
	for id, i := range s.events {
		if i == event {
			return id
		}
	}
	return ""
}

// expectErasure notes that an event may be erased from now on. The caller holds s.mu.
func (s *simulation) expectErasure(event int) {
	s.log[event].erasing, s.changes.erased = true, true
	for _, sub := range s.subs {
		for _, want := range sub.expected {
			want.uncertain = want.uncertain || want.event == event
		}
		for _, d := range sub.received {
			d.dropped = d.dropped || d.mayWait() && slices.Contains(d.events, event)
		}
	}
}

// learnErasures reads which events were erased by writes that got no answer before a crash. The caller
// holds s.mu.
func (s *simulation) learnErasures() {
	for i := range s.log {
		e := &s.log[i]
		if !e.erasing || e.erasure != nil || e.program == "" {
			continue
		}
		v := &erasureView{store: s.d.store, event: s.eventID(i)}
		stored, err := v.store.Events().Get(context.Background(), e.program, v.event)
		if e.erasing = err == nil && !stored.ErasedAt.IsZero(); e.erasing {
			v.readMade()
			s.unexpected(v.err)
			e.erasure = &modelErasure{time.Now(), v.made}
		}
	}
}

// isErasing reports whether an event may have been erased. The caller holds s.mu.
func (s *simulation) isErasing(e webhook.EventRef) bool {
	event, known := s.events[e.ID]
	return known && s.log[event].erasing
}

func (s *simulation) erasingAt(event int) bool { return event >= 0 && s.log[event].erasing }

// checkErased checks that no attempt of a delivery with an erased event began after the commit. The
// caller holds s.mu.
func (s *simulation) checkErased(sub *modelSubscription, d *modelDelivery) {
	for _, event := range d.events {
		if event < 0 || s.log[event].erasure == nil {
			continue
		}
		x, last := s.log[event].erasure, d.last()
		late := len(d.attempts) > x.made[d.id] || last.arrivedAt.Sub(x.at) > s.dial+storeRetryWait+slack
		if late && !last.arrivedAt.Before(x.at) {
			s.violate(promiseErased, "subscription %d: attempt %d of a delivery of %d events has event %d, erased at %s after %d attempts",
				sub.index, len(d.attempts), len(d.events), event, sinceStart(x.at), x.made[d.id])
		}
	}
}

// checkCleared checks in the database, which is closed, that no erasure is unfinished.
func (s *simulation) checkCleared() *violation {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(s.dir, "service.db"))
	left := ""
	if err == nil {
		defer db.Close()
		err = db.QueryRow(`SELECT (SELECT count(*) FROM erasures) || ' erasures, ' || (SELECT count(*) FROM blanks) || ' blanks, ' ||
			(SELECT count(*) FROM events WHERE erased_at IS NOT NULL AND json LIKE '%"n":%') || ' payloads'`).Scan(&left)
	}
	if err != nil || left != "0 erasures, 0 blanks, 0 payloads" {
		return &violation{promiseErased, fmt.Sprintf("in the end there are %s (%v)", left, err)}
	}
	return nil
}
