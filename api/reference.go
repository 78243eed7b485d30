package api

import (
	"bytes"
	_ "embed" // for the page and its style
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"

	"service/webhook"
)

// The pages of the reference, their style and the script of their copy buttons.
var (
	//go:embed reference.html
	referenceHTML string
	//go:embed reference.css
	referenceCSS []byte
	//go:embed copy.js
	copyScript []byte
)

// referencePolicy lets the pages load only their own style sheet and script.
const referencePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'"

// The paths of the reference. Each page is Markdown at its path with textSuffix.
const (
	referencePath       = "/docs"
	referenceStylePath  = "/docs/style.css"
	referenceScriptPath = "/docs/copy.js"
	receivingPath       = "/docs/receiving"
	textSuffix          = ".md"
	llmsPath            = "/llms.txt"
)

// docPage is a page of the reference.
type docPage struct {
	Path, Title string
	Lead        string // Markdown; "" for the description of tag
	Group       string // begins a group in the contents
	tag         string // of its operations; "" for none, or for what movesPage and platformPage select
}

// The pages whose operations do not share one tag.
const (
	platformPage = "/docs/platform"
	movesPage    = "/docs/moves"
	schemasPage  = "/docs/schemas"
	typesPage    = "/docs/event-types"
)

// docPages are the pages, in the order of their contents.
var docPages = []docPage{
	{Path: referencePath, Title: "Guide"},
	{Path: receivingPath, Title: "Receiving webhooks"},
	{Path: "/docs/subscriptions", Title: "Subscriptions", Group: "Operations", tag: "Subscriptions"},
	{Path: "/docs/deliveries", Title: "Deliveries", tag: "Deliveries"},
	{Path: "/docs/incidents", Title: "Incidents", tag: "Incidents"},
	{Path: "/docs/events", Title: "Events", tag: "Events"},
	{Path: typesPage, Title: "Event types", tag: "Event types"},
	{Path: "/docs/service", Title: "Service", tag: "Service"},
	{Path: schemasPage, Title: "Schemas", Lead: "The objects in requests and responses."},
	{Path: platformPage, Title: "Platform operations", Group: "For the platform",
		Lead: "Operations for the backend that runs all programs. They need a platform token; partners cannot use them."},
	{Path: movesPage, Title: "Program moves",
		Lead: "Operations between two installations: the one that a program leaves calls them on the one that receives it. " +
			"`service program move` does that for you."},
}

// pageOf returns the path of the page of an operation.
func pageOf(o Operation) string {
	switch {
	case strings.HasPrefix(o.Path, "/v2/programs/{id}/move"):
		return movesPage
	case o.Scope == string(webhook.ScopePlatform):
		return platformPage
	}
	for _, p := range docPages {
		if p.tag != "" && slices.Contains(o.Tags, p.tag) {
			return p.Path
		}
	}
	return platformPage
}

const (
	mediaHTML     = "text/html; charset=utf-8"
	mediaMarkdown = "text/markdown; charset=utf-8"
)

// exampleBaseURL stands for the address of the service where none is configured.
const exampleBaseURL = "https://service.example"

// contract is the part of the OpenAPI document that the page shows.
type contract struct {
	Info struct {
		Title, Version, Summary, Description string
	}
	Tags       []tag
	Paths      members[pathItem]
	Webhooks   members[pathItem]
	Components struct {
		Parameters members[field]
		Headers    members[field]
		Responses  members[reply]
		Schemas    members[*schema]

		SecuritySchemes members[struct{ Description string }]
	}
	Security []members[[]string]
}

type tag struct{ Name, Description string }

type pathItem struct {
	Parameters []field
	Get        *operation
	Post       *operation
	Put        *operation
	Delete     *operation
}

type operation struct {
	OperationID          string
	Tags                 []string
	Summary, Description string
	Security             *[]members[[]string] // nil: that of the document
	Parameters           []field
	RequestBody          *struct {
		Description string
		Required    bool
		Content     members[media]
	}
	Responses members[reply]
}

// field is a parameter or, without In, a response header.
type field struct {
	Ref                   string `json:"$ref"`
	Name, In, Description string
	Required              bool
	Schema                *schema
	Example               json.RawMessage
}

type reply struct {
	Ref         string `json:"$ref"`
	Description string
	Headers     members[field]
	Content     members[media]
}

type media struct {
	Schema   *schema
	Example  json.RawMessage
	Examples members[struct {
		Summary string
		Value   json.RawMessage
	}]
}

type schema struct {
	Ref                            string `json:"$ref"`
	Type                           oneOrMore
	Format, Description            string
	Enum                           []json.RawMessage
	Const, Default                 json.RawMessage
	Minimum, Maximum               json.Number
	MinLength, MaxLength, MinItems json.Number
	MaxItems                       json.Number
	Properties                     members[*schema]
	Required                       []string
	Items                          *schema
	AnyOf, AllOf                   []*schema
	If, Then                       *schema
	Deprecated                     bool
	AdditionalProperties           json.RawMessage
}

func (s *schema) UnmarshalJSON(text []byte) error {
	if text[0] != '{' { // true and false are valid schemas
		return nil
	}
	type plain schema
	return json.Unmarshal(text, (*plain)(s))
}

// oneOrMore is a list of strings. A single one may be written without brackets.
type oneOrMore []string

func (o *oneOrMore) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		*o = []string{""}
		return json.Unmarshal(text, &(*o)[0])
	}
	return json.Unmarshal(text, (*[]string)(o))
}

// referencePage is the data of the template: a page without the event types, or one of them.
type referencePage struct {
	contract
	docPage
	BaseURL string
	maxRows int // of tables of properties in all; 0 for no limit
	rows    int
}

// eventTypesHere marks where the page shows the event types.
const eventTypesHere = "<!-- event types -->"

// EventTypes returns the mark.
func (p *referencePage) EventTypes() template.HTML { return eventTypesHere }

// Pages returns all pages.
func (p *referencePage) Pages() []docPage { return docPages }

// IsFirst reports whether the page is the guide to the API.
func (p *referencePage) IsFirst() bool { return p.Path == referencePath }

// HasCatalog reports whether the page contains the event types.
func (p *referencePage) HasCatalog() bool { return p.Path == typesPage }

// HasSchemas reports whether the page contains the schemas.
func (p *referencePage) HasSchemas() bool { return p.Path == schemasPage }

// Lead returns the introduction of the page as Markdown.
func (p *referencePage) Lead() string {
	i := slices.IndexFunc(p.Tags, func(t tag) bool { return t.Name == p.tag })
	switch {
	case p.IsFirst():
		return p.Info.Summary
	case i >= 0:
		return p.Tags[i].Description
	}
	return p.docPage.Lead
}

// Anchor returns the ID of the title.
func (p *referencePage) Anchor() string { return anchorOf(p.Title) }

// Section is a part of a page with operations.
type Section struct {
	ID, Title  string
	Operations []Operation
}

// Sections returns the parts of the page with operations, one for each tag.
func (p *referencePage) Sections() []Section {
	var all []Section
	for _, t := range p.Tags {
		s := Section{anchorOf(t.Name), t.Name, nil}
		if t.Name == p.Title {
			s.ID, s.Title = "operations", "Operations"
		}
		for _, o := range p.Operations(t.Name) {
			if pageOf(o) == p.Path {
				s.Operations = append(s.Operations, o)
			}
		}
		if t.Name == "Deliveries" && t.Name == p.tag {
			s.Operations = append(s.Operations, p.Received()...)
		}
		if len(s.Operations) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// Operation is an operation with its method and path.
type Operation struct {
	*operation
	Method, Path string
	Scope        string // "" for any
	Open         bool   // needs no token
	Webhook      bool
	AlsoPut      bool // PUT does the same
	page         *referencePage
	item         pathItem
}

// Operations returns the operations of a tag, deletions last.
func (p *referencePage) Operations(tag string) []Operation { return p.operations(p.Paths, tag) }

// Received returns the requests that partners receive.
func (p *referencePage) Received() []Operation { return p.operations(p.Webhooks, "") }

// operations returns the operations of items with a tag, or all if tag is "". The PUT of an
// action is not listed separately.
func (p *referencePage) operations(items members[pathItem], tag string) []Operation {
	var all []Operation
	for _, m := range items {
		for _, o := range []struct {
			method string
			*operation
		}{{"GET", m.Value.Get}, {"POST", m.Value.Post}, {"PUT", m.Value.Put}, {"DELETE", m.Value.Delete}} {
			if o.operation == nil || tag != "" && !slices.Contains(o.Tags, tag) || strings.HasSuffix(o.OperationID, withPut) {
				continue
			}
			op := Operation{operation: o.operation, Method: o.method, Path: m.Name, Webhook: tag == "", page: p, item: m.Value}
			op.AlsoPut = o.method == http.MethodPost && m.Value.Put != nil && m.Value.Put.OperationID == o.OperationID+withPut
			security := p.Security
			if o.Security != nil {
				security = *o.Security
			}
			op.Open = len(security) == 0
			if !op.Open {
				op.Scope = strings.Join(security[0].get("bearer"), ", ")
			}
			all = append(all, op)
		}
	}
	kept := slices.DeleteFunc(slices.Clone(all), func(o Operation) bool { return o.Method == http.MethodDelete })
	return append(kept, slices.DeleteFunc(all, func(o Operation) bool { return o.Method != http.MethodDelete })...)
}

// AllParameters returns the parameters of the operation and of its path.
func (o Operation) AllParameters() []field {
	var all []field
	for _, q := range slices.Concat(o.item.Parameters, o.Parameters) {
		if q.Ref != "" {
			q = o.page.Components.Parameters.get(anchorName(q.Ref))
		}
		all = append(all, q)
	}
	if !o.Webhook {
		return all
	}
	// OpenAPI forbids parameters of these names: the first is the media type of the body, the
	// second a security scheme.
	text, own := &schema{Type: oneOrMore{"string"}}, o.page.Components.SecuritySchemes.get("authorization_header")
	return append([]field{
		{Name: "Content-Type", In: "header", Required: true, Schema: text, Description: "Always `" + mediaJSON + "`."},
		{Name: "Authorization", In: "header", Schema: text, Description: own.Description},
	}, all...)
}

// Answer is a response of an operation.
type Answer struct {
	Status string
	reply
	page *referencePage
}

// Successes returns the responses that are not errors, and for a webhook all responses.
func (o Operation) Successes() []Answer {
	return o.answers(func(status string) bool { return status < "4" || o.Webhook })
}

// Errors returns the error responses.
func (o Operation) Errors() []Answer {
	return o.answers(func(status string) bool { return status >= "4" && !o.Webhook })
}

func (o Operation) answers(which func(status string) bool) []Answer {
	var all []Answer
	for _, m := range o.Responses {
		if which(m.Name) {
			r := m.Value
			if r.Ref != "" {
				r = o.page.Components.Responses.get(anchorName(r.Ref))
			}
			all = append(all, Answer{m.Name, r, o.page})
		}
	}
	return all
}

// AllErrors returns every error of the document, by status.
func (p *referencePage) AllErrors() []Answer {
	var all []Answer
	for _, m := range p.Components.Responses {
		var example struct{ Error struct{ Code int } }
		for _, c := range m.Value.Content {
			mustDecode(c.Value.Example, &example)
		}
		if code := example.Error.Code; code >= 400 {
			all = append(all, Answer{strconv.Itoa(code), m.Value, p})
		}
	}
	slices.SortStableFunc(all, func(a, b Answer) int { return strings.Compare(a.Status, b.Status) })
	return all
}

// commonHeaders are the headers of every response. The page describes them once.
var commonHeaders = []string{"X-Request-Id", "X-Program-Id", "X-User-Id", "RateLimit-Policy", "RateLimit"}

// OwnHeaders returns the names of the headers that are not common to all responses.
func (a Answer) OwnHeaders() []string {
	var own []string
	for _, m := range a.Headers {
		if !slices.Contains(commonHeaders, m.Name) {
			own = append(own, m.Name)
		}
	}
	return own
}

// AllHeaders returns all response headers.
func (p *referencePage) AllHeaders() []field {
	var all []field
	for _, m := range p.Components.Headers {
		h := m.Value
		h.Name = m.Name
		all = append(all, h)
	}
	return all
}

// Sample is an example of a body.
type Sample struct {
	Summary, Media, Text string
}

// samples returns the examples of every media type, in the order of the document.
func samples(content members[media]) []Sample {
	var all []Sample
	for _, m := range content {
		if len(m.Value.Example) > 0 {
			all = append(all, Sample{"", m.Name, indented(m.Value.Example)})
		}
		for _, e := range m.Value.Examples {
			all = append(all, Sample{e.Value.Summary, m.Name, indented(e.Value.Value)})
		}
	}
	return all
}

// Samples returns the examples of the body.
func (a Answer) Samples() []Sample { return samples(a.Content) }

// Plain returns the description without backquotes.
func (a Answer) Plain() string { return strings.ReplaceAll(strings.TrimSpace(a.Description), "`", "") }

// Shape returns the types of data and meta in the body.
func (a Answer) Shape() template.HTML {
	s := bodySchema(a.Content)
	if s == nil {
		return ""
	}
	var parts []string
	for _, m := range s.Properties {
		if m.Name == "data" || m.Name == "meta" {
			parts = append(parts, "<code>"+m.Name+"</code>: "+string(label(m.Value)))
		}
	}
	return template.HTML(strings.Join(parts, ", "))
}

// bodySchema returns the schema of the first media type, or nil.
func bodySchema(content members[media]) *schema {
	if len(content) == 0 {
		return nil
	}
	return content[0].Value.Schema
}

// BodySchemas returns the schemas of the request body that have properties.
func (o Operation) BodySchemas() []*schema {
	if o.RequestBody == nil {
		return nil
	}
	s := bodySchema(o.RequestBody.Content)
	if len(s.AnyOf) == 0 {
		s = &schema{AnyOf: []*schema{s}}
	}
	var all []*schema
	for _, v := range s.AnyOf {
		if resolved := o.page.resolve(v); len(resolved.Properties) > 0 {
			all = append(all, resolved)
		}
	}
	return all
}

// Rows returns the properties of one of the BodySchemas.
func (o Operation) Rows(s *schema) []Property { return o.page.Properties(s) }

// RequestSamples returns the examples of the request body.
func (o Operation) RequestSamples() []Sample {
	if o.RequestBody == nil {
		return nil
	}
	return samples(o.RequestBody.Content)
}

// Curl returns a curl command for each example of the request body, or one without a
// body.
func (o Operation) Curl() []Sample {
	path := o.Path
	var query strings.Builder
	for _, q := range o.AllParameters() {
		var words oneOrMore
		if len(q.Example) > 0 {
			mustDecode(q.Example, &words)
		}
		example := strings.Join(words, ",")
		switch {
		case q.In == "path":
			path = strings.ReplaceAll(path, "{"+q.Name+"}", example)
		case q.In == "query" && example != "":
			query.WriteString(" \\\n  --data-urlencode " + quoteShell(q.Name+"="+example))
		}
	}
	command := "curl"
	if query.Len() > 0 {
		command += " --get"
	}
	if o.Method != http.MethodGet && (o.RequestBody == nil || !o.RequestBody.Required || o.Method != http.MethodPost) {
		command += " --request " + o.Method
	}
	command += ` "$URL` + path + `"`
	if !o.Open {
		command += " \\\n  --header \"Authorization: Bearer $TOKEN\""
	}
	command += query.String()
	bodies := o.RequestSamples()
	if len(bodies) == 0 {
		return []Sample{{Text: command}}
	}
	for i, s := range bodies {
		flag := "--data "
		if s.Media != mediaJSON {
			flag = "--data-binary "
		}
		bodies[i].Text = command + " \\\n  --header \"Content-Type: " + s.Media + "\" \\\n  " + flag + quoteShell(s.Text)
	}
	return bodies
}

// quoteShell renders an argument for a POSIX shell.
func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// resolve follows a reference to a schema. A reference into a schema yields an empty schema.
func (p *referencePage) resolve(s *schema) *schema {
	if s == nil || s.Ref == "" {
		return s
	}
	if found := p.Components.Schemas.get(strings.TrimPrefix(s.Ref, schemasAt)); found != nil {
		return found
	}
	return &schema{}
}

// Schemas returns the schemas except those of event types.
func (p *referencePage) Schemas() members[*schema] {
	var all members[*schema]
	for _, m := range p.Components.Schemas {
		if !strings.HasPrefix(m.Name, eventPrefix) {
			all = append(all, m)
		}
	}
	return all
}

// entry returns an event type's entry; schema is the name of its schema in the document.
func (p *referencePage) entry(t *webhook.EventType, schema string) EventTypeEntry {
	s := p.Components.Schemas.get(schema)
	e := EventTypeEntry{Name: t.Name, Title: t.Title, Description: t.Description, Example: indented(t.Example)}
	for _, row := range p.Properties(s) {
		if !slices.Contains([]string{"id", "timestamp", "name", "version"}, row.Name) {
			e.Fields = append(e.Fields, row)
		}
	}
	for _, c := range s.AllOf {
		if c.If == nil || c.Then == nil {
			continue
		}
		for _, m := range c.If.Properties {
			for _, then := range c.Then.Properties {
				e.Variants = append(e.Variants, Variant{
					When: m.Name, Is: literal(m.Value.Const), Object: then.Name, Fields: p.Properties(then.Value),
					Free: string(p.resolve(then.Value).AdditionalProperties) != "false",
				})
			}
		}
	}
	e.More = p.rows > p.maxRows
	return e
}

// EventTypeEntry is an event type on the page.
type EventTypeEntry struct {
	Name, Title, Description, Example string
	Fields                            []Property
	Variants                          []Variant
	VariantsOf                        string // the event type with the same variants, which shows them
	More                              bool   // some fields are omitted
}

// Variant lists the fields of an object for one value of another field.
type Variant struct {
	When, Is, Object string
	Fields           []Property
	Free             bool // without Fields: any fields are allowed
}

// Property is a row of a table of properties.
type Property struct {
	Name, Description string
	Type              template.HTML
	Limits            []string
	Required          bool
	Deprecated        bool // in the JSON Schema of an operator's event type
}

// Bounds of a schema on the page, since a schema may contain itself.
const (
	maxDepth       = 4   // of rows
	maxEventRows   = 500 // of an event type
	maxShownValues = 100 // of an enum
)

// Properties returns the rows of a schema, including those of nested objects by their
// paths. Objects that the page shows elsewhere are links.
func (p *referencePage) Properties(s *schema) []Property {
	return p.properties(p.resolve(s), "", 1)
}

// properties returns the rows of s at a path and depth. The rows end at maxDepth, or when the page
// has maxRows.
func (p *referencePage) properties(s *schema, at string, depth int) []Property {
	var all []Property
	for _, m := range s.Properties {
		if p.rows++; p.maxRows > 0 && p.rows > p.maxRows {
			break
		}
		row := p.property(s, m)
		row.Name = at + row.Name
		all = append(all, row)
		inner, under := m.Value, row.Name+"."
		if inner.Items != nil {
			inner, under = inner.Items, row.Name+"[]."
		}
		if strings.HasPrefix(inner.Ref, schemasAt+eventPrefix) { // the page shows the definitions of an event type nowhere else
			inner = p.resolve(inner)
		}
		if inner.Ref == "" && depth < maxDepth {
			all = append(all, p.properties(inner, under, depth+1)...)
		}
	}
	return all
}

func (p *referencePage) property(s *schema, m member[*schema]) Property {
	description := m.Value.Description
	if description == "" {
		description = p.resolve(m.Value).Description
	}
	return Property{
		Name: m.Name, Description: description, Type: label(m.Value),
		Limits: m.Value.Limits(), Required: slices.Contains(s.Required, m.Name), Deprecated: m.Value.Deprecated,
	}
}

// Limits returns the constraints of a value in words.
func (s *schema) Limits() []string {
	var all []string
	span := func(least, most json.Number, what string) {
		switch {
		case least != "" && most != "":
			all = append(all, fmt.Sprintf("%s to %s%s", least, most, what))
		case most != "":
			all = append(all, fmt.Sprintf("at most %s%s", most, what))
		case least != "" && least != "0" && least != "1":
			all = append(all, fmt.Sprintf("at least %s%s", least, what))
		}
	}
	span(s.Minimum, s.Maximum, "")
	span(s.MinLength, s.MaxLength, " characters")
	span(s.MinItems, s.MaxItems, " elements")
	if len(s.Enum) > 0 {
		all = append(all, "one of "+literals(s.Enum))
	}
	if s.Items != nil && len(s.Items.Enum) > 0 {
		all = append(all, "each one of "+literals(s.Items.Enum))
	}
	if len(s.Const) > 0 {
		all = append(all, "always "+literal(s.Const))
	}
	if len(s.Default) > 0 {
		all = append(all, "default "+literal(s.Default))
	}
	return all
}

// literal renders a JSON value for people: strings without quotes, arrays with commas.
func literal(v json.RawMessage) string {
	var text string
	var elements []json.RawMessage
	switch {
	case len(v) > 0 && v[0] == '"' && json.Unmarshal(v, &text) == nil:
		return text
	case len(v) > 0 && v[0] == '[' && json.Unmarshal(v, &elements) == nil:
		return literals(elements)
	}
	return string(v)
}

func literals(values []json.RawMessage) string {
	words := make([]string, min(len(values), maxShownValues))
	for i := range words {
		words[i] = literal(values[i])
	}
	text := strings.Join(words, ", ")
	if more := len(values) - len(words); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// label renders the type of a schema, with links to named schemas.
func label(s *schema) template.HTML {
	escaped := func(t string) template.HTML { return template.HTML(template.HTMLEscapeString(t)) }
	several := func(all []*schema) template.HTML {
		parts := make([]string, len(all))
		for i, v := range all {
			parts[i] = string(label(v))
		}
		return template.HTML(strings.Join(parts, " or "))
	}
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		name := anchorName(s.Ref)
		name = name[strings.LastIndexByte(name, '.')+1:]
		return template.HTML(fmt.Sprintf(`<a href="#%s">%s</a>`, escaped(anchor(s.Ref)), escaped(name)))
	case len(s.AnyOf) > 0:
		return several(s.AnyOf)
	case s.Items != nil:
		of := "array of " + label(s.Items)
		if s.Items.Ref == "" && len(s.Items.Type) == 1 {
			of += "s"
		}
		return of
	case len(s.Type) == 0 && len(s.Const) > 0:
		return "string"
	}
	text := strings.Join(s.Type, " or ")
	switch s.Format {
	case "uuid", "uri", "date-time":
		names := map[string]string{"uuid": "UUID", "uri": "URL", "date-time": "time"}
		text = strings.Replace(text, "string", names[s.Format], 1)
	}
	return escaped(text)
}

// anchorName returns the name of the component that a reference points to.
func anchorName(ref string) string {
	parts := strings.Split(ref, "/") // #, components, their kind, the name
	return parts[3]
}

// anchor returns the ID on the page for a reference.
func anchor(ref string) string {
	name := anchorName(ref)
	if event, ok := strings.CutPrefix(name, eventPrefix); ok {
		event, _, _ = strings.Cut(event, ".") // its definitions are part of it
		return "event-" + event
	}
	return "schema-" + name
}

// indented returns indented JSON; a string is returned as text.
func indented(v json.RawMessage) string {
	var text string
	if len(v) > 0 && v[0] == '"' && json.Unmarshal(v, &text) == nil {
		return strings.TrimSpace(text)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, v, "", "  "); err != nil {
		panic(fmt.Errorf("example in the OpenAPI document: %w", err))
	}
	return b.String()
}

// Guide returns the guide.
func (p *referencePage) Guide() template.HTML { return markdown(p.Info.Description) }

// Chapters returns the contents of the page: the titles of the guide or the operations.
func (p *referencePage) Chapters() []member[string] {
	if p.IsFirst() {
		return slices.Concat([]member[string]{{"Before you begin", "before"}}, chapters(p.Info.Description),
			[]member[string]{{"All errors", "every-error"}, {"Response headers", "response-headers"}})
	}
	var all []member[string]
	for _, s := range p.Sections() {
		for _, o := range s.Operations {
			all = append(all, member[string]{o.Summary, o.OperationID})
		}
	}
	if p.HasCatalog() {
		all = append(all, member[string]{"The catalog", "catalog"})
	}
	return all
}

// chapters returns the second-level headings of a text, each with its ID on the page.
func chapters(text string) []member[string] {
	var all []member[string]
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			title = strings.TrimSpace(title)
			all = append(all, member[string]{title, anchorOf(title)})
		}
	}
	return all
}

// anchorOf returns the ID of a heading.
func anchorOf(title string) string { return strings.ReplaceAll(strings.ToLower(title), " ", "-") }

// commonMark renders the language of descriptions in OpenAPI, with tables. It is safe for
// concurrent use.
var commonMark = goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))

// scrollable lets code and wide tables be scrolled with the keyboard.
var scrollable = strings.NewReplacer("<pre>", `<pre tabindex="0">`,
	"<table>", `<div class="scroll" tabindex="0"><table>`, "</table>", "</table></div>")

// markdown renders a description. HTML in it is omitted.
func markdown(text string) template.HTML {
	var b bytes.Buffer
	if err := commonMark.Convert([]byte(text), &b); err != nil {
		panic(fmt.Errorf("description in the OpenAPI document: %w", err))
	}
	return template.HTML(scrollable.Replace(b.String()))
}

// guideView is the data of the template for a guide.
type guideView struct {
	docPage
	Chapters []member[string]
	Text     template.HTML
}

// Pages returns all pages.
func (guideView) Pages() []docPage { return docPages }

// guidePage renders the guide for receivers as a page.
func guidePage(text string) []byte {
	i := slices.IndexFunc(docPages, func(p docPage) bool { return p.Path == receivingPath })
	var b bytes.Buffer
	if err := referenceTemplate().ExecuteTemplate(&b, "guide", guideView{docPages[i], chapters(text), markdown(text)}); err != nil {
		panic(fmt.Errorf("the page %s: %w", receivingPath, err))
	}
	return b.Bytes()
}

func referenceTemplate() *template.Template {
	return template.Must(template.New("reference").Funcs(template.FuncMap{"markdown": markdown, "label": label}).Parse(referenceHTML))
}
