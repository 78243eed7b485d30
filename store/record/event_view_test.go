package record_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store"
	"service/store/record"
	"service/store/storetest"
	"service/webhook"
)

// noneSuch returns unknown event names, too many to search by the index of names.
func noneSuch() (names string) {
	for i := range record.MaxNamedLogs / 2 {
		names += fmt.Sprintf(",none_%d", i)
	}
	return names
}

// TestAllEvents publishes into two programs alternately, and reads all events with every
// filter, page by page.
func TestAllEvents(t *testing.T) {
	inBubble(t, func(t *testing.T, s *store.Store) {
		storetest.Program(t, s, "q")
		var all []webhook.Event // in the order of storing
		begun := time.Now()
		for i := range 30 {
			name := [...]string{"content_updated", "content_published", "channel_created"}[i%3]
			all = append(all, publish(t, s, [...]string{"p", "q"}[i%2], name)...)
			all[i].ProgramID = [...]string{"p", "q"}[i%2]
			time.Sleep(5 * time.Minute)
			synctest.Wait()
		}
		at := func(i int) string { return webhook.FormatTime(begun.Add(time.Duration(i) * 5 * time.Minute)) }
		for _, tt := range []struct {
			query string
			want  func(i int) bool
		}{
			{"", func(int) bool { return true }},
			{"sort=received_at", func(int) bool { return true }},
			{"filter[name]=channel_created,content_updated", func(i int) bool { return i%3 != 1 }},
			{"filter[name]=none_such", func(int) bool { return false }},
			{"sort=received_at&filter[name]=channel_created", func(i int) bool { return i%3 == 2 }},
			{"filter[name]=channel_created&filter[received_at.from]=" + at(4) + "&filter[received_at.to]=" + at(21),
				func(i int) bool { return i%3 == 2 && i >= 4 && i <= 21 }},
			{"filter[name]=channel_created&filter[timestamp.from]=2100-01-01", func(i int) bool { return false }},
			{"filter[name]=channel_created" + noneSuch(), func(i int) bool { return i%3 == 2 }},
			{"filter[received_at.from]=" + at(4) + "&filter[received_at.to]=" + at(21), func(i int) bool { return i >= 4 && i <= 21 }},
			{"filter[id]=" + all[7].ID + "," + all[20].ID, func(i int) bool { return i == 7 || i == 20 }},
			{"filter[id]=" + all[7].ID + "&filter[name]=none_such", func(int) bool { return false }},
			{"filter[timestamp.from]=1990-01-01", func(int) bool { return true }},
			{"filter[timestamp.from]=2100-01-01", func(int) bool { return false }},
		} {
			var want []string
			for i := range all {
				if tt.want(i) {
					want = append(want, all[i].ProgramID+"/"+all[i].ID)
				}
			}
			q := storetest.Query(t, webhook.EventList, tt.query+"&page[size]=4")
			if q.Sort[0].Descending {
				slices.Reverse(want)
			}
			got := readPages(t, tt.query, q, 30, s.Events().PageAll, func(e webhook.Event) string { return e.ProgramID + "/" + e.ID })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q (-want +got):\n%s", tt.query, diff)
			}
		}
	})
}

// A page that reaches its bound returns its results so far, and a cursor.
func TestAllEventsBounded(t *testing.T) {
	s := storetest.Open(t, "p", "q") // a second log
	publish(t, s, "p", slices.Repeat([]string{"content_updated"}, 30)...)
	limitsOf(s).Scan = 10
	q := storetest.Query(t, webhook.EventList, "filter[name]=none_such"+noneSuch())
	page, next, err := s.Events().PageAll(t.Context(), q)
	if err != nil || len(page) != 0 || next == "" {
		t.Errorf("at the bound: got %d events, next %q, %v", len(page), next, err)
	}
	q = storetest.Query(t, webhook.EventList, "")
	q.Cursor = next // from another selection
	if _, _, err = s.Events().PageAll(t.Context(), q); err == nil {
		t.Error("a cursor is accepted with another selection")
	}
}

// TestEventView reads an event with its deliveries and waiting subscriptions.
func TestEventView(t *testing.T) {
	s := storetest.Open(t, "p")
	had, waits := storetest.Subscribe(t, s, "p", "content_updated"), storetest.Subscribe(t, s, "p", "content_updated")
	storetest.Subscribe(t, s, "p", "channel_created")
	paused := storetest.Subscribe(t, s, "p", "content_updated")
	off := false
	_, err := storetest.UpdateSubscription(t.Context(), s, "p", paused.ID, &webhook.SubscriptionFields{Active: &off})
	must(t, err)
	e := publish(t, s, "p", "content_updated", "content_updated")[1]
	c := send(t, s, had.ID, 404)
	for range record.EventDeliveries + 2 {
		_, err = storetest.Redeliver(t.Context(), s, "p", had.ID, c.ID)
		must(t, err)
	}
	v, err := s.Events().View(t.Context(), "p", e.ID, "")
	must(t, err)
	if len(v.Deliveries) != record.EventDeliveries || v.Older == "" || v.Deliveries[0].RedeliveryOf != c.ID ||
		v.Deliveries[0].Status != webhook.StatusPending {
		t.Errorf("first page: %d deliveries, older %q, newest %+v", len(v.Deliveries), v.Older, v.Deliveries[0])
	}
	if len(v.Waiting) != 1 || v.Waiting[0].Subscription.ID != waits.ID || v.Waiting[0].Behind != 2 {
		t.Errorf("waiting: got %+v, want %s, 2 behind", v.Waiting, waits.ID)
	}
	if v, err = s.Events().View(t.Context(), "p", e.ID, v.Older); err != nil {
		t.Fatal(err)
	}
	last := v.Deliveries[len(v.Deliveries)-1]
	if len(v.Deliveries) != 3 || v.Older != "" || last.ID != c.ID || last.ResponseStatus != 404 || last.URL != had.URL ||
		last.FailureReason != webhook.FailureRejected {
		t.Errorf("second page: %d deliveries, older %q, oldest %+v", len(v.Deliveries), v.Older, last)
	}
	_, err = s.Events().View(t.Context(), "q", e.ID, "")
	storetest.WantCode(t, err, webhook.CodeNotFound)
	if _, err = s.Events().View(t.Context(), "p", e.ID, "nonsense"); err == nil {
		t.Error("an invalid cursor is accepted")
	}
}

func TestSubscribers(t *testing.T) {
	s := storetest.Open(t, "p", "q")
	a := storetest.Subscribe(t, s, "p", "content_updated", "channel_created")
	b := storetest.Subscribe(t, s, "q", "content_updated")
	gone := storetest.Subscribe(t, s, "q", "content_updated")
	off := false
	_, err := storetest.UpdateSubscription(t.Context(), s, "p", a.ID, &webhook.SubscriptionFields{Active: &off})
	must(t, err)
	_, err = storetest.DeleteSubscription(t.Context(), s, "q", gone.ID)
	must(t, err)
	for of, want := range map[string]string{"": "map[channel_created:{0 1} content_updated:{1 1}]",
		"p": "map[channel_created:{0 1} content_updated:{0 1}]", "q": "map[content_updated:{1 0}]", "r": "map[]"} {
		got, err := s.Events().CountSubscribers(t.Context(), of)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("program %q: got %v, %v; want %s", of, got, err, want)
		}
	}
	for of, want := range map[string][]string{"": {a.ID, b.ID}, "p": {a.ID}, "q": {b.ID}} {
		subs, err := s.Events().Subscribers(t.Context(), of, "content_updated", 10)
		var got []string
		for _, sub := range subs {
			got = append(got, sub.ID)
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("program %q: %v (-want +got):\n%s", of, err, diff)
		}
	}
}
