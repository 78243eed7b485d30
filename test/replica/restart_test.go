package replica

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"service/test/harness"
)

// TestRestartUploads restarts the service on a large database, after shutdowns and
// kills. Each time it must upload less than 1 % of the database, and at the end the
// replica must be complete.
func TestRestartUploads(t *testing.T) {
	harness.Long(t)
	const megabytes = 64
	data, replica := t.TempDir(), t.TempDir()
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", writeReplica(t, data, "50ms", "path: "+replica), "--log-level",
		"warn")
	token := in.Token("p")
	in.MustStop(in.MustStart())
	// Another process writes to the database, so the service uploads all of it once.
	db := harness.OpenDatabase(t, data)
	_, err := db.Exec(fmt.Sprintf("CREATE TABLE ballast AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) "+
		"SELECT randomblob(1000000) AS x FROM n", megabytes))
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	event := 0
	// serve starts the service, publishes some events and waits for their upload.
	serve := func() *harness.Process {
		t.Helper()
		p := in.MustStart()
		for range 20 {
			event++
			in.Publish(token, harness.AppendEvent(nil, event))
		}
		awaitReplica(in, "running")
		return p
	}
	size := func() int64 { return folderSize(t, replica) }
	in.MustStop(serve())
	if whole := size(); whole < megabytes*1_000_000 {
		t.Fatalf("replica: got %d bytes, want the whole database", whole)
	}
	for _, end := range []struct {
		name string
		end  func(*harness.Process)
	}{
		{"in order", in.MustStop}, {"killed", in.Kill}, {"killed again", in.Kill}, {"in order again", in.MustStop},
	} {
		before := size()
		p := serve()
		time.Sleep(50 * time.Millisecond) // a compaction, a copy or a snapshot may start
		end.end(p)
		if uploaded := size() - before; uploaded > megabytes*10_000 {
			t.Errorf("%s: got %d bytes uploaded, want at most %d", end.name, uploaded, megabytes*10_000)
		}
	}
	in.MustStop(serve())
	to := filepath.Join(t.TempDir(), "restored")
	if out, err := in.Command("restore", "--data", to, "--from", "file://"+replica); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	for _, fault := range harness.DatabaseFaults(t, to) {
		t.Errorf("the restored copy: %s", fault)
	}
	live, there := harness.Rows(t, data), harness.Rows(t, to)
	for row := range live {
		if !there[row] {
			t.Errorf("the restored copy lacks %s", row)
		}
	}
	if len(live) < event {
		t.Errorf("database: got %d rows, want at least the %d events", len(live), event)
	}
}

// folderSize returns the total size of the files in a directory.
func folderSize(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
