package store

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/store/tail"
	"service/webhook"
)

func filter(t testing.TB, text string) *webhook.EventFilter {
	t.Helper()
	f, err := webhook.ParseFilter([]byte(text), nil, "filter")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// publishOf publishes an event with a content_id, and returns its seq.
func publishOf(t testing.TB, s *Store, programID, name string, id int) int64 {
	t.Helper()
	e := event(name)
	e.JSON = bytes.Replace(e.JSON, []byte(`"content_id":7`), fmt.Appendf(nil, `"content_id":%d`, id), 1)
	events := []webhook.Event{e}
	publishAll(t, s, programID, events...)
	return events[0].Seq
}

// subscribeTo subscribes to the events of a name that a filter lets pass.
func subscribeTo(t testing.TB, s *Store, programID, name, text string) webhook.Subscription {
	t.Helper()
	url, names := "https://partner.example/hook", []string{name}
	sub, _, err := s.Subscriptions().Create(t.Context(), programID, "u",
		&webhook.SubscriptionFields{URL: &url, Events: &names, Filters: webhook.Filters{name: filter(t, text)}}, 0)
	must(t, err)
	return sub
}

const below5 = `{"all":[{"path":"content_id","op":"lt","value":5}]}`

// One credit examines a bounded number of events, from memory and from disk, and the next continues.
func TestFilterExaminesInSteps(t *testing.T) {
	s := openProgram(t)
	sub := subscribeTo(t, s, "p", "content_updated", below5)
	const n = 2*examinedEvents + 10
	events := newEvents(n)
	publishAll(t, s, "p", events...)
	want := publishOf(t, s, "p", "content_updated", 1)
	for _, fromDisk := range []bool{false, true} {
		if fromDisk {
			s.tail = tail.New(0)
		}
		q, steps := queue(t, s, sub.ID), 0
		for {
			w, err := s.Queues().waiting(t.Context(), q, q.Wanted, 10, 1<<20)
			must(t, err)
			if steps++; len(w.Seqs) > 0 {
				if !slices.Equal(w.Seqs, []int64{want}) || steps != 3 {
					t.Errorf("from disk %t: got events %v in step %d, want %d in step 3", fromDisk, w.Seqs, steps, want)
				}
				break
			}
			if w.To != int64(steps*examinedEvents) {
				t.Fatalf("from disk %t: step %d read up to %d", fromDisk, steps, w.To)
			}
			q.Seen = w.To
		}
	}
}

// A changed filter applies to events published from then on.
func TestFilterChange(t *testing.T) {
	s := openProgram(t)
	sub := subscribeTo(t, s, "p", "content_updated", below5)
	var want []int64
	change := func(f webhook.Filters) {
		names := []string{"content_updated"}
		_, err := s.Subscriptions().Update(t.Context(), "p", sub.ID, &webhook.SubscriptionFields{Events: &names, Filters: f})
		must(t, err)
	}
	all := func(wanted ...int) {
		for id := range 10 {
			if seq := publishOf(t, s, "p", "content_updated", id); slices.Contains(wanted, id) {
				want = append(want, seq)
			}
		}
	}
	all(0, 1, 2, 3, 4)
	change(webhook.Filters{"content_updated": filter(t, `{"not":{"path":"content_id","op":"lt","value":5}}`)})
	all(5, 6, 7, 8, 9)
	change(nil)
	all(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	q := queue(t, s, sub.ID)
	w, err := s.Queues().waiting(t.Context(), q, q.Wanted, 100, 1<<20)
	if err != nil || !slices.Equal(w.Seqs, want) {
		t.Errorf("got %v, %v; want %v", w.Seqs, err, want)
	}
	before := sub.Revision + 2
	change(nil)
	if sub, err := s.Subscriptions().Get(t.Context(), "p", sub.ID); err != nil || sub.Revision != before {
		t.Errorf("the same filters: got revision %d, %v; want %d", sub.Revision, err, before)
	}
}

// The backlog, the losses and the event page count only events that the filter lets pass.
func TestFilterCounts(t *testing.T) {
	s := openProgram(t)
	sub := subscribeTo(t, s, "p", "content_updated", below5)
	plain := subscribe(t, s, "p", "content_updated")
	for id := range 10 {
		publishOf(t, s, "p", "content_updated", id)
	}
	n, more, err := s.Subscriptions().WaitingEvents(t.Context(), []string{sub.ID}, 1000)
	if err != nil || n != 5 || more {
		t.Errorf("waiting: got %d, more %t, %v; want 5", n, more, err)
	}
	view, err := s.Subscriptions().View(t.Context(), sub.ID, 0)
	if err != nil || view.WaitingEvents != 5 {
		t.Errorf("view: got %d, %v; want 5", view.WaitingEvents, err)
	}
	q := queue(t, s, sub.ID)
	if first, _, err := s.Queues().FirstWanted(t.Context(), "p", q.Interests, 5, 10); err != nil || first != 0 {
		t.Errorf("first after the fifth: got %d, %v; want none", first, err)
	}
	if first, _, err := s.Queues().FirstWanted(t.Context(), "p", q.Interests, 2, 10); err != nil || first != 3 {
		t.Errorf("first after the second: got %d, %v; want 3", first, err)
	}
	events, _, err := s.Events().Page(t.Context(), "p", &webhook.ListQuery{Size: 10, Sort: webhook.EventList.Default})
	must(t, err)
	results, err := s.Events().Results(t.Context(), events)
	must(t, err)
	for i, e := range events {
		want := 1
		if e.Seq <= 5 {
			want = 2
		}
		if results[i].Waiting != want {
			t.Errorf("event %d: %d wait for it, want %d", e.Seq, results[i].Waiting, want)
		}
		view, err := s.Events().View(t.Context(), "p", e.ID, "")
		if err != nil || len(view.Waiting) != want || len(view.Filtered) != 2-want || want == 1 && view.Filtered[0].Subscription.ID != sub.ID {
			t.Errorf("event %d: %d wait and %d do not get it (%v), want %d and %d", e.Seq, len(view.Waiting), len(view.Filtered), err, want, 2-want)
		}
	}
	w := sweep{steps: s.newSteps(t.Context(), sweepPace)}
	losses, err := w.pendingLosses("p", 0, 8)
	if err != nil || len(losses) != 2 {
		t.Fatalf("losses: got %v, %v", losses, err)
	}
	for _, l := range losses {
		if want := map[string]int64{sub.ID: 5, plain.ID: 8}[l.id]; l.events != want {
			t.Errorf("%s would lose %d events, want %d", l.id, l.events, want)
		}
	}
}

// A count of waiting events ends after examinedEvents of the log, and reports that more may wait.
func TestFilterCountEnds(t *testing.T) {
	s := openProgram(t)
	sub := subscribeTo(t, s, "p", "content_updated", below5)
	wants := func(more bool) {
		t.Helper()
		view, err := s.Subscriptions().View(t.Context(), sub.ID, 0)
		if err != nil || view.WaitingEvents != 5 || view.WaitingMore != more {
			t.Errorf("view: got %d, more %t, %v; want 5, %t", view.WaitingEvents, view.WaitingMore, err, more)
		}
		n, left, err := s.Subscriptions().WaitingEvents(t.Context(), []string{sub.ID}, record.CountLimit)
		if err != nil || n != 5 || left != more {
			t.Errorf("waiting: got %d, more %t, %v; want 5, %t", n, left, err, more)
		}
		repeats, err := s.repeats(t.Context())
		if err != nil || repeats.Events != 5 || repeats.More != more {
			t.Errorf("repeats: got %+v, %v; want 5, more %t", repeats, err, more)
		}
	}
	for id := range 5 {
		publishOf(t, s, "p", "content_updated", id)
	}
	publish(t, s, "p", slices.Repeat([]string{"content_updated"}, examinedEvents-5)...)
	wants(false)
	publish(t, s, "p", "content_published")
	wants(false)
	publish(t, s, "p", "content_updated")
	wants(true)
}

// A replay keeps the filter of its subscription from when it was created.
func TestFilterOfReplay(t *testing.T) {
	s := openProgram(t)
	sub := subscribeTo(t, s, "p", "content_updated", below5)
	for id := range 10 {
		publishOf(t, s, "p", "content_updated", id)
	}
	q := queue(t, s, sub.ID)
	for form(t, s, q, 100) != nil {
	}
	f := &webhook.ReplayFields{Only: webhook.ReplayAll, From: time.Now().Add(-time.Hour)}
	count, err := s.Replays().Count(t.Context(), "p", sub.ID, f, 100)
	if err != nil || count.Events != 5 {
		t.Fatalf("dry run: got %+v, %v; want 5 events", count, err)
	}
	plan, err := s.Replays().Plan(t.Context(), "p", sub.ID, f)
	must(t, err)
	must(t, s.Write(t.Context(), func(w Write) error {
		_, err := w.Replays().Create(plan, webhook.AuditEntry{})
		return err
	}))
	names := []string{"content_updated"}
	_, err = s.Subscriptions().Update(t.Context(), "p", sub.ID, &webhook.SubscriptionFields{Events: &names})
	must(t, err)
	c, _, err := s.Queues().stepReplay(t.Context(), queue(t, s, sub.ID), 100, 1<<20)
	if err != nil || c == nil || len(c.Events) != 5 {
		t.Errorf("got %+v, %v; want 5 events", c, err)
	}
}

// TestFilterTestTime checks that the filters share the time of a test: a name with many events leaves some
// for the others.
func TestFilterTestTime(t *testing.T) {
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), Config{Dir: dir, Fault: func(query string, _ bool) sqlite.Fault {
			if query == selectTried {
				time.Sleep(dryRunTime / 2)
			}
			return sqlite.NoFault
		}})
		must(t, err)
		defer s.Close()
		program(t, s, "p")
		publish(t, s, "p", slices.Repeat([]string{"content_updated"}, examinedEvents)...)
		publish(t, s, "p", "content_updated", "content_deleted")
		counts, err := s.Events().RunFilterTest(t.Context(), "p", &webhook.FilterTest{
			Events: []string{"content_updated", "content_deleted"}, From: time.Now().Add(-time.Hour)})
		must(t, err)
		if n := counts[0]; n.Read != examinedEvents || n.Complete {
			t.Errorf("many events: got %d, complete %t; want %d of more", n.Read, n.Complete, examinedEvents)
		}
		if n := counts[1]; n.Read != 1 || !n.Complete {
			t.Errorf("another name: got %d, complete %t; want its event", n.Read, n.Complete)
		}
	})
}

func TestRunFilterTest(t *testing.T) {
	s := openProgram(t)
	for id := range 12 {
		publishOf(t, s, "p", "content_updated", id)
	}
	publishOf(t, s, "p", "content_deleted", 1)
	test := &webhook.FilterTest{
		Events: []string{"content_updated", "content_deleted", "channel_created"}, From: time.Now().Add(-time.Hour),
		Filters: webhook.Filters{"content_updated": filter(t, below5)},
	}
	counts, err := s.Events().RunFilterTest(t.Context(), "p", test)
	if err != nil || len(counts) != 3 {
		t.Fatalf("got %v, %v", counts, err)
	}
	n := counts[0]
	if n.Read != 12 || n.Matched != 5 || !n.Complete || len(n.Passed) != 5 || len(n.Excluded) != webhook.MaxFilterExamples {
		t.Errorf("got %+v", n)
	}
	if v := n.Passed[0].Values; len(v) != 1 || v[0].Path != "content_id" || string(v[0].Value) != "4" {
		t.Errorf("newest that passes: got %+v", v)
	}
	if n := counts[1]; n.Read != 1 || n.Matched != 1 || !n.Complete || n.Passed[0].Values != nil {
		t.Errorf("without a filter: got %+v", n)
	}
	if n := counts[2]; n.Read != 0 || !n.Complete {
		t.Errorf("without events: got %+v", n)
	}
	test.From = time.Now().Add(time.Hour)
	if counts, err := s.Events().RunFilterTest(t.Context(), "p", test); err != nil || counts[0].Read != 0 {
		t.Errorf("later: got %+v, %v", counts, err)
	}
	var ends []func()
	for range maxDryRuns {
		end, err := s.beginDryRun("p")
		must(t, err)
		ends = append(ends, end)
	}
	if _, err := s.Events().RunFilterTest(t.Context(), "p", test); err != ErrDryRuns {
		t.Errorf("beyond the maximum: got %v", err)
	}
	for _, end := range ends {
		end()
	}
}
