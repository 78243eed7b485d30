// Package clients generates clients from the OpenAPI document of a running service and uses them
// against it. Each folder of testdata has one program of a partner, with the exact versions of
// the generator and its dependencies.
package clients

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// partner is a copy of a program in testdata, with the document of a service.
type partner struct {
	t   *testing.T
	dir string
	env []string
}

// newPartner starts a service and a receiver, and copies a program.
func newPartner(t *testing.T, program string) *partner {
	t.Helper()
	harness.Long(t)
	in := harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "data"))
	in.MustStart()
	platform := in.PlatformToken()
	// Generators drop dots and underscores.
	for _, name := range []string{"order.shipped", "order_shipped", "content.updated"} {
		in.CreateEventType(platform, name)
	}
	receiver := harness.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))

	p := &partner{t: t, dir: t.TempDir()}
	if err := os.CopyFS(p.dir, os.DirFS(filepath.Join("testdata", program))); err != nil {
		t.Fatal(err)
	}
	var document json.RawMessage
	p.get(in, platform, "/v2/openapi.json", &document)
	if err := os.WriteFile(filepath.Join(p.dir, "openapi.json"), document, 0o600); err != nil {
		t.Fatal(err)
	}
	var published struct {
		Data struct{ Example json.RawMessage }
	}
	p.get(in, platform, "/v2/event_types/content_published", &published)
	// The module under test must not leak into the partner's.
	p.env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0", "URL="+in.URL(), "TOKEN="+in.Token("acme"),
		"PLATFORM_TOKEN="+platform, "RECEIVER="+receiver+"/webhooks",
		`DELIVERY={"delivery_id":"d","subscription_id":"s","program_id":"acme","events":[`+string(published.Data.Example)+`]}`)
	return p
}

func (p *partner) get(in *harness.Instance, token, path string, into any) {
	p.t.Helper()
	if status, err := in.Call(p.t.Context(), token, "GET", in.URL()+path, nil, into); err != nil || status != http.StatusOK {
		p.t.Fatalf("GET %s: status %d, %v", path, status, err)
	}
}

// fetch runs a command that needs a package registry, unless its packages are cached.
func (p *partner) fetch(program string, args ...string) {
	p.t.Helper()
	if out, err := p.command(program, args...).CombinedOutput(); err != nil {
		harness.Unavailable(p.t, "clients", fmt.Sprintf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out))
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
	cmd := exec.CommandContext(p.t.Context(), program, args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	return cmd
}

// use runs the partner's program against the service.
func (p *partner) use(program string, args ...string) {
	p.t.Helper()
	if got := p.run(program, args...); !strings.Contains(got, "all as it should be") {
		p.t.Errorf("the partner's program printed:\n%s", got)
	}
}

// A client in Go, by oapi-codegen.
func TestGoClient(t *testing.T) {
	t.Parallel()
	p := newPartner(t, "go")
	goTool := harness.Tool(t, "clients", "go")
	p.fetch(goTool, "mod", "download", "all")
	if err := os.Mkdir(filepath.Join(p.dir, "client"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.run(goTool, "tool", "oapi-codegen", "-generate", "types,client", "-package", "client", "-o", "client/client.go", "openapi.json")
	p.run(goTool, "vet", "./...")
	p.run(goTool, "build", "-o", "partner", ".")
	p.use(filepath.Join(p.dir, "partner"))
}

// A client in TypeScript, by openapi-typescript.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	p := newPartner(t, "typescript")
	node, npm := harness.Tool(t, "clients", "node"), harness.Tool(t, "clients", "npm")
	p.fetch(npm, "ci", "--no-audit", "--no-fund", "--loglevel=error")
	p.run(node, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "--output", "api.d.ts")
	p.run(node, "node_modules/typescript/bin/tsc", "--project", ".")
	p.use(node, "main.js")
}
