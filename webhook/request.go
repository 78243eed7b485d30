package webhook

import (
	"strconv"
	"time"
)

// UserAgent is the User-Agent header of attempts (spec, section 6.1).
const UserAgent = "Service-Webhooks/1.0"

// MaxRequestHeader is the maximum number of lines that [RequestHead.AppendHeader]
// appends.
const MaxRequestHeader = 11 + MaxHeaders

// RequestHead contains the values of an attempt's headers.
type RequestHead struct {
	DeliveryID, SubscriptionID, ProgramID string

	Authorization string    // header value, byte for byte; "" for none
	Headers       []Header  // of the subscription
	At            time.Time // start of the attempt
	Signature     string    // from [SigningSecret.Sign], one per secret, separated by spaces; "" for none
	Trace         string    // from [Trace.Attempt]; "" for none
	Test          bool      // the delivery carries a test event
}

// AppendHeader appends the headers of an attempt as names and values (spec, section
// 6.1), including those of Standard Webhooks. On the wire, only Host and
// Content-Length are added before them.
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
	for _, own := range h.Headers {
		dst = append(dst, [2]string{own.Name, own.Value})
	}
	return dst
}
