package api

import (
	"encoding/json"

	"service/webhook"
)

// eventTypeRecord is an event type in the API.
type eventTypeRecord struct {
	Name        string          `json:"name"`
	Version     string          `json:"version"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Example     json.RawMessage `json:"example"`
}

func newEventTypeRecord(t *webhook.EventType) eventTypeRecord {
	return eventTypeRecord{t.Name, webhook.EventVersion, t.Title, t.Description, t.Schema, t.Example}
}

// eventTypeHandlers serve the routes of event types.
type eventTypeHandlers struct{ catalog *webhook.Catalog }

func (h eventTypeHandlers) find(req *request) error {
	t, ok := h.catalog.Type(req.params.ByName("name"))
	if !ok {
		return webhook.NotFound("event type")
	}
	req.eventType = t
	return nil
}

func (h eventTypeHandlers) list(*request) (answer, error) {
	types := h.catalog.Types()
	records := make([]eventTypeRecord, len(types))
	for i, t := range types {
		records[i] = newEventTypeRecord(t)
	}
	return answer{data: records}, nil
}

func (h eventTypeHandlers) read(req *request) (answer, error) {
	return answer{data: newEventTypeRecord(req.eventType), tagged: true}, nil
}
