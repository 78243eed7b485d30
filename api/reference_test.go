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

// checkPolicyAllows checks that the content security policy of the reference blocks nothing on a
// page.
func checkPolicyAllows(t *testing.T, page string) {
	t.Helper()
	page = strings.Replace(page, `<script src="`+referenceScriptPath+`" defer></script>`, "", 1)
	for _, not := range []string{"<script", "<style", " style=", "<img", "<iframe", "<form", "<base", " onclick=", "javascript:"} {
		if strings.Contains(page, not) {
			t.Errorf("the page contains %s", not)
		}
	}
	loaded := regexp.MustCompile(`<link rel="stylesheet" href="([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(loaded) != 1 || loaded[0][1] != referenceStylePath {
		t.Errorf("the page loads %v, want only %s", loaded, referenceStylePath)
	}
	if strings.Contains(string(referenceCSS), "url(") || strings.Contains(string(referenceCSS), "@import") {
		t.Error("the style loads something")
	}
}

// referencePages returns the pages of the reference by path, in the order of their contents, and
// the IDs on each page.
func referencePages(t *testing.T, s *service) (pages map[string]string, ids map[string]map[string]int) {
	t.Helper()
	pages, ids = make(map[string]string), make(map[string]map[string]int)
	for _, p := range docPages {
		r := s.send("GET", p.Path, "", "Authorization", "")
		wantStatus(t, p.Path, r, 200)
		pages[p.Path], ids[p.Path] = r.body, make(map[string]int)
		for _, found := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(r.body, -1) {
			if ids[p.Path][found[1]]++; ids[p.Path][found[1]] == 2 {
				t.Errorf("%s: the id %s occurs twice", p.Path, found[1])
			}
		}
	}
	return pages, ids
}

// checkLinks checks that the links of the pages lead somewhere, and that the pages' policy allows
// their content.
func checkLinks(t *testing.T, s *service, pages map[string]string, ids map[string]map[string]int) {
	t.Helper()
	links := 0
	for at, page := range pages {
		checkPolicyAllows(t, page)
		for _, found := range regexp.MustCompile(` href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
			links++
			path, id, _ := strings.Cut(found[1], "#")
			if path == "" {
				path = at
			}
			if id != "" && ids[path][id] == 0 && path != receivingPath {
				t.Errorf("%s: a link leads to the missing %s", at, found[1])
			}
			if s.send("GET", path, "", "Authorization", "").status != 200 && !strings.HasPrefix(path, "https://") {
				t.Errorf("%s: a link leads to the missing %s", at, path)
			}
		}
	}
	if links < 300 {
		t.Errorf("the pages have only %d links", links)
	}
}

func TestReferencePages(t *testing.T) {
	s := start(t)
	r := s.send("GET", referencePath, "", "Authorization", "")
	if got, want := r.header.Get("Content-Security-Policy"),
		"default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"; got != want {
		t.Errorf("got the policy %q, want %q", got, want)
	}
	pages, ids := referencePages(t, s)
	checkLinks(t, s, pages, ids)
	everywhere := make(map[string]string)
	for at := range pages {
		for id := range ids[at] {
			everywhere[id] = at
		}
	}

	// The pages contain the whole document, with the platform's operations apart from those of
	// partners.
	c := loaded(t, loadContract)
	platform, moves := 0, 0
	eachOperation(t, func(pattern, method string, op *openapi3.Operation) {
		if strings.HasSuffix(op.OperationID, withPut) {
			return
		}
		isPlatform := op.Security == nil
		if op.Security != nil && len(*op.Security) > 0 {
			isPlatform = slices.Contains((*op.Security)[0]["bearer"], string(webhook.ScopePlatform))
		}
		switch at := everywhere[op.OperationID]; {
		case at == "":
			t.Errorf("%s %s is on no page", method, pattern)
		case at == movesPage:
			moves++
		case at == platformPage:
			platform++
		case op.Security != nil && isPlatform:
			t.Errorf("%s %s needs a platform token, and is on %s", method, pattern, at)
		}
	})
	if platform < 10 || moves != 6 {
		t.Errorf("got %d operations of the platform and %d of moves", platform, moves)
	}
	for name := range c.served.Components.Schemas {
		if id := anchor("#/components/schemas/" + name); everywhere[id] == "" {
			t.Errorf("schema %s is on no page as %s", name, id)
		}
	}
	for _, k := range kinds {
		if !strings.Contains(pages[referencePath], fmt.Sprintf(`<th scope="row"><code>%d</code></th>`, k.status)) {
			t.Errorf("the error %d is not in the table of errors", k.status)
		}
	}
}

// Each page is available as Markdown, with the same operations and schemas, and llms.txt lists them
// all.
func TestReferenceAsMarkdown(t *testing.T) {
	s := start(t)
	list := s.send("GET", llmsPath, "", "Authorization", "").body
	pages, _ := referencePages(t, s)
	for _, p := range docPages {
		text := s.send("GET", p.Path+textSuffix, "", "Authorization", "").body
		if !strings.HasPrefix(text, "# "+p.Title+"\n") {
			t.Errorf("%s: got %.60q, want the title %s", p.Path+textSuffix, text, p.Title)
		}
		if !strings.Contains(list, "]("+exampleBaseURL+p.Path+textSuffix+")") {
			t.Errorf("%s lacks %s", llmsPath, p.Path+textSuffix)
		}
		if p.Path == receivingPath {
			continue
		}
		for _, not := range []string{"<p>", "<code>", "&quot;", "&#39;", eventTypesHere} {
			if strings.Contains(text, not) {
				t.Errorf("%s contains %s", p.Path+textSuffix, not)
			}
		}
		for _, found := range regexp.MustCompile(`<span class="method ([A-Z]+)">[A-Z]+</span> .*?<code>(/[^<]*)</code>`).
			FindAllStringSubmatch(pages[p.Path], -1) {
			if want := "`" + found[1] + " " + found[2] + "`"; !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", p.Path+textSuffix, want)
			}
		}
	}
	if text := s.send("GET", typesPage+textSuffix, "", "Authorization", "").body; !strings.Contains(text, "### `content_published`") {
		t.Error("the catalog as Markdown is incomplete")
	}
}

// The pages name the settings of the installation; the OpenAPI document is the same everywhere.
func TestReferenceShowsSettings(t *testing.T) {
	for _, p := range (settings{Receiving: webhook.Receiving{Retry: webhook.DefaultRetryPolicy()}}).phrases() {
		if !p.pattern().Match(newDocumentBase(settings{}).contract(nil)) {
			t.Errorf("openapi.yaml lacks %q", p.general)
		}
	}
	s := start(t, func(c *Config) {
		c.RateLimit, c.MaxSubscriptions, c.RequestTimeout = 4321, 77, 17*time.Second
		c.Receiving = webhook.Receiving{
			Timeout: 45 * time.Second, Retry: webhook.DefaultRetryPolicy(), BatchSize: 55, Retention: 9 * 24 * time.Hour, MaxInFlight: 3,
		}
	})
	pages, _ := referencePages(t, s)
	for path, page := range pages {
		for _, suffix := range []string{"", textSuffix} {
			if suffix != "" {
				page = s.send("GET", path+suffix, "", "Authorization", "").body
			}
			for _, not := range []string{"unless the operator configured", "8 unless configured", "100 unless configured"} {
				if strings.Contains(strings.Join(strings.Fields(page), " "), not) {
					t.Errorf("%s says %q", path+suffix, not)
				}
			}
		}
	}
	for _, want := range []string{
		"4321 requests in any 60 seconds", "77, unless the program has a limit", "17 s; then 504", "9 days", "within 45 s", "55",
	} {
		if !strings.Contains(pages[referencePath], want) {
			t.Errorf("the guide lacks %q", want)
		}
	}
	if !strings.Contains(pages["/docs/deliveries"], "The waits between attempts are 5 s, 5 min, 30 min and 2 h") {
		t.Error("the page of deliveries lacks the waits")
	}
	if other := start(t).send("GET", "/v2/openapi.json", ""); s.send("GET", "/v2/openapi.json", "").body != other.body {
		t.Error("the OpenAPI document depends on the settings")
	}
}

// The base URL and the texts of operators are escaped.
func TestReferenceEscapes(t *testing.T) {
	catalog := loaded(t, loadCatalog)
	page := string(newDocuments(catalog, settings{Receiving: webhook.Receiving{BaseURL: "https://<b>x"}}).get().pages[referencePath].content)
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
		// Nothing sends pings here, so the test simulates the dispatcher.
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
				// The IDs in the examples do not exist; replace them with real ones.
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
	last = append(slices.Delete(slices.Clone(last), at, at+1), last[at]) // after everything in the program
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
	must(t, err)
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
				must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
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
	c := loaded(t, loadContract)
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
	page := s.send("GET", "/docs/subscriptions", "").body + s.send("GET", "/docs/deliveries", "").body
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

// TestReferenceHasEveryHeader checks that the table of a delivery's headers includes those of the
// specification and those that OpenAPI does not permit as parameters.
func TestReferenceHasEveryHeader(t *testing.T) {
	page := start(t).send("GET", "/docs/deliveries", "").body
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
