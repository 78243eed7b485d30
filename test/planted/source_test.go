//go:build cgo

package planted

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// selector is the environment variable that selects the bug of a run.
const selector = "PLANTED_BUG"

// sources are the files with bugs, by their path in the module. Each contains all its bugs: one
// build serves every run.
type sources map[string]*source

// source is a file with its bugs. A function that a bug changes gets a variant for each bug, and
// calls the selected one. A constant that a bug changes becomes a variable, which gets its value
// at startup.
type source struct {
	name, text string
	pkg        string // the name of its package
	offset     func(token.Pos) int
	parts      []part // in source order
}

// part is a part of a file that a bug can change: a function body or the value of a constant.
type part struct {
	from, to int            // offsets in the text
	function *ast.FuncDecl  // nil for a constant
	constant *ast.ValueSpec // nil for a function
	variants []variant
}

// variant is the text of a part with a bug.
type variant struct{ bug, text string }

// plant adds a bug. It returns an error if an edit no longer applies.
func (s sources) plant(b *bug) error {
	texts := make(map[string]string)
	for _, e := range b.edits {
		if s[e.file] == nil {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return err
			}
			if s[e.file], err = parse(e.file, string(text)); err != nil {
				return err
			}
		}
		text, ok := texts[e.file]
		if !ok {
			text = s[e.file].text
		}
		if n := strings.Count(text, e.from); n != 1 {
			return fmt.Errorf("%s has %q %d times, want once: adapt the bug to the code", e.file, e.from, n)
		}
		texts[e.file] = strings.Replace(text, e.from, e.to, 1)
	}
	for name, text := range texts {
		if err := s[name].add(b.name, text); err != nil {
			return err
		}
	}
	return nil
}

func parse(name, text string) (*source, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{name: name, text: text, pkg: f.Name.Name, offset: files.File(f.Package).Offset}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body != nil {
				s.parts = append(s.parts, part{from: s.offset(d.Body.Pos()), to: s.offset(d.Body.End()), function: d})
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if spec, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.CONST && spec.Values != nil {
					s.parts = append(s.parts, part{from: s.offset(spec.Values[0].Pos()), to: s.offset(spec.End()), constant: spec})
				}
			}
		}
	}
	return s, nil
}

// add adds a bug: text is the file with only this bug.
func (s *source) add(bug, text string) error {
	with, err := parse(s.name, text)
	if err != nil {
		return err
	}
	if with.frame() != s.frame() {
		return fmt.Errorf("the bug changes %s outside function bodies and values of constants", s.name)
	}
	for i := range s.parts {
		p, q := &s.parts[i], &with.parts[i]
		if changed := text[q.from:q.to]; changed != s.text[p.from:p.to] {
			p.variants = append(p.variants, variant{bug, changed})
		}
	}
	return nil
}

// frame returns the text without its parts.
func (s *source) frame() string {
	var b strings.Builder
	at := 0
	for _, p := range s.parts {
		b.WriteString(s.text[at:p.from] + "\x00")
		at = p.to
	}
	return b.String() + s.text[at:]
}

// replacement is new text for a range of a source's text.
type replacement struct {
	from, to int
	text     string
}

// render returns the file with every bug.
func (s *source) render() string {
	var added strings.Builder
	edits := s.variables(&added)
	for _, p := range s.parts {
		if p.function != nil && p.variants != nil {
			edits = append(edits, s.dispatch(&p, &added))
		}
	}
	slices.SortFunc(edits, func(a, b replacement) int { return cmp.Compare(a.from, b.from) })
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(s.text[at:e.from] + e.text)
		at = e.to
	}
	return b.String() + s.text[at:] + added.String()
}

// variables turns the constants that have a variant, and the constants of the file that depend on
// them, into variables, which it writes to added.
func (s *source) variables(added *strings.Builder) (edits []replacement) {
	variable := make(map[string]bool)
	changes := func(p part) (changes bool) {
		if p.constant == nil || variable[p.constant.Names[0].Name] {
			return false
		}
		changes = p.variants != nil
		ast.Inspect(p.constant, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			changes = changes || ok && variable[name.Name]
			return !changes
		})
		return changes
	}
	for i := slices.IndexFunc(s.parts, changes); i >= 0; i = slices.IndexFunc(s.parts, changes) {
		p := &s.parts[i]
		variable[p.constant.Names[0].Name] = true
		from := s.offset(p.constant.Pos())
		edits = append(edits, replacement{from, p.to, "_ = 0"})
		fmt.Fprintf(added, "\nvar %splantedValue(%s", s.text[from:p.from], s.text[p.from:p.to])
		for _, v := range p.variants {
			fmt.Fprintf(added, ", %q, %s", v.bug, v.text)
		}
		added.WriteString(")\n")
	}
	return edits
}

// dispatch makes a function call the selected variant, and writes the variants to added. They
// have the function's signature, with a name for every parameter.
func (s *source) dispatch(p *part, added *strings.Builder) replacement {
	f := p.function
	call := f.Name.Name
	if f.Recv != nil {
		call = f.Recv.List[0].Names[0].Name + "." + call
	}
	var arguments []string
	for _, field := range f.Type.Params.List {
		for _, name := range field.Names {
			arguments = append(arguments, name.Name)
		}
		if _, ok := field.Type.(*ast.Ellipsis); ok {
			arguments[len(arguments)-1] += "..."
		}
	}
	before, after := "", "; return"
	if f.Type.Results != nil {
		before, after = "return ", ""
	}
	cases := ""
	for i, v := range p.variants {
		suffix := fmt.Sprint("_planted", i)
		cases += fmt.Sprintf(" case %q: %s%s%s(%s)%s;", v.bug, before, call, suffix, strings.Join(arguments, ", "), after)
		// The line directive makes compiler errors name the bug.
		line := 1 + strings.Count(s.text[:p.from], "\n")
		fmt.Fprintf(added, "\n//line %s (%s):%d\n", path.Base(s.name), v.bug, line)
		name := s.offset(f.Name.End())
		added.WriteString(s.text[s.offset(f.Pos()):name] + suffix + s.text[name:p.from] + v.text + "\n")
	}
	return replacement{p.from + 1, p.from + 1, "switch plantedBug {" + cases + "};"}
}

// runtime is the file that is added to each package with planted bugs.
const runtime = `package %s

import "os"

var plantedBug = os.Getenv(%q)

// plantedValue returns the value of the selected bug, from pairs of bugs and values.
func plantedValue(value string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == plantedBug {
			return pairs[i+1]
		}
	}
	return value
}
`

// overlay writes the sources to dir, and returns the name of the overlay file for the -overlay
// flag of the go command.
func (s sources) overlay(dir string) (string, error) {
	module, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	texts := make(map[string]string)
	for name, source := range s {
		texts[name] = source.render()
		texts[path.Join(path.Dir(name), "planted_bug.go")] = fmt.Sprintf(runtime, source.pkg, selector)
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string)
	for name, text := range texts {
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[filepath.Join(module, name)] = to
	}
	text, err := json.Marshal(&overlay)
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, text, 0o600)
}
