package api

import (
	"bytes"
	"net/http"
	"slices"
	"time"

	"service/store"
	"service/webhook"
)

// eventRecord is an event in the API, see [webhook.Event.AppendLogged].
type eventRecord struct{ *webhook.Event }

func (r eventRecord) appendJSON(dst []byte) []byte { return r.AppendLogged(dst, "") }

// DeliveredEvent returns the JSON of an event as deliveries contain it, byte for byte, from its record
// in the API, and whether that is one.
func DeliveredEvent(record []byte) ([]byte, bool) {
	// The event is not parsed, so its fields may contain the same text, but only before the last one.
	end := bytes.LastIndex(record, []byte(`,"seq":`))
	if end < 0 {
		return nil, false
	}
	return append(slices.Clone(record[:end]), '}'), true
}

// eventRecords is an array of events.
type eventRecords []webhook.Event

func (r eventRecords) appendJSON(dst []byte) []byte {
	return appendList(dst, len(r), func(dst []byte, i int) []byte { return r[i].AppendLogged(dst, "") })
}

func findEvent(req *request) error {
	e, err := req.api.store.Events().Get(req.ctx, req.program(), req.params.ByName("id"))
	req.event = &e
	return err
}

func listEvents(req *request) (answer, error) {
	if !req.query.Sort[0].Descending || req.streams() {
		return pullEvents(req)
	}
	events, next, err := req.api.store.Events().Page(req.ctx, req.program(), &req.query)
	return answer{data: eventRecords(events), meta: newFeedMeta(&req.query, next)}, err
}

func readEvent(req *request) (answer, error) {
	return eventAnswer(req.event), nil
}

// eventAnswer returns the response to a GET.
func eventAnswer(e *webhook.Event) answer { return answer{data: eventRecord{e}, tagged: true} }

// eraseEvent erases the payload of an event. Its copies outside of the log are removed after the
// response.
func eraseEvent(req *request) (answer, error) {
	conditions, err := req.conditions()
	if err != nil {
		return answer{}, err
	}
	var e webhook.Event
	err = req.api.store.Write(req.ctx, func(w store.Write) error {
		err := conditions.write(func() (answer, error) {
			e, err := w.Event(req.program(), req.event.ID)
			return eventAnswer(&e), err
		})
		if err == nil {
			e, err = w.EraseEvent(req.program(), req.event.ID, req.actor())
		}
		return err
	})
	return answer{status: http.StatusAccepted, data: eventRecord{&e}}, err
}

// publishEvents stores one event, an array of events, or a stream of lines. It returns 201
// only when they are on disk. From then on the store owns the JSON of the events.
func publishEvents(req *request) (answer, error) {
	media, err := req.mediaType(mediaJSON, mediaNDJSON)
	if err != nil {
		return answer{}, err
	}
	if media == mediaNDJSON {
		return publishStream(req)
	}
	body, err := req.readBody()
	if err != nil {
		return answer{}, err
	}
	events, batch, invalid := req.api.catalog.NewEvents(body, time.Now())
	if invalid != nil {
		return answer{}, invalid
	}
	if trace := webhook.ParseTrace(req.http.Header[webhook.TraceHeader]); trace != "" {
		for i := range events {
			events[i].Trace = trace
		}
	}
	return req.create(func(w store.Write) (answer, error) {
		if _, err := w.Publish(req.program(), events); err != nil {
			return answer{}, err
		}
		if batch {
			return answer{status: http.StatusCreated, data: eventRecords(events)}, nil
		}
		return answer{status: http.StatusCreated, location: "/v2/events/" + events[0].ID, data: eventRecord{&events[0]}}, nil
	})
}
