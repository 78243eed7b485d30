package scale

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// The names in packaging/haproxy.cfg, and the name of all installations, which only DNS knows.
const (
	shared  = "https://hooks.example"
	ownName = "https://hooks-%d.example" // of installation 1 or 2
)

// clientAddress is the address of the clients, which differs from that of HAProxy's connections.
const clientAddress = "127.0.0.5"

// fleet is two installations behind HAProxy.
type fleet struct {
	tb      testing.TB
	one     *harness.Instance
	two     *harness.Instance
	standby string // the address of the second server of installation 2
	client  *http.Client
	metrics string // URL of HAProxy's metrics
	proxy   *exec.Cmd
	log     bytes.Buffer // of HAProxy; read it only after stopProxy
}

// newFleet starts two installations and HAProxy. It substitutes the addresses and files in
// packaging/haproxy.cfg, and settings that need a dedicated host: the log, the users and the
// sockets.
func newFleet(tb testing.TB, flags ...string) *fleet {
	tb.Helper()
	program := harness.Tool(tb, "haproxy", "haproxy")
	binary, dir := harness.Build(tb), tb.TempDir()
	addresses := [3]string{freeAddress(tb, "127.0.0.11"), freeAddress(tb, "127.0.0.12"), freeAddress(tb, "127.0.0.22")}
	f := &fleet{tb: tb, standby: addresses[2]}
	f.one = newInstallation(tb, binary, tb.TempDir(), addresses[0], flags...)
	f.two = newInstallation(tb, binary, tb.TempDir(), addresses[1], append(flags, "--token-prefix", "svc_2_")...)
	f.one.MustStart()
	f.two.MustStart()

	roots := certificate(tb, filepath.Join(dir, "hooks.pem"))
	listeners, files := make([]net.Listener, 3), make([]*os.File, 3)
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		if files[i], err = l.(*net.TCPListener).File(); err != nil {
			tb.Fatal(err)
		}
		listeners[i] = l
		defer l.Close()
		defer files[i].Close()
	}
	config := string(harness.Read(tb, harness.Path("packaging", "haproxy.cfg")))
	for _, s := range [][2]string{
		{"    log /dev/log local0\n", "    log stdout format raw local0\n"},
		{"    user haproxy\n", ""}, {"    group haproxy\n", ""}, {"    chroot /var/lib/haproxy\n", ""},
		{"    stats socket /run/haproxy/admin.sock mode 660 level admin\n", ""},
		{"bind :80\n", "bind fd@3\n"}, {"bind :443 ", "bind fd@4 "}, {"bind 127.0.0.1:8405\n", "bind fd@5\n"},
		{"/etc/haproxy/certs/", filepath.Join(dir, "hooks.pem")},
		{"/etc/haproxy/installation-1.pem", filepath.Join(f.one.Data, "ca.pem")},
		{"/etc/haproxy/installation-2.pem", filepath.Join(f.two.Data, "ca.pem")},
		{"10.0.0.11:8443", addresses[0]}, {"10.0.0.12:8443", addresses[1]}, {"10.0.0.22:8443", addresses[2]},
	} {
		if !strings.Contains(config, s[0]) {
			tb.Fatalf("haproxy.cfg has no %q", s[0])
		}
		config = strings.ReplaceAll(config, s[0], s[1])
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	f.proxy = exec.Command(program, "-db", "-f", file)
	f.proxy.Stdout, f.proxy.Stderr, f.proxy.ExtraFiles = &f.log, &f.log, files
	if err := f.proxy.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(f.stopProxy)
	f.metrics = "http://" + listeners[2].Addr().String() + "/metrics"
	f.client = newClient(roots, map[string]string{"80": listeners[0].Addr().String(), "443": listeners[1].Addr().String()})
	tb.Cleanup(f.client.CloseIdleConnections)
	for i := range 2 {
		f.await(fmt.Sprintf(ownName, i+1)+"/readyz", "", http.StatusOK)
	}
	f.await(shared+"/readyz", "", http.StatusOK)
	return f
}

// newInstallation returns an installation behind HAProxy, not started.
func newInstallation(tb testing.TB, binary, data, address string, flags ...string) *harness.Instance {
	tb.Helper()
	in := harness.NewInstance(tb, binary, data, append([]string{"--tls", "auto", "--listen", address, "--trusted-proxy", "127.0.0.1",
		"--log-format", "json"}, flags...)...)
	in.Client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} // the installation's CA does not exist yet
	return in
}

// freeAddress returns an address with a free port. No other test listens on that IP address, so
// the port stays free while no process of the service uses it.
func freeAddress(tb testing.TB, ip string) string {
	tb.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		harness.Unavailable(tb, "haproxy", err) // on systems with only 127.0.0.1
	}
	defer l.Close()
	return l.Addr().String()
}

// certificate writes the certificate and key that HAProxy serves, and returns a pool that verifies
// them.
func certificate(tb testing.TB, file string) *x509.CertPool {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hooks.example"},
		DNSNames:  []string{"hooks.example", "hooks-1.example", "hooks-2.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), public...)
	if err := os.WriteFile(file, both, 0o600); err != nil {
		tb.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(public)
	return roots
}

// newClient returns a client that reaches HAProxy under every name, by the port of the URL.
func newClient(roots *x509.CertPool, byPort map[string]string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientAddress)}}
	return &http.Client{Timeout: harness.Timeout(), Transport: &http.Transport{
		MaxIdleConnsPerHost: 512,
		TLSClientConfig:     &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if to, ok := byPort[port]; ok {
				address = to
			}
			return dialer.DialContext(ctx, network, address)
		},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// stopProxy stops HAProxy, if it runs.
func (f *fleet) stopProxy() {
	f.tb.Helper()
	if f.proxy.ProcessState != nil {
		return
	}
	f.client.CloseIdleConnections()
	f.proxy.Process.Signal(syscall.SIGTERM)
	f.proxy.Wait()
	if f.tb.Failed() {
		f.tb.Logf("the log of HAProxy:\n%s", &f.log)
	}
}

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   string
}

// request sends a request with a token, "" for none.
func (f *fleet) request(method, url, token, body string, header ...string) answer {
	f.tb.Helper()
	a, err := f.try(method, url, token, body, header...)
	if err != nil {
		f.tb.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

func (f *fleet) try(method, url, token, body string, header ...string) (answer, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// await repeats a GET until it has a status.
func (f *fleet) await(url, token string, status int) answer {
	f.tb.Helper()
	var last answer
	harness.WaitFor(f.tb, fmt.Sprintf("status %d of %s", status, url), func() bool {
		last = f.request("GET", url, token, "")
		return last.status == status
	})
	return last
}

// program creates a program over the API with its installation's platform token, and returns a
// token of the program.
func (f *fleet) program(in *harness.Instance, id, prefix string) string {
	f.tb.Helper()
	out, err := in.Command("token", "create", "--data", in.Data, "--scope", "platform", "--user", "ops")
	platform := strings.TrimSpace(out)
	if err != nil || !strings.HasPrefix(platform, prefix) {
		f.tb.Fatalf("got a platform token with %.7s, %v; want %s", platform, err, prefix)
	}
	if a := f.request("PUT", shared+"/v2/programs/"+id, platform, "{}"); a.status != http.StatusCreated {
		f.tb.Fatalf("create %s: status %d: %s", id, a.status, a.body)
	}
	a := f.request("POST", shared+"/v2/programs/"+id+"/tokens", platform,
		`{"user_id": "u", "scopes": ["webhooks.read", "webhooks.write", "events.read", "events.write"]}`)
	_, secret, _ := strings.Cut(a.body, `"secret":"`)
	secret, _, ok := strings.Cut(secret, `"`)
	if a.status != http.StatusCreated || !ok || !strings.HasPrefix(secret, prefix) {
		f.tb.Fatalf("token of %s: status %d, secret with %.7s, want %s", id, a.status, secret, prefix)
	}
	return secret
}
