package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// TestLogRemoved removes the write-ahead log of a service that was killed under load,
// and with it the last acknowledged events: the service and the commands report that
// instead of continuing. A kill alone must not be mistaken for a missing log.
func TestLogRemoved(t *testing.T) {
	data := t.TempDir()
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", "off")
	p := in.MustStart()
	token := in.Token("p")
	count := func() int {
		t.Helper()
		all, err := harness.Feed[struct{ ID string }](in, token, "/v2/events")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	published := 0
	log := filepath.Join(data, "service.db-wal")
	for range 3 {
		for range 50 {
			in.Publish(token, []byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`))
			published++
		}
		in.Kill(p)
		if info, err := os.Stat(log); err != nil || info.Size() == 0 {
			t.Fatalf("got no write-ahead log: %v, %v", info, err)
		}
		p = in.MustStart()
	}
	if got := count(); got != published {
		t.Fatalf("after the kills: got %d events, want %d", got, published)
	}
	in.Publish(token, []byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`))
	in.Kill(p)
	if err := os.Rename(log, log+".moved"); err != nil {
		t.Fatal(err)
	}
	database := filepath.Join(data, "service.db")
	for _, args := range [][]string{in.Args("serve"), {"token", "list", "--data", data}, {"doctor", "--data", data}} {
		out, err := in.Command(args...)
		for _, want := range []string{"commits are missing: " + database + " has ", fmt.Sprintf("remove %s-commits", database)} {
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("service %s: got %v, want %q\n%s", strings.Join(args, " "), err, want, out)
			}
		}
	}
	if err := os.Rename(log+".moved", log); err != nil {
		t.Fatal(err)
	}
	p = in.MustStart()
	if got := count(); got != published+1 {
		t.Errorf("with the log restored: got %d events, want %d", got, published+1)
	}
	// The operator accepts the loss and continues without the missing events.
	in.Kill(p)
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(database + "-commits"); err != nil {
		t.Fatal(err)
	}
	in.MustStop(in.MustStart())
}
