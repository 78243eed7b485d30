package terminal

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"retention", "retry-jitter", "listen", "data", "log-level"}
	for in, want := range map[string]string{
		"retenton": "retention", "retentions": "retention", "log_level": "log-level", "date": "data", "loglevel": "log-level",
	} {
		if got := Nearest(in, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := distance(test.a, test.b); got != test.want {
			t.Errorf("distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
