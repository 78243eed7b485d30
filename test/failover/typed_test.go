package failover

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// TestFailoverAsTyped kills a primary that has changes of its own, starts it again with the command
// of docs/failover.md, and follows the steps of "After a failover" as written, except for paths and
// the duration of the lease. Afterwards nothing that was acknowledged is missing.
func TestFailoverAsTyped(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(20)
	f.two.AwaitStandby(f.standby)
	f.down.Store(true) // nothing is uploaded any more
	f.publish(10)
	f.one.Kill(f.primary)
	f.down.Store(false)
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited:\n%s", &f.standby.Log)
	}

	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "old-primary")
	for name, text := range map[string]string{
		"service": "exec " + f.one.Binary + ` "$@"`,
		"rsync":   `exec cp -a "${2#machine-1:}." "$3"`, // the machines share a disk here
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(f.two.Data, filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	typed := func(line string, replace ...string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", strings.NewReplacer(replace...).Replace(line))
		cmd.Dir = dir
		cmd.Env = append(harness.Environment(), "PATH="+dir+":"+os.Getenv("PATH"))
		return cmd
	}
	run := func(line string, replace ...string) {
		t.Helper()
		if out, err := typed(line, replace...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	serve := typed("exec "+harness.CommandsOf(t, "docs/failover.md", "## Standby")[0],
		"/etc/service/litestream.yml", f.replica(f.one.Data), "30s", lease().String())
	serve.Env = append(serve.Env, "SERVICE_DATA="+f.one.Data, "SERVICE_LISTEN=127.0.0.1:0", "SERVICE_TLS=off", "SERVICE_ALLOW_HTTP=true",
		"SERVICE_ALLOW_DESTINATION=127.0.0.0/8")
	f.one.AwaitStandby(f.one.Launch(serve))
	found, err := filepath.Glob(filepath.Join(f.one.Data, "replaced-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("got the directories %v (%v), want one with the changes of the old primary", found, err)
	}
	if out, err := f.two.Command("doctor", "--data", f.one.Data); err != nil || !strings.Contains(out, found[0]) {
		t.Errorf("doctor: got %v, want %s\n%s", err, found[0], out)
	}
	steps := 0
	for _, block := range harness.CommandsOf(t, "docs/failover.md", "### After a failover") {
		if err := os.MkdirAll(copied, 0o700); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(block) {
			run(line, "/var/lib/service-webhooks/replaced-20260314T082448.644Z", found[0], "/var/tmp/old-primary", copied)
			steps++
		}
	}
	if steps != 3 {
		t.Errorf("got %d steps, want 3", steps)
	}
	events, err := harness.Feed[struct{ ID string }](f.two, f.token, "/v2/events")
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, e := range events {
		there[e.ID] = true
	}
	for id := range f.acked {
		if !there[id] {
			t.Errorf("the acknowledged event %s is missing", id)
		}
	}
}
