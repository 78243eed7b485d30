package api

import (
	"errors"
	"math"

	"service/store"
	"service/webhook"
)

type healthRecord struct {
	Status  string         `json:"status"`
	Replica *replicaRecord `json:"replica,omitempty"`
}

// replicaRecord says how the copy of the database elsewhere does, where there is
// one. A service is as ready without.
type replicaRecord struct {
	State         string  `json:"state"`
	LagSeconds    float64 `json:"lag_seconds"`
	LastSuccessAt string  `json:"last_success_at,omitempty"`
	LastSuccess   string  `json:"last_success,omitempty"` // deprecated: LastSuccessAt
}

// statusHandlers serve the routes that say how the service is: /healthz, /readyz
// and /metrics.
type statusHandlers struct{ api *API }

// healthz says that the process is alive, and checks nothing else: a fault that
// may pass is no reason to restart it.
func (h statusHandlers) healthz(*request) (answer, error) {
	return answer{data: healthRecord{Status: "alive"}}, nil
}

// readyz says whether requests can be taken.
func (h statusHandlers) readyz(req *request) (answer, error) {
	var known *webhook.Error
	if err := h.api.store.Check(req.ctx); errors.As(err, &known) {
		return answer{}, known
	} else if err != nil {
		h.api.logError(req, "not ready", err)
		return answer{}, webhook.NewError(webhook.CodeUnavailable, "Not ready: the store does not answer.")
	}
	if err := h.api.ready(); err != nil {
		return answer{}, webhook.NewError(webhook.CodeUnavailable, "Not ready: "+err.Error()+".")
	}
	ready := healthRecord{Status: "ready"}
	if r := h.api.store.Replica(); r.State != store.ReplicaOff {
		ready.Replica = &replicaRecord{State: string(r.State), LagSeconds: math.Round(r.Lag.Seconds()*1000) / 1000}
		if !r.LastSuccess.IsZero() {
			ready.Replica.LastSuccessAt = webhook.FormatTime(r.LastSuccess)
			ready.Replica.LastSuccess = ready.Replica.LastSuccessAt
		}
	}
	return answer{data: ready}, nil
}
