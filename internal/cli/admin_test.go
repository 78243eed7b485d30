package cli

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"service/store"
	"service/webhook"
)

// TestCommandsAreAudited checks that the audit log contains every successful change and no refused
// one, both with a running server and without.
func TestCommandsAreAudited(t *testing.T) {
	withAndWithoutServer(t, noContents, func(t *testing.T, dir string, st *store.Store) {
		secret, id := changeByCommands(t, dir)
		if st == nil {
			var err error
			if st, err = store.Open(t.Context(), store.Config{Dir: dir}); err != nil {
				t.Fatal(err)
			}
			defer st.Close()
		}
		checkAudit(t, st, secret, id)
	})
}

// changeByCommands runs commands that change data. It returns the token that they create, and the
// token's ID.
func changeByCommands(t *testing.T, dir string) (token, id string) {
	t.Helper()
	command := func(want int, args ...string) string {
		t.Helper()
		got, out, errs := callWith(t.Context(), strings.NewReader("correct horse battery\n"), append(args, "--data", dir)...)
		if got != want {
			t.Fatalf("%v: exit status %d, want %d: %s", args, got, want, errs)
		}
		return out
	}
	token = command(exitDone, "token", "create", "--program", "acme", "--user", "u1", "--scope", "events.write")
	id = strings.Fields(strings.Split(command(exitDone, "token", "list"), "\n")[1])[0]
	command(exitDone, "token", "revoke", "--yes", id)
	command(exitFailed, "token", "revoke", "--yes", "nope")
	command(exitDone, "key", "rotate", "--yes")
	command(exitDone, "admin", "create", "--email", "ana@example.com")
	command(exitFailed, "admin", "create", "--email", "ana@example.com")
	command(exitDone, "admin", "reset-password", "--email", "ana@example.com")
	command(exitDone, "admin", "logout-all")
	command(exitFailed, "admin", "remove", "--email", "ana@example.com") // the last owner
	command(exitDone, "admin", "create", "--email", "bo@example.com", "--role", "owner")
	command(exitDone, "admin", "remove", "--email", "ana@example.com")
	return strings.TrimSpace(token), id
}

// checkAudit checks that the audit log contains the changes of changeByCommands.
func checkAudit(t *testing.T, st *store.Store, token, id string) {
	t.Helper()
	q, _ := webhook.AuditList.Parse(url.Values{"sort": {"at"}})
	entries, _, err := st.Audit().Page(t.Context(), &q)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Admin+e.Address+" "+string(e.Action)+" "+e.ProgramID)
		if strings.Contains(e.Detail, token) || strings.Contains(e.Detail, "horse") || strings.Contains(e.Detail, "argon2") {
			t.Errorf("the audit log contains a secret: %s", e.Detail)
		}
	}
	want := []string{
		"terminal token.create acme", "terminal token.revoke acme", "terminal key.rotate ",
		"terminal admin.create ", "terminal admin.password ", "terminal admin.create ",
		"terminal admin.remove ",
	}
	if !slices.Equal(got, want) || entries[0].SubjectID != id || entries[1].SubjectID != id {
		t.Errorf("got %q, want %q for token %s", got, want, id)
	}
}
