package webhook

import (
	"strconv"
	"time"
)

// UserAgent is what attempts say they are (spec, section 6.1).
const UserAgent = "Service-Webhooks/1.0"

// MaxRequestHeader is how many lines [RequestHead.AppendHeader] appends at the most.
const MaxRequestHeader = 11

// RequestHead is what the header of an attempt is made of.
type RequestHead struct {
	DeliveryID, SubscriptionID, ProgramID string

	Authorization string    // the value of the header, byte for byte; "" for none
	At            time.Time // when the attempt began
	Signature     string    // as [SigningSecret.Sign] renders it, of each secret that signs, with blanks between; "" for none
	Trace         string    // as [Trace.Attempt] renders it; "" for none
	Test          bool      // the event is a test
}

// AppendHeader appends the header of an attempt as names and values (spec,
// section 6.1), and beside it what Standard Webhooks asks for. Host and
// Content-Length stand before it on the wire; there is no other line.
func (h *RequestHead) AppendHeader(dst [][2]string) [][2]string {
	dst = append(dst,
		[2]string{"Content-Type", "application/json"},
		[2]string{"X-Service-Delivery", h.DeliveryID},
		[2]string{"X-Service-Subscription", h.SubscriptionID},
		[2]string{"X-Service-Program", h.ProgramID},
		[2]string{"User-Agent", UserAgent})
	if h.Authorization != "" {
		dst = append(dst, [2]string{"Authorization", h.Authorization})
	}
	dst = append(dst,
		[2]string{"webhook-id", h.DeliveryID},
		[2]string{"webhook-timestamp", strconv.FormatInt(h.At.Unix(), 10)})
	if h.Signature != "" {
		dst = append(dst, [2]string{"webhook-signature", h.Signature})
	}
	if h.Trace != "" {
		dst = append(dst, [2]string{"traceparent", h.Trace})
	}
	if h.Test {
		dst = append(dst, [2]string{TestHeader, "true"})
	}
	return dst
}
