package disk

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"service/test/harness"
)

// TestSyncCalls checks that the service syncs the database with fdatasync: fsync would also write
// the file's times, with a commit of the file system's journal each time. The service must sync
// directories with fsync. It must not query the database's times for each event: after a query
// Linux gives the file a new time at the next write, which slows the sync.
//
// It needs strace (requirement strace).
func TestSyncCalls(t *testing.T) {
	if why := straceUnavailable(); why != "" {
		harness.Unavailable(t, "strace", why)
	}
	const events = 100 // many more than the connections, which query the times when they open
	log := filepath.Join(t.TempDir(), "strace")
	in := harness.NewInstance(t, harness.Build(t), t.TempDir())
	token := in.Token("1")
	in.Wrapper = []string{"strace", "-D", "-f", "-y", "--seccomp-bpf", "-qq", "-e", "signal=none",
		"-e", "trace=fsync,fdatasync,fstat,newfstatat,statx", "-o", log}
	in.MustStart()
	for n := range events {
		in.Publish(token, json.RawMessage(harness.AppendEvent(nil, n)))
	}
	calls := regexp.MustCompile(`(?m)(fsync|fdatasync|fstat|newfstatat|statx)\(\d+<(.*?)>`)
	synced := make(map[string]int)
	harness.WaitFor(t, "the syncs of all events in the log of strace", func() bool {
		clear(synced)
		for _, c := range calls.FindAllSubmatch(harness.Read(t, log), -1) {
			synced[string(c[1])+" "+strings.TrimPrefix(string(c[2]), in.Data)]++
		}
		return synced["fsync /service.db-wal"]+synced["fdatasync /service.db-wal"] >= events
	})
	if n := synced["fsync /service.db-wal"] + synced["fsync /service.db"]; n > 0 {
		t.Errorf("got %d fsyncs of the database, want only fdatasyncs: %v", n, synced)
	}
	if synced["fsync "] == 0 || synced["fdatasync "] > 0 {
		t.Errorf("directory: got %v, want only fsyncs", synced)
	}
	if n := synced["fstat /service.db-wal"] + synced["newfstatat /service.db-wal"] + synced["statx /service.db-wal"]; n >= events/2 {
		t.Errorf("got the times of the log %d times while %d events were published: %v", n, events, synced)
	}
	in.MustStop(in.Last())
}
