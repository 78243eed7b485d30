package cli

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"service/store"
	"service/test/harness"
)

var updateGenerated = flag.Bool("update-generated", false, "rewrite the files generated from the command line")

// exampleFile is the output of service config example.
const exampleFile = "../../packaging/config.example.yml"

// call runs a command and returns its exit status and output.
func call(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return callWith(t.Context(), strings.NewReader(""), args...)
}

// callWith is call with a context and a standard input.
func callWith(ctx context.Context, in io.Reader, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = Run(ctx, args, Streams{in, &out, &err})
	return status, out.String(), err.String()
}

// writeFile writes a file and returns its path.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// expect runs a command, checks its exit status and returns its output.
func expect(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	status, stdout, stderr := call(t, args...)
	if status != want {
		t.Fatalf("%v: exit status %d, want %d: %s", args, status, want, stderr)
	}
	return stdout, stderr
}

// createData creates an installation without a server.
func createData(t *testing.T, dir, keyFile string) {
	t.Helper()
	st, err := store.Open(t.Context(), store.Config{Dir: dir, SecretKeyFile: keyFile})
	if err == nil {
		err = st.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestExampleConfig checks that the example is up to date and valid, as it is and with every
// setting uncommented.
func TestExampleConfig(t *testing.T) {
	_, want, _ := call(t, "config", "example")
	if *updateGenerated {
		if err := os.WriteFile(exampleFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := harness.Read(t, exampleFile)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale: go test -run TestExampleConfig -update-generated . (-want +got)\n%s", exampleFile, diff)
	}
	setting := regexp.MustCompile(`(?m)^#([a-z])`)
	whole := writeFile(t, filepath.Join(t.TempDir(), "whole.yml"), setting.ReplaceAllString(string(got), "$1"))
	for _, file := range []string{exampleFile, whole} {
		if status, _, stderr := call(t, "config", "validate", "--config", file); status != exitDone {
			t.Errorf("%s is not valid: %s", file, stderr)
		}
	}
	_, shown, _ := call(t, "config", "show", "--config", whole)
	if strings.Contains(shown, " default\n") {
		t.Errorf("the example lacks a setting:\n%s", shown)
	}
}

// TestConfigFile checks valid files, and that each error names its line.
func TestConfigFile(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"comments", "# none\n---\n# none\n", ""},
		{"values", "batch-size: 7\nretention: 20d\nallow-http: true\nretry-jitter: 0\n", ""},
		{"a quoted value", "batch-size: \"7\"\n", ""},
		{"a shorter retention", "retention-delivered: 3d\n", ""},
		{"a longer retention", "retention: 20d\nretention-delivered: 21d\n",
			`line 2: retention-delivered: must be at most --retention, which is 20d, not "21d"`},
		{"no retention", "retention-delivered: 0\n", "line 1: retention-delivered: must be "},
		{"lists", "retry-schedule: [1s, 2s, 3s, 4s]\nallow-destination:\n  - 10.0.0.0/8\n  - 192.168.0.0/16\n", ""},
		{"lists with commas", "retry-schedule: 1s,2s,3s,4s\nallow-destination: 10.0.0.0/8,192.168.0.0/16\n", ""},
		{"an alias", "grace: &d 5s\nrequest-timeout: *d\n", ""},
		{"no retention of the audit log", "retention-audit: 0\n", ""},
		{"a wrong retention of the audit log", "retention-audit: 1ms\n", "line 1: retention-audit: must be "},
		{"a misspelled name", "batch-size: 7\nretenton: 30d\n", `line 2: unknown setting "retenton" (did you mean retention?)`},
		{"the name of a variable", "ALLOW_HTTP: true\n", `line 1: unknown setting "ALLOW_HTTP" (did you mean `},
		{"a flag that is no setting", "demo: true\n", `line 1: unknown setting "demo" (did you mean data?)`},
		{"the flag config", "config: x\n", `line 1: unknown setting "config"`},
		{"a duplicate", "grace: 1s\ngrace: 2s\n", "line 2: grace is already set in line 1"},
		{"no value", "grace:\n", "line 1: grace: has no value"},
		{"not a bool", "allow-http: maybe\n", `line 1: allow-http: must be true or false, not "maybe"`},
		{"a list for a scalar", "grace: [1s, 2s]\n", "line 1: grace: must be one value, not a list"},
		{"a list of lists", "allow-destination: [[10.0.0.0/8]]\n", "line 1: allow-destination: must be a list of plain values"},
		{"a mapping", "grace: {a: b}\n", "line 1: grace: must be a value, not a mapping"},
		{"an invalid value", "\nbatch-size: 0\n", `line 2: batch-size: must be a whole number from 1 to 1000, not "0"`},
		{"an invalid value in a list", "\n\nallow-destination: [300.0.0.0/8]\n", "line 3: allow-destination: "},
		{"a list of the wrong length", "retry-schedule: [1s]\n", "line 1: retry-schedule: must be 4 waits"},
		{"a list", "- grace\n", "line 1: must be settings"},
		{"text", "grace\n", "line 1: must be settings"},
		{"two documents", "grace: 1s\n---\ngrace: 2s\n", "unexpected second YAML document"},
		{"invalid YAML", "grace: [1s\n", "is not valid YAML"},
		{"too large", strings.Repeat("#", maxConfigFile+1), "is not a configuration file"},
	}
	path := filepath.Join(t.TempDir(), "c.yml")
	for _, test := range tests {
		writeFile(t, path, test.text)
		status, _, stderr := call(t, "config", "validate", "--config", path)
		fails := test.want != ""
		if (status == exitUsage) != fails || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "settings are wrong") {
			t.Errorf("%s: got status %d, %q; want %q", test.name, status, stderr, test.want)
		}
	}
}

// validation is the outcome of config validate with some flags.
type validation struct {
	args []string
	want string // part of the error; "" for valid flags
}

// validateAll checks outcomes, and that no error contains a secret.
func validateAll(t *testing.T, secret string, all []validation) {
	t.Helper()
	for _, v := range all {
		status, _, stderr := call(t, append([]string{"config", "validate"}, v.args...)...)
		if (status == 0) != (v.want == "") || !strings.Contains(stderr, v.want) || strings.Contains(stderr, secret) {
			t.Errorf("%v: got status %d, %q; want %q", v.args, status, stderr, v.want)
		}
	}
}

// TestUnknownVariables checks that a misspelled variable is only a warning.
func TestUnknownVariables(t *testing.T) {
	t.Setenv("SERVICE_RATE_LMT", "5")
	t.Setenv("SERVICE_RATE_LIMIT", "6")
	t.Setenv("SERVICE_TOKEN", "x") // belongs to another command
	_, stderr := expect(t, exitDone, "config", "validate")
	want := "service: warning: unknown variable SERVICE_RATE_LMT (did you mean SERVICE_RATE_LIMIT?)\n"
	if !strings.Contains(stderr, want) || strings.Contains(stderr, "SERVICE_TOKEN") {
		t.Errorf("got %q, want %q", stderr, want)
	}
}

// showSettings returns the values and sources of the named settings from config show. It
// checks that no secret is printed.
func showSettings(t *testing.T, names []string, args ...string) string {
	t.Helper()
	stdout, _ := expect(t, exitDone, append([]string{"config", "show"}, args...)...)
	if strings.Contains(stdout, "hooks.example.com") {
		t.Errorf("config show prints a secret:\n%s", stdout)
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

// TestPrecedence checks the four sources of a setting, and of a secret with its file.
func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	hook := writeFile(t, filepath.Join(dir, "hook"), "https://hooks.example.com/from-the-file\n")
	other := writeFile(t, filepath.Join(dir, "other"), "https://hooks.example.com/another\n")
	file := writeFile(t, filepath.Join(dir, "c.yml"), "grace: 3s\nallow-http: true\nalert-url-file: "+hook+"\n")
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

	status, _, stderr := call(t, "config", "validate", "--alert-url", "https://hooks.example.com/", "--alert-url-file", other)
	if status != exitUsage || !strings.Contains(stderr, "--alert-url and --alert-url-file are mutually exclusive") {
		t.Errorf("both on the command line: got status %d, %q; want an error", status, stderr)
	}
	// The error about an invalid value names its source.
	t.Setenv("SERVICE_GRACE", "soon")
	t.Setenv("SERVICE_ALLOW_HTTP", "perhaps")
	status, _, stderr = call(t, "config", "validate")
	for _, want := range []string{
		"2 settings are wrong",
		`SERVICE_GRACE: must be a duration such as 90d, 12h, 30m or 10s, not "soon"`,
		`SERVICE_ALLOW_HTTP: must be true or false, not "perhaps"`,
	} {
		if status != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("got status %d, %q; want %q", status, stderr, want)
		}
	}
}

// TestSecretsHaveFiles checks that every flag for a secret has a second flag for a file that
// contains it, with a variable. Other users can see command lines.
func TestSecretsHaveFiles(t *testing.T) {
	secret := regexp.MustCompile(`(^|-)(token|secret|password|passphrase|credential|key)s?$`)
	found := 0
	for _, n := range commandTree(model(t), nil) {
		for _, f := range n.flags {
			if name, ok := strings.CutSuffix(f.Name, "-file"); ok && (secret.MatchString(name) || name == "alert-url") {
				found++
				if len(f.Envs) != 1 || !strings.HasPrefix(f.Envs[0], "SERVICE_") || !strings.HasSuffix(f.Envs[0], "_FILE") {
					t.Errorf("%s --%s has the variables %q, want SERVICE_…_FILE", n.path, f.Name, f.Envs)
				}
			}
			if secret.MatchString(f.Name) && !f.IsBool() && !isSecret(n.flags, f) {
				t.Errorf("%s --%s is a secret without --%[2]s-file", n.path, f.Name)
			}
		}
	}
	if found < 4 {
		t.Errorf("got %d flags for files of secrets, want at least 4: have they been renamed?", found)
	}
}
