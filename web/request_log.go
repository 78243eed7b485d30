package web

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"service/assets"
)

// responseRecorder records the parts of a response that the request log reports.
type responseRecorder struct {
	http.ResponseWriter
	status int // 0 before the header was written
	bytes  int
	admin  string // the email of the signed-in admin
}

// Unwrap supports [http.ResponseController].
func (c *responseRecorder) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *responseRecorder) WriteHeader(status int) {
	if c.status == 0 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *responseRecorder) Write(b []byte) (int, error) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	n, err := c.ResponseWriter.Write(b)
	c.bytes += n
	return n, err
}

// logRequest writes the log line of a request. The route is the pattern of the path, since the path
// may contain the code of a sign-in link; "-" if no route matches. Requests for assets are logged
// at debug level.
func (w *Web) logRequest(c *responseRecorder, r *http.Request, took time.Duration) {
	level := slog.LevelInfo
	if strings.HasPrefix(r.URL.Path, assets.Prefix) {
		level = slog.LevelDebug
	}
	ctx := r.Context()
	if !w.logger.Enabled(ctx, level) {
		return
	}
	route := r.Pattern
	if _, path, ok := strings.Cut(route, " "); ok {
		route = path
	}
	switch {
	case route == "/{$}":
		route = "/"
	case route == "", route == "/":
		route = "-"
	}
	status := c.status
	if status == 0 {
		status = http.StatusOK
	}
	attributes := []slog.Attr{
		slog.String("method", r.Method), slog.String("route", route), slog.Int("status", status), slog.Duration("duration", took),
		slog.Int("bytes", c.bytes), slog.String("request_id", c.Header().Get(requestIDHeader)), slog.String("remote", r.RemoteAddr),
	}
	if c.admin != "" {
		attributes = append(attributes, slog.String("admin", c.admin))
	}
	w.logger.LogAttrs(ctx, level, "request", attributes...)
}
