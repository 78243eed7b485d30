package replica

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

	"service/test/harness"
)

// gateway is a real S3 server on a folder, in a process of its own.
type gateway struct {
	tb         testing.TB
	binary     string
	litestream string // Litestream's own command
	dir        string
	address    string
	cmd        *exec.Cmd
}

// newGateway starts an S3 server with an empty bucket (requirement s3).
func newGateway(tb testing.TB) *gateway {
	tb.Helper()
	dir, err := replicaTools()
	if err != nil {
		harness.Unavailable(tb, "s3", err)
	}
	g := &gateway{tb: tb, binary: filepath.Join(dir, "versitygw"), litestream: filepath.Join(dir, "litestream"), dir: tb.TempDir(), address: gatewayAddress(tb)}
	if err := os.Mkdir(filepath.Join(g.dir, "bucket"), 0o700); err != nil {
		tb.Fatal(err)
	}
	g.start()
	tb.Cleanup(g.kill)
	return g
}

// gatewayAddress returns an address that no other process takes while the
// gateway is down. On Linux it is on a loopback address that only this test
// uses.
func gatewayAddress(tb testing.TB) string {
	tb.Helper()
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		host = fmt.Sprintf("127.%d.%d.%d", 100+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	}
	l, err := net.Listen("tcp", host+":0") // a port that is free
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// toolsDir is where replicaTools builds; TestMain removes it.
var toolsDir string

// replicaTools builds the S3 server and Litestream's command, once. They have a
// module of their own, testdata/tools, because the service does not need what
// they need.
var replicaTools = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "service-test-")
	if err != nil {
		return "", err
	}
	toolsDir = dir
	cmd := exec.Command("go", "build", "-o", dir+"/", "github.com/benbjohnson/litestream/cmd/litestream", "github.com/versity/versitygw/cmd/versitygw")
	cmd.Dir = filepath.Join("testdata", "tools")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the same with either driver, so that it is in the build cache
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the S3 server cannot be built: %w\n%s", err, out)
	}
	return dir, nil
})

const gatewayKey, gatewaySecret = "replica-access", "replica-secret"

// start starts the server on its folder and waits until it answers.
func (g *gateway) start() {
	g.tb.Helper()
	g.cmd = exec.Command(g.binary, "--port", g.address, "--access", gatewayKey, "--secret", gatewaySecret, "posix", g.dir)
	g.cmd.Stdout, g.cmd.Stderr = io.Discard, io.Discard
	if err := g.cmd.Start(); err != nil {
		g.tb.Fatal(err)
	}
	harness.WaitFor(g.tb, "the S3 server to answer", func() bool {
		conn, err := net.Dial("tcp", g.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// kill ends the server with SIGKILL.
func (g *gateway) kill() {
	if g.cmd != nil {
		g.cmd.Process.Kill()
		g.cmd.Wait()
		g.cmd = nil
	}
}

// replica returns the lines of the configuration of a replica on the server.
func (g *gateway) replica() []string {
	return []string{"type: s3", "bucket: bucket", "path: service", "endpoint: http://" + g.address, "region: us-east-1", "access-key-id: " + gatewayKey, "secret-access-key: " + gatewaySecret}
}

// url returns the same replica as a URL, without credentials.
func (g *gateway) url() string {
	return fmt.Sprintf("s3://bucket/service?endpoint=http://%s&region=us-east-1&forcePathStyle=true", g.address)
}
