package main

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

	"go.yaml.in/yaml/v3"
)

var wholeRelease = flag.Bool("release", false, "build the release for both architectures, twice, in place of packing a binary that is there")

// TestUnit asks systemd what the unit exposes. 2.0 is the most that is allowed.
func TestUnit(t *testing.T) {
	analyze := tool(t, "packages", "systemd-analyze")
	out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", "packaging/service-webhooks.service").CombinedOutput()
	level := regexp.MustCompile(`Overall exposure level.*`).Find(out)
	if err != nil || level == nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
	t.Logf("%s", level)
	// Its words must be systemd's own.
	unit, err := os.ReadFile("packaging/service-webhooks.service")
	if err != nil {
		t.Fatal(err)
	}
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

// TestUnitAndImage holds the unit, the image and the example of compose against
// the command line: their commands are known, and what they set is a setting.
func TestUnitAndImage(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var c cli
	parser, err := newParser(t.Context(), &c, streams{err: io.Discard, out: io.Discard}, new(configuration), new(bool))
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, f := range fileFlags(parser.Model.Node) {
		known = append(known, f.Envs...)
	}
	known = append(known, "SERVICE_CONFIG")
	unit, image, compose := read("packaging/service-webhooks.service"), read("packaging/Dockerfile"), read("packaging/compose.yml")
	for name, text := range map[string]string{"unit": unit, "image": image, "compose": compose} {
		for _, variable := range regexp.MustCompile(`SERVICE_[A-Z_]+`).FindAllString(text, -1) {
			if !slices.Contains(known, variable) && variable != "SERVICE_" {
				t.Errorf("%s: %s sets nothing", name, variable)
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
			t.Errorf("operations has the binary put to %s, and the unit runs %s", to[1], run)
		}
	}
	if len(installed) < 2 {
		t.Error("operations does not say where the binary goes")
	}
	for _, want := range []string{"FROM scratch", "CGO_ENABLED=0", "ca-certificates.crt", "USER 65532", "mkdir -m 0700 /out/root/data", "--chown=65532:65532 /out/root /\n"} {
		if !strings.Contains(image, want) {
			t.Errorf("the image has no %s", want)
		}
	}
	var services struct {
		Services map[string]any `yaml:"services"`
		Volumes  map[string]any `yaml:"volumes"`
	}
	if err := yaml.Unmarshal([]byte(compose), &services); err != nil || len(services.Services) != 1 || len(services.Volumes) != 1 {
		t.Errorf("compose: %v, %v", services, err)
	}
}

func jsonWords(t *testing.T, s string) (words []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(s), &words); err != nil {
		t.Fatal(err)
	}
	return words
}

// TestRelease packs a release twice, which must give the same bytes, and runs
// the binary that is in it.
func TestRelease(t *testing.T) {
	dpkg := tool(t, "packages", "dpkg-deb")
	tool(t, "packages", "ar")
	dir := t.TempDir()
	arches, env := []string{runtime.GOARCH}, []string{"ARCHES=" + runtime.GOARCH}
	version := "1.2.3~test"
	if *wholeRelease {
		arches, env = []string{"amd64", "arm64"}, nil
	} else {
		binary := filepath.Join(dir, "binary")
		build := exec.Command("go", "build", "-ldflags", "-s -w -X main.releaseVersion="+version, "-o", binary, ".")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		env = append(env, "BINARY="+binary)
	}
	var sums []string
	for _, round := range []string{"one", "two"} {
		cmd := exec.Command("packaging/release", version, filepath.Join(dir, round))
		cmd.Env = append(append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000"), env...)
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("packaging/release: %v\n%s", err, &complaints)
		}
		sums = append(sums, string(out))
	}
	if sums[0] != sums[1] {
		t.Errorf("two releases of one source differ:\n%s\n%s", sums[0], sums[1])
	}
	for line := range strings.Lines(sums[0]) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b, err := os.ReadFile(filepath.Join(dir, "one", name))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has another sum", name)
		}
	}
	for _, arch := range arches {
		deb := filepath.Join(dir, "one", "service-webhooks_"+version+"_"+arch+".deb")
		info, err := exec.Command(dpkg, "--info", deb).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg-deb --info: %v\n%s", err, info)
		}
		for _, want := range []string{"Package: service-webhooks", "Version: " + version, "Architecture: " + arch, "conffiles", "postinst", "prerm", "postrm"} {
			if !strings.Contains(string(info), want) {
				t.Errorf("the package does not say %q:\n%s", want, info)
			}
		}
		contents, err := exec.Command(dpkg, "--contents", deb).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg-deb --contents: %v\n%s", err, contents)
		}
		for _, want := range []string{
			`-rwxr-xr-x 0/0 .* \./usr/bin/service-webhooks`, `-rw-r--r-- 0/0 .* \./etc/service-webhooks/config.yml`, `\./usr/lib/systemd/system/service-webhooks.service`,
			`\./usr/lib/sysusers.d/service-webhooks.conf`, `\./usr/share/man/man1/service-webhooks.1.gz`, `\./usr/share/doc/service-webhooks/THIRD_PARTY_LICENSES`,
			`\./usr/share/doc/service-webhooks/examples/litestream.yml`, `\./usr/share/doc/service-webhooks/operations.md`, `\./usr/share/doc/service-webhooks/metrics.md`,
			`\./usr/share/bash-completion/completions/service-webhooks`,
		} {
			if !regexp.MustCompile(want).Match(contents) {
				t.Errorf("the package does not hold %s:\n%s", want, contents)
			}
		}
		if arch != runtime.GOARCH {
			continue
		}
		root := filepath.Join(dir, "root")
		if out, err := exec.Command(dpkg, "--extract", deb, root).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb --extract: %v\n%s", err, out)
		}
		untar(t, filepath.Join(dir, "one", "service-"+version+"-linux-"+arch+".tar.gz"), root)
		if _, err := os.Stat(filepath.Join(root, "service-"+version+"-linux-"+arch, "docs", "operations.md")); err != nil {
			t.Errorf("the tarball does not say how it is run: %v", err)
		}
		for _, binary := range []string{"usr/bin/service-webhooks", "service-" + version + "-linux-" + arch + "/service"} {
			out, err := exec.Command(filepath.Join(root, binary), "--version").CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "service "+version+" (") {
				t.Errorf("%s --version: %s, %v", binary, out, err)
			}
		}
		check := exec.Command(filepath.Join(root, "usr/bin/service-webhooks"), "config", "validate", "--config", filepath.Join(root, "etc/service-webhooks/config.yml"))
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("the package's configuration: %s", out)
		}
		// What it says to type is what can be typed where it is installed.
		for _, words := range [][]string{{"doctor", "--data", filepath.Join(root, "none"), "--listen", "127.0.0.1:0"}, {"config", "example"}, {"serve", "--help"}, {"sing"}, {"man"}} {
			out, _ := exec.Command(filepath.Join(root, "usr/bin/service-webhooks"), words...).CombinedOutput()
			out = bytes.ReplaceAll(out, []byte(`\-`), []byte("-")) // of man
			if line := regexp.MustCompile(`.*\bservice (` + commandWords + `|--help)\b.*`).Find(out); line != nil || !bytes.Contains(out, []byte("service-webhooks")) {
				t.Errorf("service-webhooks %s speaks of another command: %s", words[0], line)
			}
		}
		text, err := os.ReadFile(filepath.Join(root, "etc/service-webhooks/config.yml"))
		if err != nil || !bytes.Contains(text, []byte("service-webhooks config validate")) {
			t.Errorf("the package's configuration speaks of another command: %v", err)
		}
	}
	if err := exec.Command("packaging/release", "v1 2").Run(); err == nil {
		t.Error("a version with a blank was taken")
	}
}

// TestPackageScripts runs what the package does at its installation, with a
// systemd that only writes down what it is asked: the first one starts nothing,
// an upgrade restarts what runs, and is whole even when that fails.
func TestPackageScripts(t *testing.T) {
	for _, test := range []struct{ old, fails, asked, says string }{
		{"", "", "daemon-reload", "look at /etc/service-webhooks/config.yml"},
		{"1.0.0", "", "daemon-reload, try-restart service-webhooks.service", ""},
		{"1.0.0", "try-restart", "daemon-reload, try-restart service-webhooks.service", "it does not start"},
	} {
		dir := t.TempDir()
		script, err := os.ReadFile("packaging/deb/postinst")
		if err != nil {
			t.Fatal(err)
		}
		script = bytes.ReplaceAll(script, []byte("/run/systemd/system"), []byte(dir))
		stub := "#!/bin/sh\necho \"$*\" >>" + filepath.Join(dir, "asked") + "\n[ \"$1\" != \"" + test.fails + "\" ]\n"
		for name, text := range map[string]string{"postinst": string(script), "systemctl": stub, "systemd-sysusers": "#!/bin/sh\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", filepath.Join(dir, "postinst"), "configure", test.old)
		cmd.Env = []string{"PATH=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), test.says) {
			t.Errorf("from version %q: %v: %s", test.old, err, out)
		}
		asked, err := os.ReadFile(filepath.Join(dir, "asked"))
		if got := strings.Join(strings.Split(strings.TrimSpace(string(asked)), "\n"), ", "); err != nil || got != test.asked {
			t.Errorf("from version %q systemd is asked to %s, want %s", test.old, got, test.asked)
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

// licensesFile is the text of the licences of all that is in the binary.
const licensesFile = "packaging/THIRD_PARTY_LICENSES"

// TestThirdPartyLicenses keeps the list as go.mod and the vendored scripts are.
func TestThirdPartyLicenses(t *testing.T) {
	want := thirdPartyLicenses(t)
	if *updateGenerated {
		if err := os.WriteFile(licensesFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(licensesFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: go test -run TestThirdPartyLicenses -update-generated .", licensesFile)
	}
}

// thirdPartyLicenses returns the licences of every module of which a package is
// in the binary, with either driver and for any platform that is released, of Go
// itself, and of the vendored scripts.
func thirdPartyLicenses(t *testing.T) []byte {
	t.Helper()
	type module struct {
		Path, Version, Dir string
		Main               bool
	}
	modules := make(map[string]module)
	for _, env := range [][]string{{"CGO_ENABLED=1"}, {"CGO_ENABLED=0", "GOARCH=amd64"}, {"CGO_ENABLED=0", "GOARCH=arm64"}} {
		cmd := exec.Command("go", "list", "-deps", "-f", `{{with .Module}}{"Path":"{{.Path}}","Version":"{{.Version}}","Dir":"{{.Dir}}","Main":{{.Main}}}{{end}}`, ".")
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
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var all []module
	for _, m := range modules {
		if !m.Main && !strings.HasPrefix(m.Dir, here+string(filepath.Separator)) {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b module) int { return cmp.Compare(a.Path, b.Path) })
	var b bytes.Buffer
	b.WriteString("The binary holds these works of others. The service itself is under the licence in LICENSE.\n" +
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
			t.Errorf("%s has no file with its licence", m.Path)
		}
		section(m.Path+" "+m.Version, texts...)
	}
	htmx, err := os.ReadFile("assets/vendor/htmx-LICENSE.txt")
	if err != nil {
		t.Fatal(err)
	}
	section("htmx, and its SSE extension", htmx)
	return b.Bytes()
}

// licensesIn returns the licences and notices at the top of a module.
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
