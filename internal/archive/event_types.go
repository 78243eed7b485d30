package archive

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"service/store"
	"service/webhook"
)

// EventTypes are the schemas of the event types that a program uses, by name.
type EventTypes map[string]json.RawMessage

// CheckedTypes are event types that Check has compared with a catalog.
type CheckedTypes struct {
	Missing []*webhook.EventType // the types that the catalog lacks, by name

	catalog *webhook.Catalog
	present []*webhook.EventType // the catalog's types
}

// Check compares the event types with a catalog. The error is a *webhook.Error if a type cannot be
// created, or if the catalog's schema for it may reject events of the program. Checking many
// schemas takes a while, so do not call Check in a write.
func (e EventTypes) Check(ctx context.Context, catalog *webhook.Catalog) (CheckedTypes, error) {
	c := CheckedTypes{catalog: catalog}
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(e)) {
		if t, ok := catalog.Type(name); ok {
			if changes := webhook.CompareSchemas(e[name], t.Schema); changes != nil {
				faults = append(faults, "Its schema of "+name+" may reject events of the program: "+changes[0].String()+".")
			}
			c.present = append(c.present, t)
			continue
		}
		t, invalid := webhook.NewEventType(ctx, name, e[name])
		if invalid != nil {
			faults = append(faults, "It cannot create "+name+": "+invalid.Error()+".")
			continue
		}
		c.Missing = append(c.Missing, t)
	}
	if err := ctx.Err(); err != nil {
		return CheckedTypes{}, err
	}
	if faults != nil {
		return CheckedTypes{}, webhook.NewError(webhook.CodeConflict,
			"This installation cannot use the event types of the program. "+strings.Join(faults, " "))
	}
	return c, nil
}

// Create creates the event types that the catalog lacks, and records each in the audit log as a
// change by actor. The error is a *webhook.Error if there are too many event types, or if a checked
// type has changed since.
func (c CheckedTypes) Create(w store.Write, actor webhook.AuditEntry) error {
	for _, t := range c.present {
		if now, _ := c.catalog.Type(t.Name); now != t {
			return webhook.NewError(webhook.CodeConflict, "Another request changed the event type "+t.Name+" at the same time. Try again.")
		}
	}
	for _, t := range c.Missing {
		if err := w.EventTypes().Create(t, actor); err != nil {
			return err
		}
	}
	return nil
}
