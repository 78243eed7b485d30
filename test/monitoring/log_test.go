package monitoring

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

const logTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

// TestLog sends hostile text to a service wherever it accepts text, and reads the log. The log must
// contain one line per request and per attempt with the right fields, and no text of a client.
func TestLog(t *testing.T) {
	harness.Long(t)
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) { testLog(t, format) })
	}
}

func testLog(t *testing.T, format string) {
	url := harness.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Planted"] = []string{"planted level=ERROR"}
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, strings.Join(harness.HostileTexts, "\n"))
	}))
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--log-format", format, "--log-level", "debug", "--retry-schedule",
		"1h,1h,1h,1h")
	token := in.Token("acme")
	p := in.MustStart()
	id := in.Subscribe(token, harness.Subscription{URL: url + "/planted?a=planted", Events: harness.Events("content_published")})
	requests := 1
	for i, text := range harness.HostileTexts {
		if status, err := in.Call(t.Context(), token, "PUT", in.URL()+"/v2/webhooks/subscriptions/"+id, map[string]string{"description": text},
			nil); err != nil {
			t.Fatalf("status %d, %v", status, err)
		}
		requests++
		if sendHostile(t, in.URL(), token, "/"+[]string{"v2/events/", "", "setup/"}[i%3], text) {
			requests++
		}
	}
	publishTraced(t, in, token)
	requests++
	harness.WaitFor(t, "the attempts of the event and the ping", func() bool {
		_, text := in.Scrape()
		return bytes.Contains(text, []byte(`webhooks_attempts_total{answer="5xx",result="retryable"} 2`+"\n"))
	})
	in.MustStop(p)
	if bytes.Contains(p.Log.Bytes(), []byte("planted")) {
		t.Errorf("the log contains text of a client:\n%s", &p.Log)
	}
	if bytes.Contains(p.Log.Bytes(), []byte(token)) {
		t.Error("the log contains the token")
	}
	checkLog(t, format, p.Log.Bytes(), requests)
}

// sendHostile sends a request whose path and headers contain a text that an HTTP client would
// refuse to send. It reports whether the service understood and therefore logged the request.
func sendHostile(t *testing.T, base, token, path, text string) bool {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(harness.Timeout()))
	field := strings.NewReplacer("\n", "", "\r", "", "\x00", "").Replace(text)
	path += strings.NewReplacer(" ", "%20", "\n", "%0a", "\r", "%0d", "\x00", "%00", "\x7f", "%7f").Replace(text)
	fmt.Fprintf(conn, "GET %s?q=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nUser-Agent: %s\r\nX-Request-Id: "+
		"%[4]s\r\nTraceparent: %[4]s\r\n\r\n", path, "planted", token, field)
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(answer, []byte("X-Request-Id"))
}

// publishTraced publishes an event with a trace ID.
func publishTraced(t *testing.T, in *harness.Instance, token string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", in.URL()+"/v2/events", bytes.NewReader(harness.AppendEvent(nil, 1)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Traceparent", "00-"+logTrace+"-00f067aa0ba902b7-01")
	resp, err := in.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// checkLog checks that each request and each attempt has a line with its fields.
func checkLog(t *testing.T, format string, log []byte, requests int) {
	t.Helper()
	seen, attempts, traced := 0, 0, 0
	for _, fields := range harness.ParseLog(t, format, log) {
		var want []string
		switch {
		case fields["msg"] == "request" && (fields["route"] == "/readyz" || fields["route"] == "/metrics"):
			continue
		case fields["msg"] == "request":
			seen++
			want = []string{"method", "route", "status", "duration", "bytes", "request_id", "remote"}
			if strings.HasPrefix(fields["route"], "/v2/") {
				want = append(want, "program", "user", "token")
			}
		case fields["msg"] == "attempt":
			attempts++
			want = []string{"result", "duration", "response_status", "program", "subscription", "delivery", "number", "events", "ping", "status",
				"next_attempt_at", "first_byte"}
			if fields["ping"] == "false" {
				want = append(want, "trace") // the attempt may reuse the ping's connection
				traced++
			} else {
				want = append(want, "connect")
			}
		}
		for _, name := range want {
			if fields[name] == "" {
				t.Errorf("log line: got no field %s: %v", name, fields)
			}
		}
	}
	if seen != requests || attempts != 2 || traced != 1 {
		t.Errorf("log lines: got %d requests, %d attempts and %d with the trace; want %d, 2 and 1\n%s", seen, attempts, traced, requests, log)
	}
}
