package certs

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// clientHello returns a ClientHello of TLS 1.3 with these suites, in a record.
func clientHello(t *testing.T, suites ...uint16) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sized := func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	var list, extensions []byte
	for _, s := range suites {
		list = binary.BigEndian.AppendUint16(list, s)
	}
	for _, e := range []struct {
		number  uint16
		content []byte
	}{
		{10, sized([]byte{0, 0x1d})}, // groups: X25519
		{13, sized([]byte{4, 3})},    // signatures: ECDSA with P-256 and SHA-256
		{43, []byte{2, 3, 4}},        // versions: TLS 1.3
		{51, sized(slices.Concat([]byte{0, 0x1d}, sized(key.PublicKey().Bytes())))}, // key share
	} {
		extensions = slices.Concat(extensions, binary.BigEndian.AppendUint16(nil, e.number), sized(e.content))
	}
	hello := slices.Concat([]byte{3, 3}, make([]byte, 32), []byte{0}, sized(list), []byte{1, 0}, sized(extensions))
	return slices.Concat([]byte{22, 3, 1}, sized(slices.Concat([]byte{1, 0}, sized(hello))))
}

// testManager returns a manager with a local certificate, and the file of its CA.
func testManager(t *testing.T) (c *Manager, caFile string) {
	t.Helper()
	dir := t.TempDir()
	c, err := New(Config{CA: openCA(t, dir, time.Now()), Hosts: ServerNames("127.0.0.1"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, filepath.Join(dir, CAFile)
}

// TestPreferAES256 fails if crypto/tls no longer picks from the slice that GetConfigForClient gets.
func TestPreferAES256(t *testing.T) {
	const (
		aes128, aes256, chacha = tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256
		grease, ccm            = 0x0a0a, 0x1304
	)
	c, _ := testManager(t)
	for _, test := range []struct {
		offered []uint16
		want    uint16
	}{
		{[]uint16{aes128, aes256, chacha}, aes256},
		{[]uint16{chacha, aes128, aes256}, aes256},
		{[]uint16{grease, aes128, ccm, aes256}, aes256},
		{[]uint16{aes256}, aes256},
		{[]uint16{aes128}, aes128},
		{[]uint16{chacha, aes128}, chacha},
		{[]uint16{chacha}, chacha},
	} {
		server, client := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer server.Close()
			tls.Server(&helloConn{Conn: server}, c.tlsConfig()).HandshakeContext(t.Context())
		}()
		answer := make([]byte, 5+4+2+32+1+2) // through the suite; the session ID is empty
		_, err := client.Write(clientHello(t, test.offered...))
		if err == nil {
			_, err = io.ReadFull(client, answer)
		}
		client.Close()
		<-done
		if got := binary.BigEndian.Uint16(answer[len(answer)-2:]); err != nil || got != test.want {
			t.Errorf("%x offered: got %x, %v; want %x", test.offered, got, err, test.want)
		}
	}
}

// A client that must send its ClientHello again finds its suites unchanged. It gets no session
// ticket.
func TestPreferAES256AfterRetry(t *testing.T) {
	c, caFile := testManager(t)
	pool, err := ReadPool(caFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, retry := range []bool{false, true} {
		for _, protocol := range []string{"h2", "http/1.1"} {
			config := &tls.Config{RootCAs: pool, ServerName: LocalName, NextProtos: []string{protocol},
				ClientSessionCache: tls.NewLRUClientSessionCache(1)}
			served := c.tlsConfig()
			if retry {
				served.CurvePreferences = []tls.CurveID{tls.CurveP521} // the client's first hello contains no share of it
			}
			for range 2 {
				s, err := handshake(t, served, config)
				if err != nil || s.CipherSuite != tls.TLS_AES_256_GCM_SHA384 || s.DidResume || s.HelloRetryRequest != retry ||
					s.NegotiatedProtocol != protocol {
					t.Errorf("retry %t: got %s over %s, retry %t, resumed %t: %v", retry, tls.CipherSuiteName(s.CipherSuite),
						s.NegotiatedProtocol, s.HelloRetryRequest, s.DidResume, err)
				}
			}
		}
	}
}

// handshake connects a client to a server, and returns what the client sees.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := tls.NewListener(helloListener{l}, server).Accept()
		if err == nil {
			err = conn.(*tls.Conn).HandshakeContext(t.Context())
			conn.Close()
		}
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := tls.Client(conn, client)
	err = c.HandshakeContext(t.Context())
	return c.ConnectionState(), errors.Join(err, <-done)
}
