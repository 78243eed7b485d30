package web

import "testing"

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
