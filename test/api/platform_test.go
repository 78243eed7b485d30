package api

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"service/test/harness"
)

var programs = flag.Int("programs", 100, "number of programs that TestPlatform creates")

// platform is an installation with a platform token.
type platform struct {
	*harness.Instance
	token string
}

// newPlatform starts an empty server with one platform token.
func newPlatform(t *testing.T) *platform {
	in := harness.NewInstance(t, harness.Build(t), t.TempDir())
	in.MustStart()
	out, err := in.Command("token", "create", "--data", in.Data, "--scope", "platform", "--user", "ops")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, out)
	}
	return &platform{in, strings.TrimSpace(out)}
}

// call makes a request that must succeed with a status. X-Program-Id selects program, "" for none.
func (p *platform) call(ctx context.Context, token, program, method, path, body string, status int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.URL()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if program != "" {
		req.Header.Set("X-Program-Id", program)
	}
	resp, err := p.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("%s %s: status %d, want %d: %s", method, path, resp.StatusCode, status, text)
	}
	return text, err
}

// must is call for the platform token without a program, in the goroutine of the test.
func (p *platform) must(t *testing.T, method, path, body string, status int) []byte {
	t.Helper()
	text, err := p.call(t.Context(), p.token, "", method, path, body, status)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// eventType returns the body that defines an event type with one field.
func eventType(name, field string) string {
	return fmt.Sprintf(`{"schema":{"title":"T","description":"Emitted when something happens.","type":"object","properties":{
		"id":{"type":"string","format":"uuid"},"timestamp":{"type":"string","format":"date-time"},"name":{"const":%q},
		"version":{"const":"1"},%q:{"type":"integer","format":"int64"}},"required":["id","timestamp","name","version",%[2]q],
		"additionalProperties":false,"examples":[{"id":"019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7",
		"timestamp":"2026-03-14T08:24:48.644Z","name":%[1]q,"version":"1",%[2]q:1}]}}`, name, field)
}

// arrivals are the programs whose event has arrived, by the name of the event.
type arrivals struct {
	mu     sync.Mutex
	events map[string]string // event name by program
	faults []string
}

func (a *arrivals) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if harness.IsPing(body) {
		return
	}
	var d struct {
		ProgramID string `json:"program_id"`
		Events    []struct{ Name string }
	}
	err := json.Unmarshal(body, &d)
	a.mu.Lock()
	defer a.mu.Unlock()
	// The path of each subscription names its program.
	if err != nil || len(d.Events) != 1 || r.Header.Get("X-Service-Program") != d.ProgramID || r.URL.Path != "/"+d.ProgramID ||
		a.events[d.ProgramID] != "" {
		a.faults = append(a.faults, fmt.Sprintf("%s: %s", r.URL.Path, body))
		return
	}
	a.events[d.ProgramID] = d.Events[0].Name
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.events)
}

// TestPlatform sets up many programs on an empty server with one platform token: each gets a
// subscription, and a token with which an event is published and delivered.
func TestPlatform(t *testing.T) {
	p := newPlatform(t)
	got := &arrivals{events: make(map[string]string)}
	receiver := harness.Listen(t, got)
	types := []string{"order.created", "order.shipped.late", "invoice.paid"}

	for _, name := range types {
		p.must(t, "PUT", "/v2/event_types/"+name, eventType(name, "number"), http.StatusCreated)
	}
	work, ctx := errgroup.WithContext(t.Context())
	work.SetLimit(8)
	for i := range *programs {
		work.Go(func() error { return p.setUp(ctx, receiver, i, types[i%len(types)]) })
	}
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}
	harness.WaitForCount(t, "an event of each program", *programs, got.count)
	for i := range *programs {
		if id, want := programID(i), types[i%len(types)]; got.events[id] != want {
			t.Errorf("program %s got the event %q, want %q", id, got.events[id], want)
		}
	}
	if len(got.faults) > 0 {
		t.Errorf("%d wrong deliveries, such as %s", len(got.faults), got.faults[0])
	}
	checkPrograms(t, p)
	checkApplied(t, p, receiver, types)

	out, err := p.Command("program", "list", "--data", p.Data)
	if lines := strings.Count(out, "\n"); err != nil || lines != *programs+1 {
		t.Errorf("program list: %v, %d lines, want a heading and %d programs", err, lines, *programs)
	}
}

func programID(i int) string { return fmt.Sprintf("customer-%04d", i) }

// setUp creates a program with a subscription and a token, and publishes an event with it.
func (p *platform) setUp(ctx context.Context, receiver string, i int, event string) error {
	id := programID(i)
	body := fmt.Sprintf(`{"name":"Customer %d","limits":{"rate_limit":%d,"max_subscriptions":1,"max_in_flight":4}}`, i, 100+i)
	if _, err := p.call(ctx, p.token, "", "PUT", "/v2/programs/"+id, body, http.StatusCreated); err != nil {
		return err
	}
	text, err := p.call(ctx, p.token, "", "POST", "/v2/programs/"+id+"/tokens", `{"name":"backend","user_id":"backend","scopes":["events.write"]}`,
		http.StatusCreated)
	if err != nil {
		return err
	}
	var token struct{ Data struct{ Secret string } }
	if err := json.Unmarshal(text, &token); err != nil {
		return err
	}
	body = fmt.Sprintf(`{"url":%q,"events":[{"name":%q}]}`, receiver+"/"+id, event)
	if _, err = p.call(ctx, p.token, id, "POST", "/v2/webhooks/subscriptions", body, http.StatusCreated); err != nil {
		return err
	}
	body = fmt.Sprintf(`{"name":%q,"version":"1","number":%d}`, event, i)
	_, err = p.call(ctx, token.Data.Secret, "", "POST", "/v2/events", body, http.StatusCreated)
	return err
}

// checkApplied applies a file that describes the existing state, which changes nothing.
func checkApplied(t *testing.T, p *platform, receiver string, types []string) {
	t.Helper()
	var text strings.Builder
	text.WriteString("event_types:\n")
	for _, name := range types {
		var body struct{ Schema json.RawMessage }
		if err := json.Unmarshal([]byte(eventType(name, "number")), &body); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "  - {name: %s, schema: %s}\n", name, body.Schema)
	}
	text.WriteString("programs:\n")
	for i := range *programs {
		id := programID(i)
		fmt.Fprintf(&text, "  - id: %s\n    name: Customer %d\n    limits: {rate_limit: %d, max_subscriptions: 1, max_in_flight: 4}\n"+
			"    subscriptions: [{url: %q, events: [%s]}]\n"+
			"    tokens: [{name: backend, user: backend, scopes: [events.write], secret_file: %[2]d.token}]\n",
			id, i, 100+i, receiver+"/"+id, types[i%len(types)])
	}
	dir := t.TempDir()
	file, token := filepath.Join(dir, "platform.yml"), filepath.Join(dir, "platform.token")
	for name, content := range map[string]string{file: text.String(), token: p.token} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := p.Command("apply", "-f", file, "--url", p.URL(), "--token-file", token)
	if err != nil || !strings.Contains(out, "Nothing to change: ") {
		t.Errorf("apply: %v\n%s", err, out)
	}
}

// checkPrograms reads all programs over the API, page by page, with their health.
func checkPrograms(t *testing.T, p *platform) {
	t.Helper()
	seen := 0
	for number := 1; seen < *programs; number++ {
		text := p.must(t, "GET", fmt.Sprintf("/v2/programs?sort=id&page[size]=100&page[number]=%d", number), "", http.StatusOK)
		var page struct {
			Data []struct {
				ID         string
				Name       string
				Limits     map[string]*int
				Statistics struct{ Subscriptions, Tokens, Events int }
			}
		}
		if err := json.Unmarshal(text, &page); err != nil || len(page.Data) == 0 {
			t.Fatalf("page %d: %v: %s", number, err, bytes.TrimSpace(text))
		}
		for _, r := range page.Data {
			s := r.Statistics
			if r.ID != programID(seen) || s.Subscriptions != 1 || s.Tokens != 1 || s.Events != 1 || *r.Limits["rate_limit"] != 100+seen {
				t.Errorf("program %d: got %+v", seen, r)
			}
			seen++
		}
	}
}
