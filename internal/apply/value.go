package apply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"service/internal/terminal"
)

// value is a value of the file that fits its format.
type value struct {
	line   int
	null   bool
	text   string
	number float64
	truth  bool
	time   time.Time
	list   []value
	fields map[string]value // of an object, those that the file has
	json   json.RawMessage  // of anything
}

// Problem is what is wrong in a line of the file.
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

// parser checks a YAML document against a format and collects its problems.
type parser struct {
	problems []Problem
	values   int // checked so far
}

func (p *parser) fail(n *yaml.Node, at, format string, args ...any) {
	p.problem(n.Line, at, format, args...)
}

func (p *parser) problem(line int, at, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if at != "" {
		message = at + ": " + message
	}
	p.problems = append(p.problems, Problem{line, message})
}

// document parses the only YAML document of a file.
func (p *parser) document(content []byte) (v value, ok bool) {
	d := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	switch err := d.Decode(&first); {
	case errors.Is(err, io.EOF):
		p.problems = append(p.problems, Problem{0, "is empty; it must have event_types or programs"})
		return v, false
	case err != nil:
		p.problems = append(p.problems, syntaxProblem(err))
		return v, false
	}
	if err := d.Decode(&second); err == nil {
		p.fail(&second, "", "unexpected second YAML document; put everything into one")
		return v, false
	} else if !errors.Is(err, io.EOF) {
		p.problems = append(p.problems, syntaxProblem(err))
		return v, false
	}
	v, ok = p.value(first.Content[0], fileFormat, "")
	if ok && len(v.fields) == 0 {
		p.fail(first.Content[0], "", "is empty; it must have event_types or programs")
	}
	return v, ok && len(p.problems) == 0
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): (.*)$`)

// syntaxProblem returns an error of the YAML library as a problem. The library does not
// quote values of the file.
func syntaxProblem(err error) Problem {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return Problem{line, "invalid YAML: " + m[2]}
	}
	return Problem{0, "invalid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
}

// resolve follows an alias. The number of values is bounded because aliases of aliases can
// grow without limit.
func (p *parser) resolve(n *yaml.Node, at string) (*yaml.Node, bool) {
	if p.values++; p.values > maxValues {
		if p.values == maxValues+1 {
			p.fail(n, at, "the file has more than %d values", maxValues)
		}
		return n, false
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias, true // never an alias itself
	}
	return n, true
}

// value checks a value against its format. at is its path in the file, such as
// programs[0].tokens[1]. ok is false if it does not fit; the problem is then recorded.
func (p *parser) value(n *yaml.Node, f *format, at string) (v value, ok bool) {
	line := n.Line
	if n, ok = p.resolve(n, at); !ok {
		return v, false
	}
	v.line = line
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		if f.null == "" {
			p.problem(line, at, "has no value; %s", wanted(f))
		}
		v.null = true
		return v, f.null != ""
	}
	switch f.kind {
	case object:
		return p.object(n, f, at, v)
	case list:
		return p.list(n, f, at, v)
	case secret:
		if n.Kind == yaml.ScalarNode {
			p.problem(line, at, "a secret must not be in this file: write {file: PATH} or {env: NAME}")
			return v, false
		}
		return p.object(n, f, at, v)
	case anything:
		if n.Kind != yaml.MappingNode {
			p.problem(line, at, "%s", wanted(f))
			return v, false
		}
		var b bytes.Buffer
		ok = p.json(&b, n, at, 1)
		v.json = b.Bytes()
		return v, ok
	}
	return p.scalar(n, f, at, v)
}

// wanted says what a format requires.
func wanted(f *format) string {
	null := ""
	if f.null != "" {
		null = ", or null for " + f.null
	}
	limits := bounds(f.min, f.max)
	switch f.kind {
	case object:
		return "must be a mapping with the keys " + strings.Join(f.names(), ", ")
	case list:
		return "must be a list"
	case secret:
		return "must be {file: PATH} or {env: NAME}" + null
	case anything:
		return "must be a mapping, a JSON Schema"
	case timestamp:
		return "must be a time such as 2027-01-31T00:00:00Z" + null
	case boolean:
		return "must be true or false" + null
	case integer:
		return strings.TrimSpace("must be a whole number, "+limits) + null
	case number:
		return strings.TrimSpace("must be a number, "+limits) + null
	}
	switch {
	case f.words != nil:
		return "must be one of " + strings.Join(f.words, ", ") + null
	case f.rule != "":
		return "must be " + f.rule + null
	}
	return "must be a text; put it in quotes" + null
}

func (p *parser) object(n *yaml.Node, f *format, at string, v value) (value, bool) {
	if n.Kind != yaml.MappingNode {
		p.problem(v.line, at, "%s", wanted(f))
		return v, false
	}
	ok := true
	v.fields = make(map[string]value)
	seen := make(map[string]int)
	for i := 0; i < len(n.Content); i += 2 {
		key, item := n.Content[i], n.Content[i+1]
		child := f.field(key.Value)
		if before := seen[key.Value]; before > 0 {
			p.fail(key, at, "%s is already set in line %d", key.Value, before)
			ok = false
			continue
		}
		if child == nil || key.Kind != yaml.ScalarNode {
			p.unknown(key, f, at)
			ok = false
			continue
		}
		seen[key.Value] = key.Line
		one, fits := p.value(item, child, join(at, key.Value))
		v.fields[key.Value] = one
		ok = ok && fits
	}
	for _, one := range f.fields {
		if one.required && seen[one.name] == 0 {
			p.problem(v.line, at, "%s is required", one.name)
			ok = false
		}
	}
	if f.either != nil {
		given := slices.DeleteFunc(slices.Clone(f.either), func(name string) bool { return seen[name] == 0 })
		if len(given) != 1 {
			p.problem(v.line, at, "must have exactly one of %s", strings.Join(f.either, " and "))
			ok = false
		}
	}
	return v, ok
}

// unknown reports an unknown key with the nearest known one. It does not quote keys next to
// a secret: they may be the secret.
func (p *parser) unknown(key *yaml.Node, f *format, at string) {
	switch {
	case f.kind == secret:
		p.fail(key, at, "has an unknown key; it must be {file: PATH} or {env: NAME}")
	case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
		p.fail(key, at, "keys must be plain names; merge keys (<<) are not supported")
	default:
		p.fail(key, at, "unknown key %s (did you mean %s?)", quoted(key.Value), terminal.Nearest(key.Value, f.names()))
	}
}

func (p *parser) list(n *yaml.Node, f *format, at string, v value) (value, bool) {
	if n.Kind != yaml.SequenceNode {
		p.problem(v.line, at, "%s", wanted(f))
		return v, false
	}
	if count := float64(len(n.Content)); count < f.min || f.max > 0 && count > f.max {
		p.problem(v.line, at, "must have %s items, not %d", bounds(f.min, f.max), len(n.Content))
		return v, false
	}
	ok := true
	first := make(map[string]int)
	for i, item := range n.Content {
		path := fmt.Sprintf("%s[%d]", at, i)
		one, fits := p.value(item, f.item, path)
		if before := first[one.text]; f.unique && fits && before > 0 {
			p.problem(one.line, path, "%s is already in line %d", one.text, before)
			fits = false
		}
		first[one.text] = one.line
		v.list = append(v.list, one)
		ok = ok && fits
	}
	return v, ok
}

var (
	wholeNumber   = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,17})$`)
	decimalNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?$`)
	jsonNumber    = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
)

// scalar checks a text, a time, a number or a boolean. YAML has more notations for them,
// such as 0x10 and 1_000; they are refused, because other readers of the file disagree.
func (p *parser) scalar(n *yaml.Node, f *format, at string, v value) (value, bool) {
	fits := n.Kind == yaml.ScalarNode
	tag := n.ShortTag()
	v.text = n.Value
	switch f.kind {
	case boolean:
		fits = fits && tag == "!!bool" && (n.Value == "true" || n.Value == "false")
		v.truth = n.Value == "true"
	case integer, number:
		pattern := wholeNumber
		if f.kind == number {
			pattern = decimalNumber
		}
		fits = fits && (tag == "!!int" || tag == "!!float") && pattern.MatchString(n.Value)
		v.number, _ = strconv.ParseFloat(n.Value, 64)
		fits = fits && v.number >= f.min && (f.max == 0 || v.number <= f.max)
	case timestamp:
		var err error
		v.time, err = time.Parse(time.RFC3339, n.Value)
		fits = fits && (tag == "!!str" || tag == "!!timestamp") && err == nil && v.time.Year() >= 1970 && v.time.UTC().Year() <= 9999
		v.time = v.time.UTC().Truncate(time.Millisecond)
	default:
		if fits && tag == "!!str" {
			return v, p.text(n.Value, f, at, v.line)
		}
		fits = false
		if n.Kind == yaml.ScalarNode {
			p.problem(v.line, at, "must be a text; put it in quotes")
			return v, false
		}
	}
	if !fits {
		p.problem(v.line, at, "%s", wanted(f))
	}
	return v, fits
}

// text checks the rules of a text.
func (p *parser) text(s string, f *format, at string, line int) bool {
	switch n := float64(len(s)); {
	case !utf8.ValidString(s):
		p.problem(line, at, "must be UTF-8")
	case f.words != nil && !slices.Contains(f.words, s):
		p.problem(line, at, "must be one of %s, not %s", strings.Join(f.words, ", "), quoted(s))
	case n < f.min:
		p.problem(line, at, "must not be empty")
	case f.max > 0 && n > f.max:
		p.problem(line, at, "must be at most %.0f bytes", f.max)
	case f.pattern != nil && !f.pattern.MatchString(s):
		p.problem(line, at, "must be %s", f.rule)
	default:
		return true
	}
	return false
}

// json appends a YAML value as JSON, with its keys in their order.
func (p *parser) json(b *bytes.Buffer, n *yaml.Node, at string, depth int) bool {
	n, ok := p.resolve(n, at)
	if !ok {
		return false
	}
	if depth > maxDepth {
		p.fail(n, at, "must not be nested deeper than %d levels", maxDepth)
		return false
	}
	switch n.Kind {
	case yaml.MappingNode:
		return p.jsonObject(b, n, at, depth)
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			ok = p.json(b, item, fmt.Sprintf("%s[%d]", at, i), depth+1) && ok
		}
		b.WriteByte(']')
		return ok
	}
	return p.jsonScalar(b, n, at)
}

func (p *parser) jsonObject(b *bytes.Buffer, n *yaml.Node, at string, depth int) bool {
	ok := true
	seen := make(map[string]int)
	b.WriteByte('{')
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			p.fail(key, at, "keys must be texts; put them in quotes. Merge keys (<<) are not supported")
			return false
		case seen[key.Value] > 0:
			p.fail(key, at, "%s is already set in line %d", quoted(key.Value), seen[key.Value])
			return false
		}
		seen[key.Value] = key.Line
		if i > 0 {
			b.WriteByte(',')
		}
		writeText(b, key.Value)
		b.WriteByte(':')
		ok = p.json(b, n.Content[i+1], join(at, key.Value), depth+1) && ok
	}
	b.WriteByte('}')
	return ok
}

func (p *parser) jsonScalar(b *bytes.Buffer, n *yaml.Node, at string) bool {
	switch tag := n.ShortTag(); {
	case tag == "!!null":
		b.WriteString("null")
	case tag == "!!bool" && (n.Value == "true" || n.Value == "false"):
		b.WriteString(n.Value)
	case (tag == "!!int" || tag == "!!float") && jsonNumber.MatchString(n.Value) && !overflows(n.Value):
		b.WriteString(n.Value)
	case (tag == "!!str" || tag == "!!timestamp") && utf8.ValidString(n.Value):
		writeText(b, n.Value)
	default:
		p.fail(n, at, "must be a value of JSON: a text in quotes, a decimal number, true, false or null")
		return false
	}
	return true
}

// overflows reports whether a number is beyond the range of a float64.
func overflows(s string) bool {
	x, err := strconv.ParseFloat(s, 64)
	return err != nil || math.IsInf(x, 0)
}

// writeText writes a JSON string.
func writeText(b *bytes.Buffer, s string) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)         // a string cannot fail
	b.Truncate(b.Len() - 1) // Encode ends the line
}

// join returns the path of a field.
func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// quoted quotes a name from the file, shortened.
func quoted(s string) string {
	if r := []rune(s); len(r) > 64 {
		s = string(r[:64]) + "…"
	}
	return strconv.Quote(s)
}
