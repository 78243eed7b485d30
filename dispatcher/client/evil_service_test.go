package client

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"service/test/harness"
	"service/webhook"
)

var evilAll = flag.Bool("evil.all", false, "TestEvilService runs all receivers that hang, not only a few of each kind")

const (
	evilDeliveries = 200
	evilTimeout    = 2 * time.Second
	// evilSlack allows for a busy machine and for the work before and after an
	// attempt: it is counted and recorded.
	evilSlack = 3 * time.Second
	// evilGrowth is how much the memory of the service may grow.
	evilGrowth = 20 << 20
)

// TestEvilService runs the evil receivers on real sockets against the built binary, with 200
// concurrent deliveries each. Every attempt ends within its timeout, and the resident memory
// of the process grows by at most 20 MB more than with as many good receivers.
func TestEvilService(t *testing.T) {
	harness.Long(t)
	if runtime.GOOS != "linux" {
		t.Skip("NOT TESTED: reads the memory of a process from Linux's /proc")
	}
	ca := newAuthority(t)
	s := startEvilService(t, ca)
	start := s.resident()

	// The log's tail and the caches of the database and the allocator grow with any
	// traffic, not because of the receivers.
	full := plain(respondAndClose("HTTP/1.1 200 OK\r\nContent-Length: 16384\r\n\r\n" + longestBody))
	good := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", nil)}}
	base := int64(0)
	for range 8 {
		_, peak := s.play(&evilKind{"good", "http", full, webhook.ResultSuccess, false})
		_, secure := s.play(&evilKind{"good, with TLS", "https", func(c net.Conn) { full(tls.Server(c, good)) }, webhook.ResultSuccess, false})
		base = max(base, peak, secure)
	}
	t.Logf("%5.1f MB at start, at most %.1f MB with good receivers", harness.Megabytes(start), harness.Megabytes(base))

	kinds, highest := 0, int64(0)
	for _, kind := range evilKinds(t, ca) {
		few := []string{"never reads", "silent within the body", "trickling headers", "trickling body",
			"many header lines, then silent", "long header, then silent", "too long header, then silent"}
		if kind.hangs && kind.scheme == "http" && !*evilAll && !slices.Contains(few, kind.name) {
			continue
		}
		kinds++
		took, peak := s.play(&kind)
		highest = max(highest, peak)
		t.Logf("at most %+6.1f MB, %5d ms: %s", harness.Megabytes(peak-base), took.Milliseconds(), kind.name)
		if took > evilTimeout+evilSlack {
			t.Errorf("%s: %d attempts took %v, want each to end within %v", kind.name, evilDeliveries, took, evilTimeout)
		}
	}
	if grown := highest - base; grown > evilGrowth {
		t.Errorf("resident memory grew by %.1f MB, from %.1f MB; want less than %.1f", harness.Megabytes(grown), harness.Megabytes(base),
			harness.Megabytes(evilGrowth))
	}
	t.Logf("%d kinds of evil receivers, %d concurrent deliveries: memory at most %+.1f MB", kinds, evilDeliveries,
		harness.Megabytes(highest-base))
}

// evilService is the built binary, with one subscription at a time.
type evilService struct {
	*harness.Instance
	t     *testing.T
	pid   int
	token string
}

// startEvilService builds and starts the service, which trusts the authority.
func startEvilService(t *testing.T, ca *authority) *evilService {
	binary := harness.Build(t) // first, since go build may download modules
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", roots)
	in := harness.NewInstance(t, binary, filepath.Join(t.TempDir(), "data"), "--attempt-timeout", evilTimeout.String(),
		"--retry-schedule", "1h,1h,1h,1h", "--failing-after", "0", "--batch-size", "1", "--log-level", "error")
	token := in.Token("p")
	return &evilService{Instance: in, t: t, pid: in.MustStart().PID(), token: token}
}

// play creates a subscription to the receiver, publishes evilDeliveries events, and
// waits until each has had its one attempt. It returns how long that took and the
// peak memory of the service.
func (s *evilService) play(kind *evilKind) (took time.Duration, peak int64) {
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

	id := s.Subscribe(s.token, harness.Subscription{URL: url, MaxInFlight: evilDeliveries, Events: harness.Events("channel_updated")})
	subscription := "/v2/webhooks/subscriptions/" + id
	events := slices.Repeat([]map[string]any{{"name": "channel_updated", "version": "1", "channel_id": 7}}, evilDeliveries)
	started := time.Now()
	s.Publish(s.token, map[string]any{"events": events})

	// The ping after the creation of the subscription is one more.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var results map[webhook.Status]int
	for ; results[webhook.StatusSuccess]+results[webhook.StatusFailed]+results[webhook.StatusRetryable] <= evilDeliveries; <-tick.C {
		results = make(map[webhook.Status]int)
		all, err := harness.Feed[harness.Delivery](s.Instance, s.token, subscription+"/deliveries")
		if err != nil {
			s.t.Fatal(err)
		}
		for _, d := range all {
			results[d.Status]++
		}
		if time.Since(started) > time.Minute {
			s.t.Fatalf("%s: got results %v after a minute, want %d in total", kind.name, results, evilDeliveries+1)
		}
	}
	took = time.Since(started)
	// TestEvilReceivers checks exact results. Here the machine can be too busy to
	// respond in time, and a reused connection can close as it is taken.
	expected := results[webhook.Status(kind.result)]
	if kind.result != webhook.ResultRetryable && expected > 0 {
		expected += results[webhook.StatusRetryable]
	}
	if expected < evilDeliveries {
		s.t.Errorf("%s: got results %v, want %s", kind.name, results, kind.result)
	}
	if status, err := s.Call(s.t.Context(), s.token, "DELETE", s.URL()+subscription, nil, nil); err != nil || status > 299 {
		s.t.Fatalf("delete the subscription: status %d, %v", status, err)
	}
	return took, peak
}

func (s *evilService) resident() int64 { return harness.ResidentMemory(s.t, s.pid) }

// evilKind is an evil receiver on a real socket.
type evilKind struct {
	name, scheme string
	serve        func(net.Conn)
	result       webhook.Result // of every attempt
	hangs        bool           // each attempt takes its whole timeout
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

// evilList collects receivers of one scheme. Its methods add a receiver with the
// given result of an attempt.
type evilList struct {
	scheme string
	kinds  []evilKind
}

// ends adds a receiver for which an attempt fails immediately.
func (l *evilList) ends(name string, serve func(net.Conn)) {
	l.kinds = append(l.kinds, evilKind{name, l.scheme, serve, webhook.ResultRetryable, false})
}

// hangs adds a receiver for which an attempt times out.
func (l *evilList) hangs(name string, serve func(net.Conn)) {
	l.kinds = append(l.kinds, evilKind{name, l.scheme, serve, webhook.ResultRetryable, true})
}

// succeeds adds a receiver for which an attempt succeeds.
func (l *evilList) succeeds(name string, serve func(net.Conn)) {
	l.kinds = append(l.kinds, evilKind{name, l.scheme, serve, webhook.ResultSuccess, false})
}

// evilKinds returns evilReceivers over HTTP, and those that need sockets or TLS.
func evilKinds(t *testing.T, ca *authority) []evilKind {
	var kinds []evilKind
	for _, tt := range evilReceivers {
		kinds = append(kinds, evilKind{tt.name, "http", plain(tt.serve), webhook.Classify(tt.status, tt.code), tt.duration == testTimeout})
	}
	return slices.Concat(kinds, evilCertificates(t, ca), evilHandshakes(), evilTLS(t, ca), evilSockets())
}

// secured serves a connection over TLS. A client that does not trust it gets no
// response.
func secured(config *tls.Config, then func(*peer)) func(net.Conn) {
	return func(c net.Conn) {
		secure := tls.Server(c, config)
		if secure.Handshake() == nil {
			plain(then)(secure)
		}
	}
}

// certificate returns a server configuration with a certificate of ca.
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
	ok := respond("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	kinds.ends("TLS: expired", secured(certificate(t, ca, "127.0.0.1",
		func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }), ok))
	kinds.ends("TLS: not yet valid",
		secured(certificate(t, ca, "127.0.0.1", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), ok))
	kinds.ends("TLS: for another host", secured(certificate(t, ca, "127.0.0.2", nil), ok))
	kinds.ends("TLS: self-signed", secured(certificate(t, new(authority), "127.0.0.1", nil), ok))
	kinds.ends("TLS: unknown authority", secured(certificate(t, newAuthority(t), "127.0.0.1", nil), ok))
	kinds.ends("TLS: version 1.1", secured(old, ok))
	kinds.ends("TLS: requires a client certificate", secured(wants, ok))
	kinds.ends("TLS: a chain of 200 certificates", secured(bloated, ok))
	return kinds.kinds
}

// evilHandshakes are servers that do not complete the TLS handshake.
func evilHandshakes() []evilKind {
	kinds := evilList{scheme: "https"}
	kinds.hangs("TLS: silent", plain((*peer).hang))
	kinds.hangs("TLS: reads, then silent", func(c net.Conn) { io.Copy(io.Discard, c) })
	kinds.ends("TLS: close", func(net.Conn) {})
	kinds.ends("TLS: close after the hello", plain(func(r *peer) { r.in.ReadByte() }))
	kinds.ends("TLS: HTTP instead", plain(func(r *peer) { r.in.ReadByte(); r.write("HTTP/1.1 400 Bad Request\r\n\r\n"); r.hang() }))
	kinds.ends("TLS: alert", plain(func(r *peer) { r.in.ReadByte(); r.write("\x15\x03\x03\x00\x02\x02\x28"); r.hang() }))
	kinds.ends("TLS: endless warnings", plain(endlessRecords("\x15\x03\x03\x00\x02\x01\x5a")))
	kinds.ends("TLS: endless handshake", plain(endlessRecords("\x16\x03\x03\x00\x04\x02\x00\xff\xff")))
	kinds.hangs("TLS: large handshake, then silent", plain(func(r *peer) {
		r.in.ReadByte()
		r.write("\x16\x03\x03\x3c\x00\x02\x00\xff\xff" + strings.Repeat("x", 0x3c00-4))
		r.write("\x16\x03\x03\x3c\x00" + strings.Repeat("x", 0x3c00))
		r.hang()
	}))
	kinds.ends("TLS: noise", plain(endlessRecords("\x00\xff\x55\xaa")))
	return kinds.kinds
}

// evilTLS are servers with a valid certificate that misbehave after the handshake.
func evilTLS(t *testing.T, ca *authority) []evilKind {
	kinds := evilList{scheme: "https"}
	good := certificate(t, ca, "127.0.0.1", nil)
	kinds.hangs("TLS, then silent", secured(good, respond("")))
	kinds.succeeds("TLS, then endless body", secured(good, endless("HTTP/1.1 200 OK\r\n\r\n", "x")))
	kinds.ends("TLS, then close", secured(good, respondAndClose("")))
	kinds.ends("TLS, then close without close_notify", func(c net.Conn) {
		secure := tls.Server(c, good)
		if secure.Handshake() == nil {
			(&peer{secure, bufio.NewReader(secure)}).read()
		}
		c.Close()
	})
	kinds.ends("TLS, then noise", func(c net.Conn) {
		secure := tls.Server(c, good)
		if secure.Handshake() == nil && (&peer{secure, bufio.NewReader(secure)}).read() {
			io.WriteString(c, strings.Repeat("\x17\x03\x03\x00\x20", 20))
		}
	})
	return kinds.kinds
}

// evilSockets are servers whose behavior needs a socket.
func evilSockets() []evilKind {
	kinds := evilList{scheme: "http"}
	reset := func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }
	kinds.ends("reset immediately", reset)
	kinds.ends("reset after the request", func(c net.Conn) { plain(respondAndClose(""))(c); reset(c) })
	kinds.succeeds("reset after 200", func(c net.Conn) {
		plain(respondAndClose("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"))(c)
		// Wait until it was read: a reset drops data in flight.
		time.Sleep(100 * time.Millisecond)
		reset(c)
	})
	kinds.hangs("read side closed", func(c net.Conn) {
		c.(*net.TCPConn).CloseRead()
		plain((*peer).hang)(c)
	})
	kinds.ends("write side closed", func(c net.Conn) {
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
	return kinds.kinds
}

func plain(serve func(*peer)) func(net.Conn) {
	return func(c net.Conn) { serve(&peer{c, bufio.NewReader(c)}) }
}

// endlessRecords repeats record after the first byte from the other side.
func endlessRecords(record string) func(*peer) {
	return func(r *peer) {
		r.in.ReadByte()
		block := strings.Repeat(record, 1000)
		for r.write(block) {
		}
	}
}
