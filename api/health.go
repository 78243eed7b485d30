package api

import (
	"errors"
	"math"

	"service/store/replica"
	"service/webhook"
)

type healthRecord struct {
	Status  string         `json:"status"`
	Replica *replicaRecord `json:"replica,omitempty"`
}

// replicaRecord says how the copy of the database elsewhere does, where there is
// one. A service is as ready without.
type replicaRecord struct {
	State       string  `json:"state"`
	LagSeconds  float64 `json:"lag_seconds"`
	LastSuccess string  `json:"last_success,omitempty"`
}

// healthz says that the process lives, and looks at nothing else: what it
// cannot do just now is no reason to start it again.
func (a *api) healthz(*request) (answer, error) {
	return answer{data: healthRecord{Status: "alive"}}, nil
}

// readyz says whether requests can be taken.
func (a *api) readyz(req *request) (answer, error) {
	var known *webhook.Error
	if err := a.store.Check(req.ctx); errors.As(err, &known) {
		return answer{}, known
	} else if err != nil {
		a.logError(req, "not ready", err)
		return answer{}, webhook.NewError(webhook.CodeUnavailable, "Not ready: the store does not answer.")
	}
	if err := a.ready(); err != nil {
		return answer{}, webhook.NewError(webhook.CodeUnavailable, "Not ready: "+err.Error()+".")
	}
	ready := healthRecord{Status: "ready"}
	if r := a.store.Replica(); r.State != replica.StateOff {
		ready.Replica = &replicaRecord{State: string(r.State), LagSeconds: math.Round(r.Lag.Seconds()*1000) / 1000}
		if !r.LastSuccess.IsZero() {
			ready.Replica.LastSuccess = webhook.FormatTime(r.LastSuccess)
		}
	}
	return answer{data: ready}, nil
}
