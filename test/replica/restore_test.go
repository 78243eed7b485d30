package replica

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/store"
	"service/store/datadir"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

const (
	restoreKills  = 25
	eventTypesDir = "event_types" // of a data directory
)

// TestRestoreKilled kills restores over existing data at random moments. The next command must find
// either all of the old data or all of the new data.
func TestRestoreKilled(t *testing.T) {
	harness.Long(t)
	r := &killedRestore{t: t, binary: harness.Build(t), dir: t.TempDir()}
	old, fresh := r.newData("old"), r.newData("fresh")
	r.file = filepath.Join(r.dir, "b.tar")
	r.run(nil, "backup", "create", r.file, "--data", fresh, "--without-keys")
	r.key = filepath.Join(r.dir, "key")
	if err := os.WriteFile(r.key, harness.Read(t, filepath.Join(fresh, secretKeyFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	// A restore replaces the data near its end.
	whole := r.run(nil, "restore", "--data", filepath.Join(r.dir, "whole"), "--from", r.file, "--secret-key-file", r.key)
	work := whole.SystemTime() + whole.UserTime()
	kills, replaced := 0, 0
	for n := range restoreKills {
		data := filepath.Join(r.dir, fmt.Sprint(n))
		if err := os.CopyFS(data, os.DirFS(old)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(data, secretKeyFile), 0o600); err != nil {
			t.Fatal(err)
		}
		before := work/2 + rand.N(work)
		used := func(pid int) bool { return harness.ProcessorTime(t, pid) >= before }
		if !r.run(used, "restore", "--data", data, "--from", r.file, "--force", "--secret-key-file", r.key).Exited() {
			kills++
		}
		if r.check(data) == "fresh" {
			replaced++
		}
	}
	t.Logf("killed %d of %d restores, %d took effect", kills, restoreKills, replaced)
}

// killedRestore restores an archive over existing data.
type killedRestore struct {
	t      *testing.T
	binary string
	dir    string
	file   string // the archive
	key    string // the file with the secret key of the archive's data
}

// newData creates a data directory with a program and an event type of the given name.
func (r *killedRestore) newData(name string) (data string) {
	t := r.t
	t.Helper()
	data = filepath.Join(r.dir, name)
	st, err := store.Open(t.Context(), store.Config{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = storetest.CreateToken(t.Context(), st, webhook.NewToken{ProgramID: name, UserID: "u", Scopes: webhook.Scopes()})
	if err := errors.Join(err, st.Close()); err != nil {
		t.Fatal(err)
	}
	types := filepath.Join(data, eventTypesDir)
	if err := os.Mkdir(types, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(types, "from_"+name+".json"), eventType(name), 0o600); err != nil {
		t.Fatal(err)
	}
	return data
}

// run runs the binary. It kills the process once kill, unless it is nil, returns true.
func (r *killedRestore) run(kill func(pid int) bool, args ...string) *os.ProcessState {
	r.t.Helper()
	cmd := exec.Command(r.binary, args...)
	cmd.Env = harness.Environment()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); cmd.Wait() }()
	if kill != nil {
		harness.WaitFor(r.t, "a part of the restore", func() bool {
			select {
			case <-ended:
				return true
			default:
				return kill(cmd.Process.Pid)
			}
		})
		cmd.Process.Kill()
	}
	<-ended
	if cmd.ProcessState.Exited() && !cmd.ProcessState.Success() {
		r.t.Fatalf("%v: %v\n%s", args, cmd.ProcessState, &out)
	}
	return cmd.ProcessState
}

// check opens a data directory after a killed restore and returns the name of the data in it.
func (r *killedRestore) check(data string) (whose string) {
	t := r.t
	t.Helper()
	if err := datadir.FinishRestore(data, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	types, err := filepath.Glob(filepath.Join(data, eventTypesDir, "*"))
	if err != nil || len(types) != 1 {
		t.Fatalf("the event types are %v, %v", types, err)
	}
	whose = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(types[0]), "from_"), ".json")
	if !bytes.Equal(harness.Read(t, types[0]), eventType(whose)) {
		t.Errorf("the event type of %s is incomplete", whose)
	}
	key := ""
	if whose == "fresh" {
		key = r.key
	}
	st, err := store.Open(t.Context(), store.Config{Dir: data, SecretKeyFile: key})
	if err != nil {
		t.Fatalf("after a killed restore: %v", err)
	}
	tokens, err := st.Tokens().List(t.Context())
	if err := errors.Join(err, st.Close()); err != nil {
		t.Fatal(err)
	}
	if len(tokens) != 1 || tokens[0].ProgramID != whose {
		t.Errorf("the event types are those of %s, but got tokens %v", whose, tokens)
	}
	left, err := filepath.Glob(filepath.Join(data, "restore*"))
	if err != nil || len(left) > 0 {
		t.Errorf("got temporary files %v, %v; want none", left, err)
	}
	return whose
}

// eventType returns the schema of an event type.
func eventType(name string) []byte {
	return []byte(strings.ReplaceAll(restoredType, "NAME", "from_"+name))
}

const restoredType = `{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"T","description":"D.","type":"object","properties":{
"id":{"type":"string","format":"uuid","description":"I."},"timestamp":{"type":"string","format":"date-time","description":"T."},
"name":{"const":"NAME","description":"N."},"version":{"const":"1","description":"V."}},"required":["id","timestamp","name","version"],
"additionalProperties":false,"examples":[{"id":"019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7","timestamp":"2026-03-14T08:24:48.644Z","name":"NAME","version":"1"}]}`
