package apply

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// File is the desired state.
type File struct {
	Name       string // of the file, for messages
	EventTypes []EventType
	Programs   []Program
}

// EventType is a desired event type.
type EventType struct {
	Line   int
	Name   string
	Schema json.RawMessage
}

// Setting is a property that a record shall have, with its value in JSON: a string, a number,
// a boolean, a list of strings, or nil for null.
type Setting struct {
	Name  string // such as limits.rate_limit
	Value any
}

// Program is a desired program. Only the settings in the file are compared and changed.
type Program struct {
	Line          int
	ID            string
	Settings      []Setting
	Subscriptions []Subscription
	Tokens        []Token
}

// Subscription is a desired subscription.
type Subscription struct {
	Line        int
	ProgramID   string
	URL         string
	Description *string // also in Settings; nil if the file has none
	Events      []string
	Settings    []Setting

	Authorization     *Secret // nil if the file has none
	SigningSecret     *Secret // of a new subscription; nil generates one
	SigningSecretFile string  // where the generated one is written; "" for nowhere
}

// Token is a desired access token.
type Token struct {
	Line       int
	ProgramID  string
	Name       string
	User       string
	Scopes     []string
	Expires    *time.Time // nil if the file has none; zero for never
	SecretFile string
}

// Secret refers to a secret outside of the file.
type Secret struct {
	Line int
	At   string // path in the file
	Path string // file with the secret
	Env  string // or environment variable with the secret
	Null bool   // no secret
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
	p := new(parser)
	v, ok := p.document(content)
	if !ok {
		return nil, &Problems{name, p.problems}
	}
	b := builder{parser: p, dir: dir, programs: make(map[string]int), types: make(map[string]int), outputs: make(map[string]int)}
	f := b.file(v)
	f.Name = name
	if len(p.problems) > 0 {
		return nil, &Problems{name, p.problems}
	}
	return f, nil
}

// builder turns values that fit the format into records, and checks the rules between them.
type builder struct {
	*parser
	dir      string
	programs map[string]int // lines by id
	types    map[string]int // lines by name
	outputs  map[string]int // lines by the path of a file to create
}

func (b *builder) file(v value) *File {
	f := new(File)
	for i, one := range v.fields["event_types"].list {
		at := fmt.Sprintf("event_types[%d]", i)
		t := EventType{Line: one.line, Name: one.fields["name"].text, Schema: one.fields["schema"].json}
		b.once(b.types, t.Name, one.line, at+".name")
		if path, ok := one.fields["schema_file"]; ok {
			t.Schema = b.schemaFile(path, at+".schema_file")
		}
		f.EventTypes = append(f.EventTypes, t)
	}
	for i, one := range v.fields["programs"].list {
		f.Programs = append(f.Programs, b.program(one, fmt.Sprintf("programs[%d]", i)))
	}
	return f
}

// once reports a name that occurs twice.
func (b *builder) once(lines map[string]int, name string, line int, at string) {
	if before := lines[name]; before > 0 {
		b.problem(line, at, "%s is already in line %d", quoted(name), before)
		return
	}
	lines[name] = line
}

// path returns a path of the file, relative to its directory unless it is absolute.
func (b *builder) path(v value) string {
	if filepath.IsAbs(v.text) {
		return filepath.Clean(v.text)
	}
	return filepath.Join(b.dir, v.text)
}

// output returns the path of a file to create. No two records may share one.
func (b *builder) output(v value, at string) string {
	if v.text == "" {
		return ""
	}
	path := b.path(v)
	b.once(b.outputs, path, v.line, at)
	return path
}

// maxSchemaFile bounds a schema file, in bytes, as the files in event_types are.
const maxSchemaFile = 1 << 20

// schemaFile reads a schema.
func (b *builder) schemaFile(v value, at string) json.RawMessage {
	content, err := readBounded(b.path(v), maxSchemaFile)
	switch {
	case err != nil:
		b.problem(v.line, at, "%v", err)
	case !json.Valid(content):
		b.problem(v.line, at, "%s is not JSON", b.path(v))
	default:
		return content
	}
	return nil
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

func (b *builder) program(v value, at string) Program {
	p := Program{Line: v.line, ID: v.fields["id"].text}
	b.once(b.programs, p.ID, v.fields["id"].line, at+".id")
	p.Settings = settings(v, programSettings, "")
	type identity struct{ url, description string }
	subscriptions, tokens := make(map[identity]int), make(map[string]int)
	for i, one := range v.fields["subscriptions"].list {
		s := b.subscription(one, fmt.Sprintf("%s.subscriptions[%d]", at, i))
		s.ProgramID = p.ID
		key := identity{s.URL, ""}
		if s.Description != nil {
			key.description = *s.Description
		}
		if before := subscriptions[key]; before > 0 {
			b.problem(s.Line, fmt.Sprintf("%s.subscriptions[%d]", at, i),
				"has the url and description of line %d; subscriptions with the same url need different descriptions", before)
		} else {
			subscriptions[key] = s.Line
		}
		p.Subscriptions = append(p.Subscriptions, s)
	}
	for i, one := range v.fields["tokens"].list {
		path := fmt.Sprintf("%s.tokens[%d]", at, i)
		t := Token{
			Line: one.line, ProgramID: p.ID, Name: one.fields["name"].text, User: one.fields["user"].text,
			Scopes: texts(one.fields["scopes"]), SecretFile: b.output(one.fields["secret_file"], path+".secret_file"),
		}
		b.once(tokens, t.Name, one.fields["name"].line, path+".name")
		if expires, ok := one.fields["expires_at"]; ok {
			t.Expires = &expires.time // zero for null
		}
		p.Tokens = append(p.Tokens, t)
	}
	return p
}

func (b *builder) subscription(v value, at string) Subscription {
	s := Subscription{
		Line: v.line, URL: v.fields["url"].text, Events: texts(v.fields["events"]), Settings: settings(v, subscriptionSettings, ""),
		Authorization:     b.secret(v, "authorization_header", at),
		SigningSecret:     b.secret(v, "signing_secret", at),
		SigningSecretFile: b.output(v.fields["signing_secret_file"], at+".signing_secret_file"),
	}
	if description, ok := v.fields["description"]; ok {
		s.Description = &description.text
	}
	if s.SigningSecret != nil && s.SigningSecretFile != "" {
		b.problem(v.line, at, "must have signing_secret or signing_secret_file, not both: the file is for a generated secret")
	}
	return s
}

// secret returns a reference to a secret, or nil if the file has none.
func (b *builder) secret(v value, name, at string) *Secret {
	one, ok := v.fields[name]
	if !ok {
		return nil
	}
	s := &Secret{Line: one.line, At: join(at, name), Null: one.null, Env: one.fields["env"].text}
	if path, ok := one.fields["file"]; ok {
		s.Path = b.path(path)
	}
	return s
}

// settings returns the settings that an object of the file has, in the order of the format.
func settings(v value, fields []field, prefix string) (all []Setting) {
	for _, f := range fields {
		one, ok := v.fields[f.name]
		if !ok {
			continue
		}
		if f.format.kind == object {
			all = append(all, settings(one, f.format.fields, prefix+f.name+".")...)
			continue
		}
		all = append(all, Setting{prefix + f.name, plainValue(one, f.format)})
	}
	return all
}

// plainValue returns a value as encoding/json would decode it, with texts instead of any in a
// list.
func plainValue(v value, f *format) any {
	switch {
	case v.null:
		return nil
	case f.kind == list:
		return texts(v)
	case f.kind == boolean:
		return v.truth
	case f.kind == integer || f.kind == number:
		return v.number
	}
	return v.text
}

// texts returns the items of a list of texts.
func texts(v value) []string {
	all := make([]string, len(v.list))
	for i, one := range v.list {
		all[i] = one.text
	}
	return all
}
