package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"service/internal/bench"
	"service/internal/terminal"
)

// hostile are texts that would end a line, begin a field or steer a terminal
// where they were written as they are.
var hostile = []string{
	"x\nlevel=ERROR msg=planted", "x\r\n{\"level\":\"ERROR\",\"msg\":\"planted\"}", `x" level=ERROR msg="planted`, `x","msg":"planted`, `x\" msg=planted`,
	"x msg=planted", "x=planted", "\x1b[2Jplanted", "planted\x00\x7f\b\t\v", "planted\u009b2J\u0085", "planted\u202e\u2066", "planted\u2028\u2029", "planted\xff\xfe", "",
}

// logFields are the fields that a line may have, in either format.
func logFields(t *testing.T, format, line string) map[string]string {
	t.Helper()
	fields := make(map[string]string)
	add := func(name, value string) {
		if _, twice := fields[name]; twice {
			t.Errorf("the field %s is there twice: %s", name, line)
		}
		fields[name] = value
	}
	if format == "json" {
		d := json.NewDecoder(strings.NewReader(line))
		if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
			t.Fatalf("no object: %s", line)
		}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			var value any
			if err := d.Decode(&value); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			add(name.(string), fmt.Sprint(value))
		}
		if _, err := d.Token(); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if _, err := d.Token(); err != io.EOF {
			t.Errorf("there is more than an object: %s", line)
		}
		return fields
	}
	for rest := line; rest != ""; {
		name, value, ok := strings.Cut(rest, "=")
		if !ok || name == "" || strings.ContainsAny(name, " \"") {
			t.Fatalf("no field at %q: %s", rest, line)
		}
		if strings.HasPrefix(value, `"`) {
			quoted, err := strconv.QuotedPrefix(value)
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			text, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			add(name, text)
			rest = strings.TrimPrefix(value[len(quoted):], " ")
			continue
		}
		value, rest, _ = strings.Cut(value, " ")
		add(name, value)
	}
	return fields
}

// checkLines wants whole lines of printable characters, and returns their fields.
func checkLines(t *testing.T, format string, log []byte) (lines []map[string]string) {
	t.Helper()
	if !utf8.Valid(log) || !bytes.HasSuffix(log, []byte("\n")) {
		t.Errorf("the log is no whole lines of UTF-8: %q", log)
	}
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.ContainsFunc(line, func(r rune) bool { return terminal.Unsafe(r) }) {
			t.Errorf("a line has characters that steer: %q", line)
		}
		lines = append(lines, logFields(t, format, line))
	}
	return lines
}

// Whatever a text holds, a record is one line, and has the fields that it was
// given.
func TestLogIsNotForged(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var log bytes.Buffer
		logger := newLogger(&log, format, slog.LevelDebug)
		for _, text := range hostile {
			logger.Error(text, "error", fmt.Errorf("it failed: %s", text), "text", text, slog.Group("of", "it", text))
		}
		lines := checkLines(t, format, log.Bytes())
		if len(lines) != len(hostile) {
			t.Fatalf("%s: %d lines of %d records:\n%s", format, len(lines), len(hostile), &log)
		}
		for i, fields := range lines {
			want := []string{"error", "level", "msg", "text", "time"}
			got := []string{}
			for name := range fields {
				if name != "of" && name != "of.it" {
					got = append(got, name)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) || fields["level"] != "ERROR" {
				t.Errorf("%s: %q has the fields %v", format, hostile[i], fields)
			}
			if utf8.ValidString(hostile[i]) && format == "json" && (fields["text"] != hostile[i] || fields["msg"] != hostile[i]) {
				t.Errorf("%q reads as %q", hostile[i], fields["text"])
			}
		}
	}
}

// testLog drives a service with hostile text wherever text can be given, and
// reads its log: a line for each request and for each attempt, with their fields,
// of which nothing is forged and none is text of a stranger.
func testLog(t *testing.T, binary string) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			url := listenLoopback(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header()["X-Planted"] = []string{"planted level=ERROR"}
				w.WriteHeader(http.StatusServiceUnavailable)
				io.WriteString(w, strings.Join(hostile, "\n"))
			}))
			in := newInstance(t, binary, t.TempDir(), "--log-format", format, "--log-level", "debug", "--retry-schedule", "1h,1h,1h,1h")
			token := in.token("acme")
			r := in.mustStart()
			base, _ := in.await(t.Context())
			id := in.subscribe(token, newSubscription{URL: url + "/planted?a=planted", Events: eventList("content_published")})
			requests := 1
			const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
			for i, text := range hostile {
				if status, err := in.call(t.Context(), token, "PUT", base+"/v2/webhooks/subscriptions/"+id, map[string]string{"description": text}, nil); err != nil {
					t.Fatalf("status %d, %v", status, err)
				}
				requests++
				// As bytes, since a client would not send such a thing.
				conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				conn.SetDeadline(time.Now().Add(10 * time.Second))
				field := strings.NewReplacer("\n", "", "\r", "", "\x00", "").Replace(text)
				path := "/" + []string{"v2/events/", "", "setup/"}[i%3] + strings.NewReplacer(" ", "%20", "\n", "%0a", "\r", "%0d", "\x00", "%00", "\x7f", "%7f").Replace(text)
				fmt.Fprintf(conn, "GET %s?q=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nUser-Agent: %s\r\nX-Request-Id: %[4]s\r\nTraceparent: %[4]s\r\n\r\n", path, "planted", token, field)
				answer, err := io.ReadAll(conn)
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
				if bytes.Contains(answer, []byte("X-Request-Id")) { // else it was no HTTP
					requests++
				}
			}
			req, err := http.NewRequestWithContext(t.Context(), "POST", base+"/v2/events", bytes.NewReader(bench.AppendEvent(nil, bench.EventName, 1)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
			resp, err := in.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			requests++
			waitUntil(t, "the event and the ping are tried", func() bool {
				_, text := in.scrape()
				return bytes.Contains(text, []byte(`service_attempts_total{answer="5xx",result="retryable"} 2`+"\n"))
			})
			if status := in.stop(r); status != 0 {
				t.Errorf("exit status %d", status)
			}
			if bytes.Contains(r.log.Bytes(), []byte("planted")) {
				t.Errorf("text of strangers is in the log:\n%s", &r.log)
			}
			if bytes.Contains(r.log.Bytes(), []byte(token)) {
				t.Error("the token is in the log")
			}
			seen, attempts, traced := 0, 0, 0
			for _, fields := range checkLines(t, format, r.log.Bytes()) {
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
					want = []string{"result", "duration", "response_status", "program", "subscription", "delivery", "number", "events", "ping", "status", "next_attempt_at", "first_byte"}
					if fields["ping"] == "false" {
						want = append(want, "trace") // it had a connection already
						traced++
					} else {
						want = append(want, "connect")
					}
				}
				for _, name := range want {
					if fields[name] == "" {
						t.Errorf("the line lacks %s: %v", name, fields)
					}
				}
			}
			if seen != requests || attempts != 2 || traced != 1 {
				t.Errorf("%d lines of requests, want %d; %d of attempts, %d of an event, want 2 and 1\n%s", seen, requests, attempts, traced, &r.log)
			}
		})
	}
}
