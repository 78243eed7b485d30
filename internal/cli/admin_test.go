package cli

import (
	"bytes"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"service/store"
	"service/webhook"
)

// TestTerminalIsAudited holds that the audit tells what the small commands did,
// whether a server runs or not, and nothing of what they refused.
func TestTerminalIsAudited(t *testing.T) {
	for name, running := range map[string]bool{"no server": false, "server running": true} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			var st *store.Store
			if running {
				st = serveAdmin(t, dir)
			}
			command := func(want int, args ...string) string {
				t.Helper()
				var out, errs bytes.Buffer
				in := strings.NewReader("correct horse battery\n")
				if got := Run(t.Context(), append(args, "--data", dir), Streams{in, &out, &errs}); got != want {
					t.Fatalf("%v: exit status %d, want %d: %s", args, got, want, &errs)
				}
				return out.String()
			}
			secret := command(exitDone, "token", "create", "--program", "acme", "--user", "u1", "--scope", "events.write")
			id := strings.Fields(strings.Split(command(exitDone, "token", "list"), "\n")[1])[0]
			command(exitDone, "token", "revoke", id)
			command(exitFailed, "token", "revoke", "nope")
			command(exitDone, "key", "rotate")
			command(exitDone, "admin", "create", "--email", "ana@example.com")
			command(exitFailed, "admin", "create", "--email", "ana@example.com")
			command(exitDone, "admin", "reset-password", "--email", "ana@example.com")
			command(exitDone, "admin", "logout-all")
			command(exitDone, "admin", "remove", "--email", "ana@example.com")
			if !running {
				var err error
				if st, err = store.Open(t.Context(), store.Config{Dir: dir}); err != nil {
					t.Fatal(err)
				}
				defer st.Close()
			}
			q, _ := webhook.AuditList.Parse(url.Values{"sort": {"at"}})
			entries, _, err := st.Audit().Page(t.Context(), &q)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Admin+e.Address+" "+string(e.Action)+" "+e.ProgramID)
				if strings.Contains(e.Detail, strings.TrimSpace(secret)) || strings.Contains(e.Detail, "horse") || strings.Contains(e.Detail, "argon2") {
					t.Errorf("the audit has a secret: %s", e.Detail)
				}
			}
			want := []string{"terminal token.create acme", "terminal token.revoke acme", "terminal key.rotate ", "terminal admin.create ", "terminal admin.password ", "terminal admin.remove "}
			if !slices.Equal(got, want) || entries[0].SubjectID != id || entries[1].SubjectID != id {
				t.Errorf("got %q, want %q of token %s", got, want, id)
			}
		})
	}
}
