package api

import (
	"net/http"
	"strconv"
	"time"
)

// deprecation marks a route that is going to be removed. Every answer of the
// route says so, whatever its status; nothing else about it changes.
type deprecation struct {
	since  time.Time // from when on it is deprecated
	sunset time.Time // from when on it may be gone: at least minSunset later
	docs   string    // a URL reference: what to use instead
}

// minSunset is how long a deprecated route works on at the least, in months.
const minSunset = 12

// header says when a route ends and what to use instead: RFC 9745 and RFC 8594.
// A nil deprecation adds nothing.
func (d *deprecation) header(h http.Header) {
	if d == nil {
		return
	}
	h.Set("Deprecation", "@"+strconv.FormatInt(d.since.Unix(), 10))
	h.Set("Sunset", d.sunset.UTC().Format(http.TimeFormat))
	h.Add("Link", "<"+d.docs+`>; rel="deprecation"; type="text/html"`)
}
