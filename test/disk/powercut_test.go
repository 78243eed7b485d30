package disk

import (
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"service/test/harness"
	"service/test/harness/chaos"
)

var powerCuts = flag.Int("powercut.cuts", 10, "how often TestPowerCut cuts the power of the service's file system")

// TestPowerCut cuts the power of the data directory's file system after random numbers of
// requests. The subtests named "control" show that a cut does lose what was not
// fsynced, and that the test would find it.
//
// It needs Linux, root and permission to mount a loop device (requirement powercut).
func TestPowerCut(t *testing.T) {
	cuts := harness.Drill(t, 4, *powerCuts)
	if why := diskUnavailable(t); why != "" {
		harness.Unavailable(t, "powercut", why)
	}
	t.Run("control: files", testCutFiles)
	t.Run("control: SQLite", testCutSQLite)
	t.Run("control: without fsync", func(t *testing.T) {
		harness.Long(t) // another build is slow
		careless := harness.Build(t,
			harness.Mutation{File: "store/sqlite/conn.go", Old: "PRAGMA synchronous = FULL", New: "PRAGMA synchronous = NORMAL"},
			// a checkpoint would fsync
			harness.Mutation{File: "store/sqlite/conn.go", Old: "PRAGMA wal_autocheckpoint = 1000", New: "PRAGMA wal_autocheckpoint = 1000000"},
			harness.Mutation{File: "store/sqlite/damage.go", Old: "commits == 2", New: "commits == -1"}) // otherwise it could refuse to start
		c := newPowerCuts(t, careless, 2)
		if faults := c.Faults(); !slices.ContainsFunc(faults, func(f string) bool {
			return strings.Contains(f,
				"acknowledged events are missing")
		}) {
			t.Errorf("a service that does not fsync its commits: got faults %q, want lost events", faults)
		}
	})
	t.Run("service", func(t *testing.T) {
		c := newPowerCuts(t, harness.Build(t), cuts)
		c.Check()
		c.Finish()
	})
}

// newPowerCuts runs the chaos on its own disk and cuts the power that many times.
func newPowerCuts(t *testing.T, binary string, cuts int) *chaos.Chaos {
	d := newDisk(t)
	c := chaos.New(t, binary, filepath.Join(d.mount, "data"))
	rng := rand.New(rand.NewPCG(c.Seed, 1000))
	c.Run(cuts, func(p *harness.Process) {
		c.SetPower(false)
		defer c.SetPower(true)
		d.cut()
		if !p.Ready.IsZero() { // otherwise nothing is published
			c.AwaitSteps(p, rng.IntN(20)) // during which every call to the disk fails
		}
		c.Instance.Kill(p)
		d.restore()
	})
	return c
}

func testCutFiles(t *testing.T) {
	d := newDisk(t)
	write := func(name string, sync bool) {
		f, err := os.Create(filepath.Join(d.mount, name))
		if err == nil {
			_, err = f.WriteString("written")
		}
		if err == nil && sync {
			err = f.Sync()
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write("synced", true)
	write("not synced", false)
	d.cut()
	d.restore()
	if b, err := os.ReadFile(filepath.Join(d.mount, "synced")); string(b) != "written" {
		t.Errorf("the fsynced file after a power cut: got %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(d.mount, "not synced")); string(b) == "written" {
		t.Error("a file that was not fsynced survived the power cut")
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func testCutSQLite(t *testing.T) {
	const rows = 100
	d := newDisk(t)
	open := func(name string) *sql.DB {
		db, err := sql.Open("sqlite3", "file:"+filepath.Join(d.mount, name)) // the driver of the harness
		if err != nil {
			t.Fatal(err)
		}
		db.SetMaxOpenConns(1)
		return db
	}
	var all []*sql.DB
	for _, synchronous := range []string{"FULL", "NORMAL"} {
		db := open(synchronous)
		all = append(all, db)
		statements := []string{"PRAGMA journal_mode = WAL", "PRAGMA synchronous = " + synchronous, "CREATE TABLE t (n)",
			"PRAGMA wal_checkpoint(TRUNCATE)"}
		for n := range rows {
			statements = append(statements, fmt.Sprintf("INSERT INTO t VALUES (%d)", n))
		}
		for _, s := range statements {
			if _, err := db.Exec(s); err != nil {
				t.Fatalf("%s: %s: %v", synchronous, s, err)
			}
		}
	}
	d.cut()
	for _, db := range all {
		db.Close() // fails: the disk is cut off
	}
	d.restore()
	for synchronous, want := range map[string]func(int) bool{
		"FULL":   func(n int) bool { return n == rows },
		"NORMAL": func(n int) bool { return n < rows },
	} {
		db := open(synchronous)
		var n int
		err := db.QueryRow("SELECT count(*) FROM t").Scan(&n)
		if err := errors.Join(err, db.Close()); err != nil {
			t.Errorf("%s: %v", synchronous, err)
		} else if !want(n) {
			t.Errorf("synchronous = %s: %d of %d committed rows survived the power cut", synchronous, n, rows)
		}
	}
}

// disk is an ext4 file system whose power the test can cut.
type disk struct {
	t            testing.TB
	image, mount string
	mounted      bool
}

const diskSize = 96 << 20

// diskUnavailable returns why no disk can be made here, or "".
func diskUnavailable(t *testing.T) string {
	if os.Geteuid() != 0 {
		return "only root can mount a file system"
	}
	d := &disk{t: t, image: filepath.Join(t.TempDir(), "image"), mount: t.TempDir()}
	if err := d.format(); err != nil {
		return err.Error()
	}
	if err := d.attach(); err != nil {
		return err.Error()
	}
	defer d.detach()
	if err := shutdownFS(d.mount); err != nil {
		return "cannot cut the power of a file system: " + err.Error()
	}
	return ""
}

// newDisk makes an empty disk and mounts it until the test ends.
func newDisk(t testing.TB) *disk {
	t.Helper()
	d := &disk{t: t, image: filepath.Join(t.TempDir(), "image"), mount: t.TempDir()}
	t.Cleanup(d.detach)
	if err := d.format(); err != nil {
		t.Fatal(err)
	}
	if err := d.attach(); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *disk) format() error {
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(d.image, diskSize); err != nil {
		return err
	}
	return harness.Exec("mkfs.ext4", "-q", "-F", "-O", "has_journal", d.image)
}

// attach mounts the disk, which replays its journal after a cut.
func (d *disk) attach() error {
	err := harness.Exec("mount", "-o", "loop", d.image, d.mount)
	d.mounted = err == nil
	return err
}

// detach unmounts the disk and releases its loop device; if a process still uses the disk, as soon
// as that process ends.
func (d *disk) detach() {
	if !d.mounted {
		return
	}
	d.mounted = false
	if err := harness.Exec("umount", d.mount); err != nil {
		d.t.Error(errors.Join(err, harness.Exec("umount", "-l", d.mount)))
	}
}

// cut drops everything that was not fsynced. After that nothing can be read or written.
func (d *disk) cut() {
	d.t.Helper()
	if err := shutdownFS(d.mount); err != nil {
		d.t.Fatal(err)
	}
}

// restore mounts the disk again, as after a power cut. No process may have a file
// open on it.
func (d *disk) restore() {
	d.t.Helper()
	d.detach()
	// A mount namespace that was created since then still contains the file system, shut down, and
	// mounting the image again would return that file system. So the content of the disk moves to
	// another image.
	out, err := exec.Command("losetup", "--associated", d.image).CombinedOutput()
	if err == nil && len(out) > 0 {
		old, other := d.image, ".other"
		if d.image = strings.TrimSuffix(old, other); d.image == old {
			d.image += other
		}
		err = errors.Join(harness.Exec("cp", "--sparse=always", old, d.image), os.Remove(old))
	}
	if err != nil {
		d.t.Fatal(err, string(out))
	}
	if err := d.attach(); err != nil {
		d.t.Fatal(err)
	}
}
