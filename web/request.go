package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// request is an HTTP request with the data that the handlers need. A handler must not keep it.
type request struct {
	*http.Request
	id      string   // of the request: shown with errors, and logged
	clock   ui.Clock // of the page: now, and the time zone
	theme   ui.Theme
	keys    bool            // keyboard shortcuts are on
	admin   string          // the email address, "" without a session
	session webhook.Session // the zero session without one
	secret  string          // in the cookie of the session
	need    webhook.Role    // minimum role of the route, or anyone
	portal  portalVisit     // of a portal page
	program string          // the parameter program, "" for all
	note    *ui.Note        // result of the previous POST, shown once; nil for none

	// loadFrame sets programs and status after a POST, since only the page of a rejected form shows
	// them; nil if they are set.
	loadFrame func()

	programs []string   // to choose from; at most ui.MaxProgramChoices
	status   *ui.Status // of the service; nil if it was not read
}

func (w *Web) newRequest(r *http.Request, id string) *request {
	p := readPreferences(r)
	// An invalid query has no program; the handler reports the error.
	values, _ := url.ParseQuery(r.URL.RawQuery)
	ctx := store.ForLookups(r.Context(), "") // until the session is known
	if inPortal(r) {
		ctx = ui.WithBase(ctx, portalBase)
	}
	r = r.WithContext(ctx)
	req := &request{
		Request: r, id: id, clock: ui.Clock{Now: time.Now(), Zone: p.zone},
		theme: p.theme, keys: p.keys, program: ui.Visible(values.Get("program")), // as received, if it is a possible program ID
	}
	if r.Method == http.MethodGet && !req.isBackground() {
		req.note = w.readNote(r)
	}
	return req
}

// isBackground reports whether the page's script made the request. htmx sets HX-Request, and loads
// only parts that refresh (hx-get with a time).
func (r *request) isBackground() bool {
	return r.Method == http.MethodGet && r.Header.Get("HX-Request") == "true"
}

// listing calls [ui.ParseListing] with the request's address. Its error is a problem.
func (r *request) listing(l *webhook.List, own ...string) (*ui.Listing, error) {
	v, err := ui.ParseListing(r.URL, r.clock, l, own...)
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, title: "Invalid address", text: "The query has an invalid % escape."}
	}
	return v, nil
}

// subscriptionPath returns the path of the subscription page.
func subscriptionPath(id string) string { return "/subscriptions/" + url.PathEscape(id) }

// deliveryPath returns the path of the delivery page.
func deliveryPath(id string) string { return "/deliveries/" + url.PathEscape(id) }

// eventPath returns the path of the event page. An event ID is unique only within its program.
func eventPath(programID, id string) string {
	return "/events/" + url.PathEscape(programID) + "/" + url.PathEscape(id)
}

// eventTypePath returns the path of the event type page.
func eventTypePath(name string) string { return "/event-types/" + url.PathEscape(name) }

// tokenPath returns the path of the token page.
func tokenPath(id string) string { return "/tokens/" + url.PathEscape(id) }

// maxForm bounds the body of a form, in bytes.
const maxForm = 64 << 10

// formUpTo reads the fields of a POST of at most max bytes. The error is a problem.
func (r *request) formUpTo(limit int64) (url.Values, error) {
	r.Body = http.MaxBytesReader(nil, r.Body, limit)
	err := r.ParseForm()
	if r.Context().Err() != nil {
		return nil, context.Cause(r.Context())
	}
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return nil, &problem{status: http.StatusRequestEntityTooLarge, title: "Form too large",
			text: "This form may have at most " + ui.ByteSize(limit) + ". Nothing was changed. Go back to shorten your input."}
	}
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, title: "Invalid form",
			text: "The form is incomplete or has an invalid % escape. Nothing was changed."}
	}
	return r.PostForm, nil
}
