package web

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/a-h/templ"

	"service/assets"
	"service/webhook"
)

// answer is what a handler came to: a page, or the way to another one.
type answer struct {
	page     templ.Component
	location string       // where to go on (303), "" for a page
	cookie   *http.Cookie // to set, or nil
}

// handler works out the answer to a request. Its error is a *problem, which the
// visitor is told of, or a fault of the service, which the log is told of.
type handler func(*http.Request) (answer, error)

// by is a handler for each method that a path has; get answers HEAD too.
type by struct{ get, post handler }

func (b by) handle(r *http.Request) (answer, error) {
	switch {
	case b.get != nil && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		return b.get(r)
	case b.post != nil && r.Method == http.MethodPost:
		return b.post(r)
	}
	allow := "POST"
	if b.get != nil && b.post != nil {
		allow = "GET, HEAD, POST"
	} else if b.get != nil {
		allow = "GET, HEAD"
	}
	return answer{}, &problem{
		status: http.StatusMethodNotAllowed, allow: allow,
		title: "This cannot be done here",
		text:  "The address exists, but it does not take the method " + r.Method + ".",
	}
}

func notFound(*http.Request) (answer, error) {
	return answer{}, &problem{
		status: http.StatusNotFound,
		title:  "There is no such page",
		text:   "The address may be mistyped, or what it showed is gone.",
	}
}

// problem is an error that is told to the visitor in full.
type problem struct {
	status      int
	title, text string
	command     string // what helps, to be typed into a terminal, "" for nothing
	after       string // what is to be said below the command
	allow       string // with 405
	again       bool   // trying again may help
}

func (p *problem) Error() string { return fmt.Sprintf("%d: %s", p.status, p.title) }

const requestIDHeader = "X-Request-Id"

// policy lets a page load its own style sheet and pictures, send forms to
// itself, and nothing else.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers one request.
func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	h := rw.Header()
	h.Set(requestIDHeader, webhook.NewID())
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store") // assets say otherwise of themselves
	w.mux.ServeHTTP(rw, r)
}

// serve writes what a handler came to. It is the one place that does, and the
// one that logs.
func (w *Web) serve(do handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		id := rw.Header().Get(requestIDHeader)
		a, err := w.try(do, r)
		var body bytes.Buffer
		if err == nil && a.location == "" {
			// Rendered in full before the first byte leaves: a page that
			// fails half way is an error page, not half a page.
			err = a.page.Render(r.Context(), &body)
		}
		if err == nil {
			if a.cookie != nil {
				http.SetCookie(rw, a.cookie)
			}
			if a.location != "" {
				rw.Header().Set("Location", a.location)
				rw.WriteHeader(http.StatusSeeOther)
				return
			}
			write(rw, r, http.StatusOK, &body)
			return
		}

		var p *problem
		if !errors.As(err, &p) {
			if r.Context().Err() != nil {
				return // the visitor has left, which is why it failed
			}
			// The pattern, since a path may hold the code of a sign-in link.
			w.cfg.Logger.Error("admin page", "request", r.Method+" "+r.Pattern, "request_id", id, "error", err)
			p = &problem{
				status: http.StatusInternalServerError, again: r.Method == http.MethodGet,
				title: "This page could not be loaded",
				text:  "The fault is the service's own. Its log says more, under the request id below.",
			}
		}
		if p.allow != "" {
			rw.Header().Set("Allow", p.allow)
		}
		if p.status == http.StatusUnauthorized {
			rw.Header().Set("WWW-Authenticate", "Session") // an answer of 401 must name a scheme
		}
		body.Reset()
		if err := problemPage(w.frame(p.title), p, id).Render(r.Context(), &body); err != nil {
			body.Reset()
			body.WriteString(http.StatusText(p.status))
		}
		write(rw, r, p.status, &body)
	})
}

// write sends a page. A list is the same words over and over, and is a tenth of
// its size when it is compressed. No page holds a secret beside text that
// another site could choose, whose length would give the secret away.
func write(rw http.ResponseWriter, r *http.Request, status int, body *bytes.Buffer) {
	h := rw.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Encoding")
	if assets.AcceptsGzip(r.Header) {
		h.Set("Content-Encoding", "gzip")
		var small bytes.Buffer
		z := gzip.NewWriter(&small) // a bytes.Buffer takes all
		z.Write(body.Bytes())
		z.Close()
		body = &small
	}
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	rw.WriteHeader(status)
	rw.Write(body.Bytes()) // the visitor is gone if this fails
}

// try runs a handler unless another site sent the request, and turns a panic
// into an error.
func (w *Web) try(do handler, r *http.Request) (a answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if w.origins.Check(r) != nil {
		return a, &problem{
			status: http.StatusForbidden,
			title:  "This was sent from another site",
			text:   "Only a page of this service may do that. Nothing was done.",
		}
	}
	return do(r)
}
