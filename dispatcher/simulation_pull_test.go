package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"service/api"
	"service/webhook"
)

// pulls are the requests of a simulation that pull events over the API. Two followers read the log of
// each program, and one follower reads the log of each of the first subscriptions. Some read pages when
// the dispatcher is idle; the others wait, or read a stream.
type pulls struct {
	platform  string   // token
	api       *api.API // of the open store
	ctx       context.Context
	stop      context.CancelFunc
	running   sync.WaitGroup
	runs      int // number of the last request that ran while the plan went on
	followers []*follower
}

// followedSubscriptions is how many subscriptions have a follower.
const followedSubscriptions = 2

// follower follows a log by its cursor.
type follower struct {
	program string
	sub     *modelSubscription // nil for the log of the program
	waits   bool               // its requests run while the plan goes on
	size    int                // maximum number of events of its pages

	cursor   string
	last     int64        // seq of the last event
	seen     map[int]bool // index of each event
	checked  int          // number of events in the model's log that were looked for
	wants    settings     // of the subscription, at the last check
	revision int64        // of the subscription, at the last check
	run      int          // number of the request that runs while the plan goes on, whose events alone count; 0 for none
}

// pulledPage is a page of a log.
type pulledPage struct {
	Data []pulledEvent `json:"data"`
	Meta struct {
		Pagination struct {
			Next string `json:"next"`
		} `json:"pagination"`
	} `json:"meta"`
}

type pulledEvent struct {
	ID  string `json:"id"`
	Seq int64  `json:"seq"`
}

// startPulls serves the API of the store that was just opened.
func (s *simulation) startPulls() {
	s.pulls.api = api.New(api.Config{Store: s.d.store, Catalog: webhook.NewCatalog()})
	s.pulls.ctx, s.pulls.stop = context.WithCancel(context.Background())
	if s.pulls.followers != nil {
		return
	}
	for i, program := range simulatedPrograms[:s.plan.Programs] {
		s.pulls.followers = append(s.pulls.followers,
			&follower{program: program, size: 1 + i*2},
			&follower{program: program, size: 2, waits: true})
	}
	for _, f := range s.pulls.followers {
		f.reset(0)
	}
}

// stopPulls ends the requests that run. The store may be closed already.
func (s *simulation) stopPulls() {
	s.pulls.stop()
	s.pulls.api.EndWaits()
	s.pulls.running.Wait()
}

// reset makes a follower begin with the log, whose first event in the model is known.
func (f *follower) reset(known int) {
	f.cursor, f.last, f.seen, f.checked, f.run = "", 0, make(map[int]bool), known, 0
}

// followSubscription adds a follower of a subscription that was created. The caller holds s.mu.
func (s *simulation) followSubscription(sub *modelSubscription) {
	if sub.index < followedSubscriptions {
		f := &follower{program: sub.program, sub: sub, size: 3, waits: sub.index == 1}
		f.reset(0)
		s.pulls.followers = append(s.pulls.followers, f)
	}
}

// forgetPulls makes the followers of a program begin with its next log. The caller holds s.mu.
func (s *simulation) forgetPulls(program string) {
	for _, f := range s.pulls.followers {
		if f.program == program {
			f.reset(len(s.log))
		}
	}
}

// request returns the next request of a follower.
func (f *follower) request(ctx context.Context, token string, query string) *http.Request {
	path := "/v2/events?sort=received_at&"
	if f.sub != nil {
		path = "/v2/webhooks/subscriptions/" + f.sub.id + "/events?from=1900-01-01&"
	}
	r := httptest.NewRequestWithContext(ctx, "GET", path+query, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("X-Program-Id", f.program)
	return r
}

// page pulls the page after a cursor.
func (s *simulation) page(ctx context.Context, f *follower, cursor string, size int, wait string) (p pulledPage, status int, body string) {
	query := fmt.Sprintf("page[size]=%d&page[cursor]=%s%s", size, cursor, wait)
	if cursor == "" {
		query = fmt.Sprintf("page[size]=%d%s", size, wait)
	}
	w := httptest.NewRecorder()
	s.pulls.api.ServeHTTP(w, f.request(ctx, s.pulls.platform, query))
	_ = json.Unmarshal(w.Body.Bytes(), &p) // a page without a position ends the plan
	return p, w.Code, w.Body.String()
}

// receive checks what a follower has got. The caller holds s.mu.
func (s *simulation) receive(f *follower, all []pulledEvent, next string) {
	for _, e := range all {
		event, known := s.events[e.ID]
		switch {
		case !known:
			s.violate(promisePulled, "%s: got an unknown event", f)
			return
		case e.Seq <= f.last:
			s.violate(promisePulled, "%s: got event %d, seq %d, after %d", f, event, e.Seq, f.last)
		case s.published[event] != 0 && s.published[event] != e.Seq:
			s.violate(promisePulled, "%s: got event %d with seq %d, want %d", f, event, e.Seq, s.published[event])
		case s.log[event].erasure != nil && (!f.waits || s.log[event].erasure.at.Before(time.Now())): // a wait may have read it before
			s.violate(promisePulled, "%s: got event %d, erased at %s", f, event, sinceStart(s.log[event].erasure.at))
		case s.log[event].refused:
			s.violate(promisePulled, "%s: got event %d, which was not stored", f, event)
		}
		f.last, f.seen[event], s.log[event].pulled = e.Seq, true, true
	}
	f.cursor = next
}

// refuse notes that an event was not stored. The caller holds s.mu.
func (s *simulation) refuse(event int) {
	if s.log[event].refused = true; s.log[event].pulled {
		s.violate(promisePulled, "event %d was pulled, and then not stored", event)
	}
}

func (f *follower) String() string {
	if f.sub != nil {
		return fmt.Sprintf("subscription %d (waits: %t)", f.sub.index, f.waits)
	}
	return fmt.Sprintf("program %s (waits: %t)", f.program, f.waits)
}

// pull lets every follower reach the end of its log, and checks that it has got what is in it. All
// goroutines are blocked.
func (s *simulation) pull() {
	s.faults.without(func() {
		for _, f := range s.pulls.followers {
			if f.waits && f.run == 0 && s.violation == nil {
				s.pulls.runs++
				run := s.pulls.runs
				f.run = run
				s.pulls.running.Go(func() { s.follow(f, run) })
			}
		}
		synctest.Wait()
		s.pulls.followers = slices.DeleteFunc(s.pulls.followers, func(f *follower) bool { return f.sub != nil && f.sub.settings.deleted })
		for _, f := range s.pulls.followers {
			if s.isDown() {
				return
			}
			if f.waits || s.readOn(f) {
				s.checkPulled(f)
			}
		}
	})
}

// readOn pulls pages until there are no more events. It returns false if the log is not there.
func (s *simulation) readOn(f *follower) bool {
	for {
		p, status, body := s.page(context.Background(), f, f.cursor, f.size, "")
		s.mu.Lock()
		if status != http.StatusOK || p.Meta.Pagination.Next == "" {
			if !s.crashed && !s.down { // otherwise an unanswered deletion may have been stored
				s.violate(promisePulled, "%s: got %d: %s", f, status, body)
			}
			s.mu.Unlock()
			return false
		}
		end := len(p.Data) == 0 && p.Meta.Pagination.Next == f.cursor
		s.receive(f, p.Data, p.Meta.Pagination.Next)
		s.mu.Unlock()
		if end || s.violation != nil {
			return true
		}
	}
}

// checkPulled checks that a follower has got each event that it must have got by now.
func (s *simulation) checkPulled(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waits && f.run == 0 {
		return // its wait is over, or its log was not there
	}
	wanted := func(*loggedEvent) bool { return true }
	if f.sub != nil {
		stored, err := s.d.store.Subscriptions().Get(context.Background(), f.program, f.sub.id)
		if s.unexpected(err) {
			return
		}
		before, revision := f.wants, f.revision
		f.wants, f.revision = storedSettings(&stored), stored.Revision
		if wanted = f.wants.wants; f.waits && (f.wants != before || f.revision > revision+1) {
			f.checked = len(s.log) // what it has got may be from before or after a change, or between two
			return
		}
	}
	for event := f.checked; event < len(s.log); event++ {
		e := &s.log[event]
		got := f.seen[event]
		if e.program != f.program || got && wanted(e) {
			continue
		}
		if got {
			s.violate(promisePulled, "%s: got event %d, which it does not want", f, event)
		} else if wanted(e) && s.published[event] != 0 && !e.erasing && !e.counted.Before(s.changes.removedBefore) {
			s.violate(promisePulled, "%s: did not get event %d, seq %d; its last is %d", f, event, s.published[event], f.last)
		}
	}
	f.checked = len(s.log)
}

// storedSettings returns the names and filters of a subscription.
func storedSettings(sub *webhook.Subscription) settings {
	var t settings
	for i, name := range simulatedNames {
		if slices.Contains(sub.Events, name) {
			t.names |= 1 << i
		}
	}
	for _, below := range simulatedBelow {
		is := settings{names: t.names, below: below}
		if is.filters().Equal(sub.Filters) {
			t.below = below
		}
	}
	return t
}

// follow pulls by waiting, until a wait ends without an event, or by a stream.
func (s *simulation) follow(f *follower, run int) {
	ctx := s.pulls.ctx
	ended := func(ok bool) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f.run == run && !ok {
			f.run = 0
		}
		return f.run != run
	}
	if s.plan.Streams {
		w := &streamWriter{simulation: s, follower: f, run: run, header: make(http.Header)}
		s.mu.Lock()
		r := f.request(ctx, s.pulls.platform, "")
		if f.cursor != "" {
			r.Header.Set("Last-Event-ID", f.cursor)
		}
		s.mu.Unlock()
		r.Header.Set("Accept", "text/event-stream")
		s.pulls.api.ServeHTTP(w, r)
		ended(false)
		return
	}
	for {
		s.mu.Lock()
		cursor := f.cursor
		s.mu.Unlock()
		p, status, _ := s.page(ctx, f, cursor, f.size, "&wait=30s")
		s.mu.Lock()
		ok := status == http.StatusOK && ctx.Err() == nil && f.run == run && s.violation == nil
		if ok {
			s.receive(f, p.Data, p.Meta.Pagination.Next)
		}
		s.mu.Unlock()
		// After a wait without events, the next settle begins another: plans sleep for hours.
		if ended(ok && len(p.Data) > 0) {
			return
		}
	}
}

// streamWriter receives a stream for a follower.
type streamWriter struct {
	*simulation
	follower *follower
	run      int
	header   http.Header
	unread   bytes.Buffer
}

func (w *streamWriter) Header() http.Header { return w.header }
func (w *streamWriter) WriteHeader(int)     {}
func (w *streamWriter) Flush()              {}

// Write implements [http.ResponseWriter].
func (w *streamWriter) Write(b []byte) (int, error) {
	w.unread.Write(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.follower.run == w.run {
		message, rest, whole := bytes.Cut(w.unread.Bytes(), []byte("\n\n"))
		if !whole {
			break
		}
		next, events := w.follower.cursor, []pulledEvent(nil)
		for line := range strings.Lines(string(message)) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			var e pulledEvent
			switch {
			case name == "id":
				next = value
			case name == "data" && json.Unmarshal([]byte(value), &e) == nil && e.Seq > 0:
				events = append(events, e)
			}
		}
		w.receive(w.follower, events, next)
		w.unread.Next(w.unread.Len() - len(rest))
	}
	if w.violation != nil {
		return 0, http.ErrAbortHandler // it may never wait
	}
	return len(b), nil
}

// checkKept reads the whole logs, and checks that they contain what was pulled.
func (s *simulation) checkKept() {
	s.faults.without(func() {
		for _, program := range simulatedPrograms[:s.plan.Programs] {
			f := &follower{program: program, size: webhook.MaxPageSize}
			f.reset(0)
			if !s.readOn(f) {
				continue
			}
			s.mu.Lock()
			for event := range s.log {
				if e := &s.log[event]; e.program == program && e.pulled && !f.seen[event] && !e.erasing && !e.counted.Before(s.changes.removedBefore) {
					s.violate(promisePulled, "event %d of %s was pulled, and is not in the log", event, program)
				}
			}
			s.mu.Unlock()
		}
	})
}
