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

// Versions of the npm packages that the journeys import. Chromium and Firefox must be installed.
// Firefox uses an older Playwright: newer versions call a command that no stable Firefox supports
// yet.
const (
	playwright        = "playwright-core@1.65.1"
	playwrightFirefox = "playwright-firefox@npm:playwright-core@1.61.1"
	axe               = "axe-core@4.14.1"
)

// journeysDir contains the journeys and lib.mjs, which they import.
const journeysDir = "testdata/journeys"

// TestBrowser runs the journeys of testdata/journeys. A journey is a file that drives a
// browser through the admin UI of the built binary. Its first line has the flags of serve
// that it needs; the lines after it can request further runs:
//
//	// serve --demo
//	// and without JavaScript
//	// and in Firefox
//
// $PROVIDER in the flags is the issuer of an OpenID Connect provider that runs for the journey.
// lib.mjs describes the helpers of a journey. Each journey has its own service, with API and pages
// on one address and a certificate of its own CA.
//
// TestBrowser needs node, npm, Chromium, and the network once (requirement browser), and Firefox
// for its Firefox runs (requirement firefox). With -short it runs one short journey.
func TestBrowser(t *testing.T) {
	harness.Drill(t, 1, 1)
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
	wanted := "*"
	if testing.Short() {
		wanted = "glance"
	}
	files, err := filepath.Glob(journeysDir + "/" + wanted + ".mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".mjs")
		if name == "lib" {
			continue
		}
		lines := strings.Split(string(harness.Read(t, file)), "\n")
		flags, ok := strings.CutPrefix(lines[0], "// serve")
		if !ok {
			t.Fatalf("%s: the first line is %q, want // serve and its flags", file, lines[0])
		}
		t.Run(name, func(t *testing.T) { j.run(t, name, strings.Fields(flags)) })
		for _, line := range lines[1:] {
			switch line {
			case "// and without JavaScript":
				t.Run(name+" without JavaScript", func(t *testing.T) { j.run(t, name, strings.Fields(flags), "SCRIPT=off") })
			case "// and in Firefox":
				t.Run(name+" in Firefox", func(t *testing.T) {
					j.run(t, name, strings.Fields(flags), "FIREFOX="+harness.Tool(t, "firefox", "firefox-esr"))
				})
			}
		}
	}
}

// journeys is the environment that all journeys share.
type journeys struct {
	dir    string // the journeys and their node_modules
	tools  browserPrograms
	binary string
	routes string // JSON
}

// patience returns how long a journey may take: until shortly before the time limit of go test
// (-timeout), so that a hanging journey prints its pages. There is no shorter limit: the journey
// waits up to [harness.Timeout] for each condition, and a busy machine takes long for all of them.
func patience(t *testing.T) time.Duration {
	deadline, ok := t.Deadline()
	if !ok {
		return 24 * time.Hour
	}
	return time.Until(deadline) - 40*time.Second
}

// run runs one journey with a service that has these flags. env contains the variables of this run:
// SCRIPT=off for no JavaScript, FIREFOX for the path of Firefox.
func (j *journeys) run(t *testing.T, name string, flags []string, env ...string) {
	t.Parallel() // journeys mostly wait, and share no state
	issuer := ""
	if i := slices.Index(flags, "$PROVIDER"); i >= 0 {
		issuer = harness.StartProvider(t).Issuer
		flags = slices.Replace(slices.Clone(flags), i, i+1, issuer)
	}
	s := serveForBrowser(t, j.binary, flags...)
	ctx, cancel := context.WithTimeout(t.Context(), patience(t)+20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, j.tools.node, name+".mjs")
	cmd.Dir = j.dir
	cmd.Env = append(os.Environ(), "CHROMIUM="+j.tools.chromium, "LINK="+s.link, "DATA="+s.data, "SERVICE="+j.binary,
		"CONTROL="+s.control(), "PROVIDER="+issuer, "ROUTES="+j.routes, "GALLERY="+harness.Path("web/ui/testdata/gallery.html"),
		milliseconds("TIMEOUT", harness.Timeout()), milliseconds("PATIENCE", patience(t)))
	cmd.Env = append(cmd.Env, env...)
	if s.data != "" {
		cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS="+filepath.Join(s.data, "ca.pem"))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if len(out) > 0 {
		t.Logf("%s", out)
	}
}

// milliseconds returns an environment variable with a duration in milliseconds.
func milliseconds(name string, d time.Duration) string {
	return fmt.Sprintf("%s=%d", name, d.Milliseconds())
}

var (
	pictures      = flag.String("pictures", "", "folder for the pictures of TestPictures, relative to the repository")
	picturesAfter = flag.Duration("pictures.after", 5*time.Minute, "how long TestPictures runs the service before it takes pictures")
	picturesSizes = flag.String("pictures.sizes", "1280", "widths of the pictures, in pixels")
	picturesOnly  = flag.String("pictures.only", "", "names of the pictures to take; all when empty")
	picturesWhole = flag.Bool("pictures.whole", false, "take whole pages instead of the viewport")
)

// TestPictures is not a test: it takes the pictures of docs/screenshots.
//
//	go test ./test/browser -run Pictures -timeout 30m -pictures docs/screenshots
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("checks nothing: takes the pictures of the documentation, with -pictures")
	}
	folder := *pictures
	if !filepath.IsAbs(folder) {
		folder = harness.Path(folder)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	binary := harness.Build(t)
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	tools := browserTools(t, dir)
	flags, _, _ := strings.Cut(string(harness.Read(t, "testdata/pictures/pictures.mjs")), "\n")
	data, err := os.MkdirTemp("", "service-") // the pages show its name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	issuer := harness.StartProvider(t).Issuer
	flags = strings.Replace(flags, "$PROVIDER", issuer, 1)
	s := serveForBrowser(t, binary, append(strings.Fields(strings.TrimPrefix(flags, "// serve")), "--data", data)...)
	cmd := exec.CommandContext(t.Context(), tools.node, "pictures/pictures.mjs")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CHROMIUM="+tools.chromium, "LINK="+s.link, "DATA="+s.data, "SERVICE="+binary, "SCRIPT=on",
		"PROVIDER="+issuer, milliseconds("PATIENCE", patience(t)), milliseconds("TIMEOUT", harness.Timeout()),
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

// webRoute is a row of the table of pages.
type webRoute struct {
	Path string `json:"path"` // as net/http.ServeMux takes it
	Get  bool   `json:"get"`
	Post bool   `json:"post"`
}

// webRoutes reads the table of pages from its source. The tour fails for a route that it does not
// visit.
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
		if !isText {
			continue
		}
		r := webRoute{}
		if r.Path, err = strconv.Unquote(path.Value); err != nil {
			t.Fatal(err)
		}
		r.read(t, row.Elts[3])
		all = append(all, r)
	}
	if len(all) < 40 {
		t.Fatalf("web/web.go: got a table of %d pages, want at least 40", len(all))
	}
	return all
}

// read reads the methods of a route: by{get: f, post: f}, which may have a limit, or
// of(find, get, post), whose functions may be nil.
func (r *webRoute) read(t *testing.T, methods ast.Expr) {
	t.Helper()
	set := func(name string, f ast.Expr) {
		switch there := types.ExprString(f) != "nil"; name {
		case "get":
			r.Get = there
		case "post":
			r.Post = there
		default:
			t.Fatalf("web/web.go: route %s has the unknown key %s, want get or post", r.Path, name)
		}
	}
	if call, ok := methods.(*ast.CallExpr); ok && types.ExprString(call.Fun) == "of" && len(call.Args) == 3 {
		set("get", call.Args[1])
		set("post", call.Args[2])
		return
	} else if ok { // by{…}.upTo(limit)
		methods = call.Fun.(*ast.SelectorExpr).X
	}
	for _, e := range methods.(*ast.CompositeLit).Elts {
		pair := e.(*ast.KeyValueExpr)
		set(types.ExprString(pair.Key), pair.Value)
	}
}

// browserPrograms are the paths of programs that run a journey.
type browserPrograms struct{ node, chromium string }

// browserTools finds node and Chromium, and installs the npm packages into dir.
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
	cmd := exec.Command(npm, "install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", "--prefer-offline", playwright,
		playwrightFirefox, axe)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		harness.Unavailable(t, "browser", fmt.Sprintf("npm install: %v\n%s", err, out))
	}
	return found
}

// browsed is a service under test in a browser.
type browsed struct {
	t      *testing.T
	binary string
	flags  []string
	link   string // signs in once; without --demo it creates the first admin
	data   string // data directory; empty with --demo, which chooses its own

	listen string // its address, the same after each restart
	cmd    *exec.Cmd
	errs   *bytes.Buffer
	read   chan struct{} // closed when stdout ends
}

// serveForBrowser starts a service that runs until the test ends.
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

// start starts the service and returns the URL that it prints for the pages.
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
	// The demo prints its link at the start, and again when it has data.
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
		io.Copy(io.Discard, out) // the demo continues to print
	}()
	if found == "" {
		return nil, errors.Join(errors.New("serve printed no URL of the pages"), s.stop())
	}
	return url.Parse(found)
}

// stop stops the service and waits until it has ended. It does nothing if the service is not
// running.
func (s *browsed) stop() error {
	if s.cmd == nil {
		return nil
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.read
	err := s.cmd.Wait()
	s.cmd = nil
	if s.t.Failed() {
		s.t.Logf("standard error of the service:\n%s", s.errs)
	}
	if err != nil {
		return fmt.Errorf("stop the service: %w\n%s", err, s.errs)
	}
	return nil
}

// control starts a control server for a journey and returns its URL. POST /restart restarts the
// service. The field aged, such as 12h, moves the times of all sessions and portal links back,
// because the binary reads only the machine's clock. The field table renames a table, so that
// requests that need it fail.
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
			err = s.ageAccess(aged)
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

// ageAccess moves the times of sessions, and of portal links and sessions, back.
func (s *browsed) ageAccess(by time.Duration) (err error) {
	for _, statement := range []string{
		"UPDATE sessions SET created_at = created_at - ?1, seen_at = seen_at - ?1, expires_at = expires_at - ?1",
		"UPDATE portal_links SET created_at = created_at - ?1, expires_at = expires_at - ?1",
		"UPDATE portal_sessions SET created_at = created_at - ?1, expires_at = expires_at - ?1",
	} {
		err = errors.Join(err, changeStopped(s.data, statement, by.Milliseconds()))
	}
	return err
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
