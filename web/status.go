package web

import (
	"context"
	"sync"
	"time"

	"service/store"
	"service/web/ui"
)

// statusKept is how long a status is cached: every page shows it and refreshes it every few
// seconds.
const statusKept = time.Second

// statusCache caches the status of the service.
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
	if s.Trouble, err = h.trouble(); err != nil {
		return nil, err
	}
	if s.Incidents, err = h.store.Incidents().CountOpen(ctx, ""); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // the canceled context may be why the service seems not ready
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.status = time.Now(), s
	return &s, nil
}

// trouble names a problem that does not affect readiness, "" for none.
func (h *site) trouble() (string, error) {
	if h.hold() != nil {
		return "Deliveries held", nil
	}
	disk, err := h.store.Figures().Disk()
	replica := h.store.Replica().Status()
	switch {
	case err != nil:
		return "", err
	case disk.Low:
		return "Disk nearly full", nil
	case replica.State == store.ReplicaFailing:
		return "Replica failing", nil
	}
	return "", nil
}

// showStatus renders the part of every page that shows the state of the service.
func (h *incidentPages) showStatus(r *request) (response, error) {
	s, err := h.status(r.Context())
	if err != nil {
		return response{}, err
	}
	return response{page: ui.StatusParts(s)}, nil
}
