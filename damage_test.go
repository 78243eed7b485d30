package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testDamage damages the database of a service that is not running, which must
// refuse to start and leave every file as it is; and of one that runs, which
// must end as soon as it notices.
func testDamage(t *testing.T, binary string) {
	seed := newInstance(t, binary, filepath.Join(t.TempDir(), "seed"), "--log-level", "warn", "--grace", "1s")
	token := seed.token("acme")
	seed.mustStart()
	seed.publishMany(token, 2000)
	if status := seed.stop(seed.last()); status != exitDone {
		t.Fatalf("exit status %d", status)
	}
	run := seed.mustStart()
	for range 20 {
		seed.publishMany(token, 10)
	}
	seed.kill(run) // so that there is a log, too

	const page, frame = 4096, 24 + 4096
	junk := bytes.Repeat([]byte("junk"), page/4)
	for _, c := range []struct {
		name  string
		spoil func(database string) error
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
	} {
		t.Run(c.name, func(t *testing.T) {
			in := newInstance(t, binary, filepath.Join(t.TempDir(), "data"), seed.flags...)
			if err := runCommand("cp", "-r", seed.data, in.data); err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(filepath.Join(in.data, "service.db")); err != nil {
				t.Fatal(err)
			}
			in.wantRefused()
		})
	}

	for name, notice := range map[string]func(in *instance, base string) (int, error){
		"noticed by a read": func(in *instance, base string) (int, error) {
			return in.call(context.Background(), token, "GET", base+"/v2/events?page[size]=100&sort=received_at", nil, nil)
		},
		"noticed by a write": func(in *instance, base string) (int, error) {
			event := map[string]any{"name": "content_updated", "version": "1", "content_id": 7}
			return in.call(context.Background(), token, "POST", base+"/v2/events", event, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInstance(t, binary, filepath.Join(t.TempDir(), "data"), seed.flags...)
			if err := runCommand("cp", "-r", seed.data, in.data); err != nil {
				t.Fatal(err)
			}
			in.mustStart()
			if status := in.stop(in.last()); status != exitDone { // the log is moved into the database
				t.Fatalf("exit status %d", status)
			}
			run := in.mustStart()
			base, _ := in.await(t.Context())
			database := filepath.Join(in.data, "service.db")
			info, err := os.Stat(database)
			if err != nil {
				t.Fatal(err)
			}
			for at := int64(2 * page); at < info.Size(); at += page {
				if err := overwrite(database, at, junk[:64]); err != nil {
					t.Fatal(err)
				}
			}
			before := checksums(t, in.data)
			noticed := time.Now()
			if status, err := notice(in, base); err != nil || status != http.StatusServiceUnavailable {
				t.Errorf("got status %d, %v; want 503", status, err)
			}
			select {
			case <-run.exited:
			case <-time.After(10 * time.Second):
				t.Fatal("the service goes on with a damaged database")
			}
			t.Logf("ended after %s", time.Since(noticed).Round(time.Millisecond))
			in.setBase("")
			wantTold(t, run)
			if diff := cmp.Diff(before, checksums(t, in.data)); diff != "" {
				t.Errorf("the damaged data was changed (-before +after):\n%s", diff)
			}
			in.wantRefused()
		})
	}
}

// publishMany publishes so many events at once.
func (in *instance) publishMany(token string, n int) {
	in.tb.Helper()
	var lines ndjson
	for i := range n {
		lines = fmt.Appendf(lines, "{\"name\":\"content_updated\",\"version\":\"1\",\"content_id\":%d}\n", i)
	}
	base, _ := in.await(context.Background())
	if status, err := in.call(context.Background(), token, "POST", base+"/v2/events", lines, nil); err != nil || status != http.StatusCreated {
		in.tb.Fatalf("publish: status %d, %v", status, err)
	}
}

// wantRefused wants every command that opens the data to refuse it, to say what
// to do, and to leave it as it is.
func (in *instance) wantRefused() {
	in.tb.Helper()
	before := checksums(in.tb, in.data)
	run := in.start()
	select {
	case <-run.exited:
		wantTold(in.tb, run)
	case <-run.base:
		in.kill(run)
		in.tb.Error("the service starts with a damaged database")
	}
	cmd := exec.Command(in.binary, "token", "create", "--data", in.data, "--program", "acme", "--user", "tester", "--scope", "events.read")
	cmd.Env = cleanEnvironment()
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "damaged") {
		in.tb.Errorf("token create with a damaged database: %v\n%s", err, out)
	}
	if diff := cmp.Diff(before, checksums(in.tb, in.data)); diff != "" {
		in.tb.Errorf("the refused data was changed (-before +after):\n%s", diff)
	}
}

// wantTold wants a run to have ended with the word of a damaged database.
func wantTold(t testing.TB, run *serviceRun) {
	t.Helper()
	if log := run.log.String(); run.status != exitFailed || !strings.Contains(log, "service: the database is damaged: ") || !strings.Contains(log, "restore the data directory") {
		t.Errorf("exit status %d, and\n%s\nwant %d, that the database is damaged, and what to do", run.status, log, exitFailed)
	}
}

// checksums returns those of all files of a data directory but the lock, which
// says who has it, and SQLite's index of the log, which it makes anew.
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

// overwrite puts b into a file at a place.
func overwrite(path string, at int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}
