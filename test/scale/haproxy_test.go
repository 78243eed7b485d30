package scale

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"service/test/harness"
	"service/webhook"
)

// arrivals are the events that a receiver got, by path and number.
type arrivals struct {
	mu    sync.Mutex
	count map[string]map[int]int
	total int
}

func (a *arrivals) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := harness.ReadBody(r)
	if err != nil || harness.IsPing(body) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.count[r.URL.Path] == nil {
		a.count[r.URL.Path] = make(map[int]int)
	}
	for n := range harness.Numbers(body) {
		a.count[r.URL.Path][n]++
		a.total++
	}
}

// have reports whether as many events have arrived.
func (a *arrivals) have(total int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total >= total
}

// TestHAProxy serves the programs of two installations through one address, and checks the
// statements of docs/scale.md.
func TestHAProxy(t *testing.T) {
	harness.Long(t)
	f := newFleet(t)
	one, two := f.program(f.one, "acme", "svc_"), f.program(f.two, "bcorp", "svc_2_")
	tokens := map[string]string{"acme": one, "bcorp": two}
	f.checkEvents(tokens)
	f.checkSeparate(tokens)
	f.checkHeaders(two)
	setup := f.checkNames()
	f.checkMetrics()
	f.checkStandby(one, two)

	f.stopProxy()
	for _, secret := range []string{one, two, setup} {
		if strings.Contains(f.log.String(), secret) {
			t.Errorf("the log of HAProxy contains the secret %s", secret)
		}
	}
	f.checkAddresses()
}

// checkEvents publishes events of both programs, one at a time and as streams, and waits for
// each at the receiver.
func (f *fleet) checkEvents(tokens map[string]string) {
	f.tb.Helper()
	const each, streamed = 20, 3000
	got := &arrivals{count: make(map[string]map[int]int)}
	receiver := harness.Listen(f.tb, got)
	for id, token := range tokens {
		a := f.request("POST", shared+"/v2/webhooks/subscriptions", token,
			fmt.Sprintf(`{"url": %q, "events": [{"name": %q}]}`, receiver+"/"+id, harness.NumberedEvent))
		if a.status != http.StatusCreated || a.header.Get("X-Program-Id") != id {
			f.tb.Fatalf("%s: subscription: status %d, program %q: %s", id, a.status, a.header.Get("X-Program-Id"), a.body)
		}
		for n := range each {
			if a := f.request("POST", shared+"/v2/events", token, string(harness.AppendEvent(nil, n))); a.status != http.StatusCreated {
				f.tb.Fatalf("%s: publish: status %d: %s", id, a.status, a.body)
			}
		}
		f.stream(token, each, streamed)
	}
	harness.WaitFor(f.tb, "all events", func() bool { return got.have(len(tokens) * (each + streamed)) })
	got.mu.Lock()
	defer got.mu.Unlock()
	for id := range tokens {
		for n := range each + streamed {
			if c := got.count["/"+id][n]; c != 1 {
				f.tb.Fatalf("%s: event %d arrived %d times", id, n, c)
			}
		}
	}
}

// stream publishes events as one stream, whose first lines must be stored before the last ones are
// sent: HAProxy must not buffer the body.
func (f *fleet) stream(token string, first, n int) {
	f.tb.Helper()
	body, send := io.Pipe()
	go func() {
		var b []byte
		for i := range n {
			if b = append(harness.AppendEvent(b, first+i), '\n'); i == 0 {
				b = f.awaitStored(send, token, b)
			}
		}
		_, err := send.Write(b)
		send.CloseWithError(err)
	}()
	req, err := http.NewRequest("POST", shared+"/v2/events", body)
	if err != nil {
		f.tb.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := f.client.Do(req)
	if err != nil {
		f.tb.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if want := fmt.Sprintf(`"accepted":%d`, n); err != nil || resp.StatusCode != http.StatusCreated || !strings.Contains(string(text), want) {
		f.tb.Fatalf("stream: status %d: %s, %v; want 201 and %s", resp.StatusCode, text, err, want)
	}
}

// awaitStored sends the first line of a stream and waits until it is stored. It returns an empty
// buffer.
func (f *fleet) awaitStored(send io.Writer, token string, line []byte) []byte {
	before := f.published(token)
	if _, err := send.Write(line); err != nil {
		f.tb.Error(err)
	}
	for f.published(token) == before && f.tb.Context().Err() == nil {
	}
	return line[:0]
}

// published returns the ID of the newest event.
func (f *fleet) published(token string) string {
	a, err := f.try("GET", shared+"/v2/events?page[size]=1", token, "")
	var list struct{ Data []struct{ ID string } }
	if err == nil {
		err = json.Unmarshal([]byte(a.body), &list)
	}
	if err != nil || len(list.Data) != 1 {
		f.tb.Errorf("newest event: %s: %v", a.body, err)
		return ""
	}
	return list.Data[0].ID
}

// checkSeparate checks that each installation has only its own program.
func (f *fleet) checkSeparate(tokens map[string]string) {
	f.tb.Helper()
	for i, in := range []*harness.Instance{f.one, f.two} {
		own := []string{"acme", "bcorp"}[i]
		out, err := in.Command("program", "list", "--data", in.Data)
		if err != nil || !strings.Contains(out, own) || strings.Contains(out, []string{"bcorp", "acme"}[i]) {
			f.tb.Errorf("programs of installation %d: %v\n%s", i+1, err, out)
		}
		other := tokens[[]string{"bcorp", "acme"}[i]]
		if a := f.request("GET", fmt.Sprintf(ownName, i+1)+"/v2/token", other, ""); a.status != http.StatusUnauthorized {
			f.tb.Errorf("token of the other installation at installation %d: status %d: %s", i+1, a.status, a.body)
		}
	}
}

// checkHeaders checks which installation gets requests with unusual headers, by its name in
// the response.
func (f *fleet) checkHeaders(two string) {
	f.tb.Helper()
	for _, check := range []struct {
		header []string
		status int
	}{
		{[]string{"Authorization", "bearer   " + two}, http.StatusOK},
		{[]string{"Authorization", "Basic " + two}, http.StatusUnauthorized},
		{[]string{"Authorization", "Bearer svc_3_" + two[6:]}, http.StatusUnauthorized},
		{[]string{"Authorization", "Bearer " + two, "Authorization", "Bearer " + two}, http.StatusUnauthorized},
		{nil, http.StatusUnauthorized},
	} {
		a := f.request("GET", shared+"/v2/token", "", "", append(check.header, "X-Forwarded-For", "203.0.113.9")...)
		if a.status != check.status || a.header.Get("X-Request-Id") == "" {
			f.tb.Errorf("%.24q: status %d: %s, want %d", check.header, a.status, a.body, check.status)
		}
	}
	// The installation rejects plain HTTP, although HAProxy sends everything over HTTPS.
	plain := f.request("POST", strings.Replace(shared, "https:", "http:", 1)+"/v2/events", two, string(harness.AppendEvent(nil, 0)))
	if plain.status != http.StatusForbidden || !strings.Contains(plain.body, "plain HTTP") {
		f.tb.Errorf("plain HTTP: status %d: %s", plain.status, plain.body)
	}
	// A large header passes: HAProxy allows as much as the service.
	a := f.request("GET", shared+"/v2/token", two, "", "X-Filler", strings.Repeat("x", 15<<10))
	if a.status != http.StatusOK {
		f.tb.Errorf("header of 15 KiB: status %d: %.200s", a.status, a.body)
	}
}

// checkNames opens the page that creates the first admin of installation 2. It returns the
// secret in its path.
func (f *fleet) checkNames() string {
	f.tb.Helper()
	out, err := f.two.Command("admin", "setup-link", "--data", f.two.Data)
	if err != nil {
		f.tb.Fatalf("%v: %s", err, out)
	}
	_, path, ok := strings.Cut(strings.TrimSpace(out), "/setup/")
	if !ok {
		f.tb.Fatalf("got link %s", out)
	}
	for i, want := range []string{"", "Create the first admin"} {
		a := f.request("GET", fmt.Sprintf(ownName, i+1)+"/setup/"+path, "", "")
		if got := a.status == http.StatusOK && strings.Contains(a.body, "password"); got != (want != "") {
			f.tb.Errorf("setup page at installation %d: status %d: %.200s", i+1, a.status, a.body)
		}
	}
	return path
}

// checkMetrics checks that HAProxy exports the metrics that docs/scale.md names.
func (f *fleet) checkMetrics() {
	f.tb.Helper()
	exported := f.request("GET", f.metrics, "", "").body
	named := regexp.MustCompile(`haproxy_[a-z_]+`).FindAllString(string(harness.Read(f.tb, harness.Path("docs", "scale.md"))), -1)
	if len(named) < 4 {
		f.tb.Errorf("docs/scale.md names %q", named)
	}
	for _, name := range named {
		if !strings.Contains(exported, "\n"+name+"{") {
			f.tb.Errorf("HAProxy exports no metric %s", name)
		}
	}
}

// checkStandby kills the primary of installation 2 and starts it on its second address. The
// other installation must not notice.
func (f *fleet) checkStandby(one, two string) {
	f.tb.Helper()
	newest := f.published(two)
	f.two.Kill(f.two.Last())
	for range 3 { // while HAProxy still tries, and after it has noticed
		a := f.await(shared+"/v2/token", two, http.StatusServiceUnavailable)
		var e struct {
			Error struct {
				Code   int
				Detail string
			}
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Error.Code != a.status || e.Error.Detail == "" ||
			a.header.Get("Retry-After") != "5" || a.header.Get("Content-Type") != "application/json; charset=utf-8" {
			f.tb.Errorf("without installation 2: %v: %+v", err, a)
		}
		if a := f.request("GET", shared+"/v2/token", one, ""); a.status != http.StatusOK {
			f.tb.Errorf("installation 1 without installation 2: status %d: %s", a.status, a.body)
		}
		f.await(shared+"/v2/token", two, http.StatusServiceUnavailable)
	}
	standby := newInstallation(f.tb, f.two.Binary, f.two.Data, f.standby, "--token-prefix", "svc_2_")
	standby.MustStart()
	f.await(shared+"/v2/events/"+newest, two, http.StatusOK)
	standby.MustStop(standby.Last())
}

// checkAddresses checks that installation 1 logged the address of the client, which neither
// HAProxy's connections nor a forged header have.
func (f *fleet) checkAddresses() {
	f.tb.Helper()
	f.one.MustStop(f.one.Last())
	requests := 0
	for _, line := range harness.ParseLog(f.tb, "json", f.one.Last().Log.Bytes()) {
		if line["msg"] != "request" || !strings.HasPrefix(line["route"], "/v2/") || line["user"] == webhook.Terminal {
			continue // commands do not go through HAProxy
		}
		if requests++; line["remote"] != clientAddress+":0" {
			f.tb.Errorf("got %v, want the address of the client", line)
		}
	}
	if requests < 20 {
		f.tb.Errorf("got %d requests in the log", requests)
	}
}
