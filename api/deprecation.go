package api

import (
	"net/http"
	"strconv"
	"time"
)

// deprecation marks a route that will be removed. Every response of the route has the
// headers of [deprecation.header], whatever its status. Nothing else changes.
type deprecation struct {
	since  time.Time // when it was deprecated
	sunset time.Time // when it may be removed, at least minSunset later
	docs   string    // URL reference of the replacement
}

// minSunset is the minimum time that a deprecated route keeps working, in months.
const minSunset = 12

// header adds the Deprecation, Sunset and Link headers (RFC 9745, RFC 8594). A nil
// deprecation adds nothing.
func (d *deprecation) header(h http.Header) {
	if d == nil {
		return
	}
	h.Set("Deprecation", "@"+strconv.FormatInt(d.since.Unix(), 10))
	h.Set("Sunset", d.sunset.UTC().Format(http.TimeFormat))
	h.Add("Link", "<"+d.docs+`>; rel="deprecation"; type="text/html"`)
}
