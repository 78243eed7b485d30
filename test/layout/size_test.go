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
	"strings"
	"testing"
)

// Size limits of types, functions and packages, to keep the code navigable. .ci/run checks the
// cognitive complexity of functions.
const (
	maxMethods = 40 // exported methods of a type
	maxLines   = 80 // lines of a function, tests included

	// For a package, without tests and generated files.
	maxFiles        = 64
	maxPackageLines = 14_000
)

// size is the size of a package.
type size struct{ files, lines int }

// sizes counts the declarations in the files of a module.
type sizes struct {
	methods  map[string]map[string]bool // package and type → names of its exported methods
	long     []string                   // the functions above maxLines
	packages map[string]size
}

func newSizes() sizes {
	return sizes{methods: make(map[string]map[string]bool), packages: make(map[string]size)}
}

func (z *sizes) add(fset *token.FileSet, pkg string, f *ast.File) {
	if !ast.IsGenerated(f) && !strings.HasSuffix(fset.Position(f.Pos()).Filename, "_test.go") {
		p := z.packages[pkg]
		z.packages[pkg] = size{p.files + 1, p.lines + fset.File(f.Pos()).LineCount()}
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if lines := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; lines > maxLines && !ast.IsGenerated(f) {
			z.long = append(z.long, fmt.Sprintf("%s: %s has %d lines, at most %d are allowed", pkg, fn.Name.Name, lines, maxLines))
		}
		if fn.Recv == nil || !fn.Name.IsExported() {
			continue
		}
		name := pkg + "." + receiver(fn)
		if z.methods[name] == nil {
			z.methods[name] = make(map[string]bool)
		}
		z.methods[name][fn.Name.Name] = true
	}
}

// receiver returns the type that a function is a method of.
func receiver(fn *ast.FuncDecl) string {
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return fmt.Sprint(t)
		}
	}
}

// problems returns what is too large, sorted.
func (z *sizes) problems() []string {
	all := slices.Clone(z.long)
	for name, methods := range z.methods {
		if len(methods) > maxMethods {
			all = append(all, fmt.Sprintf("%s has %d exported methods, at most %d are allowed", name, len(methods), maxMethods))
		}
	}
	for pkg, got := range z.packages {
		if got.files > maxFiles || got.lines > maxPackageLines {
			all = append(all, fmt.Sprintf("%s has %d files with %d lines, at most %d with %d are allowed", pkg, got.files, got.lines,
				maxFiles, maxPackageLines))
		}
	}
	slices.Sort(all)
	return all
}

// TestSizes checks every Go file in the repository, tests and other modules included.
func TestSizes(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "--full-name", ":/*.go").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	z := newSizes()
	fset := token.NewFileSet()
	for name := range strings.Lines(string(out)) {
		name = filepath.Join("../..", strings.TrimSuffix(name, "\n"))
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		z.add(fset, filepath.Dir(name), f)
	}
	if n := len(z.methods["../../store.Store"]); n < 20 {
		t.Errorf("found only %d exported methods of store.Store", n)
	}
	for _, problem := range z.problems() {
		t.Error(problem)
	}
}

func TestSizesAreFound(t *testing.T) {
	var src strings.Builder
	src.WriteString("package planted\ntype Large[T any] struct{}\n")
	for i := range maxMethods + 1 {
		fmt.Fprintf(&src, "func (*Large[T]) M%d() {}\nfunc (Large[T]) m%d() {}\n", i, i)
	}
	src.WriteString("func fits() {" + strings.Repeat("\n", maxLines-1) + "}\n")
	src.WriteString("func long() {" + strings.Repeat("\n", maxLines) + "}\n")
	z := newSizes()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "planted.go", src.String(), parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	z.add(fset, "planted", f)
	if got := z.packages["planted"]; got != (size{1, fset.File(f.Pos()).LineCount()}) {
		t.Errorf("counted %+v", got)
	}
	z.packages["planted"] = size{maxFiles + 1, maxPackageLines}
	want := []string{
		"planted has 65 files with 14000 lines, at most 64 with 14000 are allowed",
		"planted.Large has 41 exported methods, at most 40 are allowed",
		"planted: long has 81 lines, at most 80 are allowed",
	}
	if got := z.problems(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
