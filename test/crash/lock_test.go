package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// TestLockRemoved removes the lock file of a running service, and then its socket: a second
// service, and every command that needs the data directory alone, still fails and changes nothing.
func TestLockRemoved(t *testing.T) {
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--litestream", "off")
	p := in.MustStart()
	token := in.Token("p")
	backup := filepath.Join(t.TempDir(), "backup.tar")
	if out, err := in.Command("backup", "create", backup, "--data", in.Data, "--without-keys"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	remove := func(name string) {
		t.Helper()
		if err := os.Remove(filepath.Join(in.Data, name)); err != nil {
			t.Fatal(err)
		}
	}
	inUse := fmt.Sprintf("the data directory is in use: %s is held by process %d", in.Data, p.PID())
	remove("lock")
	remove("admin.sock")
	for _, args := range [][]string{
		in.Args("serve"),
		{"restore", "--data", in.Data, "--from", backup, "--force"},
		{"token", "list", "--data", in.Data},
		{"key", "rotate", "--yes", "--data", in.Data},
		{"backup", "create", backup + "2", "--data", in.Data, "--without-keys"},
		{"doctor", "--data", in.Data},
	} {
		// No command may have created a lock file for the next.
		out, err := in.Command(args...)
		if err == nil || !strings.Contains(out, inUse) {
			t.Errorf("service %s: got %v, want %q\n%s", strings.Join(args, " "), err, inUse, out)
		}
		if _, err := os.Stat(filepath.Join(in.Data, "lock")); err == nil {
			t.Errorf("service %s created a lock file", strings.Join(args, " "))
		}
	}
	in.Publish(token, []byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`))
	in.MustStop(p)
	if faults := harness.DatabaseFaults(t, in.Data); len(faults) > 0 {
		t.Errorf("database: got faults %q", faults)
	}
	in.MustStop(in.MustStart())
}
