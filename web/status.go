package web

import (
	"context"
	"sync"
	"time"

	"service/web/ui"
)

// statusKept is for how long the status of the service is reused: every page shows
// it, and asks for it again every few seconds.
const statusKept = time.Second

// statusCache is the status of the service as it was last read.
type statusCache struct {
	mu     sync.Mutex
	at     time.Time // zero: not read yet
	status ui.Status
}

// status returns the status of the service.
func (h *site) status(ctx context.Context) (*ui.Status, error) {
	c := &h.statuses
	c.mu.Lock()
	if !c.at.IsZero() && time.Since(c.at) < statusKept {
		defer c.mu.Unlock()
		status := c.status
		return &status, nil
	}
	c.mu.Unlock()
	var s ui.Status
	if h.cfg.Ready != nil {
		if err := h.cfg.Ready(ctx); err != nil {
			s.NotReady = err.Error()
		}
	}
	var err error
	if s.Incidents, err = h.store.Incidents().CountOpen(ctx, ""); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // which may be why it is not ready
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.status = time.Now(), s
	return &s, nil
}

// showStatus is the part of every page that says how the service is.
func (h *incidentPages) showStatus(r *request) (response, error) {
	s, err := h.status(r.Context())
	if err != nil {
		return response{}, err
	}
	return response{page: ui.StatusBar(s)}, nil
}
