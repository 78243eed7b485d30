package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"service/webhook"
)

// The client generators that the document is tested with, and their dependencies.
const (
	oapiCodegen       = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
	oapiRuntime       = "github.com/oapi-codegen/runtime@v1.8.0"
	openapiTypescript = "openapi-typescript@7.13.0"
	typescript        = "typescript@5.9.3"
	nodeTypes         = "@types/node@20.19.0"
)

// partner is a program generated from the document, in its own folder.
type partner struct {
	t   *testing.T
	dir string
	env []string
}

// newPartner writes the document and one of the programs of testdata/clients.
func newPartner(t *testing.T, program string) *partner {
	t.Helper()
	p := &partner{t: t, dir: t.TempDir()}
	catalog, err := loadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "clients", program))
	if err != nil {
		t.Fatal(err)
	}
	types := catalog.Types()
	// Generators drop dots and underscores.
	for _, name := range []string{"order.shipped", "order_shipped", "content.updated"} {
		schema := fmt.Sprintf(`{"title": "t", "description": "d", "type": "object", "properties": {
			"id": {"type": "string", "format": "uuid"}, "timestamp": {"type": "string", "format": "date-time"},
			"name": {"const": %q}, "version": {"const": "1"},
			"order": {"type": "object", "properties": {"number": {"type": "integer"}}, "additionalProperties": false},
			"carrier": {"$ref": "#/$defs/carrier"}}, "required": ["id", "timestamp", "name", "version"], "additionalProperties": false,
			"$defs": {"carrier": {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": false}},
			"examples": [{"id": "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", "timestamp": "2026-03-14T08:24:48.644Z", "name": %[1]q,
			"version": "1"}]}`, name)
		own, invalid := webhook.NewEventType(name, []byte(schema))
		if invalid != nil {
			t.Fatal(invalid)
		}
		types = append(types, own)
	}
	p.write("openapi.json", string(openapiDocument(webhook.NewCatalog(types...))))
	p.write(program, string(text))
	// The module under test must not leak into the partner's.
	p.env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	return p
}

func (p *partner) write(name, content string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// fetch runs a command that may need the network. Without it the test is
// skipped, unless it is required.
func (p *partner) fetch(program string, args ...string) {
	p.t.Helper()
	if out, err := p.command(program, args...).CombinedOutput(); err != nil {
		if slices.Contains(strings.Split(os.Getenv("SERVICE_TEST_REQUIRE"), ","), "clients") {
			p.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
		}
		p.t.Skipf("NOT TESTED: %s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// run runs a command that must succeed, and returns its output.
func (p *partner) run(program string, args ...string) string {
	p.t.Helper()
	out, err := p.command(program, args...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (p *partner) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	return cmd
}

// use runs the partner's program against a service whose deliveries all get 204.
func (p *partner) use(program string, args ...string) {
	p.t.Helper()
	s := start(p.t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ping") {
			s.deliver(204, webhook.ErrorNone) // the ping of the subscription's creation
			defer s.answerPing(204, webhook.ErrorNone)()
		}
		s.api.ServeHTTP(w, r)
	}))
	defer server.Close()
	published, ok := s.catalog.Type("content_published")
	if !ok {
		p.t.Fatal("no such event type")
	}
	p.env = append(p.env, "URL="+server.URL, "TOKEN="+s.token, "PLATFORM_TOKEN="+s.platform,
		`DELIVERY={"delivery_id":"d","subscription_id":"s","program_id":"acme","events":[`+string(published.Example)+`]}`)
	if got := p.run(program, args...); !strings.Contains(got, "all as it should be") {
		p.t.Errorf("the partner's program printed:\n%s", got)
	}
}

// A client in Go, by oapi-codegen.
func TestGoClient(t *testing.T) {
	t.Parallel()
	goTool := require(t, "go")
	p := newPartner(t, "main.go")
	p.write("go.mod", "module clients\n\ngo 1.26.0\n")
	p.write("oapi-codegen.yaml", "package: client\noutput: client/client.go\n"+
		"generate: {models: true, client: true}\noutput-options: {skip-prune: true}\n")
	if err := os.Mkdir(filepath.Join(p.dir, "client"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.fetch(goTool, "run", oapiCodegen, "-version")
	p.run(goTool, "run", oapiCodegen, "-config", "oapi-codegen.yaml", "openapi.json")
	p.fetch(goTool, "get", oapiRuntime)
	p.fetch(goTool, "mod", "tidy")
	p.run(goTool, "vet", "./...")
	p.run(goTool, "build", "-o", "partner", ".")
	p.use(filepath.Join(p.dir, "partner"))
}

// A client in TypeScript, by openapi-typescript.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	node, npm := require(t, "node"), require(t, "npm")
	p := newPartner(t, "main.ts")
	p.write("package.json", `{"private": true, "type": "module"}`)
	p.write("tsconfig.json", `{"compilerOptions": {"strict": true, "target": "es2022", "module": "es2022", `+
		`"moduleResolution": "bundler", "types": ["node"], "skipLibCheck": true}, "files": ["main.ts"]}`)
	p.fetch(npm, "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", openapiTypescript, typescript, nodeTypes)
	p.run(node, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "--output", "api.d.ts")
	p.run(node, "node_modules/typescript/bin/tsc", "--project", ".")
	p.use(node, "main.js")
}
