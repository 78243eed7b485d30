// Package cli tests the command line of the built binary with scripts that run every
// command, and tests the shell completions and the manual.
package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"service/internal/certs"
	"service/store"
	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestScripts runs the scripts of testdata/script, which run the binary as users do. In addition to
// the commands of testscript they can use:
//
//	serve ARGS…              starts service serve, waits until it serves, and sets
//	                         stdout, $URL, $ADDRESS, $CA and $LINK from its output
//	create DIR               creates an installation without a server
//	signal NAME STATUS       sends the server a signal and checks its exit status
//	hang                     starts a request to the server that does not end, and
//	                         sends the server SIGTERM
//	ends STATUS              waits for the end of the server and checks its exit status
//	listen ARGS…             starts service listen --json and sets $HOOK to its address
//	arrives REGEXP…          waits for the listener's next delivery, which must match
//	deaf                     stops the listener
//	request METHOD PATH [BODY]  calls the API with $TOKEN; the first line of stdout is
//	                         the status
//	enter EMAIL FILE         signs in to the admin UI with the password in a file; the
//	                         first line of stdout is the status
//	capture NAME [REGEXP]    sets $NAME to the last stdout without the newline, or to
//	                         what the group in REGEXP matches in it
//	status N ARGS…           runs ARGS and checks that the exit status is N
//	until REGEXP ARGS…       runs ARGS until the output matches
//	names DIR                prints the names of the files in a folder
//	print FILE               prints a file
//	copy FROM TO             copies a folder
//	edit FILE REGEXP TEXT    replaces what matches in a file
//	truncate FILE BYTES      cuts a file off
func TestScripts(t *testing.T) {
	// Under nohup this process ignores SIGHUP, and so would every child.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	// The scripts call the binary service, whatever the name of the file.
	bin := t.TempDir()
	if err := os.Symlink(harness.Build(t), filepath.Join(bin, "service")); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
			env.Values[serverKey{}] = new(server)
			env.Values[listenerKey{}] = new(listener)
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"serve":   cmdServe,
			"create":  cmdCreate,
			"signal":  cmdSignal,
			"listen":  cmdListen,
			"arrives": cmdArrives,
			"deaf":    cmdDeaf,
			"request": cmdRequest,
			"enter":   cmdEnter,
			"capture": cmdCapture,
			"change":  cmdChange,
			"status":  cmdStatus,
			"hang":    cmdHang,
			"ends":    cmdEnds,
			"until":   cmdUntil,
			"names":   cmdNames,
			"print": func(ts *testscript.TestScript, neg bool, args []string) {
				fmt.Fprint(ts.Stdout(), ts.ReadFile(args[0]))
			},
			"copy": func(ts *testscript.TestScript, neg bool, args []string) {
				harness.Copy(t, ts.MkAbs(args[0]), ts.MkAbs(args[1]))
			},
			"edit": cmdEdit,
			"truncate": func(ts *testscript.TestScript, neg bool, args []string) {
				size, err := strconv.ParseInt(args[1], 10, 64)
				ts.Check(err)
				ts.Check(os.Truncate(ts.MkAbs(args[0]), size))
			},
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

type serverKey struct{}

// server is the service serve that a script runs.
type server struct {
	cmd    *exec.Cmd
	out    sync.WaitGroup // the goroutine that reads stdout
	errors bytes.Buffer   // complete after cmd.Wait
}

// command returns the binary as a process of the script.
func command(ts *testscript.TestScript, name string, args ...string) *exec.Cmd {
	path := name
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			path = filepath.Join(dir, name)
			break
		}
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = ts.MkAbs(".")
	for _, key := range []string{"PATH", "HOME", "TMPDIR", "WORK", "TOKEN", "URL", "CA"} {
		cmd.Env = append(cmd.Env, key+"="+ts.Getenv(key))
	}
	for _, key := range []string{"SERVICE_GRACE", "SERVICE_CONFIG"} {
		if value := ts.Getenv(key); value != "" { // an empty variable would count as set
			cmd.Env = append(cmd.Env, key+"="+value)
		}
	}
	return cmd
}

func cmdCreate(ts *testscript.TestScript, _ bool, args []string) {
	st, err := store.Open(context.Background(), store.Config{Dir: ts.MkAbs(args[0]), Logger: slog.New(slog.DiscardHandler)})
	ts.Check(err)
	ts.Check(st.Close())
}

func cmdServe(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(serverKey{}).(*server)
	if s.cmd != nil {
		ts.Fatalf("a server is running already")
	}
	*s = server{cmd: command(ts, "service", append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)}
	s.cmd.Stderr = &s.errors
	stdout, err := s.cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(s.cmd.Start())
	ts.Defer(func() {
		if s.cmd != nil {
			s.cmd.Process.Kill()
			s.wait()
			ts.Logf("the server said:\n%s", &s.errors)
		}
	})
	// The last line on stdout starts with "Try it".
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		line := lines.Text()
		fmt.Fprintln(ts.Stdout(), line)
		if link := regexp.MustCompile(`https?://\S+/setup/\S+`).FindString(line); link != "" {
			ts.Setenv("LINK", link)
		}
		if m := regexp.MustCompile(`^Try it +curl (?:--cacert (\S+) )?.*(https?://[^/]+)/`).FindStringSubmatch(line); m != nil {
			ts.Setenv("CA", m[1])
			ts.Setenv("URL", m[2])
			ts.Setenv("ADDRESS", m[2][strings.LastIndex(m[2], "/")+1:])
			s.out.Go(func() { io.Copy(io.Discard, stdout) })
			return
		}
	}
	s.wait()
	ts.Fatalf("the server exited before serving:\n%s", &s.errors)
}

// wait waits for the process and returns its exit status.
func (s *server) wait() int {
	s.out.Wait()
	s.cmd.Wait()
	status := s.cmd.ProcessState.ExitCode()
	s.cmd = nil
	return status
}

func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(serverKey{}).(*server)
	signals := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP}
	if s.cmd == nil || len(args) != 2 || signals[args[0]] == 0 {
		ts.Fatalf("usage: signal TERM|INT|KILL|HUP STATUS, with a server")
	}
	ts.Check(s.cmd.Process.Signal(signals[args[0]]))
	cmdEnds(ts, neg, args[1:])
}

func cmdEnds(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(serverKey{}).(*server)
	if s.cmd == nil || len(args) != 1 {
		ts.Fatalf("usage: ends STATUS, with a server")
	}
	got := s.wait()
	ts.Logf("%s", &s.errors)
	if want := args[0]; fmt.Sprint(got) != want {
		ts.Fatalf("exit status: got %d, want %s", got, want)
	}
}

type listenerKey struct{}

// listener is the service listen that a script runs.
type listener struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr sync.WaitGroup // the goroutine that reads it
}

func cmdListen(ts *testscript.TestScript, neg bool, args []string) {
	l := ts.Value(listenerKey{}).(*listener)
	if l.cmd != nil {
		ts.Fatalf("a listener is running already")
	}
	l.cmd = command(ts, "service", append([]string{"listen", "--json"}, args...)...)
	stdout, err := l.cmd.StdoutPipe()
	ts.Check(err)
	stderr, err := l.cmd.StderrPipe()
	ts.Check(err)
	l.stdout = bufio.NewReader(stdout)
	ts.Check(l.cmd.Start())
	ts.Defer(func() {
		if l.cmd != nil {
			l.cmd.Process.Kill()
			l.cmd.Wait()
		}
	})
	lines := bufio.NewReader(stderr)
	hello, err := lines.ReadString('\n')
	m := regexp.MustCompile(`http://([^/]+)/`).FindStringSubmatch(hello)
	if err != nil || m == nil {
		ts.Fatalf("service listen: got %q (%v), want an address", hello, err)
	}
	ts.Setenv("HOOK", m[1])
	l.stderr.Go(func() { io.Copy(io.Discard, lines) })
}

func cmdArrives(ts *testscript.TestScript, neg bool, args []string) {
	l := ts.Value(listenerKey{}).(*listener)
	if l.cmd == nil {
		ts.Fatalf("no listener is running")
	}
	watchdog := time.AfterFunc(harness.Timeout(), func() { l.cmd.Process.Kill() })
	defer watchdog.Stop()
	line, err := l.stdout.ReadString('\n')
	if err != nil {
		ts.Fatalf("got no delivery: %v", err)
	}
	fmt.Fprint(ts.Stdout(), line)
	for _, want := range args {
		if !regexp.MustCompile(want).MatchString(line) {
			ts.Fatalf("%s does not match %s", line, want)
		}
	}
}

func cmdDeaf(ts *testscript.TestScript, neg bool, args []string) {
	l := ts.Value(listenerKey{}).(*listener)
	ts.Check(l.cmd.Process.Signal(os.Interrupt))
	l.stderr.Wait()
	ts.Check(l.cmd.Wait())
	l.cmd = nil
}

// client returns an HTTP client that trusts the script's $CA.
func client(ts *testscript.TestScript) *http.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	if ca := ts.Getenv("CA"); ca != "" {
		pool, err := certs.ReadPool(ts.MkAbs(ca))
		ts.Check(err)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	return &http.Client{Transport: transport, Timeout: harness.Timeout()}
}

func cmdRequest(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: request METHOD PATH [BODY]")
	}
	body := ""
	if len(args) == 3 {
		body = args[2]
	}
	req, err := http.NewRequest(args[0], ts.Getenv("URL")+args[1], strings.NewReader(body))
	ts.Check(err)
	if token := ts.Getenv("TOKEN"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client(ts).Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s\n%s\n", resp.Status, b)
}

func cmdEnter(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: enter EMAIL FILE")
	}
	form := url.Values{"email": {args[0]}, "password": {strings.TrimSpace(ts.ReadFile(args[1]))}}
	c := client(ts)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.PostForm(ts.Getenv("URL")+"/sign-in", form)
	ts.Check(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s\n%s\n", resp.Status, b)
}

func cmdCapture(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 && len(args) != 2 {
		ts.Fatalf("usage: capture NAME [REGEXP]")
	}
	value := strings.TrimSuffix(ts.ReadFile("stdout"), "\n")
	if len(args) == 2 {
		m := regexp.MustCompile(args[1]).FindStringSubmatch(value)
		if len(m) != 2 {
			ts.Fatalf("nothing matches %s in %s", args[1], value)
		}
		value = m[1]
	}
	ts.Setenv(args[0], value)
}

// cmdChange runs a statement in the database of a data directory that no process has open.
func cmdChange(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: change DIR SQL")
	}
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(ts.MkAbs(args[0]), "service.db")) // see harness.OpenDatabase
	ts.Check(err)
	defer db.Close()
	_, err = db.Exec(args[1])
	ts.Check(err)
}

func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND…")
	}
	cmd := command(ts, args[1], args[2:]...)
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	if got := cmd.ProcessState.ExitCode(); fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit status: got %d, want %s", got, args[0])
	}
}

func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile(args[0])
	for range 1000 {
		cmd := command(ts, args[1], args[2:]...)
		out, err := cmd.CombinedOutput()
		if pattern.Match(out) {
			return
		}
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
	}
	ts.Fatalf("the output never matched %s", args[0])
}

func cmdNames(ts *testscript.TestScript, neg bool, args []string) {
	files, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	for _, file := range files {
		fmt.Fprintln(ts.Stdout(), file.Name())
	}
}

func cmdEdit(ts *testscript.TestScript, neg bool, args []string) {
	text := ts.ReadFile(args[0])
	edited := regexp.MustCompile(args[1]).ReplaceAllString(text, args[2])
	if edited == text {
		ts.Fatalf("nothing in %s matches %s", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(edited), 0o600))
}

// cmdHang starts a request whose body never ends, sends the server SIGTERM, and returns
// when the server accepts no more connections.
func cmdHang(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(serverKey{}).(*server)
	address := regexp.MustCompile(`^https?://`).ReplaceAllString(ts.Getenv("URL"), "")
	conn, err := net.Dial("tcp", address)
	ts.Check(err)
	ts.Defer(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /v2/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n", address, ts.Getenv("TOKEN"))
	line, err := bufio.NewReader(conn).ReadString('\n') // the handler reads the body
	ts.Check(err)
	if !strings.Contains(line, "100 Continue") {
		ts.Fatalf("the server does not wait for the body: %s", line)
	}
	ts.Check(s.cmd.Process.Signal(syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(context.Background(), harness.Timeout())
	defer cancel()
	for ctx.Err() == nil {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return // no more connections
		}
		c.Close()
	}
	ts.Fatalf("the server still accepts connections")
}

// manCommand matches a command in the manual: its name, then arguments.
var manCommand = regexp.MustCompile(`(?m)^\.SS service ([a-z \\-]*[a-z])`)

// TestEveryCommandHasAScript checks that the scripts run every command of the manual at
// least once successfully, and at least once with an expected error.
func TestEveryCommandHasAScript(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		all.Write(harness.Read(t, f))
		all.WriteString("\n")
	}
	page, err := exec.Command(harness.Build(t), "man").Output()
	if err != nil {
		t.Fatal(err)
	}
	commands := manCommand.FindAllStringSubmatch(string(page), -1)
	if len(commands) < 20 {
		t.Fatalf("manual: got only %d commands", len(commands))
	}
	// Commands without arguments that could be wrong.
	plain := []string{"version", "man", "config example", "config show"}
	for _, m := range commands {
		name := strings.ReplaceAll(m[1], `\`, "")
		path := regexp.QuoteMeta(name)
		done := regexp.MustCompile(`(?m)^exec service ` + path + `\b`)
		if name == "serve" || name == "listen" { // they run until a signal
			done = regexp.MustCompile(`(?m)^` + path + ` `)
		}
		refused := regexp.MustCompile(`(?m)^(status [12]|! exec) service ` + path + `\b.*\n(.*\n)??stderr `)
		// bench is a measurement. A script has one server, and a move needs two: test/crash moves. A
		// promotion needs a bucket: test/failover promotes.
		if !slices.Contains([]string{"bench", "program move", "promote"}, name) && !done.MatchString(all.String()) {
			t.Errorf("no script runs service %s", name)
		}
		if !refused.MatchString(all.String()) && !slices.Contains(plain, name) {
			t.Errorf("no script runs service %s with an expected error", name)
		}
	}
}
