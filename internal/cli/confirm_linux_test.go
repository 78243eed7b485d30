package cli

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"service/test/harness"
)

// irreversible are the commands that prompt, with a valid argument and the answer to type.
var irreversible = map[string]struct{ arg, answer string }{
	"event erase":    {"--program acme --where content_id=7", "acme"},
	"key rotate":     {"", "yes"},
	"program delete": {"acme", "acme"},
	"token revoke":   {"TOKEN", "yes"},
}

// TestIrreversibleCommands checks which commands prompt. A new command must be listed in one of the
// two tables.
func TestIrreversibleCommands(t *testing.T) {
	reversible := map[string][]string{
		"changes nothing": {"serve", "audit list", "audit export", "audit verify", "backup verify", "config show", "config validate",
			"config example", "doctor", "filter test", "healthcheck", "listen", "token list", "program list", "admin list",
			"completion", "man", "version", "bench"},
		"adds something": {"publish", "salvage", "token create", "admin create", "admin setup-link", "portal-link", "program import"},
		"loses something only with a flag that says so": {"backup create", "program export", "restore", "promote", "apply",
			"admin reset-password"},
		"can be undone": {"program move", "admin remove", "admin logout-all", "release", "compact"},
	}
	for _, c := range commandTree(model(t), nil) {
		if len(c.commands) > 0 {
			continue
		}
		asks := false
		for _, flag := range c.flags {
			asks = asks || flag.Name == "yes"
		}
		_, want := irreversible[c.path]
		if asks != want {
			t.Errorf("%s: got --yes %t, want %t", c.path, asks, want)
		}
		known := want
		for _, all := range reversible {
			known = known || slices.Contains(all, c.path)
		}
		if !known {
			t.Errorf("%s: can it be undone?", c.path)
		}
	}
}

// TestConfirmation checks that a command that cannot be undone does nothing without --yes if there
// is no terminal, and prompts if there is one.
func TestConfirmation(t *testing.T) {
	t.Setenv("SERVICE_YES", "true") // must confirm nothing
	for command, c := range irreversible {
		t.Run(command, func(t *testing.T) { confirm(t, command, c.arg, c.answer) })
	}
}

// confirm checks the confirmation of one command.
func confirm(t *testing.T, command, arg, answer string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	createData(t, dir, "")
	expect(t, exitDone, "token", "create", "--program", "acme", "--user", "me", "--scope", "events.read", "--data", dir)
	list := func() string {
		out, _ := expect(t, exitDone, "token", "list", "--json", "--data", dir)
		return out
	}
	read := func() string { return string(harness.Read(t, filepath.Join(dir, "secret.key"))) }
	before := list()
	key := read()
	_, id, _ := strings.Cut(before, `"id": "`)
	args := append(strings.Fields(command), "--data", dir)
	if arg != "" {
		args = append(args, strings.Fields(strings.Replace(arg, "TOKEN", id[:36], 1))...)
	}
	run := func(ctx context.Context, in io.Reader) (int, string) {
		status, _, errs := callWith(ctx, in, args...)
		return status, errs
	}
	unchanged := func() {
		t.Helper()
		if got := list(); got != before || read() != key {
			t.Errorf("it was done: %s", got)
		}
	}
	for _, in := range []io.Reader{nil, strings.NewReader(answer + "\n")} {
		if status, errs := run(t.Context(), in); status != exitUsage || !strings.Contains(errs, "--yes: is required without a terminal: ") {
			t.Errorf("got %d, %q", status, errs)
		}
		unchanged()
	}
	confirmTyped(t, answer, run, unchanged)
	if command != "event erase" && list() == before && read() == key { // there are no events
		t.Error("it was not done")
	}
}

// confirmTyped checks the confirmation of a command at a terminal, and completes the command.
func confirmTyped(t *testing.T, answer string, run func(context.Context, io.Reader) (int, string), unchanged func()) {
	t.Helper()
	typed := func(ctx context.Context, line string) (int, string) {
		t.Helper()
		master, terminal := pty(t)
		defer terminal.Close()
		if _, err := master.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
		return run(ctx, terminal)
	}
	status, errs := typed(t.Context(), "no")
	if status != exitFailed || !strings.Contains(errs, "and cannot be undone. Type "+answer+" to confirm: ") ||
		!strings.Contains(errs, "not confirmed: nothing was changed") {
		t.Errorf("got %d, %q", status, errs)
	}
	unchanged()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if status, errs := typed(interrupted, ""); status != exitFailed || !strings.Contains(errs, "nothing was changed") {
		t.Errorf("interrupted: got %d, %q", status, errs)
	}
	unchanged()
	if status, errs := typed(t.Context(), answer); status != exitDone {
		t.Errorf("got %d, %q", status, errs)
	}
}
