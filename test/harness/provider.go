package harness

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// providerBinary is the OpenID Connect provider of test/oidc/testdata/provider. It is built
// at most once per test process, from its own module, which needs the network once.
var providerBinary struct {
	once sync.Once
	path string
	err  error
}

// Provider is an OpenID Connect provider that runs for a test. Its users are ana, bo and cy.
type Provider struct {
	Issuer string

	tb testing.TB
}

// The clients of a Provider, and the password of its users.
const (
	ProviderClient       = "confidential"
	ProviderSecret       = "client secret"
	ProviderPublicClient = "public"
	ProviderPassword     = "verysecure"
)

// StartProvider runs a provider until the end of the test.
func StartProvider(tb testing.TB) *Provider {
	tb.Helper()
	providerBinary.once.Do(func() {
		dir, err := os.MkdirTemp("", "service-test-")
		if err != nil {
			providerBinary.err = err
			return
		}
		providerBinary.path = filepath.Join(dir, "provider")
		cmd := exec.Command("go", "build", "-o", providerBinary.path, ".")
		cmd.Dir, cmd.Env = Path("test/oidc/testdata/provider"), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			providerBinary.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if providerBinary.err != nil {
		tb.Fatal(providerBinary.err)
	}
	cmd := exec.Command(providerBinary.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	var ended sync.Once
	stop := func() {
		ended.Do(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
	tb.Cleanup(stop)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		stop()
		tb.Fatalf("the provider printed no issuer: %v", lines.Err())
	}
	return &Provider{Issuer: lines.Text(), tb: tb}
}

// SetGroups sets the groups of a user.
func (p *Provider) SetGroups(user string, groups ...string) {
	p.tb.Helper()
	q := url.Values{"user": {"id-" + user}, "group": groups}
	resp, err := http.Post(p.Issuer+"/test/groups?"+q.Encode(), "", nil)
	if err != nil {
		p.tb.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.tb.Fatalf("setting the groups: got %s", resp.Status)
	}
}
