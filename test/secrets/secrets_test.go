package secrets

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"service/test/harness"
	"service/webhook"
)

// TestCanary gives the service a secret wherever it accepts one, uses every part of it, and
// searches for these secrets in the data directory, a backup, the log and every response. The
// subtests named "control" show that the search finds a leak.
func TestCanary(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	t.Run("control: scanner", testScanner)
	t.Run("control: without redaction", func(t *testing.T) {
		careless := harness.Build(t, harness.Mutation{File: "dispatcher/client/client.go", Old: "r.redact(&a)", New: "_ = r.redact"})
		faults := newCanaryRun(t, careless).drive()
		if !slices.ContainsFunc(faults, func(f string) bool {
			return strings.Contains(f, "authorization_header") && strings.Contains(f, "service.db")
		}) {
			t.Errorf("a service without redaction: got faults %q, want the authorization header in service.db", faults)
		}
	})
	t.Run("service", func(t *testing.T) {
		for _, fault := range newCanaryRun(t, binary).drive() {
			t.Error(fault)
		}
	})
}

func testScanner(t *testing.T) {
	secret := `Bearer "x&y"/é+` + harness.RandomHex(24)
	c := harness.NewCanary("it", secret, secret[len(secret)-24:], []byte("\x00\xff0123456789abcdef"))
	for spelling, b := range c.Spellings {
		if c.Find(slices.Concat([]byte("before"), b, []byte("after"))) == "" {
			t.Errorf("spelling %s: not found", spelling)
		}
	}
	inJSON, err := json.Marshal(map[string]string{"a": secret})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{inJSON, []byte(base64.StdEncoding.EncodeToString(inJSON)), []byte(url.Values{"q": {secret}}.Encode()),
		[]byte(hex.EncodeToString([]byte(secret)))} {
		if c.Find(b) == "" {
			t.Errorf("not found in %s", b)
		}
	}
	if got := c.Find([]byte("Bearer é and much else")); got != "" {
		t.Errorf("text without the secret: got %s, want none", got)
	}
}

// alertSecretFile is the file with the secret that signs alerts.
const alertSecretFile = "alert.secret"

// canaryRun is a service with canaries: secrets that must not appear anywhere.
type canaryRun struct {
	t      *testing.T
	in     *harness.Instance
	key    string // the file of the secret key
	base   string
	server string // the base URL of the receivers

	token, revoked, unknown string            // tokens
	ids                     map[string]string // subscription IDs by the path of the receiver
	newKey                  string            // the secret key after its rotation

	mu       sync.Mutex
	canaries []harness.Canary
	echoed   []string // what receivers respond with
	seen     []string // the Authorization and X-Api-Key headers that receivers got
	faults   []string
	searched int // number of searched texts
}

func newCanaryRun(t *testing.T, binary string) *canaryRun {
	c := &canaryRun{t: t, key: filepath.Join(t.TempDir(), "key")}
	if err := os.WriteFile(c.key, []byte(strings.Repeat("5f", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.in = harness.NewInstance(t, binary, filepath.Join(t.TempDir(), "data"), "--secret-key-file", c.key, "--log-level", "debug",
		"--retry-schedule", "20ms,20ms,20ms,20ms", "--attempt-timeout", "30s")
	return c
}

// plant adds a canary. Receivers then echo it.
func (c *canaryRun) plant(name, secret, core string, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.canaries = append(c.canaries, harness.NewCanary(name, secret, core, raw))
}

// search searches a text for every canary except those whose names start with one of
// given: the response that returns a new secret contains it.
func (c *canaryRun) search(where string, in []byte, given ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.searched++
	for i := range c.canaries {
		k := &c.canaries[i]
		if slices.ContainsFunc(given, func(name string) bool { return strings.HasPrefix(k.Name, name) }) {
			continue
		}
		if spelling := k.Find(in); spelling != "" {
			c.faults = append(c.faults, fmt.Sprintf("%s is in %s (%s)", k.Name, where, spelling))
		}
	}
}

// searchDir searches every file in a directory.
func (c *canaryRun) searchDir(what, dir string) {
	c.t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		given := []string{}
		if d.Name() == alertSecretFile { // may contain its canary
			given = append(given, "alert secret")
		}
		c.search(what+" "+d.Name(), b, given...)
		return nil
	})
	if err != nil || files < 2 {
		c.t.Fatalf("%s: searched %d files: %v", what, files, err)
	}
}

// do makes a request, searches the response, and returns its status and body.
func (c *canaryRun) do(client *http.Client, method, path string, body any, header http.Header, given ...string) (int, []byte) {
	c.t.Helper()
	var b []byte
	switch body := body.(type) {
	case nil:
	case string:
		b = []byte(body)
	default:
		var err error
		if b, err = json.Marshal(body); err != nil {
			c.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, bytes.NewReader(b))
	if err != nil {
		c.t.Fatal(err)
	}
	if strings.HasPrefix(path, "/v2") {
		req.Header.Set("Authorization", "Bearer "+c.token)
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		c.t.Fatalf("%s %.60s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var all bytes.Buffer
	resp.Header.Write(&all)
	all.Write(answer)
	c.search(fmt.Sprintf("the answer %d to %s %.40s", resp.StatusCode, method, path), all.Bytes(), given...)
	return resp.StatusCode, answer
}

// api is do with the token.
func (c *canaryRun) api(want int, method, path string, body any, given ...string) []byte {
	c.t.Helper()
	status, answer := c.do(c.in.Client, method, path, body, nil, given...)
	if status != want {
		c.t.Fatalf("%s %.60s: got status %d, want %d: %.300s", method, path, status, want, answer)
	}
	return answer
}

// command runs a command and searches its output.
func (c *canaryRun) command(want int, given string, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), harness.Timeout())
	defer cancel()
	cmd := exec.CommandContext(ctx, c.in.Binary, args...)
	cmd.Env = harness.Environment()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != want {
		c.t.Fatalf("%v: exit status %d, want %d: %s", args, got, want, &errs)
	}
	where := "what " + strings.Join(args[:2], " ") + " prints"
	if given == "" {
		c.search(where, out.Bytes())
	} else {
		c.search(where, out.Bytes(), given)
	}
	c.search(where+" on stderr", errs.Bytes())
	return strings.TrimSpace(out.String())
}

// receiver echoes all canaries, in many ways.
func (c *canaryRun) receiver(w http.ResponseWriter, r *http.Request) {
	got, key := r.Header.Get("Authorization"), r.Header.Get("X-Api-Key")
	c.mu.Lock()
	c.seen = append(c.seen, got, key)
	echoed := slices.Clone(c.echoed)
	c.mu.Unlock()
	var page bytes.Buffer
	for i, secret := range append(echoed, got, key) {
		w.Header().Add("X-Echo", secret)
		w.Header().Add("X-Echo-Base64", base64.StdEncoding.EncodeToString([]byte(secret)))
		inJSON, err := json.Marshal(map[string]string{"authorization": secret})
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&page, "%d %s\n%s\n%s\n%s\n%s\n%x\n%X\n", i, secret, inJSON, url.QueryEscape(secret), html.EscapeString(secret),
			base64.StdEncoding.EncodeToString(inJSON), secret, secret)
		if _, credentials, ok := strings.Cut(secret, " "); ok {
			fmt.Fprintln(&page, credentials)
		}
		if signing, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_")); err == nil {
			fmt.Fprintf(&page, "%x %s\n", signing, signing)
		}
	}
	switch r.URL.Path {
	case "/ok":
		w.Write(page.Bytes())
	case "/cut": // the stored part of the response ends inside the secret
		secret := strings.TrimPrefix(got, "Bearer ")
		w.Write(bytes.Repeat([]byte("."), webhook.MaxStoredBody-len(secret)+8))
		w.Write([]byte(secret))
		w.Write(page.Bytes())
	case "/refused":
		w.WriteHeader(http.StatusUnauthorized)
		w.Write(page.Bytes())
	case "/redirect":
		w.Header().Set("Location", "/elsewhere?"+url.Values{"token": {got}}.Encode())
		w.WriteHeader(http.StatusFound)
		w.Write(page.Bytes())
	case "/broken":
		w.Header().Set("Retry-After", got)
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(http.StatusInternalServerError)
		w.Write(page.Bytes())
	case "/status": // an invalid response
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 %s %s\r\n%s\r\n\r\n%s", got, got, got, page.Bytes())
	}
}

// end checks that there was enough to search, and returns the faults.
func (c *canaryRun) end(redacted int, logs ...int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := []byte(strings.Join(c.seen, "\n"))
	for _, k := range c.canaries {
		if name, ok := strings.CutPrefix(k.Name, "authorization_header: /"); ok && k.Find(sent) == "" {
			c.t.Errorf("no receiver got the header of /%s", name)
		}
	}
	c.t.Logf("%d canaries, %d texts searched, %d requests to receivers, %d responses redacted, logs of %v bytes",
		len(c.canaries), c.searched, len(c.seen), redacted, logs)
	if len(c.canaries) < 40 || c.searched < 150 || len(c.seen) < 20 || slices.Min(logs) < 500 {
		c.t.Error("too few canaries, texts or requests: the test checked too little")
	}
	slices.Sort(c.faults)
	return slices.Compact(c.faults)
}

// settle waits until every delivery of a list has ended, and reads each delivery.
func (c *canaryRun) settle(path string) {
	c.t.Helper()
	deadline := time.After(harness.Timeout())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var page struct{ Data []harness.Delivery }
		if err := json.Unmarshal(c.api(200, "GET", path+"?page[size]=100", nil), &page); err != nil {
			c.t.Fatal(err)
		}
		open := slices.ContainsFunc(page.Data, func(d harness.Delivery) bool { return !d.Status.Final() })
		if !open && len(page.Data) > 0 {
			for _, d := range page.Data {
				c.api(200, "GET", path+"/"+d.ID, nil)
			}
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("deliveries of %s did not end", path)
		}
	}
}

// browse follows all links and reads every page.
func (c *canaryRun) browse(browser *http.Client) {
	c.t.Helper()
	links := regexp.MustCompile(`(?:href|src|action|hx-get)="(/[^"]*)"`)
	todo, known := []string{"/", "/?filter[status]=failed"}, make(map[string]bool)
	for len(todo) > 0 && len(known) < 200 {
		path := todo[0]
		todo = todo[1:]
		if known[path] || strings.HasPrefix(path, "/sign-out") {
			continue
		}
		known[path] = true
		_, page := c.do(browser, "GET", path, nil, nil)
		for _, m := range links.FindAllSubmatch(page, -1) {
			todo = append(todo, html.UnescapeString(string(m[1])))
		}
	}
	if len(known) < 4 {
		c.t.Errorf("the admin UI has %d pages", len(known))
	}
}
