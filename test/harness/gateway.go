package harness

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// Gateway is a real S3 server on a directory, in its own process.
type Gateway struct {
	// Dir is the directory. It contains the directory "bucket", whose files are the objects.
	Dir     string
	Address string // host:port

	tb     testing.TB
	binary string
	cmd    *exec.Cmd
}

// The credentials of a [Gateway].
const GatewayKey, GatewaySecret = "replica-access", "replica-secret"

// NewGateway starts an S3 server with an empty bucket (requirement s3).
func NewGateway(tb testing.TB) *Gateway {
	tb.Helper()
	dir, err := replicaTools()
	if err != nil {
		Unavailable(tb, "s3", err)
	}
	g := &Gateway{tb: tb, binary: filepath.Join(dir, "versitygw"), Dir: tb.TempDir(), Address: gatewayAddress(tb)}
	if err := os.Mkdir(filepath.Join(g.Dir, "bucket"), 0o700); err != nil {
		tb.Fatal(err)
	}
	g.Start()
	tb.Cleanup(g.Kill)
	return g
}

// Litestream returns the path of Litestream's own command (requirement s3).
func Litestream(tb testing.TB) string {
	tb.Helper()
	dir, err := replicaTools()
	if err != nil {
		Unavailable(tb, "s3", err)
	}
	return filepath.Join(dir, "litestream")
}

// gatewayAddress returns an address that no other process takes while the gateway is down. On
// Linux its loopback address is unique to this test.
func gatewayAddress(tb testing.TB) string {
	tb.Helper()
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		host = fmt.Sprintf("127.%d.%d.%d", 100+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	}
	l, err := net.Listen("tcp", host+":0") // a free port
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// toolsVariable names a folder with the programs that replicaTools would build.
const toolsVariable = "SERVICE_TEST_TOOLS"

// toolsDir is where replicaTools builds; [Main] removes it.
var toolsDir string

// replicaTools builds the S3 server and Litestream's command once. They are in a separate module,
// because the service does not need their dependencies.
var replicaTools = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(toolsVariable); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "versitygw")); err == nil {
			return dir, nil
		}
	}
	dir, err := os.MkdirTemp("", "service-test-")
	if err != nil {
		return "", err
	}
	toolsDir = dir
	cmd := exec.Command("go", "build", "-o", dir+"/", "github.com/benbjohnson/litestream/cmd/litestream",
		"github.com/versity/versitygw/cmd/versitygw")
	cmd.Dir = Path("test", "replica", "testdata", "tools")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the same for either driver, to hit the build cache
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the S3 server cannot be built: %w\n%s", err, out)
	}
	return dir, nil
})

// Start starts the server on its directory and waits until it responds.
func (g *Gateway) Start() {
	g.tb.Helper()
	g.cmd = exec.Command(g.binary, "--port", g.Address, "--access", GatewayKey, "--secret", GatewaySecret, "posix", g.Dir)
	g.cmd.Stdout, g.cmd.Stderr = io.Discard, io.Discard
	if err := g.cmd.Start(); err != nil {
		g.tb.Fatal(err)
	}
	WaitFor(g.tb, "the S3 server to answer", func() bool {
		conn, err := net.Dial("tcp", g.Address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// Kill ends the server with SIGKILL.
func (g *Gateway) Kill() {
	if g.cmd != nil {
		g.cmd.Process.Kill()
		g.cmd.Wait()
		g.cmd = nil
	}
}

// Replica returns configuration lines for a replica at a path in the bucket. address is the address
// of the server or of a [Proxy] in front of it.
func (g *Gateway) Replica(address, path string) []string {
	return []string{"type: s3", "bucket: bucket", "path: " + path, "endpoint: http://" + address, "region: us-east-1", "access-key-id: " +
		GatewayKey, "secret-access-key: " + GatewaySecret}
}

// URL returns the URL of the replica at a path, without credentials.
func (g *Gateway) URL(path string) string {
	return fmt.Sprintf("s3://bucket/%s?endpoint=http://%s&region=us-east-1&forcePathStyle=true", path, g.Address)
}
