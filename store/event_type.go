package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// typeUses counts the writes that use each event type, by its ID: events that are published,
// and subscriptions that select it. The leader of the writer owns it.
type typeUses map[int64]uint64

// openEventTypes completes the catalog, and logs the event types that it cannot use.
func (s *core) openEventTypes(ctx context.Context) error {
	if s.catalog == nil {
		return nil
	}
	_, each := s.db.Reads(ctx)
	var err error
	s.unusedTypes, err = record.ReadEventTypes(ctx, each, s.catalog)
	for _, u := range s.unusedTypes {
		s.logger.Warn("event type created over the API is not used", "name", u.Name, "reason", u.Reason)
	}
	return err
}

// errTypeChanged reports that an event type has changed between its check and its write.
var errTypeChanged = errors.New("the event type has changed")

// maxTypeTries is the maximum number of tries to change an event type. The check is repeated
// if another request changes or uses the type at the same time.
const maxTypeTries = 10

var errNoCatalog = errors.New("store: opened without a catalog")

// Put creates an event type, or changes the one with its name. It is in the catalog when Put
// returns. An equal schema changes nothing. check is called before anything is written, with
// the current event type or nil, and may be called several times. The error is a *webhook.Error with
// CodeConflict if the name belongs to a built-in event type or a file, if the current schema accepts
// events that the new one may reject, or if there are too many event types.
func (s EventTypes) Put(ctx context.Context, t *webhook.EventType, check func(before *webhook.EventType) error,
	by webhook.AuditEntry) (put *webhook.EventType, created bool, err error) {
	if s.catalog == nil {
		return nil, false, errNoCatalog
	}
	for range maxTypeTries {
		before, _ := s.catalog.Type(t.Name)
		if err := check(before); err != nil {
			return nil, false, err
		}
		if before != nil && before.Source == webhook.SourceAPI && bytes.Equal(before.Schema, t.Schema) {
			return before, false, nil
		}
		if conflict := t.CheckChange(before); conflict != nil {
			return nil, false, conflict
		}
		err := s.write(ctx, func(w Write) error {
			after := *t // a failed write leaves t as it was
			put = &after
			return w.EventTypes().put(&after, before, by)
		})
		if !errors.Is(err, errTypeChanged) {
			return put, before == nil, err
		}
	}
	return nil, false, busyType(t.Name)
}

func busyType(name string) error {
	return webhook.NewError(webhook.CodeConflict, "Other requests change or use "+name+" at the same time. Try again.")
}

const (
	selectEventType  = "SELECT id, revision, created_at FROM event_types WHERE name = ?"
	countEventTypes  = "SELECT count(*), coalesce(sum(bytes), 0) FROM event_types WHERE name <> ?"
	selectUsedInLogs = "SELECT p.id FROM programs p WHERE EXISTS (SELECT 1 FROM events e INDEXED BY events_by_name " +
		"WHERE e.program_id = p.id AND e.name = ?1) ORDER BY p.id LIMIT ?2"
	selectUsedInSubscriptions = "SELECT s.program_id FROM subscriptions s INDEXED BY subscriptions_by_program " +
		"WHERE s.deleted_at IS NULL AND EXISTS (SELECT 1 FROM json_each(s.events) WHERE value = ?1) GROUP BY s.program_id " +
		"ORDER BY s.program_id LIMIT ?2"
	selectUsedNames = "SELECT n.value FROM json_each(?2) n WHERE EXISTS (SELECT 1 FROM events e INDEXED BY events_by_name " +
		"WHERE e.program_id = ?1 AND e.name = n.value) UNION SELECT n.value FROM subscriptions s INDEXED BY subscriptions_by_program " +
		"CROSS JOIN json_each(s.events) n WHERE s.program_id = ?1 AND s.deleted_at IS NULL AND n.value IN (SELECT value FROM json_each(?2))"
)

// put stores an event type and adds it to the catalog. before is the event type that it was
// compared with, nil for none.
func (w EventTypeWrites) put(t, before *webhook.EventType, by webhook.AuditEntry) error {
	action := webhook.ActionEventTypeCreate
	if before != nil {
		action = webhook.ActionEventTypeUpdate
	}
	err := w.t.Scan(selectEventType, []any{t.Name}, &t.ID, &t.Revision, (*sqlite.Time)(&t.CreatedAt))
	exists := err == nil
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return err
	case before == nil && exists && !w.t.s.isUnused(t.Name), before != nil && (!exists || t.ID != before.ID || t.Revision != before.Revision):
		return errTypeChanged
	}
	var count, size int64
	if err := w.t.Scan(countEventTypes, []any{t.Name}, &count, &size); err != nil {
		return err
	}
	if count >= webhook.MaxEventTypes {
		return webhook.NewError(webhook.CodeConflict, fmt.Sprintf("There are already %d event types, which is the maximum.", count))
	}
	if size+int64(len(t.Schema)) > webhook.MaxAPIEventTypeSize {
		return webhook.NewError(webhook.CodeConflict, fmt.Sprintf(
			"The schemas of all event types together would be larger than %d bytes, which is the maximum.", webhook.MaxAPIEventTypeSize))
	}
	t.Revision++
	t.UpdatedAt = w.t.s.clock.Now().UTC().Truncate(time.Millisecond)
	if exists {
		err = w.t.Exec("UPDATE event_types SET revision = ?, bytes = ?, updated_at = ?, schema = ? WHERE id = ?",
			t.Revision, len(t.Schema), t.UpdatedAt.UnixMilli(), string(t.Schema), t.ID)
	} else {
		t.CreatedAt = t.UpdatedAt
		t.ID, err = w.t.Insert("INSERT INTO event_types (name, revision, bytes, created_at, updated_at, schema) VALUES (?, ?, ?, ?, ?, ?)",
			t.Name, t.Revision, len(t.Schema), t.CreatedAt.UnixMilli(), t.UpdatedAt.UnixMilli(), string(t.Schema))
	}
	if err != nil {
		return err
	}
	w.t.AfterCommit(func() { w.t.s.catalog.Set(t) })
	return w.t.people.Record(by, action, "", t.Name, "")
}

// Create creates an event type that is not in the catalog. The error is a *webhook.Error
// with CodeConflict if there are too many, or if another request creates it at the same time.
func (w EventTypeWrites) Create(t *webhook.EventType, by webhook.AuditEntry) error {
	if w.t.s.catalog == nil {
		return errNoCatalog
	}
	err := w.put(t, nil, by)
	if errors.Is(err, errTypeChanged) {
		return busyType(t.Name)
	}
	return err
}

// isUnused reports whether an event type of the database is not in the catalog because this
// version cannot use its schema, so that it may be replaced. The slice does not change after
// Open.
func (s *core) isUnused(name string) bool {
	return slices.ContainsFunc(s.unusedTypes, func(u record.UnusedType) bool { return u.Name == name }) && !s.catalog.Has(name)
}

// Delete deletes an event type and returns it. check is called before anything is written, and
// may be called several times. The error is a *webhook.Error with
// CodeNotFound if there is none, and with CodeConflict if it cannot be deleted: it is built
// in or a file, a subscription selects it, or a log contains events of it.
func (s EventTypes) Delete(ctx context.Context, name string, check func(t *webhook.EventType) error,
	by webhook.AuditEntry) (*webhook.EventType, error) {
	if s.catalog == nil {
		return nil, errNoCatalog
	}
	for range maxTypeTries {
		t, ok := s.catalog.Type(name)
		if !ok {
			return nil, webhook.NotFound("event type")
		}
		if err := check(t); err != nil {
			return nil, err
		}
		if err := t.CheckChangeable(); err != nil {
			return nil, err
		}
		// Uses are searched without blocking the writer. A use that is stored after the
		// first write is counted, so the second write notices it.
		var uses uint64
		if err := s.write(ctx, func(w Write) error { uses = w.t.w.typeUses[t.ID]; return nil }); err != nil {
			return nil, err
		}
		if err := s.checkUnused(ctx, name); err != nil {
			return nil, err
		}
		err := s.write(ctx, func(w Write) error {
			if err := w.EventTypes().remove(t, uses); err != nil {
				return err
			}
			return w.t.people.Record(by, webhook.ActionEventTypeDelete, "", name, "")
		})
		if !errors.Is(err, errTypeChanged) {
			return t, err
		}
	}
	return nil, busyType(name)
}

// remove deletes an event type, unless it has changed or was used since uses was
// read.
func (w EventTypeWrites) remove(t *webhook.EventType, uses uint64) error {
	var id, revision, created int64
	err := w.t.Scan(selectEventType, []any{t.Name}, &id, &revision, &created)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return errTypeChanged
	case err != nil:
		return err
	case id != t.ID || revision != t.Revision || w.t.w.typeUses[id] != uses:
		return errTypeChanged
	}
	if err := w.t.Exec("DELETE FROM event_types WHERE id = ?", id); err != nil {
		return err
	}
	w.t.dropped = append(w.t.dropped, t.Name)
	w.t.AfterCommit(func() {
		delete(w.t.w.typeUses, id)
		w.t.s.catalog.Remove(t.Name)
	})
	return nil
}

// shownUses is how many programs an error names.
const shownUses = 5

// checkUnused returns an error that names where an event type is used, nil if it is not.
func (s EventTypes) checkUnused(ctx context.Context, name string) error {
	var used []string
	for _, where := range []struct{ query, what string }{
		{selectUsedInSubscriptions, "requested by subscriptions of "},
		{selectUsedInLogs, "in the event log of "},
	} {
		var programs []string
		err := s.db.Each(ctx, where.query, []any{name, shownUses + 1}, sqlite.Into(&programs))
		if err != nil {
			return err
		}
		if programs == nil {
			continue
		}
		noun := "program "
		if len(programs) > 1 {
			noun = "programs "
		}
		more := ""
		if len(programs) > shownUses {
			programs, more = programs[:shownUses], " and others"
		}
		used = append(used, where.what+noun+strings.Join(programs, ", ")+more)
	}
	if used == nil {
		return nil
	}
	return webhook.NewError(webhook.CodeConflict, name+" cannot be deleted, because it is "+strings.Join(used, ", and ")+".")
}

// Used returns those event type names that occur in the log or the subscriptions of a program, in
// no particular order.
func (s EventTypes) Used(ctx context.Context, programID string, names []string) ([]string, error) {
	var used []string
	err := s.db.Each(ctx, selectUsedNames, []any{programID, sqlite.JSON(names)}, sqlite.Into(&used))
	return used, err
}

// useType counts the use of an event type by an event or a subscription. It returns false if
// the type with this ID no longer exists. id is 0 for types that cannot be deleted.
func (t *tx) useType(catalog *webhook.Catalog, name string, id int64) bool {
	if id == 0 || catalog == nil {
		return true
	}
	current, ok := catalog.Type(name)
	if !ok || current.ID != id || slices.Contains(t.dropped, name) {
		return false
	}
	t.w.typeUses[id]++
	return true
}

// useTypes counts the uses of event types by a subscription. The error is a *webhook.Error
// if a type no longer exists, unless the subscription had it before.
func (t *tx) useTypes(catalog *webhook.Catalog, names, before []string) error {
	if catalog == nil {
		return nil
	}
	for i, name := range names {
		if slices.Contains(before, name) {
			continue
		}
		current, ok := catalog.Type(name)
		if !ok || !t.useType(catalog, name, current.ID) {
			return webhook.Invalid(webhook.Validation{
				Code: webhook.InvalidUnknownEvent, Parameter: fmt.Sprintf("events[%d].name", i), Detail: "is the name of a deleted event type",
			})
		}
	}
	return nil
}
