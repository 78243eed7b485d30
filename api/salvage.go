package api

import (
	"errors"
	"time"

	"service/store"
	"service/store/datadir"
	"service/webhook"
)

// MissingEvents lists the events of an old primary that the running server lacks.
type MissingEvents struct {
	Known    bool      `json:"known"`     // whether the program exists
	Missing  []string  `json:"missing"`   // IDs, in the order of the request
	KeptFrom time.Time `json:"kept_from"` // events accepted before may have been pruned
}

// Salvaged is the result of publishing the events of an old primary.
type Salvaged struct {
	Added   int              `json:"added"` // the rest, if not refused, already existed
	Refused []RefusedSalvage `json:"refused,omitempty"`
}

// RefusedSalvage is an event that cannot be published.
type RefusedSalvage struct {
	Index int    `json:"index"` // in the request
	Why   string `json:"why"`
}

// SalvageRequest contains event IDs of a program, or the events themselves.
type SalvageRequest struct {
	ProgramID string                  `json:"program_id"`
	IDs       []string                `json:"ids,omitempty"`
	Events    []datadir.SalvagedEvent `json:"events,omitempty"`
	DryRun    bool                    `json:"dry_run,omitempty"` // validates the events only
}

func (cfg OwnerConfig) records(req *request) (answer, error) {
	all, err := req.api.store.Records(req.ctx)
	return answer{data: all}, err
}

func (cfg OwnerConfig) missingEvents(req *request, in *SalvageRequest) (answer, error) {
	y := MissingEvents{KeptFrom: time.Now().Add(-cfg.Retention)}
	var err error
	y.Missing, y.Known, err = req.api.store.Events().Missing(req.ctx, in.ProgramID, in.IDs)
	return answer{data: y}, err
}

// salvage publishes events as the API does: the catalog validates each event, and an event with an
// existing ID adds nothing.
func (cfg OwnerConfig) salvage(req *request, in *SalvageRequest) (answer, error) {
	var y Salvaged
	now := time.Now()
	var events []webhook.Event
	var indexes []int
	for i, e := range in.Events {
		event, invalid := req.api.catalog.NewEvent(e.JSON, "", now)
		if invalid != nil {
			y.Refused = append(y.Refused, RefusedSalvage{i, describe(invalid)})
			continue
		}
		event.Trace = e.Trace
		events, indexes = append(events, event), append(indexes, i)
	}
	if len(events) == 0 || in.DryRun {
		return answer{data: y}, nil
	}
	added, err := cfg.publishSalvaged(req, in.ProgramID, events)
	var refused *webhook.Error
	if !errors.As(err, &refused) || refused.Code != webhook.CodeConflict {
		y.Added = added
		return answer{data: y}, err
	}
	// An event with the same ID and other content exists. Publish the others one by one.
	for n := range events {
		added, err := cfg.publishSalvaged(req, in.ProgramID, events[n:n+1])
		switch {
		case errors.As(err, &refused) && refused.Code == webhook.CodeConflict:
			y.Refused = append(y.Refused, RefusedSalvage{indexes[n], refused.Detail})
		case err != nil:
			return answer{data: y}, err
		}
		y.Added += added
	}
	return answer{data: y}, nil
}

// publishSalvaged publishes events of an old primary. It returns how many of them are new.
func (cfg OwnerConfig) publishSalvaged(req *request, programID string, events []webhook.Event) (added int, err error) {
	err = req.api.store.Write(req.ctx, func(w store.Write) (err error) {
		if added, err = w.Publish(programID, events); err != nil || added == 0 {
			return err
		}
		return req.audit(w, webhook.ActionEventPublish, programID, "", "salvaged from an old primary: "+webhook.Count(added, "event"))
	})
	return added, err
}

// describe returns an error of the catalog in one sentence.
func describe(e *webhook.Error) string {
	if len(e.Validations) == 0 {
		return e.Detail
	}
	v := e.Validations[0]
	return v.Parameter + " " + v.Detail
}
