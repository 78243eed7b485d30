package record

import (
	"bytes"

	"service/store/dictionary"
	"service/store/sqlite"
	"service/webhook"
)

// EventColumns are the columns of an event, see [ScanEvent].
const EventColumns = "seq, id, name, received_at, json, erased_at"

// SelectEvent selects the EventColumns of an event by its program and ID.
const SelectEvent = "SELECT " + EventColumns + " FROM events WHERE program_id = ? AND id = ?"

// ScanEvent reads a row of EventColumns.
func ScanEvent(ds *dictionary.Set, programID string, scan func(...any) error) (webhook.Event, error) {
	e := webhook.Event{ProgramID: programID, Version: webhook.EventVersion}
	err := scan(&e.Seq, &e.ID, &e.Name, (*sqlite.Time)(&e.ReceivedAt), &e.JSON, (*sqlite.Time)(&e.ErasedAt))
	if err == nil {
		e.JSON, err = ds.Unpack(e.ID, e.JSON)
	}
	e.Timestamp = timestamp(e.JSON)
	return e, err
}

// timestamp returns the timestamp from the JSON of an event, where it follows the ID (see
// webhook.Catalog.NewEvent).
func timestamp(json []byte) string {
	const before = len(`{"id":"00000000-0000-0000-0000-000000000000","timestamp":"`)
	if len(json) < before {
		return ""
	}
	value, _, _ := bytes.Cut(json[before:], []byte{'"'})
	return string(value)
}

// ExaminedSeqs is how far queries look into the log for events that a filter lets pass.
const ExaminedSeqs = "1000"

// PassesFilter is true for an event e that the filter of the interest i lets pass.
const PassesFilter = "CASE WHEN i.filter IS NULL THEN 1 ELSE event_matches(i.filter, e.id, e.json) END"

// NotErased is true of an event e whose payload was not erased. It reads only indexes.
const NotErased = `NOT EXISTS (SELECT 1 FROM events z INDEXED BY events_erased WHERE z.program_id = e.program_id AND z.name = e.name
	AND z.seq = e.seq AND z.erased_at IS NOT NULL)`

// ParseFilter reads a filter in its stored form.
func ParseFilter(stored string) (*webhook.EventFilter, error) {
	f := new(webhook.EventFilter)
	return f, f.UnmarshalJSON([]byte(stored))
}
