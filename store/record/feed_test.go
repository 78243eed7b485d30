package record_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"service/store"
	"service/store/record"
	"service/store/storetest"
	"service/webhook"
)

// testedFeed is a feed of the admin UI under test.
type testedFeed struct {
	name  string
	list  *webhook.List
	page  func(context.Context, *webhook.ListQuery) ([]string, string, error)
	newer func(context.Context, *webhook.ListQuery) (string, error)
}

func feeds(s *store.Store) []testedFeed {
	return []testedFeed{
		{"events of all", webhook.EventList, func(ctx context.Context, q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Events().PageAll(ctx, q)
			return idsOf(all, func(e *webhook.Event) string { return e.ID }), next, err
		}, func(ctx context.Context, q *webhook.ListQuery) (string, error) { return s.Events().Newer(ctx, "", q) }},
		{"events", webhook.EventList, func(ctx context.Context, q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Events().Page(ctx, "p", q)
			return idsOf(all, func(e *webhook.Event) string { return e.ID }), next, err
		}, func(ctx context.Context, q *webhook.ListQuery) (string, error) { return s.Events().Newer(ctx, "p", q) }},
		{"subscriptions of all", webhook.AllSubscriptionList, func(ctx context.Context, q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Subscriptions().PageAll(ctx, "", q)
			return idsOf(all, func(u *record.SubscriptionSummary) string { return u.ID }), next, err
		}, func(ctx context.Context, q *webhook.ListQuery) (string, error) {
			return s.Subscriptions().Newer(ctx, "", q)
		}},
		{"subscriptions", webhook.AllSubscriptionList, func(ctx context.Context, q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Subscriptions().PageAll(ctx, "q", q)
			return idsOf(all, func(u *record.SubscriptionSummary) string { return u.ID }), next, err
		}, func(ctx context.Context, q *webhook.ListQuery) (string, error) {
			return s.Subscriptions().Newer(ctx, "q", q)
		}},
		{"audit", webhook.AuditList, func(ctx context.Context, q *webhook.ListQuery) ([]string, string, error) {
			all, next, err := s.Audit().Page(ctx, q)
			return idsOf(all, func(e *webhook.AuditEntry) string { return e.ID }), next, err
		}, s.Audit().Newer},
	}
}

// fillFeeds adds some rows to every feed.
func fillFeeds(t *testing.T, s *store.Store) {
	t.Helper()
	for i := range 5 {
		p := [...]string{"p", "q"}[i%2]
		publish(t, s, p, "content_updated")
		url := fmt.Sprintf("https://host%d.example/in", i)
		_, _, err := storetest.CreateSubscription(t.Context(), s, p, "u", &webhook.SubscriptionFields{URL: &url, Events: &[]string{"ping"}})
		must(t, err)
		must(t, s.Write(t.Context(), func(w store.Write) error {
			return w.Audit(webhook.AuditEntry{Admin: "ana@example.com", Action: webhook.ActionEventPublish, ProgramID: p})
		}))
	}
}

// Every feed can be paged backwards: the previous page ends with the row before the first row
// of this page, even if rows were added.
func TestFeedsBackwards(t *testing.T) {
	s := storetest.Open(t, "p", "q")
	for range 4 {
		fillFeeds(t, s)
	}
	for _, f := range feeds(s) {
		byTime := f.list.Sort[len(f.list.Sort)-1] // in other orders rows are added in between
		for _, order := range []string{"sort=-" + byTime, "sort=" + byTime} {
			t.Run(f.name+" "+order, func(t *testing.T) {
				q := storetest.Query(t, f.list, order+"&page[size]=3")
				var last string // cursor of the last page
				forth := readPages(t, f.name, q, 100, func(ctx context.Context, q *webhook.ListQuery) ([]string, string, error) {
					last = q.Cursor
					return f.page(ctx, q)
				}, func(id string) string { return id })
				if len(forth) <= 2*q.Size {
					t.Fatalf("%d rows", len(forth))
				}
				fillFeeds(t, s) // rows at one end do not change later pages
				q.Cursor = last
				f.walkBack(t, q, forth)
			})
		}
		if _, err := f.newer(t.Context(), &webhook.ListQuery{Sort: storetest.Query(t, f.list, "").Sort, Size: 3, Number: 1,
			Cursor: "forged"}); !errors.As(err, new(*webhook.Error)) {
			t.Errorf("%s: forged cursor: got %v", f.name, err)
		}
	}
}

// walkBack pages back from the page at a cursor to the first. forth are the rows up to that
// page, in order.
func (f *testedFeed) walkBack(t *testing.T, q *webhook.ListQuery, forth []string) {
	here, _, err := f.page(t.Context(), q)
	must(t, err)
	for pages := 0; ; pages++ {
		if q.Cursor, err = f.newer(t.Context(), q); err != nil || pages > 30 {
			t.Fatalf("after %d pages: %v", pages, err)
		}
		if q.Cursor == "" {
			return
		}
		before, _, err := f.page(t.Context(), q)
		must(t, err)
		if len(before) != q.Size {
			t.Errorf("a previous page has %d rows", len(before))
		}
		if at := slices.Index(forth, here[0]); at > 0 && before[len(before)-1] != forth[at-1] {
			t.Errorf("the page before %v is %v, want it to end with %s", here, before, forth[at-1])
		}
		here = before
	}
}

func idsOf[T any](all []T, id func(*T) string) []string {
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = id(&all[i])
	}
	return ids
}
