package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlaces checks that one rule finds both configuration files: the file of the flag, otherwise
// the file in the configuration directory if it exists.
func TestPlaces(t *testing.T) {
	p := places{config: t.TempDir()}
	for _, base := range []string{configFile, replicaFile} {
		path := filepath.Join(p.config, base)
		check := func(flag, want string, wantFound bool) {
			t.Helper()
			if got, found := p.find(flag, base); got != want || found != wantFound {
				t.Errorf("%s with the flag %q: got %q, %t; want %q, %t", base, flag, got, found, want, wantFound)
			}
		}
		check("", "", false)
		writeFile(t, path, "")
		check("", path, true)
		check("other.yml", "other.yml", false)
		check(noFile, "", false)
	}
	if got := placesOf(usualName); got != (places{"./data", "."}) {
		t.Errorf("%s: got %v", usualName, got)
	}
	if got := placesOf(packagedName); got != (places{"/var/lib/service-webhooks", "/etc/service-webhooks"}) {
		t.Errorf("%s: got %v", packagedName, got)
	}
}

// TestConfigFound checks the configuration in the working directory: it applies without a flag,
// --config off ignores it, an error says so, and the demo does not read it.
func TestConfigFound(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, configFile, "data: elsewhere\nretention: 20d\n")
	if got := showSettings(t, []string{"retention"}); !strings.Contains(got, "20d config.yml line 2") {
		t.Errorf("got %q", got)
	}
	if got := showSettings(t, []string{"retention"}, "--config", "off"); !strings.Contains(got, "30d default") {
		t.Errorf("--config off: got %q", got)
	}
	if _, stderr := expect(t, exitFailed, "token", "list"); !strings.Contains(stderr, "no data in elsewhere") {
		t.Errorf("another command: got %q", stderr)
	}
	writeFile(t, configFile, "title: of another program\n")
	_, stderr := expect(t, exitUsage, "token", "list")
	if want := `unknown setting "title"`; !strings.Contains(stderr, want) || !strings.Contains(stderr, "; --config off ignores config.yml (see") {
		t.Errorf("a file of another program: got %q", stderr)
	}
	if _, stderr := expect(t, exitUsage, "serve", "--demo", "--listen", "x"); strings.Contains(stderr, configFile) {
		t.Errorf("the demo: got %q", stderr)
	}
}

// TestEnvironmentFile checks that commands read the package's environment file, with quotes and
// escapes as in systemd, and that existing variables take precedence.
func TestEnvironmentFile(t *testing.T) {
	p := places{config: t.TempDir()}
	writeFile(t, filepath.Join(p.config, environmentFile), `# credentials
; of the replica
PLACES_PLAIN=a b#c=d
 PLACES_SPACES = x
PLACES_SINGLE='a "b\c'
PLACES_DOUBLE="a 'b' \"c\" \d $e"
PLACES_ESCAPED=a\"b\\c
PLACES_EMPTY=
PLACES_SET=file
no assignment
=x
`)
	want := map[string]string{
		"PLACES_PLAIN": "a b#c=d", "PLACES_SPACES": "x", "PLACES_SINGLE": `a "b\c`, "PLACES_DOUBLE": `a 'b' "c" \d $e`,
		"PLACES_ESCAPED": `a"b\c`, "PLACES_EMPTY": "", "PLACES_SET": "environment",
	}
	for name := range want {
		t.Setenv(name, "") // restores it
		os.Unsetenv(name)
	}
	t.Setenv("PLACES_SET", "environment")
	p.loadEnvironment()
	for name, value := range want {
		if got, ok := os.LookupEnv(name); !ok || got != value {
			t.Errorf("%s: got %q, %t; want %q", name, got, ok, value)
		}
	}
}
