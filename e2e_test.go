package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"service/webhook"
)

// TestEndToEnd is what only the built binary can show. Each part says what in
// its own file.
func TestEndToEnd(t *testing.T) {
	binary := buildBinary(t)
	tools := replicaTools(t)
	t.Run("interrupted", func(t *testing.T) { testInterrupted(t, binary) })
	t.Run("kill", func(t *testing.T) { testKill(t, binary) })
	t.Run("egress", func(t *testing.T) { testEgress(t, binary) })
	t.Run("key", func(t *testing.T) { testKeyKilled(t, binary) })
	t.Run("canary", func(t *testing.T) { testCanary(t, binary) })
	t.Run("power cut", func(t *testing.T) { testPowerCut(t, binary) })
	t.Run("failing disk", func(t *testing.T) { testIOErrors(t, binary) })
	t.Run("full disk", func(t *testing.T) { testFullDisk(t, binary) })
	t.Run("SIGTERM", func(t *testing.T) { testSigterm(t, binary) })
	t.Run("aborted", func(t *testing.T) { testAborted(t, binary) })
	t.Run("backup", func(t *testing.T) { testBackup(t, binary) })
	t.Run("restoration", func(t *testing.T) { testRestoreKilled(t, binary) })
	t.Run("log", func(t *testing.T) { testLog(t, binary) })
	t.Run("replica killed", func(t *testing.T) { testReplicaKilled(t, binary) })
	t.Run("replica drill", func(t *testing.T) { testRestoreDrill(t, binary, tools) })
	t.Run("replica unreachable", func(t *testing.T) { testReplicaUnreachable(t, binary, tools) })
	t.Run("replica held", func(t *testing.T) { testReplicaHeld(t, binary) })
	t.Run("replica flat out", func(t *testing.T) { testReplicaFlatOut(t, binary) })
	t.Run("damage", func(t *testing.T) { testDamage(t, binary) })
}

// mutation is a change of one source file.
type mutation struct{ file, old, new string }

// buildBinary builds the service as its users do, in a folder of the test:
// without the race detector, with the SQLite driver that the test runs with.
// Mutations show that a test can fail: the tree itself stays as it is.
func buildBinary(tb testing.TB, mutations ...mutation) string {
	tb.Helper()
	dir := tb.TempDir()
	binary := filepath.Join(dir, "service")
	args := []string{"build", "-o", binary}
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for i, m := range mutations {
		from, err := filepath.Abs(m.file)
		if err != nil {
			tb.Fatal(err)
		}
		read := from
		if mutated := overlay.Replace[from]; mutated != "" {
			read = mutated
		}
		source, err := os.ReadFile(read)
		if err != nil {
			tb.Fatal(err)
		}
		changed := strings.Replace(string(source), m.old, m.new, 1)
		if changed == string(source) {
			tb.Fatalf("%s no longer has %q", m.file, m.old)
		}
		to := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(to, []byte(changed), 0o600); err != nil {
			tb.Fatal(err)
		}
		overlay.Replace[from] = to
	}
	if len(mutations) > 0 {
		b, err := json.Marshal(overlay)
		if err != nil {
			tb.Fatal(err)
		}
		path := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			tb.Fatal(err)
		}
		args = append(args, "-overlay", path)
	}
	if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		tb.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// instance is a data directory and the service on it, run after run.
type instance struct {
	tb     testing.TB
	binary string
	data   string
	flags  []string // of serve, beside --data and --listen
	under  []string // a command that runs another one in its own process; none by default
	client *http.Client

	mu      sync.Mutex
	runs    []*serviceRun
	base    string        // the URL of the run that is ready, "" while none is
	changed chan struct{} // closed and replaced when base changes
}

// serviceRun is one process of an instance, from its start to its end.
type serviceRun struct {
	number  int // from 0
	process *os.Process
	base    chan string   // receives the URL, once
	exited  chan struct{} // closed when the process was waited for
	log     bytes.Buffer  // its stderr, to be read after exited
	status  int           // exit status, -1 after a signal; the same

	started time.Time
	ready   time.Time // zero if it never was
	ended   time.Time // when it was no more
}

// newInstance returns an instance whose process, if there is one, ends with the
// test.
func newInstance(tb testing.TB, binary, data string, flags ...string) *instance {
	in := &instance{
		tb: tb, binary: binary, data: data, flags: flags, changed: make(chan struct{}),
		client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 512}},
	}
	tb.Cleanup(func() {
		if r := in.last(); r != nil {
			in.kill(r)
			if tb.Failed() {
				tb.Logf("the last run said:\n%s", &r.log)
			}
		}
		in.client.CloseIdleConnections()
	})
	return in
}

// cleanEnvironment is the environment without what would configure the service.
func cleanEnvironment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SERVICE_") {
			env = append(env, e)
		}
	}
	return env
}

// token makes a token with all scopes by the command line.
func (in *instance) token(program string) string {
	in.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, in.binary, "token", "create", "--data", in.data, "--program", program, "--user", "tester",
		"--scope", "webhooks.read,webhooks.write,events.read,events.write")
	cmd.Env = cleanEnvironment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		in.tb.Fatalf("token create: %v\n%s", err, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// start starts the service and does not wait for it. Every run has another
// port: the one of the last may have been given to somebody else.
func (in *instance) start() *serviceRun {
	in.tb.Helper()
	args := slices.Concat(in.under, []string{in.binary, "serve", "--data", in.data, "--listen", "127.0.0.1:0", "--tls", "off",
		"--allow-http", "--allow-destination", "127.0.0.0/8", "--rate-limit", "0"}, in.flags)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = cleanEnvironment()
	return in.launch(cmd)
}

// launch starts a command that runs the service on the instance's data.
func (in *instance) launch(cmd *exec.Cmd) *serviceRun {
	in.tb.Helper()
	r := &serviceRun{base: make(chan string, 1), exited: make(chan struct{}), started: time.Now()}
	cmd.Stderr = &r.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		in.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		in.tb.Fatal(err)
	}
	r.process = cmd.Process
	in.mu.Lock()
	r.number = len(in.runs)
	in.runs = append(in.runs, r)
	in.mu.Unlock()
	go func() {
		defer close(r.exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if f := strings.Fields(lines.Text()); len(f) == 2 && f[0] == "API" {
				r.base <- f[1]
			}
		}
		cmd.Wait()
		r.ended = time.Now()
		r.status = cmd.ProcessState.ExitCode()
	}()
	return r
}

// awaitReady waits until the run accepts events. It returns false when the run
// has ended before.
func (in *instance) awaitReady(r *serviceRun) bool {
	in.tb.Helper()
	deadline := time.After(30 * time.Second)
	var base string
	select {
	case base = <-r.base:
	case <-r.exited:
		return false
	case <-deadline:
		in.tb.Fatal("the service did not say where it is")
	}
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		resp, err := in.client.Get(base + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				tick.Stop()
				r.ready = time.Now()
				in.setBase(base)
				return true
			}
		}
		select {
		case <-tick.C:
		case <-r.exited:
			return false
		case <-deadline:
			in.tb.Fatalf("the service did not get ready: %v", err)
		}
	}
}

// mustStart starts the service and waits until it is ready.
func (in *instance) mustStart() *serviceRun {
	in.tb.Helper()
	r := in.start()
	if !in.awaitReady(r) {
		in.tb.Fatalf("the service ended at its start, with status %d:\n%s", r.status, &r.log)
	}
	return r
}

func (in *instance) setBase(base string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.base = base
	close(in.changed)
	in.changed = make(chan struct{})
}

// await returns the URL of the service as soon as it is ready; false when ctx
// has ended.
func (in *instance) await(ctx context.Context) (string, bool) {
	for {
		in.mu.Lock()
		base, changed := in.base, in.changed
		in.mu.Unlock()
		if base != "" {
			return base, ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", false
		}
	}
}

func (in *instance) last() *serviceRun {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.runs) == 0 {
		return nil
	}
	return in.runs[len(in.runs)-1]
}

// kill ends a run with SIGKILL and waits until it is no more.
func (in *instance) kill(r *serviceRun) {
	in.setBase("")
	r.process.Kill() // it may have ended already
	<-r.exited
}

// stop asks a run to end, as an operator would, and returns its exit status.
func (in *instance) stop(r *serviceRun) int {
	in.tb.Helper()
	in.setBase("")
	if err := r.process.Signal(syscall.SIGTERM); err != nil {
		in.tb.Fatal(err)
	}
	select {
	case <-r.exited:
	case <-time.After(30 * time.Second):
		in.tb.Fatal("the service did not end on SIGTERM")
	}
	return r.status
}

// call calls the API. body is sent as JSON, or as it is when it is []byte; into
// receives the answer's data when the status is a success. The error says that
// there was no complete answer; the status may be known even then.
func (in *instance) call(ctx context.Context, token, method, url string, body, into any) (status int, err error) {
	var b []byte
	media := "application/json"
	switch body := body.(type) {
	case nil:
	case []byte:
		b = body
	case ndjson:
		b, media = body, "application/x-ndjson"
	default:
		if b, err = json.Marshal(body); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(b))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", media)
	resp, err := in.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if b, err = io.ReadAll(resp.Body); err != nil {
		return resp.StatusCode, err
	}
	if into == nil || resp.StatusCode > 299 {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, json.Unmarshal(b, into)
}

// ndjson is a body of lines.
type ndjson []byte

// get reads one record, or a page of them, from the run that is ready.
func get[T any](in *instance, token, path string) (T, string, error) {
	var answer struct {
		Data T
		Meta struct{ Pagination struct{ Next string } }
	}
	base, _ := in.await(context.Background())
	status, err := in.call(context.Background(), token, "GET", base+path, nil, &answer)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d", path, status)
	}
	return answer.Data, answer.Meta.Pagination.Next, err
}

// feed reads a whole feed, newest first.
func feed[T any](in *instance, token, path string) ([]T, error) {
	var all []T
	for query := "?page[size]=100"; ; {
		page, next, err := get[[]T](in, token, path+query)
		all = append(all, page...)
		if err != nil || next == "" {
			return all, err
		}
		query = "?page[size]=100&page[cursor]=" + next
	}
}

// deliveryRead is a delivery as the API shows it.
type deliveryRead struct {
	ID             string
	SubscriptionID string `json:"subscription_id"`
	Status         webhook.Status
	FailureReason  webhook.FailureReason `json:"failure_reason"`
	AttemptsMade   int                   `json:"attempts_made"`
	Events         []webhook.EventRef
	Attempts       []attemptRead
}

type attemptRead struct {
	Number         int
	StartedAt      time.Time `json:"started_at"`
	Result         webhook.Result
	DurationMS     int64 `json:"duration_ms"`
	ResponseStatus int   `json:"response_status"`
	Error          struct{ Code webhook.ErrorCode }
}

// newSubscription is what a subscription is created with.
type newSubscription struct {
	URL         string              `json:"url"`
	Events      []map[string]string `json:"events"`
	Ordered     bool                `json:"ordered,omitempty"`
	MaxInFlight int                 `json:"max_in_flight,omitempty"`
}

func eventList(names ...string) []map[string]string {
	var list []map[string]string
	for _, n := range names {
		list = append(list, map[string]string{"name": n})
	}
	return list
}

// subscribe creates a subscription and returns its id.
func (in *instance) subscribe(token string, s newSubscription) string {
	in.tb.Helper()
	var answer struct{ Data struct{ ID string } }
	base, _ := in.await(context.Background())
	status, err := in.call(context.Background(), token, "POST", base+"/v2/webhooks/subscriptions", s, &answer)
	if err != nil || status != http.StatusCreated {
		in.tb.Fatalf("create a subscription: status %d, %v", status, err)
	}
	return answer.Data.ID
}

// listenLoopback serves HTTP on a free port of this machine until the test
// ends, and returns the URL.
func listenLoopback(tb testing.TB, h http.Handler) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	serve(tb, l, h)
	return "http://" + l.Addr().String()
}

// databaseFaults says what SQLite finds wrong with the database of a data
// directory that nobody has open.
func databaseFaults(data string) (faults []string, err error) {
	// The name is that of the one driver that is linked in, whichever it is.
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(data, "service.db"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, check := range []string{
		"SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
		`SELECT 'foreign key of ' || "table" || ' row ' || rowid FROM pragma_foreign_key_check`,
		"SELECT 'seq of program ' || program_id || ' has gaps' FROM events GROUP BY program_id HAVING max(seq) - min(seq) + 1 <> count(*) OR min(seq) <> 1",
	} {
		rows, err := db.Query(check)
		if err != nil {
			return faults, fmt.Errorf("%s: %w", check, err)
		}
		for rows.Next() {
			var fault string
			if err := rows.Scan(&fault); err != nil {
				return faults, errors.Join(err, rows.Close())
			}
			faults = append(faults, fault)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return faults, err
		}
	}
	return faults, nil
}
