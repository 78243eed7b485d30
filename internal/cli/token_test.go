package cli

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/api"
	"service/internal/control"
	"service/internal/server"
	"service/store"
	"service/webhook"
)

// serveAdmin runs the admin socket of a new data directory until the test ends.
func serveAdmin(t *testing.T, dir string) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	admin := api.New(api.Config{Store: st}).Owner(api.OwnerConfig{
		Version: "v1", Standbys: func(context.Context) []string { return nil }, AdminsChanged: func(string) {},
		SetupLink: func(context.Context) (string, error) { return "https://127.0.0.1:8443/setup/CODE", nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- server.Serve(ctx, &http.Server{Handler: admin}, l, time.Second) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, st.Close()); err != nil {
			t.Error(err)
		}
	})
	return st
}

// withAndWithoutServer runs a test on new data that prepare fills: with a running server, whose store
// it gets, and without one.
func withAndWithoutServer(t *testing.T, prepare func(*testing.T, *store.Store), test func(t *testing.T, dir string, running *store.Store)) {
	t.Run("server running", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		st := serveAdmin(t, dir)
		prepare(t, st)
		test(t, dir, st)
	})
	t.Run("no server", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		st, err := store.Open(t.Context(), store.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		prepare(t, st)
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		test(t, dir, nil)
	})
}

// noContents fills nothing, see [withAndWithoutServer].
func noContents(*testing.T, *store.Store) {}

// TestTokenCommands runs the commands, with a running server and without.
func TestTokenCommands(t *testing.T) {
	withAndWithoutServer(t, noContents, func(t *testing.T, dir string, running *store.Store) {
		testTokens(t, dir)
		status, link, err := call(t, "admin", "setup-link", "--data", dir)
		if running != nil && (status != exitDone || link != "https://127.0.0.1:8443/setup/CODE\n") ||
			running == nil && (status != exitFailed || !strings.Contains(err, "no server is running")) {
			t.Errorf("setup-link: got exit status %d, %q, %q", status, link, err)
		}
	})
}

// testTokens creates, lists and revokes a token.
func testTokens(t *testing.T, dir string) {
	command := func(want int, args ...string) (string, string) {
		t.Helper()
		return expect(t, want, append(args, "--data", dir)...)
	}
	secret, _ := command(exitDone, "token", "create", "--program", "acme", "--user", "u1",
		"--scope", "webhooks.read,webhooks.write", "--scope", "events.write", "--name", "ci", "--expires", "90d")
	if _, ok := webhook.HashTokenSecret(strings.TrimSuffix(secret, "\n")); !ok {
		t.Fatalf("got stdout %q, want only a token", secret)
	}
	list, _ := command(exitDone, "token", "list")
	for _, want := range []string{"acme", "u1", "webhooks.read,webhooks.write,events.write", "valid until", "ci", secret[:10]} {
		if !strings.Contains(list, want) {
			t.Errorf("the list lacks %q:\n%s", want, list)
		}
	}
	if strings.Contains(list, strings.TrimSpace(secret)) {
		t.Error("the list shows the secret")
	}
	id := strings.Fields(strings.Split(list, "\n")[1])[0]
	if out, _ := command(exitDone, "token", "revoke", "--yes", id); !strings.HasPrefix(out, "Revoked token "+id) {
		t.Errorf("revoke printed %q", out)
	}
	if list, _ = command(exitDone, "token", "list", "--json"); !strings.Contains(list, `"revoked_at"`) {
		t.Errorf("the token is not revoked: %s", list)
	}
	if _, err := command(exitFailed, "token", "revoke", "--yes", "nope"); err != "service: There is no such token.\n" {
		t.Errorf("revoking an unknown token printed %q", err)
	}
}

func TestTokenUsage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	tests := []struct {
		args []string
		want []string
	}{
		{nil, []string{
			"service: missing flags: --program, --user, --scope (see service token create --help)",
		}},
		{[]string{"--program", "a b", "--user", "u", "--scope", "x"}, []string{"--program: must be", `--scope: "x" is not one of`}},
		{[]string{"--program", "a", "--user", "u", "--scope", "events.read,events.read"}, []string{`"events.read" is given twice`}},
		{[]string{"--program", "a", "--user", "u", "--scope", "events.read", "--expires", "soon"},
			[]string{"--expires: must be a duration such as 90d"}},
		{[]string{"--program", "a", "--user", "u", "--scope", "events.read", "--expires", "0d"},
			[]string{"--expires: must be from 1m to"}},
		{[]string{"--programme", "a"}, []string{"unknown flag --programme"}},
	}
	for _, test := range tests {
		out, errs := expect(t, exitUsage, append([]string{"token", "create", "--data", dir}, test.args...)...)
		if out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: got stdout %q, stderr %q; want one line on stderr", test.args, out, errs)
		}
		for _, want := range test.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%v: got %q, want %q", test.args, errs, want)
			}
		}
	}
	for _, args := range [][]string{{"token", "list"}, {"token", "revoke", "--yes", "x"},
		{"token", "create", "--program", "a", "--user", "u", "--scope", "events.read"}} {
		if _, errs := expect(t, exitFailed, append(args, "--data", dir)...); !strings.Contains(errs, "there is no data in") {
			t.Errorf("%v: got %q", args, errs)
		}
	}
	standby := t.TempDir() // where a standby ran
	if err := errors.Join(os.Mkdir(filepath.Join(standby, "standby"), 0o700),
		os.WriteFile(filepath.Join(standby, "standby", "primary"), []byte("machine-1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, refused := expect(t, exitFailed, "token", "list", "--data", standby)
	if !strings.Contains(refused, "a standby of the primary on machine-1; run this on the primary") {
		t.Errorf("in the directory of a standby: got %q", refused)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("failed commands created a data directory: %v", err)
	}
}
