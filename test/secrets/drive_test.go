package secrets

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"service/test/harness"
	"service/webhook"
)

// list is the API path of the subscriptions.
const list = "/v2/webhooks/subscriptions"

// drive plants the canaries, uses every part of the service, and returns where it
// found canaries.
func (c *canaryRun) drive() []string {
	c.server = harness.Listen(c.t, http.HandlerFunc(c.receiver))
	alertKey := harness.RandomHex(24)
	c.plant("alert URL", "k="+alertKey, alertKey, nil)
	c.in.Flags = append(c.in.Flags, "--alert-url", c.server+"/alert?k="+alertKey, "--token-prefix", "svc_2_")
	c.listenSMTP()
	first := c.in.MustStart()
	c.base = c.in.URL()
	c.readAlertSecret()
	c.createTokens()
	c.createSubscriptions()
	c.sendMistakes()
	c.askWrongPaths()
	c.sendWrongTokens()
	c.deliver()
	c.rotate()
	c.visitPages()
	return c.searchAtEnd(first)
}

// readAlertSecret plants the secret that alerts are signed with.
func (c *canaryRun) readAlertSecret() {
	c.t.Helper()
	secret := strings.TrimPrefix(strings.TrimSpace(string(harness.Read(c.t, filepath.Join(c.in.Data, alertSecretFile)))), "whsec_")
	raw, err := base64.StdEncoding.DecodeString(secret)
	if err != nil {
		c.t.Fatal(err)
	}
	c.plant("alert secret", secret, secret[:40], raw)
}

// createTokens creates a token and a revoked token, and invents one that was never created.
func (c *canaryRun) createTokens() {
	c.t.Helper()
	data := c.in.Data
	create := []string{"token", "create", "--data", data, "--program", "acme", "--user", "u", "--name", "canary test", "--scope",
		"webhooks.read,webhooks.write,events.read,events.write"}
	newToken := func(name string) string {
		token := c.command(harness.ExitOK, "token", create...)
		c.plant("token: "+name, token, token[len(token)-24:], nil)
		return token
	}
	c.token = newToken("in use")
	c.revoked = newToken("revoked")
	for line := range strings.Lines(c.command(harness.ExitOK, "", "token", "list", "--data", data)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(c.revoked, strings.TrimSuffix(f[1], "…")) {
			c.command(harness.ExitOK, "", "token", "revoke", "--yes", "--data", data, f[0])
		}
	}
	c.unknown = "svc_2_" + harness.RandomHex(40)
	c.plant("token: unknown", c.unknown, c.unknown[20:], nil)
}

// header plants an authorization header.
func (c *canaryRun) header(name string) string {
	core := harness.RandomHex(24)
	h := `Bearer "x&y"/é+%<` + core
	c.plant("authorization_header: "+name, h, core, nil)
	return h
}

// capture plants the signing secret in a response, and returns the subscription's ID
// and the secret.
func (c *canaryRun) capture(name string, answer []byte) (id, secret string) {
	c.t.Helper()
	var a struct {
		Data struct {
			ID            string
			SigningSecret string `json:"signing_secret"`
		}
	}
	if err := json.Unmarshal(answer, &a); err != nil || a.Data.SigningSecret == "" {
		c.t.Fatalf("no signing secret in %.300s: %v", answer, err)
	}
	text := strings.TrimPrefix(a.Data.SigningSecret, "whsec_")
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		c.t.Fatal(err)
	}
	// The base64 text may contain a slash, which escaping changes.
	c.plant("signing_secret: "+name, a.Data.SigningSecret, text[:40], raw)
	return a.Data.ID, a.Data.SigningSecret
}

// ok is the path of the subscription whose receiver responds 200.
func (c *canaryRun) ok() string { return list + "/" + c.ids["/ok"] }

// createSubscriptions creates a subscription for each kind of response, each with a
// different header.
func (c *canaryRun) createSubscriptions() {
	c.t.Helper()
	c.ids = make(map[string]string)
	for _, path := range []string{"/ok", "/cut", "/refused", "/redirect", "/broken", "/status"} {
		body := map[string]any{"url": c.server + path, "events": harness.Events("content_updated"), "authorization_header": c.header(path),
			"headers": map[string]string{"X-Api-Key": c.header(path + ", X-Api-Key")}}
		key := http.Header{webhook.IdempotencyHeader: {"create" + path}}
		status, answer := c.do(c.in.Client, "POST", list, body, key, "signing_secret")
		if status != http.StatusCreated {
			c.t.Fatalf("create: status %d: %s", status, answer)
		}
		id, secret := c.capture(path, answer)
		c.ids[path] = id
		if again, same := c.do(c.in.Client, "POST", list, body, key, "signing_secret"); again != status || !bytes.Equal(same, answer) {
			c.t.Fatalf("create again: status %d: %s", again, same)
		}
		if path == "/ok" {
			c.echo(secret)
			c.api(200, "POST", c.ok()+"/ping", nil)
			c.echo()
		}
	}
	c.api(200, "GET", list, nil)
	c.api(200, "GET", c.ok(), nil)
}

// echo sets what receivers respond with, in addition to the header that they received.
func (c *canaryRun) echo(secrets ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.echoed = secrets
}

// sendMistakes sends invalid requests that contain secrets.
func (c *canaryRun) sendMistakes() {
	c.t.Helper()
	event := harness.Events("content_updated")
	for _, body := range []any{
		map[string]any{"authorization_header": c.header("control") + "\n"},
		map[string]any{"authorization_header": strings.Repeat(c.header("long")+" ", 200)},
		map[string]any{"authorization_header": " " + c.header("blank")},
		map[string]any{"authorization_header": []string{c.header("list")}},
		map[string]any{"headers": map[string]string{"X-Api-Key": c.header("header control") + "\r\nX-More: a"}},
		map[string]any{"headers": map[string]string{"Host": c.header("header host"), "X Y": c.header("header name")}},
		map[string]any{"headers": map[string]any{"X-Api-Key": []string{c.header("header list")}}},
		map[string]any{"headers": c.header("header text")},
		map[string]any{"headers": map[string]string{"X-Api-Key": strings.Repeat(c.header("header long")+" ", 200)}},
		map[string]any{"authorization_header": c.header("other fault"), "url": "not a url", "max_in_flight": -1, "events": event},
		map[string]any{"authorization_header": c.header("unknown field"), "colour": "red"},
		map[string]any{"authorisation_header": c.header("misspelt")},
		map[string]any{"url": "https://user:" + c.header("password")[24:] + "@partner.example/", "events": event},
		`{"authorization_header": "` + url.QueryEscape(c.header("not JSON")) + `"`,
		`{"authorization_header": "` + url.QueryEscape(c.header("twice 1")) + `", "authorization_header": "` +
			url.QueryEscape(c.header("twice 2")) + `"}`,
		`"` + url.QueryEscape(c.header("bare")) + `"`,
		url.QueryEscape(c.header("form")),
	} {
		c.api(400, "PUT", c.ok(), body)
		c.api(400, "POST", list, body)
	}
	c.do(c.in.Client, "POST", list, map[string]any{"authorization_header": c.header("media")}, http.Header{"Content-Type": {"text/plain"}})
	c.do(c.in.Client, "POST", list, strings.Repeat(" ", 6<<20)+c.header("large"), nil)
}

// askWrongPaths sends secrets in paths and queries.
func (c *canaryRun) askWrongPaths() {
	c.t.Helper()
	for _, path := range []string{
		list + "?access_token=" + c.token, list + "?authorization_header=" + url.QueryEscape(c.header("query")),
		list + "?filter[authorization_header]=" + url.QueryEscape(c.header("filter")), "/v2/events?page[cursor]=" +
			url.QueryEscape(c.header("cursor")),
		list + "/" + url.PathEscape(c.header("id")), "/v2/" + url.PathEscape(c.header("path")), "/" + url.PathEscape(c.header("page")),
		"/sign-in/" + url.PathEscape(c.header("link")), "/setup/" + url.PathEscape(c.header("setup link")), "/sign-in?next=" +
			url.QueryEscape(c.header("next")), "/sign-in/" + c.unknown, "/docs?token=" + c.token, "/healthz?" + c.unknown, "/readyz?" + c.unknown,
		"/metrics?" + c.unknown,
	} {
		for _, method := range []string{"GET", "POST", "PATCH"} {
			c.do(c.in.Client, method, path, nil, nil)
		}
	}
}

// sendWrongTokens sends invalid tokens, and tokens in wrong places.
func (c *canaryRun) sendWrongTokens() {
	c.t.Helper()
	for _, authorization := range []string{
		"Bearer " + c.unknown, "Bearer " + c.revoked, "Bearer " + c.token + "x", "bearer  " + c.unknown, c.token, "Basic " +
			base64.StdEncoding.EncodeToString([]byte("u:"+c.token)),
		"Bearer " + c.token + ", Bearer " + c.token, "Token " + c.token,
	} {
		c.do(c.in.Client, "GET", list, nil, http.Header{"Authorization": {authorization}})
		c.do(c.in.Client, "GET", "/", nil, http.Header{"Authorization": {authorization}, "Cookie": {"session=" + c.unknown + "; service=" +
			c.unknown}})
	}
}

// publish publishes an event for all subscriptions.
func (c *canaryRun) publish() {
	c.t.Helper()
	c.api(201, "POST", "/v2/events", map[string]any{"name": "content_updated", "version": "1", "content_id": 7})
}

// deliver publishes, pings, redelivers and replays, and reads everything from the API.
func (c *canaryRun) deliver() {
	c.t.Helper()
	began := time.Now().UTC()
	c.publish()
	for _, id := range c.ids {
		c.api(200, "POST", list+"/"+id+"/ping", nil)
		c.settle(list + "/" + id + "/deliveries")
	}
	var deliveries struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(c.api(200, "GET", c.ok()+"/deliveries", nil), &deliveries); err != nil || len(deliveries.Data) == 0 {
		c.t.Fatalf("no deliveries: %v", err)
	}
	c.api(201, "POST", c.ok()+"/deliveries/"+deliveries.Data[0].ID+"/redeliver", nil)
	c.api(202, "POST", c.ok()+"/replays", map[string]any{"from": began.Format(time.RFC3339Nano), "only": "all"})
	c.api(200, "GET", "/v2/events", nil)
	c.api(200, "GET", "/v2/event_types", nil)
	c.api(200, "GET", "/v2/openapi.json", nil)
	c.do(c.in.Client, "GET", "/docs", nil, nil)
	c.do(c.in.Client, "GET", "/metrics", nil, nil)
}

// rotate replaces the secret key of the service, and the signing secret and the
// header of a subscription.
func (c *canaryRun) rotate() {
	c.t.Helper()
	c.command(harness.ExitOK, "", "key", "rotate", "--yes", "--data", c.in.Data)
	c.newKey = strings.TrimSpace(string(harness.Read(c.t, c.key)))
	keyBytes, err := hex.DecodeString(c.newKey)
	if err != nil {
		c.t.Fatal(err)
	}
	c.plant("secret key", c.newKey, c.newKey, keyBytes)
	status, answer := c.do(c.in.Client, "POST", c.ok()+"/rotate_secret", nil, http.Header{webhook.IdempotencyHeader: {"rotate"}},
		"signing_secret")
	if status != http.StatusOK {
		c.t.Fatalf("rotate: status %d: %s", status, answer)
	}
	c.capture("rotated", answer)
	c.api(200, "PUT", c.ok(), map[string]any{"authorization_header": c.header("changed"), "description": "another header"})
	c.publish()
	c.settle(c.ok() + "/deliveries")
}

// visitPages creates the first admin, signs in and out, even with wrong passwords, and
// visits every page of the admin UI.
func (c *canaryRun) visitPages() {
	c.t.Helper()
	link := c.command(harness.ExitOK, "", "admin", "setup-link", "--data", c.in.Data)
	code := link[strings.LastIndexByte(link, '/')+1:]
	c.plant("setup code", code, code, nil)
	password, wrong := rand.Text(), rand.Text()
	c.plant("the admin's password", password, password, nil)
	c.plant("a wrong password", wrong, wrong, nil)
	jar, err := cookiejar.New(nil)
	if err != nil {
		c.t.Fatal(err)
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
	if status, page := c.do(browser, "POST", path, fields("password", password, "again", password), form,
		"setup code"); status != http.StatusOK {
		c.t.Fatalf("the first admin: status %d: %.300s", status, page)
	}
	at, err := url.Parse(c.base)
	if err != nil {
		c.t.Fatal(err)
	}
	cookies := jar.Cookies(at)
	if len(cookies) == 0 {
		c.t.Fatal("no session")
	}
	for _, cookie := range cookies {
		c.plant("session", cookie.Value, cookie.Value, nil)
	}
	c.do(browser, "POST", path, fields("password", password, "again", password), form, "setup code") // the link was valid once
	c.do(browser, "POST", "/account/password", fields("current", wrong, "password", password, "again", password), form)
	c.do(browser, "POST", "/account/password", fields("current", password, "password", wrong, "again", password), form)
	for _, pair := range [][2]string{{"ana@example.com", wrong}, {"bo@example.com", password}, {wrong + "@example.com", password}} {
		c.do(c.in.Client, "POST", "/sign-in", url.Values{"email": pair[:1], "password": pair[1:]}.Encode(), form, "a wrong password")
	}
	c.command(harness.ExitFailed, "", "admin", "setup-link", "--data", c.in.Data)
	c.command(harness.ExitOK, "", "admin", "list", "--json", "--data", c.in.Data)
	passwordFile := filepath.Join(c.t.TempDir(), "password")
	if err := os.WriteFile(passwordFile, []byte(password+"\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.command(harness.ExitOK, "", "admin", "create", "--email", "bo@example.com", "--password-file", passwordFile, "--data", c.in.Data)
	c.createChannels(browser)
	c.browse(browser)
}

// listenSMTP starts a mail server that repeats the password in its reply.
func (c *canaryRun) listenSMTP() {
	c.t.Helper()
	password := harness.RandomHex(24)
	server, err := harness.ListenSMTP(c.t, "127.0.0.1:0", "alerts", "another", false)
	if err != nil {
		c.t.Fatal(err)
	}
	file := filepath.Join(c.t.TempDir(), "smtp-password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.plant("the mail server's password", password, password, nil)
	c.in.Wrapper = []string{"env", "SSL_CERT_FILE=" + server.CAFile}
	c.in.Flags = append(c.in.Flags, "--smtp-host", server.Addr, "--smtp-from", "service@operator.example",
		"--smtp-user", "alerts", "--smtp-password-file", file)
}

// createChannels creates an alert channel of each kind, with a mistake first, sends a test
// alert to each, and waits for the results.
func (c *canaryRun) createChannels(browser *http.Client) {
	c.t.Helper()
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	create := func(kind string, fields ...string) {
		values := url.Values{"name": {kind}, "kind": {kind}, "alert": {"subscription_failing"}}
		for i := 0; i < len(fields); i += 2 {
			values.Set(fields[i], fields[i+1])
		}
		key := harness.RandomHex(24)
		if kind != "email" {
			values.Set("url", c.server+"/alert/"+key+"?token="+key)
			c.plant("the URL of a "+kind+" channel", key, key, nil)
		}
		_, page := c.do(browser, "POST", "/alerts/new", values.Encode(), form, "the secret of a channel")
		secret := regexp.MustCompile(`whsec_([A-Za-z0-9+/]{43}=)`).FindSubmatch(page)
		if (secret != nil) != (kind == "webhook") {
			c.t.Fatalf("create a channel of kind %s: %.300s", kind, page)
		}
		path := string(regexp.MustCompile(`/alerts/[0-9a-f-]{36}`).Find(page))
		if secret != nil {
			raw, err := base64.StdEncoding.DecodeString(string(secret[1]))
			if err != nil {
				c.t.Fatal(err)
			}
			c.plant("the secret of a channel", string(secret[1]), string(secret[1][:40]), raw)
		}
		c.do(browser, "GET", path+"/edit", nil, nil)
		c.do(browser, "POST", path+"/test", "", form)
		for end := time.Now().Add(harness.Timeout()); ; time.Sleep(20 * time.Millisecond) {
			if _, page = c.do(browser, "GET", path, nil, nil); bytes.Contains(page, []byte("1 of 5 attempts")) {
				return
			}
			if time.Now().After(end) {
				c.t.Fatalf("channel of kind %s: got no result: %.3000s", kind, page)
			}
		}
	}
	create("slack")
	create("webhook")
	create("email", "to", "ana@operator.example")
}

// searchAtEnd searches the data directory while the service runs, after a kill and after
// a shutdown, and searches the log and a backup.
func (c *canaryRun) searchAtEnd(first *harness.Process) []string {
	c.t.Helper()
	data := c.in.Data
	c.searchDir("the running service's", data)
	c.publish()
	c.in.Kill(first)
	c.searchDir("after kill -9,", data)
	c.search("the log as text", first.Log.Bytes())
	c.in.Flags = append(c.in.Flags, "--log-format", "json")
	second := c.in.MustStart()
	c.base = c.in.URL()
	c.publish()
	for _, id := range c.ids {
		c.settle(list + "/" + id + "/deliveries")
	}
	c.do(c.in.Client, "GET", list, nil, http.Header{"Authorization": {"Bearer " + c.unknown}})
	c.api(200, "DELETE", c.ok(), nil)
	if status := c.in.Stop(second); status != harness.ExitOK {
		c.t.Errorf("exit status %d:\n%s", status, &second.Log)
	}
	c.search("the log as JSON", second.Log.Bytes())
	c.searchDir("after the end,", data)
	backup := filepath.Join(c.t.TempDir(), "backup.db")
	db := harness.OpenDatabase(c.t, data)
	if _, err := db.Exec("VACUUM INTO ?", backup); err != nil {
		c.t.Fatal(err)
	}
	kept := 0
	if err := db.QueryRow("SELECT (SELECT count(*) FROM attempts WHERE response_header LIKE '%[redacted]%' AND response_body LIKE " +
		"'%[redacted]%') + (SELECT count(*) FROM responses WHERE header LIKE '%[redacted]%' AND body LIKE '%[redacted]%')").Scan(
		&kept); err != nil {
		c.t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		c.t.Fatal(err)
	}
	c.search("the backup service.db", harness.Read(c.t, backup))
	c.command(harness.ExitFailed, "", "token", "list", "--data", data) // without the key
	if err := os.WriteFile(c.key, []byte(c.newKey+"0"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.command(harness.ExitFailed, "", "token", "list", "--data", data, "--secret-key-file", c.key) // with an invalid key
	return c.end(kept, first.Log.Len(), second.Log.Len())
}
