package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// eventTypePages are the pages of event types.
type eventTypePages struct{ *site }

// eventTypeRecords are the event types by group.
type eventTypeRecords struct {
	groups []eventGroup
	asking map[string]record.EventSubscribers
	api    string
}

func (h *eventTypePages) list(r *request) (response, error) {
	asking, err := h.store.Events().CountSubscribers(r.Context(), r.program)
	if err != nil {
		return response{}, err
	}
	t := eventTypeRecords{groups: groupsOf(h.cfg.Rules.Catalog, nil), asking: asking, api: h.curl.Command("GET", "/v2/event_types", "")}
	return response{page: eventTypesPage(h.frame(r, "Event types"), &t)}, nil
}

// eventTypeRecord is an event type with its subscribers.
type eventTypeRecord struct {
	*webhook.EventType
	fields      []fieldGroup
	subscribers []webhook.Subscription
	states      subscriptionStates
	more        bool // there are more subscribers
	api         string
	change      string // request that changes it, "" if it is not defined over the API
}

// shownSubscribers is how many subscriptions the event type page lists.
const shownSubscribers = 100

func (h *eventTypePages) show(r *request) (response, error) {
	t, ok := h.cfg.Rules.Catalog.Type(r.PathValue("name"))
	if !ok {
		return response{}, &problem{status: http.StatusNotFound, title: "Unknown event type",
			text: "The catalog has no event type with this name."}
	}
	subs, err := h.store.Events().Subscribers(r.Context(), r.program, t.Name, shownSubscribers+1)
	if err != nil {
		return response{}, err
	}
	e := eventTypeRecord{EventType: t, fields: schemaFields(t.Schema), api: h.curl.Command("GET", "/v2/event_types/"+t.Name, "")}
	e.more, e.subscribers = len(subs) > shownSubscribers, subs[:min(len(subs), shownSubscribers)]
	if t.Source == webhook.SourceAPI {
		e.change = h.changeCommand(t)
	}
	if e.states, err = h.subscriptionStates(r.Context(), r.clock.Now, e.subscribers); err != nil {
		return response{}, err
	}
	return response{page: eventTypePage(h.frame(r, t.Name), &e)}, nil
}

// maxShownSchema is the longest schema that a command contains, in bytes.
const maxShownSchema = 4096

// changeCommand returns the request that sets the schema of an event type. It contains the current
// schema, or names a file if the schema is long.
func (h *eventTypePages) changeCommand(t *webhook.EventType) string {
	if len(t.Schema) > maxShownSchema {
		return h.curl.Command("PUT", "/v2/event_types/"+t.Name, "@event_type.json")
	}
	return h.curl.CommandText("PUT", "/v2/event_types/"+t.Name, `{"schema": `+string(t.Schema)+`}`)
}

// fieldGroup is a group of fields that an event contains under a condition; "" is always.
type fieldGroup struct {
	when   string
	fields []schemaField
}

// schemaField is a field of an event as described by its schema.
type schemaField struct {
	path        string // details.content_id, channel_ids[]
	kind        string // type: integer, int64
	description string
	required    bool
}

// Limits for reading a schema, which the operator may have written.
const (
	maxSchemaDepth  = 6
	maxSchemaFields = 500
	maxShownValues  = 100 // of an enum
)

// schemaNode is the part of a JSON Schema that the pages show.
type schemaNode struct {
	Ref         string          `json:"$ref"`
	Type        json.RawMessage `json:"type"`
	Format      string          `json:"format"`
	Const       json.RawMessage `json:"const"`
	Enum        json.RawMessage `json:"enum"`
	Description string          `json:"description"`
	Properties  schemaProps     `json:"properties"`
	Required    []string        `json:"required"`
	Items       *schemaNode     `json:"items"`
	AllOf       []*schemaNode   `json:"allOf"`
	AnyOf       []*schemaNode   `json:"anyOf"`
	OneOf       []*schemaNode   `json:"oneOf"`
	If          *schemaNode     `json:"if"`
	Then        *schemaNode     `json:"then"`
	Else        *schemaNode     `json:"else"`
	Pattern     string          `json:"pattern"`
	Minimum     json.Number     `json:"minimum"`
	Maximum     json.Number     `json:"maximum"`
	MinLength   json.Number     `json:"minLength"`
	MaxLength   json.Number     `json:"maxLength"`

	Defs map[string]*schemaNode `json:"$defs"`
}

// UnmarshalJSON ignores what it cannot read: true and false are valid schemas, and a keyword of an
// unexpected type must not hide the rest.
func (n *schemaNode) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) == 0 || b[0] != '{' {
		return nil
	}
	type plain schemaNode
	var p plain
	if json.Unmarshal(b, &p) == nil {
		*n = schemaNode(p)
	}
	return nil
}

// schemaProps are properties in the order of the schema.
type schemaProps []schemaProp

type schemaProp struct {
	name string
	node *schemaNode
}

// UnmarshalJSON keeps the order.
func (p *schemaProps) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string)
		node := new(schemaNode)
		if err := d.Decode(node); err != nil {
			return err
		}
		*p = append(*p, schemaProp{name, node})
	}
	return nil
}

// schemaFields lists the fields of a schema: first the unconditional ones, then those that depend
// on another field.
func schemaFields(schema []byte) []fieldGroup {
	root := new(schemaNode)
	if json.Unmarshal(schema, root) != nil {
		return nil
	}
	r := schemaReader{defs: root.Defs, groups: []fieldGroup{{}}}
	r.node(root, "", "", 0)
	return slices.DeleteFunc(r.groups, func(g fieldGroup) bool { return len(g.fields) == 0 })
}

type schemaReader struct {
	defs   map[string]*schemaNode
	groups []fieldGroup
	count  int
}

// resolve follows a reference to a definition within the schema.
func (r *schemaReader) resolve(n *schemaNode) *schemaNode {
	for range maxSchemaDepth {
		name, ok := strings.CutPrefix(n.Ref, "#/$defs/")
		if !ok || r.defs[name] == nil {
			break
		}
		n = r.defs[name]
	}
	return n
}

func (r *schemaReader) node(n *schemaNode, path, when string, depth int) {
	if n == nil || depth > maxSchemaDepth || r.count > maxSchemaFields {
		return
	}
	n = r.resolve(n)
	for _, p := range n.Properties {
		node := r.resolve(p.node)
		at := p.name
		if path != "" {
			at = path + "." + p.name
		}
		// The unconditional part of the property has been described already.
		bare := p.node.Ref != "" || node.Description != "" || node.Type != nil || node.Const != nil
		if when == "" || depth > 0 || bare && path != "" {
			r.add(when, schemaField{at, kindOf(node, r), node.Description, slices.Contains(n.Required, p.name)})
		}
		r.node(node, at, when, depth+1)
		if node.Items != nil {
			r.node(node.Items, at+"[]", when, depth+1)
		}
	}
	for _, part := range n.AllOf {
		r.node(part, path, when, depth)
	}
	for _, part := range slices.Concat(n.AnyOf, n.OneOf) {
		if part != nil && len(part.Properties) > 0 {
			r.node(part, path, joinWhen(when, variantWhen), depth)
		}
	}
	if n.If != nil {
		if is := condition(n.If); is != "" {
			r.node(n.Then, path, joinWhen(when, is), depth)
			r.node(n.Else, path, joinWhen(when, "not: "+is), depth)
		}
	}
}

// variantWhen is the condition of the fields of one variant of an object.
const variantWhen = "in one of several variants"

// whenTitle is the heading of conditional fields.
func whenTitle(when string) string {
	if strings.HasPrefix(when, variantWhen) {
		return capitalized(when)
	}
	return "When " + when
}

func joinWhen(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

func (r *schemaReader) add(when string, f schemaField) {
	if r.count++; r.count > maxSchemaFields {
		return
	}
	i := slices.IndexFunc(r.groups, func(g fieldGroup) bool { return g.when == when })
	if i < 0 {
		i = len(r.groups)
		r.groups = append(r.groups, fieldGroup{when: when})
	}
	r.groups[i].fields = append(r.groups[i].fields, f)
}

// condition describes an if of a schema in words.
func condition(n *schemaNode) string {
	var parts []string
	for _, p := range n.Properties {
		switch {
		case p.node.Const != nil:
			parts = append(parts, p.name+" is "+plainJSON(p.node.Const))
		case p.node.Enum != nil:
			parts = append(parts, p.name+" is one of "+plainJSON(p.node.Enum))
		}
	}
	if len(parts) == 0 && len(n.Required) > 0 {
		return strings.Join(n.Required, " and ") + " is present"
	}
	return strings.Join(parts, " and ")
}

// kindOf describes the type of a field in a few words.
func kindOf(n *schemaNode, r *schemaReader) string {
	var parts []string
	var one string
	var several []string
	switch {
	case n.Const != nil:
		return "always " + plainJSON(n.Const)
	case n.Enum != nil:
		parts = append(parts, "one of "+plainJSON(n.Enum))
	case json.Unmarshal(n.Type, &one) == nil && one == "array" && n.Items != nil:
		if items := kindOf(r.resolve(n.Items), r); items != "" {
			parts = append(parts, "array of "+items)
		} else {
			parts = append(parts, "array")
		}
	case one != "":
		parts = append(parts, one)
	case json.Unmarshal(n.Type, &several) == nil && len(several) > 0:
		parts = append(parts, strings.Join(several, " or "))
	}
	if n.Format != "" {
		parts = append(parts, n.Format)
	}
	for _, bound := range []struct {
		name  string
		value json.Number
	}{{"at least", n.Minimum}, {"at most", n.Maximum}} {
		if bound.value != "" {
			parts = append(parts, bound.name+" "+bound.value.String())
		}
	}
	if text := lengthText(n.MinLength.String(), n.MaxLength.String()); text != "" {
		parts = append(parts, text)
	}
	if n.Pattern != "" {
		parts = append(parts, "matching "+strconv.Quote(n.Pattern))
	}
	return strings.Join(parts, ", ")
}

// lengthText describes the limits of a string's length, "" for none.
func lengthText(from, to string) string {
	noun := " characters"
	switch {
	case from == "" && to == "":
		return ""
	case to == "":
		if from == "1" {
			noun = " character"
		}
		return "at least " + from + noun
	case from == "" || from == "0":
		return "at most " + to + noun
	}
	return from + " to " + to + noun
}

// plainJSON formats a value, or an array of values, for display.
func plainJSON(raw json.RawMessage) string {
	var all []any
	if json.Unmarshal(raw, &all) == nil {
		var words []string
		for _, v := range all[:min(len(all), maxShownValues)] {
			words = append(words, fmt.Sprint(v))
		}
		text := strings.Join(words, ", ")
		if more := len(all) - len(words); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		return text
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	return string(raw)
}

// eventQuery is a query with the name of an event type as a parameter, and a program.
func eventQuery(program, parameter, name string) url.Values {
	values := url.Values{parameter: {name}}
	if program != "" {
		values.Set(ui.ProgramParameter, program)
	}
	return values
}
