package control

import (
	"context"
	"encoding/json"
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
	KeptFrom time.Time `json:"kept_from"` // what was accepted before has been removed by the retention
}

// Salvaged is the result of publishing the events of an old primary.
type Salvaged struct {
	Added   int              `json:"added"` // the others that were not refused were there already
	Refused []RefusedSalvage `json:"refused,omitempty"`
}

// RefusedSalvage is an event that cannot be published.
type RefusedSalvage struct {
	Index int    `json:"index"` // in the request
	Why   string `json:"why"`
}

// salvageRequest names the events of a program by their ids, or holds them.
type salvageRequest struct {
	ProgramID string                `json:"program_id"`
	IDs       []string              `json:"ids,omitempty"`
	Events    []store.SalvagedEvent `json:"events,omitempty"`
	DryRun    bool                  `json:"dry_run,omitempty"` // checks the events, and publishes none
}

// handleSalvage adds the requests of service salvage.
func (s *Server) handleSalvage(m *http.ServeMux) {
	read := func(r *http.Request) (asked salvageRequest, err error) {
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			return asked, webhook.NewError(webhook.CodeInvalid, "The request cannot be read.")
		}
		return asked, nil
	}
	m.HandleFunc("GET /records", s.answer(func(r *http.Request) (any, error) { return s.Store.Records(r.Context()) }))
	m.HandleFunc("POST /events/missing", s.answer(func(r *http.Request) (any, error) {
		asked, err := read(r)
		if err != nil {
			return nil, err
		}
		y := MissingEvents{KeptFrom: time.Now().Add(-s.Retention)}
		y.Missing, y.Known, err = s.Store.Events().Missing(r.Context(), asked.ProgramID, asked.IDs)
		return y, err
	}))
	m.HandleFunc("POST /events/salvage", s.answer(func(r *http.Request) (any, error) {
		asked, err := read(r)
		if err != nil {
			return nil, err
		}
		return s.salvage(r.Context(), asked)
	}))
}

// salvage publishes events again, as if they had come by the API: each is checked
// by the catalog, and one whose id is there already adds nothing.
func (s *Server) salvage(ctx context.Context, asked salvageRequest) (y Salvaged, err error) {
	now := time.Now()
	var events []webhook.Event
	var indexes []int
	for i, e := range asked.Events {
		event, invalid := s.Catalog.NewEvent(e.JSON, "", now)
		if invalid != nil {
			y.Refused = append(y.Refused, RefusedSalvage{i, describe(invalid)})
			continue
		}
		event.Trace = e.Trace
		events, indexes = append(events, event), append(indexes, i)
	}
	if len(events) == 0 || asked.DryRun {
		return y, nil
	}
	added, err := s.Store.Salvage(ctx, asked.ProgramID, events)
	var mistake *webhook.Error
	if !errors.As(err, &mistake) || mistake.Code != webhook.CodeConflict {
		y.Added = added
		return y, err
	}
	// The id of one is taken by an event with other content: the others do not
	// suffer for it.
	for n := range events {
		added, err := s.Store.Salvage(ctx, asked.ProgramID, events[n:n+1])
		switch {
		case errors.As(err, &mistake) && mistake.Code == webhook.CodeConflict:
			y.Refused = append(y.Refused, RefusedSalvage{indexes[n], mistake.Detail})
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

// Records is [store.Store.Records], done by the running server.
func (c *Client) Records(ctx context.Context) ([]store.Record, error) {
	var all []store.Record
	return all, c.ask(ctx, http.MethodGet, "/records", nil, &all)
}

// MissingEvents says which of the events with the given ids the program of the
// running server lacks.
func (c *Client) MissingEvents(ctx context.Context, programID string, ids []string) (MissingEvents, error) {
	var y MissingEvents
	return y, c.ask(ctx, http.MethodPost, "/events/missing", salvageRequest{ProgramID: programID, IDs: ids}, &y)
}

// Salvage publishes events of an old primary on the running server, or with dryRun
// only checks them.
func (c *Client) Salvage(ctx context.Context, programID string, events []store.SalvagedEvent, dryRun bool) (Salvaged, error) {
	var y Salvaged
	return y, c.ask(ctx, http.MethodPost, "/events/salvage", salvageRequest{ProgramID: programID, Events: events, DryRun: dryRun}, &y)
}
