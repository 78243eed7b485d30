package record_test

import (
	"fmt"
	"testing"
	"time"

	"service/store/record"
	"service/store/storetest"
	"service/webhook"
)

func TestFindByText(t *testing.T) {
	s := storetest.Open(t)
	for _, p := range []string{"acme", "globex"} {
		storetest.Program(t, s, p)
	}
	active, names := true, []string{"user_created"}
	var ids []string
	for _, of := range [][2]string{{"https://hooks.partner.example/in?key=hush", "Partner X, 100 %"},
		{"https://other.example/", "another_one"}} {
		sub, _, err := storetest.CreateSubscription(t.Context(), s, "acme", "1",
			&webhook.SubscriptionFields{URL: &of[0], Description: &of[1], Active: &active, Events: &names})
		must(t, err)
		ids = append(ids, sub.ID)
	}
	for _, tt := range []struct {
		text     string
		subs     string
		programs string
	}{
		{"", "[]", "[]"},
		{"partner x", "[0]", "[]"},
		{"PARTNER.example/in", "[0]", "[]"},
		{"example", "[0 1]", "[]"},
		{"hush", "[]", "[]"},
		{"%", "[0]", "[]"},
		{"r_o", "[1]", "[]"},
		{"_", "[1]", "[]"},
		{`\`, "[]", "[]"},
		{"obex", "[]", "[globex]"},
	} {
		subs, programs, err := s.Search().Text(t.Context(), tt.text, 5)
		must(t, err)
		got := []int{}
		for i, id := range ids {
			for _, sub := range subs {
				if sub.ID == id {
					got = append(got, i)
				}
			}
		}
		if fmt.Sprint(got) != tt.subs || fmt.Sprint(programs) != tt.programs {
			t.Errorf("%q: got %v and %v, want %s and %s", tt.text, got, programs, tt.subs, tt.programs)
		}
	}
	if subs, _, err := s.Search().Text(t.Context(), "example", 1); err != nil || len(subs) != 1 {
		t.Errorf("got %d subscriptions, %v; want 1", len(subs), err)
	}
}

func TestSearchEvents(t *testing.T) {
	s := storetest.Open(t, "a", "b")
	add := func(programID string, from, to int) {
		t.Helper()
		var events []webhook.Event
		for i := from; i < to; i++ {
			id := webhook.NewID()
			events = append(events, webhook.Event{ID: id, Name: "content_updated",
				JSON: fmt.Appendf(nil, `{"id":"%s","timestamp":"2026-03-14T08:24:48.644Z","name":"content_updated","version":"1","content_id":%d}`,
					id, i%700)})
		}
		_, err := s.Events().Publish(t.Context(), programID, events)
		must(t, err)
	}
	add("a", 0, 800)
	add("b", 0, 800)
	search := func(q record.EventSearch) record.EventsFound {
		t.Helper()
		q.Field, q.Within = "content_id", time.Minute
		found, err := s.Events().Search(t.Context(), q)
		must(t, err)
		return found
	}
	all := search(record.EventSearch{Value: "42", Limit: 10})
	if len(all.Events) != 4 || all.More != "" || all.Read != 1600 || all.Until.IsZero() || all.Events[0].ProgramID != "b" {
		t.Errorf("got %d events of %d, more %q", len(all.Events), all.Read, all.More)
	}
	if one := search(record.EventSearch{Value: "42", Limit: 10, ProgramID: "a"}); len(one.Events) != 2 || one.Events[0].ProgramID != "a" {
		t.Errorf("one program: got %d events", len(one.Events))
	}
	// Paging finds the same events.
	var paged []webhook.Event
	cursor := ""
	for range 5 {
		page := search(record.EventSearch{Value: "42", Limit: 1, Cursor: cursor})
		paged = append(paged, page.Events...)
		if cursor = page.More; cursor == "" {
			break
		}
	}
	if len(paged) != 4 || cursor != "" || paged[3].ID != all.Events[3].ID {
		t.Errorf("paged: got %d events, then cursor %q", len(paged), cursor)
	}
	// After its maximum duration, the search returns a cursor to continue.
	found, err := s.Events().Search(t.Context(), record.EventSearch{Field: "content_id", Value: "none", Limit: 1})
	if err != nil || found.Read != record.SearchStep || found.More == "" {
		t.Errorf("no time: read %d, more %q, %v", found.Read, found.More, err)
	}
	if found = search(record.EventSearch{Value: "42", Limit: 10, From: time.Now().Add(time.Hour)}); found.Read != 0 || found.More != "" {
		t.Errorf("continued: read %d, more %q", found.Read, found.More)
	}
	_, err = s.Events().Search(t.Context(), record.EventSearch{Field: "content_id", Value: "43", Limit: 1, Cursor: all.More + "x"})
	if err == nil {
		t.Error("a cursor of another search was accepted")
	}
}
