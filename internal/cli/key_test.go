package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/store"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// TestKeyRotateCommand rotates the key, with a running server and without.
func TestKeyRotateCommand(t *testing.T) {
	withAndWithoutServer(t, storeSecrets, func(t *testing.T, dir string, _ *store.Store) { testKeyRotate(t, dir) })
}

// storeSecrets creates a token, and two subscriptions with two secrets each.
func storeSecrets(t *testing.T, st *store.Store) {
	t.Helper()
	if _, _, err := storetest.CreateToken(t.Context(), st,
		webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()}); err != nil {
		t.Fatal(err)
	}
	header := new("Bearer 5f1d")
	for range 2 {
		fields := &webhook.SubscriptionFields{URL: new("https://partner.example"), Events: &[]string{"content_updated"},
			AuthorizationHeader: &header}
		if _, _, err := storetest.CreateSubscription(t.Context(), st, "p", "u", fields); err != nil {
			t.Fatal(err)
		}
	}
}

// testKeyRotate rotates the key of a data directory filled by storeSecrets.
func testKeyRotate(t *testing.T, dir string) {
	file := filepath.Join(dir, "secret.key")
	before := string(harness.Read(t, file))
	out, errs := expect(t, exitDone, "key", "rotate", "--yes", "--data", dir)
	want := "Replaced the key in " + file + "; re-encrypted 4 secrets with it: " +
		"2 authorization headers, 0 header sets, 2 signing secrets, 0 stored responses, 0 certificate files.\n"
	if out != want || errs != "" {
		t.Errorf("got %q and %q, want %q", out, errs, want)
	}
	after := string(harness.Read(t, file))
	if after == before || len(after) != 65 {
		t.Errorf("got %d bytes, changed %t; want a new key of 65 bytes", len(after), after != before)
	}
	if strings.Contains(out, strings.TrimSpace(after)) {
		t.Error("the command printed the key")
	}
	// A wrong key is refused, even by the running server.
	writeFile(t, file, before)
	if _, errs := expect(t, exitFailed, "key", "rotate", "--yes", "--data", dir); !strings.Contains(errs, "secret.key does not ") {
		t.Errorf("with another key: got %q", errs)
	}
	if string(harness.Read(t, file)) != before {
		t.Error("the refused key file was changed")
	}
}

// TestSecretKeyFileFlag checks the flag and its variable, and that errors name them.
func TestSecretKeyFileFlag(t *testing.T) {
	key := writeFile(t, filepath.Join(t.TempDir(), "key"), strings.Repeat("0a", 32))
	command := func(want int, args ...string) string {
		t.Helper()
		_, errs := expect(t, want, args...)
		return errs
	}
	dir := filepath.Join(t.TempDir(), "data")
	create := []string{"token", "create", "--program", "p", "--user", "u", "--scope", "events.read", "--data", dir}
	createData(t, dir, key)
	if err := os.Rename(key, key+".aside"); err != nil {
		t.Fatal(err)
	}
	errs := command(exitFailed, append(create, "--secret-key-file", key)...)
	if !strings.HasPrefix(errs, "service: --secret-key-file: "+key+" is missing") {
		t.Errorf("got %q, want the flag and the file", errs)
	}
	if err := os.Rename(key+".aside", key); err != nil {
		t.Fatal(err)
	}
	command(exitDone, append(create, "--secret-key-file", key)...)
	errs = command(exitFailed, create...)
	if !strings.Contains(errs, "secret.key is missing") || !strings.Contains(errs, "--secret-key-file") {
		t.Errorf("without the flag: got %q, want the missing file and the flag", errs)
	}
	errs = command(exitFailed, append(create, "--secret-key-file", filepath.Join(dir, "key"))...)
	if !strings.Contains(errs, "--secret-key-file: ") || !strings.Contains(errs, "is in the data directory") {
		t.Errorf("in the data directory: got %q", errs)
	}
	t.Setenv("SERVICE_SECRET_KEY_FILE", key)
	command(exitDone, create...)
	command(exitDone, "token", "list", "--data", dir)
	command(exitDone, "key", "rotate", "--yes", "--data", dir)
	if b, err := os.ReadFile(key); err != nil || strings.HasPrefix(string(b), "0a0a") {
		t.Errorf("the key has not changed: %v", err)
	}
	none := filepath.Join(dir, "none")
	if errs := command(exitFailed, "key", "rotate", "--yes", "--data", none); !strings.Contains(errs, "there is no data in ") {
		t.Errorf("without data: got %q", errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, stdout, stderr := callWith(ctx, nil, "key", "rotate", "--yes", "--data", dir); got != exitFailed || stdout != "" {
		t.Errorf("interrupted: got status %d, %q, %q; want %d and no output", got, stdout, stderr, exitFailed)
	}
}

// TestRootInForeignDirectory checks that root does not restore into another user's data
// directory.
func TestRootInForeignDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.Unavailable(t, "owner", "only root can make a directory of another user")
	}
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 64321, 64321); err != nil {
		t.Fatal(err)
	}
	want := "service: " + dir + " belongs to user #64321, who could not read files created by root: run this as that user (sudo -u '#64321')\n"
	if out, errs := expect(t, exitFailed, "restore", "--from", "file://"+dir, "--data", dir); out+errs != want {
		t.Errorf("got %q, want %q", out+errs, want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("got files %v, %v; want none", left, err)
	}
}
