package control

import (
	"context"
	"errors"
	"net/http"
	"time"

	"service/store"
	"service/webhook"
)

// MissingEvents says which events of an old primary the running server lacks.
type MissingEvents struct {
	Known    bool      `json:"known"`     // the program exists
	Missing  []string  `json:"missing"`   // ids, in the order of the request
	KeptFrom time.Time `json:"kept_from"` // the retention has removed events accepted before
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

// salvageRequest has the ids of events of a program, or the events themselves.
type salvageRequest struct {
	ProgramID string                `json:"program_id"`
	IDs       []string              `json:"ids,omitempty"`
	Events    []store.SalvagedEvent `json:"events,omitempty"`
	DryRun    bool                  `json:"dry_run,omitempty"` // validates the events only
}

// handleSalvage adds the handlers for service salvage.
func (s *Server) handleSalvage(m *http.ServeMux) {
	m.HandleFunc("GET /records", s.respond(func(r *http.Request) (any, error) { return s.Store.Records(r.Context()) }))
	m.HandleFunc("POST /events/missing", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[salvageRequest](r)
		if err != nil {
			return nil, err
		}
		y := MissingEvents{KeptFrom: time.Now().Add(-s.Retention)}
		y.Missing, y.Known, err = s.Store.Events().Missing(r.Context(), request.ProgramID, request.IDs)
		return y, err
	}))
	m.HandleFunc("POST /events/salvage", s.respond(func(r *http.Request) (any, error) {
		request, err := decode[salvageRequest](r)
		if err != nil {
			return nil, err
		}
		return s.salvage(r.Context(), request)
	}))
}

// salvage publishes events like the API does: the catalog validates each one, and an event
// with an existing id adds nothing.
func (s *Server) salvage(ctx context.Context, request salvageRequest) (y Salvaged, err error) {
	now := time.Now()
	var events []webhook.Event
	var indexes []int
	for i, e := range request.Events {
		event, invalid := s.Catalog.NewEvent(e.JSON, "", now)
		if invalid != nil {
			y.Refused = append(y.Refused, RefusedSalvage{i, describe(invalid)})
			continue
		}
		event.Trace = e.Trace
		events, indexes = append(events, event), append(indexes, i)
	}
	if len(events) == 0 || request.DryRun {
		return y, nil
	}
	added, err := s.Store.Salvage(ctx, request.ProgramID, events)
	var refused *webhook.Error
	if !errors.As(err, &refused) || refused.Code != webhook.CodeConflict {
		y.Added = added
		return y, err
	}
	// An event with the same id and other content exists. Publish the others one by one.
	for n := range events {
		added, err := s.Store.Salvage(ctx, request.ProgramID, events[n:n+1])
		switch {
		case errors.As(err, &refused) && refused.Code == webhook.CodeConflict:
			y.Refused = append(y.Refused, RefusedSalvage{indexes[n], refused.Detail})
		case err != nil:
			return y, err
		}
		y.Added += added
	}
	return y, nil
}

// describe returns an error of the catalog in one sentence.
func describe(e *webhook.Error) string {
	if len(e.Validations) == 0 {
		return e.Detail
	}
	v := e.Validations[0]
	return v.Parameter + " " + v.Detail
}

// Records calls [store.Store.Records] in the running server.
func (c *Client) Records(ctx context.Context) ([]store.Record, error) {
	var all []store.Record
	return all, c.call(ctx, http.MethodGet, "/records", nil, &all)
}

// MissingEvents returns which of the given event ids the program lacks in the running server.
func (c *Client) MissingEvents(ctx context.Context, programID string, ids []string) (MissingEvents, error) {
	var y MissingEvents
	return y, c.call(ctx, http.MethodPost, "/events/missing", salvageRequest{ProgramID: programID, IDs: ids}, &y)
}

// Salvage publishes events of an old primary in the running server, or with dryRun only
// validates them.
func (c *Client) Salvage(ctx context.Context, programID string, events []store.SalvagedEvent, dryRun bool) (Salvaged, error) {
	var y Salvaged
	return y, c.call(ctx, http.MethodPost, "/events/salvage", salvageRequest{ProgramID: programID, Events: events, DryRun: dryRun}, &y)
}
