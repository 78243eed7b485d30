package crash

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"service/internal/durable"
	"service/test/harness"
)

// TestCompactKilled kills service compact while it runs: the database is unchanged, and the next
// call compacts it and removes the unfinished file.
func TestCompactKilled(t *testing.T) {
	harness.Long(t)
	const kills = 8
	binary, data, copied := harness.Build(t), t.TempDir(), t.TempDir()
	in := harness.NewInstance(t, binary, data, "--log-level", "warn")
	token := in.Token("acme")
	run := in.MustStart()
	for range 20 {
		events := make([]map[string]any, 500)
		for i := range events {
			events[i] = map[string]any{"name": "content_deleted", "version": "1", "content_id": i + 1}
		}
		in.Publish(token, map[string]any{"events": events})
	}
	in.MustStop(run)
	if err := os.CopyFS(copied, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(data, "service.db")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := 0
	for kill := range kills {
		part := rand.Int64N(info.Size()) // that is written before the kill
		killCompact(t, exec.Command(binary, "compact", "--data", data), path, part)
		if len(unfinished(t, path)) > 0 {
			cut++
		}
		for _, found := range append(harness.DatabaseFaults(t, data), harness.DatabaseDifferences(t, copied, data)...) {
			t.Errorf("kill %d: %s", kill, found)
		}
	}
	t.Logf("%d of %d kills left an unfinished file", cut, kills)
	if out, err := in.Command("compact", "--data", data); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, found := range append(harness.DatabaseDifferences(t, copied, data), unfinished(t, path)...) {
		t.Error("after compacting: ", found)
	}
	in.MustStop(in.MustStart())
}

// killCompact runs a compaction and kills it once the new file has reached a size. The compaction
// may end before.
func killCompact(t *testing.T, cmd *exec.Cmd, path string, size int64) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	harness.WaitFor(t, "a part of the new file", func() bool {
		select {
		case <-ended:
			return true
		default:
		}
		for _, name := range unfinished(t, path) {
			if info, err := os.Stat(name); err == nil && info.Size() >= size {
				return true
			}
		}
		return false
	})
	cmd.Process.Kill()
	<-ended
}

// unfinished returns the new files of compactions that have not ended.
func unfinished(t *testing.T, path string) []string {
	t.Helper()
	names, err := filepath.Glob(path + durable.TempSuffix + "*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}
