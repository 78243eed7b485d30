// Package mail sends alerts by email through the operator's SMTP server. Only the
// command line sets that server, so no admin of the UI can make the service connect to
// another one. The package is the only user of the SMTP library.
package mail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"net/textproto"
	"strings"
	"time"

	"github.com/wneessen/go-mail"

	"service/webhook"
)

// SubmissionPort is the port if --smtp-host names none; TLS starts there with STARTTLS. On
// port ImplicitTLS, TLS starts with the connection.
const (
	SubmissionPort = 587
	ImplicitTLS    = 465
)

// Config configures a mail server. The zero value means none.
type Config struct {
	Host           string // name or IP address, without a port
	Port           int
	User, Password string // "" for no authentication
	From           string // address of the sender, with or without a display name

	// Roots verify the server's certificate; nil means the system's.
	Roots *x509.CertPool
}

// IsSet reports whether a mail server is configured.
func (c *Config) IsSet() bool { return c.Host != "" }

// Message is a plain-text email.
type Message struct {
	ID      string   // of the Message-ID, before its @; the same for each attempt, so duplicates can be recognized
	To      []string // addresses, at least one
	Subject string
	Body    string
}

// Send sends a message within timeout and returns the result as an attempt, with the
// SMTP reply code as its status: 250 for a success. A reply of 500 or above is final;
// other failures are retryable. TLS is required unless the server is on this machine.
func (c *Config) Send(ctx context.Context, timeout time.Duration, m *Message) webhook.Attempt {
	a := webhook.Attempt{StartedAt: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := c.send(ctx, timeout, m)
	a.Duration = time.Since(a.StartedAt)
	if err == nil {
		a.Result, a.ResponseStatus = webhook.ResultSuccess, 250
		return a
	}
	a.ResponseStatus, a.Error = classify(err)
	a.Result = webhook.ResultRetryable
	if a.ResponseStatus >= 500 {
		a.Result = webhook.ResultFailed
	}
	return a
}

var errNotSet = errors.New("mail: no mail server configured; set --smtp-host")

func (c *Config) send(ctx context.Context, timeout time.Duration, m *Message) error {
	if !c.IsSet() {
		return errNotSet
	}
	msg := mail.NewMsg()
	if err := errors.Join(msg.From(c.From), msg.To(m.To...)); err != nil {
		// The code with which a server would refuse the address: a retry cannot help.
		return &textproto.Error{Code: 553, Msg: "invalid email address"}
	}
	_, host, _ := strings.Cut(c.From, "@")
	msg.SetMessageIDWithValue(m.ID + "@" + strings.TrimRight(host, "> "))
	msg.SetDate()
	msg.Subject(m.Subject)
	msg.SetBodyString(mail.TypeTextPlain, m.Body)
	client, err := mail.NewClient(c.Host, c.options(timeout)...)
	if err != nil {
		return err
	}
	conn, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return err
	}
	err = client.SendWithSMTPClient(conn, msg)
	_ = client.CloseWithSMTPClient(conn) // the message has been accepted or refused
	return err
}

func (c *Config) options(timeout time.Duration) []mail.Option {
	policy := mail.TLSMandatory
	if c.isLocal() {
		policy = mail.TLSOpportunistic // a relay on this machine often has no certificate
	}
	options := []mail.Option{
		mail.WithPort(c.Port), mail.WithTimeout(timeout), mail.WithTLSPolicy(policy),
		mail.WithTLSConfig(&tls.Config{ServerName: c.Host, RootCAs: c.Roots, MinVersion: tls.VersionTLS12}),
	}
	if c.Port == ImplicitTLS {
		options = append(options, mail.WithSSL())
	}
	if c.User != "" {
		options = append(options, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(c.User), mail.WithPassword(c.Password))
	}
	return options
}

func (c *Config) isLocal() bool {
	ip, err := netip.ParseAddr(c.Host)
	return c.Host == "localhost" || err == nil && ip.IsLoopback()
}

// classify returns the SMTP reply code of an error, or else the kind of error.
func classify(err error) (status int, code webhook.ErrorCode) {
	var refused *mail.SendError
	var reply *textproto.Error
	var unverified *tls.CertificateVerificationError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &refused) && refused.ErrorCode() != 0:
		return refused.ErrorCode(), webhook.ErrorNone
	case errors.As(err, &reply):
		return reply.Code, webhook.ErrorNone
	case errors.Is(err, context.Canceled):
		return 0, webhook.ErrorInterrupted
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return 0, webhook.ErrorTimeout
	case errors.As(err, &unverified), errors.As(err, new(tls.RecordHeaderError)):
		return 0, webhook.ErrorTLS
	}
	return 0, webhook.ErrorConnect
}
