package web

import (
	"testing"

	"service/store/record"
)

func TestCounts(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000+"} {
		if got := counted(n); got != want {
			t.Errorf("counted(%d): got %q, want %q", n, got, want)
		}
	}
	for _, tt := range []struct {
		shown, total int
		want         string
	}{{1, 1, "1 subscription"}, {2, 2, "2 subscriptions"}, {20, 21, "20 of 21 subscriptions"}, {20, 1000, "20 of 1,000+ subscriptions"}} {
		if got := shownOf(tt.shown, tt.total, "subscription"); got != tt.want {
			t.Errorf("shownOf(%d, %d): got %q, want %q", tt.shown, tt.total, got, tt.want)
		}
	}
}

// A count that a filter ended is a lower bound everywhere.
func TestCountsOfFilters(t *testing.T) {
	for _, tt := range []struct {
		events       int
		more         bool
		new, waiting string
	}{
		{0, false, "", "New events wait"},
		{1, false, "1 new event", "1 event waits"},
		{1, true, "at least 1 new event", "at least 1 event waits"},
		{0, true, "0 or more new events", "New events wait"},
		{12, false, "12 new events", "12 events wait"},
		{1000, true, "at least 1,000 new events", "at least 1,000 events wait"},
	} {
		p := subscriptionPage{SubscriptionView: new(record.SubscriptionView)}
		p.WaitingEvents, p.WaitingMore = tt.events, tt.more
		if got := newEvents(&p.SubscriptionSummary); got != tt.new {
			t.Errorf("%d, more %t: got %q, want %q", tt.events, tt.more, got, tt.new)
		}
		if got := p.waiting(); got != tt.waiting {
			t.Errorf("%d, more %t: got %q, want %q", tt.events, tt.more, got, tt.waiting)
		}
	}
}
