package main

import (
	"bytes"
	"context"
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

	"github.com/google/uuid"
)

var fullDisks = flag.Int("fulldisk.times", 3, "how often TestEndToEnd lets the service's disk become full")

const (
	memoryDiskSize = 12 << 20 // at first, and what it is enlarged by
	// recoversWithin is how soon after space has come back the service must
	// take events and deliver them.
	recoversWithin = 10 * time.Second
)

// testFullDisk lets the disk become full while publishers publish and receivers
// receive, kills the service on the full disk every other time, and then makes
// room. While the disk is full publishing is refused and everything can be
// read; when it is not, all goes on by itself. Until the first kill the service
// refuses events for want of free disk space already, until the second only
// when it cannot write, and so on.
//
// It needs to be allowed to mount a tmpfs. Where it cannot run it is skipped,
// or fails if the environment variable SERVICE_TEST_REQUIRE has tmpfs among its
// words.
func testFullDisk(t *testing.T, binary string) {
	d, err := newMemoryDisk(t)
	if err != nil {
		if required("tmpfs") {
			t.Fatalf("full disks are required, and cannot be tested here: %v", err)
		}
		t.Skipf("FULL DISKS ARE NOT TESTED: %v", err)
	}
	c := newChaos(t, binary, filepath.Join(d.mount, "data"))
	c.disk = false
	admin := c.signIn()
	rest := c.work()
	defer rest()
	flags, keepsRoom := c.in.flags, true
	var slowest time.Duration
	for n := range *fullDisks {
		<-time.After(500 * time.Millisecond) // of work with room
		d.fill()
		c.awaitFull()
		c.checkFull(admin)
		if n%2 == 1 {
			c.in.kill(c.in.last())
			keepsRoom = !keepsRoom
			c.in.flags = flags
			if !keepsRoom {
				c.in.flags = append(slices.Clip(flags), "--min-free-disk", "0")
			}
			<-time.After(1100 * time.Millisecond) // a start after a pause has more to write than one at once
			if run := c.in.start(); !c.in.awaitServing(run) {
				t.Fatalf("on a full disk the service ended at its start, with status %d:\n%s", run.status, &run.log)
			}
			c.awaitFull()
			c.checkFull(admin)
		}
		d.enlarge()
		slowest = max(slowest, c.awaitRoom())
	}
	c.settle(rest)
	t.Logf("%d times full; %d requests were refused; events were taken and delivered at most %s after there was room again", *fullDisks, c.refused, slowest.Round(time.Millisecond))
	for _, fault := range c.faults() {
		t.Error(fault)
	}
	c.finish()
}

// awaitFull waits until the service refuses to publish for lack of room, some
// times on end: what is small may still find a place for a while.
func (c *chaos) awaitFull() {
	c.t.Helper()
	deadline := time.Now().Add(recoversWithin)
	for refused := 0; refused < 5; {
		if time.Now().After(deadline) {
			c.t.Fatal("the disk is full, and the service still takes events")
		}
		if status, _ := c.publishOne(); status == http.StatusCreated {
			refused = 0
		} else {
			refused++
		}
	}
}

// awaitRoom waits until the service is ready, takes an event and delivers it,
// and returns how long that took.
func (c *chaos) awaitRoom() time.Duration {
	c.t.Helper()
	started := time.Now()
	late := func() bool { return time.Since(started) > recoversWithin }
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		status, id := c.publishOne()
		if status == http.StatusCreated {
			for ; !c.delivered(id) && !late(); <-tick.C {
			}
			break
		}
		if late() {
			break
		}
	}
	took := time.Since(started)
	if resp := c.read("/readyz", nil); resp.status != http.StatusOK || took > recoversWithin {
		c.t.Errorf("after %s with room the service has not recovered: readyz answers %d %s", took, resp.status, resp.body)
	}
	return took
}

// publishOne publishes a single event, keeps the ledger, and checks a refusal.
func (c *chaos) publishOne() (status int, id string) {
	c.t.Helper()
	p := c.programs[0]
	c.mu.Lock()
	e := &published{program: p.id, name: wantedBy[healthy][0], number: len(c.events)}
	id = uuid.NewString()
	c.events[id] = e
	c.mu.Unlock()
	base, _ := c.in.await(context.Background())
	req, err := http.NewRequest("POST", base+"/v2/events", bytes.NewReader(e.json(id)))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("Content-Type", "application/json")
	a := c.do(c.in.client, req)
	if a.status == http.StatusCreated {
		c.acknowledge([]string{id})
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
	if a.status != http.StatusServiceUnavailable || err != nil || envelope.Error.Code != a.status || envelope.Error.Title == "" || envelope.Error.Detail == "" || after < 1 {
		c.t.Errorf("publishing on a full disk: got %d, Retry-After %q, %s; want 503, a Retry-After and the envelope", a.status, a.header.Get("Retry-After"), a.body)
	}
	return a.status, id
}

// delivered says whether an event has arrived at its healthy receiver.
func (c *chaos) delivered(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.arrivals {
		if a.subscription == c.programs[0].subscriptions[healthy] && a.ok > 0 && slices.Contains(a.events, id) {
			return true
		}
	}
	return false
}

// newBrowser keeps cookies.
func (c *chaos) newBrowser() *http.Client {
	c.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return &http.Client{Transport: c.in.client.Transport, Timeout: c.in.client.Timeout, Jar: jar}
}

// The admin of signIn.
const chaosAdmin, chaosPassword = "ana@example.com", "correct horse battery"

// signIn makes an admin, and returns a browser that the admin has signed in with.
func (c *chaos) signIn() *http.Client {
	c.t.Helper()
	cmd := exec.Command(c.in.binary, "admin", "create", "--email", chaosAdmin, "--data", c.in.data)
	cmd.Env, cmd.Stdin = cleanEnvironment(), strings.NewReader(chaosPassword)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("admin create: %v\n%s", err, out)
	}
	browser := c.newBrowser()
	if a := c.enter(browser); a.status != http.StatusOK {
		c.t.Fatalf("signing in: got %d\n%s", a.status, a.body)
	}
	return browser
}

// enter sends the form to sign in, and follows to where it leads.
func (c *chaos) enter(browser *http.Client) answered {
	c.t.Helper()
	base, _ := c.in.await(context.Background())
	form := url.Values{"email": {chaosAdmin}, "password": {chaosPassword}}
	req, err := http.NewRequest("POST", base+"/sign-in", strings.NewReader(form.Encode()))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return c.do(browser, req)
}

// checkFull checks what must hold while nothing can be stored: the service says
// so, everything can be read, by partners and admins, and nothing was sent that
// is not remembered.
func (c *chaos) checkFull(admin *http.Client) {
	c.t.Helper()
	p := c.programs[0]
	base, _ := c.in.await(context.Background())
	if a := c.read("/readyz", nil); a.status != http.StatusServiceUnavailable {
		c.t.Errorf("/readyz on a full disk: got %d %s, want 503", a.status, a.body)
	}
	partner := http.Header{"Authorization": {"Bearer " + p.token}}
	for _, path := range []string{"/v2/events?page[size]=100", "/v2/event_types", "/v2/webhooks/subscriptions", "/v2/webhooks/subscriptions/" + p.subscriptions[healthy],
		"/v2/webhooks/subscriptions/" + p.subscriptions[healthy] + "/deliveries", "/healthz", "/docs"} {
		if a := c.read(path, partner); a.status != http.StatusOK {
			c.t.Errorf("GET %s on a full disk: got %d %s", path, a.status, a.body)
		}
	}

	// Who is signed in stays so; who is not must wait for room, or be let in.
	req, err := http.NewRequest("GET", base+"/", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if a := c.do(admin, req); a.status != http.StatusOK || !strings.Contains(a.body, p.id) {
		c.t.Errorf("the overview on a full disk: got %d\n%s", a.status, a.body)
	}
	if a := c.enter(c.newBrowser()); a.status != http.StatusOK && (a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "Make room")) {
		c.t.Errorf("signing in on a full disk: got %d, want 200, or 503 and why\n%s", a.status, a.body)
	}
	if req, err = http.NewRequest("GET", base+"/?filter[status]=success", nil); err != nil {
		c.t.Fatal(err)
	}
	if a := c.do(admin, req); a.status != http.StatusOK {
		c.t.Errorf("the admin UI on a full disk: got %d\n%s", a.status, a.body)
	}

	c.mu.Lock()
	times, events := make(map[string]int), make(map[string]bool)
	for id, a := range c.arrivals {
		times[id] = a.times
	}
	for id, e := range c.events {
		events[id] = e.acked
	}
	c.mu.Unlock()
	for _, p := range c.programs {
		stored, err := feed[struct{ ID string }](c.in, p.token, "/v2/events")
		if err != nil {
			c.t.Error(err)
		}
		for _, e := range stored {
			delete(events, e.ID)
		}
		for _, subscription := range p.subscriptions {
			deliveries, err := feed[deliveryRead](c.in, p.token, "/v2/webhooks/subscriptions/"+subscription+"/deliveries")
			if err != nil {
				c.t.Error(err)
			}
			for _, d := range deliveries {
				if times[d.ID] > d.AttemptsMade {
					c.t.Errorf("on a full disk delivery %s has arrived %d times, and %d attempts are remembered", d.ID, times[d.ID], d.AttemptsMade)
				}
				delete(times, d.ID)
			}
		}
	}
	for id, acked := range events {
		if acked {
			c.t.Errorf("on a full disk event %s is not there, which was acknowledged", id)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range times {
		if slices.ContainsFunc(c.programs, func(p *chaosProgram) bool { return slices.Contains(subscriptionsOf(p), c.arrivals[id].subscription) }) {
			c.t.Errorf("on a full disk delivery %s has arrived, and is not remembered", id)
		}
	}
}

func subscriptionsOf(p *chaosProgram) (ids []string) {
	for _, id := range p.subscriptions {
		ids = append(ids, id)
	}
	return ids
}

// answered is an HTTP answer, read to its end.
type answered struct {
	status int
	header http.Header
	body   string
}

func (c *chaos) do(client *http.Client, req *http.Request) answered {
	c.t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header, string(b)}
}

func (c *chaos) read(path string, header http.Header) answered {
	c.t.Helper()
	base, _ := c.in.await(context.Background())
	req, err := http.NewRequest("GET", base+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	return c.do(c.in.client, req)
}

// memoryDisk is a tmpfs of a size that can be changed.
type memoryDisk struct {
	t        testing.TB
	mount    string
	size     int
	ballasts int
}

// newMemoryDisk returns a tmpfs that is mounted until the test ends.
func newMemoryDisk(t testing.TB) (*memoryDisk, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can mount a file system")
	}
	d := &memoryDisk{t: t, mount: t.TempDir(), size: memoryDiskSize}
	if err := runCommand("mount", "-t", "tmpfs", "-o", fmt.Sprintf("mode=0700,size=%d", d.size), "tmpfs", d.mount); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := runCommand("umount", d.mount); err != nil {
			t.Error(errors.Join(err, runCommand("umount", "-l", d.mount)))
		}
	})
	return d, nil
}

// fill leaves no room at all.
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

// enlarge makes room.
func (d *memoryDisk) enlarge() {
	d.t.Helper()
	d.size += memoryDiskSize
	if err := runCommand("mount", "-o", fmt.Sprintf("remount,size=%d", d.size), d.mount); err != nil {
		d.t.Fatal(err)
	}
}
