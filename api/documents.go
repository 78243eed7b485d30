package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"

	"service/webhook"
)

// documents are the responses that contain the whole catalog. They are rendered when the catalog
// changes. The rendering of each event type is kept until that type changes, so a change costs
// little more than copying the rest.
type documents struct {
	catalog  *webhook.Catalog
	settings settings
	fixed    map[string]*file // by path: what does not depend on the catalog

	current atomic.Pointer[rendering]

	mu    sync.Mutex               // held while rendering
	base  *documentBase            // nil before the first rendering
	types map[string]*renderedType // by name
}

// rendering is the documents for one version of the catalog.
type rendering struct {
	version    uint64
	contract   *file // the OpenAPI document
	eventTypes *file // the list of event types

	pages map[string]*file // of the reference, by path, with documents.fixed
}

// renderDelay is the time from the start or a change to the rendering of the documents, unless a
// client asks for them sooner. Many changes in a row are rendered once.
const renderDelay = time.Second

func newDocuments(catalog *webhook.Catalog, s settings) *documents {
	s.BaseURL = cmp.Or(s.BaseURL, exampleBaseURL)
	guide := s.Guide()
	return &documents{
		catalog: catalog, settings: s,
		fixed: map[string]*file{
			referenceStylePath:         newFile("text/css; charset=utf-8", "", referenceCSS),
			referenceScriptPath:        newFile("text/javascript; charset=utf-8", "", copyScript),
			receivingPath:              newFile(mediaHTML, referencePolicy, guidePage(guide)),
			receivingPath + textSuffix: newFile(mediaMarkdown, "", []byte(guide)),
			llmsPath:                   newFile("text/plain; charset=utf-8", "", llmsText(s.BaseURL)),
		},
		types: make(map[string]*renderedType),
	}
}

// documentPaths returns the path of every document except the contract.
func documentPaths() []string {
	all := []string{referenceStylePath, referenceScriptPath, llmsPath}
	for _, p := range docPages {
		all = append(all, p.Path, p.Path+textSuffix)
	}
	return all
}

// run renders the documents after the start, and after changes of the catalog, until ctx ends.
func (d *documents) run(ctx context.Context) {
	for {
		select {
		case <-time.After(renderDelay):
		case <-ctx.Done():
			return
		}
		changed := d.catalog.Changed()
		d.get()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// get returns the documents for the current catalog, and renders them if run has not yet done so.
// Concurrent callers wait for a single rendering.
func (d *documents) get() *rendering {
	if r := d.current.Load(); r != nil && r.version == d.catalog.Version() {
		return r
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	version := d.catalog.Version() // a change during the rendering increases it, so the next call renders again
	if r := d.current.Load(); r != nil && r.version == version {
		return r
	}
	if d.base == nil {
		d.base = newDocumentBase(d.settings)
	}
	parts := d.parts()
	r := &rendering{
		version:    version,
		contract:   newFile("application/json; charset=utf-8", "", d.base.contract(parts)),
		eventTypes: newFile("application/json; charset=utf-8", "", eventTypeList(parts)),
		pages:      maps.Clone(d.fixed),
	}
	maps.Copy(r.pages, d.base.pages)
	r.pages[typesPage] = newFile(mediaHTML, referencePolicy,
		d.base.types.join(parts, func(part *renderedType) []byte { return part.html }))
	r.pages[typesPage+textSuffix] = newFile(mediaMarkdown, "",
		d.base.typesText.join(parts, func(part *renderedType) []byte { return part.text }))
	d.current.Store(r)
	return r
}

// parts returns the rendering of each event type, in the order of the catalog.
func (d *documents) parts() []*renderedType {
	types := d.catalog.Types()
	names := eventSchemaNames(types)
	parts := make([]*renderedType, 0, len(types))
	known := make(map[string]*renderedType, len(types))
	first := make(map[string]string) // the first event type with the same variants
	for _, t := range types {
		part := d.types[t.Name]
		if part == nil || part.of != t || part.schema != names[t.Name] {
			part = d.base.eventType(t, names[t.Name], "")
		}
		sameAs := first[part.variants]
		if part.variants != "" && sameAs == "" {
			first[part.variants] = t.Name
		}
		if part.sameAs != sameAs {
			part = d.base.eventType(t, names[t.Name], sameAs)
		}
		parts = append(parts, part)
		known[t.Name] = part
	}
	d.types = known
	return parts
}

// renderedType is an event type's part of the documents.
type renderedType struct {
	of       *webhook.EventType
	schema   string                   // the name of its schema in the OpenAPI document
	schemas  members[json.RawMessage] // of the event type and of its definitions
	record   []byte                   // its record, as JSON
	html     []byte                   // its part of the reference page
	text     []byte                   // its part of the page as Markdown
	variants string                   // the digest of its variants, "" for none
	sameAs   string                   // the event type that shows the same variants, "" if html shows them
}

// eventTypeList returns the response of the list of event types.
func eventTypeList(parts []*renderedType) []byte {
	records := make([]json.RawMessage, len(parts))
	for i, part := range parts {
		records[i] = part.record
	}
	return append(appendArray([]byte(`{"data":`), records), "}\n"...)
}

// documentBase is the part of the documents that does not depend on the catalog.
type documentBase struct {
	document, components, schemas members[json.RawMessage] // each without the next one
	event                         json.RawMessage          // the description of DeliveredEvent

	templates        *template.Template
	pages            map[string]*file  // by path, without those of the event types
	types, typesText frame             // those of the event types
	ids              map[string]string // the path of the page with an ID
}

// frame is a page without its event types.
type frame struct{ head, tail []byte }

func newFrame(page []byte) frame {
	head, tail, _ := bytes.Cut(page, []byte(eventTypesHere))
	return frame{head, tail}
}

// join returns the page with its event types, each rendered by of.
func (f frame) join(parts []*renderedType, of func(*renderedType) []byte) []byte {
	all := [][]byte{f.head}
	for _, part := range parts {
		all = append(all, of(part))
	}
	return slices.Concat(append(all, f.tail)...)
}

// newDocumentBase reads openapi.yaml. It panics if the file is invalid, which every test would
// detect.
func newDocumentBase(s settings) *documentBase {
	var root yaml.Node
	if err := yaml.Unmarshal(openapiYAML, &root); err != nil {
		panic(fmt.Errorf("openapi.yaml: %w", err))
	}
	b := new(documentBase)
	mustDecode(appendYAML(nil, &root), &b.document)
	var paths, event members[json.RawMessage]
	mustDecode(b.document.get("paths"), &paths)
	for i := range paths {
		paths[i].Value = addAction(paths[i].Value)
	}
	b.document.set("paths", appendObject(nil, paths))
	mustDecode(b.document.get("components"), &b.components)
	mustDecode(b.components.get("schemas"), &b.schemas)
	mustDecode(b.schemas.get("DeliveredEvent"), &event)
	b.event = event.get("description")

	b.templates = referenceTemplate()
	b.render(s)
	return b
}

// render renders the pages, with links to the IDs on other pages.
func (b *documentBase) render(s settings) {
	page := &referencePage{BaseURL: s.BaseURL}
	mustDecode(s.fill(b.contract(nil)), &page.contract)
	b.pages, b.ids = make(map[string]*file), make(map[string]string)
	html := make(map[string][]byte)
	for _, p := range docPages {
		if p.Path == receivingPath {
			continue
		}
		page.docPage = p
		html[p.Path] = b.execute("reference", page)
		for _, found := range pageID.FindAllSubmatch(html[p.Path], -1) {
			if id := string(found[1]); b.ids[id] == "" {
				b.ids[id] = p.Path
			}
		}
	}
	for path, content := range html {
		page.docPage = docPages[slices.IndexFunc(docPages, func(p docPage) bool { return p.Path == path })]
		content, text := b.linked(content, pageLink, path), b.linked([]byte(page.text()), textLink, path)
		if path == typesPage {
			b.types, b.typesText = newFrame(content), newFrame(text)
			continue
		}
		b.pages[path] = newFile(mediaHTML, referencePolicy, content)
		b.pages[path+textSuffix] = newFile(mediaMarkdown, "", text)
	}
}

var pageID = regexp.MustCompile(` id="([^"]+)"`)

// linkForm is how a page links to an ID: how such a link is found, and how one to another page is written.
type linkForm struct {
	pattern *regexp.Regexp
	format  string
}

var (
	pageLink = linkForm{regexp.MustCompile(` href="#([^"]+)"`), ` href="%s#%s"`}
	textLink = linkForm{regexp.MustCompile(`\]\(#([^)]+)\)`), "](%s" + textSuffix + "#%s)"}
)

// pageWith returns the path of the page that contains an ID; here is the path of the page with the
// link.
func (b *documentBase) pageWith(id, here string) string {
	page := b.ids[id]
	if page == "" && strings.HasPrefix(id, "event-") {
		page = typesPage
	}
	if page == "" || id == "content" || strings.HasPrefix(id, "operations") {
		page = here
	}
	return page
}

// linked changes the links of a page to IDs on other pages.
func (b *documentBase) linked(page []byte, form linkForm, here string) []byte {
	return form.pattern.ReplaceAllFunc(page, func(link []byte) []byte {
		id := string(form.pattern.FindSubmatch(link)[1])
		if to := b.pageWith(id, here); to != here {
			return fmt.Appendf(nil, form.format, to, id)
		}
		return link
	})
}

func (b *documentBase) execute(name string, data any) []byte {
	var text bytes.Buffer
	if err := b.templates.ExecuteTemplate(&text, name, data); err != nil {
		panic(fmt.Errorf("the reference: %w", err))
	}
	return bytes.TrimSpace(text.Bytes()) // the definitions before it leave empty lines
}

// eventType renders an event type. It omits variants that equal those of sameAs.
func (b *documentBase) eventType(t *webhook.EventType, schema, sameAs string) *renderedType {
	part := &renderedType{of: t, schema: schema, schemas: eventSchemas(schema, t.Schema), sameAs: sameAs}
	var record bytes.Buffer
	if err := render(&record, newEventTypeRecord(t)); err != nil {
		panic(fmt.Errorf("event type %s: %w", t.Name, err)) // an event type's texts are valid JSON
	}
	part.record = record.Bytes()
	page := &referencePage{maxRows: maxEventRows}
	mustDecode(appendObject(nil, part.schemas), &page.Components.Schemas)
	entry := page.entry(t, schema)
	if entry.Variants != nil {
		digest := sha256.Sum256(fmt.Appendf(nil, "%#v", entry.Variants))
		part.variants = string(digest[:])
	}
	if sameAs != "" {
		entry.Variants, entry.VariantsOf = nil, sameAs
	}
	part.html = b.linked(b.execute("eventType", entry), pageLink, typesPage)
	part.text = b.linked([]byte(entry.text()), textLink, typesPage)
	if t.HasDetails {
		withDetails(part.schemas)
	}
	return part
}

// contract returns the OpenAPI document with the schemas of the event types. DeliveredEvent is any
// one of them.
func (b *documentBase) contract(parts []*renderedType) []byte {
	schemas := slices.Clone(b.schemas)
	var variants []json.RawMessage
	var mapping members[json.RawMessage]
	for _, part := range parts {
		schemas = append(schemas, part.schemas...)
		variants = append(variants, fmt.Appendf(nil, `{"$ref":%q}`, schemasAt+part.schema))
		mapping = append(mapping, member[json.RawMessage]{part.of.Name, appendText(nil, schemasAt+part.schema)})
	}
	schemas.set("DeliveredEvent", appendObject(nil, members[json.RawMessage]{
		{"description", b.event},
		{"oneOf", appendArray(nil, variants)},
		{"discriminator", fmt.Appendf(nil, `{"propertyName":"name","mapping":%s}`, appendObject(nil, mapping))},
	}))
	components, document := slices.Clone(b.components), slices.Clone(b.document)
	components.set("schemas", appendObject(nil, schemas))
	document.set("components", appendObject(nil, components))
	return append(appendObject(nil, document), '\n')
}

// readContract returns the OpenAPI document, without an envelope.
func readContract(req *request) (answer, error) {
	return req.api.documents.get().contract.answer()
}

// readDocument returns the document at the path of the request.
func readDocument(req *request) (answer, error) {
	return req.api.documents.get().pages[req.route.pattern].answer()
}

// file is a response that is rendered in advance. Callers must not change its content.
type file struct {
	contentType string
	policy      string // Content-Security-Policy, or "" for none
	content     []byte
	tag         string // the entity tag
}

func newFile(contentType, policy string, content []byte) *file {
	return &file{contentType, policy, content, new(answer).entityTag(content)}
}

// answer returns the file as the response to a GET.
func (f *file) answer() (answer, error) { return answer{file: f, tagged: true}, nil }
