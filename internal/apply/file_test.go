package apply

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// filtered begins a file with filters.
const filtered = "programs:\n  - id: acme\n    subscriptions:\n      - {url: 'https://a.example', events: [ping], filters: "

// whole is a file with every key.
const whole = `event_types:
  - name: order.shipped
    schema:
      title: Order shipped
      properties: {z: {maximum: 1.50}, a: {const: null}}
      examples: [{id: "1", at: 2026-01-01, ok: true}]
  - name: order.returned
    schema_file: returned.json
programs:
  - id: acme
    name: Acme Ltd.
    limits:
      max_subscriptions: 20
      rate_limit: 0
      max_in_flight: null
    subscriptions:
      - url: https://acme.example/hooks?key=1
        description: Orders
        events: [order.shipped, ping]
        active: false
        ordered: true
        max_in_flight: 16
        max_per_second: 2.5
        max_events: 20
        authorization_header: {env: ACME_AUTHORIZATION}
        signing_secret: {file: /run/secrets/acme}
      - url: https://acme.example/other
        events: [ping]
        max_per_second: null
        max_events: null
        authorization_header: null
        signing_secret_file: secrets/other
    tokens:
      - name: backend
        user: acme-backend
        scopes: [events.write, events.read]
        expires_at: 2027-01-31T01:00:00+01:00
        secret_file: secrets/backend
      - name: reader
        user: me
        scopes: [webhooks.read]
        expires_at: null
        secret_file: /tmp/../tmp/reader
  - id: empty
`

// folder returns a folder with the files that the tests refer to.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"returned.json": `{"title": "Order returned"}`, "bad.json": `{"title": `, "large.json": `"` + strings.Repeat("x", maxSchemaFile) + `"`,
	} {
		writeFile(t, filepath.Join(dir, name), content)
	}
	return dir
}

// writeFile writes a file and returns its path.
func writeFile(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// parsed parses a file of a folder.
func parsed(t *testing.T, dir, text string) *File {
	t.Helper()
	f, err := parse("f.yml", dir, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestParse(t *testing.T) {
	dir := folder(t)
	got := parsed(t, dir, whole)
	expires, never := time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC), time.Time{}
	want := &File{
		Name: "f.yml",
		EventTypes: []EventType{
			{Line: 2, Name: "order.shipped", Schema: []byte(`{"title":"Order shipped","properties":{"z":{"maximum":1.50},"a":{"const":null}},` +
				`"examples":[{"id":"1","at":"2026-01-01","ok":true}]}`)},
			{Line: 7, Name: "order.returned", Schema: []byte(`{"title": "Order returned"}`), SchemaFile: "returned.json"},
		},
		Programs: []Program{
			{
				Line: 10, ID: "acme",
				Settings: Settings{
					"name": "Acme Ltd.", "limits": map[string]any{"max_subscriptions": 20.0, "rate_limit": 0.0, "max_in_flight": nil},
				},
				Subscriptions: []Subscription{
					{
						Line: 17, ProgramID: "acme", URL: "https://acme.example/hooks?key=1", Description: "Orders",
						Events: []string{"order.shipped", "ping"},
						Settings: Settings{
							"description": "Orders", "events": []any{"order.shipped", "ping"}, "active": false, "ordered": true,
							"max_in_flight": 16.0, "max_per_second": 2.5, "max_events": 20.0,
						},
						Authorization: &Secret{Line: 25, At: "programs[0].subscriptions[0].authorization_header", Env: "ACME_AUTHORIZATION"},
						SigningSecret: &Secret{Line: 26, At: "programs[0].subscriptions[0].signing_secret", Path: "/run/secrets/acme"},
					},
					{
						Line: 27, ProgramID: "acme", URL: "https://acme.example/other", Events: []string{"ping"},
						Settings:          Settings{"events": []any{"ping"}, "max_per_second": nil, "max_events": nil},
						Authorization:     &Secret{Line: 31, At: "programs[0].subscriptions[1].authorization_header", Null: true},
						SigningSecretFile: filepath.Join(dir, "secrets/other"),
					},
				},
				Tokens: []Token{
					{Line: 34, ProgramID: "acme", Name: "backend", User: "acme-backend", Scopes: []string{"events.write", "events.read"},
						Expires: &expires, SecretFile: filepath.Join(dir, "secrets/backend")},
					{Line: 39, ProgramID: "acme", Name: "reader", User: "me", Scopes: []string{"webhooks.read"}, Expires: &never,
						SecretFile: "/tmp/reader"},
				},
			},
			{Line: 44, ID: "empty", Settings: Settings{}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// faults are files with the problem that is reported. beyond marks rules that a JSON Schema cannot
// express.
var faults = []struct {
	name, text, want string
	beyond           bool
}{
	{"empty", "", "f.yml: is empty; it must have event_types or programs", true},
	{"only a comment", "# nothing\n", "f.yml: is empty; it must have event_types or programs", true},
	{"empty mapping", "{}\n", "f.yml line 1: is empty; it must have event_types or programs", false},
	{"null", "null\n", "f.yml line 1: has no value; must be a mapping with the keys event_types, programs", false},
	{"syntax", "programs:\n  - id: [\n", "f.yml line 2: invalid YAML: ", true},
	{"second document", "programs: []\n---\nprograms: []\n", "f.yml line 2: unexpected second YAML document; put everything into one", true},
	{"a list", "- id: acme\n", "f.yml line 1: must be a mapping with the keys event_types, programs", false},
	{"unknown key", "programs:\n  - id: acme\n    subscription: []\n",
		`f.yml line 3: programs[0]: unknown key "subscription" (did you mean subscriptions?)`, false},
	{"unknown key of limits", "programs: [{id: acme, limits: {rate_limits: 5}}]\n",
		`f.yml line 1: programs[0].limits: unknown key "rate_limits" (did you mean rate_limit?)`, false},
	{"duplicate key", "programs:\n  - id: acme\n    id: other\n", "f.yml line 3: programs[0]: \"id\" is already set in line 2", true},
	{"duplicate program", "programs:\n  - id: acme\n  - id: acme\n", `f.yml line 3: programs[1].id: "acme" is already in line 2`, true},
	{"duplicate event type", "event_types:\n  - {name: a.b, schema: {}}\n  - {name: a.b, schema: {}}\n",
		`f.yml line 3: event_types[1].name: "a.b" is already in line 2`, true},
	{"merge key", "programs:\n  - &a {id: acme}\n  - {<<: *a}\n",
		"f.yml line 3: programs[1]: keys must be texts; put them in quotes. Merge keys (<<) are not supported", true},
	{"missing key", "programs:\n  - name: Acme\n", "f.yml line 2: programs[0]: id is required", false},
	{"number for a text", "programs:\n  - id: 1001\n", "f.yml line 2: programs[0].id: must be a text; put it in quotes", false},
	{"bad id", "programs:\n  - id: a/b\n", "f.yml line 2: programs[0].id: must be 1 to 64 letters, digits, dots", false},
	{"empty id", "programs:\n  - id: ''\n", "f.yml line 2: programs[0].id: must not be empty", false},
	{"null id", "programs:\n  - id:\n", "f.yml line 2: programs[0].id: has no value; must be 1 to 64 letters", false},
	{"long id", "programs:\n  - id: " + strings.Repeat("a", 65) + "\n", "f.yml line 2: programs[0].id: must be at most 64 bytes", false},
	{"bad type name", "event_types: [{name: Order/shipped, schema: {}}]\n",
		"f.yml line 1: event_types[0].name: must be 1 to 128 letters, digits, underscores, dots, colons and hyphens", false},
	{"bad filter", filtered + "{ping: {all: []}}}\n",
		"f.yml line 4: programs[0].subscriptions[0].filters.ping: all must be an array of at least one condition", true},
	{"filter of another event", filtered + "{pong: {}}}\n",
		"f.yml line 4: programs[0].subscriptions[0].filters.pong: is not the filter of one of the subscription's events", true},
	{"no schema", "event_types:\n  - name: a.b\n", "f.yml line 2: event_types[0]: must have exactly one of schema and schema_file", false},
	{"two schemas", "event_types: [{name: a.b, schema: {}, schema_file: returned.json}]\n",
		"f.yml line 1: event_types[0]: must have exactly one of schema and schema_file", false},
	{"missing schema file", "event_types: [{name: a.b, schema_file: none.json}]\n",
		"f.yml line 1: event_types[0].schema_file: open ", true},
	{"schema file is not JSON", "event_types: [{name: a.b, schema_file: bad.json}]\n",
		"bad.json is not JSON", true},
	{"large schema file", "event_types: [{name: a.b, schema_file: large.json}]\n",
		"large.json is larger than 1048576 bytes", true},
	{"schema is no object", "event_types: [{name: a.b, schema: [1]}]\n",
		"f.yml line 1: event_types[0].schema: must be a mapping, a JSON Schema", false},
	{"number that JSON lacks", "event_types:\n  - name: a.b\n    schema:\n      maximum: 0x10\n",
		"f.yml line 4: event_types[0].schema.maximum: must be a value of JSON", true},
	{"duplicate key of a schema", "event_types:\n  - name: a.b\n    schema:\n      title: a\n      title: b\n",
		`f.yml line 5: event_types[0].schema: "title" is already set in line 4`, true},
	{"key of a schema that is no text", "event_types: [{name: a.b, schema: {1: a}}]\n",
		"f.yml line 1: event_types[0].schema: keys must be texts; put them in quotes", true},
	{"deep schema", "event_types: [{name: a.b, schema: " + strings.Repeat("{a: ", 40) + "1" + strings.Repeat("}", 40) + "}]\n",
		": must not be nested deeper than 32 levels", true},
	{"limit too small", "programs: [{id: acme, limits: {max_in_flight: 0}}]\n",
		"f.yml line 1: programs[0].limits.max_in_flight: must be a whole number, 1 to 100000, or null for no limit", false},
	{"limit too large", "programs: [{id: acme, limits: {rate_limit: 1000001}}]\n",
		"programs[0].limits.rate_limit: must be a whole number, at most 1000000, or null for the default of the installation", false},
	{"negative limit", "programs: [{id: acme, limits: {rate_limit: -1}}]\n", "rate_limit: must be a whole number", false},
	{"fraction of a limit", "programs: [{id: acme, limits: {rate_limit: 1.5}}]\n", "rate_limit: must be a whole number", false},
	{"limit as text", "programs: [{id: acme, limits: {rate_limit: '5'}}]\n", "rate_limit: must be a whole number", false},
	{"limit in octal", "programs: [{id: acme, limits: {rate_limit: 010}}]\n", "rate_limit: must be a whole number", true},
	{"limit in groups", "programs: [{id: acme, limits: {rate_limit: 1_000}}]\n", "rate_limit: must be a whole number", true},
	{"relative URL", "programs: [{id: acme, subscriptions: [{url: /hooks, events: [ping]}]}]\n",
		"f.yml line 1: programs[0].subscriptions[0].url: must be a URL that begins with https:// or http://", false},
	{"no events", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: []}]}]\n",
		"f.yml line 1: programs[0].subscriptions[0].events: must have 1 to 64 items, not 0", false},
	{"duplicate event", "programs:\n- id: acme\n  subscriptions:\n  - url: https://a.example\n    events:\n    - ping\n    - ping\n",
		"f.yml line 7: programs[0].subscriptions[0].events[1]: ping is already in line 6", false},
	{"word for a boolean", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], active: yes}]}]\n",
		"f.yml line 1: programs[0].subscriptions[0].active: must be true or false", false},
	{"rate too low", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], max_per_second: 0.05}]}]\n",
		"max_per_second: must be a number, 0.1 to 1000, or null for no limit", false},
	{"too many events", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], max_events: 1001}]}]\n",
		"max_events: must be a whole number, 1 to 1000, or null for the default of the installation", false},
	{"no events in a delivery", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], max_events: 0}]}]\n",
		"max_events: must be a whole number, 1 to 1000", false},
	{"literal secret",
		"programs:\n- id: acme\n  subscriptions:\n  - {url: https://a.example, events: [ping], authorization_header: hunter2}\n",
		"f.yml line 4: programs[0].subscriptions[0].authorization_header: a secret must not be in this file: write {file: PATH} or {env: NAME}",
		false},
	{"secret as a key", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], signing_secret: {hunter2: a}}]}]\n",
		"signing_secret: has an unknown key; it must be {file: PATH} or {env: NAME}", false},
	{"two sources of a secret", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], " +
		"signing_secret: {env: A, file: b}}]}]\n", "signing_secret: must have exactly one of file and env", false},
	{"no source of a secret", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], signing_secret: {}}]}]\n",
		"signing_secret: must have exactly one of file and env", false},
	{"null signing secret", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], signing_secret: null}]}]\n",
		"signing_secret: has no value; must be {file: PATH} or {env: NAME}", false},
	{"bad variable", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], signing_secret: {env: A-B}}]}]\n",
		"signing_secret.env: must be the name of a variable", false},
	{"same subscription", "programs:\n- id: acme\n  subscriptions:\n  - {url: https://a.example, events: [ping]}\n" +
		"  - {url: https://a.example, events: [ping], description: ''}\n",
		"f.yml line 5: programs[0].subscriptions[1]: has the url and description of line 4", true},
	{"both signing secrets", "programs: [{id: acme, subscriptions: [{url: https://a.example, events: [ping], signing_secret: {env: A}, " +
		"signing_secret_file: b}]}]\n", "must have signing_secret or signing_secret_file, not both", true},
	{"token without a file", "programs: [{id: acme, tokens: [{name: a, user: me, scopes: [events.read]}]}]\n",
		"f.yml line 1: programs[0].tokens[0]: secret_file is required", false},
	{"unknown scope", "programs: [{id: acme, tokens: [{name: a, user: me, scopes: [events], secret_file: a}]}]\n",
		`f.yml line 1: programs[0].tokens[0].scopes[0]: must be one of webhooks.read, webhooks.write, events.read, events.write, metrics.read, not "events"`,
		false},
	{"platform scope", "programs: [{id: acme, tokens: [{name: a, user: me, scopes: [platform], secret_file: a}]}]\n", "must be one of", false},
	{"bad expiry", "programs: [{id: acme, tokens: [{name: a, user: me, scopes: [events.read], secret_file: a, expires_at: tomorrow}]}]\n",
		"expires_at: must be a time such as 2027-01-31T00:00:00Z, or null for never", false},
	{"same token", "programs:\n- id: acme\n  tokens:\n  - {name: a, user: me, scopes: [events.read], secret_file: a}\n" +
		"  - {name: a, user: me, scopes: [events.read], secret_file: b}\n", `f.yml line 5: programs[0].tokens[1].name: "a" is already in line 4`, true},
	{"same secret file", "programs:\n- id: acme\n  tokens:\n  - {name: a, user: me, scopes: [events.read], secret_file: x}\n" +
		"- id: other\n  tokens:\n  - {name: a, user: me, scopes: [events.read], secret_file: ./x}\n",
		"f.yml line 7: programs[1].tokens[0].secret_file: ", true},
}

func TestParseFaults(t *testing.T) {
	dir := folder(t)
	for _, test := range faults {
		t.Run(test.name, func(t *testing.T) {
			_, err := parse("f.yml", dir, []byte(test.text))
			var problems *Problems
			if !errors.As(err, &problems) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant %s", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error has the secret: %v", err)
			}
		})
	}
}

// TestParseReportsAll checks that one run reports the problems of the whole file, up to a
// bound.
func TestParseReportsAll(t *testing.T) {
	text := "programs:\n" + strings.Repeat("  - id: /\n", maxProblems+5)
	_, err := parse("f.yml", ".", []byte(text))
	if err == nil || strings.Count(err.Error(), "; f.yml line ") != maxProblems-1 || !strings.HasSuffix(err.Error(), "; and 5 more") {
		t.Errorf("got %v", err)
	}
}

// TestAliases checks that aliases work, and that aliases of aliases do not exhaust memory.
func TestAliases(t *testing.T) {
	f, err := parse("f.yml", ".", []byte("programs:\n  - {id: a, limits: &l {rate_limit: 5}}\n  - {id: b, limits: *l}\n"))
	if err != nil || len(f.Programs) != 2 || !cmp.Equal(f.Programs[1].Settings, Settings{"limits": map[string]any{"rate_limit": 5.0}}) {
		t.Errorf("got %+v, %v", f, err)
	}
	var b strings.Builder
	b.WriteString("event_types:\n  - name: a.b\n    schema:\n      a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n")
	for i := range 9 {
		b.WriteString("      a" + string(rune('1'+i)) + ": &a" + string(rune('1'+i)) + " [" +
			strings.TrimSuffix(strings.Repeat("*a"+string(rune('0'+i))+", ", 10), ", ") + "]\n")
	}
	_, err = parse("f.yml", ".", []byte(b.String()))
	if err == nil || !strings.Contains(err.Error(), "the file has more than 2097152 values") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	for _, test := range faults {
		f.Add([]byte(test.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := parse("f.yml", t.TempDir(), text)
		var problems *Problems
		if (file == nil) == (err == nil) || err != nil && !errors.As(err, &problems) {
			t.Errorf("got %v, %v", file, err)
		}
	})
}
