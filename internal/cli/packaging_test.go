package cli

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"service/internal/server"
	"service/store/replica"
	"service/test/harness"
)

// TestUnitAndImage checks that the commands and variables in the systemd unit, the Dockerfile
// and the Compose file exist.
func TestUnitAndImage(t *testing.T) {
	read := func(name string) string { return string(harness.Read(t, harness.Path(name))) }
	parser, _ := testParser(t)
	var known []string
	for _, f := range fileFlags(parser.Model.Node) {
		known = append(known, f.Envs...)
	}
	known = append(known, "SERVICE_CONFIG")
	unit, image, compose := read("packaging/service-webhooks.service"), read("packaging/Dockerfile"), read("packaging/compose.yml")
	for name, text := range map[string]string{"unit": unit, "image": image, "compose": compose} {
		for _, variable := range regexp.MustCompile(`SERVICE_[A-Z_]+`).FindAllString(text, -1) {
			if !slices.Contains(known, variable) && variable != "SERVICE_" {
				t.Errorf("%s: unknown variable %s", name, variable)
			}
		}
	}
	for _, command := range [][]string{
		strings.Fields(regexp.MustCompile(`ExecStart=\S+ (.*)`).FindStringSubmatch(unit)[1]),
		{jsonWords(t, regexp.MustCompile(`HEALTHCHECK .*CMD (\[.*\])`).FindStringSubmatch(image)[1])[1]},
		jsonWords(t, regexp.MustCompile(`(?m)^CMD (\[.*\])`).FindStringSubmatch(image)[1]),
	} {
		if slices.Contains(command, "--config") {
			command[slices.Index(command, "--config")+1] = exampleFile
		}
		if _, err := parser.Parse(command); err != nil {
			t.Errorf("%q: %v", command, err)
		}
	}
	run := regexp.MustCompile(`ExecStart=(\S+)`).FindStringSubmatch(unit)[1]
	installed := regexp.MustCompile(`install -m 0755 \S+ (\S+)`).FindAllStringSubmatch(read("docs/operations.md"), -1)
	for _, to := range installed {
		if to[1] != run {
			t.Errorf("docs/operations.md installs the binary as %s, but the unit runs %s", to[1], run)
		}
	}
	if len(installed) < 2 {
		t.Errorf("docs/operations.md has %d install commands, want at least 2", len(installed))
	}
	for _, want := range []string{
		"FROM scratch", "CGO_ENABLED=0", "ca-certificates.crt", "USER 65532", "mkdir -m 0700 /out/root/data", "--chown=65532:65532 /out/root /\n",
	} {
		if !strings.Contains(image, want) {
			t.Errorf("the Dockerfile lacks %s", want)
		}
	}
	var services struct {
		Services map[string]struct {
			StopGracePeriod string `yaml:"stop_grace_period"`
		} `yaml:"services"`
		Volumes map[string]any `yaml:"volumes"`
	}
	if err := yaml.Unmarshal([]byte(compose), &services); err != nil || len(services.Services) != 1 || len(services.Volumes) != 1 {
		t.Errorf("compose: %v, %v", services, err)
	}
}

// TestStopTimes checks that the systemd unit and the Compose file wait at least as long as a stop
// with the default settings may take.
func TestStopTimes(t *testing.T) {
	parser, c := testParser(t)
	if _, err := parser.Parse([]string{"serve"}); err != nil {
		t.Fatal(err)
	}
	to, err := replica.ParseURL("file:///nowhere")
	if err != nil {
		t.Fatal(err)
	}
	grace, err := time.ParseDuration(c.Serve.Grace)
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Config{Data: server.Data{Replica: to}, Delivery: server.Delivery{Grace: grace}}
	for name, pattern := range map[string]string{
		"packaging/compose.yml": `stop_grace_period: (\S+)`, "packaging/service-webhooks.service": `TimeoutStopSec=(\S+)`,
	} {
		found := regexp.MustCompile(pattern).FindStringSubmatch(string(harness.Read(t, harness.Path(name))))
		if found == nil {
			t.Fatalf("%s: no %s", name, pattern)
		}
		if d, err := time.ParseDuration(found[1]); err != nil || d < cfg.ShutdownTimeout() {
			t.Errorf("%s: got %s, want at least %s", name, found[0], cfg.ShutdownTimeout())
		}
	}
}

// TestConffile checks that the package's configuration file only says where to look. Text that
// changes with the version would make every upgrade prompt.
func TestConffile(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(string(harness.Read(t, harness.Path("packaging/config.yml")))), "\n")
	if len(lines) > 10 {
		t.Errorf("got %d lines, want at most 10", len(lines))
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "#") {
			t.Errorf("got the setting %q, want none", line)
		}
	}
}

func jsonWords(t *testing.T, s string) (words []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(s), &words); err != nil {
		t.Fatal(err)
	}
	return words
}
