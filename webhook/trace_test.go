package webhook

import (
	"strings"
	"testing"
)

func TestParseTrace(t *testing.T) {
	const (
		id     = "4bf92f3577b34da6a3ce929d0e0e4736"
		parent = "00f067aa0ba902b7"
		plain  = "00-" + id + "-" + parent + "-01"
	)
	for _, c := range []struct{ value, want string }{
		{plain, plain},
		{"00-" + id + "-" + parent + "-00", "00-" + id + "-" + parent + "-00"},
		{"00-" + id + "-" + parent + "-03", "00-" + id + "-" + parent + "-03"},
		{"01-" + id + "-" + parent + "-03", plain},
		{"cc-" + id + "-" + parent + "-00-more", "00-" + id + "-" + parent + "-00"},

		{"", ""},
		{"00", ""},
		{plain + "-more", ""},
		{plain + " ", ""},
		{" " + plain, ""},
		{plain + "\r\nX-Evil: 1", ""},
		{"cc-" + id + "-" + parent + "-00more", ""},
		{"ff-" + id + "-" + parent + "-01", ""},
		{"0g-" + id + "-" + parent + "-01", ""},
		{strings.ToUpper(plain), ""},
		{"00_" + id + "-" + parent + "-01", ""},
		{"00-" + id + "_" + parent + "-01", ""},
		{"00-" + id + "-" + parent + "_01", ""},
		{"00-" + strings.Repeat("0", 32) + "-" + parent + "-01", ""},
		{"00-" + id + "-" + strings.Repeat("0", 16) + "-01", ""},
		{"00-" + id + "-" + parent + "-0x", ""},
	} {
		if got := ParseTrace([]string{c.value}); string(got) != c.want {
			t.Errorf("ParseTrace(%q): got %q, want %q", c.value, got, c.want)
		}
	}
	for _, values := range [][]string{nil, {plain, plain}} {
		if got := ParseTrace(values); got != "" {
			t.Errorf("ParseTrace(%q): got %q, want none", values, got)
		}
	}
}

// Each attempt has its own, reproducible span in the trace of the event.
func TestTraceOfAttempt(t *testing.T) {
	trace := ParseTrace([]string{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
	if got, want := trace.ID(), "4bf92f3577b34da6a3ce929d0e0e4736"; got != want {
		t.Errorf("got id %q, want %q", got, want)
	}
	seen := map[string]bool{string(trace): true}
	for _, delivery := range []string{"a", "b"} {
		for number := 1; number <= 5; number++ {
			sent := trace.Attempt(delivery, number)
			if seen[sent] || sent != trace.Attempt(delivery, number) {
				t.Errorf("attempt %d of %s: got %q, want a unique and reproducible span", number, delivery, sent)
			}
			seen[sent] = true
			if got := ParseTrace([]string{sent}); string(got) != sent || got.ID() != trace.ID() {
				t.Errorf("attempt %d of %s: got %q, want a span of the trace", number, delivery, sent)
			}
		}
	}
	if none := Trace(""); none.ID() != "" || none.Attempt("a", 1) != "" {
		t.Errorf("without a trace: got %q and %q, want none", none.ID(), none.Attempt("a", 1))
	}
}
