package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"service/webhook"
)

// maxFact is the maximum length of a fact in bytes: a certificate can contain any
// name.
const maxFact = 200

// fact describes the cause of an attempt's error in a few words, for admins; "" if
// nothing is known beyond its code. It contains no address. The only text from outside is
// the name in a certificate or TLS's name of an alert.
func (x *exchange) fact(code webhook.ErrorCode, err error) string {
	var text string
	switch code {
	case webhook.ErrorDNS:
		text = dnsFact(err)
	case webhook.ErrorConnect:
		text = connectionFact(err)
	case webhook.ErrorTLS:
		text = tlsFact(err, x.attempt.StartedAt, x.lacksCertificate())
	case webhook.ErrorTimeout:
		text = timeoutFact(err, x.attempt.Phases)
	case webhook.ErrorBlocked:
		text = blockedFact(err)
	case webhook.ErrorProtocol:
		text = protocolFact(err)
	}
	if len(text) > maxFact {
		text = strings.ToValidUTF8(text[:maxFact], "") + "…"
	}
	return text
}

func dnsFact(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, errOwn):
		return "this service listens on the address of the host name"
	case errors.Is(err, errBlocked):
		return "the host name has an address that is not allowed"
	case !errors.As(err, &dns):
		return "the host name has no address"
	case dns.IsNotFound:
		return "no such host"
	case dns.IsTimeout:
		return "the DNS server did not respond"
	}
	return "the DNS server returned an error"
}

// connectionFacts maps errors of the operating system to facts.
var connectionFacts = []struct {
	err  error
	text string
}{
	{syscall.ECONNREFUSED, "connection refused"},
	{syscall.ECONNRESET, "connection reset"},
	{syscall.EHOSTUNREACH, "no route to the host"},
	{syscall.ENETUNREACH, "no route to the network"},
	{syscall.ETIMEDOUT, "no response to the connection attempt"},
	{syscall.EPIPE, "the server closed the connection"},
	{io.EOF, "the server closed the connection"},
	{io.ErrUnexpectedEOF, "the server closed the connection"},
	{io.ErrClosedPipe, "the server closed the connection"},
}

func connectionFact(err error) string {
	for _, f := range connectionFacts {
		if errors.Is(err, f.err) {
			return f.text
		}
	}
	return ""
}

// tlsFact describes why there is no TLS connection. Without a better reason it names the
// server's request for a client certificate, if there was one.
func tlsFact(err error, now time.Time, clientCert bool) string {
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var op *net.OpError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return validityFact(invalid.Cert, now)
	case errors.As(err, &invalid):
		return "the certificate cannot be used for a server"
	case errors.As(err, &name):
		return nameFact(&name)
	case errors.As(err, &unknown):
		return authorityFact(err)
	case errors.As(err, &record):
		return "the server does not speak TLS on this port"
	case errors.Is(err, errLongHandshake):
		return "the TLS handshake is too long"
	case clientCert && (errors.As(err, &op) || isBroken(err)):
		return "the server requires a client certificate"
	case errors.As(err, &op) && op.Op == "remote error":
		return "the server aborted the TLS handshake (" + strings.TrimPrefix(op.Err.Error(), "tls: ") + ")"
	}
	return connectionFact(err)
}

// authorityFact says whether the intermediate certificate may be missing.
func authorityFact(err error) string {
	text := "the certificate is from an unknown authority"
	var verification *tls.CertificateVerificationError
	if errors.As(err, &verification) && len(verification.UnverifiedCertificates) == 1 {
		if leaf := verification.UnverifiedCertificates[0]; !bytes.Equal(leaf.RawIssuer, leaf.RawSubject) {
			text += ", and the server sent no intermediate certificate"
		}
	}
	return text
}

// validityFact says when a certificate that is not valid now expired, or becomes
// valid.
func validityFact(c *x509.Certificate, now time.Time) string {
	if now.Before(c.NotBefore) {
		return "the certificate is not valid before " + c.NotBefore.UTC().Format("2006-01-02 15:04 MST")
	}
	ago := now.Sub(c.NotAfter)
	count := webhook.Count(int(ago/(24*time.Hour)), "day")
	if ago < 24*time.Hour {
		count = webhook.Count(int(ago/time.Hour), "hour")
	}
	return "the certificate expired " + count + " ago, on " + c.NotAfter.UTC().Format("2006-01-02")
}

// nameFact says which name the certificate is for.
func nameFact(err *x509.HostnameError) string {
	text := "the certificate is for another name"
	if err.Certificate == nil {
		return text
	}
	switch names := err.Certificate.DNSNames; {
	case len(names) == 1:
		return text + ": " + names[0]
	case len(names) > 1:
		return fmt.Sprintf("%s: %s and %d more", text, names[0], len(names)-1)
	}
	return text
}

// timeoutFact says what the attempt waited for when it timed out.
func timeoutFact(err error, durations webhook.Phases) string {
	var dial *dialError
	switch {
	case !errors.As(err, &dial) && durations.FirstByte > 0:
		return "the response headers were incomplete"
	case !errors.As(err, &dial):
		return "no response"
	case durations.TLS > 0:
		return "the TLS handshake did not complete"
	case durations.Connect > 0:
		return "no TCP connection"
	}
	return "no response from the DNS server"
}

func blockedFact(err error) string {
	switch {
	case errors.Is(err, errPlainHTTP):
		return "http:// is not allowed"
	case errors.Is(err, errOwn):
		return "this service listens on the address"
	}
	return "address not allowed"
}

func protocolFact(err error) string {
	switch {
	case errors.Is(err, errLongHeader):
		return "the response header is too long"
	case errors.Is(err, errTooManyInterim):
		return "too many interim responses (1xx)"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the response ended within its headers"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no final response after an interim one (1xx)"
	}
	return "the response is not HTTP/1.1"
}
