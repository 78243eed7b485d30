package terminal

import "testing"

func TestEscape(t *testing.T) {
	tests := []struct{ in, want string }{
		{"plain, with ünïcode → ✓", "plain, with ünïcode → ✓"},
		{"\x1b[31mred", `\x1b[31mred`},
		{"a\r\nb\tc\x00", `a\x0d\nb\tc\x00`},
		{"\u202eevil\u2066", `\u202eevil\u2066`},
		{"\u009b31m", `\x9b31m`},
		{"a\u2028b", `a\u2028b`},
	}
	for _, test := range tests {
		if got := Escape(test.in); got != test.want {
			t.Errorf("Escape(%q) = %q, want %q", test.in, got, test.want)
		}
	}
}
