package replica

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"service/test/harness"
)

// TestRestartUploads restarts the service on a database of 64 MB, in order and
// killed. Less than a hundredth of the database is uploaded each time, and the
// replica has everything.
func TestRestartUploads(t *testing.T) {
	harness.Long(t)
	const megabytes = 64
	data, replica := t.TempDir(), t.TempDir()
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", writeReplica(t, data, "50ms", "path: "+replica), "--log-level", "warn")
	token := in.Token("p")
	in.MustStop(in.MustStart())
	// Nobody else may write to the database: this has it copied whole.
	db := harness.OpenDatabase(t, data)
	_, err := db.Exec(fmt.Sprintf("CREATE TABLE ballast AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) SELECT randomblob(1000000) AS x FROM n", megabytes))
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	event := 0
	// serve publishes some events, waits until they are in the replica, and publishes
	// some that may not be.
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
		t.Fatalf("the replica has %d bytes, want the whole database", whole)
	}
	for _, end := range []struct {
		name string
		end  func(*harness.Process)
	}{
		{"in order", in.MustStop}, {"killed", in.Kill}, {"killed again", in.Kill}, {"in order again", in.MustStop},
	} {
		before := size()
		p := serve()
		time.Sleep(50 * time.Millisecond) // a compaction, a copy or a snapshot may begin
		end.end(p)
		if uploaded := size() - before; uploaded > megabytes*10_000 {
			t.Errorf("%s: %d bytes uploaded, want less than %d", end.name, uploaded, megabytes*10_000)
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
		t.Errorf("%d rows in the database, want at least the %d events", len(live), event)
	}
}

// folderSize returns the size of the files in a directory.
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
