package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// completions lists command lines whose last word is being typed, and what each shell
// must and must not offer.
var completions = []struct {
	line      []string
	want, not string
}{
	{[]string{""}, "serve token key admin publish listen config healthcheck completion man version", "create"},
	{[]string{"tok"}, "token", "serve"},
	{[]string{"token", ""}, "create list revoke", "serve"},
	{[]string{"token", "create", "--"}, "--program --user --scope --data --config", "--retention"},
	{[]string{"serve", "--data", "d", "--ret"},
		"--retention --retention-delivered --retention-audit --retry-schedule --retry-jitter", "--data"},
	{[]string{"serve", "--tls", ""}, "auto off", "--data"},
	{[]string{"serve", "--secret-key-file", "som"}, "some.key", "--data"},
	{[]string{"completion", ""}, "bash zsh fish", "serve"},
}

func TestCompletion(t *testing.T) {
	// Each shell gets the script in $1 and then the words, and prints its completions.
	shells := map[string]string{
		"bash": `source "$1"; shift; COMP_WORDS=(service "$@"); COMP_CWORD=$#; _service; printf '%s\n' "${COMPREPLY[@]}"`,
		"fish": `source $argv[1]; complete -C "service "(string join -- " " (string escape -n -- $argv[2..]))`,
		// The functions replace those of compinit and print what it would show.
		"zsh": `compdef() { : }; _describe() { local list=$@[-1]; print -l -- ${${(P)list}%%:*} }; compadd() { shift; print -l -- $@ }; _files() { print -l -- ${words[CURRENT]}* }
			source "$1"; shift; words=(service "$@"); CURRENT=$#words; _service`,
	}
	for shell, program := range shells {
		t.Run(shell, func(t *testing.T) {
			c := &completer{t: t, shell: shell, path: harness.Tool(t, "shells", shell), program: program, dir: t.TempDir()}
			for name, text := range map[string]string{"script": output(t, "completion", shell), "some.key": ""} {
				if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, test := range completions {
				offered, out := c.complete(test.line)
				for _, want := range strings.Fields(test.want) {
					if !offered[want] {
						t.Errorf("%q: %s is not offered:\n%s", test.line, want, out)
					}
				}
				if offered[test.not] && shell != "zsh" { // zsh itself filters by the word
					t.Errorf("%q: %s is offered", test.line, test.not)
				}
			}
		})
	}
}

// completer is a shell with a completion script.
type completer struct {
	t                    *testing.T
	shell, path, program string
	dir                  string // with the script
}

// complete returns what a shell offers for a line.
func (c *completer) complete(line []string) (offered map[string]bool, out []byte) {
	c.t.Helper()
	args := []string{"-c", c.program}
	switch c.shell {
	case "bash":
		args = append([]string{"--norc"}, append(args, "bash")...)
	case "zsh":
		args = append([]string{"-f"}, append(args, "zsh")...)
	case "fish":
		args = append([]string{"--no-config"}, args...)
	}
	cmd := exec.Command(c.path, append(append(args, filepath.Join(c.dir, "script")), line...)...)
	cmd.Dir, cmd.Env = c.dir, []string{"HOME=" + c.dir, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	if err != nil && c.shell != "fish" {
		c.t.Fatalf("%q: %v\n%s", line, err, out)
	}
	offered = make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		offered[word] = true
	}
	return offered, out
}

// TestManPageRenders renders the manual with groff, which must not warn.
func TestManPageRenders(t *testing.T) {
	page := output(t, "man")
	groff := harness.Tool(t, "shells", "groff")
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
			t.Errorf("the manual lacks %q", want)
		}
	}
}

// output runs the binary under the name service and returns its stdout.
func output(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(harness.Build(t), args...)
	cmd.Args[0] = "service"
	cmd.Env = harness.Environment()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, &stderr)
	}
	return string(out)
}
