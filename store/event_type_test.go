package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"service/store/doctor"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// typeSchema returns the schema of an event type with a field carrier of the given schema.
func typeSchema(name, carrier string) []byte {
	return fmt.Appendf(nil, `{"title":"Order shipped","description":"Emitted when an order leaves.","type":"object","properties":{`+
		`"id":{"type":"string","format":"uuid"},"timestamp":{"type":"string","format":"date-time"},"name":{"const":%q},"version":{"const":"1"},`+
		`"carrier":%s},"required":["id","timestamp","name","version"],"additionalProperties":false,"examples":[{`+
		`"id":"019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7","timestamp":"2026-03-14T08:24:48.644Z","name":%[1]q,"version":"1"}]}`, name, carrier)
}

func eventType(t testing.TB, name, carrier string) *webhook.EventType {
	t.Helper()
	et, err := webhook.NewEventType(t.Context(), name, typeSchema(name, carrier))
	if err != nil {
		t.Fatal(err)
	}
	return et
}

// openTypes opens a store with a catalog of the embedded event types and of files.
func openTypes(t testing.TB, dir string, files ...webhook.SchemaFile) (*Store, *webhook.Catalog) {
	t.Helper()
	catalog, err := webhook.LoadCatalog(files...)
	must(t, err)
	s := opened(t, Config{Dir: dir, Catalog: catalog, Logger: testLogger(t)})
	t.Cleanup(func() { s.Close() })
	return s, catalog
}

func putType(s *Store, t *webhook.EventType) (*webhook.EventType, bool, error) {
	return s.EventTypes().Put(context.Background(), t,
		func(*webhook.EventType) error { return nil }, webhook.AuditEntry{})
}

func deleteType(s *Store, name string) error {
	_, err := s.EventTypes().Delete(context.Background(), name,
		func(*webhook.EventType) error { return nil }, webhook.AuditEntry{})
	return err
}

func wantRefusal(t testing.TB, what string, err error, code webhook.Code, detail string) {
	t.Helper()
	var e *webhook.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), detail) {
		t.Errorf("%s: got %v, want %s with %q", what, err, code, detail)
	}
}

func TestEventTypes(t *testing.T) {
	dir := t.TempDir()
	s, catalog := openTypes(t, dir)
	program(t, s, "acme")
	const name = "order.shipped"
	put, created, err := putType(s, eventType(t, name, `{"enum":["post"]}`))
	if err != nil || !created || put.ID == 0 || put.Revision != 1 || put.CreatedAt.IsZero() || put.Source != webhook.SourceAPI {
		t.Fatalf("create: got %+v, %t, %v", put, created, err)
	}
	if got, ok := catalog.Type(name); !ok || got != put {
		t.Errorf("the catalog has %v", got)
	}
	same, created, err := putType(s, eventType(t, name, `{"enum":["post"]}`))
	if err != nil || created || same != put {
		t.Errorf("the same again: got %+v, %t, %v", same, created, err)
	}
	wider, created, err := putType(s, eventType(t, name, `{"enum":["post","bike"]}`))
	if err != nil || created || wider.ID != put.ID || wider.Revision != 2 || !wider.CreatedAt.Equal(put.CreatedAt) {
		t.Errorf("wider: got %+v, %t, %v", wider, created, err)
	}
	_, _, err = putType(s, eventType(t, name, `{"enum":["bike"]}`))
	wantRefusal(t, "narrower", err, webhook.CodeConflict, `/properties/carrier/enum no longer allows "post"`)
	_, _, err = putType(s, eventType(t, "content_updated", `{}`))
	wantRefusal(t, "a built-in name", err, webhook.CodeConflict, "built-in")
	wantRefusal(t, "delete a built-in type", deleteType(s, "ping"), webhook.CodeConflict, "built-in")
	wantRefusal(t, "delete an unknown type", deleteType(s, "order.lost"), webhook.CodeNotFound, "")

	must(t, s.Close())
	s, catalog = openTypes(t, dir)
	got, ok := catalog.Type(name)
	if !ok || got.ID != put.ID || got.Revision != 2 || string(got.Schema) != string(wider.Schema) || !got.UpdatedAt.Equal(wider.UpdatedAt) {
		t.Fatalf("after a restart: got %+v, want %+v", got, wider)
	}

	// Deleting waits until nothing uses the event type.
	sub := subscribe(t, s, "acme", "content_updated", name)
	wantRefusal(t, "delete a requested type", deleteType(s, name), webhook.CodeConflict, "requested by subscriptions of program acme.")
	e, invalid := catalog.NewEvent(got.Example, "", time.Now())
	if invalid != nil {
		t.Fatal(invalid)
	}
	publishAll(t, s, "acme", e)
	wantRefusal(t, "delete a published type", deleteType(s, name), webhook.CodeConflict,
		"requested by subscriptions of program acme, and in the event log of program acme.")
	unsubscribe(t, s, "acme", sub.ID)
	wantRefusal(t, "delete a published type", deleteType(s, name), webhook.CodeConflict, "because it is in the event log of program acme.")
	execute(t, s, "DELETE FROM events") // as retention does
	must(t, deleteType(s, name))
	if catalog.Has(name) {
		t.Error("the catalog still has the deleted type")
	}

	// A write that was checked against the deleted type is refused, even if there is a new type
	// of that name.
	again, created, err := putType(s, eventType(t, name, `{"type":"integer"}`))
	if err != nil || !created || again.ID <= put.ID {
		t.Fatalf("create again: got %+v, %t, %v", again, created, err)
	}
	late, invalid := webhook.NewCatalog(got).NewEvent(got.Example, "", time.Now())
	if invalid != nil {
		t.Fatal(invalid)
	}
	_, err = s.Events().Publish(t.Context(), "acme", []webhook.Event{event("content_updated"), late})
	wantRefusal(t, "publish an event of the deleted type", err, webhook.CodeConflict, "order.shipped was deleted")
	wantNumber(t, "stored events", events(t, s), 0)
	must(t, deleteType(s, name))
	_, err = create(s, "acme", "content_updated", name)
	wantRefusal(t, "subscribe to a deleted type", err, webhook.CodeInvalid, "events[1].name")
}

// An error of the check leaves everything as it was.
func TestEventTypesRollBack(t *testing.T) {
	s, catalog := openTypes(t, t.TempDir())
	program(t, s, "acme")
	failed := errors.New("failed")
	check := func(*webhook.EventType) error { return failed }
	et := eventType(t, "order.shipped", `{}`)
	if _, _, err := s.EventTypes().Put(t.Context(), et, check, webhook.AuditEntry{}); !errors.Is(err, failed) ||
		catalog.Has("order.shipped") {
		t.Errorf("put: got %v", err)
	}
	_, _, err := putType(s, et)
	must(t, err)
	if _, err := s.EventTypes().Delete(t.Context(), "order.shipped", check, webhook.AuditEntry{}); !errors.Is(err, failed) ||
		!catalog.Has("order.shipped") {
		t.Errorf("delete: got %v", err)
	}
	e, invalid := catalog.NewEvent(et.Example, "", time.Now())
	if invalid != nil {
		t.Fatal(invalid)
	}
	if _, err := s.Events().Publish(t.Context(), "acme", []webhook.Event{e}); err != nil {
		t.Errorf("publish after a failed delete: %v", err)
	}
}

func TestEventTypeLimits(t *testing.T) {
	s, catalog := openTypes(t, t.TempDir())
	fill := func(n, bytes int) {
		t.Helper()
		must(t, s.writer.do(func(t *tx) error {
			for i := range n {
				err := t.Exec("INSERT INTO event_types (name, revision, bytes, created_at, updated_at, schema) VALUES (?, 1, ?, 0, 0, '{}')",
					fmt.Sprintf("x.%d", i), bytes)
				if err != nil {
					return err
				}
			}
			return nil
		}))
	}
	_, _, err := putType(s, eventType(t, "order.shipped", `{"enum":[1]}`))
	must(t, err)
	fill(webhook.MaxEventTypes-1, 1)
	_, _, err = putType(s, eventType(t, "order.lost", `{}`))
	wantRefusal(t, "one too many", err, webhook.CodeConflict, "already 1000 event types")
	_, _, err = putType(s, eventType(t, "order.shipped", `{"enum":[1,2]}`))
	if err != nil {
		t.Errorf("change one of the maximum: %v", err)
	}
	execute(t, s, "DELETE FROM event_types WHERE name LIKE 'x.%'")
	fill(1, webhook.MaxAPIEventTypeSize-10)
	_, _, err = putType(s, eventType(t, "order.shipped", `{"enum":[1,2,3]}`))
	wantRefusal(t, "too large", err, webhook.CodeConflict, "larger than 16777216 bytes")
	if et, _ := catalog.Type("order.shipped"); !strings.Contains(string(et.Schema), `"enum":[1,2]`) {
		t.Errorf("a refused change is in the catalog: %s", et.Schema)
	}
}

// A file, or a built-in event type of a newer version, takes precedence. An unusable event type
// can be replaced.
func TestUnusedEventTypes(t *testing.T) {
	dir := t.TempDir()
	s, _ := openTypes(t, dir)
	_, _, err := putType(s, eventType(t, "order.shipped", `{"enum":["api"]}`))
	must(t, err)
	must(t, s.writer.do(func(t *tx) error {
		for _, name := range []string{"content_updated", "order.lost"} {
			err := t.Exec("INSERT INTO event_types (name, revision, bytes, created_at, updated_at, schema) VALUES (?, 3, 2, 0, 0, '{}')", name)
			if err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, s.Close())
	s, catalog := openTypes(t, dir, webhook.SchemaFile{Name: "order.shipped.json", Content: typeSchema("order.shipped", `{"enum":["file"]}`)})
	et, ok := catalog.Type("order.shipped")
	if !ok || et.Source != webhook.SourceFile || !strings.Contains(string(et.Schema), "file") {
		t.Errorf("got %+v, want the file's", et)
	}
	warned := func() (all []string) {
		for _, f := range s.Examine(t.Context(), 0) {
			if f.Check == "event types over the API" {
				all = append(all, string(f.Level)+" "+f.Detail)
			}
		}
		return all
	}
	if got := warned(); len(got) != 3 || !strings.Contains(got[0], "a built-in event type of this version") ||
		!strings.Contains(got[1], "order.lost was created over the API and is not used: its schema cannot be used") ||
		!strings.Contains(got[2], "WARN order.shipped was created over the API and is not used: the file event_types/order.shipped.json") {
		t.Errorf("the examination finds %q", got)
	}
	for _, name := range []string{"order.shipped", "content_updated"} {
		_, _, err := putType(s, eventType(t, name, `{"enum":["file","api"]}`))
		wantRefusal(t, "put "+name, err, webhook.CodeConflict, name)
		wantRefusal(t, "delete "+name, deleteType(s, name), webhook.CodeConflict, name)
	}
	put, created, err := putType(s, eventType(t, "order.lost", `{}`))
	if err != nil || !created || put.Revision != 4 {
		t.Errorf("replace what cannot be used: got %+v, %t, %v", put, created, err)
	}
	must(t, s.Close())
	s, catalog = openTypes(t, dir) // without the file
	if et, ok := catalog.Type("order.shipped"); !ok || et.Source != webhook.SourceAPI || !catalog.Has("order.lost") {
		t.Errorf("without the file: got %+v", et)
	}
	if got := warned(); len(got) != 1 {
		t.Errorf("the examination finds %q", got)
	}
	must(t, s.Close())
	found, err := doctor.Examine(t.Context(), doctor.Config{Dir: dir, Catalog: webhook.NewCatalog(et)}, 0)
	if err != nil || !slices.ContainsFunc(found, func(f doctor.Finding) bool {
		return f.Check == "event types over the API" && strings.Contains(f.Detail, "order.shipped")
	}) {
		t.Errorf("without a server: got %+v, %v", found, err)
	}
}

// Publishing, subscribing and deleting at the same time never leave an event or a
// subscription without its event type.
func TestEventTypesConcurrently(t *testing.T) {
	s, catalog := openTypes(t, t.TempDir())
	program(t, s, "acme")
	deleted, kept := 0, 0
	for i := range 60 {
		name := fmt.Sprintf("order.n%d", i)
		put, _, err := putType(s, eventType(t, name, `{}`))
		must(t, err)
		e, invalid := catalog.NewEvent(put.Example, "", time.Now())
		if invalid != nil {
			t.Fatal(invalid)
		}
		e.ID = webhook.NewID()
		e.JSON = []byte(strings.Replace(string(e.JSON), "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", e.ID, 1))
		var published, subscribed, removed, changed error
		var all sync.WaitGroup
		all.Go(func() { _, published = s.Events().Publish(context.Background(), "acme", []webhook.Event{e}) })
		all.Go(func() { _, subscribed = create(s, "acme", name) })
		all.Go(func() { removed = deleteType(s, name) })
		all.Go(func() { _, _, changed = putType(s, eventType(t, name, `{"type":["string","null"]}`)) })
		all.Wait()
		if catalog.Has(name) != has(t, s, name) {
			t.Errorf("%s: the catalog and the database differ", name)
		}
		if (published == nil || subscribed == nil) && !catalog.Has(name) {
			t.Errorf("%s is used and deleted: published %v, subscribed %v, deleted %v, changed %v", name, published, subscribed, removed, changed)
		}
		if catalog.Has(name) {
			kept++
		}
		if removed == nil {
			deleted++
		}
	}
	t.Logf("%d deleted, %d kept", deleted, kept)
}

func has(t testing.TB, s *Store, name string) bool {
	t.Helper()
	var n int
	must(t, s.db.Scan(context.Background(), "SELECT count(*) FROM event_types WHERE name = ?", []any{name}, &n))
	return n > 0
}

// Two concurrent changes are each checked against the other.
func TestEventTypeChangesConcurrently(t *testing.T) {
	s, catalog := openTypes(t, t.TempDir())
	_, _, err := putType(s, eventType(t, "order.shipped", `{"enum":[0]}`))
	must(t, err)
	var all sync.WaitGroup
	accepted := make([]bool, 8)
	for i := range accepted {
		all.Go(func() {
			_, _, err := putType(s, eventType(t, "order.shipped", fmt.Sprintf(`{"enum":[0,%d]}`, i+1)))
			accepted[i] = err == nil
		})
	}
	all.Wait()
	n := 0
	for i, ok := range accepted {
		if ok {
			n++
			if et, _ := catalog.Type("order.shipped"); !strings.Contains(string(et.Schema), fmt.Sprintf("[0,%d]", i+1)) {
				t.Errorf("change %d was accepted and then undone: %s", i+1, et.Schema)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d changes were accepted, want 1: the others would reject what it accepts", n)
	}
}

// The event types are in the replica, in a standby's copy and in a snapshot.
func TestEventTypesAreReplicated(t *testing.T) {
	dir := t.TempDir()
	cfg := fileReplica(t, dir, t.TempDir())
	r := openReplicated(t, dir, cfg)
	catalog, err := webhook.LoadCatalog()
	must(t, err)
	r.catalog = catalog
	_, _, err = putType(r.Store, eventType(t, "order.shipped", `{}`))
	must(t, err)
	check := func(where string, each sqlite.EachRow) {
		t.Helper()
		found, err := webhook.LoadCatalog()
		must(t, err)
		if _, err := record.ReadEventTypes(t.Context(), each, found); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		want, _ := catalog.Type("order.shipped")
		if got, ok := found.Type("order.shipped"); !ok || got.ID != want.ID || string(got.Schema) != string(want.Schema) {
			t.Errorf("%s: got %+v, want %+v", where, got, want)
		}
	}
	snapshot, err := r.Snapshot(t.Context(), 1)
	must(t, err)
	db, err := sqlite.OpenReadOnly(snapshot.Path)
	must(t, err)
	defer db.Close()
	_, each := sqlite.ReadsOf(t.Context(), db)
	check("snapshot", each)
	must(t, snapshot.Remove())
	must(t, r.close())
	s, _ := restored(t, cfg, dir, time.Time{})
	_, each = s.db.Reads(t.Context())
	check("replica", each)
}
