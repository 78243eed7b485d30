package client

import (
	"errors"
	"strconv"
	"time"

	"golang.org/x/net/http/httpguts"

	"service/webhook"
)

// Request is what one attempt sends, and where.
type Request struct {
	DeliveryID     string
	SubscriptionID string
	ProgramID      string
	To             *Target
	Authorization  string // the value of the header, byte for byte; "" for none
	Secrets        []webhook.SigningSecret
	Body           []byte        // must not be changed any more: it may be read even after Send has returned
	Number         int           // of the attempt, from 1
	Trace          webhook.Trace // that the attempt is a span of, "" for none
	Test           bool          // the event is a test
}

// origin returns where the connection of the request leads, and for which program.
func (r *Request) origin() origin {
	to := r.To.origin
	to.program = r.ProgramID
	return to
}

// check returns why the request cannot be sent: its URL, or a value from elsewhere that
// is not valid in a header.
func (r *Request) check() error {
	if r.To.err != nil {
		return &dialError{webhook.ErrorConnect, r.To.err}
	}
	for _, value := range [...]string{r.DeliveryID, r.SubscriptionID, r.ProgramID, r.Authorization, string(r.Trace)} {
		if !httpguts.ValidHeaderFieldValue(value) {
			return errors.New("the header cannot be sent")
		}
	}
	return nil
}

// appendHead appends the first line and the header of a delivery.
func (r *Request) appendHead(dst []byte, now time.Time) []byte {
	dst = append(append(dst, "POST "...), r.To.path...)
	dst = append(append(dst, " HTTP/1.1\r\nHost: "...), r.To.host...)
	dst = strconv.AppendInt(append(dst, "\r\nContent-Length: "...), int64(len(r.Body)), 10)
	head := webhook.RequestHead{DeliveryID: r.DeliveryID, SubscriptionID: r.SubscriptionID, ProgramID: r.ProgramID, Authorization: r.Authorization, At: now, Trace: r.Trace.Attempt(r.DeliveryID, r.Number), Test: r.Test}
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
