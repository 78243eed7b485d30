package webhook

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var testNow = time.Date(2026, 3, 14, 8, 24, 48, 644e6, time.UTC)

// testCatalog returns the catalog with event types of the operator's own.
func testCatalog(t testing.TB, own ...SchemaFile) *Catalog {
	t.Helper()
	c, err := LoadCatalog(own...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// slowCatalog is a catalog without acceptors, so the schema library checks every
// event.
func slowCatalog(t testing.TB) *Catalog {
	c := testCatalog(t)
	for _, e := range c.current.Load().byName {
		e.accepts = nil
	}
	return c
}

// The spec's section 6.2, in its order.
var specEvents = []string{
	"ping", "campaign_push_message_sent", "channel_archived", "channel_created", "channel_published",
	"channel_unarchived", "channel_updated", "content_archived", "content_deleted", "content_drafted",
	"content_published", "content_review_approved", "content_review_pending", "content_review_rejected",
	"content_unpublished", "content_updated", "user_notification_created", "user_notification_updated",
	"user_notification_deleted",
}

// The spec's section 2.4, in its order.
var specCategories = []string{
	"like", "mention", "push", "bootstrap", "channel_auto_follow", "channel_contributor_added", "featured",
	"content_performance", "comment", "comment_like", "comment_reply", "comment_reply_like", "service",
}

func TestCatalogMatchesSpec(t *testing.T) {
	c := testCatalog(t)
	var names []string
	for _, e := range c.Types() {
		names = append(names, e.Name)
		if !strings.HasPrefix(e.Description, "Emitted when ") || e.Title == "" {
			t.Errorf("%s: got title %q and description %q, want both", e.Name, e.Title, e.Description)
		}
		if got, ok := c.Type(e.Name); !ok || got != e || !c.Has(e.Name) {
			t.Errorf("Type(%s) did not find the event type", e.Name)
		}
		if e.accepts == nil {
			t.Errorf("%s has no acceptor: its schema uses an unsupported keyword", e.Name)
		}
	}
	if want := slices.Sorted(slices.Values(specEvents)); !slices.Equal(names, want) {
		t.Errorf("got event types %v, want %v", names, want)
	}
	if _, ok := c.Type("Ping"); ok || c.Has("") {
		t.Error("Has reports event types that do not exist")
	}

	files, err := fs.Glob(embedded, "catalog/notifications/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(f, "catalog/notifications/"), ".json")
	}
	if want := slices.Sorted(slices.Values(specCategories)); !slices.Equal(files, want) {
		t.Errorf("got notification categories %v, want %v", files, want)
	}
}

// The two events differ only in their name and in when they are emitted.
func TestNotificationSchemasMatch(t *testing.T) {
	c := testCatalog(t)
	read := func(name string) map[string]any {
		schema := decode(t, c.current.Load().byName[name].Schema)
		delete(schema, "title")
		delete(schema, "description")
		delete(schema, "examples")
		delete(schema["properties"].(map[string]any), "name")
		return schema
	}
	created, updated := read("user_notification_created"), read("user_notification_updated")
	if !reflect.DeepEqual(created, updated) {
		t.Error("the schemas of user_notification_created and user_notification_updated differ")
	}
	defs := slices.Sorted(maps.Keys(created["$defs"].(map[string]any)))
	if want := slices.Sorted(slices.Values(specCategories)); !slices.Equal(defs, want) {
		t.Errorf("got $defs %v, want %v", defs, want)
	}
}

// A schema needs no other file, describes each field, and is closed.
func TestSchemasAreSelfContained(t *testing.T) {
	for _, e := range testCatalog(t).Types() {
		if strings.Contains(string(e.Schema), ".json\"") {
			t.Errorf("%s refers to another file", e.Name)
		}
		if _, err := compileSchema("urn:test", e.Schema); err != nil {
			t.Errorf("%s does not compile by itself: %v", e.Name, err)
		}
		for location, s := range e.schemas {
			for name, p := range s.Properties {
				if p.Description == "" && p.Const == nil && p.Ref == nil {
					t.Errorf("%s: %s: %s has no description", e.Name, location, name)
				}
			}
			freeForm := strings.HasSuffix(location, "/details") || strings.HasSuffix(location, "/service")
			if s.Types != nil && s.Types.String() == "[object]" && s.AdditionalProperties != false && !freeForm {
				t.Errorf("%s: %s allows unknown fields", e.Name, location)
			}
		}
	}
	ping := testCatalog(t).current.Load().byName[EventPing]
	for name, raw := range map[string][]byte{"the example": ping.Example, "PingEvent": PingEvent(NewID(), testNow)} {
		if err := ping.schema.Validate(decode(t, raw)); err != nil {
			t.Errorf("%s is invalid: %v", name, err)
		}
	}
}

// sample is a valid event, and the paths of its optional fields.
type sample struct {
	name     string
	event    map[string]any
	optional []string
	freeForm bool // its details are free-form
}

func decode(t testing.TB, raw []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// samples returns an event of every type that can be published, and for both
// notification events one of each category.
func samples(t testing.TB, c *Catalog) []sample {
	t.Helper()
	var all []sample
	for _, e := range c.Types() {
		if e.Name == EventPing {
			continue
		}
		s := sample{name: e.Name, event: decode(t, e.Example), optional: []string{"id", "timestamp"}}
		if e.Name == "campaign_push_message_sent" { // one of two fields is required; the example has both
			s.optional = append(s.optional, "push_message", "push_message.deep_link", "content_promotion")
		}
		all = append(all, s)
	}
	for _, name := range []string{"user_notification_created", "user_notification_updated"} {
		for _, category := range specCategories {
			raw, err := embedded.ReadFile("catalog/notifications/" + category + ".json")
			if err != nil {
				t.Fatal(err)
			}
			s := sample{name: name + "/" + category, event: decode(t, c.current.Load().byName[name].Example), optional: []string{"id", "timestamp"}}
			s.event["category"] = category
			s.event["details"] = decode(t, raw)["examples"].([]any)[0]
			switch category {
			case "mention":
				s.optional = append(s.optional, "details.parent_post_id")
			case "bootstrap":
				s.optional = append(s.optional, "details")
			case "service":
				s.optional = append(s.optional, "details", "details.message")
				s.freeForm = true
			}
			all = append(all, s)
		}
	}
	return all
}

// walk visits every member of the event and of its nested objects.
func walk(at string, object map[string]any, visit func(path string, object map[string]any, name string)) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		visit(join(at, name), object, name)
		if inner, ok := object[name].(map[string]any); ok {
			walk(join(at, name), inner, visit)
		}
	}
}

// publish checks the event with both catalogs, which must agree.
func publish(t *testing.T, quick, slow *Catalog, event map[string]any) *Error {
	t.Helper()
	raw, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	_, got := quick.NewEvent(raw, "", testNow)
	_, want := slow.NewEvent(raw, "", testNow)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s\nquick: %v\nslow:  %v", raw, got, want)
	}
	return got
}

// only reports whether the error is a single validation with that code and
// parameter.
func only(err *Error, code, parameter string) bool {
	return err != nil && err.Code == CodeInvalid && len(err.Validations) == 1 &&
		err.Validations[0].Code == code && err.Validations[0].Parameter == parameter && err.Validations[0].Detail != ""
}

// fieldTest publishes an event with each of its fields changed in turn. Its methods
// may change the field name of object, which is at path in the event.
type fieldTest struct {
	t           *testing.T
	quick, slow *Catalog
	sample      *sample
}

func (f *fieldTest) publish() *Error { return publish(f.t, f.quick, f.slow, f.sample.event) }

// absent publishes the event without the field.
func (f *fieldTest) absent(path string, object map[string]any, name string) {
	delete(object, name)
	err := f.publish()
	if slices.Contains(f.sample.optional, path) {
		if err != nil {
			f.t.Errorf("without %s: %v", path, err)
		}
	} else if !only(err, InvalidRequired, path) {
		f.t.Errorf("without %s: got %v, want %s", path, err, InvalidRequired)
	}
}

// otherTypes publishes the event with values of types other than that of was.
func (f *fieldTest) otherTypes(path string, object map[string]any, name string, was any) {
	for _, wrong := range []any{nil, true, "a string", json.Number("5"), json.Number("1.5"), json.Number("1.0"), json.Number("1e2"),
		map[string]any{}, []any{}} {
		if kindOf(wrong) == kindOf(was) {
			continue
		}
		object[name] = wrong
		if err := f.publish(); !only(err, InvalidType, path) {
			f.t.Errorf("%s: %v: got %v, want %s", path, wrong, err, InvalidType)
		}
	}
}

// integers publishes the event with the smallest and largest integers, and with
// larger ones.
func (f *fieldTest) integers(path string, object map[string]any, name string) {
	for _, wrong := range []string{"9223372036854775808", "-9223372036854775809", "1e999999999", strings.Repeat("9", 200)} {
		object[name] = json.Number(wrong)
		if err := f.publish(); !only(err, InvalidValue, path) {
			f.t.Errorf("%s: %s: got %v, want %s", path, wrong, err, InvalidValue)
		}
	}
	for _, right := range []string{"9223372036854775807", "-9223372036854775808", "0"} {
		object[name] = json.Number(right)
		if err := f.publish(); err != nil {
			f.t.Errorf("%s: %s: %v", path, right, err)
		}
	}
}

// inside publishes the event with a wrong element in the array was, or with an
// unknown field in the object was.
func (f *fieldTest) inside(path string, object map[string]any, name string, was any) {
	if list, ok := was.([]any); ok {
		object[name] = append(slices.Clone(list), "5")
		if err, path := f.publish(), element(path, len(list)); !only(err, InvalidType, path) {
			f.t.Errorf("%s: got %v, want %s", path, err, InvalidType)
		}
	}
	if inner, ok := was.(map[string]any); ok && !f.sample.freeForm {
		object[name] = was
		inner["extra"] = "x"
		if err, path := f.publish(), join(path, "extra"); !only(err, InvalidUnknownField, path) {
			f.t.Errorf("%s: got %v, want %s", path, err, InvalidUnknownField)
		}
		delete(inner, "extra")
	}
}

func TestEveryFieldOfEveryEvent(t *testing.T) {
	quick, slow := testCatalog(t), slowCatalog(t)
	for _, s := range samples(t, quick) {
		t.Run(s.name, func(t *testing.T) {
			if err := publish(t, quick, slow, s.event); err != nil {
				t.Fatal(err)
			}
			f := fieldTest{t, quick, slow, &s}
			walk("", s.event, func(path string, object map[string]any, name string) {
				was := object[name]
				defer func() { object[name] = was }()
				f.absent(path, object, name)
				if s.freeForm && strings.HasPrefix(path, "details.") {
					return
				}
				f.otherTypes(path, object, name, was)
				if kindOf(was) == "integer" {
					f.integers(path, object, name)
				}
				f.inside(path, object, name, was)
			})
			for _, extra := range []string{"extra", "content_ids", "Name", "ID", ""} {
				s.event[extra] = json.Number("1")
				if err := publish(t, quick, slow, s.event); !only(err, InvalidUnknownField, extra) && extra != "" {
					t.Errorf("%q: got %v, want %s", extra, err, InvalidUnknownField)
				} else if err == nil {
					t.Errorf("%q: got it accepted", extra)
				}
				delete(s.event, extra)
			}
		})
	}
}

func kindOf(v any) string {
	if n, ok := v.(json.Number); ok && !strings.ContainsAny(string(n), ".e") {
		return "integer"
	}
	return fmt.Sprintf("%T", v)
}

func TestConditionsOfEvents(t *testing.T) {
	quick, slow := testCatalog(t), slowCatalog(t)
	tests := []struct {
		name   string
		change func(event map[string]any)
		code   string // "" if it is valid
		at     string
	}{
		{"campaign_push_message_sent", func(e map[string]any) { delete(e, "push_message"); delete(e, "content_promotion") }, InvalidRequired,
			"push_message"},
		{"content_review_approved", func(e map[string]any) { e["auto_approved"] = true }, "", ""},
		{"content_review_approved", func(e map[string]any) { e["auto_approved"] = true; delete(e, "reviewer") }, "", ""},
		{"content_review_approved", func(e map[string]any) { e["auto_approved"] = false; delete(e, "reviewer") }, InvalidRequired, "reviewer"},
		{"content_published", func(e map[string]any) { e["channel_ids"] = []any{} }, "", ""},
		{"user_notification_created", func(e map[string]any) { e["category"] = "birthday" }, "", ""},
		{"user_notification_created", func(e map[string]any) { e["category"] = "birthday"; delete(e, "details") }, "", ""},
		{"user_notification_created", func(e map[string]any) { e["category"] = "birthday"; e["details"] = []any{} }, InvalidType, "details"},
		{"user_notification_created", func(e map[string]any) { e["category"] = "Like"; e["details"] = map[string]any{"a": nil} }, "", ""},
		{"user_notification_created", func(e map[string]any) { e["category"] = "service"; e["details"] = map[string]any{} }, "", ""},
		{"user_notification_created", func(e map[string]any) { e["category"] = "bootstrap"; e["details"] = map[string]any{"a": 1} },
			InvalidUnknownField, "details.a"},
	}
	for _, test := range tests {
		event := decode(t, quick.current.Load().byName[test.name].Example)
		test.change(event)
		err := publish(t, quick, slow, event)
		if test.code == "" && err != nil || test.code != "" && !only(err, test.code, test.at) {
			t.Errorf("%v: got %v, want %q for %q", event, err, test.code, test.at)
		}
	}
}

func TestEventErrorDetails(t *testing.T) {
	c := testCatalog(t)
	head := `{"version":"1","name":"`
	tests := []struct{ raw, want string }{
		{head + `content_published","content_id":"5","channel_ids":[]}`, "content_id: must be an integer"},
		{head + `content_published","content_id":5}`, "channel_ids: is required"},
		{head + `content_deleted","content_id":5,"contentId":5}`,
			"contentId: is not a field of content_deleted; it has: content_id, id, name, timestamp, version"},
		{head + `content_deleted","content_id":5.5}`, "content_id: must be an integer"},
		{head + `content_deleted","content_id":5.0}`, "content_id: must be an integer without fraction and exponent"},
		{head + `content_deleted","content_id":99999999999999999999}`, "content_id: must be an integer of at most 64 bits"},
		{head + `content_review_pending","content_id":5,"recommended_channel_ids":[],"submitter":{"user_id":1,"name":"A"}}`,
			"submitter.name: is not a field of submitter; it has: user_id"},
		{head + `campaign_push_message_sent","campaign_id":1,"campaign_name":""}`,
			"push_message: is required when there is no content_promotion"},
	}
	for _, test := range tests {
		_, err := c.NewEvent([]byte(test.raw), "", testNow)
		if want := "One parameter is not valid. " + test.want; err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", test.raw, err, want)
		}
	}
}

// Acceptors accept the samples, with and without id and timestamp.
func TestAcceptorsAccept(t *testing.T) {
	c := testCatalog(t)
	for _, s := range samples(t, c) {
		for range 2 {
			raw, err := json.Marshal(s.event)
			if err != nil {
				t.Fatal(err)
			}
			var d document
			if err := d.parse(raw, ""); err != nil {
				t.Fatal(err)
			}
			if !c.current.Load().byName[s.event["name"].(string)].accepts.accept(&d, 0) {
				t.Errorf("the acceptor did not accept %s: %s", s.name, raw)
			}
			delete(s.event, "id")
			delete(s.event, "timestamp")
		}
	}
}

// Schemas as an operator might write them, with keywords that the embedded ones do
// not use.
func TestNewCatalog(t *testing.T) {
	schema := func(more string) []SchemaFile {
		return []SchemaFile{{"order_placed.json", []byte(`{"title":"T","description":"D","type":"object","properties":{` +
			`"id":{"type":"string","format":"uuid"},"timestamp":{"format":"date-time"},"name":{"const":"order_placed"},` +
			`"version":{"const":"1"},` + more + `}`)}}
	}
	example := `"examples":[{"name":"order_placed","version":"1","size":"small","code":"a1","note":"n"}]`
	c, err := newCatalog(schema(`"size":{"enum":["small","large"]},"code":{"type":["string","null"],"pattern":"^[a-z]"},` +
		`"note":{"maxLength":3},"list":{"maxItems":1,"items":{"minimum":2}},"one":{"oneOf":[{"type":"string"},{"type":"boolean"}]}},` +
		`"required":["id"],` + example))
	if err != nil {
		t.Fatal(err)
	}
	if c.current.Load().byName["order_placed"].accepts != nil {
		t.Error("got an acceptor for unsupported keywords")
	}
	_, got := c.NewEvent([]byte(`{"name":"order_placed","version":"1","size":"tiny","code":"1","note":"long","list":[1,2],"one":5}`),
		"events[2]", testNow)
	want := []Validation{
		{InvalidValue, `violates the event type's schema (pattern)`, "events[2].code"},
		{InvalidTooMany, `must have at most 1 element`, "events[2].list"},
		{InvalidValue, `violates the event type's schema (minimum)`, "events[2].list[0]"},
		{InvalidTooLong, `must be at most 3 characters long`, "events[2].note"},
		{InvalidValue, `must match one of the forms in the event type's schema`, "events[2].one"},
		{InvalidValue, `must be one of "small", "large"`, "events[2].size"},
	}
	if got == nil || !reflect.DeepEqual(got.Validations, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if _, got := c.NewEvent([]byte(`{"name":"order_placed","version":"1","code":5}`), "", testNow); !only(got, InvalidType, "code") ||
		!strings.HasPrefix(got.Validations[0].Detail, "must be ") ||
		!strings.Contains(got.Validations[0].Detail, "a string or null") && !strings.Contains(got.Validations[0].Detail, "null or a string") {
		t.Errorf("got %v, want a string or null", got)
	}

	// The choice between then and else must follow JSON Schema, for which 1.0 is an
	// integer.
	c, err = newCatalog(schema(`"size":{"type":"string"},"code":{"type":"string"},"note":{"type":"string"},"n":{"type":"number"}},` +
		`"if":{"properties":{"n":{"type":"integer"}},"required":["n"]},"then":{"required":["code"]},` +
		`"else":{"required":["note"]},` + example))
	if err != nil {
		t.Fatal(err)
	}
	for raw, want := range map[string]string{`"n":1,"code":""`: "", `"n":1.0,"code":""`: "", `"n":1.0,"note":""`: "code",
		`"n":1.5,"note":""`: "", `"note":""`: "", `"code":""`: "note"} {
		_, got := c.NewEvent([]byte(`{"name":"order_placed","version":"1",`+raw+`}`), "", testNow)
		if want == "" && got != nil || want != "" && !only(got, InvalidRequired, want) {
			t.Errorf("%s: got %v, want %q to be required", raw, got, want)
		}
	}

	same := schema(`"a":true},` + example)[0]
	if _, err := newCatalog([]SchemaFile{same, same}); err == nil || !strings.Contains(err.Error(), "duplicate event type") {
		t.Errorf("two files with the same name: got %v", err)
	}
}

func BenchmarkNewEvent(b *testing.B) {
	quick, slow := testCatalog(b), slowCatalog(b)
	for _, name := range []string{"content_published", "campaign_push_message_sent", "user_notification_created"} {
		raw := []byte(quick.current.Load().byName[name].Example)
		for _, way := range []struct {
			name string
			c    *Catalog
		}{{"quick", quick}, {"library", slow}} {
			b.Run(fmt.Sprintf("%s/%d_bytes/%s", name, len(raw), way.name), func(b *testing.B) {
				b.SetBytes(int64(len(raw)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := way.c.NewEvent(raw, "", testNow); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
