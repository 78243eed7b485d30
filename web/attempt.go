package web

import (
	"net/http"
	"strconv"

	"service/webhook"
)

// errorName is how an error of an attempt is called: as in the API, but that
// abbreviations are written as they are.
func errorName(code webhook.ErrorCode) string {
	switch code {
	case webhook.ErrorDNS:
		return "DNS"
	case webhook.ErrorTLS:
		return "TLS"
	}
	return string(code)
}

// responseText says what an attempt came to, and more of that for a title.
func responseText(a *webhook.Attempt) (short, long string) {
	if a.Error != webhook.ErrorNone {
		return errorName(a.Error), a.Error.Detail()
	}
	return strconv.Itoa(a.ResponseStatus), http.StatusText(a.ResponseStatus)
}
