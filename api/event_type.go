package api

import (
	"encoding/json"
	"net/http"

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

func findEventType(req *request) error {
	t, ok := req.api.catalog.Type(req.params.ByName("name"))
	if !ok {
		return webhook.NotFound("event type")
	}
	req.eventType = t
	return nil
}

func listEventTypes(req *request) (answer, error) {
	return req.api.documents.get().eventTypes.answer()
}

func readEventType(req *request) (answer, error) {
	return eventTypeAnswer(req.eventType), nil
}

// eventTypeAnswer returns the response to a GET.
func eventTypeAnswer(t *webhook.EventType) answer {
	return answer{data: newEventTypeRecord(t), tagged: true}
}

// putEventType creates an event type, or changes it so that valid events stay valid. The catalog contains
// the change before the response is sent.
func putEventType(req *request) (answer, error) {
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	conditions, err := req.conditions()
	if err != nil {
		return answer{}, err
	}
	wanted, invalid := webhook.ParseEventType(req.ctx, req.params.ByName("name"), body)
	if invalid != nil {
		return answer{}, invalid
	}
	t, created, err := req.api.store.EventTypes().Put(req.ctx, wanted,
		func(before *webhook.EventType) error {
			if before == nil && conditions.match != nil {
				return changed("If-Match") // no entity tag matches a record that does not exist
			} else if before == nil {
				return nil
			}
			return conditions.write(func() (answer, error) { return eventTypeAnswer(before), nil })
		}, req.actor())
	if err != nil {
		return answer{}, err
	}
	ans := answer{data: newEventTypeRecord(t)}
	if created {
		ans.status, ans.location = http.StatusCreated, "/v2/event_types/"+t.Name
	}
	return ans, nil
}

// deleteEventType returns the record as it was before the deletion.
func deleteEventType(req *request) (answer, error) {
	conditions, err := req.conditions()
	if err != nil {
		return answer{}, err
	}
	t, err := req.api.store.EventTypes().Delete(req.ctx, req.eventType.Name,
		func(t *webhook.EventType) error {
			return conditions.write(func() (answer, error) { return eventTypeAnswer(t), nil })
		}, req.actor())
	if err != nil {
		return answer{}, err
	}
	return answer{data: newEventTypeRecord(t)}, nil
}
