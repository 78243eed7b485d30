package webhook

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Limits of the schema of an event type. The schema library compares the location of each
// subschema with all others, so both their number and the length of names are bounded.
const (
	maxProperties   = 2000    // in all "properties" together
	maxSubschemas   = 4000    // of any kind, including those of properties
	maxSchemaName   = 256     // bytes of a name in properties, $defs and the like
	maxPatternBytes = 1024    // of one pattern
	maxPatternSteps = 100_000 // instructions of all patterns together
)

// schemaLimit is the error of a schema that exceeds a limit. Its parameter is empty.
type schemaLimit Validation

func (e *schemaLimit) Error() string { return "the schema " + e.Detail }

// schemaSize counts what a schema consists of.
type schemaSize struct{ properties, subschemas int }

// checkSize returns an error if the schema at node i of d exceeds a limit. A $ref must
// name a subschema, so that the counted ones are all that there are.
func (d *document) checkSize(i int32) error { return new(schemaSize).add(d, i) }

func (s *schemaSize) add(d *document, i int32) error {
	if k := d.nodes[i].kind; k != jsontext.KindBeginObject && k != jsontext.KindTrue && k != jsontext.KindFalse {
		return nil // not a schema, which the compiler reports
	}
	if s.subschemas++; s.subschemas > maxSubschemas {
		return &schemaLimit{Code: InvalidTooMany, Detail: fmt.Sprintf("must have at most %d subschemas", maxSubschemas)}
	}
	for name, value := range d.members(i) {
		if err := s.addKeyword(d, string(d.text(name)), value); err != nil {
			return err
		}
	}
	return nil
}

// addKeyword adds the subschemas in a keyword with the value at node i.
func (s *schemaSize) addKeyword(d *document, keyword string, i int32) error {
	switch subschemasIn(keyword) {
	case oneSubschema:
		if err := s.add(d, i); err != nil {
			return err
		}
		return s.addList(d, i) // items and similar keywords took arrays in earlier versions
	case listOfSubschemas:
		return s.addList(d, i)
	case namedSubschemas:
		return s.addNamed(d, keyword, i)
	}
	if !d.isString(i) {
		return nil
	}
	text := string(d.text(i))
	switch keyword {
	case "pattern":
		return checkPatternLength(text)
	case "$ref":
		if strings.HasPrefix(text, "#/") && !namesSubschema(text[1:]) {
			return fmt.Errorf("a $ref must name a subschema, such as #/$defs/address: %s", quotedName(text))
		}
	}
	return nil
}

func (s *schemaSize) addList(d *document, i int32) error {
	for _, element := range d.elements(i) {
		if err := s.add(d, element); err != nil {
			return err
		}
	}
	return nil
}

func (s *schemaSize) addNamed(d *document, keyword string, i int32) error {
	for name, value := range d.members(i) {
		text := string(d.text(name))
		switch {
		case keyword == "patternProperties":
			if err := checkPatternLength(text); err != nil {
				return err
			}
		case len(text) > maxSchemaName:
			return &schemaLimit{Code: InvalidTooLong, Detail: fmt.Sprintf("must have names of at most %d bytes in %s: %s",
				maxSchemaName, keyword, quotedName(text))}
		case keyword == "properties":
			if s.properties++; s.properties > maxProperties {
				return &schemaLimit{Code: InvalidTooMany, Detail: fmt.Sprintf("must have at most %d properties", maxProperties)}
			}
		}
		if err := s.add(d, value); err != nil {
			return err
		}
	}
	return nil
}

func checkPatternLength(text string) error {
	if len(text) > maxPatternBytes {
		return &schemaLimit{Code: InvalidTooLong, Detail: fmt.Sprintf("must have patterns of at most %d bytes: %s",
			maxPatternBytes, quotedName(text))}
	}
	return nil
}

// subschemaForm is how a keyword contains subschemas.
type subschemaForm int

const (
	noSubschemas subschemaForm = iota
	oneSubschema
	listOfSubschemas
	namedSubschemas
)

func subschemasIn(keyword string) subschemaForm {
	switch keyword {
	case "not", "if", "then", "else", "additionalProperties", "propertyNames", "items", "contains", "unevaluatedProperties",
		"unevaluatedItems", "additionalItems", "contentSchema":
		return oneSubschema
	case "allOf", "anyOf", "oneOf", "prefixItems":
		return listOfSubschemas
	case "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions":
		return namedSubschemas
	}
	return noSubschemas
}

// namesSubschema reports whether a JSON Pointer leads from a schema through keywords with
// subschemas to another schema, if there is one.
func namesSubschema(pointer string) bool {
	pointer, err := url.PathUnescape(pointer)
	if err != nil {
		return false
	}
	tokens := strings.Split(pointer, "/")[1:]
	for len(tokens) > 0 {
		rest := tokens[1:]
		switch subschemasIn(tokens[0]) {
		case noSubschemas:
			return false
		case oneSubschema:
			if len(rest) > 0 && isIndex(rest[0]) {
				rest = rest[1:]
			}
		default:
			if len(rest) == 0 {
				return false
			}
			rest = rest[1:]
		}
		tokens = rest
	}
	return true
}

func isIndex(token string) bool { _, err := strconv.ParseUint(token, 10, 32); return err == nil }

// pattern is a compiled pattern with the size of its program: matching a string takes at
// most size steps per byte.
type pattern struct {
	*regexp.Regexp
	size int
}

// patternCompiler compiles the patterns of one schema, each once. It is not safe for
// concurrent use.
type patternCompiler struct {
	compiled map[string]pattern
	size     int // of all
}

func (c *patternCompiler) compile(text string) (jsonschema.Regexp, error) {
	if p, ok := c.compiled[text]; ok {
		return p, nil
	}
	if len(text) > maxPatternBytes {
		return nil, fmt.Errorf("it is longer than %d bytes", maxPatternBytes)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if c.size += len(program.Inst); c.size > maxPatternSteps {
		return nil, errors.New("the patterns of the schema are too complex")
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	p := pattern{re, len(program.Inst)}
	c.compiled[text] = p
	return p, nil
}
