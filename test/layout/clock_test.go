package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// minDeadline is the shortest deadline of a test that runs in real time. It ends a deadlock; it
// measures nothing.
const minDeadline = 30 * time.Second

// clockRules finds the tests of one package whose result depends on the machine's speed: they
// compare a duration, sleep, or wait less than minDeadline.
//
// Three kinds of code may do so: code in a synctest bubble, where time is fake; benchmarks; and
// tests that only the deep shards run, because they call harness.Long. A function belongs to a kind
// if all its callers do.
type clockRules struct {
	fset    *token.FileSet
	files   []*ast.File
	consts  map[string]ast.Expr
	runners map[string]bool // functions that run a function argument in a bubble
	exempt  map[string]bool // functions that only exempt code uses, by name
}

// newClockRules returns the rules for the files of one package.
func newClockRules(fset *token.FileSet, files []*ast.File) *clockRules {
	c := &clockRules{fset: fset, files: files, consts: map[string]ast.Expr{}, runners: map[string]bool{}, exempt: map[string]bool{}}
	for _, f := range files {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				c.exempt[name] = !isEntry(name)
			case *ast.GenDecl:
				c.addConsts(d)
			}
		}
	}
	c.findRunners()
	for changed := true; changed; {
		changed = false
		used := c.uses()
		for name, ok := range c.exempt {
			// used is false if code that is not exempt uses the name.
			if exempt, found := used[name]; ok && (!found || !exempt) {
				c.exempt[name] = false
				changed = true
			}
		}
	}
	return c
}

// findRunners finds the functions that take a function and run a bubble, or call such a function.
func (c *clockRules) findRunners() {
	for changed := true; changed; {
		changed = false
		for _, f := range c.files {
			for _, decl := range f.Decls {
				d, ok := decl.(*ast.FuncDecl)
				if ok && !c.runners[d.Name.Name] && takesFunc(d) && calls(d, c.runsBubble) {
					c.runners[d.Name.Name] = true
					changed = true
				}
			}
		}
	}
}

func (c *clockRules) addConsts(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for i, name := range v.Names {
			if i < len(v.Values) {
				c.consts[name.Name] = v.Values[i]
			}
		}
	}
}

// isEntry reports whether go test calls the function itself.
func isEntry(name string) bool {
	return slices.ContainsFunc([]string{"Test", "Example", "Fuzz"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// takesFunc reports whether a parameter of the function is a function.
func takesFunc(d *ast.FuncDecl) bool {
	return slices.ContainsFunc(d.Type.Params.List, func(f *ast.Field) bool {
		_, ok := f.Type.(*ast.FuncType)
		return ok
	})
}

// calls reports whether the function calls one for which fits is true.
func calls(d *ast.FuncDecl, fits func(ast.Expr) bool) (found bool) {
	ast.Inspect(d, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && fits(call.Fun) {
			found = true
		}
		return !found
	})
	return found
}

func isLong(fun ast.Expr) bool { return isSelector(fun, "harness", "Long") }

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// isExempt reports whether the whole function is exempt.
func (c *clockRules) isExempt(d *ast.FuncDecl) bool {
	if strings.HasPrefix(d.Name.Name, "Benchmark") || calls(d, isLong) {
		return true
	}
	return c.exempt[d.Name.Name]
}

// walk calls visit for every node that is not in a bubble, with whether its function is exempt.
func (c *clockRules) walk(visit func(n ast.Node, exempt bool)) {
	for _, f := range c.files {
		for _, decl := range f.Decls {
			exempt := false
			if d, ok := decl.(*ast.FuncDecl); ok {
				exempt = c.isExempt(d)
			}
			c.walkOutside(decl, exempt, visit)
		}
	}
}

func (c *clockRules) walkOutside(root ast.Node, exempt bool, visit func(ast.Node, bool)) {
	ast.Inspect(root, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !c.runsBubble(call.Fun) {
			if n != nil {
				visit(n, exempt)
			}
			return true
		}
		visit(call.Fun, exempt)
		for _, arg := range call.Args {
			c.walkOutside(arg, true, visit)
		}
		return false
	})
}

// runsBubble reports whether a call of the function runs its arguments in a bubble.
func (c *clockRules) runsBubble(fun ast.Expr) bool {
	switch f := fun.(type) {
	case *ast.Ident:
		return c.runners[f.Name]
	case *ast.SelectorExpr:
		return isSelector(f, "synctest", "Test") || c.runners[f.Sel.Name]
	}
	return false
}

// uses returns the names that the package uses, and whether every use is exempt.
func (c *clockRules) uses() map[string]bool {
	used := make(map[string]bool)
	c.walk(func(n ast.Node, exempt bool) {
		name := ""
		switch x := n.(type) {
		case *ast.FuncDecl:
			return
		case *ast.Ident:
			name = x.Name
		default:
			return
		}
		if was, ok := used[name]; !ok || was {
			used[name] = exempt
		}
	})
	return used
}

// violations returns a line for each use of the clock that is not exempt.
func (c *clockRules) violations() (found []string) {
	c.walk(func(n ast.Node, exempt bool) {
		if exempt {
			return
		}
		if what := c.forbidden(n); what != "" {
			p := c.fset.Position(n.Pos())
			found = append(found, fmt.Sprintf("%s:%d: %s", p.Filename, p.Line, what))
		}
	})
	slices.Sort(found)
	return slices.Compact(found)
}

// forbidden returns what is wrong with a node, or "".
func (c *clockRules) forbidden(n ast.Node) string {
	switch x := n.(type) {
	case *ast.SelectorExpr:
		for _, name := range []string{"Since", "Sleep", "Tick"} {
			if isSelector(x, "time", name) {
				return "uses time." + name
			}
		}
	case *ast.CallExpr:
		for i, arg := range x.Args {
			if waits(x.Fun, i) {
				if d, ok := c.duration(arg); ok && d < minDeadline {
					return fmt.Sprintf("waits at most %s, want %s or more", d, minDeadline)
				}
			}
		}
	case *ast.KeyValueExpr:
		if key, ok := x.Key.(*ast.Ident); ok && key.Name == "Timeout" {
			if d, ok := c.duration(x.Value); ok && d < minDeadline {
				return fmt.Sprintf("has a timeout of %s, want %s or more", d, minDeadline)
			}
		}
	}
	return ""
}

// waits reports whether argument i of a call is a waiting time.
func waits(fun ast.Expr, i int) bool {
	switch {
	case isSelector(fun, "time", "After"), isSelector(fun, "time", "NewTimer"), isSelector(fun, "time", "AfterFunc"):
		return i == 0
	case isSelector(fun, "context", "WithTimeout"), isSelector(fun, "context", "WithTimeoutCause"), isSelector(fun, "net", "DialTimeout"):
		return i > 0
	}
	// conn.SetDeadline(time.Now().Add(d))
	s, ok := fun.(*ast.SelectorExpr)
	return ok && strings.HasPrefix(s.Sel.Name, "Set") && strings.HasSuffix(s.Sel.Name, "Deadline")
}

// duration returns the value of a constant duration, or of time.Now().Add(d).
func (c *clockRules) duration(e ast.Expr) (time.Duration, bool) {
	switch x := e.(type) {
	case *ast.ParenExpr:
		return c.duration(x.X)
	case *ast.BasicLit:
		n, err := strconv.ParseInt(x.Value, 0, 64)
		return time.Duration(n), err == nil
	case *ast.Ident:
		v, ok := c.consts[x.Name]
		if !ok {
			return 0, false
		}
		return c.duration(v)
	case *ast.SelectorExpr:
		pkg, ok := x.X.(*ast.Ident)
		if !ok || pkg.Name != "time" {
			return 0, false
		}
		d, ok := units[x.Sel.Name]
		return d, ok
	case *ast.BinaryExpr:
		a, okA := c.duration(x.X)
		b, okB := c.duration(x.Y)
		switch {
		case !okA || !okB:
			return 0, false
		case x.Op == token.MUL:
			return a * b, true
		case x.Op == token.ADD:
			return a + b, true
		}
	case *ast.CallExpr:
		if s, ok := x.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Add" && len(x.Args) == 1 {
			if now, ok := s.X.(*ast.CallExpr); ok && isSelector(now.Fun, "time", "Now") {
				return c.duration(x.Args[0])
			}
		}
	}
	return 0, false
}

var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
	"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// TestNoTestDependsOnSpeed checks every test that make test or .ci/run may run.
func TestNoTestDependsOnSpeed(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "../../*_test.go",
		"../../test/harness/*.go").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	fset := token.NewFileSet()
	packages := make(map[string][]*ast.File)
	for path := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if os.IsNotExist(err) {
			continue // removed, but still in the index
		}
		if err != nil {
			t.Fatal(err)
		}
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], f)
	}
	if len(packages) < 20 {
		t.Fatalf("got the tests of %d packages, want at least 20", len(packages))
	}
	for _, files := range packages {
		for _, v := range newClockRules(fset, files).violations() {
			t.Error(v)
		}
	}
}
