package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// SMTPServer is a mail server. It accepts mail over TLS from one user.
type SMTPServer struct {
	Addr     string
	CAFile   string           // verifies its certificate
	Messages chan SMTPMessage // accepted messages; at most 100

	user, password string
}

// SMTPMessage is a message that the server accepted.
type SMTPMessage struct {
	From, User string
	To         []string
	TLS        bool
	Text       string // header and body
}

// ListenSMTP runs a mail server at addr, a loopback address, until the test ends. If implicit is
// set, TLS starts with the connection, otherwise with STARTTLS. The reply to a wrong password
// contains that password.
func ListenSMTP(tb testing.TB, addr, user, password string, implicit bool) (*SMTPServer, error) {
	tb.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &SMTPServer{
		Addr: l.Addr().String(), CAFile: filepath.Join(tb.TempDir(), "smtp-ca.pem"), Messages: make(chan SMTPMessage, 100),
		user: user, password: password,
	}
	server := smtp.NewServer(s)
	server.Domain = "localhost"
	server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{s.certificate(tb, l.Addr().(*net.TCPAddr).IP)}}
	if implicit {
		l = tls.NewListener(l, server.TLSConfig)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(l)
	}()
	tb.Cleanup(func() {
		server.Close()
		l.Close() // Serve may not have started
		<-done
	})
	return s, nil
}

// certificate writes a self-signed certificate for an address to CAFile and returns it.
func (s *SMTPServer) certificate(tb testing.TB, ip net.IP) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mail server"}, IPAddresses: []net.IP{ip},
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(s.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// NewSession implements smtp.Backend.
func (s *SMTPServer) NewSession(c *smtp.Conn) (smtp.Session, error) {
	_, secure := c.TLSConnectionState()
	return &smtpSession{server: s, message: SMTPMessage{TLS: secure}}, nil
}

type smtpSession struct {
	server  *SMTPServer
	message SMTPMessage
}

func (c *smtpSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (c *smtpSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != c.server.user || password != c.server.password {
			return &smtp.SMTPError{Code: 535, EnhancedCode: smtp.EnhancedCode{5, 7, 8}, Message: "wrong password " + password}
		}
		c.message.User = user
		return nil
	}), nil
}

func (c *smtpSession) Mail(from string, _ *smtp.MailOptions) error {
	c.message.From = from
	return nil
}

func (c *smtpSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	c.message.To = append(c.message.To, to)
	return nil
}

func (c *smtpSession) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	c.message.Text = string(text)
	c.server.Messages <- c.message
	return err
}

func (c *smtpSession) Reset()        { c.message.From, c.message.To = "", nil }
func (c *smtpSession) Logout() error { return nil }
