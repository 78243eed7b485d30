package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/webhook"
)

// File is the desired state.
type File struct {
	Name       string      `json:"-"` // of the file, for messages
	EventTypes []EventType `json:"event_types"`
	Programs   []Program
}

// EventType is a desired event type.
type EventType struct {
	Line       int `json:"-"`
	Name       string
	Schema     json.RawMessage // inline or from a schema file
	SchemaFile string          `json:"schema_file"`
}

// Program is a desired program. Only the settings in the file are compared and changed.
type Program struct {
	Line          int `json:"-"`
	ID            string
	Settings      Settings `json:"-"`
	Subscriptions []Subscription
	Tokens        []Token
}

// Subscription is a desired subscription.
type Subscription struct {
	Line        int    `json:"-"`
	ProgramID   string `json:"-"`
	URL         string
	Description string // repeated in Settings
	Events      []string
	FilterTexts map[string]json.RawMessage `json:"filters"`
	Settings    Settings                   `json:"-"`

	Authorization     *Secret            `json:"authorization_header"` // nil if the file has none
	Headers           map[string]*Secret // nil if the file has none, empty to remove all
	Filters           webhook.Filters    `json:"-"`                   // nil if the file has none, empty to remove all
	SigningSecret     *Secret            `json:"signing_secret"`      // of a new subscription; nil generates one
	SigningSecretFile string             `json:"signing_secret_file"` // where the generated secret is written; "" for nowhere
}

// Token is a desired access token.
type Token struct {
	Line       int    `json:"-"`
	ProgramID  string `json:"-"`
	Name       string
	User       string
	Scopes     []string
	Expires    *time.Time `json:"expires_at"` // nil if the file has none; zero for never
	SecretFile string     `json:"secret_file"`
}

// Secret refers to a secret outside of the file.
type Secret struct {
	Line int    `json:"-"`
	At   string `json:"-"`    // path in the file
	Path string `json:"file"` // file with the secret
	Env  string // or environment variable with the secret
	Null bool   `json:"-"` // no secret
}

// Settings are the properties of a record that can be compared, in the API's form.
type Settings map[string]any

// decode decodes a record and returns all its properties.
func decode[T any](text []byte, record *T) (all Settings, err error) {
	return all, errors.Join(json.Unmarshal(text, record), json.Unmarshal(text, &all))
}

func (p *Program) UnmarshalJSON(text []byte) (err error) {
	type plain Program // without this method
	p.Settings, err = decode(text, (*plain)(p))
	for _, name := range []string{"id", "subscriptions", "tokens"} {
		delete(p.Settings, name)
	}
	return err
}

func (s *Subscription) UnmarshalJSON(text []byte) (err error) {
	type plain Subscription
	s.Settings, err = decode(text, (*plain)(s))
	if header, ok := s.Settings["authorization_header"]; ok && header == nil {
		s.Authorization = &Secret{Null: true}
	}
	if headers, ok := s.Settings["headers"]; ok && headers == nil {
		s.Headers = make(map[string]*Secret)
	}
	if _, ok := s.Settings["filters"]; ok {
		s.Filters = make(webhook.Filters)
	}
	for _, name := range []string{"url", "authorization_header", "headers", "filters", "signing_secret", "signing_secret_file"} {
		delete(s.Settings, name)
	}
	return err
}

func (t *Token) UnmarshalJSON(text []byte) error {
	type plain Token
	all, err := decode(text, (*plain)(t))
	if expiry, ok := all["expires_at"]; ok && expiry == nil {
		t.Expires = new(time.Time)
	}
	return err
}

// Read reads the file at path, or stdin if path is -. An error in the file is a *Problems.
func Read(path string, stdin io.Reader) (*File, error) {
	in, name, dir := stdin, "stdin", "."
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, name, dir = f, path, filepath.Dir(path)
	}
	content, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFile {
		return nil, &Problems{name, []Problem{{0, fmt.Sprintf("is larger than %d bytes", maxFile)}}}
	}
	return parse(name, dir, content)
}

// parse parses the content of a file. Relative paths in it start from dir.
func parse(name, dir string, content []byte) (*File, error) {
	b := builder{dir: dir, programs: make(map[string]int), types: make(map[string]int), outputs: make(map[string]int)}
	f := &File{Name: name}
	if b.document(content) {
		if err := json.Unmarshal(b.json, f); err != nil {
			return nil, err // the schema accepts nothing else
		}
		b.file(f)
	}
	if len(b.problems) > 0 {
		return nil, &Problems{name, b.problems}
	}
	return f, nil
}

// builder completes the records of a file and checks the rules between them.
type builder struct {
	parser
	dir      string
	programs map[string]int // lines by ID
	types    map[string]int // lines by name
	outputs  map[string]int // lines by the path of a file to create
}

func (b *builder) file(f *File) {
	for i := range f.EventTypes {
		t, at := &f.EventTypes[i], b.root.find("event_types", strconv.Itoa(i))
		t.Line = at.line()
		b.once(b.types, t.Name, at.find("name"))
		if t.SchemaFile != "" {
			t.Schema = b.schemaFile(b.path(t.SchemaFile), at.find("schema_file"))
		}
	}
	for i := range f.Programs {
		p, at := &f.Programs[i], b.root.find("programs", strconv.Itoa(i))
		p.Line = at.line()
		b.once(b.programs, p.ID, at.find("id"))
		b.subscriptions(p, at)
		names := make(map[string]int)
		for j := range p.Tokens {
			t, at := &p.Tokens[j], at.find("tokens", strconv.Itoa(j))
			t.Line, t.ProgramID, t.SecretFile = at.line(), p.ID, b.output(t.SecretFile, at.find("secret_file"))
			b.once(names, t.Name, at.find("name"))
			if t.Expires != nil {
				*t.Expires = t.Expires.UTC().Truncate(time.Millisecond)
			}
		}
	}
}

// once reports a name that occurs more than once.
func (b *builder) once(lines map[string]int, name string, at place) {
	if before := lines[name]; before > 0 {
		b.fail(at, "%s is already in line %d", quoted(name), before)
		return
	}
	lines[name] = at.line()
}

// path returns a path of the file, relative to its directory unless it is absolute.
func (b *builder) path(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(b.dir, path)
}

// output returns the path of a file to create, "" for none. No two records may share one.
func (b *builder) output(path string, at place) string {
	if path == "" {
		return ""
	}
	path = b.path(path)
	b.once(b.outputs, path, at)
	return path
}

// maxSchemaFile bounds a schema file, in bytes, as the files in event_types are.
const maxSchemaFile = 1 << 20

// schemaFile reads a schema.
func (b *builder) schemaFile(path string, at place) json.RawMessage {
	content, err := readBounded(path, maxSchemaFile)
	switch {
	case err != nil:
		b.fail(at, "%v", err)
	case !json.Valid(content):
		b.fail(at, "%s is not JSON", path)
	}
	return content
}

// readBounded reads a regular file of at most max bytes.
func readBounded(path string, max int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(content)) > max {
		err = fmt.Errorf("%s is larger than %d bytes", path, max)
	}
	return content, err
}

func (b *builder) subscriptions(p *Program, program place) {
	type identity struct{ url, description string }
	lines := make(map[identity]int)
	for i := range p.Subscriptions {
		s, at := &p.Subscriptions[i], program.find("subscriptions", strconv.Itoa(i))
		s.Line, s.ProgramID = at.line(), p.ID
		b.secret(s.Authorization, at.find("authorization_header"))
		for name, value := range s.Headers {
			b.secret(value, at.find("headers", name))
		}
		b.filters(s, at.find("filters"))
		b.secret(s.SigningSecret, at.find("signing_secret"))
		s.SigningSecretFile = b.output(s.SigningSecretFile, at.find("signing_secret_file"))
		if s.SigningSecret != nil && s.SigningSecretFile != "" {
			b.fail(at, "must have signing_secret or signing_secret_file, not both: the file is for a generated secret")
		}
		key := identity{s.URL, s.Description}
		if before := lines[key]; before > 0 {
			b.fail(at, "has the url and description of line %d; subscriptions with the same url need different descriptions", before)
		} else {
			lines[key] = s.Line
		}
	}
}

// filters parses the filters of a subscription.
func (b *builder) filters(s *Subscription, at place) {
	for name, text := range s.FilterTexts {
		f, err := webhook.ParseFilter(text, nil, "")
		switch {
		case !slices.Contains(s.Events, name):
			b.fail(at.find(name), "is not the filter of one of the subscription's events")
		case err != nil && len(err.Validations) > 0:
			b.fail(at.find(name), "%s", strings.TrimSpace(err.Validations[0].Parameter+" "+err.Validations[0].Detail))
		case err != nil:
			b.fail(at.find(name), "%s", err.Detail)
		}
		s.Filters[name] = f
	}
}

// secret completes a reference to a secret, if there is one.
func (b *builder) secret(s *Secret, at place) {
	if s == nil {
		return
	}
	s.Line, s.At = at.line(), at.path
	if s.Path != "" {
		s.Path = b.path(s.Path)
	}
}
