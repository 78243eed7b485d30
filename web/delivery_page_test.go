package web

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store"
	"service/store/storetest"
	"service/test/harness"
	"service/web/ui"
	"service/webhook"
)

const hostile = "\"'><script>alert(1)</script>\u202egnp.exe\x00\x1b[31m\xff\u200b"

// hostileBytes are a response body with hostile text and invalid UTF-8.
const hostileBytes = hostile + "\x80\xfe"

// inert fails the test if a page contains unescaped hostile text, or anything that the policy
// forbids.
func (p page) inert(t *testing.T) {
	t.Helper()
	for _, live := range []string{"<script>alert", "\u202e", "\x00", "\x1b", "\u200b", "\xff", "\xfe", " style=", "javascript:"} {
		if strings.Contains(p.body, live) {
			t.Errorf("%s has %q", p.Request.URL, live)
		}
	}
	if found := regexp.MustCompile(`\son[a-z]+=`).FindString(p.body); found != "" {
		t.Errorf("%s has%s", p.Request.URL, found)
	}
	if n := strings.Count(p.body, "<h1"); n != 1 {
		t.Errorf("%s has %d h1", p.Request.URL, n)
	}
	ids := make(map[string]bool)
	for _, m := range regexp.MustCompile(`\sid="([^"]*)"`).FindAllStringSubmatch(p.body, -1) {
		if ids[m[1]] {
			t.Errorf("%s has the id %s twice", p.Request.URL, m[1])
		}
		ids[m[1]] = true
	}
}

// eventSource is a program with one subscription, whose deliveries the test records.
type eventSource struct {
	t   *testing.T
	w   *Web
	sub webhook.Subscription
}

func newEventSource(t *testing.T, w *Web, url string) *eventSource {
	t.Helper()
	newProgramToken(t, w.store, "acme")
	sub := createSubscription(t, w.store, "acme", webhook.SubscriptionFields{
		URL: &url, Events: &[]string{"content_published", "content_updated"}, Active: new(true),
		AuthorizationHeader: new(new("Bearer top-secret-token")),
	})
	return &eventSource{t, w, sub}
}

// newDelivery returns a signed-in admin and a subscription with a delivery of events, whose first
// attempt is in flight.
func newDelivery(t *testing.T, url string, texts ...string) (v visitor, l *eventSource, c *store.Claim) {
	t.Helper()
	v, w := startSignedIn(t, nil)
	l = newEventSource(t, w, url)
	l.publish("content_published", texts...)
	return v, l, l.form()
}

// heldDelivery checks that the page of a due delivery says what it waits for while its subscription
// is paused.
func heldDelivery(t *testing.T, v visitor, l *eventSource, path string) {
	t.Helper()
	v.send(subscriptionPath(l.sub.ID)+"/pause").want(t, 303, "")
	p := v.do("GET", path)
	p.want(t, 200, "next attempt when the paused subscription is resumed")
	p.hasNot(t, "starts as soon as")
	p.hasNot(t, "<strong>Next attempt")
	v.send(subscriptionPath(l.sub.ID)+"/resume").want(t, 303, "")
}

// publish appends events without validation.
func (l *eventSource) publish(name string, fields ...string) []webhook.Event {
	l.t.Helper()
	var events []webhook.Event
	for _, f := range fields {
		id := webhook.NewID()
		events = append(events, webhook.Event{ID: id, Name: name, ReceivedAt: time.Now(),
			JSON: fmt.Appendf(nil, `{"id":"%s","timestamp":"2026-03-14T08:24:48.644Z","name":"%s","version":"1","text":%s}`, id, name, f)})
	}
	_, err := l.w.store.Events().Publish(l.t.Context(), "acme", events)
	must(l.t, err)
	return events
}

// form creates a delivery of the waiting events, with its first attempt in flight.
func (l *eventSource) form() *store.Claim {
	l.t.Helper()
	return spend(l.t, l.w.store, l.sub.ID, store.Credit{Count: 100})
}

func (l *eventSource) claim(ping bool) *store.Claim {
	l.t.Helper()
	kind := store.CreditDue
	if ping {
		kind = store.CreditPing
	}
	c, err := storetest.Claim(l.t.Context(), l.w.store, l.sub.ID, kind)
	if err != nil || c == nil {
		l.t.Fatalf("nothing is due: %v", err)
	}
	return c
}

// end records the result of an attempt. The next one is due immediately.
func (l *eventSource) end(c *store.Claim, a webhook.Attempt) {
	l.t.Helper()
	a.Number, a.StartedAt, a.Result = c.Number, time.Now(), webhook.Classify(a.ResponseStatus, a.Error)
	_, err := l.w.store.Queues().Record(c, &a, webhook.RetryPolicy{}.After(&a, time.Now().Add(-time.Second), 0),
		webhook.HealthPolicy{})
	must(l.t, err)
}

func answerOf500(header, body string) webhook.Attempt {
	return webhook.Attempt{ResponseStatus: 500, Duration: 100 * time.Millisecond, ResponseHeader: header, ResponseBody: []byte(body),
		Phases: webhook.Phases{DNS: 10 * time.Millisecond, Connect: 20 * time.Millisecond, TLS: 30 * time.Millisecond,
			FirstByte: 25 * time.Millisecond}}
}

func (p page) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			t.Errorf("%s: %q is not there:\n%s", p.Request.URL, text, p.body)
		}
	}
}

func (p page) hasNot(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			t.Errorf("%s: %q is there", p.Request.URL, text)
		}
	}
}

// wantHeader checks a header of a response.
func (p page) wantHeader(t *testing.T, name, want string) {
	t.Helper()
	if got := p.Header.Get(name); got != want {
		t.Errorf("%s %s: %s: got %q, want %q", p.Request.Method, p.Request.URL, name, got, want)
	}
}

// The delivery page follows the delivery through five attempts.
func TestDeliveryPage(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com/in?key=s3cret")
	events := l.publish("content_published", `"it's"`, `"two"`)
	c := l.form()
	path := "/deliveries/" + c.ID

	// An attempt in flight cannot be canceled, and has no response yet.
	p := v.do("GET", path)
	p.want(t, 200, "Sending: attempt 1 of 5 is in flight")
	p.has(t, "content_published ×2", "An attempt is in flight. Cancel the delivery after it ends.", "No response yet.", "not yet")
	p.inert(t)

	l.end(c, answerOf500("Content-Type: text/html\nDate: then\nServer: a\n", "<b>busy</b>"))
	l.end(l.claim(false), webhook.Attempt{Error: webhook.ErrorTimeout, ErrorFact: "no response", Duration: 10 * time.Second})
	p = v.do("GET", path)
	p.want(t, 200, "Retrying: timeout (no response), 2 of 5 attempts", "--attempt-timeout", webhook.ErrorTimeout.Detail())
	l.end(l.claim(false), answerOf500("Content-Type: text/html\nDate: now\nServer: b\n", "<b>busy</b>"))
	p = v.do("GET", path)
	p.want(t, 200, "Retrying: 500 Internal Server Error, 3 of 5 attempts")
	p.has(t, `id="response"`, `id="request"`, `href="`+path+`?attempt=1"`, `href="`+path+`?attempt=2"`,
		`href="`+path+`?attempt=3" title="500 Internal Server Error" aria-current="true"`,
		"Attempt 4 of 5 follows automatically.", "The endpoint failed while processing the request (500).", "&lt;b&gt;busy&lt;/b&gt;",
		"<del>a</del>", "<ins>b</ins>",
		`<rect class="took took-dns" x="0" y="0" width="2" height="10">`, // relative to the longest, ten seconds
		"POST /in?… HTTP/1.1", "hooks.example.com", "v1,[redacted]",
		"/events/acme/"+events[1].ID,
		"Authorization: $TOKEN", "$SIGNATURE", "$QUERY", "it&#39;\\&#39;&#39;s",
		"/v2/webhooks/subscriptions/"+l.sub.ID+"/deliveries/"+c.ID)
	p.hasNot(t, "s3cret", "top-secret-token", "<del>then</del>", "Changed since attempt 2", "--attempt-timeout")
	p.inert(t)

	chosenAttempt(t, v, path)

	// Downloads contain the exact bytes, and no browser renders them.
	body := webhook.AppendBody(nil, c.ID, l.sub.ID, "acme", [][]byte{events[0].JSON, events[1].JSON})
	v.wantFile(path+"/body.json.txt", string(body))
	v.wantFile(path+"/attempts/1/body.txt", "<b>busy</b>")
	for _, none := range []string{path + "/attempts/9/body.txt", path + "/attempts/x/body.txt", "/deliveries/none"} {
		v.do("GET", none).want(t, 404, "")
	}

	// Canceling asks for confirmation.
	v.do("GET", path+"/cancel").want(t, 200, "after 3 attempts")
	v.do("GET", path).has(t, path+"/cancel")
	p = v.send(path + "/cancel")
	p.want(t, 303, "")
	p = v.do("GET", path)
	p.want(t, 200, "It will not be sent again.", "The delivery was cancelled", "Already completed.", "Cancelled after 3 attempts")
	v.send(path+"/cancel").want(t, 409, "already completed")

	// Resending leads to the new delivery; each links to the other.
	v.do("GET", path+"/redeliver").want(t, 200, "will be resent to")
	p = v.send(path + "/redeliver")
	p.want(t, 303, "")
	again := p.Header.Get("Location")
	p = v.do("GET", again)
	p.want(t, 200, "resent in 1 delivery: this one.", `href="`+path+`"`, "Attempt 1 of 5 starts as soon as")
	v.do("GET", path).want(t, 200, `href="`+again+`"`)
	heldDelivery(t, v, l, again)
	deliveryOfGone(t, v, l, path, again)

	var did []string
	for _, entry := range audited(t, w) {
		if strings.Contains(entry, "delivery.") {
			_, what, _ := strings.Cut(entry, ": ")
			did = append(did, what)
		}
	}
	if diff := cmp.Diff([]string{"delivery.cancel after 3 attempts", "delivery.redeliver as " + strings.TrimPrefix(again, "/deliveries/")},
		did); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
}

// chosenAttempt checks that each attempt has its own address, which the stream keeps.
func chosenAttempt(t *testing.T, v visitor, path string) {
	t.Helper()
	p := v.do("GET", path+"?attempt=2")
	p.want(t, 200, "Until it failed", "10.0 s", `attempt=2" title="timeout`, `hx-sse:connect="`+path+`/stream?attempt=2"`)
	p.hasNot(t, "busy")
	p.wantHeader(t, "Cache-Control", "no-store")
	v.do("GET", path+"?attempt=4").want(t, 404, "")
}

// deliveryOfGone checks that events of a paused or deleted subscription cannot be resent.
func deliveryOfGone(t *testing.T, v visitor, l *eventSource, path, again string) {
	t.Helper()
	updateSubscription(t, l.w.store, l.sub.ID, webhook.SubscriptionFields{Active: new(false)})
	v.do("GET", path).want(t, 200, "resume it first")
	v.send(path+"/redeliver").want(t, 409, "not active")
	v.do("GET", again).want(t, 200, "The subscription is paused: only pings and tests are sent")
	_, err := storetest.DeleteSubscription(t.Context(), l.w.store, "acme", l.sub.ID)
	must(t, err)
	p := v.do("GET", path)
	p.want(t, 200, "The subscription is deleted", "deleted", "The subscription and its Authorization header are deleted.")
	v.do("GET", path+"/redeliver").want(t, 200, "The subscription is deleted")
	v.send(path+"/redeliver").want(t, 404, "")
}

// wantFile checks a download: the exact bytes, as text that no browser renders.
func (v visitor) wantFile(path, want string) {
	v.t.Helper()
	p := v.do("GET", path)
	p.want(v.t, 200, "")
	if p.body != want {
		v.t.Errorf("%s: got %q, want %q", path, p.body, want)
	}
	p.wantHeader(v.t, "Content-Type", "text/plain; charset=utf-8")
	p.wantHeader(v.t, "X-Content-Type-Options", "nosniff")
	if !strings.HasPrefix(p.Header.Get("Content-Disposition"), "attachment; ") {
		v.t.Errorf("%s: %v", path, p.Header)
	}
}

// A ping has a page as well. Its event is not a link.
func TestPingPage(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com")
	c := l.claim(true)
	l.end(c, webhook.Attempt{ResponseStatus: 204, Duration: 12 * time.Millisecond})
	p := v.do("GET", "/deliveries/"+c.ID)
	p.want(t, 200, "A ping belongs to this delivery only. It is not in the event log.")
	p.has(t, "Delivered: 204 No Content on attempt 1 of 5", "POST / HTTP/1.1", `&#34;ping&#34;`)
	p.hasNot(t, "/events/acme/")
	p.inert(t)
}

// While the events of a failed delivery are sent one by one, it counts as retrying. Afterwards its
// page shows their outcome, and only events that failed by themselves are left to resend: the
// subscription page counts as many deliveries as its list contains.
func TestSplitPage(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com")
	l.publish("content_updated", `"a"`, `"b"`, `"c"`, `"d"`)
	parent := l.form()
	l.end(parent, webhook.Attempt{ResponseStatus: 422})
	path := "/deliveries/" + parent.ID
	sentence := func(delivered int) string {
		return fmt.Sprintf("Retrying: 422 Unprocessable Entity, its events are sent one by one, %d of 4 events delivered", delivered)
	}
	p := v.do("GET", path)
	p.has(t, sentence(0), "being sent again one by one", `data-live`)
	p.hasNot(t, `class="primary"`)
	v.do("GET", "/deliveries").has(t, "<span>retrying</span>", "events sent one by one")
	v.do("GET", subscriptionPath(l.sub.ID)).hasNot(t, "failed permanently")

	for i, status := range []int{200, 422, 200, 422} {
		l.end(spend(t, w.store, l.sub.ID, store.Credit{Count: 1, Splits: true}), webhook.Attempt{ResponseStatus: status})
		if i < 3 {
			v.do("GET", path).has(t, sentence(i/2+1))
		}
	}
	p = v.do("GET", path)
	p.has(t, "Failed: 422 Unprocessable Entity, 1 of 5 attempts", "2 of 4 events delivered.",
		"2 events failed again in deliveries of their own")
	p.hasNot(t, `class="primary"`, "Resend it", "<span>retrying</span>")
	p.inert(t)
	v.do("GET", path+"/redeliver").has(t, "2 of 4 events delivered:")

	v.do("GET", subscriptionPath(l.sub.ID)).has(t, "2 deliveries failed permanently", "Resend failed (2)")
	list := v.do("GET", "/deliveries?filter[subscription_id]="+l.sub.ID+"&filter[recovered]=false")
	if n := strings.Count(list.body, `id="d-`); n != 2 {
		t.Errorf("%d deliveries are listed, want 2", n)
	}
}

// The page shows which attempts went to another URL than the subscription's, without its query.
func TestEarlierURL(t *testing.T) {
	v, l, c := newDelivery(t, "https://old.example.com/hook?key=s3cret", `"a"`)
	l.end(c, webhook.Attempt{Error: webhook.ErrorDNS})
	path := "/deliveries/" + c.ID
	const note = "Sent to an earlier URL"
	v.do("GET", path).hasNot(t, note, "s3cret")
	updateSubscription(t, l.w.store, l.sub.ID, webhook.SubscriptionFields{URL: new("https://new.example.com/hook")})
	p := v.do("GET", path)
	p.has(t, note+`: <code class="whole">https://old.example.com/hook?…</code>`, "DNS lookup of old.example.com failed")
	p.hasNot(t, "s3cret")
	p.inert(t)
	l.end(l.claim(false), webhook.Attempt{ResponseStatus: 200})
	v.do("GET", path).hasNot(t, note)
	v.do("GET", path+"?attempt=1").has(t, note)
}

// The page says if a response has been removed, and still shows its attempt.
func TestRemovedResponse(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com")
	answer := webhook.Attempt{ResponseStatus: 200, ResponseHeader: "X-Kept: yes\n",
		ResponseBody: []byte(strings.Repeat("r", webhook.MaxStoredBody))}
	c := l.claim(true)
	l.end(c, answer)
	path := "/deliveries/" + c.ID
	v.do("GET", path).has(t, "200 OK", "X-Kept")
	for range 200 { // more than the service keeps, and enough to start the removal
		l.publish("content_updated", `"a"`)
		l.end(l.form(), answer)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.store.Housekeep(ctx) }()
	harness.WaitFor(t, "the removal of the response", func() bool {
		d, err := w.store.Deliveries().View(t.Context(), c.ID)
		must(t, err)
		return d.Attempts[0].ResponseRemoved
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	p := v.do("GET", path)
	p.has(t, "200 OK", "The response is no longer stored")
	p.hasNot(t, "X-Kept", "No headers", "Response headers of attempt 1")
	p.inert(t)
	v.do("GET", path+"/attempts/1/body.txt").want(t, 410, "The response of this attempt is no longer stored.")
}

// A body that the receiver sent in gzip format is shown unpacked and downloaded as received.
func TestPackedResponse(t *testing.T) {
	v, l, c := newDelivery(t, "https://hooks.example.com", `"a"`)
	pack := func(text string) string {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		io.WriteString(z, text)
		must(t, z.Close())
		return b.String()
	}
	short, long := pack(`{"problem":"no such channel"}`), pack(strings.Repeat("long text ", 10_000))
	l.end(c, answerOf500("Content-Encoding: gzip\nContent-Length: "+strconv.Itoa(len(short))+"\n", short))
	p := v.do("GET", "/deliveries/"+c.ID)
	p.has(t, "no such channel", "29 B, unpacked from 53 B of gzip")
	p.hasNot(t, "as hex")
	p.inert(t)
	file := v.do("GET", "/deliveries/"+c.ID+"/attempts/1/body.txt")
	if name := file.Header.Get("Content-Disposition"); file.body != short || !strings.Contains(name, ".txt.gz") {
		t.Errorf("got %q as %s, want the body as received", file.body, name)
	}
	for i, tt := range []struct{ body, want string }{
		{long, "truncated at 16.0 KiB, unpacked from "},
		{pack(hostileBytes), "of gzip"},
		{short[:20], "20 B"},
	} {
		c := l.claim(false)
		l.end(c, answerOf500("", tt.body))
		p := v.do("GET", "/deliveries/"+c.ID)
		if p.has(t, tt.want); i == 0 {
			p.has(t, "long text long text")
		}
		p.inert(t)
	}
}

// Hostile text from a server or a publisher is inert on the delivery page.
func TestHostileDelivery(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com/\u202e\"><script>alert(1)</script>?\u202ex")
	l.publish("content_published\u202e<script>alert(1)</script>", `1`) // an invalid name, without subscribers
	l.publish("content_published", "\"\u202e</pre><script>alert(1)</script>\u200b\"")
	c := l.form()
	line := strings.Repeat("x", webhook.MaxStoredBody-20)
	for _, body := range []string{hostileBytes, "\u202e" + line + "</code><script>alert(1)</script>", `{"` + "\u202e" +
		`</script><script>alert(1)</script>":"\u0000"}`, "\x00\x1b" + hostileBytes} {
		a := answerOf500("X-\u202eName: "+strings.ToValidUTF8(hostile, "?")+"\nLocation: javascript:alert(1)\nX-Long: "+strings.Repeat("<b>",
			5000)+"\n", body)
		a.ResponseTruncated = true
		if c == nil {
			c = l.claim(false)
		}
		l.end(c, a)
		p := v.do("GET", "/deliveries/"+c.ID)
		p.want(t, 200, "⟨U+202E⟩")
		// The word may be text, but not in an attribute that is a link.
		p.body = strings.ReplaceAll(p.body, "<td>javascript:alert(1)</td>", "")
		p.inert(t)
		v.do("GET", "/deliveries/"+c.ID+"/redeliver").inert(t)
		c = nil
	}
	l.publish("content_updated", `"`+strings.Repeat("<script>alert(1)</script>", 8000)+`"`)
	c = l.form()
	p := v.do("GET", "/deliveries/"+c.ID)
	p.want(t, 200, "download it")
	p.inert(t)
}

// Every error of an attempt has its own advice.
func TestAdvice(t *testing.T) {
	seen := make(map[advice]bool)
	for _, code := range webhook.ErrorCodes() {
		a := adviceOf(&webhook.Attempt{Error: code})
		if a.what == "" || a.todo == "" || seen[a] {
			t.Errorf("%s: %+v", code, a)
		}
		seen[a] = true
	}
	for status := 200; status <= 599; status++ {
		a := adviceOf(&webhook.Attempt{ResponseStatus: status})
		if a.what == "" || (a.todo == "") != (status < 300) {
			t.Errorf("%d: %+v", status, a)
		}
	}
}

func TestChangesOf(t *testing.T) {
	before := [][2]string{{"Content-Type", "text/html"}, {"Date", "then"}, {"X-Old", "1"}, {"Set-Cookie", "a"}, {"Set-Cookie", "b"}}
	after := [][2]string{{"content-type", "text/html"}, {"Date", "now"}, {"Set-Cookie", "a"}, {"X-New", "2"}}
	want := []change{{"X-Old", "1", ""}, {"Set-Cookie", "a, b", "a"}, {"X-New", "", "2"}}
	if diff := cmp.Diff(want, changesOf(before, after), cmp.AllowUnexported(change{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The cURL command signs its request. A shell function replaces curl, and the test verifies the
// request.
func TestCurlSigns(t *testing.T) {
	bash, _ := harness.Tool(t, "openssl", "bash"), harness.Tool(t, "openssl", "openssl")
	secret := webhook.NewSigningSecret()
	for _, body := range []string{`{"text":"it's $HOME \u202e 100 %"}`, `{"text":"` + strings.Repeat("x", maxCurlBody) + `"}`} {
		d := deliveryRecord{body: []byte(body)}
		d.ID, d.Subscription.URL, d.Subscription.HasAuthorizationHeader = "019ddcfe", "https://example.com/in?key=1", true
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, d.bodyFile()), d.body, 0o600))
		cmd := exec.CommandContext(t.Context(), bash, "-c", `curl() { printf '%s\0' "$@"; }; `+d.asCurl())
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "SECRET="+secret.Reveal(), "TOKEN=Bearer x", "QUERY=key=2")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, d.asCurl())
		}
		args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		header := make(http.Header)
		for i, arg := range args {
			if arg == "-H" {
				name, value, _ := strings.Cut(args[i+1], ": ")
				header.Set(name, value)
			}
		}
		sent := args[len(args)-1]
		if name, ok := strings.CutPrefix(sent, "@"); ok {
			read, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			sent = string(read)
		}
		if args[0] != "https://example.com/in?key=2" || sent != body || header.Get("Authorization") != "Bearer x" {
			t.Errorf("got %q, want the URL with QUERY, the token and the body", args)
		}
		seconds, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
		must(t, err)
		if got, want := header.Get("webhook-signature"), secret.Sign(d.ID, time.Unix(seconds, 0), d.body); got != want {
			t.Errorf("got signature %q, want %q", got, want)
		}
	}
}

// A shell reads back quoted text unchanged.
func TestShellText(t *testing.T) {
	bash := harness.Tool(t, "bash", "bash")
	for _, s := range []string{"plain", "", "it's $HOME `id` \"x\" \\n !", strings.Repeat("long'", 200),
		"turned \u202e'quoted\\ \xff\x01\u2028", "line\nline", strings.Repeat("\u200b", 400)} {
		quoted := ui.ShellQuoteText(s)
		if strings.ContainsFunc(quoted, ui.IsHidden) && quoted != ui.ShellQuote(s) {
			t.Errorf("%q has what cannot be seen", quoted)
		}
		got, err := exec.CommandContext(t.Context(), bash, "-c", "printf %s "+quoted).Output()
		if err != nil || string(got) != s {
			t.Errorf("%s: the shell read %q, %v; want %q", quoted, got, err, s)
		}
	}
}

// The phases of an attempt add up to its duration, and are drawn in proportion.
func TestPartsOf(t *testing.T) {
	a := answerOf500("", "")
	want := []attemptPart{
		{"dns", "DNS", 10 * time.Millisecond, "0", "50"},
		{"connect", "Connect", 20 * time.Millisecond, "50", "100"},
		{"tls", "TLS", 30 * time.Millisecond, "150", "150"},
		{"first-byte", "First byte", 25 * time.Millisecond, "300", "125"},
		{"rest", "Rest of response", 15 * time.Millisecond, "425", "75"},
	}
	if diff := cmp.Diff(want, phaseParts(&a, 200*time.Millisecond), cmp.AllowUnexported(attemptPart{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The stored duration in milliseconds is shorter than the sum of its phases.
	a.Duration = 84 * time.Millisecond
	if parts := phaseParts(&a, 200*time.Millisecond); len(parts) != 4 {
		t.Errorf("got %+v, want no rest", parts)
	}
}

// The delivery page receives the changes of its delivery, and no others.
func TestOneDeliveryStream(t *testing.T) {
	v, l, c := newDelivery(t, "https://hooks.example.com", `"one"`)
	path := "/deliveries/" + c.ID
	p := v.do("GET", path)
	p.has(t, `hx-sse:connect="`+path+`/stream"`, `Last-Event-ID&#34;:&#34;pending-1-0-0-0-0-0&#34;`)

	f := followList(v, path+"/stream", "pending-1-0-0-0-0-0")
	l.end(l.claim(true), webhook.Attempt{ResponseStatus: 200}) // another delivery
	l.end(c, answerOf500("Content-Type: text/html\n", "<script>alert(1)</script>"))
	id, data := f.next("<")
	if id != "retryable-1-1-0-0-0-0" {
		t.Errorf("the id is %q", id)
	}
	contains(t, "the stream", data, []string{`<div id="record" data-update>`,
		`<section id="facts" aria-label="Details" data-update>`, `<section id="response"`,
		"Retrying: 500 Internal Server Error, 1 of 5 attempts", "Attempt 2 of 5 follows"}, []string{"<script>alert", `id="request"`})
	c = l.claim(false)
	l.end(c, webhook.Attempt{ResponseStatus: 200})
	for id != "success-2-2-0-0-0-0" { // the stream may have sent intermediate states
		if id, _ = f.next("<"); !strings.HasPrefix(id, "pending-2") && !strings.HasPrefix(id, "success-2") {
			t.Fatalf("then %q was sent", id)
		}
	}
	v.do("GET", path).hasNot(t, "hx-sse:connect")
	v.do("GET", "/deliveries/none/stream").want(t, 404, "")
}

// Consecutive attempts with the same outcome are one line, and their advice is shown once.
func TestAttemptsAreFolded(t *testing.T) {
	v, l, c := newDelivery(t, "https://hooks.example.com/in", `"one"`)
	path := "/deliveries/" + c.ID
	l.end(c, answerOf500("Server: a\n", "busy"))
	for i := range 4 {
		l.end(l.claim(false), webhook.Attempt{Error: webhook.ErrorTLS, ErrorFact: fmt.Sprintf("the certificate expired %d hours ago, on "+
			"2026-03-14", i+1)})
	}
	p := v.do("GET", path)
	p.want(t, 200, "Failed: TLS handshake with hooks.example.com failed (the certificate expired 4 hours ago, on 2026-03-14), 5 of 5 attempts")
	p.has(t, `href="`+path+`?attempt=1"`, `href="`+path+`?attempt=5"`, "2–5")
	p.hasNot(t, "busy", "?attempt=4")
	if n := strings.Count(p.body, "openssl s_client"); n != 1 {
		t.Errorf("the advice is there %d times", n)
	}
	p.inert(t)
	v.do("GET", path+"?attempt=1").has(t, "busy", "2–5")
	p = v.do("GET", path+"?attempt=3")
	p.has(t, "expired 2 hours ago", "?attempt=2", "?attempt=4")
	p.hasNot(t, "2–5")
}

// The head of a recovered delivery says when and by which delivery it was recovered.
func TestRecoveredDelivery(t *testing.T) {
	v, l, c := newDelivery(t, "https://hooks.example.com", `"one"`)
	l.end(c, webhook.Attempt{ResponseStatus: 404})
	path := deliveryPath(c.ID)
	v.do("GET", path).hasNot(t, "Recovered at")
	again := v.send(path + "/redeliver").Header.Get("Location")
	l.end(l.claim(false), webhook.Attempt{ResponseStatus: 200})
	p := v.do("GET", path)
	p.has(t, "Failed: 404 Not Found, 1 of 5 attempts,", ". Recovered at ", ` by delivery <a href="`+again+`">`)
	d, err := l.w.store.Deliveries().View(t.Context(), c.ID)
	must(t, err)
	if got := deliveryPath(d.RecoveredBy); got != again {
		t.Errorf("recovered by %s, want %s", got, again)
	}
}

func TestBodyChange(t *testing.T) {
	a, b := &webhook.Attempt{ResponseBody: []byte("one")}, &webhook.Attempt{ResponseBody: []byte("three")}
	none := new(webhook.Attempt)
	for got, want := range map[string]string{
		bodyChange(a, a):    "",
		bodyChange(a, b):    "The body differs: 3 B before, 5 B now.",
		bodyChange(none, a): "The body was empty and now has 3 B.",
		bodyChange(a, none): "The body had 3 B and is now empty.",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
