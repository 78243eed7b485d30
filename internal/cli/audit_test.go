package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"service/store"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// An error of a list names the flag with the invalid value.
func TestAuditListNamesFlags(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, name := range []string{"admin", "token-id", "program", "action", "subject", "from", "to"} {
		if _, errs := expect(t, exitUsage, "audit", "list", "--"+name, long, "--data", t.TempDir()); !strings.Contains(errs, "--"+name+":") {
			t.Errorf("--%s: the error %q names no flag", name, errs)
		}
	}
}

// An empty audit log is an error if the data requires an entry, and so is an empty file.
func TestVerifyEmptyAudit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	createData(t, dir, "")
	if out, _ := expect(t, exitDone, "audit", "verify", "--data", dir); out != "The audit log is empty.\n" {
		t.Errorf("new data: got %q", out)
	}
	st, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	// Without the entry that a command would add.
	_, _, err = storetest.CreateToken(t.Context(), st, webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
	if err := errors.Join(err, st.Close()); err != nil {
		t.Fatal(err)
	}
	if _, errs := expect(t, exitFailed, "audit", "verify", "--data", dir); !strings.Contains(errs, "although there are 0 admins and 1 token") {
		t.Errorf("with a token: got %q", errs)
	}
	file := writeFile(t, filepath.Join(t.TempDir(), "audit.ndjson"), "")
	if _, errs := expect(t, exitFailed, "audit", "verify", file); !strings.Contains(errs, "has no entries") {
		t.Errorf("an empty file: got %q", errs)
	}
}

// The log continues after a backup was restored, and records the restore.
func TestVerifyAuditAfterRestore(t *testing.T) {
	dir, backup := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup.tar")
	create := []string{"token", "create", "--program", "p", "--user", "u", "--scope", "events.read", "--data", dir}
	createData(t, dir, "")
	expect(t, exitDone, create...)
	expect(t, exitDone, "backup", "create", backup, "--data", dir, "--without-keys")
	expect(t, exitDone, create...)
	if out, _ := expect(t, exitDone, "audit", "verify", "--data", dir); strings.Contains(out, "restore") {
		t.Errorf("before a restore: got %q", out)
	}
	key := writeFile(t, filepath.Join(t.TempDir(), "key"), string(harness.Read(t, filepath.Join(dir, "secret.key"))))
	expect(t, exitDone, "restore", "--from", backup, "--data", dir, "--force", "--secret-key-file", key)
	for range 2 {
		out, _ := expect(t, exitDone, "audit", "verify", "--data", dir, "--secret-key-file", key)
		if strings.Count(out, "continues the log after a restore") != 1 || !strings.Contains(out, "from the backup of ") {
			t.Errorf("after the restore: got %q", out)
		}
	}
}
