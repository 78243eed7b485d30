package web

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"service/assets"
	"service/store"
	"service/web/ui"
	"service/webhook"
)

// response is the result of a handler. It sets exactly one of page, location, json, file and
// stream.
type response struct {
	page   templ.Component
	status int  // of the page, 0 for 200
	secret bool // the page shows a secret: never compress it

	location string   // the redirect (303)
	note     *ui.Note // shown once on the page at location; nil for none

	json   []byte // for our own script
	file   *file
	stream func(*stream) error // runs until the browser disconnects; see stream

	cookies    []*http.Cookie // to set
	session    bool           // only a session was created: the response does not wait for the replica
	retryAfter time.Duration  // with 429 and 503
}

// file is a download, which is written as it is generated.
type file struct {
	name        string // suggested file name: ASCII without quotes
	contentType string
	write       func(io.Writer) error // an error aborts the connection, so the browser reports a failed download
}

// handler handles a request. Its error is a *problem, which the visitor sees, or an
// internal error, which is logged.
type handler func(*request) (response, error)

// by contains the handlers of a path by method. get also serves HEAD.
type by struct {
	get, post handler
	limit     int64 // of the form that post gets as PostForm, in bytes; 0 for maxForm
}

// upTo returns b with a limit of its form.
func (b by) upTo(limit int64) by {
	b.limit = limit
	return b
}

func (b by) handle(r *request) (response, error) {
	switch {
	case b.get != nil && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		if address := withoutEmpty(r.URL); address != "" {
			return response{location: address}, nil
		}
		return b.get(r)
	case b.post != nil && r.Method == http.MethodPost:
		if _, err := r.formUpTo(cmp.Or(b.limit, maxForm)); err != nil {
			return response{}, err
		}
		return b.post(r)
	}
	allow := "POST"
	if b.get != nil && b.post != nil {
		allow = "GET, HEAD, POST"
	} else if b.get != nil {
		allow = "GET, HEAD"
	}
	return response{}, &problem{
		status: http.StatusMethodNotAllowed, allow: allow,
		title: "Method not allowed",
		text:  "This address does not support the method " + r.Method + ".",
	}
}

// withoutEmpty returns the address of a list without its empty parameters, "" if it has none. A
// form sends all its fields without JavaScript.
func withoutEmpty(u *url.URL) string {
	given, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "" // the page reports it
	}
	list, empty := false, false
	for name, values := range given {
		list = list || name == "sort" || strings.HasPrefix(name, "filter[") || strings.HasPrefix(name, "page[")
		given[name] = slices.DeleteFunc(values, func(s string) bool { return s == "" })
		empty = empty || len(given[name]) < len(values)
	}
	if !list || !empty {
		return ""
	}
	return ui.Address(u.Path, given)
}

const requestIDHeader = "X-Request-Id"

// policy lets a page load its own style sheet, script and images, send requests to its own
// origin, and submit forms to it. It forbids everything else, including inline code and eval.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// setSecurityHeaders sets the headers of every page.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Robots-Tag", "noindex, nofollow")
	h.Set("Cache-Control", "no-store") // only assets override it
}

// Find reports whether a request gets a page, and whether its address exists. Without a session,
// only browsers, which accept text/html, get pages that need one, except for the first page; other
// clients get API errors.
func (w *Web) Find(r *http.Request) (page, exists bool) {
	_, pattern := w.mux.Handler(r)
	exists = pattern != "" && pattern != "/" && pattern != portalBase+"/"
	if exists && w.roles[pattern] == anyone || r.URL.Path == "/" || strings.Contains(strings.Join(r.Header["Accept"], ","), "text/html") {
		return true, exists
	}
	for _, name := range []string{sessionCookie, portalCookie, framedPortalCookie} {
		if _, err := r.Cookie(w.sessions.cookieName(name)); err == nil {
			return true, exists
		}
	}
	return false, exists
}

// ServeHTTP serves the admin pages and their assets.
func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set(requestIDHeader, webhook.NewID())
	setSecurityHeaders(rw.Header())
	seen := &responseRecorder{ResponseWriter: rw}
	began := time.Now()
	defer func() { w.logRequest(seen, r, time.Since(began)) }() // logs even an aborted response
	w.mux.ServeHTTP(seen, r)
}

// serve runs a handler and writes its response. No other function writes responses or logs handler
// errors.
func (w *Web) serve(do handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, plain *http.Request) {
		r := w.newRequest(plain, rw.Header().Get(requestIDHeader))
		var body bytes.Buffer
		a, err := w.run(do, r, &body)
		if seen, ok := rw.(*responseRecorder); ok {
			seen.admin = r.admin
		}
		rw.Header().Set("Content-Security-Policy", r.portal.policy())
		if err != nil {
			w.fail(rw, r, err)
			return
		}
		for _, c := range a.cookies {
			http.SetCookie(rw, r.portal.adapt(c))
		}
		switch {
		case a.location != "":
			if a.note != nil {
				http.SetCookie(rw, r.portal.adapt(w.newNoteCookie(r.Request, a.note)))
			}
			rw.Header().Set("Location", ui.At(r.Context(), a.location))
			rw.WriteHeader(http.StatusSeeOther)
		case a.json != nil:
			rw.Header().Set("Content-Type", "application/json")
			rw.Write(a.json) // fails only if the visitor disconnected
		case a.file != nil:
			w.send(rw, r, a.file)
		case a.stream != nil:
			w.follow(rw, r, a.stream)
		default:
			if r.note != nil {
				http.SetCookie(rw, r.portal.adapt(w.noteCookie(r.Request, "", -1)))
			}
			w.headers(rw, a.status, a.retryAfter)
			w.write(rw, cmp.Or(a.status, http.StatusOK), !a.secret && assets.AcceptsGzip(r.Header), &body)
		}
	})
}

// fail writes the page of an error, and logs the error unless it is a *problem or that of a store that
// cannot write.
func (w *Web) fail(rw http.ResponseWriter, r *request, err error) {
	var p *problem
	if !errors.As(err, &p) {
		switch {
		case r.Context().Err() != nil:
			return // the visitor disconnected, which caused the error
		case store.Unavailable(err):
			p = unavailable(err)
		default:
			w.log(r, err)
			p = &problem{
				status: http.StatusInternalServerError, again: r.Method == http.MethodGet,
				title: "This page could not be loaded",
				text:  "The service failed to handle the request. Search its log for the request ID below.",
			}
		}
	}
	if inPortal(r.Request) || strings.HasPrefix(r.URL.Path, webhook.SharePath) {
		p = portalProblem(p)
	}
	if p.allow != "" {
		rw.Header().Set("Allow", p.allow)
	}
	if r.admin != "" && r.status == nil && r.loadFrame == nil {
		_ = w.readFrame(r)
	}
	w.headers(rw, p.status, p.retryAfter)
	f := w.frame(r, p.title)
	f.Address = "" // no form may lead back to an error
	var body bytes.Buffer
	if err := problemPage(f, p, r.id).Render(r.Context(), &body); err != nil {
		body.Reset()
		body.WriteString(http.StatusText(p.status))
	}
	w.write(rw, p.status, assets.AcceptsGzip(r.Header), &body)
}

// headers sets the headers that some statuses require.
func (w *Web) headers(rw http.ResponseWriter, status int, retryAfter time.Duration) {
	if status == http.StatusUnauthorized {
		rw.Header().Set("WWW-Authenticate", "Session") // WWW-Authenticate requires a scheme
	}
	if retryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.FormatInt(int64((retryAfter+time.Second-1)/time.Second), 10))
	}
}

// write sends a page. A page with a secret is not compressed: another site that controls some
// text on the page could guess the secret from its compressed length.
func (w *Web) write(rw http.ResponseWriter, status int, compress bool, body *bytes.Buffer) {
	h := rw.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Encoding, Cookie")
	if compress {
		h.Set("Content-Encoding", "gzip")
		var small bytes.Buffer
		z := w.gzips.Get().(*gzip.Writer)
		z.Reset(&small) // writing to a bytes.Buffer cannot fail
		z.Write(body.Bytes())
		z.Close()
		w.gzips.Put(z)
		body = &small
	}
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	rw.WriteHeader(status)
	rw.Write(body.Bytes()) // fails only if the visitor disconnected
}

// send writes a file as it is generated.
func (w *Web) send(rw http.ResponseWriter, r *request, f *file) {
	h := rw.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Disposition", `attachment; filename="`+f.name+`"`)
	if r.Method == http.MethodHead {
		return
	}
	// Flush the headers so that the browser starts the download before the first line is found. A
	// writer without Flush is fine.
	_ = http.NewResponseController(rw).Flush()
	if err := f.write(&deadlineWriter{rw, http.NewResponseController(rw)}); err != nil {
		if r.Context().Err() == nil {
			w.log(r, err)
		}
		panic(http.ErrAbortHandler) // the browser must not take a partial file for a complete one
	}
}

// deadlineWriter sets a write deadline before each write: a long download may take any time, but a
// client that stops reading is disconnected.
type deadlineWriter struct {
	to  io.Writer
	ctl *http.ResponseController
}

func (p *deadlineWriter) Write(b []byte) (int, error) {
	if err := p.ctl.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return p.to.Write(b)
}

// busyRetry is the Retry-After of a page that was rejected with [store.ErrBusy].
const busyRetry = 5 * time.Second

// writeTimeout bounds one write to a client.
const writeTimeout = 30 * time.Second

// run calls a handler and renders its page in full before the first byte is sent, so that an
// error never leaves half a page. It rejects requests from other sites and turns a panic into an
// error.
func (w *Web) run(do handler, r *request, body *bytes.Buffer) (a response, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if w.origins.Check(r.Request) != nil {
		return a, &problem{
			status: http.StatusForbidden,
			title:  "Form sent from another site",
			text:   "The service only accepts forms from its own pages. Nothing was changed.",
		}
	}
	a, err = do(r)
	if err = w.acknowledge(r, &a, err); err == nil && a.page != nil {
		err = a.page.Render(r.Context(), body)
	}
	if errors.Is(err, store.ErrBusy) {
		w.store.Reject(r.Context(), r.program)
		err = &problem{status: http.StatusServiceUnavailable, title: "Try again in a few seconds", text: "Too many pages are loading.",
			again: r.Method == http.MethodGet, retryAfter: busyRetry}
	}
	return a, err
}

// acknowledge waits until the response to a form may report a change as stored, see
// [store.Replica.Acknowledge]. An error can also depend on stored changes, such as a deleted
// record. It returns the error to respond with.
func (w *Web) acknowledge(r *request, a *response, err error) error {
	var p *problem
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead || a.session:
		return err
	case err == nil && a.status >= http.StatusBadRequest:
		return nil
	case err != nil && !((r.admin != "" || r.portal.in()) && errors.As(err, &p) &&
		(p.status == http.StatusNotFound || p.status == http.StatusConflict)):
		return err
	}
	late := w.store.Replica().Acknowledge(r.Context())
	switch {
	case late == nil:
		return err
	case !isCallerError(late):
		return late
	}
	return &problem{
		status: http.StatusServiceUnavailable, retryAfter: 10 * time.Second,
		title: "Stored here, but not in the replica yet",
		text: "The change is stored on this host, but the replica did not confirm it in time. If this host is lost before the replica has " +
			"it, the change is lost. Check whether the change is there before you repeat it.",
	}
}
