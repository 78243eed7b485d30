package cli

import (
	"bufio"
	"context"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"service/internal/server"
	"service/webhook"
)

// serveSettings parses args as flags of serve.
func serveSettings(t *testing.T, args ...string) *server.Config {
	t.Helper()
	parser, c := testParser(t)
	if _, err := parser.Parse(append([]string{"serve"}, args...)); err != nil {
		t.Fatal(err)
	}
	s, err := c.Serve.settings(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDemo checks that the demo publishes every event type, that each delivery has a valid
// signature, that a rejected delivery is retried, and that the demo leaves no files.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	missing := make(map[string]bool)
	for _, e := range catalog.Types() {
		missing[e.Name] = true
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := demo(ctx, serveSettings(t, "--listen", "127.0.0.1:0", "--grace", "1s"), nil, Streams{nil, w, w}, 10*time.Millisecond)
		ended <- err
		w.CloseWithError(err)
	}()
	line := regexp.MustCompile(`^(steady|flaky) +\S+  delivery \S+  \d+ events?: (.*?)  (attempt \d  )?signature (\S+).*→ (\d+)$`)
	name := regexp.MustCompile(`[a-z_]{4,}`)
	var retried, rejected, explained bool
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		explained = explained || strings.Contains(lines.Text(), "What to try next")
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		if m[4] != "verified" {
			t.Errorf("the signature was not verified: %s", lines.Text())
		}
		if m[1] == "steady" {
			for _, n := range name.FindAllString(m[2], -1) {
				delete(missing, n)
			}
		}
		rejected = rejected || m[1] == "flaky" && m[5] == "503"
		retried = retried || m[1] == "flaky" && m[3] != "" && m[5] == "200"
		if len(missing) == 0 && retried && rejected && explained {
			break
		}
	}
	cancel()
	go io.Copy(io.Discard, r)
	if err := <-ended; err != nil {
		t.Errorf("the demo failed: %v", err)
	}
	if len(missing) > 0 || !retried || !rejected || !explained {
		t.Errorf("got missing %v, retried %t, rejected %t, explained %t; want all types and true", missing, retried, rejected, explained)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("got files %v, %v; want none", left, err)
	}
}

func TestServeDefaults(t *testing.T) {
	got := serveSettings(t)
	if got.Dir != "./data" || got.Listen != "127.0.0.1:8443" || !got.TLS || got.AllowHTTP ||
		got.RetryPolicy != webhook.DefaultRetryPolicy() || got.AttemptTimeout != 10*time.Second ||
		got.MaxInFlight != 8 || got.MaxConnections != 512 || got.BatchSize != 100 || got.BatchWindow != 0 ||
		got.RateLimit != 1000 || got.RequestTimeout != 30*time.Second || got.MaxSubscriptions != 100 || got.Grace != 10*time.Second {
		t.Errorf("the defaults differ from the documentation: %+v", got)
	}
	got = serveSettings(t, "--retry-schedule", "1s, 2m,3h,1d", "--retry-jitter", "0",
		"--allow-destination", "10.0.0.0/8,fd00::/8", "--allow-destination", "192.168.1.1")
	want := webhook.RetryPolicy{Waits: [...]time.Duration{time.Second, 2 * time.Minute, 3 * time.Hour, 24 * time.Hour}}
	destinations, err := webhook.ParseDestinations([]string{"10.0.0.0/8", "fd00::/8", "192.168.1.1"})
	if err != nil || got.RetryPolicy != want || !reflect.DeepEqual(got.Destinations, destinations) {
		t.Errorf("got %+v, %v; want %+v, %v, %v", got.RetryPolicy, got.Destinations, want, destinations, err)
	}
	got = serveSettings(t, "--domain", "Hooks.test,second.test", "--acme-ca", "https://acme.test/directory")
	if want := []string{"hooks.test", "second.test"}; !slices.Equal(got.Domains, want) || got.Listen != ":443" || got.HTTPListen != ":80" {
		t.Errorf("got %q at %s and %s, want %q at :443 and :80", got.Domains, got.Listen, got.HTTPListen, want)
	}
}

func TestAddressDomains(t *testing.T) {
	got := serveSettings(t, "--domain", "hooks.example.com,9.9.9.9,::ffff:9.9.9.9,[2620:00FE:0:0::9],2620:fe::9")
	if want := []string{"hooks.example.com", "9.9.9.9", "2620:fe::9"}; !slices.Equal(got.Domains, want) {
		t.Errorf("got %q, want %q", got.Domains, want)
	}
	got = serveSettings(t, "--domain", "10.1.2.3", "--acme-ca", "https://acme.test/directory")
	if want := []string{"10.1.2.3"}; !slices.Equal(got.Domains, want) {
		t.Errorf("with an ACME server of one's own: got %q, want %q", got.Domains, want)
	}
	for address, want := range map[string]string{
		"10.1.2.3":          "10.1.2.3 is not a public address but a private one, so Let's Encrypt issues no certificate for it",
		"[FD00::1]":         "fd00::1 is not a public address but a private one",
		"203.0.113.7":       "203.0.113.7 is not a public address but one for special use",
		"100.64.0.1":        "100.64.0.1 is not a public address but one for special use",
		"127.0.0.2":         "127.0.0.2 is always available, with a certificate of the local CA",
		"::1":               "::1 is always available",
		"169.254.1.1":       "169.254.1.1 is a link-local address",
		"fe80::1%eth0":      "fe80::1%eth0 is a link-local address",
		"0.0.0.0":           "0.0.0.0 is not the address of one host",
		"ff02::1":           "ff02::1 is not the address of one host",
		"9.9.9":             "must be a name such as hooks.example.com or an IP address",
		"9.9.9.9:443":       "must be a name such as hooks.example.com or an IP address",
		"[2620:fe::9]:443":  "must be a name such as hooks.example.com or an IP address",
		"https://[2620::9]": "must be a name such as hooks.example.com or an IP address",
	} {
		if code, _, stderr := call(t, "config", "validate", "--domain", address); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: got status %d and %q, want %q", address, code, stderr, want)
		}
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{
		"./data": "./data", "/a b": "'/a b'", "it's": `'it'\''s'`, "": "''", "$x": "'$x'", "~": "'~'",
	} {
		if got := shellQuote(in); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", in, got, want)
		}
	}
}
