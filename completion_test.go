package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// tool returns the path of a program that a test needs. Without it the test is
// skipped, or fails where the word is required.
func tool(t *testing.T, word, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if harness.Required(word) {
		t.Fatalf("%s is missing", name)
	}
	t.Skipf("NOT TESTED: %s is missing", name)
	return ""
}

// completions are what each shell must offer: the words so far, the last of
// which is being typed, and what is and is not to be among the answers.
var completions = []struct {
	line      []string
	want, not string
}{
	{[]string{""}, "serve token key admin publish listen config healthcheck completion man version", "create"},
	{[]string{"tok"}, "token", "serve"},
	{[]string{"token", ""}, "create list revoke", "serve"},
	{[]string{"token", "create", "--"}, "--program --user --scope --data --config", "--retention"},
	{[]string{"serve", "--data", "d", "--ret"}, "--retention --retry-schedule --retry-jitter", "--data"},
	{[]string{"serve", "--tls", ""}, "auto off", "--data"},
	{[]string{"serve", "--secret-key-file", "som"}, "some.key", "--data"},
	{[]string{"completion", ""}, "bash zsh fish", "serve"},
}

func TestCompletion(t *testing.T) {
	// Each shell is given the script in $1, then the words, and prints what it
	// offers.
	shells := map[string]string{
		"bash": `source "$1"; shift; COMP_WORDS=(service "$@"); COMP_CWORD=$#; _service; printf '%s\n' "${COMPREPLY[@]}"`,
		"fish": `source $argv[1]; complete -C "service "(string join -- " " (string escape -n -- $argv[2..]))`,
		// What compinit would show: the calls of its helpers, as they are made.
		"zsh": `compdef() { : }; _describe() { local list=$@[-1]; print -l -- ${${(P)list}%%:*} }; compadd() { shift; print -l -- $@ }; _files() { print -l -- ${words[CURRENT]}* }
			source "$1"; shift; words=(service "$@"); CURRENT=$#words; _service`,
	}
	for shell, program := range shells {
		t.Run(shell, func(t *testing.T) {
			path := tool(t, "shells", shell)
			dir := t.TempDir()
			status, script, stderr := call(t, "completion", shell)
			if status != exitDone {
				t.Fatal(stderr)
			}
			file := filepath.Join(dir, "script")
			for name, text := range map[string]string{file: script, filepath.Join(dir, "some.key"): ""} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, test := range completions {
				args := []string{"-c", program}
				switch shell {
				case "bash":
					args = append([]string{"--norc"}, append(args, "bash")...)
				case "zsh":
					args = append([]string{"-f"}, append(args, "zsh")...)
				case "fish":
					args = append([]string{"--no-config"}, args...)
				}
				cmd := exec.Command(path, append(append(args, file), test.line...)...)
				cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
				out, err := cmd.CombinedOutput()
				if err != nil && shell != "fish" {
					t.Fatalf("%q: %v\n%s", test.line, err, out)
				}
				offered := make(map[string]bool)
				for line := range strings.Lines(string(out)) {
					word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
					offered[word] = true
				}
				for _, want := range strings.Fields(test.want) {
					if !offered[want] {
						t.Errorf("%q: %s is not offered:\n%s", test.line, want, out)
					}
				}
				if offered[test.not] && shell != "zsh" { // which leaves out itself what does not fit the word
					t.Errorf("%q: %s is offered", test.line, test.not)
				}
			}
		})
	}
}

// TestManPage renders the manual: nothing in it is a fault of the language, and
// every command and every flag has its place.
func TestManPage(t *testing.T) {
	status, page, stderr := call(t, "man")
	if status != exitDone {
		t.Fatal(stderr)
	}
	var c cli
	parser, err := newParser(t.Context(), &c, streams{}, new(configuration), new(bool))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range commandTree(parser.Model.Node, nil) {
		if len(n.commands) > 0 {
			continue
		}
		if !strings.Contains(page, ".SS service "+roff(n.path)) {
			t.Errorf("the manual has no command %s", n.path)
		}
		for _, f := range n.flags {
			if !strings.Contains(page, `\fB`+roff("--"+f.Name)+`\fR`) {
				t.Errorf("the manual has no flag --%s", f.Name)
			}
		}
	}
	groff := tool(t, "shells", "groff")
	cmd := exec.Command(groff, "-man", "-ww", "-Tascii", "-P-cbou")
	cmd.Stdin = strings.NewReader(page)
	var warnings strings.Builder
	cmd.Stderr = &warnings
	text, err := cmd.Output()
	if err != nil || warnings.Len() > 0 {
		t.Errorf("groff: %v\n%s", err, warnings.String())
	}
	for _, want := range []string{"SERVICE(1)", "service token create", "EXIT STATUS"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the manual does not say %q", want)
		}
	}
}

// Texts name commands as they are typed, whatever the binary is called.
func TestSpelled(t *testing.T) {
	var c cli
	parser, err := newParser(t.Context(), &c, streams{}, new(configuration), new(bool))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, child := range parser.Model.Children {
		if !child.Hidden {
			words = append(words, child.Name)
		}
	}
	if got := strings.Join(words, "|"); got != commandWords {
		t.Errorf("commands %s, but texts are looked through for %s", got, commandWords)
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
