package web

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"service/assets"
	"service/web/ui"
	"service/webhook"
)

// answer is what a handler came to: a page, the way to another one, a file or a
// stream of events. One of page, location, file and stream is set.
type answer struct {
	page   templ.Component
	status int  // of the page, 0 for 200
	secret bool // the page shows a secret: it is not kept by the browser, nor compressed

	location string   // where to go on (303)
	note     *ui.Note // what the page there says once, nil for nothing

	file   *file
	stream func(*stream) error // runs until the visitor leaves; see stream

	cookies    []*http.Cookie // to set
	retryAfter time.Duration  // with 429 and 503
}

// file is something to be kept by the visitor, written as it is made.
type file struct {
	name        string // that a browser suggests: plain ASCII without quotes
	contentType string
	write       func(io.Writer) error // an error cuts the file off, so that the visitor sees that it is not whole
}

// handler works out the answer to a request. Its error is a *problem, which the
// visitor is told of, or a fault of the service, which the log is told of.
type handler func(*request) (answer, error)

// by is a handler for each method that a path has; get answers HEAD too.
type by struct{ get, post handler }

func (b by) handle(r *request) (answer, error) {
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

const requestIDHeader = "X-Request-Id"

// policy lets a page load its own style sheet, script and pictures, ask its own
// service, send forms to it, and nothing else: nothing inline, and no eval.
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
	seen := &watched{ResponseWriter: rw}
	began := time.Now()
	defer func() { w.logRequest(seen, r, time.Since(began)) }() // also when it is cut off
	w.mux.ServeHTTP(seen, r)
}

// serve writes what a handler came to. It is the one place that does, and the
// one that logs.
func (w *Web) serve(do handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, plain *http.Request) {
		r := w.newRequest(plain, rw.Header().Get(requestIDHeader))
		var body bytes.Buffer
		a, err := w.try(do, r, &body)
		if seen, ok := rw.(*watched); ok {
			seen.admin = r.admin
		}
		if err != nil {
			w.fail(rw, r, err)
			return
		}
		for _, c := range a.cookies {
			http.SetCookie(rw, c)
		}
		switch {
		case a.location != "":
			if a.note != nil {
				http.SetCookie(rw, w.keep(a.note))
			}
			rw.Header().Set("Location", a.location)
			rw.WriteHeader(http.StatusSeeOther)
		case a.file != nil:
			w.send(rw, r, a.file)
		case a.stream != nil:
			w.follow(rw, r, a.stream)
		default:
			if r.note != nil {
				http.SetCookie(rw, w.noteCookie("", -1))
			}
			w.headers(rw, a.status, a.retryAfter)
			w.write(rw, r, cmp.Or(a.status, http.StatusOK), a.secret, &body)
		}
	})
}

// fail tells the visitor of an error, and the log unless it is the visitor's.
func (w *Web) fail(rw http.ResponseWriter, r *request, err error) {
	var p *problem
	if !errors.As(err, &p) {
		if r.Context().Err() != nil {
			return // the visitor has left, which is why it failed
		}
		w.log(r, err)
		p = &problem{
			status: http.StatusInternalServerError, again: r.Method == http.MethodGet,
			title: "This page could not be loaded",
			text:  "The fault is the service's own. Its log says more, under the request id below.",
		}
	}
	if p.allow != "" {
		rw.Header().Set("Allow", p.allow)
	}
	w.headers(rw, p.status, p.retryAfter)
	var body bytes.Buffer
	if err := problemPage(w.frame(r, p.title), p, r.id).Render(r.Context(), &body); err != nil {
		body.Reset()
		body.WriteString(http.StatusText(p.status))
	}
	w.write(rw, r, p.status, false, &body)
}

// headers sets what an answer of some statuses must have.
func (w *Web) headers(rw http.ResponseWriter, status int, retryAfter time.Duration) {
	if status == http.StatusUnauthorized {
		rw.Header().Set("WWW-Authenticate", "Session") // a scheme
	}
	if retryAfter > 0 {
		rw.Header().Set("Retry-After", strconv.FormatInt(int64((retryAfter+time.Second-1)/time.Second), 10))
	}
}

// write sends a page. A list is the same words over and over, and is a tenth of
// its size when it is compressed. A page with a secret is not, since it may
// have text beside it that another site could choose, whose length would give
// the secret away; and it is not kept either. Any other is kept by the
// browser, which asks each time whether it is still the same.
func (w *Web) write(rw http.ResponseWriter, r *request, status int, secret bool, body *bytes.Buffer) {
	h := rw.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Encoding, Cookie")
	if status == http.StatusOK && r.Method != http.MethodPost && !secret && r.note == nil {
		hash := sha256.Sum256(body.Bytes())
		tag := `W/"` + hex.EncodeToString(hash[:12]) + `"` // weak: it may be compressed or not
		h.Set("ETag", tag)
		h.Set("Cache-Control", "private, no-cache")
		if matches(r.Header.Get("If-None-Match"), tag) {
			rw.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if !secret && assets.AcceptsGzip(r.Header) {
		h.Set("Content-Encoding", "gzip")
		var small bytes.Buffer
		z := w.gzips.Get().(*gzip.Writer)
		z.Reset(&small) // a bytes.Buffer takes all
		z.Write(body.Bytes())
		z.Close()
		w.gzips.Put(z)
		body = &small
	}
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	rw.WriteHeader(status)
	rw.Write(body.Bytes()) // the visitor is gone if this fails
}

// matches says whether an If-None-Match has a tag (RFC 9110, 13.1.2).
func matches(field, tag string) bool {
	for one := range strings.SplitSeq(field, ",") {
		if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
			return true
		}
	}
	return false
}

// send writes a file as it is made.
func (w *Web) send(rw http.ResponseWriter, r *request, f *file) {
	h := rw.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Disposition", `attachment; filename="`+f.name+`"`)
	if r.Method == http.MethodHead {
		return
	}
	// A browser says at once that it takes the file, though its first line may have
	// to be looked for. A writer that cannot flush does without.
	_ = http.NewResponseController(rw).Flush()
	if err := f.write(&patient{rw, http.NewResponseController(rw)}); err != nil {
		if r.Context().Err() == nil {
			w.log(r, err)
		}
		panic(http.ErrAbortHandler) // what was sent so far must not look whole
	}
}

// patient gives each write the time that a whole answer has otherwise: what is
// long takes long, and only a visitor who takes nothing is given up.
type patient struct {
	to  io.Writer
	ctl *http.ResponseController
}

func (p *patient) Write(b []byte) (int, error) {
	if err := p.ctl.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return p.to.Write(b)
}

// writeTimeout is how long one write to a visitor may take.
const writeTimeout = 30 * time.Second

// try runs a handler, unless another site sent the request, and renders its
// page in full before the first byte leaves: a page that fails half way is an
// error page, not half a page. It turns a panic into an error.
func (w *Web) try(do handler, r *request, body *bytes.Buffer) (a answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if w.origins.Check(r.Request) != nil {
		return a, &problem{
			status: http.StatusForbidden,
			title:  "This was sent from another site",
			text:   "Only a page of this service may do that. Nothing was done.",
		}
	}
	if a, err = do(r); err == nil && a.page != nil {
		err = a.page.Render(r.Context(), body)
	}
	return a, err
}
