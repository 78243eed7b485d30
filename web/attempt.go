package web

import (
	"net/http"
	"strconv"

	"service/webhook"
)

// errorName is the display name of an attempt's error: its name in the API, with abbreviations in
// upper case.
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
