package crash

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"service/test/harness"
	"service/webhook"
)

// ownEvent is an event type that an installation has only after the import.
const ownEvent = "order.shipped"

const exportPassphrase = "correct horse battery"

// receiver checks every delivery as a partner does.
type receiver struct {
	t      *testing.T
	status int // of responses

	mu       sync.Mutex
	secret   webhook.SigningSecret
	verified int // number of deliveries
	carried  int // number of events in them
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	if harness.IsPing(body) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	seconds, _ := strconv.ParseInt(req.Header.Get("Webhook-Timestamp"), 10, 64)
	r.mu.Lock()
	defer r.mu.Unlock()
	want := r.secret.Sign(req.Header.Get("Webhook-Id"), time.Unix(seconds, 0), body)
	if got := req.Header.Get("Webhook-Signature"); r.secret != nil && got != want {
		r.t.Errorf("signature: got %q, want %q", got, want)
	}
	if got := req.Header.Get("Authorization"); got != "Bearer of the partner" {
		r.t.Errorf("authorization: got %q", got)
	}
	r.verified++
	r.carried += bytes.Count(body, []byte(`"content_id":`))
	w.WriteHeader(r.status)
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verified
}

func (r *receiver) events() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.carried
}

// lists returns the responses of every list and of every record in it.
func lists(t *testing.T, in *harness.Instance, token string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	get := func(path string) json.RawMessage {
		data, _, err := harness.Get[json.RawMessage](in, token, path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(data)
		return data
	}
	each := func(path string) (ids []string) {
		var records []struct{ ID string }
		if err := json.Unmarshal(get(path+"?page[size]=100"), &records); err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			ids = append(ids, r.ID)
		}
		return ids
	}
	const subscriptions = "/v2/webhooks/subscriptions"
	for _, id := range each(subscriptions) {
		get(subscriptions + "/" + id)
		for _, delivery := range each(subscriptions + "/" + id + "/deliveries") {
			get(subscriptions + "/" + id + "/deliveries/" + delivery)
		}
		each(subscriptions + "/" + id + "/replays")
	}
	for _, path := range []string{"/v2/events", "/v2/incidents", "/v2/bulk_runs"} {
		for _, id := range each(path) {
			get(path + "/" + id)
		}
	}
	each("/v2/deliveries")
	return all
}

// exportedProgram is a program with successful and failed deliveries, and its export.
type exportedProgram struct {
	in           *harness.Instance
	good, bad    *receiver
	token        string
	subscription string
	before       map[string]string
	passphrase   string // file
	file         string
}

func exportProgram(t *testing.T, binary string, events, batch int) *exportedProgram {
	t.Helper()
	p := &exportedProgram{good: &receiver{t: t, status: http.StatusOK}, bad: &receiver{t: t, status: http.StatusGone}}
	dir := t.TempDir()
	p.passphrase, p.file = filepath.Join(dir, "passphrase"), filepath.Join(dir, "acme.program")
	if err := os.WriteFile(p.passphrase, []byte(exportPassphrase), 0o600); err != nil {
		t.Fatal(err)
	}
	p.in = harness.NewInstance(t, binary, filepath.Join(dir, "data"), "--log-level", "warn", "--batch-size", strconv.Itoa(batch),
		"--rejecting-after", "0")
	p.token = p.in.Token("acme")
	p.in.MustStart()
	platform, err := p.in.Command("token", "create", "--data", p.in.Data, "--scope", "platform", "--user", "operator")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, platform)
	}
	p.in.CreateEventType(strings.TrimSpace(platform), ownEvent)
	for i, r := range []*receiver{p.good, p.bad} {
		var answer struct {
			Data struct {
				ID            string
				SigningSecret string `json:"signing_secret"`
			}
		}
		status, err := p.in.Call(t.Context(), p.token, "POST", p.in.URL()+"/v2/webhooks/subscriptions", map[string]any{
			"url": harness.Listen(t, r), "events": harness.Events(ownEvent), "authorization_header": "Bearer of the partner",
		}, &answer)
		if err != nil || status != http.StatusCreated {
			t.Fatalf("create a subscription: %d, %v", status, err)
		}
		if r.secret, err = webhook.ParseSigningSecret(answer.Data.SigningSecret); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			p.subscription = answer.Data.ID
		}
	}
	for left := events; left > 0; left -= 500 {
		some := make([]map[string]any, min(left, 500))
		for i := range some {
			some[i] = map[string]any{"name": ownEvent, "version": "1", "content_id": i + 1}
		}
		p.in.Publish(p.token, map[string]any{"events": some})
	}
	arrived := func() int { return p.good.events() + p.bad.events() }
	for n := arrived(); p.good.events() < events || p.bad.events() < events; n = arrived() { // as long as some arrive
		harness.WaitFor(t, "another delivery", func() bool { return arrived() > n })
	}
	harness.WaitFor(t, "the end of all deliveries", func() bool { return p.idle(events) })
	p.before = lists(t, p.in, p.token)
	out, err := p.in.Command("program", "export", "acme", p.file, "--data", p.in.Data, "--passphrase-file", p.passphrase)
	if err != nil || !strings.Contains(out, "The export needs up to ") || !strings.Contains(out, "Created "+p.file+": program acme as of") {
		t.Fatalf("export: %v\n%s", err, out)
	}
	return p
}

// idle reports whether no delivery is in flight or waits, and each event has failed in its own
// delivery: the parts of a rejected delivery are created after it has ended.
func (p *exportedProgram) idle(events int) bool {
	open, _, err := harness.Get[[]harness.Delivery](p.in, p.token, "/v2/deliveries?filter[status]=pending&page[size]=1")
	if err != nil || len(open) > 0 {
		return false
	}
	incidents, _, err := harness.Get[[]struct {
		Failed int `json:"failed_deliveries"`
	}](p.in, p.token, "/v2/incidents")
	return err == nil && len(incidents) == 1 && incidents[0].Failed == events
}

func (p *exportedProgram) importInto(in *harness.Instance, file, passphrase string) (string, error) {
	return in.Command("program", "import", file, "--data", in.Data, "--passphrase-file", passphrase)
}

// differ reports the differences between two sets of lists.
func differ(t *testing.T, before, after map[string]string) {
	t.Helper()
	if maps.Equal(before, after) {
		return
	}
	for path, text := range before {
		if after[path] != text {
			t.Errorf("GET %s\n\tbefore %s\n\tafter  %s", path, text, after[path])
		}
	}
}

// TestProgramMoved exports a program, erases it, and imports it into an empty installation: every
// list is equal, and every secret works. Exports that cannot be used change nothing.
func TestProgramMoved(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	p := exportProgram(t, binary, 40, 5)
	content := harness.Read(t, p.file)
	if bytes.Contains(content, []byte(p.subscription)) {
		t.Error("the export is not encrypted")
	}

	eraseAtSource(t, p)

	in := harness.NewInstance(t, binary, t.TempDir(), "--log-level", "warn", "--batch-size", "5", "--rejecting-after", "0")
	process := in.MustStart()
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("another passphrase"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed := func(content []byte) string {
		name := filepath.Join(t.TempDir(), "changed")
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	flipped := bytes.Clone(content)
	flipped[len(flipped)/2] ^= 1
	refused := func(file, passphrase, want string) {
		t.Helper()
		out, err := p.importInto(in, file, passphrase)
		if err == nil || !strings.Contains(out, want) || !strings.Contains(out, "nothing was changed") {
			t.Errorf("got %v, want %q:\n%s", err, want, out)
		}
	}
	refused(p.file, wrong, "wrong passphrase")
	refused(changed(content[:len(content)-100]), p.passphrase, "not a complete export")
	refused(changed(flipped), p.passphrase, "not a complete export")
	refused(changed(bytes.Replace(content, []byte(`"format":1`), []byte(`"format":2`), 1)), p.passphrase, "use a newer version of service")
	if tokens, err := in.Command("token", "list", "--data", in.Data, "--json"); err != nil || strings.TrimSpace(tokens) != "[]" {
		t.Errorf("a refused import added tokens: %v %s", err, tokens)
	}

	out, err := p.importInto(in, p.file, p.passphrase)
	if err != nil || !strings.Contains(out, "Imported program acme as of ") || !strings.Contains(out, ": 2 subscriptions, 40 events, ") {
		t.Fatalf("import: %v\n%s", err, out)
	}
	differ(t, p.before, lists(t, in, p.token))
	refused(p.file, p.passphrase, "exists here already")

	// Every secret works: the token publishes, and the receivers verify.
	for range 2 {
		before := p.good.count()
		in.Publish(p.token, map[string]any{"name": ownEvent, "version": "1", "content_id": 1})
		harness.WaitFor(t, "a delivery", func() bool { return p.good.count() > before })
		in.MustStop(process) // even after a restart
		process = in.MustStart()
	}
	in.MustStop(process)
	if faults := harness.DatabaseFaults(t, in.Data); len(faults) > 0 {
		t.Errorf("the database has faults: %v", faults)
	}

	// Without a running server.
	offline := harness.NewInstance(t, binary, t.TempDir(), "--log-level", "warn")
	offline.Create()
	if out, err := p.importInto(offline, p.file, p.passphrase); err != nil {
		t.Fatalf("import without a server: %v\n%s", err, out)
	}
	offline.MustStart()
	differ(t, p.before, lists(t, offline, p.token))
	offline.MustStop(offline.Last())
	out, err = offline.Command("program", "delete", "--yes", "acme", "--data", offline.Data)
	if err != nil || !strings.Contains(out, "Erased program acme.") {
		t.Fatalf("delete without a server: %v\n%s", err, out)
	}
}

// eraseAtSource erases the program at its source.
func eraseAtSource(t *testing.T, p *exportedProgram) {
	t.Helper()
	out, err := p.in.Command("program", "delete", "--yes", "acme", "--data", p.in.Data)
	if err != nil || !strings.Contains(out, "its tokens are invalid") || !strings.Contains(out, "There is no replica. Backups, and copies") {
		t.Fatalf("delete: %v\n%s", err, out)
	}
	status, err := p.in.Call(t.Context(), p.token, "GET", p.in.URL()+"/v2/events", nil, nil)
	if err != nil || status != http.StatusUnauthorized {
		t.Errorf("with a token of the program: %d, %v", status, err)
	}
	harness.WaitFor(t, "the end of the erasure", func() bool {
		out, err := p.in.Command("token", "create", "--data", p.in.Data, "--program", "acme", "--user", "u", "--scope", "events.read")
		if err != nil && !strings.Contains(out, "is being erased") {
			t.Fatalf("token create: %v\n%s", err, out)
		}
		return err == nil
	})
}

// TestProgramKilled kills the service in the middle of imports and erasures. An interrupted import
// leaves nothing visible and can be repeated. An interrupted erasure continues.
func TestProgramKilled(t *testing.T) {
	harness.Long(t)
	const kills = 4
	binary := harness.Build(t)
	p := exportProgram(t, binary, 10_000, 20)
	in := harness.NewInstance(t, binary, t.TempDir(), "--log-level", "warn", "--batch-size", "5", "--rejecting-after", "0")
	process := in.MustStart()
	other := in.Token("other")
	sub := in.Subscribe(other, harness.Subscription{URL: harness.Listen(t, &receiver{t: t, status: http.StatusOK}),
		Events: harness.Events("content_published")})
	rows := func() int { return databaseCount(t, in.Data, "events WHERE program_id = 'acme'") }
	cut := 0
	for kill := range kills {
		harness.WaitForCount(t, "the removal of the last import", 0, rows)
		cmd := exec.Command(binary, "program", "import", p.file, "--passphrase-file", p.passphrase, "--data", in.Data)
		cmd.Env = harness.Environment()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		release := lockImport(t, in.Data, 500*(1+4*kill))
		in.Kill(process)
		release()
		complete := cmd.Wait() == nil
		process = in.MustStart()
		if complete { // between two checks
			if out, err := in.Command("program", "delete", "--yes", "acme", "--data", in.Data); err != nil {
				t.Fatalf("delete: %v\n%s", err, out)
			}
			continue
		}
		cut++
		if status, err := in.Call(t.Context(), p.token, "GET", in.URL()+"/v2/events", nil, nil); err != nil || status != http.StatusUnauthorized {
			t.Errorf("a token of half a program: %d, %v", status, err)
		}
	}
	t.Logf("%d of %d kills interrupted an import", cut, kills)
	if cut == 0 {
		t.Error("no import was killed")
	}
	// A repeated import waits until the remains of the last one are removed.
	if out, err := p.importInto(in, p.file, p.passphrase); err != nil {
		t.Fatalf("import: %v\n%s", err, out)
	}
	differ(t, p.before, lists(t, in, p.token))

	if out, err := in.Command("program", "delete", "--yes", "acme", "--data", in.Data); err != nil {
		t.Fatalf("delete: %v\n%s", err, out)
	}
	all := rows()
	for range kills {
		start := databaseCount(t, in.Data, "deliveries WHERE program_id = 'acme'") + rows()
		if start == 0 {
			break
		}
		harness.WaitFor(t, "a part of the erasure", func() bool {
			return databaseCount(t, in.Data, "deliveries WHERE program_id = 'acme'")+rows() < start
		})
		in.Kill(process)
		process = in.MustStart()
	}
	harness.WaitFor(t, "the end of the erasure", func() bool { return databaseCount(t, in.Data, "programs WHERE id = 'acme'") == 0 })
	if rows() != 0 || all == 0 {
		t.Errorf("%d of %d events are left", rows(), all)
	}
	if _, _, err := harness.Get[json.RawMessage](in, other, "/v2/webhooks/subscriptions/"+sub); err != nil {
		t.Errorf("the other program: %v", err)
	}
	in.MustStop(process)
	if faults := harness.DatabaseFaults(t, in.Data); len(faults) > 0 {
		t.Errorf("the database has faults: %v", faults)
	}
}

// lockImport waits until an import has added a number of events, and locks the database against the
// next step until release is called.
func lockImport(t *testing.T, data string, events int) (release func()) {
	t.Helper()
	db := harness.OpenDatabase(t, data)
	harness.WaitFor(t, "a part of the import", func() bool {
		if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
			return false // a step holds the lock
		}
		var n int
		if err := db.QueryRow("SELECT count(*) FROM events WHERE program_id = 'acme'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n >= events {
			return true
		}
		if _, err := db.Exec("ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		return false
	})
	return func() { db.Close() }
}

// databaseCount counts rows while the service runs.
func databaseCount(t *testing.T, data, rows string) (n int) {
	t.Helper()
	db := harness.OpenDatabase(t, data)
	defer db.Close()
	if err := db.QueryRow("SELECT count(*) FROM " + rows).Scan(&n); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", rows, err))
	}
	return n
}
