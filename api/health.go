package api

import (
	"errors"

	"service/webhook"
)

type healthRecord struct {
	Status string `json:"status"`
}

// healthz says that the process lives, and looks at nothing else: what it
// cannot do just now is no reason to start it again.
func (a *api) healthz(*request) (answer, error) {
	return answer{data: healthRecord{"alive"}}, nil
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
	return answer{data: healthRecord{"ready"}}, nil
}
