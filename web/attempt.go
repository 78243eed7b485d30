package web

import (
	"net/http"
	"strconv"

	"service/web/ui"
	"service/webhook"
)

// errorName is the display name of an attempt's error: its API name, with abbreviations in upper
// case.
func errorName(code webhook.ErrorCode) string {
	switch code {
	case webhook.ErrorDNS:
		return "DNS"
	case webhook.ErrorTLS:
		return "TLS"
	}
	return string(code)
}

// responseText returns the result of an attempt, and details for a title.
func responseText(a *webhook.Attempt) (short, long string) {
	if a.Error != webhook.ErrorNone {
		return errorName(a.Error), a.Error.Detail()
	}
	return strconv.Itoa(a.ResponseStatus), http.StatusText(a.ResponseStatus)
}

// responseBody returns the stored part of a response body for a page: unpacked, if the receiver
// sent gzip.
func responseBody(id, name string, a *webhook.Attempt) ui.Body {
	b := ui.Body{ID: id, Name: name, Data: a.ResponseBody, Cut: a.ResponseTruncated, Size: -1}
	if text, cut := webhook.Unpack(b.Data); text != nil {
		b.Packed = len(b.Data)
		b.Data, b.Cut = text, cut
	}
	return b
}
