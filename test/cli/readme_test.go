package cli

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// TestWalkThrough runs the commands of the walk-through in README.md. The test provides the server
// and the receiver, because README.md uses fixed ports.
//
// It needs bash, curl and jq (requirement walkthrough).
func TestWalkThrough(t *testing.T) {
	harness.Drill(t, 1, 1)
	bash := harness.Tool(t, "walkthrough", "bash")
	harness.Tool(t, "walkthrough", "curl")
	harness.Tool(t, "walkthrough", "jq")
	dir, binary := t.TempDir(), harness.Build(t)
	in := harness.NewInstance(t, binary, filepath.Join(dir, "data"))
	in.MustStart()
	deliveries := make(chan string, 10)
	receiver := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := harness.ReadBody(r)
		deliveries <- string(body)
	}))

	var script strings.Builder
	for _, block := range harness.CommandsOf(t, "README.md", "## Walk-through") {
		if !strings.HasPrefix(block, "./service serve") && !strings.HasPrefix(block, "./service listen") {
			script.WriteString(block)
		}
	}
	commands := script.String()
	for from, to := range map[string]string{
		"./service": binary, "https://127.0.0.1:8443": in.URL(), "http://127.0.0.1:9000": receiver,
	} {
		if !strings.Contains(commands, from) {
			t.Errorf("walk-through: got no %s", from)
		}
		commands = strings.ReplaceAll(commands, from, to)
	}

	cmd := exec.Command(bash, "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = dir, harness.Environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, commands, out)
	}
	for _, want := range []string{`"name":"content_published"`, `"attempts": [`, `"response_status": 200`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output: got\n%s\nwant %s in it", out, want)
		}
	}
	for _, want := range []string{"ping", "content_published", "ping"} {
		if got := harness.Receive(t, "a delivery", deliveries); !strings.Contains(got, `"name":"`+want+`"`) {
			t.Errorf("got the delivery %s, want an event %s", got, want)
		}
	}
}
