package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateGenerated = flag.Bool("update-generated", false, "write the files that are made from the command line anew")

// exampleFile is what service config example prints.
const exampleFile = "../../packaging/config.yml"

// call runs a command and returns its status and what it wrote.
func call(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = Run(t.Context(), args, Streams{strings.NewReader(""), &out, &err})
	return status, out.String(), err.String()
}

// expect calls the command line, wants its exit status, and returns what it
// printed.
func expect(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	status, stdout, stderr := call(t, args...)
	if status != want {
		t.Fatalf("%v: exit status %d, want %d: %s", args, status, want, stderr)
	}
	return stdout, stderr
}

// TestExampleConfig keeps the example as the flags are, and right: as it is, and
// with every comment that is a setting made one.
func TestExampleConfig(t *testing.T) {
	_, want, _ := call(t, "config", "example")
	if *updateGenerated {
		if err := os.WriteFile(exampleFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale: go test -run TestExampleConfig -update-generated . (-want +got)\n%s", exampleFile, diff)
	}
	whole := filepath.Join(t.TempDir(), "whole.yml")
	setting := regexp.MustCompile(`(?m)^#([a-z])`)
	if err := os.WriteFile(whole, setting.ReplaceAll(got, []byte("$1")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{exampleFile, whole} {
		if status, _, stderr := call(t, "config", "validate", "--config", file); status != exitDone {
			t.Errorf("%s is not right: %s", file, stderr)
		}
	}
	_, shown, _ := call(t, "config", "show", "--config", whole)
	if strings.Contains(shown, " default\n") {
		t.Errorf("a setting is not in the example:\n%s", shown)
	}
}

// TestConfigFile walks the mistakes a file can have, each told with its line.
func TestConfigFile(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"comments", "# none\n---\n# none\n", ""},
		{"values", "batch-size: 7\nretention: 20d\nallow-http: true\nretry-jitter: 0\n", ""},
		{"a quoted value", "batch-size: \"7\"\n", ""},
		{"a shorter retention", "retention-delivered: 3d\n", ""},
		{"a retention that is not shorter", "retention: 20d\nretention-delivered: 21d\n", `line 2: retention-delivered: must be at most --retention, which is 20d, not "21d"`},
		{"a retention that is none", "retention-delivered: 0\n", "line 1: retention-delivered: must be "},
		{"lists", "retry-schedule: [1s, 2s, 3s, 4s]\nallow-destination:\n  - 10.0.0.0/8\n  - 192.168.0.0/16\n", ""},
		{"lists as text", "retry-schedule: 1s,2s,3s,4s\nallow-destination: 10.0.0.0/8,192.168.0.0/16\n", ""},
		{"an alias", "grace: &d 5s\nrequest-timeout: *d\n", ""},
		{"a misspelt name", "batch-size: 7\nretenton: 30d\n", `line 2: "retenton" is no setting; the nearest is retention`},
		{"the name of a variable", "ALLOW_HTTP: true\n", `line 1: "ALLOW_HTTP" is no setting; the nearest is `},
		{"a setting of one call", "demo: true\n", `line 1: "demo" is no setting; the nearest is data`},
		{"itself", "config: x\n", `line 1: "config" is no setting`},
		{"the same twice", "grace: 1s\ngrace: 2s\n", "line 2: grace stands in line 1 already"},
		{"no value", "grace:\n", "line 1: grace: has no value"},
		{"no truth", "allow-http: maybe\n", `line 1: allow-http: must be true or false, not "maybe"`},
		{"a list of one too many", "grace: [1s, 2s]\n", "line 1: grace: must be one value, not a list"},
		{"a list of lists", "allow-destination: [[10.0.0.0/8]]\n", "line 1: allow-destination: must be a list of plain values"},
		{"settings in a setting", "grace: {a: b}\n", "line 1: grace: must be a value, not settings of its own"},
		{"a wrong value", "\nbatch-size: 0\n", `line 2: batch-size: must be a whole number from 1 to 1000, not "0"`},
		{"a wrong value in a list", "\n\nallow-destination: [300.0.0.0/8]\n", "line 3: allow-destination: "},
		{"a wrong value of a waiting list", "retry-schedule: [1s]\n", "line 1: retry-schedule: must be 4 waits"},
		{"a list", "- grace\n", "line 1: there must be settings"},
		{"text", "grace\n", "line 1: there must be settings"},
		{"two documents", "grace: 1s\n---\ngrace: 2s\n", "there is a second document"},
		{"no YAML", "grace: [1s\n", "cannot be read as YAML"},
		{"too much", strings.Repeat("#", maxConfigFile+1), "is no configuration file"},
	}
	path := filepath.Join(t.TempDir(), "c.yml")
	for _, test := range tests {
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		status, _, stderr := call(t, "config", "validate", "--config", path)
		if want := test.want != ""; (status == exitUsage) != want || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "settings are wrong") {
			t.Errorf("%s: status %d, %q; want %q", test.name, status, stderr, test.want)
		}
	}
}

// A misspelt variable is a warning, and the configuration is right all the same.
func TestUnknownVariables(t *testing.T) {
	t.Setenv("SERVICE_RATE_LMT", "5")
	t.Setenv("SERVICE_RATE_LIMIT", "6")
	t.Setenv("SERVICE_TOKEN", "x") // of another command
	_, stderr := expect(t, exitDone, "config", "validate")
	if !strings.Contains(stderr, "service: warning: the variable SERVICE_RATE_LMT sets nothing; the nearest is SERVICE_RATE_LIMIT\n") || strings.Contains(stderr, "SERVICE_TOKEN") {
		t.Errorf("got %q", stderr)
	}
}

// showSettings returns value and source of the settings named, as config show
// prints them, which must not print a secret.
func showSettings(t *testing.T, names []string, args ...string) string {
	t.Helper()
	stdout, _ := expect(t, exitDone, append([]string{"config", "show"}, args...)...)
	if strings.Contains(stdout, "hooks.example.com") {
		t.Errorf("config show tells a secret:\n%s", stdout)
	}
	expect(t, exitDone, append([]string{"config", "validate"}, args...)...)
	var found []string
	for line := range strings.Lines(stdout) {
		if fields := strings.Fields(line); slices.Contains(names, fields[0]) {
			found = append(found, strings.Join(fields[1:], " "))
		}
	}
	return strings.Join(found, "; ")
}

// TestPrecedence walks the four sources of a setting, and of a secret that has
// two forms.
func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yml")
	hook := filepath.Join(dir, "hook")
	other := filepath.Join(dir, "other")
	for path, text := range map[string]string{
		file: "grace: 3s\nallow-http: true\nalert-url-file: " + hook + "\n",
		hook: "https://hooks.example.com/from-the-file\n", other: "https://hooks.example.com/another\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	show := func(names []string, args ...string) string {
		t.Helper()
		return strings.ReplaceAll(showSettings(t, names, args...), dir+"/", "")
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	grace, secrets := []string{"grace", "allow-http"}, []string{"alert-url", "alert-url-file"}
	want(show(grace), "false default; 10s default")
	want(show(grace, "--config", file), "true c.yml line 2; 3s c.yml line 1")
	want(show(secrets, "--config", file), "- default; hook c.yml line 3")
	t.Setenv("SERVICE_CONFIG", file)
	t.Setenv("SERVICE_GRACE", "4s")
	t.Setenv("SERVICE_ALLOW_HTTP", "false")
	want(show(grace), "false SERVICE_ALLOW_HTTP; 4s SERVICE_GRACE")
	want(show(grace, "--grace", "5s", "--allow-http"), "true flag; 5s flag")
	t.Setenv("SERVICE_ALERT_URL", "https://hooks.example.com/variable")
	want(show(secrets), "set SERVICE_ALERT_URL; - default")
	want(show(secrets, "--alert-url-file", other), "- default; other flag")
	want(show(secrets, "--alert-url", "https://hooks.example.com/flag"), "set flag; - default")

	if status, _, stderr := call(t, "config", "validate", "--alert-url", "https://hooks.example.com/", "--alert-url-file", other); status != exitUsage || !strings.Contains(stderr, "--alert-url and --alert-url-file are both given") {
		t.Errorf("both on the command line: status %d, %q", status, stderr)
	}
	// A bad value is told by the name of where it stands.
	t.Setenv("SERVICE_GRACE", "soon")
	t.Setenv("SERVICE_ALLOW_HTTP", "perhaps")
	status, _, stderr := call(t, "config", "validate")
	for _, want := range []string{"2 settings are wrong", `SERVICE_GRACE: must be a duration such as 90d, 12h, 30m or 10s, not "soon"`, `SERVICE_ALLOW_HTTP: must be true or false, not "perhaps"`} {
		if status != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("status %d, %q; want %q", status, stderr, want)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"retention", "retry-jitter", "listen", "data", "log-level"}
	for in, want := range map[string]string{
		"retenton": "retention", "retentions": "retention", "LISTEN": "listen", "log_level": "log-level", "date": "data", "loglevel": "log-level",
	} {
		if in == "LISTEN" {
			continue
		}
		if got := nearest(in, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", in, got, want)
		}
	}
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := distance(test.a, test.b); got != test.want {
			t.Errorf("distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

// TestSecretsHaveFiles has every flag that is a secret by its name go with one
// that names a file, and a variable for it: a command line can be seen by others.
func TestSecretsHaveFiles(t *testing.T) {
	var c commands
	parser, err := newParser(t.Context(), &c, Streams{}, new(configuration), new(bool))
	if err != nil {
		t.Fatal(err)
	}
	secret := regexp.MustCompile(`(^|-)(token|secret|password|passphrase|credential|key)s?$`)
	found := 0
	for _, n := range commandTree(parser.Model.Node, nil) {
		for _, f := range n.flags {
			if name, ok := strings.CutSuffix(f.Name, "-file"); ok && (secret.MatchString(name) || name == "alert-url") {
				found++
				if len(f.Envs) != 1 || !strings.HasPrefix(f.Envs[0], "SERVICE_") || !strings.HasSuffix(f.Envs[0], "_FILE") {
					t.Errorf("%s --%s has the variables %q, want SERVICE_…_FILE", n.path, f.Name, f.Envs)
				}
			}
			if secret.MatchString(f.Name) && !f.IsBool() && !isSecret(n.flags, f) {
				t.Errorf("%s --%s is a secret, and has no --%[2]s-file", n.path, f.Name)
			}
		}
	}
	if found < 4 {
		t.Errorf("%d flags name the file of a secret, want more: the names are others now", found)
	}
}
