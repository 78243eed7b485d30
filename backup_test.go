package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/internal/archive"
	"service/store"
	"service/webhook"
)

// testBackup backs a service up while publishers publish, loses the service, its
// data directory and all, and restores it: whatever was acknowledged before the
// backup began is there, the token, the credentials and the signing secret are
// as they were, what was owed is delivered, and no secret is in the archive.
func testBackup(t *testing.T, binary string) {
	var mu sync.Mutex
	var got []*http.Request // with their bodies, in the order of arrival
	var bodies [][]byte
	var down atomic.Bool
	url := listenLoopback(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		got, bodies = append(got, r), append(bodies, body)
	}))
	dir := t.TempDir()
	data, passphrase, file := filepath.Join(dir, "data"), filepath.Join(dir, "passphrase"), filepath.Join(dir, "b.tar")
	if err := os.WriteFile(passphrase, []byte("correct horse battery\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := newInstance(t, binary, data, "--retry-schedule", "3s,3s,3s,3s", "--alert-url", url+"/alerts")
	command := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(cleanEnvironment(), "SERVICE_BACKUP_PASSPHRASE_FILE="+passphrase)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	token := in.token("acme")
	in.mustStart()
	base, _ := in.await(t.Context())
	authorization := "Bearer " + random(32)
	var made struct {
		Data struct {
			ID            string
			SigningSecret string `json:"signing_secret"`
		}
	}
	status, err := in.call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions", map[string]any{
		"url": url, "events": eventList("content_published"), "authorization_header": authorization,
	}, &made)
	if err != nil || status != http.StatusCreated {
		t.Fatalf("create a subscription: status %d, %v", status, err)
	}
	waitUntil(t, "the ping arrives", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 1 })

	// What is published now is owed when the backup is made.
	down.Store(true)
	publish := func(ctx context.Context, id string, header ...string) int {
		body := fmt.Sprintf(`{"id":%q,"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`, id)
		req, err := http.NewRequestWithContext(ctx, "POST", base+"/v2/events", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := in.client.Do(req)
		if err != nil {
			return 0
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode
	}
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	owed := webhook.NewID()
	if got := publish(t.Context(), owed, "traceparent", "00-"+trace+"-00f067aa0ba902b7-01"); got != http.StatusCreated {
		t.Fatalf("publish: status %d", got)
	}
	var acknowledged []string // before the backup is asked for
	asked := make(chan struct{})
	working, rest := context.WithCancel(t.Context())
	var work sync.WaitGroup
	var beside atomic.Int64
	for range 4 {
		work.Go(func() {
			for working.Err() == nil {
				id := webhook.NewID()
				if publish(working, id) != http.StatusCreated {
					continue
				}
				select {
				case <-asked:
					beside.Add(1)
				default:
					mu.Lock()
					acknowledged = append(acknowledged, id)
					mu.Unlock()
				}
			}
		})
	}
	waitUntil(t, "events are acknowledged", func() bool { mu.Lock(); defer mu.Unlock(); return len(acknowledged) > 200 })
	mu.Lock()
	want := append([]string{owed}, acknowledged...)
	mu.Unlock()
	close(asked)
	command("backup", "create", file, "--data", data)
	rest()
	work.Wait()
	if beside.Load() == 0 {
		t.Error("nothing was published while the backup was made")
	}
	if out := command("backup", "verify", file); !strings.Contains(out, "they open the secrets") {
		t.Errorf("verify says: %s", out)
	}

	// Nothing secret is in it.
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	text := read(file)
	for name, secret := range map[string]string{
		"the token": token, "the authorization header": authorization, "the signing secret": strings.TrimPrefix(made.Data.SigningSecret, "whsec_"),
		"the secret key": strings.TrimSpace(string(read(filepath.Join(data, archive.SecretKeyFile)))),
		"alert.secret":   strings.TrimPrefix(strings.TrimSpace(string(read(filepath.Join(data, alertSecretFile)))), "whsec_"),
		"the passphrase": "correct horse battery",
	} {
		c := newCanary(name, secret, secret[len(secret)-16:], nil)
		if where := c.found(text); where != "" {
			t.Errorf("%s is in the archive (%s)", name, where)
		}
	}

	in.kill(in.last())
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	command("restore", "--data", data, "--from", file)
	down.Store(false)
	in.mustStart()
	base, _ = in.await(t.Context())

	verifier, err := standardwebhooks.NewWebhook(made.Data.SigningSecret)
	if err != nil {
		t.Fatal(err)
	}
	arrived := func(id string) (r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for i, body := range bodies {
			if bytes.Contains(body, []byte(`{"id":"`+id+`"`)) {
				r = got[i]
				if err := verifier.Verify(body, r.Header); err != nil {
					t.Errorf("the signature of what was sent after the restoration: %v", err)
				}
				if got := r.Header.Get("Authorization"); got != authorization {
					t.Error("what was sent after the restoration has another Authorization header")
				}
			}
		}
		return r
	}
	waitUntil(t, "what was owed arrives", func() bool { return arrived(owed) != nil })
	if sent := webhook.ParseTrace(arrived(owed).Header["Traceparent"]); sent.ID() != trace {
		t.Errorf("it was sent in the trace %q, want %s", sent, trace)
	}
	later := webhook.NewID()
	if got := publish(t.Context(), later); got != http.StatusCreated {
		t.Fatalf("publish with the old token: status %d", got)
	}
	waitUntil(t, "an event of today arrives", func() bool { return arrived(later) != nil })
	for _, id := range want {
		if status, err := in.call(t.Context(), token, "GET", base+"/v2/events/"+id, nil, nil); err != nil || status != http.StatusOK {
			t.Fatalf("of %d events that were acknowledged before the backup, %s is not there: status %d, %v", len(want), id, status, err)
		}
	}
	if status := in.stop(in.last()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	t.Logf("%d events were acknowledged before the backup and %d beside it; the archive has %d bytes", len(want), beside.Load(), len(text))
}

// waitUntil waits until something is so, for 20 s at the most.
func waitUntil(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !so(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// testRestoreKilled kills a restoration over other data at any moment. What
// opens the data directory next finds all of the old or all of the new.
func testRestoreKilled(t *testing.T, binary string) {
	dir := t.TempDir()
	state := func(name string) (data string) { // a data directory with one program of that name, and an event type
		t.Helper()
		data = filepath.Join(dir, name)
		st, err := store.Open(t.Context(), store.Config{Dir: data})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = st.CreateToken(t.Context(), webhook.NewToken{ProgramID: name, UserID: "u", Scopes: webhook.Scopes()})
		if err := errors.Join(err, st.Close()); err != nil {
			t.Fatal(err)
		}
		types := filepath.Join(data, archive.EventTypesDir)
		schema := strings.ReplaceAll(restoredType, "NAME", "from_"+name)
		if err := os.Mkdir(types, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(types, "from_"+name+".json"), []byte(schema), 0o600); err != nil {
			t.Fatal(err)
		}
		return data
	}
	old, fresh := state("old"), state("fresh")
	file := filepath.Join(dir, "b.tar")
	run := func(after time.Duration, args ...string) (killed bool) {
		t.Helper()
		cmd := exec.Command(binary, args...)
		cmd.Env = cleanEnvironment()
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop := time.AfterFunc(after, func() { cmd.Process.Kill() })
		err := cmd.Wait()
		if stop.Stop() && err != nil {
			t.Fatalf("%v: %v\n%s", args, err, &out)
		}
		return err != nil
	}
	run(time.Minute, "backup", "create", file, "--data", fresh, "--without-keys")
	key := filepath.Join(dir, "key") // of what is restored; the old data have their own
	b, err := os.ReadFile(filepath.Join(fresh, archive.SecretKeyFile))
	if err == nil {
		err = os.WriteFile(key, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	// The moment of the exchange is near the end of the time it takes.
	whole := time.Now()
	run(time.Minute, "restore", "--data", filepath.Join(dir, "whole"), "--from", file, "--secret-key-file", key)
	took := time.Since(whole)
	kills, replaced := 0, 0
	for n := range 25 {
		data := filepath.Join(dir, fmt.Sprint(n))
		if err := os.CopyFS(data, os.DirFS(old)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(data, archive.SecretKeyFile), 0o600); err != nil {
			t.Fatal(err)
		}
		if run(took/2+rand.N(took), "restore", "--data", data, "--from", file, "--force", "--secret-key-file", key) {
			kills++
		}
		if err := store.FinishRestore(data, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		types, err := loadCatalog(data)
		if err != nil {
			t.Fatal(err)
		}
		named := ""
		if _, err := os.Stat(filepath.Join(data, archive.EventTypesDir, "from_fresh.json")); err == nil {
			named = key
			replaced++
		}
		st, err := store.Open(t.Context(), store.Config{Dir: data, SecretKeyFile: named})
		if err != nil {
			t.Fatalf("after a restoration that was killed: %v", err)
		}
		tokens, err := st.Tokens(t.Context())
		if err := errors.Join(err, st.Close()); err != nil {
			t.Fatal(err)
		}
		want := "old"
		if named != "" {
			want = "fresh"
		}
		if len(tokens) != 1 || tokens[0].ProgramID != want || !types.Has("from_"+want) {
			t.Errorf("the event types are those of %s, and the tokens %v", want, tokens)
		}
		left, err := filepath.Glob(filepath.Join(data, "restore*"))
		if err != nil || len(left) > 0 {
			t.Errorf("there is left %v, %v", left, err)
		}
	}
	t.Logf("%d of 25 restorations were killed, %d took effect", kills, replaced)
}

const restoredType = `{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"T","description":"D.","type":"object","properties":{
"id":{"type":"string","format":"uuid","description":"I."},"timestamp":{"type":"string","format":"date-time","description":"T."},
"name":{"const":"NAME","description":"N."},"version":{"const":"1","description":"V."}},"required":["id","timestamp","name","version"],
"additionalProperties":false,"examples":[{"id":"019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7","timestamp":"2026-03-14T08:24:48.644Z","name":"NAME","version":"1"}]}`
