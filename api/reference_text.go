package api

import (
	"fmt"
	"html"
	"html/template"
	"net/http"
	"regexp"
	"strings"
)

// text returns the page as Markdown.
func (p *referencePage) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", p.Title, strings.TrimSpace(p.Lead()))
	if p.IsFirst() {
		fmt.Fprintf(&b, "\nOpenAPI 3.1 document, version %s: <%s/v2/openapi.json>\n", p.Info.Version, p.BaseURL)
		fmt.Fprintf(&b, "\nThe curl commands use two variables:\n\n```sh\nexport URL=%s\nexport TOKEN=…\n```\n\n%s\n",
			p.BaseURL, strings.TrimSpace(p.Info.Description))
		b.WriteString("\n## All errors\n\n")
		for _, e := range p.AllErrors() {
			fmt.Fprintf(&b, "- `%s`: %s\n", e.Status, oneLine(e.Description))
		}
		b.WriteString("\n## Response headers\n\n")
		for _, h := range p.AllHeaders() {
			fmt.Fprintf(&b, "- `%s`: %s\n", h.Name, oneLine(h.Description))
		}
	}
	for _, s := range p.Sections() {
		fmt.Fprintf(&b, "\n## %s\n", s.Title)
		for _, o := range s.Operations {
			o.text(&b)
		}
	}
	if p.HasCatalog() {
		b.WriteString("\n## The catalog\n\nIn addition to the fields below, every event has `id`, `timestamp`, `name` and `version`.\n" +
			eventTypesHere)
	}
	if p.HasSchemas() {
		for _, s := range p.Schemas() {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n", s.Name, strings.TrimSpace(s.Value.Description))
			propertyText(&b, p.Properties(s.Value))
			if limits := s.Value.Limits(); len(limits) > 0 {
				fmt.Fprintf(&b, "\n%s\n", strings.Join(limits, "; "))
			}
		}
	}
	return b.String()
}

// text adds the operation as Markdown.
func (o Operation) text(b *strings.Builder) {
	path, access := o.Path, "any token"
	switch {
	case o.Webhook:
		path = "your URL"
	case o.Open:
		access = "no token"
	case o.Scope != "":
		access = "scope `" + o.Scope + "`"
	}
	fmt.Fprintf(b, "\n### %s\n\n`%s %s`", o.Summary, o.Method, path)
	if o.AlsoPut {
		b.WriteString(" or `" + http.MethodPut + "`")
	}
	if !o.Webhook {
		b.WriteString(", " + access)
	}
	fmt.Fprintf(b, "\n\n%s\n", strings.TrimSpace(o.Description))
	if all := o.AllParameters(); len(all) > 0 {
		b.WriteString("\nParameters:\n\n")
		for _, q := range all {
			row := Property{Name: q.Name, Description: q.Description, Type: template.HTML(q.In+", ") + label(q.Schema), Required: q.Required}
			row.Limits = q.Schema.Limits()
			row.text(b)
		}
	}
	for _, s := range o.BodySchemas() {
		b.WriteString("\nBody:\n")
		propertyText(b, o.Rows(s))
	}
	commands, what := o.Curl(), "sh"
	if o.Webhook {
		commands, what = o.RequestSamples(), "json"
	}
	for _, c := range commands {
		fmt.Fprintf(b, "\n```%s\n%s\n```\n", what, c.Text)
	}
	for _, a := range o.Successes() {
		fmt.Fprintf(b, "\nResponse %s: %s", a.Status, oneLine(a.Description))
		if shape := a.Shape(); shape != "" {
			fmt.Fprintf(b, " (%s)", plainText(shape))
		}
		b.WriteString("\n")
		for _, s := range a.Samples() {
			fmt.Fprintf(b, "\n```json\n%s\n```\n", s.Text)
		}
	}
	var errors []string
	for _, a := range o.Errors() {
		errors = append(errors, a.Status)
	}
	if len(errors) > 0 {
		fmt.Fprintf(b, "\nErrors: [%s](#every-error)\n", strings.Join(errors, ", "))
	}
}

// text returns the event type as Markdown.
func (e EventTypeEntry) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### `%s`\n\n%s\n", e.Name, e.Description)
	propertyText(&b, e.Fields)
	if e.More {
		fmt.Fprintf(&b, "\nThere are more fields in the JSON Schema, which `GET /v2/event_types/%s` returns.\n", e.Name)
	}
	for _, v := range e.Variants {
		fmt.Fprintf(&b, "\n`%s` when `%s` is `%s`:", v.Object, v.When, v.Is)
		switch {
		case len(v.Fields) > 0:
			b.WriteString("\n")
			propertyText(&b, v.Fields)
		case v.Free:
			b.WriteString(" free-form\n")
		default:
			b.WriteString(" always `{}`\n")
		}
	}
	if e.VariantsOf != "" {
		fmt.Fprintf(&b, "\nThe fields that depend on another field are the same as those of `%s`.\n", e.VariantsOf)
	}
	fmt.Fprintf(&b, "\n```json\n%s\n```\n", e.Example)
	return b.String()
}

// propertyText adds rows as a list in Markdown.
func propertyText(b *strings.Builder, rows []Property) {
	for i, row := range rows {
		if i == 0 {
			b.WriteString("\n")
		}
		row.text(b)
	}
}

func (p Property) text(b *strings.Builder) {
	notes := []string{plainText(p.Type)}
	if p.Required {
		notes = append(notes, "required")
	}
	if p.Deprecated {
		notes = append(notes, "deprecated")
	}
	notes = append(notes, p.Limits...)
	fmt.Fprintf(b, "- `%s` (%s)", p.Name, strings.Join(notes, "; "))
	if p.Description != "" {
		b.WriteString(": " + oneLine(p.Description))
	}
	b.WriteString("\n")
}

// oneLine returns a description without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

var htmlTag = regexp.MustCompile(`<[^>]*>`)

// plainText returns the text of HTML.
func plainText(h template.HTML) string {
	return html.UnescapeString(htmlTag.ReplaceAllString(string(h), ""))
}

// llmsText lists the pages as https://llmstxt.org describes.
func llmsText(baseURL string) []byte {
	var b strings.Builder
	b.WriteString("# Service API\n\n" +
		"> A webhook sender: partners subscribe over a REST API, and receive events in signed deliveries.\n\n")
	for _, p := range docPages {
		if p.Group != "" {
			fmt.Fprintf(&b, "\n## %s\n\n", p.Group)
		}
		fmt.Fprintf(&b, "- [%s](%s%s%s)", p.Title, baseURL, p.Path, textSuffix)
		switch {
		case p.Path == referencePath:
			b.WriteString(": authentication, errors, lists, limits and versions")
		case p.Path == receivingPath:
			b.WriteString(": how to write the server that receives deliveries, with the settings of this installation")
		case p.Lead != "":
			b.WriteString(": " + strings.TrimSuffix(p.Lead, "."))
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n## Optional\n\n- [OpenAPI document](%s/v2/openapi.json): every operation, schema and event type\n", baseURL)
	return []byte(b.String())
}
