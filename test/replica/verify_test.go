package replica

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"service/test/harness"
)

// TestVerifiedReplica damages the snapshot of a replica while the service runs. The
// service must find the damage, report it and replace the snapshot; a restore must
// then be complete.
func TestVerifiedReplica(t *testing.T) {
	t.Parallel()
	data, target := t.TempDir(), t.TempDir()
	config := writeReplica(t, data, "50ms", "path: "+target)
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", config, "--verify-replica", "1s")
	token := in.Token("acme")
	run := in.MustStart()
	in.Publish(token, harness.AppendEvent(nil, 1))
	awaitReplica(in, "running")
	harness.WaitFor(t, "the replica to be verified", func() bool { return metric(t, in, "webhooks_replica_verified_timestamp_seconds") > 0 })
	if at := metric(t, in, "webhooks_replica_damaged_timestamp_seconds"); at != 0 {
		t.Errorf("intact replica: reported as damaged at %f", at)
	}

	snapshot := ""
	err := filepath.WalkDir(target, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(path, "/9/") && strings.HasSuffix(path, ".ltx") {
			snapshot = path
		}
		return err
	})
	if err != nil || snapshot == "" {
		t.Fatalf("got no snapshot: %v", err)
	}
	content := slices.Clone(harness.Read(t, snapshot))
	// A single bit could be in a compressed byte that has several values with the same meaning.
	for i := range content[len(content)/2:][:64] {
		content[len(content)/2+i] ^= 0xff
	}
	overwrite(t, snapshot, content)
	harness.WaitFor(t, "the damage to be found and replaced", func() bool {
		damaged := metric(t, in, "webhooks_replica_damaged_timestamp_seconds")
		return damaged > 0 && metric(t, in, "webhooks_replica_verified_timestamp_seconds") > damaged
	})
	out, err := in.Command("doctor", "--data", data, "--litestream", config)
	if !strings.Contains(out, "replica content") || !strings.Contains(out, filepath.Base(snapshot)) {
		t.Errorf("doctor: got %v, want it to name the damaged object\n%s", err, out)
	}
	in.MustStop(run)
	if out, events, err := restoreEvents(in, config); err != nil || events != 1 {
		t.Errorf("restored events: got %d, want 1: %v\n%s", events, err, out)
	}
}

// metric returns the value of a gauge without labels.
func metric(t *testing.T, in *harness.Instance, name string) float64 {
	t.Helper()
	_, text := in.Scrape()
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("got no metric %s", name)
	}
	value, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
