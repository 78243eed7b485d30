package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"service/webhook"
)

// Every feed of the admin UI can be walked back: the page before a page ends
// with the row before its first, also when rows were added meanwhile.
func TestFeedsGoBothWays(t *testing.T) {
	s := open(t)
	ctx := context.Background()
	program(t, s, "p")
	program(t, s, "q")
	fill := func() {
		for i := range 5 {
			p := [...]string{"p", "q"}[i%2]
			publish(t, s, p, "content_updated")
			url := fmt.Sprintf("https://host%d.example/in", i)
			if _, _, err := s.Subscriptions().Create(ctx, p, "u", &webhook.SubscriptionFields{URL: &url, Events: &[]string{"ping"}}, 0); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, s, func(w Write) error {
				return w.Audit(webhook.AuditEntry{Admin: "ana@example.com", Action: webhook.ActionEventPublish, ProgramID: p})
			})
		}
	}
	for range 4 {
		fill()
	}
	for _, tt := range []struct {
		name  string
		list  *webhook.List
		page  func(*webhook.ListQuery) ([]string, string, error)
		newer func(*webhook.ListQuery) (string, error)
	}{
		{"events of all", webhook.EventList, func(q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Events().PageAll(ctx, q)
			return idsOf(all, func(e *webhook.Event) string { return e.ID }), next, err
		}, func(q *webhook.ListQuery) (string, error) { return s.Events().Newer(ctx, "", q) }},
		{"events", webhook.EventList, func(q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Events().Page(ctx, "p", q)
			return idsOf(all, func(e *webhook.Event) string { return e.ID }), next, err
		}, func(q *webhook.ListQuery) (string, error) { return s.Events().Newer(ctx, "p", q) }},
		{"subscriptions of all", webhook.AllSubscriptionList, func(q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Subscriptions().PageAll(ctx, "", q)
			return idsOf(all, func(u *SubscriptionSummary) string { return u.ID }), next, err
		}, func(q *webhook.ListQuery) (string, error) { return s.Subscriptions().Newer(ctx, "", q) }},
		{"subscriptions", webhook.AllSubscriptionList, func(q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Subscriptions().PageAll(ctx, "q", q)
			return idsOf(all, func(u *SubscriptionSummary) string { return u.ID }), next, err
		}, func(q *webhook.ListQuery) (string, error) { return s.Subscriptions().Newer(ctx, "q", q) }},
		{"audit", webhook.AuditList, func(q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Audit().Page(ctx, q)
			return idsOf(all, func(e *webhook.AuditEntry) string { return e.ID }), next, err
		}, func(q *webhook.ListQuery) (string, error) { return s.Audit().Newer(ctx, q) }},
	} {
		for _, order := range []string{"", "sort=" + tt.list.Sort[0]} {
			q := query(t, tt.list, order+"&page[size]=3")
			var forth, cursors []string
			for {
				page, next, err := tt.page(q)
				if err != nil {
					t.Fatal(err)
				}
				cursors = append(cursors, q.Cursor)
				forth = append(forth, page...)
				if q.Cursor = next; next == "" {
					break
				}
			}
			if len(cursors) < 3 {
				t.Fatalf("%s %s: %d pages", tt.name, order, len(cursors))
			}
			fill() // more on one end, which changes nothing of the pages behind
			q.Cursor = cursors[len(cursors)-1]
			for pages := 0; q.Cursor != ""; pages++ {
				here, _, err := tt.page(q)
				if err != nil {
					t.Fatal(err)
				}
				if q.Cursor, err = tt.newer(q); err != nil || pages > 30 {
					t.Fatalf("%s %s: after %d pages %v", tt.name, order, pages, err)
				}
				before, _, err := tt.page(q)
				if err != nil {
					t.Fatal(err)
				}
				if at := slices.Index(forth, here[0]); at > 0 && q.Cursor != "" && before[len(before)-1] != forth[at-1] {
					t.Errorf("%s %s: the page before %v is %v, want one that ends with %s", tt.name, order, here, before, forth[at-1])
				}
				if q.Cursor != "" && len(before) != 3 {
					t.Errorf("%s %s: a page before has %d rows", tt.name, order, len(before))
				}
			}
			if _, err := tt.newer(&webhook.ListQuery{Sort: q.Sort, Size: 3, Number: 1, Cursor: "forged"}); !errors.As(err, new(*webhook.Error)) {
				t.Errorf("%s: a forged cursor: %v", tt.name, err)
			}
		}
	}
	// An id beside another, over the border of its halves.
	low, high := "00000000-0000-0001-ffff-ffffffffffff", "00000000-0000-0002-0000-000000000000"
	if got := beside(low, false); got != high {
		t.Errorf("after %s: got %s, want %s", low, got, high)
	}
	if got := beside(high, true); got != low {
		t.Errorf("before %s: got %s, want %s", high, got, low)
	}
}

func idsOf[T any](all []T, id func(*T) string) []string {
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = id(&all[i])
	}
	return ids
}
