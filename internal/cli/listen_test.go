package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// sign sets the headers of a delivery with a body like the dispatcher does.
func sign(r *http.Request, secret webhook.SigningSecret, body string) {
	head := webhook.RequestHead{DeliveryID: "d1", SubscriptionID: "s1", ProgramID: "acme", At: time.Now()}
	head.Signature = secret.Sign("d1", head.At, []byte(body))
	for _, line := range head.AppendHeader(nil) {
		r.Header.Set(line[0], line[1])
	}
}

// deliver sends a delivery, and returns the status.
func deliver(t *testing.T, h http.Handler, secret webhook.SigningSecret, body string, change func(*http.Request)) int {
	t.Helper()
	r := httptest.NewRequest("POST", "/hook", strings.NewReader(body))
	sign(r, secret, body)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

func always200(*arrival) int { return 200 }

const goodBody = `{"delivery_id":"d1","subscription_id":"s1","program_id":"acme","events":[` +
	`{"id":"e1","name":"channel_created"},{"id":"e2","name":"channel_created"},{"id":"e3","name":"content_published"}]}`

func TestReceiverLine(t *testing.T) {
	secret, other := webhook.NewSigningSecret(), webhook.NewSigningSecret()
	tests := []struct {
		name   string
		secret string // the receiver's
		sender webhook.SigningSecret
		body   string
		change func(*http.Request)
		status int
		line   string
	}{
		{"verified", secret.Reveal(), secret, goodBody, nil, 200,
			"delivery d1  3 events: channel_created ×2, content_published  signature verified  → 200"},
		{"no secret", "", secret, goodBody, nil, 200,
			"delivery d1  3 events: channel_created ×2, content_published  signature not verified  → 200"},
		{"another secret", other.Reveal(), secret, goodBody, nil, 200,
			"delivery d1  3 events: channel_created ×2, content_published  signature WRONG (no matching signature found)  → 200"},
		{"two signatures", other.Reveal(), secret, goodBody, func(r *http.Request) {
			r.Header.Set("webhook-signature", r.Header.Get("webhook-signature")+" "+other.Sign("d1", time.Now(), []byte(goodBody)))
		}, 200, "delivery d1  3 events: channel_created ×2, content_published  signature verified  → 200"},
		{"no signature", secret.Reveal(), secret, goodBody, func(r *http.Request) { r.Header.Del("webhook-signature") }, 200,
			"delivery d1  3 events: channel_created ×2, content_published  signature WRONG (missing required headers)  → 200"},
		{"an old signature", secret.Reveal(), secret, goodBody, func(r *http.Request) {
			old := time.Now().Add(-time.Hour)
			r.Header.Set("webhook-timestamp", strconv.FormatInt(old.Unix(), 10))
			r.Header.Set("webhook-signature", secret.Sign("d1", old, []byte(goodBody)))
		}, 200, "delivery d1  3 events: channel_created ×2, content_published  signature WRONG (message timestamp too old)  → 200"},
		{"a signature of another delivery", secret.Reveal(), secret, goodBody, func(r *http.Request) {
			r.Header.Set("webhook-id", "d2")
			r.Header.Set("webhook-signature", secret.Sign("d2", time.Now(), []byte(goodBody)))
		}, 200, "delivery d1  3 events: channel_created ×2, content_published  signature WRONG (webhook-id is not the delivery id)  → 200"},
		{"other ids", "", secret, strings.Replace(goodBody, `"s1"`, `"s2"`, 1), nil, 200,
			"delivery d1  3 events: channel_created ×2, content_published  signature not verified  → 200  (the ids in headers and body differ)"},
		{"not a delivery", "", secret, "hello", func(r *http.Request) { r.Header = http.Header{} }, 200,
			"delivery without an id  0 events:   signature not verified  → 200  (not a delivery: the body has no events)"},
		{"control characters", "", secret, `{"delivery_id":"d1","subscription_id":"s1","program_id":"acme",` +
			`"events":[{"id":"e","name":"\u001b[2Jx\n"}]}`, nil, 200,
			`delivery d1  1 event: \x1b[2Jx\n  signature not verified  → 200`},
		{"many names", "", secret, `{"delivery_id":"d1","subscription_id":"s1","program_id":"acme","events":[` +
			`{"name":"a"},{"name":"b"},{"name":"c"},{"name":"d"},{"name":"e"},{"name":"f"},{"name":"a"}]}`, nil, 200,
			"delivery d1  7 events: a ×2, b, c, d, e and 1 more  signature not verified  → 200"},
	}
	clock := regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3}  `)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			r := &receiver{respond: always200, print: printArrival(&out, false)}
			if test.secret != "" {
				if err := r.verifyWith(test.secret); err != nil {
					t.Fatal(err)
				}
			}
			if got := deliver(t, r, test.sender, test.body, test.change); got != test.status {
				t.Errorf("got status %d, want %d", got, test.status)
			}
			line := out.String()
			if !clock.MatchString(line) || strings.Count(line, "\n") != 1 {
				t.Fatalf("got %q, want one line that begins with the time", line)
			}
			if got := strings.TrimSuffix(clock.ReplaceAllString(line, ""), "\n"); got != test.line {
				t.Errorf("\n got %s\nwant %s", got, test.line)
			}
		})
	}
}

func TestReceiverCountsAttempts(t *testing.T) {
	var got []int
	r := &receiver{respond: func(a *arrival) int { return 500 + a.Times }, print: func(*arrival) {}}
	for range 3 {
		got = append(got, deliver(t, r, webhook.NewSigningSecret(), goodBody, nil))
	}
	other := strings.ReplaceAll(goodBody, "d1", "d2")
	got = append(got, deliver(t, r, webhook.NewSigningSecret(), other, func(r *http.Request) {
		r.Header.Set("X-Service-Delivery", "d2")
	}))
	if want := []int{501, 502, 503, 501}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReceiverRefusesInvalidRequests(t *testing.T) {
	printed := 0
	r := &receiver{respond: always200, print: func(*arrival) { printed++ }}
	if got := deliver(t, r, nil, goodBody, func(r *http.Request) { r.Method = "GET" }); got != 405 {
		t.Errorf("GET got %d, want 405", got)
	}
	if got := deliver(t, r, nil, strings.Repeat("x", maxArrival+1), nil); got != 413 {
		t.Errorf("a body of more than %d bytes got %d, want 413", maxArrival, got)
	}
	if got := deliver(t, r, nil, strings.Repeat("x", maxArrival), nil); got != 200 {
		t.Errorf("a body of %d bytes got %d, want 200", maxArrival, got)
	}
	if printed != 1 {
		t.Errorf("got %d printed, want 1", printed)
	}
}

func TestReceiverForwards(t *testing.T) {
	var header http.Header
	var body string
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		header, body = r.Header, string(b)
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(307)
	}))
	r := &receiver{respond: always200, print: func(*arrival) {}, forward: &forwarder{target.URL + "/in", forwardClient()}}
	secret := webhook.NewSigningSecret()
	got := deliver(t, r, secret, goodBody, func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer partner")
		r.Header.Set("Connection", "X-Hop")
		r.Header.Set("X-Hop", "1")
	})
	if got != 307 {
		t.Errorf("got %d, want the target's 307 without following it", got)
	}
	if body != goodBody {
		t.Errorf("the target got the body %s, want %s", body, goodBody)
	}
	for _, name := range []string{
		"X-Service-Delivery", "webhook-id", "webhook-timestamp", "webhook-signature", "Authorization", "Content-Type",
	} {
		if header.Get(name) == "" {
			t.Errorf("the target did not get %s", name)
		}
	}
	if header.Get("X-Hop") != "" {
		t.Error("a hop-by-hop header was forwarded")
	}

	target.Close()
	var note string
	r.print = func(a *arrival) { note = a.Note }
	if got := deliver(t, r, secret, goodBody, nil); got != 502 || !strings.Contains(note, "not forwarded") {
		t.Errorf("without the target got %d, %q; want 502 and a note", got, note)
	}
}

func TestListenCommand(t *testing.T) {
	secret := webhook.NewSigningSecret()
	file := writeFile(t, filepath.Join(t.TempDir(), "secret"), secret.Reveal()+"\n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out, outWriter := io.Pipe()
	errs, errsWriter := io.Pipe()
	status := make(chan int)
	go func() {
		args := []string{"listen", "--listen", "127.0.0.1:0", "--secret-file", file, "--json", "--fail-first", "1", "--status", "204"}
		status <- Run(ctx, args, Streams{nil, outWriter, errsWriter})
		errsWriter.Close()
	}()
	greeting := readLine(t, errs)
	url := regexp.MustCompile(`http://\S+`).FindString(greeting)
	if url == "" {
		t.Fatalf("no URL in %q", greeting)
	}
	lines := bufio.NewReader(out)
	for times, want := range []int{503, 204} {
		req, err := http.NewRequest("POST", url, strings.NewReader(goodBody))
		if err != nil {
			t.Fatal(err)
		}
		sign(req, secret, goodBody)
		responded := make(chan error)
		go func() {
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode != want {
					err = fmt.Errorf("status %d, want %d", resp.StatusCode, want)
				}
			}
			responded <- err
		}()
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if err := <-responded; err != nil {
			t.Error(err)
		}
		var got arrival
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatal(err)
		}
		if got.DeliveryID != "d1" || got.Signature != signatureVerified || got.Status != want || got.Times != times+1 ||
			len(got.Events) != 3 || string(got.Body) != goodBody {
			t.Errorf("got %+v", got)
		}
	}
	cancel()
	if got := <-status; got != exitDone {
		t.Errorf("exit status %d, want %d", got, exitDone)
	}
}

// readLine reads one line from a stream without buffering more.
func readLine(t *testing.T, r io.Reader) string {
	var line []byte
	b := make([]byte, 1)
	for {
		if _, err := io.ReadFull(r, b); err != nil {
			t.Errorf("after %q: %v", line, err)
			return string(line)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

func TestListenUsage(t *testing.T) {
	_, errs := expect(t, exitUsage, "listen", "--listen", "nowhere", "--status", "700", "--fail-first", "-", "--forward", "ftp://x",
		"--secret", "hush")
	for _, want := range []string{"5 settings are wrong", "--listen: ", "--status: ", "--fail-first: ", "--forward: ", "--secret: "} {
		if !strings.Contains(errs, want) {
			t.Errorf("got %s, want %q", errs, want)
		}
	}
	if strings.Contains(errs, "hush") {
		t.Errorf("the error contains the secret: %s", errs)
	}
}
