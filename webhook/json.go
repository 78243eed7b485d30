package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of JSON input.
const (
	MaxBodyBytes   = 5 << 20 // request body
	MaxJSONDepth   = 32      // nested objects and arrays
	maxNumberBytes = 100     // one number, as written
	maxExponent    = 308     // of a number with an exponent: the range of a float64
	maxValidations = 100     // reported for one request
	maxQuotedName  = 64      // characters of a property name in an error
)

// node is a value of a document, or the name of a member. Nodes are in the order of
// the text: a member's name directly before its value, the children of an object or
// array directly after it.
type node struct {
	kind       jsontext.Kind
	start, end int32 // offsets in the source, including quotes and brackets
	next       int32 // first node after this one and its children
}

// document is a JSON value that was parsed strictly: UTF-8, one value, no duplicate
// names in an object, no lone surrogates, limited nesting and numbers. Node 0 is
// the value itself. A document can be reused for parsing, and is not safe for
// concurrent use.
type document struct {
	src   []byte // belongs to the caller; never modified
	nodes []node
	depth int // limit of nesting
	deep  int // offset of the first value that is nested deeper than MaxJSONDepth, -1 for none
	in    bytes.Buffer
	dec   jsontext.Decoder
}

// parse parses src, which must not change while the document is in use. at is the
// path of the document for errors, "" for a request body.
func (d *document) parse(src []byte, at string) *Error { return d.parseTo(src, at, MaxJSONDepth) }

// parseTo is parse with a nesting limit.
func (d *document) parseTo(src []byte, at string, depth int) *Error {
	d.src, d.nodes, d.depth, d.deep = src, d.nodes[:0], depth, -1
	if len(src) > MaxBodyBytes {
		return NewError(CodeTooLarge, fmt.Sprintf("The body is larger than %d bytes.", MaxBodyBytes))
	}
	if !utf8.Valid(src) {
		i := 0
		for i < len(src) {
			r, size := utf8.DecodeRune(src[i:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			i += size
		}
		return malformed(src, i, at, "invalid UTF-8")
	}
	d.in = *bytes.NewBuffer(src)
	d.dec.Reset(&d.in)
	if err := d.value(at); err != nil {
		return err
	}
	if _, err := d.dec.ReadToken(); err != io.EOF {
		end := int(d.nodes[0].end)
		return malformed(src, end+len(src[end:])-len(bytes.TrimLeft(src[end:], " \t\r\n")), at,
			"nothing may follow the value")
	}
	return nil
}

// value parses the next value and its children. The decoder limits the depth and
// therefore this recursion.
func (d *document) value(at string) *Error {
	kind := d.dec.PeekKind()
	if kind != jsontext.KindBeginObject && kind != jsontext.KindBeginArray {
		v, err := d.dec.ReadValue()
		if err != nil {
			return d.malformed(err, at)
		}
		end := d.dec.InputOffset()
		i := int32(len(d.nodes))
		d.nodes = append(d.nodes, node{kind, int32(end) - int32(len(v)), int32(end), i + 1})
		if kind == jsontext.KindNumber {
			if fault := unbounded(v); fault != "" {
				return Invalid(Validation{InvalidValue, fault, cmp.Or(d.path(d.dec.StackPointer(), at), "body")})
			}
		}
		return nil
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return d.malformed(err, at)
	}
	start := int(d.dec.InputOffset()) - 1
	if level := d.dec.StackDepth(); level > d.depth {
		return d.tooDeep(start, at)
	} else if level > MaxJSONDepth && d.deep < 0 {
		d.deep = start
	}
	i := len(d.nodes)
	d.nodes = append(d.nodes, node{kind: kind, start: int32(start)})
	for {
		if k := d.dec.PeekKind(); k == jsontext.KindEndObject || k == jsontext.KindEndArray {
			break
		}
		if err := d.value(at); err != nil {
			return err
		}
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return d.malformed(err, at)
	}
	d.nodes[i].end = int32(d.dec.InputOffset())
	d.nodes[i].next = int32(len(d.nodes))
	return nil
}

// tooDeep returns the error for a value at offset start that is nested too deeply.
func (d *document) tooDeep(start int, at string) *Error {
	return malformed(d.src, start, at, fmt.Sprintf("nested deeper than %d levels", MaxJSONDepth))
}

// unbounded returns what is wrong with a number whose size exceeds the limits, such as 1e999999999.
func unbounded(number []byte) string {
	if len(number) > maxNumberBytes {
		return fmt.Sprintf("must be a number of at most %d characters", maxNumberBytes)
	}
	i := bytes.IndexAny(number, "eE")
	if i < 0 {
		return ""
	}
	exponent := string(number[i+1:])
	e, err := strconv.Atoi(exponent)
	if exponent[0] == '-' && (err != nil || e < -maxExponent) {
		return fmt.Sprintf("must be a number with an exponent of at least -%d", maxExponent)
	}
	if err == nil && e <= maxExponent {
		_, err = strconv.ParseFloat(string(number), 64)
	}
	if err != nil || e > maxExponent {
		return fmt.Sprintf("must be a number between -1e%d and 1e%[1]d", maxExponent)
	}
	return ""
}

// path returns the position of the decoder in our notation: events[1].name.
func (d *document) path(pointer jsontext.Pointer, at string) string {
	depth := 1
	for token := range pointer.Tokens() {
		if kind, _ := d.dec.StackIndex(min(depth, d.dec.StackDepth())); kind == jsontext.KindBeginArray {
			at += "[" + token + "]"
		} else {
			at = join(at, token)
		}
		depth++
	}
	return at
}

// join returns the path of a member of the object at path at.
func join(at, name string) string {
	name = quotedName(name)
	if at == "" {
		return name
	}
	return at + "." + name
}

// element returns the path of an element of the array at path at.
func element(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// quotedName limits the length of a caller's name in an error, and shows an empty
// one.
func quotedName(name string) string {
	if name == "" {
		return `""`
	}
	n := 0
	for i := range name {
		if n++; n > maxQuotedName {
			return name[:i] + "…"
		}
	}
	return name
}

func (d *document) malformed(err error, at string) *Error {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return malformed(d.src, len(d.src), at, "unexpected end") // io.EOF: there is no value
	}
	offset := min(int(syntax.ByteOffset), len(d.src))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return malformed(d.src, len(d.src), at, "unexpected end")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return Invalid(Validation{InvalidDuplicate, "occurs twice", d.path(syntax.JSONPointer, at)})
	case errors.Is(err, jsontext.ErrNonStringName):
		return malformed(d.src, offset, at, "a property name must be a string in double quotes")
	case offset == len(d.src):
		return malformed(d.src, offset, at, "unexpected end")
	}
	r, _ := utf8.DecodeRune(d.src[offset:])
	if r == '\\' {
		return malformed(d.src, offset, at, "invalid escape or lone surrogate")
	}
	return malformed(d.src, offset, at, fmt.Sprintf("unexpected %q", r))
}

// malformed returns the error for invalid JSON. Columns count characters. For a
// single line within something else it gives only the column, since only the caller
// knows the line.
func malformed(src []byte, offset int, at, what string) *Error {
	before := src[:offset]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	switch {
	case at == "":
		at = "The body"
	case bytes.IndexByte(src, '\n') < 0:
		return NewError(CodeInvalid, fmt.Sprintf("%s is not valid JSON: column %d: %s.", at, column, what))
	}
	return NewError(CodeInvalid, fmt.Sprintf("%s is not valid JSON: line %d, column %d: %s.", at, line, column, what))
}

// invalid is [Invalid] with a limit on the number of validations.
func invalid(v []Validation) *Error {
	if len(v) <= maxValidations {
		return Invalid(v...)
	}
	err := Invalid(v[:maxValidations]...)
	err.Detail = fmt.Sprintf("%d parameters are not valid; these are the first %d.", len(v), maxValidations)
	return err
}

// raw returns the text of a node as written.
func (d *document) raw(i int32) []byte { return d.src[d.nodes[i].start:d.nodes[i].end] }

func (d *document) isString(i int32) bool { return d.nodes[i].kind == jsontext.KindString }

// text returns the content of the string at node i: a slice of the source unless it
// has escapes.
func (d *document) text(i int32) []byte {
	raw := d.raw(i)
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	s, _ := jsontext.AppendUnquote(nil, raw) // cannot fail: parse has checked it
	return s
}

// integer returns the number at node i, which must be an integer of 64 bits without
// fraction or exponent.
func (d *document) integer(i int32) (int64, *Validation) {
	raw := string(d.raw(i))
	if d.nodes[i].kind != jsontext.KindNumber || strings.ContainsAny(raw, ".eE") {
		return 0, &Validation{Code: InvalidType, Detail: "must be an integer"}
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	if err != nil {
		return 0, &Validation{Code: InvalidValue, Detail: "must be an integer of at most 64 bits"}
	}
	return n, nil
}

// appendCompact appends a valid JSON value without whitespace between tokens, which
// are otherwise unchanged.
func appendCompact(dst, value []byte) []byte {
	for i := 0; i < len(value); {
		switch value[i] {
		case ' ', '\t', '\r', '\n':
			i++
		case '"':
			end := i + 1
			for value[end] != '"' {
				if value[end] == '\\' {
					end++
				}
				end++
			}
			dst = append(dst, value[i:end+1]...)
			i = end + 1
		default:
			dst = append(dst, value[i])
			i++
		}
	}
	return dst
}

// members yields the nodes of the name and the value of each member of the object
// at node i. It yields nothing if that is not an object.
func (d *document) members(i int32) iter.Seq2[int32, int32] {
	return func(yield func(name, value int32) bool) {
		if d.nodes[i].kind != jsontext.KindBeginObject {
			return
		}
		for name := i + 1; name < d.nodes[i].next; name = d.nodes[name+1].next {
			if !yield(name, name+1) {
				return
			}
		}
	}
}

// member returns the node of the value of a member of the object at node i.
func (d *document) member(i int32, name string) (value int32, found bool) {
	for n, value := range d.members(i) {
		if string(d.text(n)) == name {
			return value, true
		}
	}
	return 0, false
}

// elements yields the index and the node of each element of the array at node i. It
// yields nothing if that is not an array.
func (d *document) elements(i int32) iter.Seq2[int, int32] {
	return func(yield func(n int, value int32) bool) {
		if d.nodes[i].kind != jsontext.KindBeginArray {
			return
		}
		n := 0
		for value := i + 1; value < d.nodes[i].next; value = d.nodes[value].next {
			if !yield(n, value) {
				return
			}
			n++
		}
	}
}

// any returns the value at node i in the form for [jsonschema.Schema.Validate].
func (d *document) any(i int32) any {
	switch d.nodes[i].kind {
	case jsontext.KindBeginObject:
		object := make(map[string]any)
		for name, value := range d.members(i) {
			object[string(d.text(name))] = d.any(value)
		}
		return object
	case jsontext.KindBeginArray:
		array := []any{}
		for _, value := range d.elements(i) {
			array = append(array, d.any(value))
		}
		return array
	case jsontext.KindString:
		return string(d.text(i))
	case jsontext.KindNumber:
		return json.Number(d.raw(i))
	case jsontext.KindTrue, jsontext.KindFalse:
		return d.nodes[i].kind == jsontext.KindTrue
	}
	return nil
}

// merge appends to v the validations in more whose parameter, or an object or array
// around it, is not in v yet.
func merge(v, more []Validation) []Validation {
	known := len(v)
	for _, m := range more {
		if !slices.ContainsFunc(v[:known], func(k Validation) bool {
			rest, ok := strings.CutPrefix(m.Parameter, k.Parameter)
			return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
		}) {
			v = append(v, m)
		}
	}
	return v
}
