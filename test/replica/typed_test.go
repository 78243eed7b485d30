package replica

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// TestDrillAsTyped runs the commands of the restore drill in docs/failover.md as written, except
// for the URL of the replica, the path of the key and the port.
func TestDrillAsTyped(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	g := harness.NewGateway(t)
	data := t.TempDir()
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", writeReplica(t, data, "500ms", g.Replica(g.Address, "service")...))
	token := in.Token("acme")
	in.MustStart()
	in.Publish(token, map[string]any{"name": "content_published", "version": "1", "content_id": 4711, "channel_ids": []int{1}})
	in.MustStop(in.Last())

	dir := t.TempDir()
	if err := os.Symlink(in.Binary, filepath.Join(dir, "service")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	env := append(harness.Environment(), "PATH="+dir+":"+os.Getenv("PATH"), "AWS_ACCESS_KEY_ID="+harness.GatewayKey,
		"AWS_SECRET_ACCESS_KEY="+harness.GatewaySecret)
	run := func(ctx context.Context, line string) *exec.Cmd {
		line = strings.ReplaceAll(line, "s3://bucket/service?region=eu-central-1", g.URL("service"))
		line = strings.ReplaceAll(line, "/var/lib/service-webhooks", data)
		line = strings.ReplaceAll(line, "127.0.0.1:9443", address)
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+line)
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
	commands := 0
	for line := range strings.Lines(strings.Join(harness.CommandsOf(t, "docs/failover.md", "### A restore drill"), "")) {
		commands++
		if !strings.HasPrefix(line, "service serve ") {
			if out, err := run(t.Context(), line).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			} else if strings.HasPrefix(line, "service program list") && !strings.Contains(string(out), "acme") {
				t.Errorf("%s: got no program:\n%s", line, out)
			}
			continue
		}
		ctx, stop := context.WithCancel(context.Background())
		serve := run(ctx, line)
		if err := serve.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			stop()
			serve.Wait()
		})
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		harness.WaitFor(t, "the restored service", func() bool {
			resp, err := client.Get("https://" + address + "/readyz")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == http.StatusOK
		})
	}
	if commands != 7 {
		t.Errorf("the drill has %d commands, want 7", commands)
	}
}
