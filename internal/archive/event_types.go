package archive

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"service/store"
	"service/webhook"
)

// EventTypes are the schemas of the event types that a program uses, by name.
type EventTypes map[string]json.RawMessage

// Missing returns the event types that a catalog lacks, in the order of their names. The error is
// a *webhook.Error if a type cannot be created, or if the catalog has it with a schema that may
// reject events of the program.
func (e EventTypes) Missing(catalog *webhook.Catalog) (missing []*webhook.EventType, err error) {
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(e)) {
		if t, ok := catalog.Type(name); ok {
			if changes := webhook.CompareSchemas(e[name], t.Schema); changes != nil {
				faults = append(faults, "Its schema of "+name+" may reject events of the program: "+changes[0].String()+".")
			}
			continue
		}
		t, invalid := webhook.NewEventType(name, e[name])
		if invalid != nil {
			faults = append(faults, "It cannot create "+name+": "+invalid.Error()+".")
			continue
		}
		missing = append(missing, t)
	}
	if faults != nil {
		return nil, webhook.NewError(webhook.CodeConflict,
			"This installation cannot use the event types of the program. "+strings.Join(faults, " "))
	}
	return missing, nil
}

// Create creates the event types that a catalog lacks. Each is recorded in the audit log as a
// change by actor. Errors are those of Missing, and of too many event types.
func (e EventTypes) Create(w store.Write, catalog *webhook.Catalog, actor webhook.AuditEntry) error {
	missing, err := e.Missing(catalog)
	for _, t := range missing {
		if err == nil {
			err = w.EventTypes().Create(t)
		}
		if err == nil {
			actor.Action, actor.ProgramID, actor.SubjectID, actor.Detail = webhook.ActionEventTypeCreate, "", t.Name, ""
			err = w.Audit(actor)
		}
	}
	return err
}
