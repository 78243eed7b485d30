package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"service/webhook"
)

// request is what a handler is asked: the request, and what is known of whoever
// asks. It belongs to one handler, until that returns.
type request struct {
	*http.Request
	id      string // of the request: shown where something failed, and logged
	clock   clock  // all times of a page are told by it
	theme   theme
	keys    bool            // the keyboard is listened to
	admin   string          // the email of who is signed in, "" when nobody is
	session webhook.Session // and with which session
	program string          // the program that is looked at: the parameter program, "" for all
	note    *note           // what came of the POST before, shown once

	programs []string // that an admin can choose from; see manyPrograms
}

func (w *Web) newRequest(r *http.Request, id string) *request {
	p := readPreferences(r)
	// A query that cannot be read has no program; the handler says so.
	values, _ := url.ParseQuery(r.URL.RawQuery)
	req := &request{
		Request: r, id: id, clock: clock{now: time.Now(), zone: p.zone},
		theme: p.theme, keys: p.keys, program: visible(values.Get("program")), // as it is, when there can be one of that name
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

// The parameters of a list page that are not the API's own.
const (
	programParameter = "program" // the program switch
	spanParameter    = "span"    // the time up to now, such as 24h; see spans
)

type spanPreset struct {
	name, label string
	long        time.Duration
}

// spans are the presets of a list's time, by their name in the URL.
var spans = []spanPreset{
	{"1h", "1 h", time.Hour},
	{"24h", "24 h", 24 * time.Hour},
	{"7d", "7 d", 7 * 24 * time.Hour},
	{"30d", "30 d", 30 * 24 * time.Hour},
}

// listing is a list as a page was asked for it: the query that package store
// takes, and how the page's address spelt it.
type listing struct {
	list   *webhook.List
	query  webhook.ListQuery
	path   string         // of the page
	values url.Values     // as they were given, without those left empty; never changed
	fault  *webhook.Error // why the query cannot be answered, nil when it can
}

// listing reads what a list page is asked for. Its address has the parameters
// of the API, and may have program and span besides; a form sends those that
// were left empty too, which say nothing. A time without a zone, as a browser's
// field gives it, is one of the visitor's clock.
//
// The error is a problem: the address itself cannot be read. What it asks for
// and cannot be had is the listing's fault, for the page to show at its form.
// Own are parameters of the page that are not the list's.
func (r *request) listing(l *webhook.List, own ...string) (*listing, error) {
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, title: "This address cannot be read", text: "Its query has an escape that is not valid."}
	}
	v := &listing{list: l, path: r.URL.Path, values: make(url.Values)}
	for name, values := range given {
		values = slices.DeleteFunc(slices.Clone(values), func(s string) bool { return strings.TrimSpace(s) == "" })
		if len(values) > 0 {
			v.values[name] = values
		}
	}
	asked := make(url.Values)
	for name, values := range v.values {
		switch {
		case name == programParameter || name == spanParameter || slices.Contains(own, name):
		case strings.HasSuffix(name, ".from]") || strings.HasSuffix(name, ".to]"):
			for _, s := range values {
				asked.Add(name, r.clock.absolute(s))
			}
		default:
			asked[name] = values
		}
	}
	if field := v.timeField(); field != "" && v.values.Has(spanParameter) {
		i := slices.IndexFunc(spans, func(s spanPreset) bool { return s.name == v.values.Get(spanParameter) })
		if i < 0 {
			v.fault = webhook.Invalid(webhook.Validation{Code: webhook.InvalidValue, Parameter: spanParameter, Detail: "must be 1h, 24h, 7d or 30d"})
			return v, nil
		}
		asked.Set("filter["+field+".from]", webhook.FormatTime(r.clock.now.Add(-spans[i].long)))
		asked.Del("filter[" + field + ".to]")
	}
	v.query, v.fault = l.Parse(asked)
	return v, nil
}

// loaded takes what became of reading the rows of a list, to be shown inside of
// its page. An error that the caller made is the listing's fault; any other that
// is not the visitor's leaving is logged, and failed is the id it is logged
// under, for the page to show in place of the rows.
func (w *Web) loaded(r *request, v *listing, err error) (failed string, status int, _ error) {
	switch {
	case err == nil:
		return "", 0, nil
	case errors.As(err, &v.fault):
		return "", http.StatusBadRequest, nil
	case r.Context().Err() != nil:
		return "", 0, err
	}
	w.log(r, err)
	return r.id, http.StatusInternalServerError, nil
}

// timeField is the property whose time the presets are of: the first that the
// list can be filtered by, "" for none.
func (v *listing) timeField() string {
	for _, f := range v.list.Filters {
		if f.Kind == webhook.FilterTime {
			return f.Name
		}
	}
	return ""
}

// filtered says whether the list is narrowed by anything but the program.
func (v *listing) filtered() bool {
	for name := range v.values {
		if strings.HasPrefix(name, "filter") || name == spanParameter {
			return true
		}
	}
	return false
}

// with returns the address of the same list with one parameter changed, from
// its beginning; no value leaves the parameter out.
func (v *listing) with(name string, values ...string) string {
	changed := make(url.Values)
	for n, given := range v.values {
		if n != name && n != "page[cursor]" && n != "page[number]" {
			changed[n] = given
		}
	}
	if len(values) > 0 {
		changed[name] = values
	}
	return address(v.path, changed)
}

// page returns the address of another page of the same list: a feed's by its
// cursor, another's by its number. Of a span it fixes the beginning, since a
// cursor holds only for the very same selection.
func (v *listing) page(cursor string, number int) string {
	q := v.query
	q.Cursor, q.Number = cursor, max(number, 1)
	values := v.list.Values(&q)
	if p := v.values.Get(programParameter); p != "" {
		values.Set(programParameter, p)
	}
	return address(v.path, values)
}

// clear returns the address of the list without its filters.
func (v *listing) clear() string {
	values := make(url.Values)
	for _, name := range []string{programParameter, "sort", "page[size]"} {
		if given, ok := v.values[name]; ok {
			values[name] = given
		}
	}
	return address(v.path, values)
}

// address joins a path and a query, whose brackets are left readable.
func address(path string, values url.Values) string {
	if len(values) == 0 {
		return path
	}
	return path + "?" + strings.NewReplacer("%5B", "[", "%5D", "]").Replace(values.Encode())
}

// inProgram returns a path with the program that is looked at.
func inProgram(path, program string) string {
	if program == "" {
		return path
	}
	return address(path, url.Values{programParameter: {program}})
}

// The addresses of records. The id of an event is unique in its program alone.
func subscriptionPath(id string) string { return "/subscriptions/" + url.PathEscape(id) }
func deliveryPath(id string) string     { return "/deliveries/" + url.PathEscape(id) }
func eventPath(programID, id string) string {
	return "/events/" + url.PathEscape(programID) + "/" + url.PathEscape(id)
}
func eventTypePath(name string) string { return "/event-types/" + url.PathEscape(name) }
func tokenPath(id string) string       { return "/tokens/" + url.PathEscape(id) }
