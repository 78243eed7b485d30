package webhook

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// EventType is an entry of the catalog: an event name with the JSON Schema of its
// events.
type EventType struct {
	Name        string
	Title       string
	Description string          // when it is published
	Schema      json.RawMessage // JSON Schema 2020-12 of the whole event, self-contained, compact
	Example     json.RawMessage // a valid event, compact
	Source      Source
	HasDetails  bool // a notification: its stored events always have details, {} if the publisher left it out

	// Only with SourceAPI; zero for others.
	ID        int64 // never reused, and kept by changes
	Revision  int64 // increases with each change
	CreatedAt time.Time
	UpdatedAt time.Time

	schema  *jsonschema.Schema
	schemas map[string]*jsonschema.Schema // all subschemas by location
	accepts *acceptor                     // fast check; may be nil
	work    int                           // see schemaWork; 0 for the built-in ones, which are simple
}

// Catalog is the set of event types. It is safe for concurrent use: reads see a change
// at once, and never wait for it.
type Catalog struct {
	current   atomic.Pointer[eventTypes]
	changes   sync.Mutex // held while current is replaced
	documents sync.Pool  // of *document, to parse events into
}

// eventTypes is the content of a catalog at one time. It does not change.
type eventTypes struct {
	byName  map[string]*EventType
	sorted  []*EventType
	version uint64        // counts the changes
	changed chan struct{} // closed by the next change
}

// Has reports whether the catalog has an event type.
func (c *Catalog) Has(name string) bool { return c.current.Load().byName[name] != nil }

// Type returns an event type. It belongs to the catalog and must not be changed.
func (c *Catalog) Type(name string) (*EventType, bool) {
	t, ok := c.current.Load().byName[name]
	return t, ok
}

// Types returns every event type, sorted by name.
func (c *Catalog) Types() []*EventType { return slices.Clone(c.current.Load().sorted) }

// Version returns a number that changes with every change of the catalog.
func (c *Catalog) Version() uint64 { return c.current.Load().version }

// Changed returns a channel that is closed by the next change of the catalog.
func (c *Catalog) Changed() <-chan struct{} { return c.current.Load().changed }

// Set adds an event type, or replaces the one with its name.
func (c *Catalog) Set(t *EventType) {
	c.change(func(byName map[string]*EventType) { byName[t.Name] = t })
}

// Remove removes an event type, if there is one with this name.
func (c *Catalog) Remove(name string) {
	c.change(func(byName map[string]*EventType) { delete(byName, name) })
}

// change replaces the content by a changed copy.
func (c *Catalog) change(change func(byName map[string]*EventType)) {
	c.changes.Lock()
	defer c.changes.Unlock()
	before := c.current.Load()
	after := &eventTypes{byName: maps.Clone(before.byName), version: before.version + 1, changed: make(chan struct{})}
	change(after.byName)
	after.sorted = slices.SortedFunc(maps.Values(after.byName), func(a, b *EventType) int { return strings.Compare(a.Name, b.Name) })
	c.current.Store(after)
	close(before.changed)
}

//go:embed catalog
var embedded embed.FS

// SchemaFile is an event type: a file <name>.json with a JSON Schema. A file in a folder of the
// built-in ones is a schema that event types reference by its path.
type SchemaFile struct {
	Name    string // path
	Content []byte
}

// LoadCatalog returns the catalog of the spec's section 6.2, with the notification
// categories of section 2.4, and the operator's own event types. The operator's must be
// closed and self-contained, and must define the fields of every event. An error
// names the file and what to change.
func LoadCatalog(more ...SchemaFile) (*Catalog, error) {
	var files []SchemaFile
	err := fs.WalkDir(embedded, "catalog", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := embedded.ReadFile(path)
		files = append(files, SchemaFile{strings.TrimPrefix(path, "catalog/"), content})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	return newCatalog(files, more...)
}

var eventName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]*$`)

// MaxEventName is the maximum length of an event type name, in bytes.
const MaxEventName = 128

// eventNameForm describes the names that IsEventName accepts.
const eventNameForm = "1 to 128 of A-Z, a-z, 0-9, _, ., : and -, beginning with a letter or digit"

// IsEventName reports whether a name has the form of an event type name.
func IsEventName(name string) bool { return len(name) <= MaxEventName && eventName.MatchString(name) }

// NewCatalog returns a catalog of the given event types, without the built-in ones.
func NewCatalog(types ...*EventType) *Catalog {
	c, byName := new(Catalog), make(map[string]*EventType, len(types))
	c.documents.New = func() any { return new(document) }
	for _, t := range types {
		byName[t.Name] = t
	}
	c.current.Store(&eventTypes{byName: byName, changed: make(chan struct{})})
	c.change(func(map[string]*EventType) {}) // sorts
	return c
}

// newCatalog compiles the files. An error names the file and what to change.
func newCatalog(files []SchemaFile, more ...SchemaFile) (*Catalog, error) {
	byName := make(map[string]*EventType)
	var parts []SchemaFile
	for _, f := range files {
		if strings.Contains(f.Name, "/") {
			f.Content = appendCompact(nil, f.Content)
			parts = append(parts, f)
		}
	}
	for _, f := range files {
		if strings.Contains(f.Name, "/") {
			continue
		}
		t, err := newEventType(f, parts)
		if err != nil {
			return nil, fmt.Errorf("event type %s: %w", f.Name, err)
		}
		if byName[t.Name] != nil {
			return nil, fmt.Errorf("event type %s: duplicate event type", f.Name)
		}
		t.Source = SourceBuiltIn
		byName[t.Name] = t
	}
	for _, f := range more {
		t, err := newEventType(f, nil)
		if err == nil && byName[t.Name] != nil {
			err = errors.New("an event type with this name already exists")
		}
		if err == nil {
			err = t.checkOwn(context.Background(), f.Content)
		}
		if err != nil {
			return nil, fmt.Errorf("event type %s: %w", f.Name, err)
		}
		t.Source = SourceFile
		byName[t.Name] = t
	}
	c := NewCatalog(slices.Collect(maps.Values(byName))...)
	for _, t := range c.Types() {
		if t.Name == EventPing {
			continue // cannot be published; catalog_test.go tests it
		}
		if _, err := c.NewEvent(t.Example, "examples[0]", time.Time{}); err != nil {
			return nil, fmt.Errorf("event type %s.json: its example is invalid: %w", t.Name, err)
		}
	}
	return c, nil
}

// Dictionary returns a compression dictionary: an example of each event type and
// each kind of notification, from after its timestamp. It is deterministic.
func (c *Catalog) Dictionary() []byte {
	var all []byte
	files, _ := fs.Glob(embedded, "catalog/notifications/*.json")
	for _, name := range files {
		var f struct{ Examples []json.RawMessage }
		if b, err := embedded.ReadFile(name); err == nil && json.Unmarshal(b, &f) == nil && len(f.Examples) > 0 {
			all = append(append(all, `,"details":`...), appendCompact(nil, f.Examples[0])...)
		}
	}
	for _, t := range c.Types() {
		if e, err := c.NewEvent(t.Example, "", time.Time{}); err == nil {
			_, rest, _ := bytes.Cut(e.JSON, []byte(e.Timestamp+`"`))
			all = append(all, rest...)
		}
	}
	return all
}

func newEventType(f SchemaFile, parts []SchemaFile) (*EventType, error) {
	name, ok := strings.CutSuffix(f.Name, ".json")
	if !ok || !IsEventName(name) {
		return nil, errors.New("the file name must be the event name (" + eventNameForm + ") followed by .json")
	}
	var d document
	if err := d.parse(f.Content, "the file"); err != nil {
		return nil, err
	}
	if err := d.checkSize(0); err != nil {
		return nil, err
	}
	text := bundle(appendCompact(nil, f.Content), parts)
	schema, err := compileSchema("urn:event_type:"+name, text)
	if err != nil {
		return nil, err
	}
	t := &EventType{
		Name: name, Title: schema.Title, Description: schema.Description, Schema: text,
		schema: schema, schemas: make(map[string]*jsonschema.Schema),
	}
	if examples, ok := d.member(0, "examples"); ok {
		for _, example := range d.elements(examples) {
			t.Example = appendCompact(nil, d.raw(example))
			break
		}
	}
	if t.Title == "" || t.Description == "" || t.Example == nil {
		return nil, errors.New("the schema must have a title, a description and at least one example in examples")
	}
	collectSchemas(t.schemas, schema)
	t.HasDetails = schema.Properties["details"] != nil && schema.Properties["category"] != nil && len(parts) > 0
	t.accepts = compileAcceptor(schema, false, 0, new(int))
	if t.accepts != nil {
		for _, f := range t.accepts.fields {
			if f.name == "id" || f.name == "timestamp" {
				t.accepts.require &^= f.bit // NewEvent fills in a missing one
			}
		}
	}
	return t, nil
}

// commonFields are the fields of every event (spec, section 2.3): their schema,
// values that it must allow, and one that it must refuse.
var commonFields = [...]struct {
	name, schema string
	allow        []any
	refuse       any
}{
	{"id", `{"type": "string", "format": "uuid"}`, []any{
		"00000000-0000-0000-0000-000000000000", "019ddcfe-0f37-4cf8-8f53-1f6be7c2d3c7", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
	}, "7"},
	{"timestamp", `{"type": "string", "format": "date-time"}`, []any{
		"2026-03-14T08:24:48Z", "1999-12-31T23:59:59.644Z", "2100-01-01T00:00:00.123456789Z", "2026-03-14T08:24:48.6+00:00",
	}, "yesterday"},
	{"name", `{"const": "%s"}`, nil, "another_name"}, // must allow the type's own name
	{"version", `{"const": "` + EventVersion + `"}`, []any{EventVersion}, EventVersion + "0"},
}

// checkOwn checks that an operator's event type has what all embedded ones have.
// The error says what to change in its file.
func (t *EventType) checkOwn(ctx context.Context, content []byte) error {
	var d document
	if err := d.parse(content, ""); err != nil {
		return err
	}
	if value, ok := d.member(0, "$schema"); ok && string(d.raw(value)) != `"https://json-schema.org/draft/2020-12/schema"` {
		return errors.New("its $schema must be https://json-schema.org/draft/2020-12/schema")
	}
	closed := slices.ContainsFunc([]string{"additionalProperties", "unevaluatedProperties"}, func(name string) bool {
		value, ok := d.member(0, name)
		return ok && d.nodes[value].kind == jsontext.KindFalse
	})
	if at := d.externalRef(0); at != "" {
		return fmt.Errorf("a schema cannot refer to another file, only to its own $defs: %s", at)
	}
	var err error
	if t.work, err = schemaWork(ctx, t.schema); err != nil {
		return err
	}
	if !closed {
		return errors.New(`the schema must be closed, so that misspelled fields are rejected: add "additionalProperties": false`)
	}
	example := func() map[string]any {
		var d document
		if err := d.parse(t.Example, ""); err != nil {
			return nil
		}
		event, _ := d.any(0).(map[string]any)
		return event
	}
	for _, f := range commonFields {
		if t.schema.Properties[f.name] == nil || !slices.Contains(t.schema.Required, f.name) {
			return fmt.Errorf("its properties and required must list the fields of every event: %s is missing", f.name)
		}
	}
	if event := example(); event == nil {
		return errors.New("its first example must be an event, an object")
	} else if v := t.faults(event, ""); len(v) > 0 {
		return fmt.Errorf("its first example is invalid: %w", invalid(v))
	}
	for _, f := range commonFields {
		fits := func(value any) bool {
			event := example()
			event[f.name] = value
			return t.schema.Validate(event) == nil
		}
		allow := f.allow
		if f.name == "name" {
			allow = []any{t.Name}
		}
		if slices.ContainsFunc(allow, func(v any) bool { return !fits(v) }) || fits(f.refuse) {
			return fmt.Errorf("the schema must define the field %s like every event: %s",
				f.name, strings.ReplaceAll(f.schema, "%s", t.Name))
		}
	}
	return nil
}

// externalRef returns a $ref in the schema at node i to another file, or "". The schema
// library does not report every such reference as an error.
func (d *document) externalRef(i int32) string {
	for name, value := range d.members(i) {
		if string(d.text(name)) == "$ref" && d.nodes[value].kind == jsontext.KindString && !bytes.HasPrefix(d.text(value), []byte("#")) {
			return quotedName(string(d.text(value)))
		}
		if at := d.externalRef(value); at != "" {
			return at
		}
	}
	for _, value := range d.elements(i) {
		if at := d.externalRef(value); at != "" {
			return at
		}
	}
	return ""
}

// bundle inlines the parts that a compact schema refers to, so that it is
// self-contained.
func bundle(schema []byte, parts []SchemaFile) []byte {
	var defs []byte
	for _, p := range parts {
		name := p.Name[strings.LastIndexByte(p.Name, '/')+1 : len(p.Name)-len(".json")]
		ref := []byte(`"$ref":"` + p.Name + `"`)
		if !bytes.Contains(schema, ref) {
			continue
		}
		schema = bytes.ReplaceAll(schema, ref, []byte(`"$ref":"#/$defs/`+name+`"`))
		if defs == nil {
			defs = append(defs, `,"$defs":{"`...)
		} else {
			defs = append(defs, `,"`...)
		}
		defs = append(defs, name...)
		defs = append(defs, `":`...)
		defs = append(defs, bytes.Replace(p.Content, []byte(`"$schema":"https://json-schema.org/draft/2020-12/schema",`), nil, 1)...)
	}
	if defs == nil {
		return schema
	}
	return append(append(schema[:len(schema)-1:len(schema)-1], defs...), '}', '}')
}

// check returns the schema's errors for the event at node root. id and timestamp
// may be missing.
func (t *EventType) check(d *document, root int32, at string, now time.Time) []Validation {
	if t.accepts != nil && t.accepts.accept(d, root) {
		return nil
	}
	if values := int(d.nodes[root].next - root); t.work*values > maxEventWork {
		return []Validation{{InvalidTooLarge, fmt.Sprintf("must have at most %d values and names, because the schema of %s is complex",
			maxEventWork/t.work, t.Name), wholeEvent(at)}}
	}
	event := d.any(root).(map[string]any)
	if _, ok := event["id"]; !ok {
		event["id"] = "00000000-0000-0000-0000-000000000000"
	}
	if _, ok := event["timestamp"]; !ok {
		event["timestamp"] = FormatTime(now)
	}
	return t.faults(event, at)
}

// document returns a document to parse into; release returns it to the pool.
func (c *Catalog) document() *document { return c.documents.Get().(*document) }

func (c *Catalog) release(d *document) {
	if cap(d.nodes) > 4096 {
		return // do not retain the memory of a huge event
	}
	d.src, d.in = nil, bytes.Buffer{}
	d.dec.Reset(&d.in) // drops the reference to the publisher's bytes
	c.documents.Put(d)
}
