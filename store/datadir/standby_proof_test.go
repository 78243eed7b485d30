package datadir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/store/datadir"
	"service/store/replica"
	"service/store/storetest"
	"service/test/harness"
)

// A copy whose file is damaged is never promoted: the check finds it, and a new copy is made. The
// digests of the primary's own files are in the copy.
func TestStandbyCheckIntact(t *testing.T) {
	dir, warm := t.TempDir(), t.TempDir()
	target := filepath.Join(t.TempDir(), "replica")
	primary := openReplicated(t, dir, fileReplica(t, dir, target))
	storetest.Program(t, primary.Store, "p")
	files := datadir.LocalFiles{EventTypes: map[string]string{"order_created.json": "1"}, CA: "2"}
	must(t, primary.SetLocalFiles(t.Context(), files))
	primary.await("up to date", upToDate)
	standby, err := datadir.OpenStandby(warm, fileReplica(t, warm, target), "", testLogger(t))
	must(t, err)
	defer func() { must(t, standby.Close()) }()
	if err := standby.CheckIntact(t.Context()); !errors.Is(err, replica.ErrNoCopy) {
		t.Errorf("without a copy: got %v, want %v", err, replica.ErrNoCopy)
	}
	stop := follow(t, standby)
	defer stop()
	harness.WaitFor(t, "a copy", standby.HasCopy)
	must(t, standby.CheckIntact(t.Context()))
	got, err := standby.PrimaryFiles(t.Context())
	if err != nil || got.CA != files.CA || got.EventTypes["order_created.json"] != "1" {
		t.Errorf("files of the primary: got %+v, %v, want %+v", got, err, files)
	}

	f, err := os.OpenFile(datadir.CopyPath(standby), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("damaged ", 1024)), 8192)
	must(t, errors.Join(err, f.Close()))
	if err := standby.CheckIntact(t.Context()); !errors.Is(err, replica.ErrNoCopy) {
		t.Errorf("damaged: got %v, want %v", err, replica.ErrNoCopy)
	}
	harness.WaitFor(t, "a new copy", standby.HasCopy)
	must(t, standby.CheckIntact(t.Context()))
	must(t, primary.close())
}

// The error about a directory without a database says what the directory is for, and names the
// primary after a standby.
func TestCheckData(t *testing.T) {
	dir := t.TempDir()
	check := func(want string) {
		t.Helper()
		if err := datadir.CheckData(dir); err == nil && want != "" || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	check("there is no data in " + dir)
	standby, err := datadir.OpenStandby(dir, fileReplica(t, dir, filepath.Join(t.TempDir(), "replica")), "", testLogger(t))
	must(t, err)
	check("it was last a standby")
	must(t, standby.NotePrimary("machine-1"))
	must(t, standby.Close())
	check("it was last a standby of the primary on machine-1")
	must(t, os.WriteFile(filepath.Join(dir, datadir.StandbyFolder, datadir.PrimaryFile), []byte(strings.Repeat("x", 1000)), 0o600))
	check(strings.Repeat("x", datadir.MaxPrimary))
	must(t, os.WriteFile(filepath.Join(dir, datadir.Database), nil, 0o600))
	check("")
}
