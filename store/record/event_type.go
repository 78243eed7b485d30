package record

import (
	"context"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// UnusedType is an event type in the database that is not in the catalog.
type UnusedType struct {
	Name   string
	Reason string // why, as a sentence without a full stop
}

const selectEventTypes = "SELECT id, name, revision, created_at, updated_at, schema FROM event_types ORDER BY name"

// ReadEventTypes adds the event types of the database to a catalog with those of the binary
// and of files, which take precedence. It returns those that it could not add.
func ReadEventTypes(ctx context.Context, each sqlite.EachRow, catalog *webhook.Catalog) (unused []UnusedType, err error) {
	err = each(selectEventTypes, nil, func(scan func(...any) error) error {
		var id, revision, created, updated int64
		var name, schema string
		if err := scan(&id, &name, &revision, &created, &updated, &schema); err != nil {
			return err
		}
		if other, ok := catalog.Type(name); ok {
			reason := "a built-in event type of this version has the same name"
			if other.Source == webhook.SourceFile {
				reason = "the file event_types/" + name + ".json has the same name"
			}
			unused = append(unused, UnusedType{name, reason})
			return nil
		}
		t, invalid := webhook.NewEventType(ctx, name, []byte(schema))
		if err := ctx.Err(); err != nil {
			return err
		}
		if invalid != nil {
			unused = append(unused, UnusedType{name, "its schema cannot be used: " + invalid.Error()})
			return nil
		}
		t.ID, t.Revision = id, revision
		t.CreatedAt, t.UpdatedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
		catalog.Set(t)
		return nil
	})
	return unused, err
}
