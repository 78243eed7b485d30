package packaging

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"service/test/harness"
)

// The name in packaging/nginx.conf, and the address of the test's client.
const (
	nginxName     = "https://hooks.example"
	clientAddress = "127.0.0.5"
)

// TestNginx runs packaging/nginx.conf in front of the service: live pages and event streams pass at
// once, errors come from the service, and the service sees the client's address.
func TestNginx(t *testing.T) {
	harness.Long(t)
	nginx := harness.Tool(t, "nginx", "nginx")
	in := harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "data"),
		"--trusted-proxy", "127.0.0.1/32", "--log-format", "json")
	server := in.MustStart()
	token := in.Token("acme")
	client, log := startNginx(t, nginx, strings.TrimPrefix(in.URL(), "http://"))

	send := func(method, path string, body io.Reader, header ...string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, nginxName+path, body)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		return resp, string(b)
	}
	bearer := []string{"Authorization", "Bearer " + token, "Content-Type", "application/json"}
	if resp, body := send("POST", "/v2/events", strings.NewReader(strings.Repeat(" ", 6<<20)), bearer...); resp.StatusCode !=
		http.StatusRequestEntityTooLarge || !strings.Contains(body, `"detail":"The body is larger than`) {
		t.Errorf("a body of 6 MB: %s, %.200s; want the error of the service", resp.Status, body)
	}
	if resp, body := send("POST", "//v2/events", strings.NewReader("{}"), bearer...); resp.StatusCode != http.StatusNotFound ||
		!strings.Contains(body, "two slashes") {
		t.Errorf("//v2/events: %s, %.200s; want the error of the service", resp.Status, body)
	}

	// A line of a stream is stored before the next one is sent.
	lines, write := io.Pipe()
	go func() {
		for n := range 3 {
			if _, err := write.Write(append(harness.AppendEvent(nil, n), '\n')); err != nil {
				t.Error(err)
			}
			harness.WaitFor(t, "a line to be stored", func() bool {
				events, _, err := harness.Get[[]struct{}](in, token, "/v2/events")
				return err == nil && len(events) > n
			})
		}
		write.Close()
	}()
	if resp, body := send("POST", "/v2/events", lines, append(bearer[:2:2], "Content-Type", "application/x-ndjson")...); resp.StatusCode !=
		http.StatusCreated {
		t.Errorf("a stream: %s, %s", resp.Status, body)
	}

	link := portalLink(t, in)
	if resp, body := send("POST", link, nil, "Origin", nginxName, "Sec-Fetch-Site", "same-origin"); resp.StatusCode != http.StatusOK {
		t.Fatalf("portal: %s, %.300s", resp.Status, body)
	}
	checkLivePage(t, in, client, token)

	in.MustStop(server)
	if resp, body := send("GET", "/v2/events", nil, bearer...); resp.StatusCode != http.StatusBadGateway ||
		!strings.HasPrefix(body, `{"error":{"code":502`) {
		t.Errorf("without a service: %s, %s; want an error in the format of the API", resp.Status, body)
	}
	checkLogs(t, server, log, link)
}

// checkLogs checks that the service's log contains the client's address, and nginx's log no link.
func checkLogs(t *testing.T, server *harness.Process, log, link string) {
	t.Helper()
	requests := 0
	for _, line := range harness.ParseLog(t, "json", server.Log.Bytes()) {
		if line["msg"] == "request" && line["route"] == "/v2/events" && line["remote"] == clientAddress+":0" {
			requests++
		}
	}
	if requests == 0 {
		t.Error("the service's log lacks the address of the client")
	}
	logged, err := os.ReadFile(log)
	if err != nil || strings.Contains(string(logged), link) || !strings.Contains(string(logged), "POST /v2/events 201") {
		t.Errorf("the log of nginx contains a link, or lacks a path of the API: %v\n%s", err, logged)
	}
}

// startNginx starts nginx with packaging/nginx.conf in front of a service. It returns a client
// for it, which follows redirects and keeps cookies, and the file of its log.
func startNginx(t *testing.T, nginx, service string) (*http.Client, string) {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if out, err := exec.Command(harness.Tool(t, "openssl", "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
		"-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example",
	).CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v\n%s", err, out)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(harness.Read(t, cert))
	address := freeAddress(t)
	config := string(harness.Read(t, harness.Path("packaging", "nginx.conf")))
	for _, s := range [][2]string{
		{"    listen 80;\n", ""}, {"    listen [::]:80;\n", ""}, {"    listen [::]:443 ssl http2;\n", ""},
		{"listen 443 ssl", "listen " + address + " ssl"}, {"127.0.0.1:8443;", service + ";"},
		{"/etc/nginx/hooks.example.pem", cert}, {"/etc/nginx/hooks.example.key", key}, {"/var/log/nginx", dir},
	} {
		if !strings.Contains(config, s[0]) {
			t.Fatalf("nginx.conf has no %q", s[0])
		}
		config = strings.Replace(config, s[0], s[1], 1)
	}
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config = fmt.Sprintf("%s_temp_path %s;\n", name, filepath.Join(dir, name)) + config
	}
	main := fmt.Sprintf("daemon off; master_process off; pid %[1]s/pid; events {}\nhttp {\n%[2]s}\n", dir, config)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(main), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nginx, "-c", path, "-p", dir, "-e", filepath.Join(dir, "error.log"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text, _ := os.ReadFile(filepath.Join(dir, "error.log")); t.Failed() {
			t.Logf("the errors of nginx:\n%s", text)
		}
	})
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientAddress)}}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}
	harness.WaitFor(t, "nginx to listen", func() bool {
		c, err := dial(t.Context(), "tcp", "")
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: dial, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Jar: jar, Timeout: harness.Timeout()}, filepath.Join(dir, "webhooks.log")
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// portalLink returns the path of a new portal link.
func portalLink(t *testing.T, in *harness.Instance) string {
	t.Helper()
	out, err := in.Command("portal-link", "--data", in.Data, "--program", "acme", "--role", "write")
	u, parseErr := url.Parse(regexp.MustCompile(`https?://\S+`).FindString(out))
	if err != nil || parseErr != nil || u.Path == "" {
		t.Fatalf("portal-link: %v, %v\n%s", err, parseErr, out)
	}
	return u.Path
}

// checkLivePage opens the stream of a delivery whose receiver has not responded yet.
func checkLivePage(t *testing.T, in *harness.Instance, client *http.Client, token string) {
	t.Helper()
	release := make(chan struct{})
	var ended atomic.Bool // the first attempt
	receiver := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := harness.ReadBody(r)
		if err == nil && !harness.IsPing(body) {
			select {
			case <-release:
			case <-r.Context().Done():
				ended.Store(true)
			}
		}
	}))
	defer close(release)
	id := in.Subscribe(token, harness.Subscription{URL: receiver, Events: harness.Events(harness.NumberedEvent)})
	in.Publish(token, json.RawMessage(harness.AppendEvent(nil, 10)))
	var delivery string
	harness.WaitFor(t, "a delivery", func() bool {
		all, _, err := harness.Get[[]harness.Delivery](in, token, "/v2/webhooks/subscriptions/"+id+"/deliveries")
		for _, d := range all {
			if d.Events[0].Name == harness.NumberedEvent {
				delivery = d.ID
			}
		}
		return err == nil && delivery != ""
	})
	req, err := http.NewRequestWithContext(t.Context(), "GET", nginxName+"/portal/deliveries/"+delivery+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || resp.StatusCode != http.StatusOK || ended.Load() {
		t.Errorf("live page: %s, %q, %v, after the attempt: %t", resp.Status, line, err, ended.Load())
	}
}
