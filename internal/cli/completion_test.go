package cli

import (
	"strings"
	"testing"
)

// TestManPage checks that the manual page contains every command and flag. test/cli renders it.
func TestManPage(t *testing.T) {
	status, page, stderr := call(t, "man")
	if status != exitDone {
		t.Fatal(stderr)
	}
	for _, n := range commandTree(model(t), nil) {
		if len(n.commands) > 0 {
			continue
		}
		if !strings.Contains(page, ".SS service "+roff(n.path)) {
			t.Errorf("the manual page lacks the command %s", n.path)
		}
		for _, f := range n.flags {
			if !strings.Contains(page, `\fB`+roff("--"+f.Name)+`\fR`) {
				t.Errorf("the manual page lacks the flag --%s", f.Name)
			}
		}
	}
}

// TestSpelled checks that commands in texts use the name of the binary.
func TestSpelled(t *testing.T) {
	var words []string
	for _, child := range model(t).Children {
		if !child.Hidden {
			words = append(words, child.Name)
		}
	}
	if got := strings.Join(words, "|"); got != commandWords {
		t.Errorf("got commandWords %s, want %s", commandWords, got)
	}
	for text, want := range map[string]string{
		"service config show says (see service --help)": "x config show says (see x --help)",
		"the service serves, a service of its own":      "the service serves, a service of its own",
		"/opt/service version 1; microservice token":    "/opt/x version 1; microservice token",
	} {
		if got := spelled(text, "x"); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
		if got := spelled(text, "service"); got != text {
			t.Errorf("%q: got %q", text, got)
		}
	}
}
