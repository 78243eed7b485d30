package client

import (
	"errors"
	"strconv"
	"time"

	"golang.org/x/net/http/httpguts"

	"service/webhook"
)

// Request is the content and the target of one attempt.
type Request struct {
	DeliveryID     string
	SubscriptionID string
	ProgramID      string
	To             *Target
	Authorization  string // header value, byte for byte; "" for none
	Headers        []webhook.Header
	Secrets        []webhook.SigningSecret
	Body           []byte        // must not change: it may be read even after Send has returned
	Number         int           // of the attempt, from 1
	Trace          webhook.Trace // the trace that the attempt belongs to, "" for none
	Test           bool          // the delivery carries a test event
}

// origin returns the origin for the connection of the request.
func (r *Request) origin() origin {
	to := r.To.origin
	to.program = r.ProgramID
	return to
}

// check returns why the request cannot be sent: an unusable URL, or a value that is
// invalid in a header.
func (r *Request) check() error {
	if r.To.err != nil {
		return &dialError{webhook.ErrorConnect, r.To.err}
	}
	for _, value := range [...]string{r.DeliveryID, r.SubscriptionID, r.ProgramID, r.Authorization, string(r.Trace)} {
		if !httpguts.ValidHeaderFieldValue(value) {
			return errors.New("a header value has invalid characters")
		}
	}
	for _, h := range r.Headers {
		if !httpguts.ValidHeaderFieldName(h.Name) || !httpguts.ValidHeaderFieldValue(h.Value) {
			return errors.New("a header has invalid characters")
		}
	}
	return nil
}

// appendHead appends the request line and the headers.
func (r *Request) appendHead(dst []byte, now time.Time) []byte {
	dst = append(append(dst, "POST "...), r.To.path...)
	dst = append(append(dst, " HTTP/1.1\r\nHost: "...), r.To.host...)
	dst = strconv.AppendInt(append(dst, "\r\nContent-Length: "...), int64(len(r.Body)), 10)
	head := webhook.RequestHead{
		DeliveryID: r.DeliveryID, SubscriptionID: r.SubscriptionID, ProgramID: r.ProgramID, Authorization: r.Authorization, Headers: r.Headers,
		At: now, Trace: r.Trace.Attempt(r.DeliveryID, r.Number), Test: r.Test,
	}
	for i, secret := range r.Secrets {
		if i > 0 {
			head.Signature += " "
		}
		head.Signature += secret.Sign(r.DeliveryID, now, r.Body)
	}
	var scratch [webhook.MaxRequestHeader][2]string
	for _, line := range head.AppendHeader(scratch[:0]) {
		dst = append(append(dst, "\r\n"...), line[0]...)
		dst = append(append(dst, ": "...), line[1]...)
	}
	return append(dst, "\r\n\r\n"...)
}
