package client

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"service/webhook"
)

var evilAll = flag.Bool("evil.all", false, "TestEvilService plays all receivers that hang, and not a few of each sort")

const (
	evilAtOnce  = 200
	evilTimeout = 2 * time.Second
	// evilSlack is for a machine that has other things to do, and for what
	// comes before and after an attempt: it is counted and recorded.
	evilSlack = 3 * time.Second
	// evilGrowth is by how much the memory of the service may grow.
	evilGrowth = 20 << 20
)

// TestEvilService plays the evil receivers on real sockets to the built
// binary, 200 deliveries of each kind at once: every attempt ends within its
// timeout, and the memory of the process, as the operating system sees it,
// stays within 20 MB of what it takes to send to as many good ones.
func TestEvilService(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of deliveries that each wait for a timeout; run without -short")
	}
	if runtime.GOOS != "linux" {
		t.Skip("NOT TESTED: what the operating system knows of the memory of a process is read as Linux tells it")
	}
	ca := newAuthority(t)
	s := startEvilService(t, ca)
	start := s.resident()

	// The log's tail, the caches of the database and of the allocator fill up
	// with whatever is sent; that is not the receivers' doing.
	full := plain(answerAndClose("HTTP/1.1 200 OK\r\nContent-Length: 16384\r\n\r\n" + kept))
	good := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", nil)}}
	base := 0
	for range 8 {
		_, peak := s.play(&evilKind{"good", "http", full, webhook.ResultSuccess, false})
		_, secure := s.play(&evilKind{"good, with TLS", "https", func(c net.Conn) { full(tls.Server(c, good)) }, webhook.ResultSuccess, false})
		base = max(base, peak, secure)
	}
	t.Logf("%5.1f MB at the start, %.1f MB at most with good receivers", mega(start), mega(base))

	kinds, highest := 0, 0
	for _, kind := range evilKinds(t, ca) {
		few := []string{"never reads", "silent within the body", "a header that trickles", "a body that trickles",
			"many header lines, and silence", "a long header, and silence"}
		if kind.slow && kind.scheme == "http" && !*evilAll && !slices.Contains(few, kind.name) {
			continue
		}
		kinds++
		took, peak := s.play(&kind)
		highest = max(highest, peak)
		t.Logf("%+6.1f MB at most, %5d ms: %s", mega(peak-base), took.Milliseconds(), kind.name)
		if took > evilTimeout+evilSlack {
			t.Errorf("%s: %d attempts ended after %v, want at most %v for each", kind.name, evilAtOnce, took, evilTimeout)
		}
	}
	if grown := highest - base; grown > evilGrowth {
		t.Errorf("resident memory grew by %.1f MB, from %.1f MB; want less than %.1f", mega(grown), mega(base), mega(evilGrowth))
	}
	t.Logf("%d kinds of evil receiver, %d deliveries at once: memory %+.1f MB at most", kinds, evilAtOnce, mega(highest-base))
}

func mega(bytes int) float64 { return float64(bytes) / (1 << 20) }

// evilService is the built binary, with one subscription at a time.
type evilService struct {
	t      *testing.T
	pid    int
	base   string
	token  string
	client http.Client
}

// startEvilService builds and starts the service, which trusts the authority
// and ends with the test.
func startEvilService(t *testing.T, ca *authority) *evilService {
	dir := t.TempDir()
	binary, data, roots := filepath.Join(dir, "service"), filepath.Join(dir, "data"), filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", binary, "service").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var log bytes.Buffer
	cmd := exec.Command(binary, "serve", "--data", data, "--listen", "127.0.0.1:0", "--tls", "off", "--allow-http", "--allow-destination", "127.0.0.0/8",
		"--attempt-timeout", evilTimeout.String(), "--retry-schedule", "1h,1h,1h,1h", "--failing-after", "0", "--batch-size", "1", "--rate-limit", "0", "--log-level", "error")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+roots)
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &evilService{t: t, pid: cmd.Process.Pid}
	lines := bufio.NewScanner(stdout)
	t.Cleanup(func() {
		cmd.Process.Kill()
		for lines.Scan() {
		}
		cmd.Wait()
		if t.Failed() {
			t.Logf("the service said:\n%s", &log)
		}
	})
	for s.base == "" && lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) == 2 && f[0] == "API" {
			s.base = f[1]
		}
	}
	out, err := exec.Command(binary, "token", "create", "--data", data, "--program", "p", "--user", "u",
		"--scope", "webhooks.read,webhooks.write,events.read,events.write").Output()
	if err != nil {
		t.Fatalf("token create: %v", err)
	}
	s.token = strings.TrimSpace(string(out))
	return s
}

// call makes a request of the API, which must succeed; into receives the answer.
func (s *evilService) call(method, path string, body, into any) {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequest(method, s.base+path, bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode > 299 {
		s.t.Fatalf("%s %s: status %d, %v\n%s", method, path, resp.StatusCode, err, b)
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			s.t.Fatal(err)
		}
	}
}

// play subscribes a receiver, publishes an event for each of so many
// deliveries, and waits until each has had its one attempt. It returns how long
// that took, and the most memory that the service had meanwhile.
func (s *evilService) play(kind *evilKind) (took time.Duration, peak int) {
	url, stop := kind.listen(s.t)
	defer stop()
	measured, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(measured)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			peak = max(peak, s.resident())
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	}()
	defer func() { close(ended); <-measured }()

	var made struct{ Data struct{ ID string } }
	s.call("POST", "/v2/webhooks/subscriptions", map[string]any{
		"url": url, "max_in_flight": evilAtOnce, "events": []map[string]string{{"name": "channel_updated"}},
	}, &made)
	subscription := "/v2/webhooks/subscriptions/" + made.Data.ID
	events := slices.Repeat([]map[string]any{{"name": "channel_updated", "version": "1", "channel_id": 7}}, evilAtOnce)
	started := time.Now()
	s.call("POST", "/v2/events", map[string]any{"events": events}, nil)

	// The ping that each subscription begins with is one more.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var results map[webhook.Result]int
	for ; results[webhook.ResultSuccess]+results[webhook.ResultFailed]+results[webhook.ResultRetryable] <= evilAtOnce; <-tick.C {
		results = make(map[webhook.Result]int)
		for path := subscription + "/deliveries?page[size]=100"; path != ""; {
			var page struct {
				Data []struct{ Status webhook.Result }
				Meta struct{ Pagination struct{ Next string } }
			}
			s.call("GET", path, nil, &page)
			for _, d := range page.Data {
				results[d.Status]++
			}
			if path = page.Meta.Pagination.Next; path != "" {
				path = subscription + "/deliveries?page[size]=100&page[cursor]=" + path
			}
		}
		if time.Since(started) > time.Minute {
			s.t.Fatalf("%s: after a minute the attempts have come to %v, want %d in all", kind.name, results, evilAtOnce+1)
		}
	}
	took = time.Since(started)
	// What each comes to exactly, TestEvilReceivers knows. Here the machine can
	// be too busy for an answer in time, and a connection that is used again
	// can end as it is taken.
	expected := results[kind.result]
	if kind.result != webhook.ResultRetryable && expected > 0 {
		expected += results[webhook.ResultRetryable]
	}
	if expected < evilAtOnce {
		s.t.Errorf("%s: the attempts came to %v, want %s", kind.name, results, kind.result)
	}
	s.call("DELETE", subscription, nil, nil)
	return took, peak
}

// resident is how much memory the process has in use, in bytes.
func (s *evilService) resident() int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/statm")
	if err != nil {
		s.t.Error(err)
		return 0
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		s.t.Error(err)
	}
	return pages * os.Getpagesize()
}

// evilKind is a receiver on a real socket.
type evilKind struct {
	name, scheme string
	serve        func(net.Conn)
	result       webhook.Result // of every attempt
	slow         bool           // an attempt takes all the time it has
}

// listen serves the receiver until stop is called, and returns its URL.
func (k *evilKind) listen(t *testing.T) (url string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	conns := make(map[net.Conn]struct{})
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = struct{}{}
			mu.Unlock()
			serving.Go(func() {
				defer c.Close()
				k.serve(c)
			})
		}
	})
	stop = func() {
		l.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		serving.Wait()
	}
	return k.scheme + "://" + l.Addr().String() + "/", stop
}

// evilList collects receivers of one scheme. Its methods add one by what becomes of
// an attempt.
type evilList struct {
	scheme string
	kinds  []evilKind
}

// ends adds a receiver with which an attempt fails at once.
func (l *evilList) ends(name string, serve func(net.Conn)) {
	l.kinds = append(l.kinds, evilKind{name, l.scheme, serve, webhook.ResultRetryable, false})
}

// hangs adds a receiver with which an attempt takes all its time, and fails.
func (l *evilList) hangs(name string, serve func(net.Conn)) {
	l.kinds = append(l.kinds, evilKind{name, l.scheme, serve, webhook.ResultRetryable, true})
}

// succeeds adds a receiver with which an attempt succeeds.
func (l *evilList) succeeds(name string, serve func(net.Conn)) {
	l.kinds = append(l.kinds, evilKind{name, l.scheme, serve, webhook.ResultSuccess, false})
}

// evilKinds are the receivers of the table evil, over HTTP, and those that only
// sockets and TLS can be.
func evilKinds(t *testing.T, ca *authority) []evilKind {
	var kinds []evilKind
	for _, tt := range evil {
		kinds = append(kinds, evilKind{tt.name, "http", plain(tt.serve), webhook.Classify(tt.status, tt.code), tt.takes == attemptTime})
	}
	return slices.Concat(kinds, evilCertificates(t, ca), evilHandshakes(), evilTLS(t, ca), evilSockets())
}

// secured serves a connection by TLS. A client that does not trust it is sent
// nothing.
func secured(config *tls.Config, then func(*peer)) func(net.Conn) {
	return func(c net.Conn) {
		secure := tls.Server(c, config)
		if secure.Handshake() == nil {
			plain(then)(secure)
		}
	}
}

// certificate returns the configuration of a server with a certificate of ca.
func certificate(t *testing.T, ca *authority, name string, change func(*x509.Certificate)) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{ca.issue(t, name, change)}}
}

// evilCertificates are servers that a client must not trust.
func evilCertificates(t *testing.T, ca *authority) []evilKind {
	kinds := evilList{scheme: "https"}
	good := certificate(t, ca, "127.0.0.1", nil)
	old, wants, bloated := good.Clone(), good.Clone(), certificate(t, ca, "127.0.0.1", nil)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	wants.ClientAuth = tls.RequireAnyClientCert
	for range 200 {
		bloated.Certificates[0].Certificate = append(bloated.Certificates[0].Certificate, good.Certificates[0].Certificate[0])
	}
	ok := answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	kinds.ends("TLS: expired", secured(certificate(t, ca, "127.0.0.1", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }), ok))
	kinds.ends("TLS: not yet valid", secured(certificate(t, ca, "127.0.0.1", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), ok))
	kinds.ends("TLS: for another host", secured(certificate(t, ca, "127.0.0.2", nil), ok))
	kinds.ends("TLS: signed by itself", secured(certificate(t, new(authority), "127.0.0.1", nil), ok))
	kinds.ends("TLS: signed by a stranger", secured(certificate(t, newAuthority(t), "127.0.0.1", nil), ok))
	kinds.ends("TLS: version 1.1", secured(old, ok))
	kinds.ends("TLS: wants a certificate", secured(wants, ok))
	kinds.ends("TLS: a chain of 200 certificates", secured(bloated, ok))
	return kinds.kinds
}

// evilHandshakes are servers that do not complete the handshake of TLS.
func evilHandshakes() []evilKind {
	kinds := evilList{scheme: "https"}
	kinds.hangs("TLS: silence", plain((*peer).hang))
	kinds.hangs("TLS: reads, and silence", func(c net.Conn) { io.Copy(io.Discard, c) })
	kinds.ends("TLS: the end", func(net.Conn) {})
	kinds.ends("TLS: the end after the hello", plain(func(r *peer) { r.in.ReadByte() }))
	kinds.ends("TLS: HTTP instead", plain(func(r *peer) { r.in.ReadByte(); r.write("HTTP/1.1 400 Bad Request\r\n\r\n"); r.hang() }))
	kinds.ends("TLS: an alert", plain(func(r *peer) { r.in.ReadByte(); r.write("\x15\x03\x03\x00\x02\x02\x28"); r.hang() }))
	kinds.ends("TLS: endless warnings", plain(endlessRecords("\x15\x03\x03\x00\x02\x01\x5a")))
	kinds.ends("TLS: an endless handshake", plain(endlessRecords("\x16\x03\x03\x00\x04\x02\x00\xff\xff")))
	kinds.hangs("TLS: a large handshake, and silence", plain(func(r *peer) {
		r.in.ReadByte()
		r.write("\x16\x03\x03\x3c\x00\x02\x00\xff\xff" + strings.Repeat("x", 0x3c00-4))
		r.write("\x16\x03\x03\x3c\x00" + strings.Repeat("x", 0x3c00))
		r.hang()
	}))
	kinds.ends("TLS: noise", plain(endlessRecords("\x00\xff\x55\xaa")))
	return kinds.kinds
}

// evilTLS are servers with a good certificate that do not answer as they should.
func evilTLS(t *testing.T, ca *authority) []evilKind {
	kinds := evilList{scheme: "https"}
	good := certificate(t, ca, "127.0.0.1", nil)
	kinds.hangs("TLS, and silence", secured(good, answer("")))
	kinds.succeeds("TLS, and an endless body", secured(good, endless("HTTP/1.1 200 OK\r\n\r\n", "x")))
	kinds.ends("TLS, and the end", secured(good, answerAndClose("")))
	kinds.ends("TLS, and the end without a word", func(c net.Conn) {
		secure := tls.Server(c, good)
		if secure.Handshake() == nil {
			(&peer{secure, bufio.NewReader(secure)}).read()
		}
		c.Close()
	})
	kinds.ends("TLS, and noise", func(c net.Conn) {
		secure := tls.Server(c, good)
		if secure.Handshake() == nil && (&peer{secure, bufio.NewReader(secure)}).read() {
			io.WriteString(c, strings.Repeat("\x17\x03\x03\x00\x20", 20))
		}
	})
	return kinds.kinds
}

// evilSockets are servers that do what only a socket can.
func evilSockets() []evilKind {
	kinds := evilList{scheme: "http"}
	reset := func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }
	kinds.ends("a reset at once", reset)
	kinds.ends("a reset after the request", func(c net.Conn) { plain(answerAndClose(""))(c); reset(c) })
	kinds.succeeds("a reset after 200", func(c net.Conn) {
		plain(answerAndClose("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"))(c)
		// Not before it was read: a reset takes back what is on its way.
		time.Sleep(100 * time.Millisecond)
		reset(c)
	})
	kinds.hangs("half a connection", func(c net.Conn) {
		c.(*net.TCPConn).CloseRead()
		plain((*peer).hang)(c)
	})
	kinds.ends("the other half", func(c net.Conn) {
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
	return kinds.kinds
}

func plain(serve func(*peer)) func(net.Conn) {
	return func(c net.Conn) { serve(&peer{c, bufio.NewReader(c)}) }
}

// endlessRecords repeats bytes as soon as the other side has spoken.
func endlessRecords(record string) func(*peer) {
	return func(r *peer) {
		r.in.ReadByte()
		block := strings.Repeat(record, 1000)
		for r.write(block) {
		}
	}
}
