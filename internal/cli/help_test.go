package cli

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// testParser returns a parser of the command line, and what it sets.
func testParser(t *testing.T) (*kong.Kong, *commands) {
	t.Helper()
	c := new(commands)
	parser, err := newParser(t.Context(), c, Streams{nil, io.Discard, io.Discard}, new(configuration), new(bool))
	if err != nil {
		t.Fatal(err)
	}
	return parser, c
}

// model returns the model of the command line.
func model(t *testing.T) *kong.Node {
	t.Helper()
	parser, _ := testParser(t)
	return parser.Model.Node
}

// TestHelpHasEveryCommand checks that the help lists every command once.
func TestHelpHasEveryCommand(t *testing.T) {
	help, stderr := expect(t, exitDone)
	if stderr != "" || strings.Contains(help, "\x1b") {
		t.Errorf("got %q, %q", help, stderr)
	}
	for _, command := range model(t).Children {
		if n := strings.Count(help, "\n  "+command.Name+" "); n != 1 && !command.Hidden {
			t.Errorf("the help has %s %d times", command.Name, n)
		}
	}
	for line := range strings.Lines(help) {
		if len(line) > 81 {
			t.Errorf("longer than 80 columns: %s", line)
		}
	}
	for _, args := range [][]string{{"help"}, {"--help"}} {
		if got, _ := expect(t, exitDone, args...); got != help {
			t.Errorf("%v: got %q", args, got)
		}
	}
}

// TestServeHelpGroups checks that every setting of serve is in a group.
func TestServeHelpGroups(t *testing.T) {
	for _, flag := range fileFlags(model(t)) {
		if flag.Group == nil {
			t.Errorf("--%s is in no group", flag.Name)
		}
	}
}

// TestVariables checks that commands read only the variables of serve and documented variables.
func TestVariables(t *testing.T) {
	docs, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	app := model(t)
	known := []string{"SERVICE_CONFIG", "SERVICE_DEMO"}
	for _, flag := range fileFlags(app) {
		known = append(known, flag.Envs...)
	}
	read := make(map[string]bool)
	for _, c := range commandTree(app, nil) {
		for _, flag := range c.flags {
			for _, name := range flag.Envs {
				read[name] = true
				if !slices.Contains(known, name) && !strings.Contains(string(docs), "`"+name+"`") {
					t.Errorf("service %s --%s reads %s", c.path, flag.Name, name)
				}
			}
		}
	}
	for _, name := range ownVariables {
		if !read[name] {
			t.Errorf("no command reads %s", name)
		}
	}
	for _, name := range []string{"SERVICE_NAME", "SERVICE_URL", "SERVICE_FORCE"} {
		t.Setenv(name, "true")
	}
	parser, c := testParser(t)
	for _, args := range [][]string{{"publish"}, {"token", "create"}, {"restore"}} {
		if _, err := parser.Parse(args); err != nil {
			t.Fatal(err)
		}
	}
	if c.Publish.URL != "https://127.0.0.1:8443" || c.Token.Create.Name != "" || c.Restore.Force {
		t.Errorf("got %q, %q, %t", c.Publish.URL, c.Token.Create.Name, c.Restore.Force)
	}
}

// TestExamples checks that the help of every command has one to three examples, and parses them.
func TestExamples(t *testing.T) {
	left := len(examples)
	for _, c := range commandTree(model(t), nil) {
		if len(c.commands) > 0 {
			continue
		}
		lines := strings.Split(examples[c.path], "\n")
		if examples[c.path] == "" || len(lines) > 3 {
			t.Errorf("%s: got %q, want one to three examples", c.path, lines)
			continue
		}
		left--
		for _, line := range lines {
			if _, after, piped := strings.Cut(line, " | service"); piped {
				line = "service" + after
			}
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " > ")
			parser, _ := testParser(t)
			got, err := parser.Parse(strings.Fields(line)[1:])
			if err != nil || strings.TrimSpace(pathOf(got.Selected())) != c.path {
				t.Errorf("%s: %s: got error %v", c.path, line, err)
			}
		}
		help, _ := expect(t, exitDone, append(strings.Fields(c.path), "--help")...)
		if !strings.HasSuffix(help, "  "+lines[len(lines)-1]+"\n") {
			t.Errorf("%s: got help that ends\n%s", c.path, help[max(0, len(help)-200):])
		}
	}
	if left != 0 {
		t.Errorf("%d examples belong to no command", left)
	}
}

// TestOwnFlagsFirst checks that the help of a command begins with its own flags.
func TestOwnFlagsFirst(t *testing.T) {
	for command, flags := range map[string][]string{
		"admin remove": {"--email=", "--help", "--config="}, "publish": {"--url=", "--help"}, "program move": {"--to=", "--help", "--data="},
	} {
		help, _ := expect(t, exitDone, append(strings.Fields(command), "--help")...)
		last := -1
		for _, flag := range flags {
			at := strings.Index(help, flag)
			if at <= last {
				t.Errorf("%s: %s is at %d, want it after %d:\n%s", command, flag, at, last, help)
			}
			last = at
		}
	}
}

func TestColors(t *testing.T) {
	if got := colors(true).paint(red, "x"); got != "\x1b[31mx\x1b[0m" {
		t.Errorf("got %q", got)
	}
	if got := colors(false).paint(red, "x"); got != "x" {
		t.Errorf("got %q", got)
	}
	if painter(new(bytes.Buffer)) {
		t.Error("a buffer has colors")
	}
}

// TestTraffic checks that a terminal shows the newest lines, below the last text.
func TestTraffic(t *testing.T) {
	var out bytes.Buffer
	tr := &traffic{w: &out, rows: 2}
	tr.line("a")
	tr.line("b")
	out.Reset()
	tr.line("c")
	if got, want := out.String(), "\x1b[2A\x1b[?7l\r\x1b[Kb\n\r\x1b[Kc\n\x1b[?7h"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	io.WriteString(tr, "text\n")
	out.Reset()
	tr.line("d")
	if got, want := out.String(), "\x1b[?7l\r\x1b[Kd\n\x1b[?7h"; got != want {
		t.Errorf("after text: got %q, want %q", got, want)
	}
}

// TestBodyText checks that a body is indented, escaped and truncated.
func TestBodyText(t *testing.T) {
	for body, want := range map[string]string{
		"":                  "",
		`{"a":1}`:           "    {\n      \"a\": 1\n    }\n",
		"one\r\n\x1b[2Jtwo": "    one\n    \\x1b[2Jtwo\n",
	} {
		a := &arrival{raw: []byte(body)}
		if strings.HasPrefix(body, "{") {
			a.Body = a.raw
		}
		if got := a.bodyText(); got != want {
			t.Errorf("%q: got %q, want %q", body, got, want)
		}
	}
	long := &arrival{raw: []byte(strings.Repeat("x\n", 1000))}
	if got := long.bodyText(); strings.Count(got, "\n") != maxShownLines+1 || !strings.Contains(got, "2000 bytes") {
		t.Errorf("got %d lines", strings.Count(got, "\n"))
	}
}
