package ui

import (
	"os/exec"
	"testing"
)

// TestShellQuotes checks quoted arguments with a real shell.
func TestShellQuotes(t *testing.T) {
	sh, err := exec.LookPath("sh")
	must(t, err)
	for _, arg := range []string{"", "./data", "/var/lib/it's", "$HOME", "a b", "`id`", "a;b", "~", "*", `\`, "new\nline", "é", "-x"} {
		got, err := exec.CommandContext(t.Context(), sh, "-c", "printf %s "+ShellQuote(arg)).Output()
		if err != nil || string(got) != arg {
			t.Errorf("shell(%q) is %s, which the shell reads as %q (%v)", arg, ShellQuote(arg), got, err)
		}
	}
	if got := ShellQuote("./data"); got != "./data" {
		t.Errorf("shell(./data): got %s, want it plain", got)
	}
}
