package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
	"service/test/harness/chaos"
)

var fullDisks = flag.Int("fulldisk.times", 3, "how often TestFullDisk lets the service's disk become full")

const (
	memoryDiskSize = 12 << 20 // at the start, and how much enlarge adds
	// recoverWithin is how soon the service must accept and deliver events again
	// once the disk has space.
	recoverWithin = 10 * time.Second
)

// TestFullDisk fills the disk under load again and again, kills the service every other
// time, and then makes space. On a full disk the service must refuse events and serve
// reads; once there is space it must recover by itself.
//
// Until the first kill, the service refuses events because of --min-free-disk; until
// the second, only when it cannot write; and so on.
//
// It must be allowed to mount a tmpfs (requirement tmpfs).
func TestFullDisk(t *testing.T) {
	times := harness.Drill(t, 2, *fullDisks)
	d, err := newMemoryDisk(t)
	if err != nil {
		harness.Unavailable(t, "tmpfs", err)
	}
	f := &fullDisk{t: t, c: chaos.New(t, harness.Build(t), filepath.Join(d.mount, "data"))}
	f.c.UnreliableDisk = true
	in := f.c.Instance
	f.admin = f.signIn()
	stop := f.c.Start()
	defer stop()
	flags, minimum := in.Flags, true
	for n := range times {
		f.c.AwaitSteps(in.Last(), 200) // while there is space
		d.fill()
		f.awaitFull()
		f.check()
		if n%2 == 1 {
			in.Kill(in.Last())
			minimum = !minimum
			in.Flags = flags
			if !minimum {
				in.Flags = append(slices.Clip(flags), "--min-free-disk", "0")
			}
			t.Run("pause", pause)
			if p := in.Start(); !in.AwaitServing(p) {
				t.Fatalf("on a full disk the service did not start: exit status %d\n%s", p.Status, &p.Log)
			}
			f.awaitFull()
			f.check()
		}
		d.enlarge()
		f.awaitSpace()
	}
	f.c.Settle(stop)
	t.Logf("disk full %d times, %d requests refused", times, f.c.Refused())
	t.Run("recovers in time", f.checkRecoveries)
	f.c.Check()
	f.c.Finish()
}

// fullDisk is a service on a disk that fills up, and an admin's browser.
type fullDisk struct {
	t     *testing.T
	c     *chaos.Chaos
	admin *http.Client

	recoveries []recovery
}

// recovery contains when there was space again, and when the service had used it.
type recovery struct{ space, recovered time.Time }

// pause waits before a start, which writes more than an immediate one.
func pause(t *testing.T) {
	harness.Long(t)
	time.Sleep(1100 * time.Millisecond)
}

// checkRecoveries checks how soon the service used the space.
func (f *fullDisk) checkRecoveries(t *testing.T) {
	harness.Long(t)
	for _, r := range f.recoveries {
		took := r.recovered.Sub(r.space)
		t.Logf("recovered within %s of space", took.Round(time.Millisecond))
		if took > harness.Scale(recoverWithin) {
			t.Errorf("the service recovered %s after there was space, want at most %s", took, harness.Scale(recoverWithin))
		}
	}
}

// awaitFull waits until the service refuses five events in a row for lack of space:
// a small event may still fit for a while.
func (f *fullDisk) awaitFull() {
	f.t.Helper()
	refused := 0
	harness.WaitFor(f.t, "events to be refused on a full disk", func() bool {
		if status, _ := f.publish(); status == http.StatusCreated {
			refused = 0
		} else {
			refused++
		}
		return refused == 5
	})
}

// awaitSpace waits until the service accepts an event, delivers it and is ready.
func (f *fullDisk) awaitSpace() {
	f.t.Helper()
	space := time.Now()
	id := ""
	harness.WaitFor(f.t, "an event to be accepted", func() (accepted bool) {
		var status int
		status, id = f.publish()
		return status == http.StatusCreated
	})
	harness.WaitFor(f.t, "the delivery of the event", func() bool { return f.c.Delivered(id) })
	f.recoveries = append(f.recoveries, recovery{space, time.Now()})
	if a := f.read("/readyz", nil); a.status != http.StatusOK {
		f.t.Errorf("the service has not recovered: /readyz returned %d %s", a.status, a.body)
	}
}

// publish publishes one event, records it in the ledger, and checks the response.
func (f *fullDisk) publish() (status int, id string) {
	f.t.Helper()
	p := f.c.Programs[0]
	id, body := f.c.NewEvent(p)
	req, err := http.NewRequest("POST", f.c.Instance.URL()+"/v2/events", bytes.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.Token)
	req.Header.Set("Content-Type", "application/json")
	a := f.do(f.c.Instance.Client, req)
	if a.status == http.StatusCreated {
		f.c.Acknowledge(id)
		return a.status, id
	}
	var envelope struct {
		Error struct {
			Code          int
			Title, Detail string
		}
	}
	err = json.Unmarshal([]byte(a.body), &envelope)
	after, _ := strconv.Atoi(a.header.Get("Retry-After"))
	if a.status != http.StatusServiceUnavailable || err != nil || envelope.Error.Code != a.status || envelope.Error.Title == "" ||
		envelope.Error.Detail == "" || after < 1 {
		f.t.Errorf("publishing on a full disk: got %d, Retry-After %q, %s; want 503, a Retry-After and an error",
			a.status, a.header.Get("Retry-After"), a.body)
	}
	return a.status, id
}

// newBrowser returns a client that keeps cookies.
func (f *fullDisk) newBrowser() *http.Client {
	f.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return &http.Client{Transport: f.c.Instance.Client.Transport, Timeout: f.c.Instance.Client.Timeout, Jar: jar}
}

// The account of the admin.
const adminEmail, adminPassword = "ana@example.com", "correct horse battery"

// signIn creates an admin and returns a browser signed in as that admin.
func (f *fullDisk) signIn() *http.Client {
	f.t.Helper()
	cmd := exec.Command(f.c.Instance.Binary, "admin", "create", "--email", adminEmail, "--data", f.c.Instance.Data)
	cmd.Env, cmd.Stdin = harness.Environment(), strings.NewReader(adminPassword)
	if out, err := cmd.CombinedOutput(); err != nil {
		f.t.Fatalf("admin create: %v\n%s", err, out)
	}
	browser := f.newBrowser()
	if a := f.enter(browser); a.status != http.StatusOK {
		f.t.Fatalf("signing in: got %d, want 200\n%s", a.status, a.body)
	}
	return browser
}

// enter submits the sign-in form and follows the redirect.
func (f *fullDisk) enter(browser *http.Client) answer {
	f.t.Helper()
	form := url.Values{"email": {adminEmail}, "password": {adminPassword}}
	req, err := http.NewRequest("POST", f.c.Instance.URL()+"/sign-in", strings.NewReader(form.Encode()))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return f.do(browser, req)
}

// check checks the service on a full disk: /readyz reports it, partners and admins can
// read everything, and the service sent only what it stored.
func (f *fullDisk) check() {
	f.t.Helper()
	p := f.c.Programs[0]
	if a := f.read("/readyz", nil); a.status != http.StatusServiceUnavailable {
		f.t.Errorf("/readyz on a full disk: got %d %s, want 503", a.status, a.body)
	}
	partner := http.Header{"Authorization": {"Bearer " + p.Token}}
	subscription := "/v2/webhooks/subscriptions/" + p.Subscriptions[chaos.Healthy]
	for _, path := range []string{"/v2/events?page[size]=100", "/v2/event_types", "/v2/webhooks/subscriptions", subscription, subscription +
		"/deliveries", "/healthz", "/docs"} {
		if a := f.read(path, partner); a.status != http.StatusOK {
			f.t.Errorf("GET %s on a full disk: got %d, want 200\n%s", path, a.status, a.body)
		}
	}
	f.checkPages(p)
	for _, fault := range f.c.RunningFaults() {
		f.t.Errorf("on a full disk: %s", fault)
	}
}

// checkPages checks that a signed-in admin can read everything. Signing in may fail until there is
// space.
func (f *fullDisk) checkPages(p *chaos.Program) {
	f.t.Helper()
	for path, want := range map[string]string{"/": p.ID, "/?filter[status]=success": ""} {
		req, err := http.NewRequest("GET", f.c.Instance.URL()+path, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		if a := f.do(f.admin, req); a.status != http.StatusOK || !strings.Contains(a.body, want) {
			f.t.Errorf("page %s on a full disk: got %d, want 200\n%s", path, a.status, a.body)
		}
	}
	if a := f.enter(f.newBrowser()); a.status != http.StatusOK && (a.status != http.StatusServiceUnavailable ||
		a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "Free disk space")) {
		f.t.Errorf("signing in on a full disk: got %d, want 200, or 503 with the reason\n%s", a.status, a.body)
	}
}

// answer is an HTTP response with its whole body.
type answer struct {
	status int
	header http.Header
	body   string
}

func (f *fullDisk) do(client *http.Client, req *http.Request) answer {
	f.t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (f *fullDisk) read(path string, header http.Header) answer {
	f.t.Helper()
	req, err := http.NewRequest("GET", f.c.Instance.URL()+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	return f.do(f.c.Instance.Client, req)
}

// memoryDisk is a tmpfs whose size can be changed.
type memoryDisk struct {
	t        testing.TB
	mount    string
	size     int
	ballasts int
}

// newMemoryDisk mounts a tmpfs until the test ends.
func newMemoryDisk(t testing.TB) (*memoryDisk, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can mount a file system")
	}
	d := &memoryDisk{t: t, mount: t.TempDir(), size: memoryDiskSize}
	if err := harness.Exec("mount", "-t", "tmpfs", "-o", fmt.Sprintf("mode=0700,size=%d", d.size), "tmpfs", d.mount); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := harness.Exec("umount", d.mount); err != nil {
			t.Error(errors.Join(err, harness.Exec("umount", "-l", d.mount)))
		}
	})
	return d, nil
}

// fill shrinks the disk until no space is left.
func (d *memoryDisk) fill() {
	d.t.Helper()
	d.ballasts++
	f, err := os.Create(filepath.Join(d.mount, fmt.Sprint("ballast-", d.ballasts)))
	if err != nil {
		d.t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		d.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		d.t.Fatal(err)
	}
}

// enlarge adds space.
func (d *memoryDisk) enlarge() {
	d.t.Helper()
	d.size += memoryDiskSize
	if err := harness.Exec("mount", "-o", fmt.Sprintf("remount,size=%d", d.size), d.mount); err != nil {
		d.t.Fatal(err)
	}
}
