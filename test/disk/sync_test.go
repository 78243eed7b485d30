package disk

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"service/test/harness"
)

// What SQLite writes is synced without its times, which would cost a commit of the
// file system's journal each. The directory is synced with its entries.
//
// It needs strace (requirement strace).
func TestSyncCalls(t *testing.T) {
	if why := straceUnavailable(); why != "" {
		harness.Unavailable(t, "strace", why)
	}
	const events = 20
	log := filepath.Join(t.TempDir(), "strace")
	in := harness.NewInstance(t, harness.Build(t), t.TempDir())
	token := in.Token("1")
	in.Wrapper = []string{"strace", "-D", "-f", "-y", "--seccomp-bpf", "-qq", "-e", "signal=none", "-e", "trace=fsync,fdatasync", "-o", log}
	in.MustStart()
	for n := range events {
		in.Publish(token, json.RawMessage(harness.AppendEvent(nil, n)))
	}
	calls := regexp.MustCompile(`(?m)(fsync|fdatasync)\(\d+<(.*?)>`)
	synced := make(map[string]int)
	harness.WaitFor(t, "the syncs of all events in the log of strace", func() bool {
		clear(synced)
		for _, c := range calls.FindAllSubmatch(harness.Read(t, log), -1) {
			synced[string(c[1])+" "+strings.TrimPrefix(string(c[2]), in.Data)]++
		}
		return synced["fsync /service.db-wal"]+synced["fdatasync /service.db-wal"] >= events
	})
	if n := synced["fsync /service.db-wal"] + synced["fsync /service.db"]; n > 0 {
		t.Errorf("%d fsyncs of the database, want fdatasyncs alone: %v", n, synced)
	}
	if synced["fsync "] == 0 || synced["fdatasync "] > 0 {
		t.Errorf("the directory: got %v, want fsyncs alone", synced)
	}
	in.MustStop(in.Last())
}
