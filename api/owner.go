package api

import (
	"context"
	"net/http"

	"service/webhook"
)

// ownerKey marks the context of a request of the owner.
type ownerKey struct{}

// Owner returns a handler of the API for the owner of the data directory. Requests need no
// token and act like those of a platform token, but count against no limit, and their
// Idempotency-Key is not stored because no token owns it. Audit entries name the terminal.
//
// The caller must make sure that only the owner can send requests.
func (a *API) Owner() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ownerKey{}, true)))
	})
}

// owner reports whether the request is one of [API.Owner].
func (req *request) owner() bool { return req.http.Context().Value(ownerKey{}) != nil }

// ownerToken returns the token that requests of the owner act with. The store does not have
// it.
func ownerToken() *webhook.Token {
	return &webhook.Token{UserID: webhook.Terminal, Scopes: []webhook.Scope{webhook.ScopePlatform}}
}
