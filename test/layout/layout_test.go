// Package layout checks the imports of every package against the table in
// docs/architecture.md, and the use of sensitive packages against a list.
package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tableHead is the start of the table in docs/architecture.md that lists which packages
// of this module each package may import.
const tableHead = "| package | imports |\n|---|---|\n"

// readArrows returns the table of docs/architecture.md: package path → paths that it
// may import.
func readArrows(text string) (map[string][]string, error) {
	_, table, ok := strings.Cut(text, tableHead)
	if !ok {
		return nil, fmt.Errorf("docs/architecture.md has no table that starts with %q", tableHead)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	arrows := make(map[string][]string)
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) != 4 {
			return nil, fmt.Errorf("docs/architecture.md: %q is not a row of two cells", row)
		}
		imports := packagesIn(cells[2])
		for _, pkg := range packagesIn(cells[1]) {
			if _, twice := arrows[pkg]; twice {
				return nil, fmt.Errorf("docs/architecture.md has two rows for %s", pkg)
			}
			arrows[pkg] = imports
		}
	}
	return arrows, nil
}

var packageName = regexp.MustCompile("`([^`]+)`")

// packagesIn returns the import paths of the packages that a cell names.
func packagesIn(cell string) []string {
	paths := []string{}
	for _, m := range packageName.FindAllStringSubmatch(cell, -1) {
		if m[1] == "main" {
			paths = append(paths, "service")
		} else {
			paths = append(paths, "service/"+m[1])
		}
	}
	return paths
}

// testOnly lists the packages that only tests import. They may import anything.
var testOnly = []string{
	"service/store/sqlite/sqlitetest", "service/store/storetest", "service/test/harness", "service/test/harness/chaos", "service/test/seed",
}

// privilege is an import, or a name in it, that only some packages may use.
type privilege struct {
	path string   // import path; with a final slash, including everything below it
	name string   // exported name in it, or "" for the import itself
	pkgs []string // packages that may use it
	why  string
}

var privileges = []privilege{
	{"database/sql", "", []string{
		"service/store", "service/store/certificate", "service/store/clock", "service/store/commits", "service/store/datadir",
		"service/store/doctor", "service/store/erasure", "service/store/list", "service/store/people", "service/store/pending",
		"service/store/record", "service/store/rekey",
		"service/store/sqlite",
	},
		"the only SQL is in store and below it"},
	{"database/sql/", "", []string{"service/store/sqlite"}, "drivers are store/sqlite's"},
	{"github.com/mattn/go-sqlite3", "", []string{"service/store/sqlite"}, "one SQLite library, in store/sqlite"},
	{"github.com/ncruces/", "", []string{"service/store/sqlite"}, "one SQLite library, in store/sqlite"},
	{"modernc.org/", "", nil, "a second SQLite library in the process drops the first one's locks"},
	{"github.com/benbjohnson/litestream", "", []string{"service/store/replica"}, "Litestream is replica's"},
	{"github.com/benbjohnson/litestream/", "", []string{"service/store/replica"}, "Litestream is replica's"},
	{"github.com/superfly/ltx", "", []string{"service/store/replica"}, "Litestream is replica's"},
	{"github.com/aws/", "", []string{"service/store/replica"}, "the bucket is replica's"},
	{"github.com/a-h/templ", "", []string{"service/web", "service/web/ui"}, "pages are web's"},
	{"github.com/a-h/templ/", "", []string{"service/web", "service/web/ui"}, "pages are web's"},
	{"html/template", "", []string{"service/api"}, "pages are templ's; the reference is rendered from the API's document"},
	{"github.com/julienschmidt/httprouter", "", []string{"service/api"}, "routes are the API's"},
	{"github.com/caddyserver/certmagic", "", []string{"service/internal/certs"}, "certificates are internal/certs's"},
	{"github.com/mholt/acmez/", "", []string{"service/internal/certs"}, "certificates are internal/certs's"},
	{"github.com/wneessen/go-mail", "", []string{"service/dispatcher/mail"}, "mail is dispatcher/mail's"},
	{"github.com/coreos/go-oidc/", "", []string{"service/web/oidc"}, "sign-in through OpenID Connect is web/oidc's"},
	{"golang.org/x/oauth2", "", []string{"service/web/oidc"}, "sign-in through OpenID Connect is web/oidc's"},
	{"net/smtp", "", nil, "mail is dispatcher/mail's, by its library"},
	{"filippo.io/age", "", []string{"service/internal/archive"}, "the backup format is internal/archive's"},
	{"go.uber.org/zap", "", []string{"service/internal/certs"}, "the log is log/slog's; a library's goes to it"},
	{"go.uber.org/zap/", "", []string{"service/internal/certs"}, "the log is log/slog's; a library's goes to it"},
	{"github.com/caddyserver/certmagic", "HTTPS", nil, "it opens listeners of its own"},
	{"github.com/caddyserver/certmagic", "Default", nil, "a variable of the whole process"},
	{"github.com/caddyserver/certmagic", "DefaultACME", nil, "a variable of the whole process"},

	{"github.com/prometheus/client_golang/prometheus", "", []string{
		"service/api",
		"service/dispatcher",
		"service/internal/certs",
		"service/internal/server",
		"service/store",
		"service/store/counters",
	}, "webhook counts nothing"},
	{"github.com/prometheus/client_golang/prometheus/collectors", "", []string{"service/internal/server"}, "the process is internal/server's"},
	{"github.com/prometheus/client_golang/prometheus/promauto", "", nil, "metrics are registered with the server's registry, not for the " +
		"whole process"},
	{"github.com/prometheus/client_golang/prometheus/promhttp", "", nil, "one place writes the API's answers"},
	{"github.com/prometheus/client_golang/prometheus", "MustRegister", nil,
		"metrics are registered with the server's registry, not for the whole process"},
	{"github.com/prometheus/client_golang/prometheus", "Register", nil, "metrics are registered with the server's registry, not for the " +
		"whole process"},
	{"github.com/prometheus/client_golang/prometheus", "DefaultRegisterer", nil,
		"metrics are registered with the server's registry, not for the whole process"},
	{"github.com/prometheus/client_golang/prometheus", "DefaultGatherer", nil,
		"metrics are registered with the server's registry, not for the whole process"},

	{"flag", "", nil, "only internal/cli reads the command line"},
	{"github.com/alecthomas/kong", "", []string{"service/internal/cli"}, "only internal/cli reads the command line"},
	{"os", "Args", []string{
		"service",
		"service/internal/cli",
	}, "only internal/cli reads the command line"},
	{"os", "Getenv", nil, "only internal/cli reads the environment"},
	{"os", "LookupEnv", []string{"service/internal/cli"}, "only internal/cli reads the environment"},
	{"os", "Environ", []string{"service/internal/cli"}, "only internal/cli reads the environment"},
	{"os", "ExpandEnv", nil, "only internal/cli reads the environment"},
	{"os", "Setenv", []string{"service/internal/cli"}, "only internal/cli changes the environment"},
	{"os", "Unsetenv", []string{"service/internal/cli"}, "only internal/cli changes the environment"},
	{"os", "Exit", []string{"service"}, "only main ends the process"},
	{"github.com/coreos/go-systemd/", "", []string{"service/internal/server"}, "only internal/server talks to systemd"},
	{"log", "", nil, "use log/slog; log.Fatal would end the process"},
	{"os/signal", "", []string{"service"}, "only main handles signals"},

	{"net/http", "Transport", []string{
		"service/api",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/move",
		"service/store/replica",
		"service/web/oidc",
	}, "only dispatcher/client calls subscribers; the others call the service itself, an issuer, the bucket or another " +
		"installation"},
	{"net/http", "Client", []string{
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/move",
		"service/web/oidc",
	}, "only dispatcher/client calls subscribers; the others call the service itself or an issuer"},
	{"net/http", "DefaultClient", nil, "it has no timeout and follows redirects"},
	{"net/http", "DefaultTransport", nil, "it has no guard"},
	{"net/http", "Get", nil, "it has no timeout and follows redirects"},
	{"net/http", "Head", nil, "it has no timeout and follows redirects"},
	{"net/http", "Post", nil, "it has no timeout and follows redirects"},
	{"net/http", "PostForm", nil, "it has no timeout and follows redirects"},
	{"net", "Dial", nil, "only dispatcher/client calls subscribers"},
	{"net", "DialTimeout", nil, "only dispatcher/client calls subscribers"},
	{"crypto/tls", "Dial", nil, "only dispatcher/client calls subscribers"},
	{"crypto/tls", "DialWithDialer", nil, "only dispatcher/client calls subscribers"},
	{"crypto/tls", "Dialer", nil, "only dispatcher/client calls subscribers"},
	{"net", "Dialer", []string{
		"service/dispatcher/client",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/move",
	}, "only dispatcher/client calls subscribers"},
	{"net", "Listen", []string{
		"service/internal/bench",
		"service/internal/cli",
	}, "only these listen"},

	{"net/http", "", []string{
		"service/api",
		"service/assets",
		"service/dispatcher",
		"service/dispatcher/client",
		"service/dispatcher/pace", // status codes
		"service/internal/apply",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/move",
		"service/internal/server",
		"service/store/replica", // the transport to the bucket
		"service/web",
		"service/web/oidc",
	}, "store and webhook know no HTTP"},
	{"net", "", []string{
		"service/api",
		"service/dispatcher/client",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/move",
		"service/internal/server",
	}, "store and webhook do no network I/O"},
	{"os", "", []string{
		"service",
		"service/api",
		"service/dispatcher/client",
		"service/internal/apply",
		"service/internal/archive",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/durable",
		"service/internal/server",
		"service/internal/terminal",
		"service/store",
		"service/store/commits",
		"service/store/datadir",
		"service/store/doctor",
		"service/store/keyring",
		"service/store/replica",
		"service/store/sqlite",
	}, "webhook does no I/O"},
	{"time", "Now", []string{
		"service/api",
		"service/dispatcher",
		"service/dispatcher/client",
		"service/dispatcher/mail",
		"service/internal/apply",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/move",
		"service/internal/ratelimit",
		"service/internal/server",
		"service/internal/terminal",
		"service/store",
		"service/store/clock",
		"service/store/datadir",
		"service/store/doctor",
		"service/store/list",
		"service/store/pending",
		"service/store/record",
		"service/store/replica",
		"service/store/sqlite",
		"service/web",
		"service/web/oidc",
		"service/web/once",
	}, "webhook takes the time as an argument"},
	{"time", "Sleep", nil, "wait for a condition instead"},
}

// source is one file of a package, with any build tag, that is not a test.
type source struct {
	pkg  string
	file *ast.File
}

// use is the use of a package, or of an exported name in it.
type use struct {
	path string
	name string // "" for the import itself
}

// uses returns what a file uses from other packages. The name "." means a dot import.
func (s source) uses() (all []use) {
	names := make(map[string]string) // name of an import in the file → path
	for _, spec := range s.file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = path
		all = append(all, use{path: path})
		if name == "." {
			all = append(all, use{path, "."})
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := selector.X.(*ast.Ident); ok && names[x.Name] != "" {
				all = append(all, use{names[x.Name], selector.Sel.Name})
			}
		}
		return true
	})
	return all
}

// covers reports whether the privilege applies to a use.
func (p privilege) covers(u use) bool {
	return u.name == p.name && (u.path == p.path || strings.HasSuffix(p.path, "/") && strings.HasPrefix(u.path, p.path))
}

// violations returns the forbidden uses in the files, sorted.
func violations(arrows map[string][]string, files []source) []string {
	found := make(map[string]bool)
	dialers := 0
	for _, f := range files {
		if slices.Contains(testOnly, f.pkg) {
			continue
		}
		allowed, ok := arrows[f.pkg]
		if !ok {
			found[f.pkg+" has no place in the drawing"] = true
			continue
		}
		for _, u := range f.uses() {
			if v := violation(f.pkg, allowed, u); v != "" {
				found[v] = true
			}
			if f.pkg == "service/dispatcher/client" && u == (use{"net", "Dialer"}) {
				dialers++
			}
		}
	}
	if dialers > 1 {
		found[fmt.Sprintf("service/dispatcher/client has %d net.Dialers: every subscriber is called through one, with the guard", dialers)] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// violation returns why a package must not use something, or "". allowed lists the
// packages of this module that it may import.
func violation(pkg string, allowed []string, u use) string {
	what := "imports " + u.path
	switch {
	case u.name == ".":
		return fmt.Sprintf("%s imports %s into its own names, which hides what it uses", pkg, u.path)
	case u.name != "":
		what = "uses " + u.path + "." + u.name
	case strings.HasPrefix(u.path, "service/") && !slices.Contains(allowed, u.path):
		return fmt.Sprintf("%s imports %s: there is no such arrow", pkg, u.path)
	}
	for _, p := range privileges {
		if p.covers(u) && !slices.Contains(p.pkgs, pkg) {
			return fmt.Sprintf("%s %s: %s", pkg, what, p.why)
		}
	}
	return ""
}

// stale returns the arrows and privileges that no file uses, sorted.
func stale(arrows map[string][]string, files []source) (all []string) {
	used := make(map[string][]use)
	for _, f := range files {
		used[f.pkg] = append(used[f.pkg], f.uses()...)
	}
	for pkg, targets := range arrows {
		for _, target := range targets {
			if !slices.Contains(used[pkg], use{path: target}) {
				all = append(all, pkg+" does not import "+target)
			}
		}
	}
	for _, p := range privileges {
		for _, pkg := range p.pkgs {
			if !slices.ContainsFunc(used[pkg], p.covers) {
				all = append(all, strings.TrimSuffix(pkg+" does not use "+p.path+"."+p.name, "."))
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestArrowsAndPrivileges(t *testing.T) {
	files := moduleSources(t)
	for _, pkg := range []string{"service", "service/store", "service/webhook"} {
		if !slices.ContainsFunc(files, func(f source) bool { return f.pkg == pkg }) {
			t.Errorf("got no source file of %s", pkg)
		}
	}
	for _, v := range violations(documentedArrows(t), files) {
		t.Error(v)
	}
}

// documentedArrows returns the arrows of docs/architecture.md.
func documentedArrows(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	arrows, err := readArrows(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return arrows
}

// moduleSources returns every file of the module that is not a test, whatever its build
// tags.
func moduleSources(t *testing.T) []source {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=Dir,ImportPath,GoFiles,CgoFiles,IgnoredGoFiles", "service/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var files []source
	fset := token.NewFileSet()
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			Dir, ImportPath                   string
			GoFiles, CgoFiles, IgnoredGoFiles []string
		}
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles) {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, source{p.ImportPath, f})
		}
	}
}

// TestNoStaleRows checks that some file uses every arrow and every privilege.
func TestNoStaleRows(t *testing.T) {
	for _, row := range stale(documentedArrows(t), moduleSources(t)) {
		t.Errorf("%s: remove the row", row)
	}
}

func TestViolationsAreFound(t *testing.T) {
	tests := []struct {
		pkg, src string
		want     string // "" for no violation
	}{
		{"service/internal/cli", `import ("os"; "service/internal/server"; "service/store"); var _ = os.LookupEnv`, ""},
		{"service/api", `import ("service/store"; "service/webhook"; "net/http"); var _ http.Handler`, ""},
		{"service/dispatcher/client", `import "net"; var _ = net.Dialer{}`, ""},
		{"service/store", `import ("database/sql"; "os"); var _ = os.Open`, ""},
		{"service/webhook", `import "net/netip"`, ""},

		{"service/api", `import "service/dispatcher"`, "service/api imports service/dispatcher: there is no such arrow"},
		{"service/web", `import "service/api"`, "service/web imports service/api: there is no such arrow"},
		{"service/api", `import "service/assets"`, "service/api imports service/assets: there is no such arrow"},
		{"service/store", `import "service/api"`, "service/store imports service/api: there is no such arrow"},
		{"service/webhook", `import "service/store"`, "service/webhook imports service/store: there is no such arrow"},
		{"service/attic", ``, "service/attic has no place in the drawing"},
		{"service/test/harness", `import ("service/store"; "os"); var _ = os.Environ`, ""},
		{"service/test/attic", ``, "service/test/attic has no place in the drawing"},
		{"service", `import "service/test/harness"`, "service imports service/test/harness: there is no such arrow"},
		{"service/api", `import "service/store/storetest"`, "service/api imports service/store/storetest: there is no such arrow"},

		{"service/api", `import "database/sql"`, "service/api imports database/sql: the only SQL is in store and below it"},
		{"service", `import "database/sql/driver"`, "service imports database/sql/driver: drivers are store/sqlite's"},
		{"service/dispatcher", `import _ "github.com/mattn/go-sqlite3"`, "service/dispatcher imports github.com/mattn/go-sqlite3: one SQLite " +
			"library, in store/sqlite"},
		{"service/store", `import _ "modernc.org/sqlite"`, "service/store imports modernc.org/sqlite: a second SQLite library in the process " +
			"drops the first one's locks"},
		{"service/api", `import "github.com/a-h/templ"`, "service/api imports github.com/a-h/templ: pages are web's"},
		{"service/web", `import "flag"`, "service/web imports flag: only internal/cli reads the command line"},
		{"service/store", `import "os"; var _ = os.Getenv("HOME")`, "service/store uses os.Getenv: only internal/cli reads the environment"},
		{"service/store", `import env "os"; var _ = env.Getenv("HOME")`, "service/store uses os.Getenv: only internal/cli reads the environment"},
		{"service/api", `import "os"; func f() { os.Exit(1) }`, "service/api uses os.Exit: only main ends the process"},
		{"service/api", `import . "os"`, "service/api imports os into its own names, which hides what it uses"},
		{"service/webhook", `import "github.com/prometheus/client_golang/prometheus"`,
			"service/webhook imports github.com/prometheus/client_golang/prometheus: webhook counts nothing"},
		{"service/store", `import "github.com/prometheus/client_golang/prometheus"; func f() { prometheus.MustRegister() }`,
			"service/store uses github.com/prometheus/client_golang/prometheus.MustRegister: metrics are registered with the server's registry, " +
				"not for the whole process"},
		{"service/webhook", `import "net/http"`, "service/webhook imports net/http: store and webhook know no HTTP"},
		{"service/webhook", `import "time"; var _ = time.Now()`, "service/webhook uses time.Now: webhook takes the time as an argument"},
		{"service/api", `import "net/http"; var _ = http.Client{}`, "service/api uses net/http.Client: only dispatcher/client calls " +
			"subscribers; the others call the service itself or an issuer"},
		{"service/web", `import "net/http"; func f() { http.Get("") }`, "service/web uses net/http.Get: it has no timeout and follows redirects"},
		{"service/dispatcher", `import "net/http"; var _ = http.Transport{}`,
			"service/dispatcher uses net/http.Transport: only dispatcher/client calls subscribers; the others call the service itself, an issuer, " +
				"the bucket or another installation"},
		{"service/dispatcher/client", `import "net"; var _, _ = net.Dialer{}, new(net.Dialer)`,
			"service/dispatcher/client has 2 net.Dialers: every subscriber is called through one, with the guard"},
		{"service/dispatcher", `import "time"; func f() { for { time.Sleep(1) } }`,
			"service/dispatcher uses time.Sleep: wait for a condition instead"},
	}
	arrows := documentedArrows(t)
	for _, test := range tests {
		f, err := parser.ParseFile(token.NewFileSet(), "planted.go", "package planted\n"+test.src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(violations(arrows, []source{{test.pkg, f}}), "\n")
		if got != test.want {
			t.Errorf("%s: %s\n got %q\nwant %q", test.pkg, test.src, got, test.want)
		}
	}
}
