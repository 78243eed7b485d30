package mail

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http/httptest"
	netmail "net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"service/webhook"
)

// server is an SMTP server that stores what it accepts.
type server struct {
	mu       sync.Mutex
	accepted []string
	from     string
	to       []string
	secure   bool // the last message came over TLS
	user     string
	refuse   error // response to RCPT; nil accepts
}

func (s *server) NewSession(c *smtp.Conn) (smtp.Session, error) {
	_, secure := c.TLSConnectionState()
	return &session{s: s, secure: secure}, nil
}

type session struct {
	s      *server
	secure bool
	user   string
	from   string
	to     []string
}

func (c *session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (c *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != "alerts" || password != "s3cret" {
			return &smtp.SMTPError{Code: 535, Message: "wrong password"}
		}
		c.user = user
		return nil
	}), nil
}

func (c *session) Mail(from string, _ *smtp.MailOptions) error { c.from = from; return nil }

func (c *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.to = append(c.to, to)
	return c.s.refuse
}

func (c *session) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.accepted = append(c.s.accepted, string(text))
	c.s.from, c.s.to, c.s.secure, c.s.user = c.from, c.to, c.secure, c.user
	return err
}

func (c *session) Reset()        { c.from, c.to = "", nil }
func (c *session) Logout() error { return nil }

// listen starts an SMTP server, and returns the configuration of a client that trusts it.
func listen(t *testing.T, s *server) Config {
	t.Helper()
	web := httptest.NewTLSServer(nil) // for its certificate of 127.0.0.1
	web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := smtp.NewServer(s)
	srv.Domain, srv.TLSConfig = "localhost", &tls.Config{Certificates: web.TLS.Certificates}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); l.Close(); <-done }) // Serve may not have started to accept
	return Config{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "alerts", Password: "s3cret",
		From: "service@operator.example", Roots: roots}
}

// A message is sent over TLS with authentication, and arrives unchanged.
func TestSend(t *testing.T) {
	s := &server{}
	c := listen(t, s)
	a := c.Send(t.Context(), time.Minute,
		&Message{ID: "0198", To: []string{"ana@operator.example", "bo@operator.example"}, Subject: "Pärtner is failing",
			Body: "Line one\n.\nÜnd two\n"})
	if a.Result != webhook.ResultSuccess || a.ResponseStatus != 250 {
		t.Fatalf("got %+v, want success with 250", a)
	}
	if len(s.accepted) != 1 || !s.secure || s.user != "alerts" || s.from != "service@operator.example" ||
		strings.Join(s.to, ",") != "ana@operator.example,bo@operator.example" {
		t.Fatalf("got %+v at the server, want one message with its sender and recipients", s)
	}
	m, err := netmail.ReadMessage(strings.NewReader(s.accepted[0]))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
	if err != nil || subject != "Pärtner is failing" || m.Header.Get("Message-Id") != "<0198@operator.example>" || m.Header.Get("To") == "" {
		t.Errorf("got header %v, subject %q (%v)", m.Header, subject, err)
	}
	if body, err := decoded(m); err != nil || body != "Line one\n.\nÜnd two\n" {
		t.Errorf("got body %q (%v), want the text as sent", body, err)
	}
}

// Each failure is either final or retryable.
func TestSendFails(t *testing.T) {
	m := &Message{ID: "1", To: []string{"ana@operator.example"}, Subject: "s", Body: "b"}
	for name, test := range map[string]struct {
		change func(s *server, c *Config)
		result webhook.Result
		status int
		code   webhook.ErrorCode
	}{
		"no such mailbox": {func(s *server, _ *Config) { s.refuse = &smtp.SMTPError{Code: 550, Message: "no such user"} },
			webhook.ResultFailed, 550, ""},
		"try again later": {func(s *server, _ *Config) { s.refuse = &smtp.SMTPError{Code: 451, Message: "later"} },
			webhook.ResultRetryable, 451, ""},
		"wrong password":        {func(_ *server, c *Config) { c.Password = "wrong" }, webhook.ResultFailed, 535, ""},
		"connection refused":    {func(_ *server, c *Config) { c.Port = 1 }, webhook.ResultRetryable, 0, webhook.ErrorConnect},
		"untrusted certificate": {func(_ *server, c *Config) { c.Roots = x509.NewCertPool() }, webhook.ResultRetryable, 0, webhook.ErrorTLS},
		"another name":          {func(_ *server, c *Config) { c.Host = "localhost" }, webhook.ResultRetryable, 0, webhook.ErrorTLS},
		"no mail server":        {func(_ *server, c *Config) { *c = Config{} }, webhook.ResultRetryable, 0, webhook.ErrorConnect},
		"invalid sender":        {func(_ *server, c *Config) { c.From = "invalid" }, webhook.ResultFailed, 553, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			c := listen(t, s)
			test.change(s, &c)
			if a := c.Send(t.Context(), time.Minute, m); a.Result != test.result || a.ResponseStatus != test.status || a.Error != test.code {
				t.Errorf("got %+v, want %s, status %d, error %q", a, test.result, test.status, test.code)
			}
		})
	}
}

// A server that never responds is abandoned after the timeout.
func TestSendTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := Config{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, From: "service@operator.example"}
	a := c.Send(t.Context(), 50*time.Millisecond, &Message{ID: "1", To: []string{"ana@operator.example"}})
	if a.Result != webhook.ResultRetryable || a.Error != webhook.ErrorTimeout {
		t.Errorf("got %+v, want a retryable timeout", a)
	}
}

// TLS is required unless the server is on this machine.
func TestTLSPolicy(t *testing.T) {
	for host, local := range map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true, "smtp.operator.example": false,
		"10.0.0.1": false, "127.example.com": false} {
		if c := (Config{Host: host}); c.isLocal() != local {
			t.Errorf("%s: got local %t, want %t", host, c.isLocal(), local)
		}
	}
}

// decoded returns the text of a message.
func decoded(m *netmail.Message) (string, error) {
	var r io.Reader = m.Body
	if m.Header.Get("Content-Transfer-Encoding") == "quoted-printable" {
		r = quotedprintable.NewReader(r)
	}
	text, err := io.ReadAll(r)
	return strings.ReplaceAll(string(text), "\r\n", "\n"), err
}
