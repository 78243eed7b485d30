package web

import (
	"bytes"
	"html"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/test/harness"
	"service/web/portal"
	"service/webhook"
)

var copied = regexp.MustCompile(`(?s)<pre class="command" tabindex="0"><code>(.*?)</code></pre>`)

// verifyPrograms returns the programs of the page by file name.
func verifyPrograms(t *testing.T, p page) map[string]string {
	t.Helper()
	all := make(map[string]string)
	found := copied.FindAllStringSubmatch(p.body, -1)
	for i := 0; i+1 < len(found); i += 2 { // a command, and the program that it runs
		words := strings.Fields(html.UnescapeString(found[i][1]))
		all[words[len(words)-1]] = html.UnescapeString(found[i+1][1])
	}
	if len(all) != len(portal.Languages)+1 || all["receiver.py"] == "" {
		t.Fatalf("the page has %d programs:\n%s", len(all), p.body)
	}
	return all
}

// TestVerifyPrograms runs the programs of the page. They accept the last delivery with the secret
// of its subscription, and with a second signature after a rotation, and refuse it with another
// secret or another body.
func TestVerifyPrograms(t *testing.T) {
	w := testWeb(t, func(cfg *Config) {
		cfg.Receiving = webhook.Receiving{Timeout: 30 * time.Second, Retry: webhook.DefaultRetryPolicy()}
	})
	l := newEventSource(t, w, "https://hooks.example.com/in")
	l.publish("content_published", `"Grüße \u2028 <b>'quoted' $x #{y} \\ \"z\""`)
	claim := l.form()
	l.end(claim, webhook.Attempt{ResponseStatus: 200})
	var secret webhook.SigningSecret
	must(t, w.store.Write(t.Context(), func(sw store.Write) (err error) {
		secret, err = sw.Subscriptions().SigningSecret("acme", l.sub.ID)
		return err
	}))
	v := enter(t, w, "acme", webhook.PortalRead)
	page := v.do("GET", "/portal/verify?subscription="+l.sub.ID)
	page.want(t, 200, claim.ID)
	page.has(t, `id="answer"`, "status within 30 s", "after waits of 5 s, 5 min, 30 min and 2 h", "<code>webhook-signature</code>",
		"/docs/receiving")
	programs := verifyPrograms(t, page)
	for i := range portal.Languages {
		lang := &portal.Languages[i]
		t.Run(lang.Name, func(t *testing.T) {
			t.Parallel()
			requirement := map[string]string{"Python": "clients", "JavaScript": "browser", "Go": "clients"}[lang.Name]
			if requirement == "" {
				requirement = strings.ToLower(lang.Name)
			}
			words := strings.Fields(lang.Run)
			harness.Tool(t, requirement, words[0])
			run := func(change func(program string) string, secret string) string {
				t.Helper()
				dir := t.TempDir()
				must(t, os.WriteFile(filepath.Join(dir, lang.File), []byte(change(programs[lang.File])), 0o600))
				cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "SECRET="+secret, "GOFLAGS=", "GOWORK=off")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				return string(out)
			}
			same := func(s string) string { return s }
			other := webhook.NewSigningSecret()
			for name, tt := range map[string]struct {
				change func(string) string
				secret webhook.SigningSecret
				want   string
			}{
				"the secret":           {same, secret, "valid: true\n"},
				"another secret":       {same, other, "valid: false\n"},
				"two signatures":       {secondSignature, secret, "valid: true\n"},
				"another id":           {func(s string) string { return strings.Replace(s, claim.ID, webhook.NewID(), 1) }, secret, "valid: false\n"},
				"a tolerance, in time": {withTolerance, secret, "valid: true\n"},
				"no signature":         {withoutSignature, secret, "valid: false\n"},
			} {
				if got := run(tt.change, tt.secret.Reveal()); got != tt.want {
					t.Errorf("%s: got %q, want %q", name, got, tt.want)
				}
			}
		})
	}
}

// TestReceiver runs the receiver of the page: it accepts only a delivery with the right signature.
func TestReceiver(t *testing.T) {
	harness.Tool(t, "clients", "python3")
	w := testWeb(t, nil)
	newEventSource(t, w, "https://hooks.example.com/in")
	programs := verifyPrograms(t, enter(t, w, "acme", webhook.PortalRead).do("GET", "/portal/verify"))
	dir := t.TempDir()
	for _, file := range []string{"verify.py", "receiver.py"} {
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(programs[file]), 0o600))
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := free.Addr().(*net.TCPAddr)
	must(t, free.Close())
	secret := webhook.NewSigningSecret()
	cmd := exec.CommandContext(t.Context(), "python3", "receiver.py")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SECRET="+secret.Reveal(), "PORT="+strconv.Itoa(address.Port))
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's context ends it
	harness.WaitFor(t, "the receiver", func() bool {
		c, err := net.Dial("tcp", address.String())
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	body := []byte(`{"events":[]}`)
	for name, tt := range map[string]struct {
		secret webhook.SigningSecret // nil for no headers
		at     time.Time
		want   int
	}{
		"the secret":     {secret, time.Now(), http.StatusNoContent},
		"another secret": {webhook.NewSigningSecret(), time.Now(), http.StatusServiceUnavailable},
		"too old":        {secret, time.Now().Add(-time.Hour), http.StatusServiceUnavailable},
		"no headers":     {nil, time.Now(), http.StatusServiceUnavailable},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address.String()+"/", bytes.NewReader(body))
		must(t, err)
		if tt.secret != nil {
			head := webhook.RequestHead{DeliveryID: webhook.NewID(), At: tt.at}
			head.Signature = tt.secret.Sign(head.DeliveryID, tt.at, body)
			for _, line := range head.AppendHeader(nil) {
				req.Header.Set(line[0], line[1])
			}
		}
		got, err := http.DefaultClient.Do(req)
		must(t, err)
		got.Body.Close()
		if got.StatusCode != tt.want {
			t.Errorf("%s: got %d, want %d", name, got.StatusCode, tt.want)
		}
	}
}

// withoutSignature renames the header of the example.
func withoutSignature(s string) string {
	last := strings.LastIndex(s, "webhook-signature")
	return s[:last] + "x-other" + s[last+len("webhook-signature"):]
}

// secondSignature adds another signature to the header of the example.
func secondSignature(s string) string {
	last := strings.LastIndex(s, "v1,")
	return s[:last] + "v1,AAAA " + s[last:]
}

// withTolerance makes the program refuse deliveries that are more than an hour old.
func withTolerance(s string) string {
	return strings.NewReplacer("header, body, 0)", "header, body, time.Hour)", ", body, 0)", ", body, 3600)", ", $body, 0)", ", $body, 3600)").
		Replace(s)
}

// Without a delivery the page shows a sample. A long body is a file, and a delivery of another
// program is never the example.
func TestVerifyPage(t *testing.T) {
	w := testWeb(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com/in")
	l.publish("content_published", `"`+strings.Repeat("x", 8<<10)+`"`)
	long := l.form()
	v := enter(t, w, "mine", webhook.PortalRead)
	for _, path := range []string{"/portal/verify", "/portal/verify?subscription=" + l.sub.ID, "/portal/verify?subscription=x"} {
		got := v.do("GET", path)
		got.want(t, 200, "Nothing was sent yet.", `id="local"`, "Run a tunnel that forwards a public HTTPS URL")
		got.hasNot(t, long.ID, "hooks.example.com")
	}
	v.do("GET", "/portal/subscriptions").want(t, 200, `href="/portal/verify#local"`)
	got := enter(t, w, "acme", webhook.PortalRead).do("GET", "/portal/verify")
	got.want(t, http.StatusOK, "/portal/deliveries/"+long.ID+"/body.json.txt")
	for file, program := range verifyPrograms(t, got) {
		if file != "receiver.py" && !strings.Contains(program, "body.json") {
			t.Errorf("%s does not read the file:\n%s", file, program)
		}
	}
}
