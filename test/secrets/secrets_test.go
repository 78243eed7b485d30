package secrets

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
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

// TestCanary plants secrets wherever a secret can be given, drives the whole
// surface of the service with them, with mistakes too, and looks for them in
// all that the service leaves behind: the files of its data directory, while it
// runs, after kill -9 and after an orderly end; a backup; its log, at its most
// talkative; every answer. Its control shows that a leak is found.
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
			t.Errorf("a service that keeps what receivers echo does not: got faults %q", faults)
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
			t.Errorf("%s is not found", spelling)
		}
	}
	inJSON, err := json.Marshal(map[string]string{"a": secret})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{inJSON, []byte(base64.StdEncoding.EncodeToString(inJSON)), []byte(url.Values{"q": {secret}}.Encode()), []byte(hex.EncodeToString([]byte(secret)))} {
		if c.Find(b) == "" {
			t.Errorf("it is not found in %s", b)
		}
	}
	if got := c.Find([]byte("Bearer é and much else")); got != "" {
		t.Errorf("it is found (%s) where it is not", got)
	}
}

// canaryRun drives a service with canaries.
type canaryRun struct {
	t     *testing.T
	in    *harness.Instance
	key   string // the file of the secret key
	base  string
	token string

	mu       sync.Mutex
	canaries []harness.Canary
	echoed   []string // what receivers answer with
	seen     []string // the Authorization headers that receivers got
	faults   []string
	looked   int // how many texts were looked through
}

func newCanaryRun(t *testing.T, binary string) *canaryRun {
	c := &canaryRun{t: t, key: filepath.Join(t.TempDir(), "key")}
	if err := os.WriteFile(c.key, []byte(strings.Repeat("5f", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.in = harness.NewInstance(t, binary, filepath.Join(t.TempDir(), "data"), "--secret-key-file", c.key, "--log-level", "debug",
		"--retry-schedule", "20ms,20ms,20ms,20ms", "--attempt-timeout", "2s")
	return c
}

// plant adds a canary, which receivers echo from now on.
func (c *canaryRun) plant(name, secret, core string, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.canaries = append(c.canaries, harness.NewCanary(name, secret, core, raw))
}

// look looks for every canary, but those whose names begin with one of given:
// the answer that hands a secret out holds it.
func (c *canaryRun) look(where string, in []byte, given ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked++
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

// lookThrough looks through every file of a folder.
func (c *canaryRun) lookThrough(what, dir string) {
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
		if d.Name() == "alert.secret" { // this is where it is kept
			given = append(given, "alert secret")
		}
		c.look(what+" "+d.Name(), b, given...)
		return nil
	})
	if err != nil || files < 2 {
		c.t.Fatalf("%s: looked through %d files: %v", what, files, err)
	}
}

// do makes a request, looks through the answer, and returns its status and body.
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
	c.look(fmt.Sprintf("the answer %d to %s %.40s", resp.StatusCode, method, path), all.Bytes(), given...)
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

// command runs a command and looks through what it prints.
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
		c.look(where, out.Bytes())
	} else {
		c.look(where, out.Bytes(), given)
	}
	c.look(where+" on stderr", errs.Bytes())
	return strings.TrimSpace(out.String())
}

// receiver echoes all it knows, in many ways.
func (c *canaryRun) receiver(w http.ResponseWriter, r *http.Request) {
	got := r.Header.Get("Authorization")
	c.mu.Lock()
	c.seen = append(c.seen, got)
	echoed := slices.Clone(c.echoed)
	c.mu.Unlock()
	var page bytes.Buffer
	for i, secret := range append(echoed, got) {
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
	case "/cut": // what is kept ends in the middle of the secret
		secret := strings.TrimPrefix(got, "Bearer ")
		w.Write(bytes.Repeat([]byte("."), webhook.MaxKeptBody-len(secret)+8))
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
	case "/status": // an answer that is none
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 %s %s\r\n%s\r\n\r\n%s", got, got, got, page.Bytes())
	}
}

// drive returns where canaries were found.
func (c *canaryRun) drive() []string {
	t := c.t
	receiver := harness.Listen(t, http.HandlerFunc(c.receiver))
	alertKey := harness.RandomHex(24)
	c.plant("alert URL", "k="+alertKey, alertKey, nil)
	c.in.Flags = append(c.in.Flags, "--alert-url", receiver+"/alert?k="+alertKey)
	first := c.in.MustStart()
	c.base = c.in.URL()
	data := c.in.Data

	text, err := os.ReadFile(filepath.Join(data, "alert.secret"))
	if err != nil {
		t.Fatal(err)
	}
	alertSecret := strings.TrimPrefix(strings.TrimSpace(string(text)), "whsec_")
	raw, err := base64.StdEncoding.DecodeString(alertSecret)
	if err != nil {
		t.Fatal(err)
	}
	c.plant("alert secret", alertSecret, alertSecret[:40], raw)

	// The token, by the command line; a revoked one; one that was never given.
	create := []string{"token", "create", "--data", data, "--program", "acme", "--user", "u", "--name", "canary test", "--scope", "webhooks.read,webhooks.write,events.read,events.write"}
	newToken := func(name string) string {
		token := c.command(harness.ExitOK, "token", create...)
		c.plant("token: "+name, token, token[len(token)-24:], nil)
		return token
	}
	c.token = newToken("in use")
	revoked := newToken("revoked")
	for line := range strings.Lines(c.command(harness.ExitOK, "", "token", "list", "--data", data)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(revoked, strings.TrimSuffix(f[1], "…")) {
			c.command(harness.ExitOK, "", "token", "revoke", "--data", data, f[0])
		}
	}
	unknown := "svc_" + harness.RandomHex(40)
	c.plant("token: unknown", unknown, unknown[20:], nil)

	// Subscriptions, each with a header of its own.
	const list = "/v2/webhooks/subscriptions"
	header := func(name string) string {
		core := harness.RandomHex(24)
		h := `Bearer "x&y"/é+%<` + core
		c.plant("authorization_header: "+name, h, core, nil)
		return h
	}
	capture := func(name string, answer []byte) (id string) {
		t.Helper()
		var a struct {
			Data struct {
				ID            string
				SigningSecret string `json:"signing_secret"`
			}
		}
		if err := json.Unmarshal(answer, &a); err != nil || a.Data.SigningSecret == "" {
			t.Fatalf("no signing secret in %.300s: %v", answer, err)
		}
		text := strings.TrimPrefix(a.Data.SigningSecret, "whsec_")
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		// Its base64 may have a slash, which escapes change.
		c.plant("signing_secret: "+name, a.Data.SigningSecret, text[:40], raw)
		return a.Data.ID
	}
	ids := make(map[string]string)
	for _, path := range []string{"/ok", "/cut", "/refused", "/redirect", "/broken", "/status"} {
		body := map[string]any{"url": receiver + path, "events": harness.Events("content_updated"), "authorization_header": header(path)}
		key := http.Header{webhook.IdempotencyHeader: {"create" + path}}
		status, answer := c.do(c.in.Client, "POST", list, body, key, "signing_secret")
		if status != http.StatusCreated {
			t.Fatalf("create: status %d: %s", status, answer)
		}
		ids[path] = capture(path, answer)
		if again, same := c.do(c.in.Client, "POST", list, body, key, "signing_secret"); again != status || !bytes.Equal(same, answer) {
			t.Fatalf("create again: status %d: %s", again, same)
		}
		c.mu.Lock()
		var a struct{ Data map[string]any }
		if err := json.Unmarshal(answer, &a); err == nil && path == "/ok" {
			c.echoed = []string{a.Data["signing_secret"].(string)} // /ok alone knows it
		}
		c.mu.Unlock()
		if path == "/ok" {
			c.api(200, "POST", list+"/"+ids[path]+"/ping", nil)
			c.mu.Lock()
			c.echoed = nil
			c.mu.Unlock()
		}
	}
	ok := list + "/" + ids["/ok"]
	c.api(200, "GET", list, nil)
	c.api(200, "GET", ok, nil)

	// Mistakes that hold secrets: in values, in the JSON, in paths and queries,
	// in headers.
	event := harness.Events("content_updated")
	for _, body := range []any{
		map[string]any{"authorization_header": header("control") + "\n"},
		map[string]any{"authorization_header": strings.Repeat(header("long")+" ", 200)},
		map[string]any{"authorization_header": " " + header("blank")},
		map[string]any{"authorization_header": []string{header("list")}},
		map[string]any{"authorization_header": header("other fault"), "url": "not a url", "max_in_flight": -1, "events": event},
		map[string]any{"authorization_header": header("unknown field"), "colour": "red"},
		map[string]any{"authorisation_header": header("misspelt")},
		map[string]any{"url": "https://user:" + header("password")[24:] + "@partner.example/", "events": event},
		`{"authorization_header": "` + url.QueryEscape(header("not JSON")) + `"`,
		`{"authorization_header": "` + url.QueryEscape(header("twice 1")) + `", "authorization_header": "` + url.QueryEscape(header("twice 2")) + `"}`,
		`"` + url.QueryEscape(header("bare")) + `"`,
		url.QueryEscape(header("form")),
	} {
		c.api(400, "PUT", ok, body)
		c.api(400, "POST", list, body)
	}
	c.do(c.in.Client, "POST", list, map[string]any{"authorization_header": header("media")}, http.Header{"Content-Type": {"text/plain"}})
	c.do(c.in.Client, "POST", list, strings.Repeat(" ", 6<<20)+header("large"), nil)
	for _, path := range []string{
		list + "?access_token=" + c.token, list + "?authorization_header=" + url.QueryEscape(header("query")),
		list + "?filter[authorization_header]=" + url.QueryEscape(header("filter")), "/v2/events?page[cursor]=" + url.QueryEscape(header("cursor")),
		list + "/" + url.PathEscape(header("id")), "/v2/" + url.PathEscape(header("path")), "/" + url.PathEscape(header("page")),
		"/sign-in/" + url.PathEscape(header("link")), "/setup/" + url.PathEscape(header("setup link")), "/sign-in?next=" + url.QueryEscape(header("next")), "/sign-in/" + unknown, "/docs?token=" + c.token, "/healthz?" + unknown, "/readyz?" + unknown, "/metrics?" + unknown,
	} {
		for _, method := range []string{"GET", "POST", "PATCH"} {
			c.do(c.in.Client, method, path, nil, nil)
		}
	}
	for _, authorization := range []string{
		"Bearer " + unknown, "Bearer " + revoked, "Bearer " + c.token + "x", "bearer  " + unknown, c.token, "Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+c.token)),
		"Bearer " + c.token + ", Bearer " + c.token, "Token " + c.token,
	} {
		c.do(c.in.Client, "GET", list, nil, http.Header{"Authorization": {authorization}})
		c.do(c.in.Client, "GET", "/", nil, http.Header{"Authorization": {authorization}, "Cookie": {"session=" + unknown + "; service=" + unknown}})
	}

	// Publishing, deliveries, pings, redeliveries, replays.
	began := time.Now().UTC()
	publish := func() {
		c.api(201, "POST", "/v2/events", map[string]any{"name": "content_updated", "version": "1", "content_id": 7})
	}
	publish()
	for path, id := range ids {
		c.api(200, "POST", list+"/"+id+"/ping", nil)
		c.settle(list + "/" + id + "/deliveries")
		_ = path
	}
	var deliveries struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(c.api(200, "GET", ok+"/deliveries", nil), &deliveries); err != nil || len(deliveries.Data) == 0 {
		t.Fatalf("no deliveries: %v", err)
	}
	c.api(201, "POST", ok+"/deliveries/"+deliveries.Data[0].ID+"/redeliver", nil)
	c.api(202, "POST", ok+"/replays", map[string]any{"from": began.Format(time.RFC3339Nano), "only": "all"})
	c.api(200, "GET", "/v2/events", nil)
	c.api(200, "GET", "/v2/event_types", nil)
	c.api(200, "GET", "/v2/openapi.json", nil)
	c.do(c.in.Client, "GET", "/docs", nil, nil)
	c.do(c.in.Client, "GET", "/metrics", nil, nil)

	// Other secrets in place of these: of the service, and of a subscription.
	c.command(harness.ExitOK, "", "key", "rotate", "--data", data)
	newKey, err := os.ReadFile(c.key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := hex.DecodeString(strings.TrimSpace(string(newKey)))
	if err != nil {
		t.Fatal(err)
	}
	c.plant("secret key", string(newKey), strings.TrimSpace(string(newKey)), keyBytes)
	status, answer := c.do(c.in.Client, "POST", ok+"/rotate_secret", nil, http.Header{webhook.IdempotencyHeader: {"rotate"}}, "signing_secret")
	if status != http.StatusOK {
		t.Fatalf("rotate: status %d: %s", status, answer)
	}
	capture("rotated", answer)
	c.api(200, "PUT", ok, map[string]any{"authorization_header": header("changed"), "description": "another header"})
	publish()
	c.settle(ok + "/deliveries")

	// The admin UI.
	link := c.command(harness.ExitOK, "", "admin", "setup-link", "--data", data)
	code := link[strings.LastIndexByte(link, '/')+1:]
	c.plant("setup code", code, code, nil)
	password, wrong := rand.Text(), rand.Text()
	c.plant("the admin's password", password, password, nil)
	c.plant("a wrong password", wrong, wrong, nil)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: harness.Timeout(), Transport: c.in.Client.Transport}
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	fields := func(pairs ...string) string {
		values := url.Values{"email": {"ana@example.com"}}
		for i := 0; i < len(pairs); i += 2 {
			values.Set(pairs[i], pairs[i+1])
		}
		return values.Encode()
	}
	path := "/setup/" + code
	c.do(browser, "GET", path, nil, nil, "setup code")
	c.do(browser, "POST", path, fields("password", password, "again", wrong), form, "setup code")
	if status, page := c.do(browser, "POST", path, fields("password", password, "again", password), form, "setup code"); status != http.StatusOK {
		t.Fatalf("the first admin: status %d: %.300s", status, page)
	}
	at, err := url.Parse(c.base)
	if err != nil {
		t.Fatal(err)
	}
	cookies := jar.Cookies(at)
	if len(cookies) == 0 {
		t.Fatal("no session")
	}
	for _, cookie := range cookies {
		c.plant("session", cookie.Value, cookie.Value, nil)
	}
	c.do(browser, "POST", path, fields("password", password, "again", password), form, "setup code") // it was good once
	c.do(browser, "POST", "/account/password", fields("current", wrong, "password", password, "again", password), form)
	c.do(browser, "POST", "/account/password", fields("current", password, "password", wrong, "again", password), form)
	for _, pair := range [][2]string{{"ana@example.com", wrong}, {"bo@example.com", password}, {wrong + "@example.com", password}} {
		c.do(c.in.Client, "POST", "/sign-in", url.Values{"email": pair[:1], "password": pair[1:]}.Encode(), form, "a wrong password")
	}
	c.command(harness.ExitFailed, "", "admin", "setup-link", "--data", data)
	c.command(harness.ExitOK, "", "admin", "list", "--json", "--data", data)
	passwordFile := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(passwordFile, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.command(harness.ExitOK, "", "admin", "create", "--email", "bo@example.com", "--password-file", passwordFile, "--data", data)
	c.browse(browser)

	// As it runs, as kill -9 leaves it, as the next run makes it, as it ends.
	c.lookThrough("the running service's", data)
	publish()
	c.in.Kill(first)
	c.lookThrough("after kill -9,", data)
	c.look("the log as text", first.Log.Bytes())
	c.in.Flags = append(c.in.Flags, "--log-format", "json")
	second := c.in.MustStart()
	c.base = c.in.URL()
	publish()
	for _, id := range ids {
		c.settle(list + "/" + id + "/deliveries")
	}
	c.do(c.in.Client, "GET", list, nil, http.Header{"Authorization": {"Bearer " + unknown}})
	c.api(200, "DELETE", ok, nil)
	if status := c.in.Stop(second); status != harness.ExitOK {
		t.Errorf("exit status %d:\n%s", status, &second.Log)
	}
	c.look("the log as JSON", second.Log.Bytes())
	c.lookThrough("after the end,", data)
	backup := filepath.Join(t.TempDir(), "backup.db")
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(data, "service.db"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("VACUUM INTO ?", backup); err != nil {
		t.Fatal(err)
	}
	kept := 0
	if err := db.QueryRow("SELECT count(*) FROM attempts WHERE response_header LIKE '%[redacted]%' AND response_body LIKE '%[redacted]%'").Scan(&kept); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	c.look("the backup service.db", b)
	c.command(harness.ExitFailed, "", "token", "list", "--data", data) // without the key
	if err := os.WriteFile(c.key, []byte(strings.TrimSpace(string(newKey))+"0"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.command(harness.ExitFailed, "", "token", "list", "--data", data, "--secret-key-file", c.key) // with one that is none
	return c.end(kept, first.Log.Len(), second.Log.Len())
}

// end makes sure that there was something to find.
func (c *canaryRun) end(redacted int, logs ...int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := []byte(strings.Join(c.seen, "\n"))
	for _, k := range c.canaries {
		if name, ok := strings.CutPrefix(k.Name, "authorization_header: /"); ok && k.Find(sent) == "" {
			c.t.Errorf("no receiver got the header of /%s", name)
		}
	}
	c.t.Logf("%d canaries, %d texts looked through, %d requests to receivers, %d answers redacted, logs of %v bytes", len(c.canaries), c.looked, len(c.seen), redacted, logs)
	if len(c.canaries) < 40 || c.looked < 150 || len(c.seen) < 20 || slices.Min(logs) < 500 {
		c.t.Error("the test has lost its point")
	}
	slices.Sort(c.faults)
	return slices.Compact(c.faults)
}

// settle waits until every delivery of a list has come to its end, and reads
// each.
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

// browse reads every page that links lead to.
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
