package browser

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// The versions of the tools that drive the journeys. Chromium must be installed.
const (
	playwright = "playwright-core@1.65.1"
	axe        = "axe-core@4.14.1"
)

// journeysDir holds the journeys, and lib.mjs, which they import.
const journeysDir = "testdata/journeys"

// TestBrowser runs the journeys of testdata/journeys: each is a file that drives
// a browser over the admin UI of the built binary. Its first line has the flags
// of serve that it needs, and its second may ask for a second run:
//
//	// serve --demo
//	// and without JavaScript
//
// lib.mjs there describes what a journey is given. The service is a new one for
// each journey, and its API and pages are on one address, with a certificate of
// its own CA.
//
// It needs node, npm, Chromium, and the network once (requirement browser).
func TestBrowser(t *testing.T) {
	harness.Long(t)
	dir := t.TempDir()
	j := &journeys{dir: dir, tools: browserTools(t, dir), binary: harness.Build(t)}
	if err := os.CopyFS(dir, os.DirFS(journeysDir)); err != nil {
		t.Fatal(err)
	}
	routes, err := json.Marshal(webRoutes(t))
	if err != nil {
		t.Fatal(err)
	}
	j.routes = string(routes)
	files, err := filepath.Glob(journeysDir + "/*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".mjs")
		if name == "lib" {
			continue
		}
		lines := strings.SplitN(string(harness.Read(t, file)), "\n", 3)
		flags, ok := strings.CutPrefix(lines[0], "// serve")
		if !ok {
			t.Fatalf("%s: the first line is %q, want // serve and its flags", file, lines[0])
		}
		t.Run(name, func(t *testing.T) { j.run(t, name, "on", strings.Fields(flags)) })
		if len(lines) > 1 && lines[1] == "// and without JavaScript" {
			t.Run(name+" without JavaScript", func(t *testing.T) { j.run(t, name, "off", strings.Fields(flags)) })
		}
	}
}

// journeys is what every journey is run with.
type journeys struct {
	dir    string // with the journeys and their modules
	tools  browserPrograms
	binary string
	routes string // JSON
}

// journeyTime is how long a journey may take. It waits for conditions, each of
// which may take as long as [harness.Timeout], so this ends only what hangs.
func journeyTime() time.Duration { return harness.Scale(8 * time.Minute) }

// run runs one journey, with or without JavaScript: on or off.
func (j *journeys) run(t *testing.T, name, script string, flags []string) {
	t.Parallel() // journeys mostly wait, and share nothing
	s := serveForBrowser(t, j.binary, flags...)
	ctx, cancel := context.WithTimeout(t.Context(), journeyTime())
	defer cancel()
	cmd := exec.CommandContext(ctx, j.tools.node, name+".mjs")
	cmd.Dir = j.dir
	patience := journeyTime() - 20*time.Second // it says where it hangs before it is killed
	cmd.Env = append(os.Environ(), "CHROMIUM="+j.tools.chromium, "LINK="+s.link, "DATA="+s.data, "SERVICE="+j.binary, "SCRIPT="+script,
		"CONTROL="+s.control(), "ROUTES="+j.routes, "GALLERY="+harness.Path("web/ui/testdata/gallery.html"),
		milliseconds("TIMEOUT", harness.Timeout()), milliseconds("PATIENCE", patience))
	if s.data != "" {
		cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS="+filepath.Join(s.data, "ca.pem"))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if len(out) > 0 {
		t.Logf("%s", out)
	}
}

// milliseconds renders an environment variable for a journey.
func milliseconds(name string, d time.Duration) string {
	return fmt.Sprintf("%s=%d", name, d.Milliseconds())
}

var (
	pictures      = flag.String("pictures", "", "the folder that TestPictures puts pictures of all pages into, relative to the repository")
	picturesAfter = flag.Duration("pictures.after", 5*time.Minute, "how long TestPictures lets the service live before it takes them")
	picturesSizes = flag.String("pictures.sizes", "1280", "the widths of the pictures, in pixels")
	picturesOnly  = flag.String("pictures.only", "", "the names of the pictures that are taken, all if none is given")
	picturesWhole = flag.Bool("pictures.whole", false, "show pages whole, and not what a screen shows of them")
)

// TestPictures is no test: it takes the pictures of docs/screenshots.
//
//	go test ./test/browser -run Pictures -timeout 30m -pictures docs/screenshots
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("no pictures were asked for")
	}
	folder := *pictures
	if !filepath.IsAbs(folder) {
		folder = harness.Path(folder)
	}
	dir := t.TempDir()
	binary := harness.Build(t)
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	tools := browserTools(t, dir)
	flags, _, _ := strings.Cut(string(harness.Read(t, "testdata/pictures/pictures.mjs")), "\n")
	data, err := os.MkdirTemp("", "service-") // its name is seen on the pages
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	s := serveForBrowser(t, binary, append(strings.Fields(strings.TrimPrefix(flags, "// serve")), "--data", data)...)
	cmd := exec.CommandContext(t.Context(), tools.node, "pictures/pictures.mjs")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CHROMIUM="+tools.chromium, "LINK="+s.link, "DATA="+s.data, "SERVICE="+binary, "SCRIPT=on",
		milliseconds("PATIENCE", *picturesAfter+10*time.Minute), milliseconds("TIMEOUT", harness.Timeout()),
		"NODE_EXTRA_CA_CERTS="+filepath.Join(s.data, "ca.pem"), "SCREENSHOTS="+folder,
		fmt.Sprintf("FOR=%.0f", picturesAfter.Seconds()), "SIZES="+*picturesSizes, "ONLY="+*picturesOnly)
	if *picturesWhole {
		cmd.Env = append(cmd.Env, "WHOLE=yes")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if len(out) > 0 {
		t.Logf("%s", out)
	}
}

// webRoute is a line of the table of pages.
type webRoute struct {
	Path string `json:"path"` // as net/http.ServeMux takes it
	Get  bool   `json:"get"`
	Post bool   `json:"post"`
}

// webRoutes reads the table of pages from its source: the tour, which goes to
// all of them, is to fail for one that it does not know.
func webRoutes(t *testing.T) []webRoute {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), harness.Path("web/web.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []webRoute
	for n := range ast.Preorder(parsed) {
		row, ok := n.(*ast.CompositeLit)
		if !ok || row.Type != nil || len(row.Elts) != 4 {
			continue
		}
		path, isText := row.Elts[0].(*ast.BasicLit)
		by, isBy := row.Elts[3].(*ast.CompositeLit)
		if !isText || !isBy || types.ExprString(by.Type) != "by" {
			continue
		}
		r := webRoute{}
		if r.Path, err = strconv.Unquote(path.Value); err != nil {
			t.Fatal(err)
		}
		for _, e := range by.Elts {
			switch key := types.ExprString(e.(*ast.KeyValueExpr).Key); key {
			case "get":
				r.Get = true
			case "post":
				r.Post = true
			default:
				t.Fatalf("web/web.go: %s is answered by %s, which this test does not know", r.Path, key)
			}
		}
		all = append(all, r)
	}
	if len(all) < 40 {
		t.Fatalf("web/web.go: a table of %d pages was found, want all of them", len(all))
	}
	return all
}

// browserPrograms are what a journey is run with.
type browserPrograms struct{ node, chromium string }

// browserTools finds node and Chromium, and fetches the rest into a folder.
func browserTools(t *testing.T, dir string) browserPrograms {
	t.Helper()
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
			harness.Unavailable(t, "browser", "there is no "+tool.names[0])
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(npm, "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", playwright, axe)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		harness.Unavailable(t, "browser", fmt.Sprintf("npm install: %v\n%s", err, out))
	}
	return found
}

// browsed is a service that a browser looks at.
type browsed struct {
	t      *testing.T
	binary string
	flags  []string
	link   string // signs one browser in, once; without the demo it makes the first admin
	data   string // its data directory, which the demo chooses itself: "" then

	listen string // the address it is on, from its first start to the end of the test
	cmd    *exec.Cmd
	errs   *bytes.Buffer
	read   chan struct{} // closed when all that it prints was read
}

// serveForBrowser runs a service until the test ends.
func serveForBrowser(t *testing.T, binary string, flags ...string) *browsed {
	t.Helper()
	s := &browsed{t: t, binary: binary, flags: flags, listen: "127.0.0.1:0"}
	if i := slices.Index(flags, "--data"); i >= 0 {
		s.data = flags[i+1]
	} else if !slices.Contains(flags, "--demo") {
		s.data = filepath.Join(t.TempDir(), "data")
		s.flags = append([]string{"--data", s.data}, flags...)
	}
	at, err := s.start()
	if err != nil {
		t.Fatal(err)
	}
	s.link = at.String()
	s.listen = at.Host
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// start runs the service, and returns the URL of the pages that it prints.
func (s *browsed) start() (*url.URL, error) {
	cmd := exec.Command(s.binary, append([]string{"serve", "--listen", s.listen, "--grace", "1s"}, s.flags...)...)
	errs := new(bytes.Buffer)
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.cmd, s.errs, s.read = cmd, errs, make(chan struct{})
	found := ""
	pages := regexp.MustCompile(`https?://\S+/(?:(?:sign-in|setup)/\S+)?$`)
	lines := bufio.NewScanner(out)
	// The demo prints its link first, and last, when there is something to look at.
	times := 1
	if slices.Contains(s.flags, "--demo") {
		times = 2
	}
	for times > 0 && lines.Scan() {
		if link := pages.FindString(lines.Text()); link != "" {
			found, times = link, times-1
		}
	}
	go func() {
		defer close(s.read)
		io.Copy(io.Discard, out) // what the demo prints goes on
	}()
	if found == "" {
		return nil, errors.Join(errors.New("serve printed no address of the pages"), s.stop())
	}
	return url.Parse(found)
}

// stop ends the service.
func (s *browsed) stop() error {
	if s.cmd == nil {
		return nil
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.read
	err := s.cmd.Wait()
	s.cmd = nil
	if s.t.Failed() {
		s.t.Logf("the service said:\n%s", s.errs)
	}
	if err != nil {
		return fmt.Errorf("the service ended with %w\n%s", err, s.errs)
	}
	return nil
}

// control is the URL of a helper: a journey restarts its service by POST to
// /restart. aged=12h moves the times of all sessions 12 hours back, because the
// binary only reads the machine's clock. table=NAME drops that table, so requests
// that need it fail.
func (s *browsed) control() string {
	if s.data == "" {
		return ""
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /restart", func(w http.ResponseWriter, r *http.Request) {
		aged, err := time.ParseDuration(cmp.Or(r.FormValue("aged"), "0s"))
		if err == nil {
			err = s.stop()
		}
		if err == nil && aged > 0 {
			err = changeStopped(s.data, "UPDATE sessions SET created_at = created_at - ?1, seen_at = seen_at - ?1, expires_at = expires_at - ?1",
				aged.Milliseconds())
		}
		if table := r.FormValue("table"); err == nil && table != "" {
			err = changeStopped(s.data, `ALTER TABLE "`+table+`" RENAME TO "`+table+`_away"`)
		}
		if err == nil {
			_, err = s.start()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	server := httptest.NewServer(mux)
	s.t.Cleanup(server.Close)
	return server.URL
}

// changeStopped changes the database of a data directory that no process has open.
func changeStopped(data, statement string, args ...any) (err error) {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(data, "service.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.Exec(statement, args...)
	return err
}
