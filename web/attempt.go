package web

import (
	"net/http"
	"strconv"

	"service/webhook"
)

// response says what an attempt came to, and more of that for a title.
func response(a *webhook.Attempt) (short, long string) {
	if a.Error != webhook.ErrorNone {
		return string(a.Error), a.Error.Detail()
	}
	return strconv.Itoa(a.ResponseStatus), http.StatusText(a.ResponseStatus)
}
