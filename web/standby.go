package web

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"service/assets"
	"service/web/ui"
)

// StandbyPage is the data of the standby page.
type StandbyPage struct {
	Primary     string // host of the primary, "" if unknown
	Lag         string // "" without a complete copy
	CanTakeOver bool
	Reason      string   // why the node cannot take over, or what it waits for; "" for nothing
	Warning     string   // what else is wrong, without preventing a takeover; "" for nothing
	OldData     []string // what exists only in directories of earlier tenures
}

// standbySite serves the standby page at every path.
type standbySite struct {
	version string
	status  func() StandbyPage
	assets  *assets.Assets
}

// NewStandby returns a handler that answers every request with 503 and a page about the standby,
// and serves the page's assets. The page needs no session.
func NewStandby(version string, status func() StandbyPage) http.Handler {
	return &standbySite{version, status, assets.New()}
}

// IsAsset reports whether a path belongs to a file that a page loads.
func IsAsset(path string) bool { return strings.HasPrefix(path, assets.Prefix) }

// ServeHTTP implements [http.Handler].
func (s *standbySite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	if IsAsset(r.URL.Path) {
		s.assets.ServeHTTP(w, r)
		return
	}
	p := readPreferences(r)
	f := ui.Frame{
		Title: "Standby", Stylesheet: s.assets.Path("style.css"), Script: s.assets.Path("app.js"), Icon: s.assets.Path("favicon.svg"),
		Version: s.version, Theme: p.theme, Clock: ui.Clock{Now: time.Now(), Zone: p.zone},
	}
	var body bytes.Buffer
	if err := standbyPage(f, s.status()).Render(r.Context(), &body); err != nil {
		body.Reset()
		body.WriteString(http.StatusText(http.StatusServiceUnavailable))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(http.StatusServiceUnavailable)
	w.Write(body.Bytes()) // fails only if the visitor disconnected
}
