package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"service/test/harness"
	"service/webhook"
)

// TestScripts sends the requests in testdata/*.txt and compares the responses.
// The files read as documentation:
//
//	# a comment
//	> POST /v2/events            a request; its headers and, after an empty >,
//	> Content-Type: …            its body. {{token}} has every scope,
//	>                            {{platform_token}} is a platform token.
//	< 201                        the response: its status, the headers that
//	< Location: …                matter and, after an empty <, its complete
//	<                            body, indented.
//	! deliver 204                every pending delivery gets this response. A
//	                             name such as timeout is an error of that kind.
//	! reject 401                 the same, and the subscription becomes failing.
//	! work bulk-runs             runs all bulk runs to their end.
//	! answer-ping 503            the ping of the next request gets this response.
//
// {{name}} is a placeholder. The same name is the same value in the whole file,
// including requests. Its prefix gives its kind: cursor…, secret…, etag…, time…, ms…
// (which may differ each time), or otherwise an ID.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts (%v)", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			must(t, err)
			s := start(t)
			p := player{service: s, t: t, file: file, known: map[string]string{
				"token":          s.token,
				"platform_token": s.platform,
				"reader_token":   s.newToken("acme", "rob", webhook.ScopeWebhooksRead, webhook.ScopeEventsRead),
			}}
			p.play(strings.Split(string(text), "\n"))
		})
	}
}

type player struct {
	*service
	t     *testing.T
	file  string
	known map[string]string // values of placeholders
	wait  func()            // for the end of a ping, or nil
}

func (p *player) play(lines []string) {
	for i := 0; i < len(lines); {
		switch at := i + 1; {
		case strings.HasPrefix(lines[i], "!"):
			p.happen(at, strings.Fields(lines[i][1:]))
			i++
		case strings.HasPrefix(lines[i], ">"):
			var request, answer []string
			request, i = block(lines, i, ">")
			answer, i = block(lines, i, "<")
			p.exchange(at, request, answer)
		case lines[i] == "" || strings.HasPrefix(lines[i], "#"):
			i++
		default:
			p.t.Fatalf("%s:%d: unknown line %q", p.file, at, lines[i])
		}
	}
}

// block returns the lines from i on that begin with mark, without it.
func block(lines []string, i int, mark string) ([]string, int) {
	var b []string
	for ; i < len(lines) && strings.HasPrefix(lines[i], mark); i++ {
		b = append(b, strings.TrimPrefix(strings.TrimPrefix(lines[i], mark), " "))
	}
	return b, i
}

// happen runs a line that begins with an exclamation mark.
func (p *player) happen(at int, words []string) {
	if len(words) != 2 {
		p.t.Fatalf("%s:%d: want two words", p.file, at)
	}
	if words[0] == "work" {
		p.workBulkRuns()
		return
	}
	status, err := strconv.Atoi(words[1])
	code := webhook.ErrorNone
	if err != nil {
		code = webhook.ErrorCode(words[1])
	}
	switch words[0] {
	case "deliver":
		p.deliver(status, code)
	case "reject":
		p.health = webhook.HealthPolicy{RejectingAfter: 1}
		p.deliver(status, code)
	case "answer-ping":
		p.wait = p.answerPing(status, code)
	default:
		p.t.Fatalf("%s:%d: unknown line %q", p.file, at, words[0])
	}
}

// workBulkRuns runs all bulk runs to their end.
func (p *player) workBulkRuns() {
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan error)
	go func() { ended <- p.store.BulkRuns().Run(ctx) }()
	harness.WaitFor(p.t, "the end of the bulk runs", func() bool {
		runs, err := p.store.BulkRuns().Recent(ctx, "", 100)
		must(p.t, err)
		return !slices.ContainsFunc(runs, func(r webhook.BulkRun) bool { return r.Status == webhook.BulkRunning })
	})
	cancel()
	<-ended
}

func (p *player) exchange(at int, request, answer []string) {
	head, body := divide(request)
	method, target, _ := strings.Cut(p.fill(head[0]), " ")
	r := httptest.NewRequest(method, target, strings.NewReader(p.fill(body)))
	for _, line := range head[1:] {
		name, value, _ := strings.Cut(p.fill(line), ": ")
		r.Header.Set(name, value)
	}
	got := p.serve(r)
	if p.wait != nil {
		p.wait()
		p.wait = nil
	}

	where := fmt.Sprintf("%s:%d: %s", p.file, at, head[0])
	if len(answer) == 0 {
		p.t.Fatalf("%s: unexpected response", where)
	}
	head, body = divide(answer)
	if strconv.Itoa(got.status) != head[0] {
		p.t.Fatalf("%s: got %d, want %s; the body is %s", where, got.status, head[0], got.body)
	}
	for _, line := range head[1:] {
		name, value, _ := strings.Cut(line, ": ")
		p.compare(where, name+": "+value, name+": "+got.header.Get(name))
	}
	if body == "" {
		return
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, []byte(got.body), "", "  "); err != nil {
		p.t.Fatalf("%s: %v: %s", where, err, got.body)
	}
	want, have := strings.Split(body, "\n"), strings.Split(strings.TrimSpace(indented.String()), "\n")
	for i := range max(len(want), len(have)) {
		var w, h string
		if i < len(want) {
			w = want[i]
		}
		if i < len(have) {
			h = have[i]
		}
		if !p.compare(fmt.Sprintf("%s, body line %d", where, i+1), w, h) {
			p.t.Fatalf("the complete body:\n%s", indented.String())
		}
	}
}

func divide(lines []string) (head []string, body string) {
	for i, line := range lines {
		if line == "" {
			return lines[:i], strings.Join(lines[i+1:], "\n")
		}
	}
	return lines, ""
}

var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

// fill replaces the placeholders in a line of a request with known values.
func (p *player) fill(line string) string {
	return placeholder.ReplaceAllStringFunc(line, func(s string) string {
		value, ok := p.known[s[2:len(s)-2]]
		if !ok {
			p.t.Fatalf("%s: %s is not known", p.file, s)
		}
		return value
	})
}

// compare compares a line of a response, and stores the values of its placeholders.
func (p *player) compare(where, want, got string) bool {
	var names []string
	pattern := "^"
	end := 0
	for _, at := range placeholder.FindAllStringSubmatchIndex(want, -1) {
		name := want[at[2]:at[3]]
		pattern += regexp.QuoteMeta(want[end:at[0]])
		end = at[1]
		if value, ok := p.known[name]; ok {
			pattern += regexp.QuoteMeta(value)
			continue
		}
		names = append(names, name)
		pattern += "(" + form(name) + ")"
	}
	found := regexp.MustCompile(pattern + regexp.QuoteMeta(want[end:]) + "$").FindStringSubmatch(got)
	if found == nil {
		p.t.Errorf("%s:\n got %s\nwant %s", where, got, want)
		return false
	}
	for i, name := range names {
		if !strings.HasPrefix(name, "time") && !strings.HasPrefix(name, "ms") {
			p.known[name] = found[i+1]
		}
	}
	return true
}

func form(name string) string {
	switch {
	case strings.HasPrefix(name, "time"):
		return `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`
	case strings.HasPrefix(name, "ms"):
		return `\d+`
	case strings.HasPrefix(name, "secret"):
		return `whsec_[A-Za-z0-9+/]{43}=`
	case strings.HasPrefix(name, "hint"):
		return `svc_[A-Za-z0-9]{6}`
	case strings.HasPrefix(name, "etag"):
		return `"[A-Za-z0-9_-]{22}"`
	case name == "link":
		return `[A-Za-z0-9_-]{43}`
	case strings.HasPrefix(name, "cursor"):
		return `[A-Za-z0-9_-]{20,}`
	}
	return strings.Trim(uuidPattern.String(), "^$")
}
