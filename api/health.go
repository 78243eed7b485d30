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

// replicaRecord is the state of the replica, if one is configured. Readiness does not depend on it.
type replicaRecord struct {
	State         string  `json:"state"`
	LagSeconds    float64 `json:"lag_seconds"`
	LastSuccessAt string  `json:"last_success_at,omitempty"`
	Cause         string  `json:"cause,omitempty"` // why it fails, in one word
}

// healthz succeeds whenever the process is alive. It checks nothing else, because a
// temporary fault is no reason to restart the process.
func healthz(*request) (answer, error) {
	return answer{data: healthRecord{Status: "alive"}}, nil
}

// readyz succeeds if the service can accept requests.
func readyz(req *request) (answer, error) {
	var known *webhook.Error
	if err := req.api.store.Check(req.ctx); errors.As(err, &known) {
		return answer{}, known
	} else if err != nil {
		req.api.logError(req, "not ready", err)
		if store.Unavailable(err) {
			return answer{}, webhook.NewError(webhook.CodeUnavailable, "Not ready: storage is not writable.")
		}
		return answer{}, webhook.NewError(webhook.CodeUnavailable, "Not ready: the storage does not respond.")
	}
	if err := req.api.ready(); err != nil {
		return answer{}, webhook.NewError(webhook.CodeUnavailable, "Not ready: "+err.Error()+".")
	}
	ready := healthRecord{Status: "ready"}
	if r := req.api.store.Replica().Status(); r.State != store.ReplicaOff {
		ready.Replica = &replicaRecord{State: string(r.State), LagSeconds: math.Round(r.Lag.Seconds()*1000) / 1000, Cause: string(r.Cause)}
		if !r.LastSuccess.IsZero() {
			ready.Replica.LastSuccessAt = webhook.FormatTime(r.LastSuccess)
		}
	}
	return answer{data: ready}, nil
}
