package disk

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/test/harness"
)

const page, frame = 4096, 24 + 4096 // bytes, of the database and of its log

var junk = bytes.Repeat([]byte("junk"), page/4)

// damages are ways to damage the database of a service that is not running.
var damages = []struct {
	name   string
	damage func(database string) error
}{
	{"header", func(database string) error {
		return errors.Join(overwrite(database, 0, junk[:100]), os.Truncate(database+"-wal", 0))
	}},
	{"not a database", func(database string) error {
		return errors.Join(os.WriteFile(database, bytes.Repeat(junk, 10), 0o600), os.Truncate(database+"-wal", 0))
	}},
	{"middle", func(database string) error {
		for n := int64(2); n < 100; n++ {
			if err := overwrite(database, n*page, junk); err != nil {
				return err
			}
		}
		return nil
	}},
	{"truncated", func(database string) error { return os.Truncate(database, 50*page) }},
	{"truncated inside a page", func(database string) error { return os.Truncate(database, 50*page+100) }},
	{"empty", func(database string) error { return os.Truncate(database, 0) }},
	{"log's header", func(database string) error { return overwrite(database+"-wal", 0, junk[:32]) }},
	{"middle of the log", func(database string) error { return overwrite(database+"-wal", 32+10*frame, junk) }},
	{"log of nothing but junk", func(database string) error {
		return os.WriteFile(database+"-wal", bytes.Repeat(junk, 30), 0o600)
	}},
}

// TestDamage damages the database of a service. A service that is not running must
// refuse to start and change no file; a running one must exit as soon as it notices.
func TestDamage(t *testing.T) {
	harness.Long(t)
	seed := harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "seed"), "--log-level", "warn", "--grace", "1s")
	token := seed.Token("acme")
	seed.MustStart()
	publishLines(seed, token, 2000)
	seed.MustStop(seed.Last())
	run := seed.MustStart()
	for range 20 {
		publishLines(seed, token, 10)
	}
	seed.Kill(run) // leaves a write-ahead log

	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			in := copyInstance(t, seed)
			if err := d.damage(filepath.Join(in.Data, "service.db")); err != nil {
				t.Fatal(err)
			}
			wantRefused(in)
		})
	}
	for name, notice := range map[string]func(in *harness.Instance) (int, error){
		"noticed by a read": func(in *harness.Instance) (int, error) {
			return in.Call(t.Context(), token, "GET", in.URL()+"/v2/events?page[size]=100&sort=received_at", nil, nil)
		},
		"noticed by a write": func(in *harness.Instance) (int, error) {
			event := map[string]any{"name": "content_updated", "version": "1", "content_id": 7}
			return in.Call(t.Context(), token, "POST", in.URL()+"/v2/events", event, nil)
		},
	} {
		t.Run(name, func(t *testing.T) { testNoticed(t, copyInstance(t, seed), notice) })
	}
}

// testNoticed damages the database of a running service, and makes the service read it.
func testNoticed(t *testing.T, in *harness.Instance, notice func(*harness.Instance) (int, error)) {
	in.MustStart()
	in.MustStop(in.Last()) // moves the log into the database
	run := in.MustStart()
	database := filepath.Join(in.Data, "service.db")
	info, err := os.Stat(database)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(2 * page); at < info.Size(); at += page {
		if err := overwrite(database, at, junk[:64]); err != nil {
			t.Fatal(err)
		}
	}
	before := checksums(t, in.Data)
	noticed := time.Now()
	switch status, err := notice(in); {
	case errors.Is(err, syscall.ECONNREFUSED): // a background write has noticed the damage before
		t.Log("the service exited before the request arrived")
	case err != nil || status != http.StatusServiceUnavailable:
		t.Errorf("got status %d, %v; want 503", status, err)
	}
	run.Wait(t)
	t.Logf("the service exited %s after the first failed read", time.Since(noticed).Round(time.Millisecond))
	in.SetURL("")
	wantDamageReported(t, run)
	if diff := cmp.Diff(before, checksums(t, in.Data)); diff != "" {
		t.Errorf("the service changed the damaged data (-before +after):\n%s", diff)
	}
	wantRefused(in)
}

// copyInstance returns an instance on a copy of another one's data, not started.
func copyInstance(t *testing.T, of *harness.Instance) *harness.Instance {
	t.Helper()
	in := harness.NewInstance(t, of.Binary, filepath.Join(t.TempDir(), "data"), of.Flags...)
	harness.Copy(t, of.Data, in.Data)
	return in
}

// publishLines publishes n events in one request.
func publishLines(in *harness.Instance, token string, n int) {
	in.TB.Helper()
	var lines harness.NDJSON
	for i := range n {
		lines = fmt.Appendf(lines, "{\"name\":\"content_updated\",\"version\":\"1\",\"content_id\":%d}\n", i)
	}
	in.Publish(token, lines)
}

// wantRefused checks that every command that opens the data fails, says what to do,
// and changes nothing.
func wantRefused(in *harness.Instance) {
	in.TB.Helper()
	before := checksums(in.TB, in.Data)
	run := in.Start()
	if in.AwaitServing(run) {
		in.Kill(run)
		in.TB.Error("the service starts with a damaged database")
	} else {
		wantDamageReported(in.TB, run)
	}
	cmd := exec.Command(in.Binary, "token", "create", "--data", in.Data, "--program", "acme", "--user", "tester", "--scope", "events.read")
	cmd.Env = harness.Environment()
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "damaged") {
		in.TB.Errorf("token create with a damaged database: got %v, want what to do\n%s", err, out)
	}
	if diff := cmp.Diff(before, checksums(in.TB, in.Data)); diff != "" {
		in.TB.Errorf("a command that failed changed the data (-before +after):\n%s", diff)
	}
}

// wantDamageReported checks that a process exited with the error of a damaged database.
func wantDamageReported(t testing.TB, run *harness.Process) {
	t.Helper()
	if log := run.Log.String(); run.Status != harness.ExitFailed || !strings.Contains(log, "service: the database is damaged: ") ||
		!strings.Contains(log, "restore the data directory") {
		t.Errorf("exit status: got %d, want %d; the log must say that the database is damaged and what to do:\n%s",
			run.Status, harness.ExitFailed, log)
	}
}

// checksums returns the checksums of the files of a data directory, except the lock,
// which names its process, and SQLite's index of the log, which SQLite rebuilds.
func checksums(t testing.TB, data string) map[string]string {
	t.Helper()
	sums := make(map[string]string)
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "lock" || strings.HasSuffix(path, "-shm") {
			return err
		}
		b, err := os.ReadFile(path)
		sums[d.Name()] = fmt.Sprintf("%d bytes, SHA-256 %x", len(b), sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// overwrite writes b into a file at an offset.
func overwrite(path string, at int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}
