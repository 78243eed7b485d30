// Package apply tests service apply with the built binary: many records at once, runs that change
// nothing, and interrupted runs.
package apply

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// programs is the number of programs in the file of the tests. Each has limits, a subscription
// and a token.
const programs = 100

// records is the number of records in the file: the event types and three per program.
const records = 3 + 3*programs

var eventTypes = []string{"order.created", "order.shipped", "order.item.returned"}

// folder writes the file into a new folder, and returns the folder.
func folder(t *testing.T, receiver string) string {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	b.WriteString("event_types:\n")
	for _, name := range eventTypes {
		fmt.Fprintf(&b, `  - name: %[1]s
    schema:
      $schema: https://json-schema.org/draft/2020-12/schema
      title: %[1]s
      description: Emitted for the test.
      type: object
      properties:
        id: {type: string, format: uuid}
        timestamp: {type: string, format: date-time}
        name: {const: %[1]s}
        version: {const: "1"}
        number: {type: integer, minimum: 0}
      required: [id, timestamp, name, version, number]
      additionalProperties: false
      examples:
        - {id: 019ddcfe-0f37-4cf8-8f53-1f6be7c2d3c7, timestamp: "2026-03-14T08:24:48Z", name: %[1]s, version: "1", number: 1}
`, name)
	}
	b.WriteString("programs:\n")
	for i := range programs {
		fmt.Fprintf(&b, `  - id: p%[1]d
    name: Program %[1]d
    limits: {max_subscriptions: 5, rate_limit: 600, max_in_flight: 4}
    subscriptions:
      - url: %[2]s/p%[1]d
        events: [%[3]s]
        max_in_flight: 2
        authorization_header: {file: authorization}
        signing_secret_file: secrets/p%[1]d.hook
    tokens:
      - {name: backend, user: backend, scopes: [events.write, webhooks.read], secret_file: secrets/p%[1]d.token}
`, i, receiver, strings.Join(eventTypes, ", "))
	}
	for name, content := range map[string]string{"platform.yml": b.String(), "authorization": "Bearer hunter2\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// platformToken creates a platform token and returns the file that contains it.
func platformToken(t *testing.T, in *harness.Instance) string {
	t.Helper()
	out, err := exec.Command(in.Binary, "token", "create", "--data", in.Data, "--scope", "platform", "--user", "ops").Output()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "platform.token")
	if err := os.WriteFile(name, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// run runs service apply and returns its streams and its exit status.
func run(t *testing.T, in *harness.Instance, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), in.Binary, append([]string{"apply"}, args...)...)
	cmd.Env = harness.Environment()
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String()+errors.String(), "hunter2") {
		t.Error("the output has a secret")
	}
	return out.String(), errors.String(), cmd.ProcessState.ExitCode()
}

// lastLine returns the last line of a text.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// audited returns the number of entries in the audit log. No process may have the data open.
func audited(t *testing.T, in *harness.Instance) (n int) {
	t.Helper()
	db := harness.OpenDatabase(t, in.Data)
	defer db.Close()
	if err := db.QueryRow("SELECT count(*) FROM audit").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// writes returns the number of requests in the log of a process that could write.
func writes(p *harness.Process) (n int) {
	for line := range strings.Lines(p.Log.String()) {
		if strings.Contains(line, "msg=request") && !strings.Contains(line, "method=GET") {
			n++
		}
	}
	return n
}

// hooks receives deliveries and counts the authorized ones by path.
type hooks struct {
	mu     sync.Mutex
	events map[string]int // deliveries of events, without pings
	denied int
}

func (h *hooks) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer hunter2" {
		h.denied++
	}
	if !harness.IsPing(body) {
		h.events[r.URL.Path]++
	}
}

// check checks that every program of the file has one subscription and one valid token whose
// secret was written, and nothing else.
func check(t *testing.T, in *harness.Instance, dir string) {
	t.Helper()
	for i := range programs {
		name := fmt.Sprintf("p%d", i)
		secret := strings.TrimSpace(string(harness.Read(t, filepath.Join(dir, "secrets", name+".token"))))
		list, _, err := harness.Get[[]struct{ ID string }](in, secret, "/v2/webhooks/subscriptions")
		if err != nil || len(list) != 1 {
			t.Errorf("%s: got %d subscriptions, %v; want 1", name, len(list), err)
		}
		if hook := harness.Read(t, filepath.Join(dir, "secrets", name+".hook")); !bytes.HasPrefix(hook, []byte("whsec_")) {
			t.Errorf("%s: got no signing secret", name)
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "secrets"))
	if err != nil || len(files) != 2*programs {
		t.Errorf("got %d files with secrets, %v; want %d: %v", len(files), err, 2*programs, files)
	}
}

// TestManyPrograms applies a file with 100 programs. A dry run and a second run write nothing.
func TestManyPrograms(t *testing.T) {
	harness.Long(t)
	h := &hooks{events: make(map[string]int)}
	dir := folder(t, harness.Listen(t, h))
	in := harness.NewInstance(t, harness.Build(t), t.TempDir())
	in.MustStop(in.MustStart()) // creates the data
	token := platformToken(t, in)
	before := audited(t, in)
	flags := func(more ...string) []string {
		return append([]string{"-f", filepath.Join(dir, "platform.yml"), "--url", in.URL(), "--token-file", token}, more...)
	}

	p := in.MustStart()
	out, stderr, status := run(t, in, flags("--dry-run")...)
	if want := fmt.Sprintf("%d to create, 0 to change, 0 unchanged", records); status != 0 || lastLine(out) != want ||
		strings.Count(out, "\n+ ") != records-1 {
		t.Fatalf("dry run: got status %d, %q, %s; want %q", status, lastLine(out), stderr, want)
	}
	in.MustStop(p)
	if n := writes(p); n != 0 {
		t.Errorf("the dry run sent %d requests that write", n)
	}
	if n := audited(t, in); n != before {
		t.Errorf("the dry run made %d entries in the audit log", n-before)
	}

	in.MustStart()
	out, stderr, status = run(t, in, flags()...)
	if want := fmt.Sprintf("%d changes made, 0 unchanged", records); status != 0 || lastLine(out) != want {
		t.Fatalf("got status %d, %q, %s; want %q", status, lastLine(out), stderr, want)
	}
	check(t, in, dir)
	for i := range programs {
		secret := strings.TrimSpace(string(harness.Read(t, filepath.Join(dir, "secrets", fmt.Sprintf("p%d.token", i)))))
		in.Publish(secret, map[string]any{"name": eventTypes[i%3], "version": "1", "number": i})
	}
	harness.WaitFor(t, "an event for every program", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.events) == programs
	})
	if h.denied > 0 {
		t.Errorf("%d deliveries lack the credential", h.denied)
	}
	in.MustStop(in.Last())

	applied := audited(t, in)
	if applied != before+records {
		t.Errorf("got %d entries in the audit log, want %d", applied-before, records)
	}
	p = in.MustStart()
	want := fmt.Sprintf("Nothing to change: %d unchanged", records)
	for _, more := range [][]string{nil, {"--dry-run"}} {
		if out, stderr, status = run(t, in, flags(more...)...); status != 0 || out != want+"\n" || stderr != "" {
			t.Errorf("second run: got status %d, %q, %q; want %q", status, out, stderr, want)
		}
	}
	in.MustStop(p)
	if n := writes(p); n != 0 {
		t.Errorf("the second run sent %d requests that write", n)
	}
	if n := audited(t, in); n != applied {
		t.Errorf("the second run made %d entries in the audit log", n-applied)
	}
}

// TestInterrupted kills service apply after a number of changes, repeatedly, and the server once.
// The last run completes the rest: no record exists twice, and no secret is lost.
func TestInterrupted(t *testing.T) {
	harness.Long(t)
	dir := folder(t, harness.Listen(t, &hooks{events: make(map[string]int)}))
	in := harness.NewInstance(t, harness.Build(t), t.TempDir())
	p := in.MustStart()
	changes := &harness.Hold{Counts: func(r *http.Request) bool { return r.Method != http.MethodGet }}
	socket := in.SocketProxy(changes)
	file := filepath.Join(dir, "platform.yml")
	const kills = 12 // together with the last run they make fewer than all changes
	made := 0
	for range kills {
		made += interrupt(t, in, socket, changes, func(cmd *exec.Cmd) { cmd.Process.Kill() }, file)
	}
	made += interrupt(t, in, socket, changes, func(*exec.Cmd) { in.Kill(p) }, file)
	t.Logf("%d changes seen before %d kills of the command and one of the server", made, kills)
	in.MustStart()
	out, stderr, status := run(t, in, "-f", file, "--data", in.Data)
	if status != 0 {
		t.Fatalf("got status %d, %q, %s", status, lastLine(out), stderr)
	}
	check(t, in, dir)
	out, _, status = run(t, in, "-f", file, "--data", in.Data)
	if status != 0 || out != fmt.Sprintf("Nothing to change: %d unchanged\n", records) {
		t.Errorf("second run: got status %d, %q", status, out)
	}
	in.MustStop(in.Last())
	db := harness.OpenDatabase(t, in.Data)
	defer db.Close()
	var twice int
	err := db.QueryRow(`SELECT count(*) FROM (SELECT 1 FROM tokens WHERE revoked_at IS NULL GROUP BY program_id, name HAVING count(*) > 1
		UNION ALL SELECT 1 FROM subscriptions WHERE deleted_at IS NULL GROUP BY program_id, url HAVING count(*) > 1)`).Scan(&twice)
	if err != nil || twice > 0 {
		t.Errorf("%d records exist twice, %v", twice, err)
	}
}

// maxChanges is the maximum number of changes that an interrupted run makes. It leaves some for
// each run.
const maxChanges = 20

// interrupt runs service apply over the admin socket and calls strike while a random change is
// held, before the server receives it or before the command receives the response. It returns the
// number of changes that the command reported.
func interrupt(t *testing.T, in *harness.Instance, socket string, changes *harness.Hold, strike func(*exec.Cmd), file string) (made int) {
	t.Helper()
	held, release := changes.Next(1+rand.IntN(maxChanges), rand.IntN(2) == 0)
	cmd := exec.Command(in.Binary, "apply", "-f", file, "--data", socket, "--retry-for", "1s")
	cmd.Env = harness.Environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Receive(t, "the held change", held)
	strike(cmd)
	release()
	if err := cmd.Wait(); err == nil {
		t.Fatalf("the command succeeded without a change:\n%s", &stderr)
	}
	if code := cmd.ProcessState.ExitCode(); code != -1 && (code != 1 || !strings.Contains(stderr.String(), "; the next run makes the rest")) {
		t.Errorf("got status %d:\n%s", code, &stderr)
	}
	return strings.Count(stdout.String(), "\n")
}
