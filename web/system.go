package web

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"service/store"
	"service/store/doctor"
	"service/store/record"
	"service/webhook"
)

// systemPages are the pages about the service itself.
type systemPages struct{ *site }

// Certificate is a TLS certificate of the service.
type Certificate struct {
	Names  []string
	Issuer string
	Begins time.Time // zero while there is none
	Ends   time.Time // zero while there is none

	Failing time.Time // start of the failures to obtain or renew it; zero for none
	Fault   string    // the reason, set with Failing
}

// Setting is a flag of the running service; secrets are already masked.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // source of the value: "flag", "default", the variable, or the file and its line
}

// systemRecord is the data of the system page.
type systemRecord struct {
	store        store.System
	disk         doctor.Disk
	forecast     doctor.Forecast
	replica      store.ReplicaStatus
	hold         *store.Hold // nil for none
	notReady     string
	up           time.Duration
	retention    string
	delivered    string // retention of successful deliveries; "" for the general retention
	certificates []Certificate
	settings     []Setting
	checks       []doctor.Finding
	losses       []record.Loss
	lossTotals   record.LossTotals
	driver       string
	text         string // the page as text, to copy
}

func (h *systemPages) show(r *request) (response, error) {
	var s systemRecord
	var err error
	if s.store, err = h.store.Figures().System(r.Context()); err != nil {
		return response{}, err
	}
	if s.disk, err = h.store.Figures().Disk(); err != nil {
		return response{}, err
	}
	if s.forecast, err = h.store.Figures().Forecast(r.Context()); err != nil {
		return response{}, err
	}
	if s.losses, s.lossTotals, err = h.store.Subscriptions().Losses(r.Context(), healthRows); err != nil {
		return response{}, err
	}
	if h.cfg.Ready != nil {
		if err := h.cfg.Ready(r.Context()); err != nil {
			s.notReady = err.Error()
		}
	}
	s.replica, s.hold = h.store.Replica().Status(), h.hold()
	s.up, s.settings, s.driver = r.clock.Now.Sub(h.cfg.Started), h.cfg.Settings, store.DriverName
	for _, set := range s.settings {
		switch set.Name {
		case "retention":
			s.retention = spacedUnit(set.Value)
		case "retention-delivered":
			s.delivered = spacedUnit(set.Value)
		}
	}
	if h.cfg.Certificates != nil {
		s.certificates = h.cfg.Certificates()
	}
	if h.cfg.Checks != nil {
		s.checks = h.cfg.Checks(r.Context())
	}
	s.text = h.supportText(&s)
	return response{page: systemPage(h.frame(r, "System"), h.site, &s)}, nil
}

// checkBadge returns the state for displaying a check.
func checkBadge(l doctor.Level) string {
	switch l {
	case doctor.LevelOK:
		return "success"
	case doctor.LevelWarn:
		return "retryable"
	}
	return "failed"
}

// supportText describes the service in plain text for a support request. It omits secrets, names
// of partners and URLs.
func (h *systemPages) supportText(s *systemRecord) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-14s "+format+"\n", append([]any{name}, args...)...)
	}
	line("version", "%s, %s %s/%s", h.cfg.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	line("up", "%s", s.up.Round(time.Second))
	ready := s.notReady
	if ready == "" {
		ready = "yes"
	}
	line("ready", "%s", ready)
	line("database", "SQLite %s (%s), schema %d, %d bytes, %d free, WAL %d bytes", s.store.SQLite, s.driver, s.store.Schema, s.store.Database,
		s.store.Free, s.store.WAL)
	line("commits", "%d, %.1f writes and %.1f ms per commit, %.0f failed", s.store.Commits, s.store.Writes, s.store.Seconds*1000,
		s.store.Failures)
	line("disk", "%d of %d bytes free, %d must be, low: %v", s.disk.Free, s.disk.Size, s.disk.MinFree, s.disk.Low)
	line("forecast", "%s", s.forecast)
	line("replica", "%s, lag %s, last success %s", s.replica.State, s.replica.Lag.Round(time.Millisecond), timeOrNever(s.replica.LastSuccess))
	if s.replica.State != store.ReplicaOff {
		line("verified", "%s, damage found %s", timeOrNever(s.replica.Verified.Time), timeOrNever(s.replica.Verified.Failed))
	}
	line("removed", "%d events, %d deliveries, %d expired, %d lost", s.store.Swept.Events, s.store.Swept.Deliveries, s.store.Swept.Expired,
		s.store.Swept.Lost)
	for _, c := range s.certificates {
		until := "none yet"
		if !c.Ends.IsZero() {
			until = "until " + webhook.FormatTime(c.Ends)
		}
		if c.Fault != "" {
			until += ", failing since " + webhook.FormatTime(c.Failing)
		}
		line("certificate", "%s", until)
	}
	for _, c := range s.checks {
		if c.Level != doctor.LevelOK {
			line("check", "%s %s: %s", c.Level, c.Check, c.Detail)
		}
	}
	for _, set := range s.settings {
		line("--"+set.Name, "%s (%s)", set.Value, set.Source)
	}
	return b.String()
}

// releaseHold resumes deliveries after a restore.
func (h *systemPages) releaseHold(r *request) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error { return sw.Release(r.actor()) })
	if err != nil {
		return response{}, asProblem(err)
	}
	return done("/system", "Deliveries resumed.")
}

// spacedUnit formats a duration for pages: 30 d for 30d. It returns any other flag value unchanged.
func spacedUnit(value string) string {
	n := len(value) - 1
	if n < 1 || strings.Trim(value[:n], "0123456789") != "" || !strings.Contains("dhms", value[n:]) {
		return value
	}
	return value[:n] + " " + value[n:]
}
