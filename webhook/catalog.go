package webhook

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// EventType is a name in the catalog, with the JSON Schema of its fields.
type EventType struct {
	Name        string
	Title       string
	Description string          // when it is emitted
	Schema      json.RawMessage // JSON Schema 2020-12 of the whole event, in itself complete, compact
	Example     json.RawMessage // an event that passes it, compact

	schema  *jsonschema.Schema
	schemas map[string]*jsonschema.Schema // by location, with all that is in it
	accepts *acceptor                     // a quick yes, or nil
}

// Catalog is the set of event types. It is safe for use by several goroutines.
type Catalog struct {
	types     map[string]*EventType
	sorted    []*EventType
	documents sync.Pool // of *document, to read events into
}

// Has says whether there is an event type of that name.
func (c *Catalog) Has(name string) bool { return c.types[name] != nil }

// Type returns the event type of that name. It is the catalog's own: do not
// change it.
func (c *Catalog) Type(name string) (*EventType, bool) {
	t, ok := c.types[name]
	return t, ok
}

// Types returns every event type, sorted by name.
func (c *Catalog) Types() []*EventType { return slices.Clone(c.sorted) }

//go:embed catalog
var embedded embed.FS

// LoadCatalog returns the catalog of the spec's section 6.2, with the
// notification categories of section 2.4.
func LoadCatalog() (*Catalog, error) {
	var files []schemaFile
	err := fs.WalkDir(embedded, "catalog", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := embedded.ReadFile(path)
		files = append(files, schemaFile{strings.TrimPrefix(path, "catalog/"), content})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	return newCatalog(files)
}

// schemaFile is one file of a catalog: an event type as <name>.json, or a
// schema in a folder that event types refer to by that path.
type schemaFile struct {
	path    string
	content []byte
}

var eventName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// newCatalog compiles the files. An error names the file, and what to change.
func newCatalog(files []schemaFile) (*Catalog, error) {
	c := &Catalog{types: make(map[string]*EventType)}
	c.documents.New = func() any { return new(document) }
	var parts []schemaFile
	for _, f := range files {
		if strings.Contains(f.path, "/") {
			f.content = appendCompact(nil, f.content)
			parts = append(parts, f)
		}
	}
	for _, f := range files {
		if strings.Contains(f.path, "/") {
			continue
		}
		t, err := newEventType(f, parts)
		if err != nil {
			return nil, fmt.Errorf("event type %s: %w", f.path, err)
		}
		if c.types[t.Name] != nil {
			return nil, fmt.Errorf("event type %s: there are two of that name", f.path)
		}
		c.types[t.Name] = t
		c.sorted = append(c.sorted, t)
	}
	slices.SortFunc(c.sorted, func(a, b *EventType) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range c.sorted {
		if t.Name == EventPing {
			continue // which cannot be published; its test is in catalog_test.go
		}
		if _, err := c.NewEvent(t.Example, "examples[0]", time.Time{}); err != nil {
			return nil, fmt.Errorf("event type %s.json: its example does not pass: %w", t.Name, err)
		}
	}
	return c, nil
}

func newEventType(f schemaFile, parts []schemaFile) (*EventType, error) {
	name, ok := strings.CutSuffix(f.path, ".json")
	if !ok || !eventName.MatchString(name) {
		return nil, errors.New("the file's name must be the event's name, of a-z, 0-9 and _, and .json")
	}
	var d document
	if err := d.parse(f.content, ""); err != nil {
		return nil, err
	}
	text := bundle(appendCompact(nil, f.content), parts)
	schema, err := compileSchema("urn:event_type:"+name, text)
	if err != nil {
		return nil, err
	}
	t := &EventType{
		Name: name, Title: schema.Title, Description: schema.Description, Schema: text,
		schema: schema, schemas: make(map[string]*jsonschema.Schema),
	}
	for name, value := range d.members(0) {
		if string(d.text(name)) == "examples" && d.nodes[value].kind == jsontext.KindBeginArray {
			for _, example := range d.elements(value) {
				t.Example = appendCompact(nil, d.raw(example))
				break
			}
		}
	}
	if t.Title == "" || t.Description == "" || t.Example == nil {
		return nil, errors.New("the schema must have a title, a description and one of examples")
	}
	collectSchemas(t.schemas, schema)
	t.accepts = compileAcceptor(schema, false, 0)
	if t.accepts != nil {
		for _, f := range t.accepts.fields {
			if f.name == "id" || f.name == "timestamp" {
				t.accepts.require &^= f.bit // left out, they are filled in
			}
		}
	}
	return t, nil
}

// bundle puts the parts that a compact schema refers to into the schema, so
// that whoever reads it needs no other file.
func bundle(schema []byte, parts []schemaFile) []byte {
	var defs []byte
	for _, p := range parts {
		name := p.path[strings.LastIndexByte(p.path, '/')+1 : len(p.path)-len(".json")]
		ref := []byte(`"$ref":"` + p.path + `"`)
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
		defs = append(defs, bytes.Replace(p.content, []byte(`"$schema":"https://json-schema.org/draft/2020-12/schema",`), nil, 1)...)
	}
	if defs == nil {
		return schema
	}
	return append(append(schema[:len(schema)-1:len(schema)-1], defs...), '}', '}')
}

// check says what the event type's schema finds wrong with the event at node
// root, whose id and timestamp may be missing.
func (t *EventType) check(d *document, root int32, at string, now time.Time) []Validation {
	if t.accepts != nil && t.accepts.accept(d, root) {
		return nil
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

// document returns a document to parse into; release gives it back.
func (c *Catalog) document() *document { return c.documents.Get().(*document) }

func (c *Catalog) release(d *document) {
	if cap(d.nodes) > 4096 {
		return // one huge event shall not hold on to its memory
	}
	d.src, d.in = nil, bytes.Buffer{}
	d.dec.Reset(&d.in) // which lets go of the publisher's bytes
	c.documents.Put(d)
}
