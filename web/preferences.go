package web

import (
	"net/http"
	"net/url"
	"strings"
	"time"
	_ "time/tzdata" // embeds the time zones: not every machine has them

	"service/web/ui"
)

// preferences are the display settings of a browser, stored in its cookie.
type preferences struct {
	theme ui.Theme
	zone  *time.Location // nil is UTC
	keys  bool           // keyboard shortcuts are on
}

const preferencesCookie = "preferences"

// readPreferences reads the valid parts of the cookie, which anyone can forge.
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

// readZone reads the name of a time zone. It returns nil for "" and UTC.
func readZone(name string) (*time.Location, bool) {
	if name == "" || name == "UTC" {
		return nil, true
	}
	if name == "Local" || len(name) > 64 { // Local is the zone of the server
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

// cookie returns the cookie that keeps p for a year; secure restricts it to HTTPS.
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

// read takes the preferences that a form contains. It reports whether the time zone is known.
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

func (h *accountPages) showPreferences(r *request) (response, error) {
	return response{page: preferencesPage(h.frame(r, "Preferences"), readPreferences(r.Request), "", "")}, nil
}

// savePreferences saves the preferences for which the form has fields and keeps the others. It
// redirects to the page with the form.
func (h *accountPages) savePreferences(r *request) (response, error) {
	form := r.PostForm
	p := readPreferences(r.Request)
	if !p.read(form) {
		return response{
			status: http.StatusUnprocessableEntity,
			page: preferencesPage(h.frame(r, "Preferences"), p, strings.TrimSpace(form.Get("zone")),
				"must be UTC or the name of a time zone, such as Europe/Berlin"),
		}, nil
	}
	return response{location: localPath(form.Get("back"), "/preferences"), cookies: []*http.Cookie{p.cookie(h.cfg.Secure)}}, nil
}
