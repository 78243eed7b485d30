package web

import (
	"net/http"
	"strconv"

	"service/webhook"
)

// errorWord is how an error of an attempt is called: as in the API, but that
// abbreviations are written as they are.
func errorWord(code webhook.ErrorCode) string {
	switch code {
	case webhook.ErrorDNS:
		return "DNS"
	case webhook.ErrorTLS:
		return "TLS"
	}
	return string(code)
}

// response says what an attempt came to, and more of that for a title.
func response(a *webhook.Attempt) (short, long string) {
	if a.Error != webhook.ErrorNone {
		return errorWord(a.Error), a.Error.Detail()
	}
	return strconv.Itoa(a.ResponseStatus), http.StatusText(a.ResponseStatus)
}
