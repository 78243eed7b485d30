package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"service/webhook"
)

// StandbyConfig configures the handler of a standby. All fields must be set.
type StandbyConfig struct {
	Status   func() StandbyStatus
	Page     http.Handler         // answers browsers, with 503, and serves what the page loads
	IsAsset  func(string) bool    // reports whether Page serves a path with 200
	Registry *prometheus.Registry // exported by /metrics
	// MayReadMetrics reports whether a token may read the metrics.
	MayReadMetrics func(ctx context.Context, secret string) bool
}

// StandbyStatus is the state of a node that is not the primary.
type StandbyStatus struct {
	Primary     string   // host of the node that holds the lease, "" if unknown
	LagSeconds  *float64 // time since the copy was known to be complete; nil without a copy
	CanTakeOver bool
	Reason      string   // why it cannot take over, or what it waits for; "" for nothing
	Warning     string   // what else is wrong, without preventing a takeover; "" for nothing
	OldData     []string // what exists only in directories of earlier tenures
}

// Detail describes the status in one line.
func (s *StandbyStatus) Detail() string {
	text := "This node is a standby"
	if s.Primary != "" {
		text += "; the primary is " + s.Primary
	}
	if s.Reason != "" {
		text += ". " + s.Reason
	}
	if s.Warning != "" {
		text += ". " + s.Warning
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	for _, old := range s.OldData {
		text += " " + old + "."
	}
	return text
}

// standbyRecord is the response of a standby to /readyz.
type standbyRecord struct {
	errorRecord
	Role        string   `json:"role"`
	Primary     string   `json:"primary,omitempty"`
	LagSeconds  *float64 `json:"lag_seconds"` // null without a copy
	CanTakeOver bool     `json:"can_take_over"`
	OldData     []string `json:"old_data,omitempty"`
}

// NewStandby returns the handler of a standby. /healthz succeeds, /readyz is 503 with the status,
// /metrics serves the same readers as on a primary, and everything else is 503.
func NewStandby(cfg StandbyConfig) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		get := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch path := r.URL.Path; {
		case path == "/healthz" && get:
			writeStandby(w, http.StatusOK, struct {
				Data healthRecord `json:"data"`
			}{healthRecord{Status: "alive"}})
		case path == metricsPath && get && cfg.mayReadMetrics(r):
			cfg.metrics(w)
		case path == metricsPath && get:
			w.Header().Set("WWW-Authenticate", `Bearer realm="service"`)
			writeStandby(w, http.StatusUnauthorized, newErrorRecord(webhook.NewError(webhook.CodeUnauthenticated,
				"The metrics of a standby need a token with the scope metrics.read and without a program, which its copy of the data has.")))
		case cfg.IsAsset(path) && get:
			cfg.Page.ServeHTTP(w, r)
		case path != "/readyz" && get && !strings.HasPrefix(path, "/v2") && acceptsHTML(r):
			w.Header().Set("Retry-After", retryAfter)
			cfg.Page.ServeHTTP(w, r)
		default:
			s := cfg.Status()
			w.Header().Set("Retry-After", retryAfter)
			writeStandby(w, http.StatusServiceUnavailable, standbyRecord{
				newErrorRecord(webhook.NewError(webhook.CodeUnavailable, s.Detail())),
				"standby", s.Primary, s.LagSeconds, s.CanTakeOver, s.OldData,
			})
		}
	})
}

// acceptsHTML reports whether a request comes from a browser.
func acceptsHTML(r *http.Request) bool {
	return slices.ContainsFunc(r.Header.Values("Accept"), func(v string) bool { return strings.Contains(v, "text/html") })
}

func writeStandby(w http.ResponseWriter, status int, record any) {
	text, err := json.Marshal(record)
	if err != nil {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	w.Write(append(text, '\n')) // the client may have disconnected
}

func (cfg *StandbyConfig) mayReadMetrics(r *http.Request) bool {
	if len(r.Header["Authorization"]) == 0 {
		return isLocal(r)
	}
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && cfg.MayReadMetrics(r.Context(), secret)
}

func (cfg *StandbyConfig) metrics(w http.ResponseWriter) {
	families, err := cfg.Registry.Gather()
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if encodeErr := encoder.Encode(family); encodeErr != nil {
			err = encodeErr
		}
	}
	if err != nil && text.Len() == 0 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", metricsType)
	w.Write(text.Bytes()) // the scraper may have disconnected
}
