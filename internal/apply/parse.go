package apply

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"go.yaml.in/yaml/v3"

	"service/docs"
	"service/internal/terminal"
)

// Limits of a file. The schema contains the limits of its values.
const (
	maxFile   = 16 << 20 // bytes
	maxValues = 1 << 21  // values, with each use of an alias
	maxDepth  = 32       // of the schema of an event type, as in the API
)

// Problem is an error in a line of the file.
type Problem struct {
	Line int // 0 if it concerns the whole file
	Text string
}

// maxProblems bounds the problems that are reported at once.
const maxProblems = 20

// Problems are the errors in a file. Nothing was changed.
type Problems struct {
	File string
	All  []Problem
}

func (p *Problems) Error() string {
	var all []string
	for i, one := range p.All {
		if i == maxProblems {
			all = append(all, fmt.Sprintf("and %d more", len(p.All)-i))
			break
		}
		at := p.File
		if one.Line > 0 {
			at += fmt.Sprintf(" line %d", one.Line)
		}
		all = append(all, at+": "+one.Text)
	}
	return strings.Join(all, "; ")
}

// Schema returns the JSON Schema of the file, for editors. The parser refuses some files that the
// schema accepts: YAML that other readers read differently, a text that has more bytes than its
// limit in characters, duplicate names, missing files and unknown events.
func Schema() []byte { return docs.ApplySchema }

// fileSchema returns the schema, compiled. The title of a value completes "must be".
var fileSchema = sync.OnceValue(func() *jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(docs.ApplySchema))
	c := jsonschema.NewCompiler()
	c.RegisterFormat(&jsonschema.Format{Name: "date-time", Validate: checkTime})
	c.AssertFormat()
	if err := errors.Join(err, c.AddResource("apply.schema.json", document)); err != nil {
		panic(err) // the schema is embedded
	}
	return c.MustCompile("apply.schema.json")
})

// checkTime checks that a time is within the years that the API can store.
func checkTime(v any) error {
	s, ok := v.(string)
	if !ok {
		return nil
	}
	var t time.Time
	if err := t.UnmarshalText([]byte(s)); err != nil || t.Year() < 1970 || t.UTC().Year() > 9999 {
		return errors.New("no time")
	}
	return nil
}

// place is a value of the file with its schema.
type place struct {
	node   *yaml.Node         // the alias, if it is one
	schema *jsonschema.Schema // nil within the schema of an event type
	path   string             // such as programs[0].tokens[1]
}

func (at place) line() int { return at.node.Line }

// field returns the place of a property with its value.
func (at place) field(name string, n *yaml.Node) place {
	child := place{n, nil, name}
	if at.path != "" {
		child.path = at.path + "." + name
	}
	if at.schema != nil {
		if child.schema = at.schema.Properties[name]; child.schema == nil {
			child.schema, _ = at.schema.AdditionalProperties.(*jsonschema.Schema)
		}
	}
	return child
}

// item returns the place of an item of a list.
func (at place) item(i int, n *yaml.Node) place {
	child := place{n, nil, fmt.Sprintf("%s[%d]", at.path, i)}
	if at.schema != nil {
		child.schema = at.schema.Items2020
	}
	return child
}

// find returns a place below this one, by names of properties and indexes of items, which must
// exist.
func (at place) find(location ...string) place {
	for _, name := range location {
		n := target(at.node)
		if i, err := strconv.Atoi(name); err == nil && n.Kind == yaml.SequenceNode {
			at = at.item(i, n.Content[i])
			continue
		}
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				at = at.field(name, n.Content[i+1])
				break
			}
		}
	}
	return at
}

// target follows an alias. Its result is never an alias itself.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// allows reports whether a place may have a value of a type.
func (at place) allows(name string) bool {
	return at.schema == nil || slices.Contains(at.schema.Types.ToStrings(), name)
}

// isSecret reports whether the value is a reference to a secret. Messages do not quote such a
// value, because the secret itself may be written there.
func (at place) isSecret() bool { return at.schema != nil && at.schema.Properties["env"] != nil }

// names returns the properties that an object may have.
func (at place) names() []string { return slices.Sorted(maps.Keys(at.schema.Properties)) }

// wanted says what the value must be.
func (at place) wanted() string {
	switch {
	case at.schema == nil:
		return "must be a value of JSON: a text in quotes, a decimal number, true, false or null"
	case at.schema.Properties != nil && !at.isSecret():
		return "must be a mapping with the keys " + strings.Join(at.names(), ", ")
	case at.schema.Title != "":
		return "must be " + at.schema.Title
	case at.allows("array"):
		return "must be a list"
	case at.allows("boolean"):
		return "must be true or false"
	}
	return wantedText
}

const wantedText = "must be a text; put it in quotes"

// parser turns a YAML document into JSON that the schema accepts, and collects its problems.
type parser struct {
	root     place
	values   int    // converted so far
	json     []byte // the document
	wrong    map[string]bool
	problems []Problem
}

func (p *parser) problem(line int, at, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if at != "" {
		message = at + ": " + message
	}
	p.problems = append(p.problems, Problem{line, message})
}

func (p *parser) fail(at place, format string, args ...any) {
	p.problem(at.line(), at.path, format, args...)
}

// refuse records, once, that a value is not what it must be, and writes null instead of it.
func (p *parser) refuse(at place, text string) {
	if !p.wrong[at.path] {
		p.fail(at, "%s", text)
	}
	p.wrong[at.path] = true
	p.json = append(p.json, "null"...)
}

// document parses the only YAML document of a file.
func (p *parser) document(content []byte) bool {
	d := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	switch err := d.Decode(&first); {
	case errors.Is(err, io.EOF):
		p.problem(0, "", emptyFile)
		return false
	case err != nil:
		p.problems = append(p.problems, syntaxProblem(err))
		return false
	}
	if err := d.Decode(&second); err == nil {
		p.problem(second.Line, "", "unexpected second YAML document; put everything into one")
		return false
	} else if !errors.Is(err, io.EOF) {
		p.problems = append(p.problems, syntaxProblem(err))
		return false
	}
	p.root = place{first.Content[0], fileSchema(), ""}
	p.wrong = make(map[string]bool)
	p.convert(p.root, -2) // the schema of an event type is at depth 1
	if p.values > maxValues {
		return false
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(p.json))
	if err != nil {
		panic(err) // written by convert
	}
	var invalid *jsonschema.ValidationError
	if errors.As(p.root.schema.Validate(value), &invalid) {
		n := len(p.problems)
		p.report(invalid) // in random order
		slices.SortFunc(p.problems[n:], func(a, b Problem) int { return cmp.Compare(a.Text, b.Text) })
	}
	slices.SortStableFunc(p.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return len(p.problems) == 0
}

const emptyFile = "is empty; it must have event_types or programs"

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): (.*)$`)

// syntaxProblem returns an error of the YAML library as a problem. The library does not quote
// values of the file.
func syntaxProblem(err error) Problem {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return Problem{line, "invalid YAML: " + m[2]}
	}
	return Problem{0, "invalid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
}

// convert appends a value as JSON. It bounds the number of values because aliases of aliases can
// grow without limit. It does not descend into values whose type the schema refuses.
func (p *parser) convert(at place, depth int) {
	n := target(at.node)
	p.values++
	switch {
	case p.values == maxValues+1:
		p.refuse(at, fmt.Sprintf("the file has more than %d values", maxValues))
	case p.values > maxValues:
	case depth > maxDepth:
		p.refuse(at, fmt.Sprintf("must not be nested deeper than %d levels", maxDepth))
	case n.Kind == yaml.MappingNode && !at.allows("object"), n.Kind == yaml.SequenceNode && !at.allows("array"):
		p.refuse(at, at.wanted())
	case n.Kind == yaml.MappingNode:
		p.object(at, n, depth)
	case n.Kind == yaml.SequenceNode:
		p.json = append(p.json, '[')
		for i, item := range n.Content {
			if i > 0 {
				p.json = append(p.json, ',')
			}
			p.convert(at.item(i, item), depth+1)
		}
		p.json = append(p.json, ']')
	default:
		p.scalar(at, n)
	}
}

func (p *parser) object(at place, n *yaml.Node, depth int) {
	lines := make(map[string]int)
	p.json = append(p.json, '{')
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], at.field(n.Content[i].Value, n.Content[i+1])
		switch before := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			p.problem(key.Line, at.path, "keys must be texts; put them in quotes. Merge keys (<<) are not supported")
		case at.isSecret() && value.schema == nil:
			p.problem(key.Line, at.path, "has an unknown key; it %s", at.wanted())
		case at.schema != nil && at.schema.Properties != nil && value.schema == nil:
			p.problem(key.Line, at.path, "unknown key %s (did you mean %s?)", quoted(key.Value), terminal.Nearest(key.Value, at.names()))
		case before > 0:
			p.problem(key.Line, at.path, "%s is already set in line %d", quoted(key.Value), before)
		default:
			if len(lines) > 0 {
				p.json = append(p.json, ',')
			}
			lines[key.Value] = key.Line
			p.json, _ = jsontext.AppendQuote(p.json, key.Value)
			p.json = append(p.json, ':')
			p.convert(value, depth+1)
		}
	}
	p.json = append(p.json, '}')
}

var (
	decimalNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?$`)
	jsonNumber    = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
)

// scalar appends a text, a number, a boolean or null. YAML has more notations for them, such as
// 0x10 and 1_000; they are refused, because other readers of the file disagree.
func (p *parser) scalar(at place, n *yaml.Node) {
	numbers := jsonNumber
	if at.schema != nil {
		numbers = decimalNumber
	}
	tag := n.ShortTag()
	switch date := at.schema == nil || at.schema.Format != nil; {
	case tag == "!!null":
		p.json = append(p.json, "null"...)
	case at.isSecret():
		p.refuse(at, "a secret must not be in this file: write {file: PATH} or {env: NAME}")
	case (tag == "!!str" || tag == "!!timestamp" && date) && utf8.ValidString(n.Value):
		if at.schema != nil && at.schema.MaxLength != nil && len(n.Value) > *at.schema.MaxLength {
			p.refuse(at, fmt.Sprintf("must be at most %d bytes", *at.schema.MaxLength))
			return
		}
		p.json, _ = jsontext.AppendQuote(p.json, n.Value)
	case !date && at.allows("string"):
		p.refuse(at, wantedText)
	case tag == "!!bool" && (n.Value == "true" || n.Value == "false"),
		(tag == "!!int" || tag == "!!float") && numbers.MatchString(n.Value) && !overflows(n.Value):
		p.json = append(p.json, n.Value...)
	default:
		p.refuse(at, at.wanted())
	}
}

// overflows reports whether a number is beyond the range of a float64.
func overflows(s string) bool {
	x, err := strconv.ParseFloat(s, 64)
	return err != nil || math.IsInf(x, 0)
}

// report turns an error of the schema into problems. It quotes no value that may be a secret.
func (p *parser) report(e *jsonschema.ValidationError) {
	at := p.root.find(e.InstanceLocation...)
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group:
		for _, cause := range e.Causes {
			p.report(cause)
		}
	case *kind.Required:
		for _, name := range k.Missing {
			p.fail(at, "%s is required", name)
		}
	case *kind.OneOf:
		p.fail(at, "must have exactly one of %s and %s", at.schema.OneOf[0].Required[0], at.schema.OneOf[1].Required[0])
	case *kind.MinProperties, *kind.MaxProperties:
		if at.isSecret() {
			p.fail(at, "must have exactly one of file and env")
		} else if len(p.problems) == 0 {
			p.fail(at, emptyFile)
		}
	case *kind.MinItems, *kind.MaxItems:
		least := 0
		if at.schema.MinItems != nil {
			least = *at.schema.MinItems
		}
		p.fail(at, "must have %d to %d items, not %d", least, *at.schema.MaxItems, len(target(at.node).Content))
	case *kind.UniqueItems:
		first, second := at.find(strconv.Itoa(k.Duplicates[0])), at.find(strconv.Itoa(k.Duplicates[1]))
		if !p.wrong[second.path] {
			p.fail(second, "%s is already in line %d", target(second.node).Value, first.line())
		}
	case *kind.MinLength:
		p.refuse(at, "must not be empty")
	case *kind.Enum:
		p.refuse(at, at.wanted()+", not "+quoted(target(at.node).Value))
	default:
		text := at.wanted()
		if target(at.node).ShortTag() == "!!null" {
			text = "has no value; " + text
		}
		p.refuse(at, text)
	}
}

// quoted quotes a name from the file, shortened.
func quoted(s string) string {
	if r := []rune(s); len(r) > 64 {
		s = string(r[:64]) + "…"
	}
	return strconv.Quote(s)
}
