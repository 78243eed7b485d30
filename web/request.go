package web

import (
	"net/http"
	"net/url"
	"time"

	"service/web/ui"
	"service/webhook"
)

// request is what a handler is asked: the request, and what is known of whoever
// asks. It belongs to one handler, until that returns.
type request struct {
	*http.Request
	id      string   // of the request: shown where something failed, and logged
	clock   ui.Clock // all times of a page are told by it
	theme   ui.Theme
	keys    bool            // the keyboard is listened to
	admin   string          // the email of who is signed in, "" when nobody is
	session webhook.Session // and with which session
	program string          // the program that is looked at: the parameter program, "" for all
	note    *ui.Note        // what came of the POST before, shown once

	programs []string // that an admin can choose from; see manyPrograms
}

func (w *Web) newRequest(r *http.Request, id string) *request {
	p := readPreferences(r)
	// A query that cannot be read has no program; the handler says so.
	values, _ := url.ParseQuery(r.URL.RawQuery)
	req := &request{
		Request: r, id: id, clock: ui.Clock{Now: time.Now(), Zone: p.zone},
		theme: p.theme, keys: p.keys, program: ui.Visible(values.Get("program")), // as it is, when there can be one of that name
	}
	if r.Method == http.MethodGet {
		req.note = w.readNote(r)
	}
	return req
}

// byItself says whether a part of a page is read anew by the page, and not by
// its visitor: htmx reads only parts that wait for something (hx-get with a time),
// and says so. Links and forms are the browser's own.
func (r *request) byItself() bool {
	return r.Method == http.MethodGet && r.Header.Get("HX-Request") == "true"
}

// listing parses the address of a list page; see parseListing. Its error is a
// problem: the address itself cannot be read.
func (r *request) listing(l *webhook.List, own ...string) (*ui.Listing, error) {
	v, err := ui.ParseListing(r.URL, r.clock, l, own...)
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, title: "This address cannot be read", text: "Its query has an escape that is not valid."}
	}
	return v, nil
}

// The addresses of records. The id of an event is unique in its program alone.
func subscriptionPath(id string) string { return "/subscriptions/" + url.PathEscape(id) }

func deliveryPath(id string) string { return "/deliveries/" + url.PathEscape(id) }

func eventPath(programID, id string) string {
	return "/events/" + url.PathEscape(programID) + "/" + url.PathEscape(id)
}

func eventTypePath(name string) string { return "/event-types/" + url.PathEscape(name) }

func tokenPath(id string) string { return "/tokens/" + url.PathEscape(id) }
