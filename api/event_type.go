package api

import (
	"encoding/json"

	"service/webhook"
)

// eventTypeRecord is an event type in the API.
type eventTypeRecord struct {
	Name        string          `json:"name"`
	Version     string          `json:"version"`
	Source      webhook.Source  `json:"source"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Example     json.RawMessage `json:"example"`
}

func newEventTypeRecord(t *webhook.EventType) eventTypeRecord {
	return eventTypeRecord{t.Name, webhook.EventVersion, t.Source, t.Title, t.Description, t.Schema, t.Example}
}

// eventTypeHandlers serve the routes of event types.
type eventTypeHandlers struct{ api *API }

func (h eventTypeHandlers) find(req *request) error {
	t, ok := h.api.catalog.Type(req.params.ByName("name"))
	if !ok {
		return webhook.NotFound("event type")
	}
	req.eventType = t
	return nil
}

func (h eventTypeHandlers) list(*request) (answer, error) {
	types := h.api.catalog.Types()
	records := make([]eventTypeRecord, len(types))
	for i, t := range types {
		records[i] = newEventTypeRecord(t)
	}
	return answer{data: records}, nil
}

func (h eventTypeHandlers) read(req *request) (answer, error) {
	return eventTypeAnswer(req.eventType), nil
}

// eventTypeAnswer returns the response to a GET.
func eventTypeAnswer(t *webhook.EventType) answer {
	return answer{data: newEventTypeRecord(t), tagged: true}
}
