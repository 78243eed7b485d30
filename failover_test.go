package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// TestFailOver has a standby follow a primary that is under load, and ends the
// primary: by SIGKILL, by stopping its clock, as a machine does that is paused,
// and in order. The standby serves soon after the lease has ended, with all but
// what the primary accepted last; and of two only one ever sends.
func TestFailOver(t *testing.T) {
	binary := buildBinary(t)
	for _, end := range []struct {
		name   string
		strike func(*testing.T, *failOver)
	}{
		{"killed", func(t *testing.T, f *failOver) { f.one.kill(f.primary) }},
		{"paused", func(t *testing.T, f *failOver) {
			if err := f.primary.process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			f.one.setBase("")
		}},
		{"stopped", func(t *testing.T, f *failOver) {
			if status := f.one.stop(f.primary); status != exitDone {
				t.Errorf("the primary ended with status %d", status)
			}
		}},
	} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			f := newFailOver(t, binary)
			f.publish(3 * time.Second)
			struck := time.Now()
			end.strike(t, f)
			f.check(struck, end.name == "stopped")
		})
	}
}

const failOverLease = "6s" // with attempts of at most one second

// failOver is a primary, its standby, and a subscriber.
type failOver struct {
	t       *testing.T
	bucket  string // the URL of the S3 server
	one     *instance
	two     *instance
	primary *serviceRun
	standby *serviceRun
	token   string

	mu       sync.Mutex
	acked    map[string]time.Time   // when an event was acknowledged, by its id
	arrivals map[string][]time.Time // by delivery
	events   map[string]bool        // that have arrived
}

func newFailOver(t *testing.T, binary string) *failOver {
	backend := s3mem.New()
	if err := backend.CreateBucket("b"); err != nil {
		t.Fatal(err)
	}
	s3 := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(s3.Close)
	f := &failOver{t: t, bucket: s3.URL, acked: make(map[string]time.Time), arrivals: make(map[string][]time.Time), events: make(map[string]bool)}
	f.one, f.two = f.instance(binary), f.instance(binary)
	f.token = f.one.token("p")
	f.primary = f.one.mustStart()
	f.one.subscribe(f.token, newSubscription{URL: listenLoopback(t, f), Events: eventList("content_published")})
	key, err := os.ReadFile(filepath.Join(f.one.data, "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.two.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.two.data, "secret.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	f.standby = f.two.launch(f.command(f.two, "standby"))
	return f
}

// instance returns a service that is not started, with its replica in the bucket.
func (f *failOver) instance(binary string) *instance {
	data := filepath.Join(f.t.TempDir(), "data")
	replica := filepath.Join(f.t.TempDir(), "litestream.yml")
	text := fmt.Sprintf("dbs:\n  - path: %s/service.db\n    monitor-interval: 100ms\n    replica:\n      type: s3\n      bucket: b\n      endpoint: %s\n      access-key-id: id\n      secret-access-key: secret\n      sync-interval: 200ms\n", data, f.bucket)
	if err := os.WriteFile(replica, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return newInstance(f.t, binary, data, "--litestream", replica, "--lease", failOverLease, "--attempt-timeout", "1s", "--batch-size", "5", "--grace", "2s")
}

// command is one of the service on an instance's data, with its flags.
func (f *failOver) command(in *instance, name string, more ...string) *exec.Cmd {
	args := append([]string{name, "--data", in.data, "--listen", "127.0.0.1:0", "--tls", "off", "--allow-http", "--allow-destination", "127.0.0.0/8", "--rate-limit", "0"}, in.flags...)
	cmd := exec.Command(in.binary, append(args, more...)...)
	cmd.Env = cleanEnvironment()
	return cmd
}

// ServeHTTP is the subscriber.
func (f *failOver) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	now := time.Now()
	var body struct {
		ID     string `json:"delivery_id"`
		Events []struct{ ID, Name string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrivals[body.ID] = append(f.arrivals[body.ID], now)
	for _, e := range body.Events {
		f.events[e.ID] = true
	}
}

// publish publishes to the primary for so long, and until the standby follows.
func (f *failOver) publish(d time.Duration) {
	f.t.Helper()
	base, _ := f.one.await(f.t.Context())
	following := func() bool {
		_, err := os.Stat(filepath.Join(f.two.data, "standby", "service.db-txid"))
		return err == nil
	}
	for began := time.Now(); time.Since(began) < d || !following(); {
		if time.Since(began) > 30*time.Second {
			f.t.Fatal("the standby does not follow")
		}
		var answer struct{ Data struct{ ID string } }
		status, err := f.one.call(f.t.Context(), f.token, "POST", base+"/v2/events", []byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`), &answer)
		if err != nil || status != http.StatusCreated {
			f.t.Fatalf("publish: status %d, %v", status, err)
		}
		f.mu.Lock()
		f.acked[answer.Data.ID] = time.Now()
		f.mu.Unlock()
	}
}

var attemptLine = regexp.MustCompile(`msg=attempt .*delivery=(\S+) number=(\d+)`)

// check waits for the standby to take over, and holds what has come of it
// against the promises.
func (f *failOver) check(struck time.Time, orderly bool) {
	t := f.t
	lease := f.lease()
	if !f.two.awaitReady(f.standby) {
		t.Fatalf("the standby has ended with status %d:\n%s", f.standby.status, &f.standby.log)
	}
	late := f.standby.ready.Sub(lease)
	if late > 10*time.Second {
		t.Errorf("the standby serves %s after the end of the lease, want at most 10 s", late)
	}
	if !orderly && late < 0 {
		t.Errorf("the standby serves %s before the end of the lease", -late)
	}
	there := make(map[string]bool)
	events, err := feed[struct{ ID string }](f.two, f.token, "/v2/events")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		there[e.ID] = true
	}
	lost, oldest := 0, time.Duration(0)
	for id, at := range f.acked {
		if !there[id] {
			lost++
			oldest = max(oldest, struck.Sub(at))
		}
	}
	t.Logf("%d events acknowledged, %d of them lost, the first accepted %s before the end; the standby served %s after it, %s after the end of the lease",
		len(f.acked), lost, oldest.Round(time.Millisecond), f.standby.ready.Sub(struck).Round(time.Millisecond), late.Round(time.Millisecond))
	if oldest > 2*time.Second {
		t.Errorf("an event is lost that was accepted %s before the end, want at most 2 s", oldest)
	}
	if orderly && lost > 0 {
		t.Errorf("%d acknowledged events are lost though the primary ended in order", lost)
	}

	if !orderly {
		f.primary.process.Signal(syscall.SIGCONT) // a paused one goes on as if nothing had been
		select {
		case <-f.primary.exited:
		case <-time.After(20 * time.Second):
			t.Fatal("the primary that was paused goes on")
		}
		if f.primary.status == exitDone {
			t.Errorf("the primary that lost its lease ended with status 0:\n%s", &f.primary.log)
		}
	}
	// Whatever has arrived since the standby serves, the standby has sent.
	f.until("all events that are there arrive", func() bool {
		for id := range there {
			if !f.events[id] {
				return false
			}
		}
		return true
	})
	if status := f.two.stop(f.standby); status != exitDone {
		t.Errorf("the standby ended with status %d:\n%s", status, &f.standby.log)
	}
	sent := make(map[string]int)
	for _, m := range attemptLine.FindAllSubmatch(f.standby.log.Bytes(), -1) {
		sent[string(m[1])]++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, times := range f.arrivals {
		n := 0
		for _, at := range times {
			if at.After(f.standby.ready) {
				n++
			}
		}
		if n > sent[id] {
			t.Errorf("delivery %s arrived %d times since the standby serves, which has sent it %d times", id, n, sent[id])
		}
	}
	// The old primary knows that it is old.
	out, err := exec.Command(f.one.binary, append(f.command(f.one, "serve").Args[1:], "--log-level", "error")...).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("has taken over since")) {
		t.Errorf("the old primary started again: %v\n%s", err, out)
	}
}

func (f *failOver) until(what string, ok func() bool) {
	f.t.Helper()
	deadline := time.After(30 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		f.mu.Lock()
		done := ok()
		f.mu.Unlock()
		if done {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			f.t.Fatalf("did not come: %s\n%s", what, &f.standby.log)
		}
	}
}

// lease is when the lease in the bucket ends.
func (f *failOver) lease() time.Time {
	f.t.Helper()
	resp, err := http.Get(f.bucket + "/b/lock.json")
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	var lease struct {
		Expires time.Time `json:"expires_at"`
	}
	if err := json.Unmarshal(text, &lease); err != nil {
		f.t.Fatalf("%v: %s", err, text)
	}
	return lease.Expires
}

// A standby is promoted by hand when the primary has ended, and not before; and
// has everything though it was killed itself, again and again, while it followed.
func TestPromote(t *testing.T) {
	f := newFailOver(t, buildBinary(t))
	f.publish(0)
	for range 3 {
		f.two.kill(f.standby)
		f.publish(200 * time.Millisecond) // while there is none
		f.standby = f.two.launch(f.command(f.two, "standby"))
		f.publish(400 * time.Millisecond) // while it begins again
	}
	promote := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, f.one.binary, "promote", "--data", f.two.data).CombinedOutput()
		return string(out), err
	}
	if out, err := promote(); err == nil || !strings.Contains(out, "holds the lease") {
		t.Errorf("beside a primary: %v, %s", err, out)
	}
	if out, err := exec.Command(f.one.binary, "token", "list", "--data", f.two.data).CombinedOutput(); err == nil || !strings.Contains(string(out), "standby") {
		t.Errorf("token list of a standby: %v, %s", err, out)
	}
	if status := f.one.stop(f.primary); status != exitDone {
		t.Errorf("the primary ended with status %d", status)
	}
	if out, err := promote(); err != nil || !strings.Contains(out, "primary now") {
		t.Fatalf("promote: %v, %s", err, out)
	}
	if !f.two.awaitReady(f.standby) {
		t.Fatalf("the standby has ended:\n%s", &f.standby.log)
	}
	if events, err := feed[struct{ ID string }](f.two, f.token, "/v2/events"); err != nil || len(events) != len(f.acked) {
		t.Errorf("it has %d events, %v, want %d", len(events), err, len(f.acked))
	}
}
