package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// arrows is the drawing of docs/architecture.md: what each room may import of
// the others. Nothing else is allowed.
var arrows = map[string][]string{
	"service": {
		"service/internal/cli",
	},
	"service/internal/cli": {
		"service/internal/archive",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/control",
		"service/internal/durable",
		"service/internal/server",
		"service/internal/terminal",
		"service/store",
		"service/store/replica",
		"service/webhook",
	},
	"service/api": {
		"service/store",
		"service/store/replica",
		"service/webhook",
	},
	"service/web": {
		"service/assets",
		"service/store",
		"service/store/replica",
		"service/web/ui",
		"service/webhook",
	},
	"service/web/ui": {
		"service/webhook",
	},
	"service/dispatcher": {
		"service/dispatcher/client",
		"service/store",
		"service/webhook",
	},
	"service/dispatcher/client": {
		"service/webhook",
	},
	"service/store": {
		"service/internal/durable",
		"service/store/keyring",
		"service/store/replica",
		"service/store/sqlite",
		"service/webhook",
	},
	"service/store/keyring": {
		"service/internal/durable",
	},
	"service/store/sqlite": {
		"service/internal/durable",
	},
	"service/store/replica": {
		"service/internal/durable",
		"service/store/sqlite",
		"service/webhook",
	},
	"service/assets":            {},
	"service/webhook":           {},
	"service/internal/durable":  {},
	"service/internal/terminal": {},
	"service/internal/certs": {
		"service/internal/durable",
		"service/store",
		"service/webhook",
	},
	"service/internal/archive": {
		"service/store",
	},
	"service/internal/control": {
		"service/internal/archive",
		"service/store",
		"service/webhook",
	},
	"service/internal/bench": {
		"service/internal/control",
		"service/internal/terminal",
		"service/store",
		"service/webhook",
	},
	"service/internal/server": {
		"service/api",
		"service/dispatcher",
		"service/internal/certs",
		"service/internal/control",
		"service/internal/durable",
		"service/internal/terminal",
		"service/store",
		"service/store/replica",
		"service/web",
		"service/webhook",
	},
}

// testOnly are the packages that only tests import. They may use what they need,
// of the others' exported names too, and have no privileges to keep to.
var testOnly = []string{"service/test/harness", "service/test/harness/chaos"}

// privilege is an import, or a name of one, that only some rooms may use.
type privilege struct {
	path  string   // an import path; with a final slash all below it too
	name  string   // an exported name of it; "" is the import itself
	rooms []string // who may
	why   string
}

var privileges = []privilege{
	{"database/sql", "", []string{"service/store", "service/store/sqlite"}, "the only SQL is in store"},
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
	{"github.com/julienschmidt/httprouter", "", []string{"service/api"}, "routes are the doors'"},
	{"github.com/caddyserver/certmagic", "", []string{"service/internal/certs"}, "certificates are internal/certs's"},
	{"github.com/mholt/acmez/", "", []string{"service/internal/certs"}, "certificates are internal/certs's"},
	{"filippo.io/age", "", []string{"service/internal/archive"}, "the backup format is internal/archive's"},
	{"go.uber.org/zap", "", []string{"service/internal/certs"}, "the log is log/slog's; a library's goes to it"},
	{"go.uber.org/zap/", "", []string{"service/internal/certs"}, "the log is log/slog's; a library's goes to it"},
	{"github.com/caddyserver/certmagic", "HTTPS", nil, "it listens by itself, where nobody said"},
	{"github.com/caddyserver/certmagic", "Default", nil, "a variable of the whole process"},
	{"github.com/caddyserver/certmagic", "DefaultACME", nil, "a variable of the whole process"},

	{"github.com/prometheus/client_golang/prometheus", "", []string{
		"service/api",
		"service/dispatcher",
		"service/internal/certs",
		"service/internal/server",
		"service/store",
	}, "the rules count nothing"},
	{"github.com/prometheus/client_golang/prometheus/collectors", "", []string{"service/internal/server"}, "the process is main's"},
	{"github.com/prometheus/client_golang/prometheus/promauto", "", nil, "metrics are registered where main says, not for the whole process"},
	{"github.com/prometheus/client_golang/prometheus/promhttp", "", nil, "one place writes the API's answers"},
	{"github.com/prometheus/client_golang/prometheus", "MustRegister", nil, "metrics are registered where main says, not for the whole process"},
	{"github.com/prometheus/client_golang/prometheus", "Register", nil, "metrics are registered where main says, not for the whole process"},
	{"github.com/prometheus/client_golang/prometheus", "DefaultRegisterer", nil, "metrics are registered where main says, not for the whole process"},
	{"github.com/prometheus/client_golang/prometheus", "DefaultGatherer", nil, "metrics are registered where main says, not for the whole process"},

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
	{"os", "Setenv", nil, "only internal/cli changes the environment"},
	{"os", "Unsetenv", []string{"service/internal/cli"}, "only internal/cli changes the environment"},
	{"os", "Exit", []string{"service"}, "only main ends the process"},
	{"log", "", nil, "the log is log/slog's; log.Fatal would end the process"},
	{"os/signal", "", []string{"service"}, "only main hears signals"},

	{"net/http", "Transport", []string{
		"service/internal/cli",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/control",
	}, "only dispatcher/client calls subscribers; main calls the service's own API"},
	{"net/http", "Client", []string{
		"service/internal/cli",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/control",
	}, "only dispatcher/client calls subscribers; main calls the service's own API"},
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
		"service/internal/cli",
		"service/dispatcher/client",
		"service/internal/control",
	}, "only dispatcher/client calls subscribers"},
	{"net", "Listen", []string{
		"service/internal/cli",
		"service/internal/bench",
	}, "main opens the doors"},

	{"net/http", "", []string{
		"service/internal/cli",
		"service/api",
		"service/assets",
		"service/dispatcher",
		"service/dispatcher/client",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/control",
		"service/internal/server",
		"service/web",
	}, "the truth and the rules know no HTTP"},
	{"net", "", []string{
		"service/api",
		"service/dispatcher/client",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/server",
	}, "the truth and the rules do no network I/O"},
	{"os", "", []string{
		"service",
		"service/api",
		"service/dispatcher/client",
		"service/internal/archive",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/cli",
		"service/internal/control",
		"service/internal/durable",
		"service/internal/server",
		"service/internal/terminal",
		"service/store",
		"service/store/keyring",
		"service/store/replica",
		"service/store/sqlite",
	}, "the rules do no I/O"},
	{"time", "Now", []string{
		"service/internal/cli",
		"service/api",
		"service/dispatcher",
		"service/dispatcher/client",
		"service/internal/bench",
		"service/internal/certs",
		"service/internal/control",
		"service/internal/server",
		"service/internal/terminal",
		"service/store",
		"service/store/replica",
		"service/store/sqlite",
		"service/web",
	}, "the rules take the time as an argument"},
	{"time", "Sleep", nil, "nothing sleeps: it waits for what it waits for"},
}

// source is one file of a room, of any build tag but those of tests.
type source struct {
	room string
	file *ast.File
}

// violations returns what in the files breaks the drawing, in a fixed order.
func violations(files []source) []string {
	found := make(map[string]bool)
	dialers := 0
	for _, f := range files {
		if slices.Contains(testOnly, f.room) {
			continue
		}
		allowed, ok := arrows[f.room]
		if !ok {
			found[f.room+" has no place in the drawing"] = true
			continue
		}
		names := make(map[string]string) // by which an import is known in the file
		for _, spec := range f.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			name := path[strings.LastIndexByte(path, '/')+1:]
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = path
			if name == "." {
				found[fmt.Sprintf("%s imports %s into its own names, which hides what it uses", f.room, path)] = true
			}
			if strings.HasPrefix(path, "service/") && !slices.Contains(allowed, path) {
				found[fmt.Sprintf("%s imports %s: there is no such arrow", f.room, path)] = true
			}
			for _, p := range privileges {
				if p.name == "" && p.covers(path) && !slices.Contains(p.rooms, f.room) {
					found[fmt.Sprintf("%s imports %s: %s", f.room, path, p.why)] = true
				}
			}
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if !ok || names[x.Name] == "" {
				return true
			}
			path := names[x.Name]
			if f.room == "service/dispatcher/client" && path == "net" && s.Sel.Name == "Dialer" {
				dialers++
			}
			for _, p := range privileges {
				if p.name == s.Sel.Name && p.path == path && !slices.Contains(p.rooms, f.room) {
					found[fmt.Sprintf("%s uses %s.%s: %s", f.room, path, p.name, p.why)] = true
				}
			}
			return true
		})
	}
	if dialers > 1 {
		found[fmt.Sprintf("service/dispatcher/client has %d net.Dialers: every subscriber is called through one, with the guard", dialers)] = true
	}
	var all []string
	for v := range found {
		all = append(all, v)
	}
	slices.Sort(all)
	return all
}

func (p privilege) covers(path string) bool {
	return path == p.path || strings.HasSuffix(p.path, "/") && strings.HasPrefix(path, p.path)
}

func TestArrowsAndPrivileges(t *testing.T) {
	files := houseSources(t)
	rooms := make(map[string]bool)
	for _, f := range files {
		rooms[f.room] = true
	}
	for _, room := range []string{"service", "service/store", "service/webhook"} {
		if !rooms[room] {
			t.Errorf("no source of %s was looked at", room)
		}
	}
	for _, v := range violations(files) {
		t.Error(v)
	}
}

// houseSources returns every file of the module but its tests, those that
// today's build tags leave out included.
func houseSources(t *testing.T) []source {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=Dir,ImportPath,GoFiles,CgoFiles,IgnoredGoFiles", "./...").Output()
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

// stale returns the arrows and privileges that no file uses, in a fixed order.
func stale(files []source) []string {
	used := make(map[string]bool) // "room path", and "room path.Name"
	for _, f := range files {
		names := make(map[string]string)
		for _, spec := range f.file.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			name := path[strings.LastIndexByte(path, '/')+1:]
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = path
			used[f.room+" "+path] = true
			for i := range path { // a privilege may cover all below a path
				if path[i] == '/' {
					used[f.room+" "+path[:i+1]] = true
				}
			}
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && names[x.Name] != "" {
					used[f.room+" "+names[x.Name]+"."+s.Sel.Name] = true
				}
			}
			return true
		})
	}
	var all []string
	for room, targets := range arrows {
		for _, target := range targets {
			if !used[room+" "+target] {
				all = append(all, room+" does not import "+target)
			}
		}
	}
	for _, p := range privileges {
		what := p.path
		if p.name != "" {
			what += "." + p.name
		}
		for _, room := range p.rooms {
			if !used[room+" "+what] {
				all = append(all, room+" does not use "+what)
			}
		}
	}
	slices.Sort(all)
	return all
}

// Every arrow and every privilege is used by somebody.
func TestNoStaleRows(t *testing.T) {
	for _, row := range stale(houseSources(t)) {
		t.Errorf("%s: remove the row", row)
	}
}

func TestViolationsAreFound(t *testing.T) {
	tests := []struct {
		room, src string
		want      string // "" is none
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

		{"service/api", `import "database/sql"`, "service/api imports database/sql: the only SQL is in store"},
		{"service", `import "database/sql/driver"`, "service imports database/sql/driver: drivers are store/sqlite's"},
		{"service/dispatcher", `import _ "github.com/mattn/go-sqlite3"`, "service/dispatcher imports github.com/mattn/go-sqlite3: one SQLite library, in store/sqlite"},
		{"service/store", `import _ "modernc.org/sqlite"`, "service/store imports modernc.org/sqlite: a second SQLite library in the process drops the first one's locks"},
		{"service/api", `import "github.com/a-h/templ"`, "service/api imports github.com/a-h/templ: pages are web's"},
		{"service/web", `import "flag"`, "service/web imports flag: only internal/cli reads the command line"},
		{"service/store", `import "os"; var _ = os.Getenv("HOME")`, "service/store uses os.Getenv: only internal/cli reads the environment"},
		{"service/store", `import env "os"; var _ = env.Getenv("HOME")`, "service/store uses os.Getenv: only internal/cli reads the environment"},
		{"service/api", `import "os"; func f() { os.Exit(1) }`, "service/api uses os.Exit: only main ends the process"},
		{"service/api", `import . "os"`, "service/api imports os into its own names, which hides what it uses"},
		{"service/webhook", `import "github.com/prometheus/client_golang/prometheus"`, "service/webhook imports github.com/prometheus/client_golang/prometheus: the rules count nothing"},
		{"service/store", `import "github.com/prometheus/client_golang/prometheus"; func f() { prometheus.MustRegister() }`, "service/store uses github.com/prometheus/client_golang/prometheus.MustRegister: metrics are registered where main says, not for the whole process"},
		{"service/webhook", `import "net/http"`, "service/webhook imports net/http: the truth and the rules know no HTTP"},
		{"service/webhook", `import "time"; var _ = time.Now()`, "service/webhook uses time.Now: the rules take the time as an argument"},
		{"service/api", `import "net/http"; var _ = http.Client{}`, "service/api uses net/http.Client: only dispatcher/client calls subscribers; main calls the service's own API"},
		{"service/web", `import "net/http"; func f() { http.Get("") }`, "service/web uses net/http.Get: it has no timeout and follows redirects"},
		{"service/dispatcher", `import "net/http"; var _ = http.Transport{}`, "service/dispatcher uses net/http.Transport: only dispatcher/client calls subscribers; main calls the service's own API"},
		{"service/dispatcher/client", `import "net"; var _, _ = net.Dialer{}, new(net.Dialer)`, "service/dispatcher/client has 2 net.Dialers: every subscriber is called through one, with the guard"},
		{"service/dispatcher", `import "time"; func f() { for { time.Sleep(1) } }`, "service/dispatcher uses time.Sleep: nothing sleeps: it waits for what it waits for"},
	}
	for _, test := range tests {
		f, err := parser.ParseFile(token.NewFileSet(), "planted.go", "package planted\n"+test.src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(violations([]source{{test.room, f}}), "\n")
		if got != test.want {
			t.Errorf("%s: %s\n got %q\nwant %q", test.room, test.src, got, test.want)
		}
	}
}
