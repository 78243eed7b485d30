package failover

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"service/test/harness"
)

// TestFailOver has a standby follow a primary that is under load, and ends the
// primary: by SIGKILL, by stopping its clock, as a machine does that is paused,
// and in order. The standby serves soon after the lease has ended, with all but
// what the primary accepted last; and of two only one ever sends.
func TestFailOver(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	for _, end := range []struct {
		name   string
		strike func(*testing.T, *failOver)
	}{
		{"killed", func(t *testing.T, f *failOver) { f.one.Kill(f.primary) }},
		{"paused", func(t *testing.T, f *failOver) {
			if err := f.primary.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			f.one.SetURL("")
		}},
		{"stopped", func(t *testing.T, f *failOver) {
			if status := f.one.Stop(f.primary); status != harness.ExitOK {
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

// lease is how long a lease lasts: less than an attempt may take.
var lease = harness.Scale(6 * time.Second)

// slowFiles is one whose upload the shutdown cuts off, and two that take longer than a
// lease.
const slowFiles = 3

// failOver is a primary, its standby, and a subscriber.
type failOver struct {
	t       *testing.T
	bucket  string       // the URL of the S3 server
	down    atomic.Bool  // which answers nothing
	slow    atomic.Bool  // which takes two thirds of a lease for each of slowFiles
	slowed  atomic.Int64 // requests that were slow
	hang    atomic.Bool  // the subscriber does not answer
	one     *harness.Instance
	two     *harness.Instance
	primary *harness.Process
	standby *harness.Process
	token   string

	mu       sync.Mutex
	acked    map[string]time.Time   // when an event was acknowledged, by its id
	arrivals map[string][]time.Time // by delivery
	hung     int                    // requests that were not answered
	cut      []time.Time            // when those ended
	events   map[string]bool        // that have arrived
}

func newFailOver(t *testing.T, binary string, flags ...string) *failOver {
	backend := s3mem.New()
	if err := backend.CreateBucket("b"); err != nil {
		t.Fatal(err)
	}
	f := &failOver{t: t, acked: make(map[string]time.Time), arrivals: make(map[string][]time.Time), events: make(map[string]bool)}
	server := gofakes3.New(backend).Server()
	s3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.down.Load() && r.Header.Get(observer) == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if f.slow.Load() && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, ".ltx") && f.slowed.Add(1) <= slowFiles {
			select {
			case <-time.After(lease * 2 / 3):
			case <-r.Context().Done():
				return
			}
		}
		server.ServeHTTP(w, r)
	}))
	t.Cleanup(s3.Close)
	f.bucket = s3.URL
	f.one, f.two = f.instance(binary, flags...), f.instance(binary, flags...)
	f.token = f.one.Token("p")
	f.primary = f.one.MustStart()
	f.one.Subscribe(f.token, harness.Subscription{URL: harness.Listen(t, f), Events: harness.Events("content_published")})
	key, err := os.ReadFile(filepath.Join(f.one.Data, "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.two.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.two.Data, "secret.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	f.standby = f.two.Launch(f.command(f.two, "standby"))
	return f
}

// instance returns a service that is not started, with its replica in the bucket.
func (f *failOver) instance(binary string, flags ...string) *harness.Instance {
	data := filepath.Join(f.t.TempDir(), "data")
	return harness.NewInstance(f.t, binary, data, append([]string{"--litestream", f.replica(data), "--lease", lease.String(), "--batch-size", "5", "--grace", "2s"}, flags...)...)
}

// replica returns a configuration file for a data directory, with its replica in
// the bucket.
func (f *failOver) replica(data string) (name string) {
	name = filepath.Join(f.t.TempDir(), "litestream.yml")
	text := fmt.Sprintf("shutdown-sync-timeout: %s\ndbs:\n  - path: %s/service.db\n    monitor-interval: 100ms\n    replica:\n      type: s3\n      bucket: b\n      endpoint: %s\n      access-key-id: id\n      secret-access-key: secret\n      sync-interval: 200ms\n", 10*lease, data, f.bucket)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return name
}

// TestBucketOutage makes the bucket unavailable to a primary and its standby for
// longer than the lease. The primary stops accepting when its lease expires, and
// continues when the bucket is back: the standby does not take over, and no
// acknowledged event is lost.
func TestBucketOutage(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(time.Second)
	accepts := func() bool {
		var answer struct{ Data struct{ ID string } }
		status, err := f.one.Call(t.Context(), f.token, "POST", f.one.URL()+"/v2/events", []byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`), &answer)
		if err != nil || status != http.StatusCreated && status != http.StatusServiceUnavailable {
			t.Fatalf("publish: status %d, %v", status, err)
		}
		if status == http.StatusCreated {
			f.acked[answer.Data.ID] = time.Now()
		}
		return status == http.StatusCreated
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(adminPassword), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := f.one.Command("admin", "create", "--data", f.one.Data, "--email", adminEmail, "--password-file", password); err != nil {
		t.Fatalf("admin create: %v\n%s", err, out)
	}
	f.hang.Store(true)
	harness.WaitFor(t, "an attempt that hangs", func() bool {
		accepts()
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.hung > 0
	})
	f.down.Store(true)
	began := time.Now()
	harness.WaitFor(t, "the end of the primary's lease", func() bool { return !accepts() })
	f.checkOutage()
	harness.WaitFor(t, "the end of the outage", func() bool { return time.Since(began) > 2*lease })
	f.checkSilence()
	f.hang.Store(false)
	f.down.Store(false)
	harness.WaitFor(t, "the primary to accept again", accepts)
	again := time.Now()
	harness.WaitFor(t, "a whole lease after the outage", func() bool { accepts(); return time.Since(again) > lease })
	select {
	case base := <-f.standby.URL:
		t.Fatalf("the standby serves at %s though the primary lives", base)
	case <-f.standby.Exited:
		t.Fatalf("the standby has ended:\n%s", &f.standby.Log)
	default:
	}
	events, err := harness.Feed[struct{ ID string }](f.one, f.token, "/v2/events")
	missing := maps.Clone(f.acked)
	for _, e := range events {
		delete(missing, e.ID)
	}
	// The one that was refused because the lease ended while it was stored may be there.
	if more := len(events) - len(f.acked); err != nil || len(missing) > 0 || more > 1 {
		t.Errorf("%d events are there, %v, without %d of the %d that were acknowledged", len(events), err, len(missing), len(f.acked))
	}
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("the primary ended with status %d:\n%s", status, &f.primary.Log)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby has ended with status %d:\n%s", f.standby.Status, &f.standby.Log)
	}
	f.checkLost(time.Now(), true)
}

// An admin of the primary.
const (
	adminEmail    = "ana@example.com"
	adminPassword = "correct horse battery staple"
)

// observer is a header of requests to the bucket that an outage does not concern.
const observer = "X-Observer"

// checkOutage checks the answers of a primary whose lease has ended because the
// bucket does not answer.
func (f *failOver) checkOutage() {
	t := f.t
	t.Helper()
	for _, test := range []struct {
		method, path, contentType, body string
		want                            int
		text                            string
	}{
		{"POST", "/v2/events", "application/json", `{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`, http.StatusServiceUnavailable, "Nothing can be stored just now"},
		{"POST", "/sign-in", "application/x-www-form-urlencoded", "email=" + adminEmail + "&password=" + url.QueryEscape(adminPassword), http.StatusServiceUnavailable, "has no lease"},
		{"GET", "/readyz", "", "", http.StatusServiceUnavailable, "lease"},
		{"GET", "/healthz", "", "", http.StatusOK, ""},
		{"GET", "/v2/events", "", "", http.StatusOK, ""},
	} {
		req, err := http.NewRequest(test.method, f.one.URL()+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.token)
		if test.contentType != "" {
			req.Header.Set("Content-Type", test.contentType)
		}
		resp, err := f.one.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		after := resp.Header.Get("Retry-After")
		if resp.StatusCode != test.want || (after != "") != (test.want == http.StatusServiceUnavailable) || !strings.Contains(string(body), test.text) {
			t.Errorf("%s %s without the lease: %s, Retry-After %q, want %d\n%s", test.method, test.path, resp.Status, after, test.want, body)
		}
	}
}

// checkSilence checks that the attempts in flight were cut off when the primary's
// lease ended, and that none began after that.
func (f *failOver) checkSilence() {
	f.t.Helper()
	ends := f.leaseEnd()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cut) != f.hung {
		f.t.Errorf("%d of %d attempts in flight were cut off", len(f.cut), f.hung)
	}
	for _, at := range f.cut {
		f.t.Logf("an attempt in flight was cut off %s before the end of the lease", ends.Sub(at).Round(time.Millisecond))
		if at.After(ends) {
			f.t.Errorf("an attempt in flight was cut off %s after the end of the lease", at.Sub(ends))
		}
	}
	for id, times := range f.arrivals {
		for _, at := range times {
			if at.After(ends) {
				f.t.Errorf("delivery %s arrived %s after the end of the lease", id, at.Sub(ends))
			}
		}
	}
}

// TestSlowShutdown stops a primary whose last upload, of several files, takes longer
// than the lease. It keeps the lease until the end of the upload, and releases it then:
// the standby has everything.
func TestSlowShutdown(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(time.Second)
	f.slow.Store(true)
	f.publish(50 * time.Millisecond)
	harness.WaitFor(t, "the upload of a first file", func() bool { return f.slowed.Load() > 0 })
	f.publish(50 * time.Millisecond)
	began := time.Now()
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("the primary ended with status %d:\n%s", status, &f.primary.Log)
	}
	if took := time.Since(began); took < lease {
		t.Errorf("the shutdown took %s, which is less than a lease: this test tests nothing", took)
	}
	f.slow.Store(false)
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby has ended with status %d:\n%s", f.standby.Status, &f.standby.Log)
	}
	f.checkLost(time.Now(), true)
}

// TestRestart kills a primary and starts it again: it has its lease at once. A
// service on a copy of its data directory does not get the lease.
func TestRestart(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(0)
	if status := f.two.Stop(f.standby); status != harness.ExitOK {
		t.Errorf("the standby ended with status %d:\n%s", status, &f.standby.Log)
	}
	f.one.Kill(f.primary)
	data := filepath.Join(t.TempDir(), "data")
	if err := harness.Exec("cp", "-a", f.one.Data, data); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	f.primary = f.one.MustStart()
	if took := time.Since(started); took > lease {
		t.Errorf("the primary serves after %s, want it to have its lease at once", took)
	}
	out, err := f.one.Command("serve", "--data", data, "--listen", "127.0.0.1:0", "--litestream", f.replica(data), "--lease", lease.String())
	if err == nil || !strings.Contains(out, "another service holds the lease") && !strings.Contains(out, "has taken over since") {
		t.Errorf("serve on a copy of the data: %v, want a refusal\n%s", err, out)
	}
	events, err := harness.Feed[struct{ ID string }](f.one, f.token, "/v2/events")
	missing := maps.Clone(f.acked)
	for _, e := range events {
		delete(missing, e.ID)
	}
	// The one that was refused because the lease ended while it was stored may be there.
	if more := len(events) - len(f.acked); err != nil || len(missing) > 0 || more > 1 {
		t.Errorf("%d events are there, %v, without %d of the %d that were acknowledged", len(events), err, len(missing), len(f.acked))
	}
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("the primary ended with status %d:\n%s", status, &f.primary.Log)
	}
}

// TestServeWithoutLease starts a second service, without --lease, on the replica
// of a primary. It refuses, and says who holds the lease.
func TestServeWithoutLease(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	other := filepath.Join(t.TempDir(), "data")
	replica := f.replica(other)
	host, hostErr := os.Hostname()
	out, err := f.one.Command("serve", "--data", other, "--listen", "127.0.0.1:0", "--litestream", replica)
	if err == nil || hostErr != nil || !strings.Contains(out, "another service holds the lease: "+host) {
		t.Errorf("serve without --lease beside a primary: %v, want a refusal that names %s\n%s", err, host, out)
	}
	f.publish(0)
	// A primary that is gone is named too, and does not make it serve.
	if status := f.two.Stop(f.standby); status != harness.ExitOK {
		t.Errorf("the standby ended with status %d:\n%s", status, &f.standby.Log)
	}
	f.one.Kill(f.primary)
	out, err = f.one.Command("serve", "--data", other, "--listen", "127.0.0.1:0", "--litestream", replica)
	if err == nil || !strings.Contains(out, "does not renew it: "+host) || !strings.Contains(out, "start this one with --lease") {
		t.Errorf("serve without --lease after the end of a primary: %v, want a refusal that names %s\n%s", err, host, out)
	}
}

// TestServeTakesOver starts a service on a restored copy after its primary was
// killed, whose clock was a day ahead: it takes the lease over when it has seen it
// unchanged for a whole period.
func TestServeTakesOver(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(0)
	if status := f.two.Stop(f.standby); status != harness.ExitOK {
		t.Errorf("the standby ended with status %d:\n%s", status, &f.standby.Log)
	}
	key := harness.Read(t, filepath.Join(f.one.Data, "secret.key"))
	f.one.Kill(f.primary)
	f.setLeaseEnd(24 * time.Hour)
	three := f.instance(f.one.Binary)
	if err := os.MkdirAll(three.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(three.Data, "secret.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	p := three.MustStart()
	if took := p.Ready.Sub(p.Started); took < lease {
		t.Errorf("it serves after %s, want at least the %s of the lease", took, lease)
	} else if took > harness.Scale(lease+6*time.Second) {
		t.Errorf("it serves after %s, want at most the %s of the lease and 6 s", took, lease)
	}
	three.MustStop(p)
	log := p.Log.String()
	watches, restores := strings.Index(log, "checking whether it renews the lease"), strings.Index(log, "restored the missing database from the replica")
	if watches < 0 || restores < watches {
		t.Errorf("it restored the database before it had the lease:\n%s", log)
	}
}

// command returns a command of the service on an instance's data, with its flags.
func (f *failOver) command(in *harness.Instance, name string, more ...string) *exec.Cmd {
	cmd := exec.Command(in.Binary, append(in.Args(name), more...)...)
	cmd.Env = harness.Environment()
	return cmd
}

// ServeHTTP is the subscriber.
func (f *failOver) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	now := time.Now()
	if f.hang.Load() {
		defer func() {
			<-r.Context().Done()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.cut = append(f.cut, time.Now())
		}()
	}
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
	if f.hang.Load() {
		f.hung++
	}
	for _, e := range body.Events {
		f.events[e.ID] = true
	}
}

// publish publishes to the primary for so long, and until the standby follows.
func (f *failOver) publish(d time.Duration) {
	f.t.Helper()
	base := f.one.URL()
	following := func() bool {
		_, err := os.Stat(filepath.Join(f.two.Data, "standby", "service.db-txid"))
		return err == nil
	}
	for began := time.Now(); time.Since(began) < d || !following(); {
		if time.Since(began) > harness.Timeout() {
			f.t.Fatal("the standby does not follow")
		}
		var answer struct{ Data struct{ ID string } }
		status, err := f.one.Call(f.t.Context(), f.token, "POST", base+"/v2/events", []byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`), &answer)
		if err != nil || status != http.StatusCreated {
			f.t.Fatalf("publish: status %d, %v", status, err)
		}
		f.mu.Lock()
		f.acked[answer.Data.ID] = time.Now()
		f.mu.Unlock()
	}
}

var attemptLine = regexp.MustCompile(`msg=attempt .*delivery=(\S+) number=(\d+)`)

// check waits for the standby to take over, and checks what it has and sends.
func (f *failOver) check(struck time.Time, orderly bool) {
	t := f.t
	t.Helper()
	expires := f.leaseEnd()
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby has ended with status %d:\n%s", f.standby.Status, &f.standby.Log)
	}
	late := f.standby.Ready.Sub(expires)
	if took, most := f.standby.Ready.Sub(struck), lease+harness.Scale(4*time.Second); took > most {
		t.Errorf("the standby serves %s after the end of the primary, want at most %s", took, most)
	}
	if !orderly && late < 0 {
		t.Errorf("the standby serves %s before the end of the lease", -late)
	}
	there := f.checkLost(struck, orderly)
	t.Logf("the standby served %s after the end of the primary, %s after the end of the lease", f.standby.Ready.Sub(struck).Round(time.Millisecond), late.Round(time.Millisecond))
	if !orderly {
		f.primary.Signal(syscall.SIGCONT) // a paused one goes on as if nothing had happened
		f.primary.Wait(t)
		if f.primary.Status == harness.ExitOK {
			t.Errorf("the primary that lost its lease ended with status 0:\n%s", &f.primary.Log)
		}
	}
	harness.WaitFor(t, "the arrival of all events that are there", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for id := range there {
			if !f.events[id] {
				return false
			}
		}
		return true
	})
	if status := f.two.Stop(f.standby); status != harness.ExitOK {
		t.Errorf("the standby ended with status %d:\n%s", status, &f.standby.Log)
	}
	f.checkSent()
	// The old primary knows that it is old.
	out, err := f.command(f.one, "serve", "--log-level", "error").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("has taken over since")) {
		t.Errorf("the old primary started again: %v\n%s", err, out)
	}
}

// checkLost returns the events that the standby has, and checks that those that
// were lost were accepted at most 2 s before the primary was struck.
func (f *failOver) checkLost(struck time.Time, orderly bool) (there map[string]bool) {
	t := f.t
	t.Helper()
	there = make(map[string]bool)
	events, err := harness.Feed[struct{ ID string }](f.two, f.token, "/v2/events")
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
	t.Logf("%d events acknowledged, %d of them lost, the first accepted %s before the end", len(f.acked), lost, oldest.Round(time.Millisecond))
	if oldest > harness.Scale(2*time.Second) {
		t.Errorf("an event is lost that was accepted %s before the end, want at most %s", oldest, harness.Scale(2*time.Second))
	}
	if orderly && lost > 0 {
		t.Errorf("%d acknowledged events are lost though the primary was shut down in order", lost)
	}
	return there
}

// checkSent checks that the standby has sent everything that has arrived since it
// serves.
func (f *failOver) checkSent() {
	f.t.Helper()
	sent := make(map[string]int)
	for _, m := range attemptLine.FindAllSubmatch(f.standby.Log.Bytes(), -1) {
		sent[string(m[1])]++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, times := range f.arrivals {
		n := 0
		for _, at := range times {
			if at.After(f.standby.Ready) {
				n++
			}
		}
		if n > sent[id] {
			f.t.Errorf("delivery %s arrived %d times since the standby serves, which has sent it %d times", id, n, sent[id])
		}
	}
}

// setLeaseEnd changes when the lease in the bucket expires, by the clock of its
// holder.
func (f *failOver) setLeaseEnd(after time.Duration) {
	f.t.Helper()
	object := f.leaseObject()
	object["expires_at"] = time.Now().Add(after)
	text, err := json.Marshal(object)
	if err != nil {
		f.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPut, f.bucket+"/b/lock.json", bytes.NewReader(text))
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		f.t.Fatal(resp.Status)
	}
}

// leaseEnd returns when the lease in the bucket expires.
func (f *failOver) leaseEnd() time.Time {
	f.t.Helper()
	expires, err := time.Parse(time.RFC3339Nano, fmt.Sprint(f.leaseObject()["expires_at"]))
	if err != nil {
		f.t.Fatal(err)
	}
	return expires
}

// openStream begins a request of the primary, for events that never come.
func (f *failOver) openStream() (io.Closer, error) {
	body, events := io.Pipe()
	req, err := http.NewRequest(http.MethodPost, f.one.URL()+"/v2/events", body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	req.Header.Set("Content-Type", "application/x-ndjson")
	go func() {
		if resp, err := f.one.Client.Do(req); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	_, err = events.Write([]byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}` + "\n"))
	return events, err
}

// leaseObject returns the lease in the bucket.
func (f *failOver) leaseObject() (object map[string]any) {
	f.t.Helper()
	req, err := http.NewRequest(http.MethodGet, f.bucket+"/b/lock.json", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set(observer, "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := json.Unmarshal(text, &object); err != nil {
		f.t.Fatalf("%v: %s", err, text)
	}
	return object
}

// A standby is promoted by hand when the primary has ended, and not before; and
// has everything though it was killed itself, again and again, while it followed.
func TestPromote(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(0)
	for range 3 {
		f.two.Kill(f.standby)
		f.publish(200 * time.Millisecond) // while there is none
		f.standby = f.two.Launch(f.command(f.two, "standby"))
		f.publish(400 * time.Millisecond) // while it begins again
	}
	promote := func() (string, error) {
		return f.one.Command("promote", "--data", f.two.Data)
	}
	var asked time.Time
	var out string
	var err error
	harness.WaitFor(t, "the standby to listen", func() bool {
		asked = time.Now()
		out, err = promote()
		return !strings.Contains(out, "no standby runs")
	})
	if err == nil || !strings.Contains(out, "Waiting up to") || !strings.Contains(out, "renews it: stop it first") {
		t.Errorf("beside a primary: %v, %s", err, out)
	}
	if took := time.Since(asked); took > lease {
		t.Errorf("beside a primary promote took %s, want at most a lease of %s", took, lease)
	}
	if out, err := f.one.Command("token", "list", "--data", f.two.Data); err == nil || !strings.Contains(out, "standby") {
		t.Errorf("token list of a standby: %v, %s", err, out)
	}
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("the primary ended with status %d", status)
	}
	// Commands that open the data themselves, in the moment between the standby and
	// the service, do not stop the takeover.
	var commands sync.WaitGroup
	serving := make(chan struct{})
	for range 3 {
		commands.Go(func() {
			for {
				select {
				case <-serving:
					return
				default:
					f.one.Command("token", "list", "--data", f.two.Data)
				}
			}
		})
	}
	defer commands.Wait()
	defer close(serving)
	if out, err := promote(); err != nil || !strings.Contains(out, "primary now") {
		t.Fatalf("promote: %v, %s", err, out)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby has ended:\n%s", &f.standby.Log)
	}
	if events, err := harness.Feed[struct{ ID string }](f.two, f.token, "/v2/events"); err != nil || len(events) != len(f.acked) {
		t.Errorf("it has %d events, %v, want %d", len(events), err, len(f.acked))
	}
}

// TestPromoteKilled promotes a standby after its primary was killed, whose clock
// was a day ahead. The standby waits for the end of the lease, and says so.
func TestPromoteKilled(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(0)
	f.one.Kill(f.primary)
	f.setLeaseEnd(24 * time.Hour)
	out, err := f.one.Command("promote", "--data", f.two.Data)
	if err != nil || !strings.Contains(out, "Waiting up to") || !strings.Contains(out, "now the primary, with all changes uploaded by") {
		t.Errorf("promote: %v\n%s", err, out)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby has ended:\n%s", &f.standby.Log)
	}
}

// TestPromoteForce promotes a standby though its primary lives. The primary ends
// at once when it sees that: it does not wait for its attempts and requests, and
// writes nothing more into the bucket.
func TestPromoteForce(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t), "--grace", "5m")
	f.publish(0)
	f.hang.Store(true)
	f.publish(200 * time.Millisecond)
	harness.WaitFor(t, "an attempt that hangs", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.hung > 0
	})
	stream, err := f.openStream()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	asked := time.Now()
	out, err := f.one.Command("promote", "--force", "--data", f.two.Data)
	if err != nil || !strings.Contains(out, "What was accepted after that is lost") || !strings.Contains(out, "primary now") {
		t.Errorf("promote --force: %v\n%s", err, out)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby has ended:\n%s", &f.standby.Log)
	}
	if took := time.Since(asked); took > lease {
		t.Errorf("it serves after %s, want it to wait for no lease of %s", took, lease)
	}
	f.primary.Wait(t)
	if took := f.primary.Ended.Sub(asked); took > lease {
		t.Errorf("the old primary ended %s after it lost its lease, want at most a lease of %s", took, lease)
	}
	f.hang.Store(false)
	host, _ := os.Hostname()
	if log := f.primary.Log.String(); f.primary.Status != harness.ExitFailed || !strings.Contains(log, "another service holds the lease: "+host) {
		t.Errorf("the old primary ended with status %d, want %d and the name of the new one:\n%s", f.primary.Status, harness.ExitFailed, log)
	}
}
