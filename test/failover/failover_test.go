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

// TestFailOver stops a primary in three ways: it kills it, pauses it, or shuts it down. After the
// lease has expired the standby must serve, with all but the last events, or with all events if the
// replica acknowledged them. At no time may both send.
func TestFailOver(t *testing.T) {
	cells := harness.Drill(t, 1, 4)
	binary := harness.Build(t)
	kill := func(_ *testing.T, f *failOver) { f.one.Kill(f.primary) }
	for _, end := range []struct {
		name   string
		flags  []string
		strike func(*testing.T, *failOver)
	}{
		{"killed, acknowledged by the replica", []string{"--acknowledge", "replica"}, kill},
		{"killed", nil, kill},
		{"paused", nil, func(t *testing.T, f *failOver) {
			if err := f.primary.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			f.one.SetURL("")
		}},
		{"stopped", nil, func(t *testing.T, f *failOver) {
			if status := f.one.Stop(f.primary); status != harness.ExitOK {
				t.Errorf("primary: got exit status %d, want 0", status)
			}
		}},
	}[:cells] {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			f := newFailOver(t, binary, end.flags...)
			f.createEventType()
			f.pull()
			f.publish(50)
			struck := time.Now()
			f.pullers.Strike()
			end.strike(t, f)
			f.check(struck, end.name == "stopped", end.flags != nil)
		})
	}
}

// lease is the duration of a lease: less than an attempt may take.
// With -short it is so long that a slow machine does not lose it.
func lease() time.Duration {
	if testing.Short() {
		return 12 * time.Second
	}
	return harness.Scale(6 * time.Second)
}

// slowFiles is the number of slow uploads: one that the shutdown interrupts, and two that together
// take longer than a lease.
const slowFiles = 3

// failOver is a primary, its standby, and a subscriber.
type failOver struct {
	t       *testing.T
	bucket  string       // the URL of the S3 server
	down    atomic.Bool  // the S3 server returns 503
	refuses atomic.Int64 // the status with which the S3 server refuses writes, or 0
	slow    atomic.Bool  // the S3 server takes two thirds of a lease for each of slowFiles
	slowed  atomic.Int64 // slow requests so far
	hang    atomic.Bool  // the subscriber does not respond
	one     *harness.Instance
	two     *harness.Instance
	primary *harness.Process
	standby *harness.Process
	token   string
	// platform is the token for createEventType, "" without that.
	platform string
	pullers  *harness.Pullers // nil without pull
	lag      atomic.Int64     // how long the S3 server takes for a file of changes; it drops the file if the client ends before

	mu       sync.Mutex
	acked    map[string]time.Time   // event ID → when it was acknowledged
	arrivals map[string][]time.Time // delivery ID → when it arrived
	hung     int                    // deliveries without a response
	cut      []time.Time            // when those deliveries were interrupted
	events   map[string]bool        // IDs of the events that have arrived
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
		if status := int(f.refuses.Load()); status != 0 && r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>Refused%d</Code><Message>secret-account</Message></Error>", status)
			return
		}
		// Level 0 only: a compaction, which runs every half minute, is not part of the shutdown.
		if f.slow.Load() && r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/0000/") && f.slowed.Add(1) <= slowFiles {
			select {
			case <-time.After(lease() * 2 / 3):
			case <-r.Context().Done():
				return
			}
		}
		if lag := f.lag.Load(); lag > 0 && r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/0000/") {
			body, err := io.ReadAll(r.Body) // before the wait: only then does the server notice that the client has ended
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			select {
			case <-time.After(time.Duration(lag)):
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
	f.standby = f.two.Launch(f.command(f.two, "serve"))
	return f
}

// instance returns a service with its replica in the bucket, not started.
func (f *failOver) instance(binary string, flags ...string) *harness.Instance {
	data := filepath.Join(f.t.TempDir(), "data")
	flags = append([]string{"--litestream", f.replica(data), "--lease", lease().String(), "--batch-size", "5", "--grace", "2s"}, flags...)
	return harness.NewInstance(f.t, binary, data, flags...)
}

// replica writes a Litestream configuration for a data directory with its replica in
// the bucket, and returns its path.
func (f *failOver) replica(data string) (name string) {
	name = filepath.Join(f.t.TempDir(), "litestream.yml")
	text := fmt.Sprintf(`shutdown-sync-timeout: %s
dbs:
  - path: %s/service.db
    monitor-interval: 100ms
    replica:
      type: s3
      bucket: b
      endpoint: %s
      access-key-id: id
      secret-access-key: secret
      sync-interval: 200ms
`, 10*lease(), data, f.bucket)
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
	f.publish(100)
	accepts := func() bool {
		var answer struct{ Data struct{ ID string } }
		status, err := f.one.Call(t.Context(), f.token, "POST", f.one.URL()+"/v2/events",
			[]byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`), &answer)
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
	harness.WaitFor(t, "the end of the outage", func() bool { return time.Since(began) > 2*lease() })
	f.checkSilence()
	f.hang.Store(false)
	f.down.Store(false)
	harness.WaitFor(t, "the primary to accept again", accepts)
	again := time.Now()
	harness.WaitFor(t, "a whole lease after the outage", func() bool { accepts(); return time.Since(again) > lease() })
	select {
	case base := <-f.standby.URL:
		t.Fatalf("the standby serves at %s while the primary runs", base)
	case <-f.standby.Exited:
		t.Fatalf("the standby exited:\n%s", &f.standby.Log)
	default:
	}
	events, err := harness.Feed[struct{ ID string }](f.one, f.token, "/v2/events")
	missing := maps.Clone(f.acked)
	for _, e := range events {
		delete(missing, e.ID)
	}
	// An event may be stored without being acknowledged, if the lease expires in between.
	if more := len(events) - len(f.acked); err != nil || len(missing) > 0 || more > 1 {
		t.Errorf("got %d events (%v), without %d of the %d acknowledged ones", len(events), err, len(missing), len(f.acked))
	}
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("primary: got exit status %d, want 0:\n%s", status, &f.primary.Log)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited with status %d:\n%s", f.standby.Status, &f.standby.Log)
	}
	f.checkLost(time.Now(), true)
}

// An admin of the primary.
const (
	adminEmail    = "ana@example.com"
	adminPassword = "correct horse battery staple"
)

// observer is a header of the test's own requests to the bucket, which succeed during an outage.
const observer = "X-Observer"

// checkOutage checks the responses of a primary whose lease expired because the bucket
// does not respond.
func (f *failOver) checkOutage() {
	t := f.t
	t.Helper()
	for _, test := range []struct {
		method, path, contentType, body string
		want                            int
		text                            string
	}{
		{"POST", "/v2/events", "application/json", `{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`,
			http.StatusServiceUnavailable, "The service cannot store anything"},
		{"POST", "/sign-in", "application/x-www-form-urlencoded", "email=" + adminEmail + "&password=" + url.QueryEscape(adminPassword),
			http.StatusServiceUnavailable, "has lost its lease"},
		{"GET", "/readyz", "", "", http.StatusServiceUnavailable, "lease"},
		{"GET", "/healthz", "", "", http.StatusOK, ""},
		{"GET", "/v2/events", "", "", http.StatusServiceUnavailable, "lease"},
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
		if resp.StatusCode != test.want || (after != "") != (test.want == http.StatusServiceUnavailable) ||
			!strings.Contains(string(body), test.text) {
			t.Errorf("%s %s without the lease: got %s, Retry-After %q, want %d\n%s", test.method, test.path, resp.Status, after, test.want, body)
		}
	}
}

// checkSilence checks that the primary interrupted its attempts when its lease expired,
// and started none after that.
func (f *failOver) checkSilence() {
	f.t.Helper()
	ends := f.leaseEnd()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cut) != f.hung {
		f.t.Errorf("got %d interrupted attempts, want %d", len(f.cut), f.hung)
	}
	for _, at := range f.cut {
		f.t.Logf("an attempt was interrupted %s before the lease expired", ends.Sub(at).Round(time.Millisecond))
		if at.After(ends) {
			f.t.Errorf("an attempt was interrupted %s after the lease expired", at.Sub(ends))
		}
	}
	for id, times := range f.arrivals {
		for _, at := range times {
			if at.After(ends) {
				f.t.Errorf("delivery %s arrived %s after the lease expired", id, at.Sub(ends))
			}
		}
	}
}

// TestSlowShutdown stops a primary whose last upload takes longer than the lease. The primary must
// keep the lease until the upload is complete, so the standby has everything.
func TestSlowShutdown(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(100)
	f.slow.Store(true)
	f.publish(5)
	harness.WaitFor(t, "the upload of a first file", func() bool { return f.slowed.Load() > 0 })
	f.publish(5)
	began := time.Now()
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("primary: got exit status %d, want 0:\n%s", status, &f.primary.Log)
	}
	if took := time.Since(began); took < lease() {
		t.Errorf("the shutdown took %s, less than a lease: the test checked nothing", took)
	}
	f.slow.Store(false)
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited with status %d:\n%s", f.standby.Status, &f.standby.Log)
	}
	f.checkLost(time.Now(), true)
}

// TestRestart kills a primary and starts it again: the primary gets its lease back at once. A node
// on a copy of its data directory follows.
func TestRestart(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(0)
	if status := f.two.Stop(f.standby); status != harness.ExitOK {
		t.Errorf("standby: got exit status %d, want 0:\n%s", status, &f.standby.Log)
	}
	f.one.Kill(f.primary)
	data := filepath.Join(t.TempDir(), "data")
	harness.Copy(t, f.one.Data, data)
	started := time.Now()
	f.primary = f.one.MustStart()
	if took := time.Since(started); took > lease() {
		t.Errorf("the primary served after %s, want at once, with its old lease", took)
	}
	// The copy follows, and keeps data that may exist only there.
	copied := harness.NewInstance(t, f.one.Binary, data, "--litestream", f.replica(data), "--lease", lease().String())
	copied.AwaitStandby(copied.Start())
	if left, err := filepath.Glob(filepath.Join(data, "replaced-*", "service.db")); err != nil || len(left) != 1 {
		t.Errorf("the data of the copy: got %v, %v, want it set aside", left, err)
	}
	events, err := harness.Feed[struct{ ID string }](f.one, f.token, "/v2/events")
	missing := maps.Clone(f.acked)
	for _, e := range events {
		delete(missing, e.ID)
	}
	// An event may be stored without being acknowledged, if the lease expires in between.
	if more := len(events) - len(f.acked); err != nil || len(missing) > 0 || more > 1 {
		t.Errorf("got %d events (%v), without %d of the %d acknowledged ones", len(events), err, len(missing), len(f.acked))
	}
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("primary: got exit status %d, want 0:\n%s", status, &f.primary.Log)
	}
}

// TestServeWithoutLease starts a second service, without --lease, on the replica of a
// primary. It must fail and name the holder of the lease.
func TestServeWithoutLease(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	other := filepath.Join(t.TempDir(), "data")
	replica := f.replica(other)
	host, hostErr := os.Hostname()
	out, err := f.one.Command("serve", "--data", other, "--listen", "127.0.0.1:0", "--litestream", replica)
	if err == nil || hostErr != nil || !strings.Contains(out, "another service holds the lease: "+host) {
		t.Errorf("serve without --lease while a primary runs: got %v, want an error that names %s\n%s", err, host, out)
	}
	f.publish(0)
	// The same after the primary was killed: its lease stays.
	if status := f.two.Stop(f.standby); status != harness.ExitOK {
		t.Errorf("standby: got exit status %d, want 0:\n%s", status, &f.standby.Log)
	}
	f.one.Kill(f.primary)
	out, err = f.one.Command("serve", "--data", other, "--listen", "127.0.0.1:0", "--litestream", replica)
	if err == nil || !strings.Contains(out, "does not renew it: "+host) || !strings.Contains(out, "start this one with --lease") {
		t.Errorf("serve without --lease after the primary was killed: got %v, want an error that names %s\n%s", err, host, out)
	}
}

// TestServeTakesOver starts a service in an empty directory after a primary was killed whose clock
// was a day ahead. The service takes over the lease once the lease has stayed unchanged for its
// duration, and then restores the database.
func TestServeTakesOver(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(0)
	if status := f.two.Stop(f.standby); status != harness.ExitOK {
		t.Errorf("standby: got exit status %d, want 0:\n%s", status, &f.standby.Log)
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
	if took := p.Ready.Sub(p.Started); took < lease() {
		t.Errorf("served after %s, want at least the lease of %s", took, lease())
	} else if took > harness.Scale(lease()+6*time.Second) {
		t.Errorf("served after %s, want at most the lease of %s and 6 s", took, lease())
	}
	three.MustStop(p)
	if log := p.Log.String(); !strings.Contains(log, "standby is now the primary") {
		t.Errorf("the node did not copy the replica:\n%s", log)
	}
}

// command returns a command of the service with the data and flags of an instance.
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

// publish publishes a number of events to the primary, and then until the standby follows.
func (f *failOver) publish(events int) {
	f.t.Helper()
	base := f.one.URL()
	publish := func() {
		f.t.Helper()
		var answer struct{ Data struct{ ID string } }
		status, err := f.one.Call(f.t.Context(), f.token, "POST", base+"/v2/events",
			[]byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`), &answer)
		if err != nil || status != http.StatusCreated {
			f.t.Fatalf("publish: status %d, %v", status, err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.acked[answer.Data.ID] = time.Now()
	}
	for range events {
		publish()
	}
	harness.WaitFor(f.t, "the standby to follow", func() bool {
		publish()
		_, err := os.Stat(filepath.Join(f.two.Data, "standby", "service.db-txid"))
		return err == nil
	})
}

var attemptLine = regexp.MustCompile(`msg=attempt .*delivery=(\S+) number=(\d+)`)

// check waits until the standby has taken over, and checks what it contains and sends.
func (f *failOver) check(struck time.Time, orderly, replicated bool) {
	t := f.t
	t.Helper()
	expires := f.leaseEnd()
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited with status %d:\n%s", f.standby.Status, &f.standby.Log)
	}
	late := f.standby.Ready.Sub(expires)
	t.Logf("the standby served %s after the primary stopped, %s after the lease expired",
		f.standby.Ready.Sub(struck).Round(time.Millisecond), late.Round(time.Millisecond))
	if !orderly && late < 0 {
		t.Errorf("the standby served %s before the lease expired", -late)
	}
	if !testing.Short() {
		f.checkTakeover(struck)
	}
	there := f.checkLost(struck, orderly || replicated)
	if len(there) > 0 { // otherwise the event type may be lost too: it was created just before the events
		f.checkEventType() // publishes an event that no subscription wants
	}
	// A paused primary continues unaware of the pause, and follows. Any other primary follows once
	// it is started again.
	if f.primary.Signal(syscall.SIGCONT) != nil {
		f.primary = f.one.Start()
	}
	f.one.AwaitStandby(f.primary)
	harness.WaitFor(t, "the standby to deliver all its events", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for id := range there {
			if !f.events[id] {
				return false
			}
		}
		return true
	})
	f.pullers.Finish()
	f.pullers.Check("a takeover", nil, !orderly && !replicated)
	f.one.MustStop(f.primary)
	f.two.MustStop(f.standby)
	f.checkSent()
}

// checkTakeover checks how soon the standby served.
func (f *failOver) checkTakeover(struck time.Time) {
	f.t.Helper()
	if took, most := f.standby.Ready.Sub(struck), lease()+harness.Scale(4*time.Second); took > most {
		f.t.Errorf("the standby served %s after the primary stopped, want at most %s", took, most)
	}
}

// ownType is the path of the event type that createEventType creates over the API.
const ownType = "/v2/event_types/order.shipped"

const ownSchema = `{"title":"Order shipped","description":"Emitted when an order leaves the warehouse.","type":"object","properties":{
	"id":{"type":"string","format":"uuid"},"timestamp":{"type":"string","format":"date-time"},"name":{"const":"order.shipped"},
	"version":{"const":"1"},"carrier":{"enum":["post","bike"]}},"required":["id","timestamp","name","version"],"additionalProperties":false,
	"examples":[{"id":"019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7","timestamp":"2026-03-14T08:24:48.644Z","name":"order.shipped","version":"1"}]}`

// createEventType creates an event type on the primary over the API.
func (f *failOver) createEventType() {
	f.t.Helper()
	cmd := exec.Command(f.one.Binary, "token", "create", "--data", f.one.Data, "--user", "ops", "--scope", "platform")
	cmd.Env = harness.Environment()
	secret, err := cmd.Output()
	if err != nil {
		f.t.Fatal(err)
	}
	f.platform = strings.TrimSpace(string(secret))
	status, err := f.one.Call(f.t.Context(), f.platform, "PUT", f.one.URL()+ownType, []byte(`{"schema":`+ownSchema+`}`), nil)
	if err != nil || status != http.StatusCreated {
		f.t.Fatalf("an event type over the API: status %d, %v", status, err)
	}
}

// checkEventType checks that the standby, which has taken over, has the event type: it accepts
// events of that type, and rejects invalid events of that name.
func (f *failOver) checkEventType() {
	f.t.Helper()
	if f.platform == "" {
		return
	}
	base := f.two.URL()
	if status, err := f.two.Call(f.t.Context(), f.platform, "GET", base+ownType, nil, nil); err != nil || status != http.StatusOK {
		f.t.Errorf("the event type after the takeover: status %d, %v", status, err)
	}
	for carrier, accepted := range map[string]bool{"bike": true, "drone": false} {
		body := []byte(`{"name":"order.shipped","version":"1","carrier":"` + carrier + `"}`)
		status, err := f.two.Call(f.t.Context(), f.token, "POST", base+"/v2/events", body, nil)
		if err != nil || (status == http.StatusCreated) != accepted {
			f.t.Errorf("after the takeover, an event with %s: status %d, %v", carrier, status, err)
		}
	}
}

// checkLost returns the events that the standby has. If complete is set, it checks that no event is
// lost. Without -short it checks that lost events were accepted at most 2 s before the primary
// stopped.
func (f *failOver) checkLost(struck time.Time, complete bool) (there map[string]bool) {
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
	t.Logf("%d events acknowledged, %d of them lost, the first accepted %s before the primary stopped",
		len(f.acked), lost, oldest.Round(time.Millisecond))
	if !testing.Short() && oldest > harness.Scale(2*time.Second) {
		t.Errorf("a lost event was accepted %s before the primary stopped, want at most %s", oldest, harness.Scale(2*time.Second))
	}
	if complete && lost > 0 {
		t.Errorf("%d acknowledged events are lost, want none", lost)
	}
	return there
}

// checkSent checks that everything that arrived after the takeover came from the standby.
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
			f.t.Errorf("delivery %s: got %d arrivals after the takeover, but the standby sent it %d times", id, n, sent[id])
		}
	}
}

// setLeaseEnd changes when the lease in the bucket expires, by its holder's clock.
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

// openStream starts a request to the primary that publishes one event and stays open.
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

// TestPromote promotes a standby. This must fail while the primary is running; afterwards the
// standby has everything, although it was killed repeatedly while it followed.
func TestPromote(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t))
	f.publish(0)
	for range 3 {
		f.two.Kill(f.standby)
		f.publish(20) // while no standby runs
		f.standby = f.two.Launch(f.command(f.two, "serve"))
		f.publish(40) // while the standby starts again
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
		return !strings.Contains(out, "no server is running")
	})
	if err == nil || !strings.Contains(out, "Waiting up to") || !strings.Contains(out, "renews it: stop it first") {
		t.Errorf("promote while the primary runs: got %v, want an error\n%s", err, out)
	}
	if took := time.Since(asked); took > lease() {
		t.Errorf("promote while the primary runs: took %s, want at most a lease of %s", took, lease())
	}
	if out, err := f.one.Command("token", "list", "--data", f.two.Data); err == nil || !strings.Contains(out, "standby") {
		t.Errorf("token list on a standby: got %v, want an error that says so\n%s", err, out)
	}
	if status := f.one.Stop(f.primary); status != harness.ExitOK {
		t.Errorf("primary: got exit status %d, want 0", status)
	}
	// Between the end of the standby and the start of the service, a command can open
	// the data directory. That must not stop the takeover.
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
	// On a slow machine the lease can expire first. The standby is then already the primary.
	out, err = promote()
	if (err != nil || !strings.Contains(out, "is now the primary")) && !strings.Contains(out, "it is already the primary") {
		t.Fatalf("promote: %v, %s", err, out)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited:\n%s", &f.standby.Log)
	}
	if events, err := harness.Feed[struct{ ID string }](f.two, f.token, "/v2/events"); err != nil || len(events) != len(f.acked) {
		t.Errorf("the new primary has %d events (%v), want %d", len(events), err, len(f.acked))
	}
}

// TestPromoteKilled promotes a standby after a primary was killed whose clock was a day
// ahead. The standby waits until the lease has expired, and says so.
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
		t.Fatalf("the standby exited:\n%s", &f.standby.Log)
	}
}

// TestPromoteForce promotes a standby while its primary runs. As soon as the primary
// notices, it must follow, without waiting for its attempts and requests.
func TestPromoteForce(t *testing.T) {
	harness.Long(t)
	f := newFailOver(t, harness.Build(t), "--grace", "5m")
	f.publish(0)
	f.hang.Store(true)
	f.publish(20)
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
	if err != nil || !strings.Contains(out, "Later changes are lost") || !strings.Contains(out, "is now the primary") {
		t.Errorf("promote --force: %v\n%s", err, out)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited:\n%s", &f.standby.Log)
	}
	if took := time.Since(asked); took > lease() {
		t.Errorf("the standby served after %s, want less than a lease of %s", took, lease())
	}
	f.one.AwaitStandby(f.primary)
	if took := time.Since(asked); took > 2*lease() {
		t.Errorf("the old primary followed %s after it lost its lease, want at most two leases of %s", took, lease())
	}
	f.one.MustStop(f.primary)
	f.hang.Store(false)
	host, _ := os.Hostname()
	if log := f.primary.Log.String(); !strings.Contains(log, "another service holds the lease: "+host) {
		t.Errorf("old primary: want the host of the new primary in the log:\n%s", log)
	}
}

// TestTeardownBlocked takes the lease from a primary whose disk does not answer, so that the
// primary cannot close its database. It must not stay in that state: after ten seconds it exits
// with status 1.
func TestTeardownBlocked(t *testing.T) {
	harness.Long(t)
	strace := harness.Tool(t, "strace", "strace")
	f := newFailOver(t, harness.Build(t))
	f.publish(20)
	f.two.AwaitStandby(f.standby)
	attached := filepath.Join(t.TempDir(), "attached")
	messages, err := os.Create(attached)
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Close()
	slow := exec.Command(strace, "-f", "-o", os.DevNull, "-e", "trace=fsync,fdatasync",
		"-e", "inject=fsync,fdatasync:delay_enter=600000000", "-p", fmt.Sprint(f.primary.PID()))
	slow.Stderr = messages
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	detach := sync.OnceFunc(func() {
		slow.Process.Kill()
		slow.Wait()
	})
	defer detach()
	harness.WaitFor(t, "strace", func() bool { return bytes.Contains(harness.Read(t, attached), []byte("attached")) })
	out, err := f.one.Command("promote", "--force", "--data", f.two.Data)
	if err != nil {
		t.Fatalf("promote --force: %v\n%s", err, out)
	}
	// The process's threads stay with strace, which holds them.
	status := filepath.Join("/proc", fmt.Sprint(f.primary.PID()), "status")
	harness.WaitFor(t, "the exit", func() bool { return bytes.Contains(harness.Read(t, status), []byte("State:\tZ")) })
	detach()
	f.primary.Wait(t)
	if log := f.primary.Log.String(); f.primary.Status != harness.ExitFailed || !strings.Contains(log, "did not stop within 10 s") {
		t.Errorf("got exit status %d, want %d and the limit in the log:\n%s", f.primary.Status, harness.ExitFailed, log)
	}
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited:\n%s", &f.standby.Log)
	}
}
