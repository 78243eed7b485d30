package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What the journeys are driven with, beside a Chromium that is installed.
const (
	playwright = "playwright-core@1.65.1"
	axe        = "axe-core@4.14.1"
)

// TestBrowser goes the journeys of testdata/browser: each is a file that drives
// a browser over the admin UI of the built binary. Its first line has the flags
// of the serve that it wants:
//
//	// serve --demo
//
// and lib.mjs there says what it is given. The service is new for each journey,
// and its API and pages are on one address, with a certificate of its own.
//
// It needs node, npm, Chromium, and the network once. Where these are not it is
// skipped, or fails if SERVICE_TEST_REQUIRE has browser among its words.
func TestBrowser(t *testing.T) {
	dir := t.TempDir()
	tools := browserTools(t, dir)
	files, err := filepath.Glob("testdata/browser/*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), source, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary := buildBinary(t)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".mjs")
		if name == "lib" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			line, _, _ := strings.Cut(string(source), "\n")
			flags, ok := strings.CutPrefix(line, "// serve")
			if !ok {
				t.Fatalf("%s: the first line is %q, want // serve and its flags", file, line)
			}
			s := serveForBrowser(t, binary, strings.Fields(flags)...)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, tools.node, name+".mjs")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "CHROMIUM="+tools.chromium, "LINK="+s.link, "DATA="+s.data, "SERVICE="+binary, "GALLERY="+absolute(t, "web/testdata/gallery.html"))
			if s.data != "" {
				cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS="+filepath.Join(s.data, "ca.pem"))
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			} else {
				t.Logf("%s", out)
			}
		})
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// browserPrograms are what a journey is run with.
type browserPrograms struct{ node, chromium string }

// browserTools finds node and Chromium, and fetches the rest into a folder.
func browserTools(t *testing.T, dir string) browserPrograms {
	t.Helper()
	missing := func(why string) {
		t.Helper()
		if required("browser") {
			t.Fatalf("browsers are required, and there is none: %s", why)
		}
		t.Skipf("THE PAGES ARE NOT TESTED IN A BROWSER: %s", why)
	}
	var found browserPrograms
	var npm string
	for _, tool := range []struct {
		path  *string
		names []string
	}{{&found.node, []string{"node"}}, {&npm, []string{"npm"}}, {&found.chromium, []string{"chromium", "chromium-browser", "google-chrome"}}} {
		i := slices.IndexFunc(tool.names, func(name string) bool {
			path, err := exec.LookPath(name)
			*tool.path = path
			return err == nil
		})
		if i < 0 {
			missing("there is no " + tool.names[0])
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(npm, "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", playwright, axe)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		missing("npm install: " + err.Error() + "\n" + string(out))
	}
	return found
}

// browsed is a service that a browser looks at.
type browsed struct {
	link string // signs one browser in, once; without the demo it makes the first admin
	data string // its data directory, which the demo chooses itself: "" then
}

// serveForBrowser runs a service until the test ends.
func serveForBrowser(t *testing.T, binary string, flags ...string) browsed {
	t.Helper()
	var s browsed
	args := []string{"serve", "--listen", "127.0.0.1:0", "--grace", "1s"}
	if slices.Contains(flags, "--demo") {
		args = append(args, flags...)
	} else {
		s.data = filepath.Join(t.TempDir(), "data")
		args = append(append(args, "--data", s.data), flags...)
	}
	cmd := exec.Command(binary, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-read
		err := cmd.Wait()
		if err != nil {
			t.Errorf("the service ended with %v", err)
		}
		if t.Failed() {
			t.Logf("the service said:\n%s", &errs)
		}
	})
	link := regexp.MustCompile(`https?://\S+/(?:sign-in|setup)/\S+`)
	lines := bufio.NewScanner(out)
	for s.link == "" && lines.Scan() {
		s.link = link.FindString(lines.Text())
	}
	go func() {
		defer close(read)
		io.Copy(io.Discard, out) // what the demo prints goes on
	}()
	if s.link == "" {
		t.Fatal("serve printed no link to sign in with")
	}
	return s
}
