package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"service/test/harness"
	"service/webhook"
)

// checkPolicyAllows checks that the content security policy of the reference page blocks
// nothing on it.
func checkPolicyAllows(t *testing.T, page string) {
	t.Helper()
	for _, not := range []string{"<script", "<style", " style=", "<img", "<iframe", "<form", "<base", " onclick=", "javascript:"} {
		if strings.Contains(page, not) {
			t.Errorf("the page contains %s", not)
		}
	}
	loaded := regexp.MustCompile(`<link [^>]*href="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(loaded) != 1 || loaded[0][1] != referenceStylePath {
		t.Errorf("the page loads %v, want only %s", loaded, referenceStylePath)
	}
	if strings.Contains(string(referenceCSS), "url(") || strings.Contains(string(referenceCSS), "@import") {
		t.Error("the style loads something")
	}
}

func TestReferencePage(t *testing.T) {
	s := start(t)
	r := s.send("GET", referencePath, "", "Authorization", "")
	if got, want := r.header.Get("Content-Security-Policy"),
		"default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"; got != want {
		t.Errorf("got the policy %q, want %q", got, want)
	}
	checkPolicyAllows(t, r.body)

	ids := make(map[string]int)
	for _, found := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(r.body, -1) {
		ids[found[1]]++
		if ids[found[1]] == 2 {
			t.Errorf("the id %s occurs twice", found[1])
		}
	}
	links := regexp.MustCompile(` href="([^"]*)"`).FindAllStringSubmatch(r.body, -1)
	for _, found := range links {
		target := found[1]
		if id, here := strings.CutPrefix(target, "#"); here && ids[id] == 0 {
			t.Errorf("a link leads to the missing id %s", target)
		}
	}
	if len(links) < 100 {
		t.Errorf("the page has only %d links", len(links))
	}

	// The page contains the whole document.
	c, err := loadContract()
	if err != nil {
		t.Fatal(err)
	}
	eachOperation(t, func(pattern, method string, op *openapi3.Operation) {
		if ids[strings.TrimSuffix(op.OperationID, withPut)] == 0 {
			t.Errorf("%s %s is not on the page", method, pattern)
		}
	})
	for name := range c.served.Components.Schemas {
		if id := anchor("#/components/schemas/" + name); ids[id] == 0 {
			t.Errorf("schema %s is not on the page as %s", name, id)
		}
	}
	for _, k := range kinds {
		if !strings.Contains(r.body, fmt.Sprintf(`<th scope="row"><code>%d</code></th>`, k.status)) {
			t.Errorf("the error %d is not in the table of errors", k.status)
		}
	}
}

// The base URL and the texts of operators are escaped.
func TestReferenceEscapes(t *testing.T) {
	catalog, err := loadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	page := string(newDocuments(catalog, "https://<b>x", webhook.Receiving{}).get().reference.content)
	if strings.Contains(page, "<b>x") || !strings.Contains(page, "https://&lt;b&gt;x") {
		t.Error("the base URL is not escaped")
	}
	if got := string(markdown("a <script>x</script> b\n\n<div>y</div>\n\n[l](javascript:x)")); strings.Contains(got, "<script") ||
		strings.Contains(got, "<div") || strings.Contains(got, "javascript:") {
		t.Errorf("a description becomes %s", got)
	}
}

// failing returns the records with a failing subscription and its failed delivery.
func (s *service) failing(of ids) ids {
	of.subscription = s.subscribe("content_updated")
	s.publishOne()
	s.health = webhook.HealthPolicy{RejectingAfter: 1}
	s.deliver(401, webhook.ErrorNone)
	s.health = webhook.HealthPolicy{}
	of.delivery = data[[]identified](s.t, s.send("GET",
		"/v2/webhooks/subscriptions/"+of.subscription+"/deliveries?filter[status]=failed", ""))[0].ID
	return of
}

// The commands on the page work.
func TestReferenceCommands(t *testing.T) {
	shell, _ := harness.Tool(t, "curl", "sh"), harness.Tool(t, "curl", "curl")
	s := start(t)
	made := s.records()
	failing := s.failing(made) // a healthy one is not probed
	waiting := made            // a completed delivery cannot be cancelled
	waiting.delivery = data[identified](t, s.send("POST",
		"/v2/webhooks/subscriptions/"+made.subscription+"/deliveries/"+made.delivery+"/redeliver", "")).ID
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Nothing sends pings here, so the test plays the dispatcher.
		if strings.HasSuffix(r.URL.Path, "/ping") || strings.HasSuffix(r.URL.Path, "/test") || strings.HasSuffix(r.URL.Path, "/probe") {
			wait := s.answerPing(204, webhook.ErrorNone)
			defer wait()
		}
		s.api.ServeHTTP(w, r)
	}))
	defer server.Close()
	p := &referencePage{BaseURL: server.URL}
	mustDecode(s.api.documents.get().contract.content, &p.contract)
	done := 0
	type deletion struct {
		operation, scope string
		command          Sample
	}
	var last []deletion
	run := func(op, scope string, command Sample) {
		if strings.Contains(command.Text, "/programs/acme/move/") {
			return // test/crash moves a program
		}
		done++
		token := s.as(&route{scope: webhook.Scope(scope)}).token
		cmd := exec.Command(shell, "-c", "set -e\n"+command.Text+" --silent --show-error --write-out '\\n%{http_code}'")
		cmd.Env = append(os.Environ(), "URL="+server.URL, "TOKEN="+token)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s\n%s", op, err, command.Text, out)
			return
		}
		text := strings.TrimSpace(string(out))
		status := text[strings.LastIndexByte(text, '\n')+1:]
		if !strings.HasPrefix(status, "2") {
			t.Errorf("%s: got %s\n%s", op, text, command.Text)
		}
	}
	for _, tag := range p.Tags {
		for _, op := range p.Operations(tag.Name) {
			for _, command := range op.Curl() {
				// The ids in the examples do not exist; replace them with real ones.
				of := made
				switch op.OperationID {
				case "cancelDelivery":
					of = waiting
				case "probeSubscription", "redeliver": // an update has removed the event type of the other
					of = failing
				}
				rt := route{method: op.Method, pattern: routePattern(op.Path), scope: webhook.Scope(op.Scope)}
				command.Text = strings.Replace(command.Text, pathOf(op), of.path(&rt), 1)
				if op.Method == http.MethodDelete {
					last = append(last, deletion{op.OperationID, op.Scope, command})
					continue
				}
				run(op.OperationID, op.Scope, command)
			}
		}
	}
	slices.Reverse(last) // the replay, before its subscription
	at := slices.IndexFunc(last, func(d deletion) bool { return d.operation == "deleteProgram" })
	last = append(slices.Delete(slices.Clone(last), at, at+1), last[at]) // after everything in it
	for _, d := range last {
		run(d.operation, d.scope, d.command)
	}
	if done < 20 {
		t.Errorf("only %d commands were run", done)
	}
}

// pathOf returns the path of an operation with its examples.
func pathOf(o Operation) string {
	path := o.Path
	for _, q := range o.AllParameters() {
		if q.In == "path" {
			var example string
			mustDecode(q.Example, &example)
			path = strings.ReplaceAll(path, "{"+q.Name+"}", example)
		}
	}
	return path
}

// The verification examples on the page accept real deliveries and reject others.
func TestReferenceVerifies(t *testing.T) {
	text := markdownBlocks(t)
	secret, other := webhook.NewSigningSecret(), webhook.NewSigningSecret()
	now := time.Now()
	body := []byte(`{"delivery_id":"d","text":"ä"}`)
	good := secret.Sign("d", now, body)
	cases := []struct {
		Name, Secret, At, Signature string
		Want                        bool
	}{
		{"right", secret.Reveal(), fmt.Sprint(now.Unix()), good, true},
		{"while the secret is rotated", secret.Reveal(), fmt.Sprint(now.Unix()), other.Sign("d", now, body) + " " + good, true},
		{"another secret", other.Reveal(), fmt.Sprint(now.Unix()), good, false},
		{"another time", secret.Reveal(), fmt.Sprint(now.Unix() + 1), good, false},
		{"an old one", secret.Reveal(), fmt.Sprint(now.Unix() - 301), secret.Sign("d", now.Add(-301e9), body), false},
	}
	list, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, language := range []struct{ name, program, file, code string }{
		{"python", "python3", "verify.py", text["python"] + `
import json
for c in json.load(open("cases.json")):
    headers = {"webhook-id": "d", "webhook-timestamp": c["At"], "webhook-signature": c["Signature"]}
    print(c["Name"], "true" if verify(c["Secret"], headers, open("body", "rb").read()) else "false")
`},
		{"js", "node", "verify.mjs", text["js"] + `
import { readFileSync } from "node:fs";
for (const c of JSON.parse(readFileSync("cases.json"))) {
  const headers = { "webhook-id": "d", "webhook-timestamp": c.At, "webhook-signature": c.Signature };
  console.log(c.Name, verify(c.Secret, headers, readFileSync("body")));
}
`},
	} {
		t.Run(language.name, func(t *testing.T) {
			program := harness.Tool(t, language.program, language.program)
			dir := t.TempDir()
			for name, content := range map[string][]byte{"cases.json": list, "body": body, language.file: []byte(language.code)} {
				if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(program, language.file)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			for i, c := range cases {
				if want := fmt.Sprint(c.Name, " ", c.Want); i >= len(lines) || lines[i] != want {
					t.Errorf("got %q, want %q in line %d", lines, want, i+1)
				}
			}
		})
	}
}

// markdownBlocks returns the blocks of code on the page, by their language.
func markdownBlocks(t *testing.T) map[string]string {
	t.Helper()
	c, err := loadContract()
	if err != nil {
		t.Fatal(err)
	}
	blocks := make(map[string]string)
	text := c.served.Webhooks["delivery"].Post.Description
	for _, found := range regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(text, -1) {
		blocks[found[1]] = found[2]
	}
	return blocks
}

// Deletions and cancellations come last.
func TestReferenceOrder(t *testing.T) {
	s := start(t)
	page := s.send("GET", referencePath, "").body
	last := -1
	for _, id := range []string{"createSubscription", "updateSubscription", "rotateSecret", "deleteSubscription", "createReplay",
		"cancelReplay"} {
		at := strings.Index(page, `<h3 id="`+id+`"`)
		if at <= last {
			t.Errorf("%s is at %d, after what must follow it, or nowhere", id, at)
		}
		last = at
	}
}

// TestReferenceHasEveryHeader checks that the table of a delivery's headers has those of the
// specification, with the ones that OpenAPI does not permit as parameters.
func TestReferenceHasEveryHeader(t *testing.T) {
	page := start(t).send("GET", "/docs", "").body
	_, delivery, _ := strings.Cut(page, `<h3 id="delivery">`)
	delivery, _, _ = strings.Cut(delivery, "</article>")
	for _, name := range []string{
		"Content-Type", "Authorization", "User-Agent", "X-Service-Delivery", "X-Service-Subscription", "X-Service-Program", "webhook-signature",
	} {
		if !strings.Contains(delivery, `<th scope="row"><code>`+name+`</code>`) {
			t.Errorf("the reference lacks %s", name)
		}
	}
}
