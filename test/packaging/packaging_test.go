// Package packaging tests the release: the unit, the package and its scripts, and the third-party
// licenses.
package packaging

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"service/test/harness"
)

var wholeRelease = flag.Bool("release", false,
	"build the release for both architectures, twice, in place of packing a binary that is there")

// TestUnit checks the exposure level that systemd-analyze reports for the unit. The limit is 2.0.
func TestUnit(t *testing.T) {
	analyze := harness.Tool(t, "packages", "systemd-analyze")
	out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20",
		harness.Path("packaging/service-webhooks.service")).CombinedOutput()
	level := regexp.MustCompile(`Overall exposure level.*`).Find(out)
	if err != nil || level == nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
	t.Logf("%s", level)
	// Every directive must be known to systemd.
	unit := harness.Read(t, harness.Path("packaging/service-webhooks.service"))
	dir := t.TempDir()
	path := filepath.Join(dir, "service-webhooks.service")
	unit = regexp.MustCompile(`(?m)^ExecStart=\S+`).ReplaceAll(unit, []byte("ExecStart=/bin/true"))
	if err := os.WriteFile(path, unit, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err = exec.Command(analyze, "verify", "--man=no", path).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "service-webhooks.service") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil && len(out) == 0 {
		t.Errorf("systemd-analyze verify: %v", err)
	}
}

// releaseVersion is the version of the release that TestRelease builds.
const releaseVersion = "1.2.3~test"

// TestRelease builds a release twice, which must give the same bytes, and runs its binary.
func TestRelease(t *testing.T) {
	harness.Long(t)
	r := &release{t: t, dpkg: harness.Tool(t, "packages", "dpkg-deb"), dir: t.TempDir()}
	harness.Tool(t, "packages", "ar")
	arches, env := []string{runtime.GOARCH}, []string{"ARCHES=" + runtime.GOARCH}
	if *wholeRelease {
		arches, env = []string{"amd64", "arm64"}, nil
	} else {
		binary := filepath.Join(r.dir, "binary")
		build := exec.Command("go", "build", "-ldflags", "-s -w -X service/internal/cli.releaseVersion="+releaseVersion, "-o", binary, ".")
		build.Dir, build.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		env = append(env, "BINARY="+binary)
	}
	sums := r.pack("one", env)
	if again := r.pack("two", env); sums != again {
		t.Errorf("two releases of one source differ:\n%s\n%s", sums, again)
	}
	for line := range strings.Lines(sums) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if sumOf(harness.Read(t, filepath.Join(r.dir, "one", name))) != want {
			t.Errorf("%s has another sum", name)
		}
	}
	for _, arch := range arches {
		r.checkPackage(arch)
	}
	r.checkInstalled(runtime.GOARCH)
	r.checkImage(arches)
	if err := exec.Command(harness.Path("packaging/release"), "v1 2").Run(); err == nil {
		t.Error("a version with a blank was accepted")
	}
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// release is the output of two runs of packaging/release, in the folders one and two.
type release struct {
	t    *testing.T
	dpkg string
	dir  string
}

// pack builds the release and returns its checksums.
func (r *release) pack(folder string, env []string) string {
	r.t.Helper()
	cmd := exec.Command(harness.Path("packaging/release"), releaseVersion, filepath.Join(r.dir, folder))
	cmd.Env = append(append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000"), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("packaging/release: %v\n%s", err, &stderr)
	}
	return string(out)
}

// run runs a command and returns its combined output.
func (r *release) run(name string, args ...string) []byte {
	r.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

func (r *release) deb(arch string) string {
	return filepath.Join(r.dir, "one", "service-webhooks_"+releaseVersion+"_"+arch+".deb")
}

// checkPackage checks the fields and the files of a package.
func (r *release) checkPackage(arch string) {
	r.t.Helper()
	info := r.run(r.dpkg, "--info", r.deb(arch))
	for _, want := range []string{"Package: service-webhooks", "Version: " + releaseVersion, "Architecture: " + arch, "conffiles", "postinst",
		"prerm", "postrm"} {
		if !bytes.Contains(info, []byte(want)) {
			r.t.Errorf("the package does not have %q:\n%s", want, info)
		}
	}
	contents := r.run(r.dpkg, "--contents", r.deb(arch))
	for _, want := range []string{
		`-rwxr-xr-x 0/0 .* \./usr/bin/service-webhooks`, `-rw-r--r-- 0/0 .* \./etc/service-webhooks/config.yml`,
		`\./usr/lib/systemd/system/service-webhooks.service`,
		`\./usr/lib/sysusers.d/service-webhooks.conf`, `\./usr/share/man/man1/service-webhooks.1.gz`,
		`\./usr/share/doc/service-webhooks/THIRD_PARTY_LICENSES`,
		`\./usr/share/doc/service-webhooks/examples/litestream.yml`, `\./usr/share/doc/service-webhooks/operations.md`,
		`\./usr/share/doc/service-webhooks/metrics.md`,
		`\./usr/share/bash-completion/completions/service-webhooks`,
	} {
		if !regexp.MustCompile(want).Match(contents) {
			r.t.Errorf("the package does not contain %s:\n%s", want, contents)
		}
	}
}

// checkInstalled unpacks the package and the tarball, and runs their binaries.
func (r *release) checkInstalled(arch string) {
	t := r.t
	t.Helper()
	root := filepath.Join(r.dir, "root")
	r.run(r.dpkg, "--extract", r.deb(arch), root)
	tarball := "service-" + releaseVersion + "-linux-" + arch
	untar(t, filepath.Join(r.dir, "one", tarball+".tar.gz"), root)
	if _, err := os.Stat(filepath.Join(root, tarball, "docs", "operations.md")); err != nil {
		t.Errorf("the tarball does not say how it is run: %v", err)
	}
	installed := filepath.Join(root, "usr/bin/service-webhooks")
	for _, binary := range []string{installed, filepath.Join(root, tarball, "service")} {
		if out := r.run(binary, "--version"); !strings.HasPrefix(string(out), "service "+releaseVersion+" (") {
			t.Errorf("%s --version: %s", binary, out)
		}
	}
	config := filepath.Join(root, "etc/service-webhooks/config.yml")
	r.run(installed, "config", "validate", "--config", config)
	if !bytes.Contains(harness.Read(t, config), []byte("service-webhooks config validate")) {
		t.Error("the package's configuration names another command")
	}
	// Texts must use the name of the installed command.
	other := regexp.MustCompile(`.*\bservice (` + commandWords(t, r.run(installed, "man")) + `|--help)\b.*`)
	for _, words := range [][]string{{"doctor", "--data", filepath.Join(root, "none"), "--listen", "127.0.0.1:0"}, {"config", "example"},
		{"serve", "--help"}, {"sing"}, {"man"}} {
		out, _ := exec.Command(installed, words...).CombinedOutput()
		out = bytes.ReplaceAll(out, []byte(`\-`), []byte("-")) // as in man
		if line := other.Find(out); line != nil || !bytes.Contains(out, []byte("service-webhooks")) {
			t.Errorf("service-webhooks %s names another command: %s", words[0], line)
		}
	}
}

// commandWords returns the first words of all commands in a manual, as a regular
// expression.
func commandWords(t *testing.T, manual []byte) string {
	t.Helper()
	var words []string
	for _, m := range regexp.MustCompile(`(?m)^\.SS service\\-webhooks ([a-z]+)`).FindAllSubmatch(manual, -1) {
		words = append(words, string(m[1]))
	}
	words = slices.Compact(words)
	if len(words) < 15 {
		t.Fatalf("the manual has the commands %v", words)
	}
	return strings.Join(words, "|")
}

// TestPackageScripts runs the package's postinst with a fake systemctl that records its
// calls. A new installation starts nothing. An upgrade restarts a running service, and
// succeeds even if the restart fails.
func TestPackageScripts(t *testing.T) {
	for _, test := range []struct{ old, fails, calls, output string }{
		{"", "", "daemon-reload", "edit /etc/service-webhooks/config.yml"},
		{"1.0.0", "", "daemon-reload, try-restart service-webhooks.service", ""},
		{"1.0.0", "try-restart", "daemon-reload, try-restart service-webhooks.service", "the service failed to start"},
	} {
		dir := t.TempDir()
		script := harness.Read(t, harness.Path("packaging/deb/postinst"))
		script = bytes.ReplaceAll(script, []byte("/run/systemd/system"), []byte(dir))
		stub := "#!/bin/sh\necho \"$*\" >>" + filepath.Join(dir, "calls") + "\n[ \"$1\" != \"" + test.fails + "\" ]\n"
		for name, text := range map[string]string{"postinst": string(script), "systemctl": stub, "systemd-sysusers": "#!/bin/sh\n",
			"install": "#!/bin/sh\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", filepath.Join(dir, "postinst"), "configure", test.old)
		cmd.Env = []string{"PATH=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), test.output) {
			t.Errorf("from version %q: got %v, %s; want %q", test.old, err, out, test.output)
		}
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		if got := strings.Join(strings.Split(strings.TrimSpace(string(calls)), "\n"), ", "); err != nil || got != test.calls {
			t.Errorf("from version %q: got the systemctl calls %s, want %s", test.old, got, test.calls)
		}
	}
}

// untar unpacks a tarball of files and folders.
func untar(t *testing.T, name, to string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(to, h.Name)
		if h.FileInfo().IsDir() {
			err = os.MkdirAll(path, 0o755)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, b, h.FileInfo().Mode().Perm())
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// licensesFile contains the licenses of everything in the binary.
const licensesFile = "packaging/THIRD_PARTY_LICENSES"

var update = flag.Bool("update", false, "write "+licensesFile)

// TestThirdPartyLicenses checks that the list matches go.mod and the vendored scripts.
func TestThirdPartyLicenses(t *testing.T) {
	want := thirdPartyLicenses(t)
	if *update {
		if err := os.WriteFile(harness.Path(licensesFile), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := harness.Read(t, harness.Path(licensesFile))
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: go test ./test/packaging -run TestThirdPartyLicenses -update", licensesFile)
	}
}

// thirdPartyLicenses returns the licenses of every module with a package in the binary, for both
// drivers and all release platforms, and of Go itself and the vendored scripts.
func thirdPartyLicenses(t *testing.T) []byte {
	t.Helper()
	type module struct {
		Path, Version, Dir string
		Main               bool
	}
	modules := make(map[string]module)
	for _, env := range [][]string{{"CGO_ENABLED=1"}, {"CGO_ENABLED=0", "GOARCH=amd64"}, {"CGO_ENABLED=0", "GOARCH=arm64"}} {
		cmd := exec.Command("go", "list", "-deps", "-f",
			`{{with .Module}}{"Path":"{{.Path}}","Version":"{{.Version}}","Dir":"{{.Dir}}","Main":{{.Main}}}{{end}}`, ".")
		cmd.Dir = harness.Root()
		cmd.Env = append(append(os.Environ(), "GOOS=linux"), env...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var m module
			if err := d.Decode(&m); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			modules[m.Path] = m
		}
	}
	var all []module
	for _, m := range modules {
		if !m.Main && !strings.HasPrefix(m.Dir, harness.Root()+string(filepath.Separator)) {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b module) int { return cmp.Compare(a.Path, b.Path) })
	var b bytes.Buffer
	b.WriteString("The binary holds these works of others. The service itself is under the license in LICENSE.\n" +
		"SQLite, which the drivers bring along, is in the public domain.\n")
	section := func(title string, texts ...[]byte) {
		fmt.Fprintf(&b, "\n%s\n%s\n%s\n", strings.Repeat("=", 80), title, strings.Repeat("=", 80))
		for _, text := range texts {
			text = bytes.TrimSpace(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")))
			fmt.Fprintf(&b, "\n%s\n", text)
		}
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	goLicense, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(goroot)), "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	section("Go, its standard library and runtime", goLicense)
	for _, m := range all {
		texts := licensesIn(t, m.Dir)
		if len(texts) == 0 {
			t.Errorf("%s has no file with its license", m.Path)
		}
		section(m.Path+" "+m.Version, texts...)
	}
	section("htmx, and its SSE extension", harness.Read(t, harness.Path("assets/vendor/htmx-LICENSE.txt")))
	return b.Bytes()
}

// licensesIn returns the licenses and notices in the root of a module.
func licensesIn(t *testing.T, dir string) (texts [][]byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([-.].*)?$`)
	for _, e := range entries {
		if e.Type()&fs.ModeType != 0 || !name.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return texts
}
