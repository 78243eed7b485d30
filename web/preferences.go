package web

import (
	"net/http"
	"net/url"
	"strings"
	"time"
	_ "time/tzdata" // so that every machine knows the same time zones

	"service/web/ui"
)

// preferences are what a browser keeps of how its visitor wants the pages.
type preferences struct {
	theme ui.Theme
	zone  *time.Location // nil is UTC
	keys  bool           // the keyboard is listened to
}

const preferencesCookie = "preferences"

// readPreferences takes what it can of the cookie, which anyone can write.
func readPreferences(r *http.Request) preferences {
	p := preferences{keys: true}
	c, err := r.Cookie(preferencesCookie)
	if err != nil {
		return p
	}
	values, err := url.ParseQuery(c.Value)
	if err != nil {
		return p
	}
	switch t := ui.Theme(values.Get("theme")); t {
	case ui.ThemeLight, ui.ThemeDark:
		p.theme = t
	}
	p.zone, _ = readZone(values.Get("zone"))
	p.keys = values.Get("keys") != "off"
	return p
}

// readZone reads the name of a time zone; "" and UTC are nil.
func readZone(name string) (*time.Location, bool) {
	if name == "" || name == "UTC" {
		return nil, true
	}
	if name == "Local" || len(name) > 64 { // Local is the machine's own, not the visitor's
		return nil, false
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, false
	}
	return zone, true
}

func (p preferences) String() string {
	values := make(url.Values)
	if p.theme != ui.ThemeSystem {
		values.Set("theme", string(p.theme))
	}
	if p.zone != nil {
		values.Set("zone", p.zone.String())
	}
	if !p.keys {
		values.Set("keys", "off")
	}
	return values.Encode()
}

// cookie returns the cookie that keeps p for a year; secure, over HTTPS alone.
func (p preferences) cookie(secure bool) *http.Cookie {
	c := &http.Cookie{
		Name: preferencesCookie, Value: p.String(), Path: "/", MaxAge: 365 * 24 * 60 * 60,
		Secure: secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	if c.Value == "" {
		c.MaxAge = -1
	}
	return c
}

// read takes the preferences that a form has. It reports whether the time zone is known.
func (p *preferences) read(form url.Values) bool {
	if form.Has("theme") {
		switch t := ui.Theme(form.Get("theme")); t {
		case ui.ThemeSystem, ui.ThemeLight, ui.ThemeDark:
			p.theme = t
		}
	}
	if form.Has("zone") {
		zone, ok := readZone(strings.TrimSpace(form.Get("zone")))
		if !ok {
			return false
		}
		p.zone = zone
	}
	if form.Has("keys") {
		p.keys = form.Get("keys") != "off"
	}
	return true
}

// showPreferences shows the page of the same name.
func (h *accountPages) showPreferences(r *request) (response, error) {
	return response{page: preferencesPage(h.frame(r, "Preferences"), readPreferences(r.Request), "", "")}, nil
}

// savePreferences takes the preferences that a form has fields for, and leaves the
// others. The form's own page is where it leads back to.
func (h *accountPages) savePreferences(r *request) (response, error) {
	if err := r.ParseForm(); err != nil {
		return response{}, &problem{status: http.StatusBadRequest, title: "Invalid form", text: "Nothing was changed."}
	}
	p := readPreferences(r.Request)
	if !p.read(r.PostForm) {
		return response{
			status: http.StatusUnprocessableEntity,
			page: preferencesPage(h.frame(r, "Preferences"), p, strings.TrimSpace(r.PostForm.Get("zone")),
				"must be UTC or the name of a time zone, such as Europe/Berlin"),
		}, nil
	}
	return response{location: localPath(r.PostForm.Get("back"), "/preferences"), cookies: []*http.Cookie{p.cookie(h.cfg.Secure)}}, nil
}
