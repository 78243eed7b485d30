package harness

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Instance is a data directory and the service that runs on it, in one process after another.
type Instance struct {
	TB      testing.TB
	Binary  string
	Data    string
	Flags   []string // flags of serve, in addition to those that Start sets
	Wrapper []string // command that runs the service in its own process, such as strace; usually nil
	Client  *http.Client

	mu        sync.Mutex
	processes []*Process
	url       string        // URL of the ready process, "" without one
	changed   chan struct{} // closed and replaced when url changes
}

// Process is one process of an instance.
type Process struct {
	Number  int           // number among the instance's processes, from 0
	URL     chan string   // receives the base URL whenever the process is about to serve; holds the newest
	Standby chan string   // the same for the times when it becomes a standby
	Exited  chan struct{} // closed after the process has been waited for
	Log     bytes.Buffer  // its stderr; read it only after Exited
	Status  int           // exit status, -1 after a signal; read it only after Exited
	Started time.Time
	Ready   time.Time // zero if it was never ready
	Ended   time.Time // read it only after Exited

	process *os.Process
}

// PID returns the process ID.
func (p *Process) PID() int { return p.process.Pid }

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) error { return p.process.Signal(s) }

// Wait waits until the process has ended, and fails the test if that takes
// longer than [Timeout].
func (p *Process) Wait(tb testing.TB) {
	tb.Helper()
	select {
	case <-p.Exited:
	case <-time.After(Timeout()):
		p.process.Signal(syscall.SIGQUIT) // makes Go dump all goroutines to the log
		select {
		case <-p.Exited:
			tb.Fatalf("the service did not end within %s:\n%s", Timeout(), &p.Log)
		case <-time.After(Timeout()):
			tb.Fatalf("the service did not end within %s", Timeout())
		}
	}
}

// NewInstance returns an instance that is not started. At the end of the test its running process
// is killed.
func NewInstance(tb testing.TB, binary, data string, flags ...string) *Instance {
	in := &Instance{
		TB: tb, Binary: binary, Data: data, Flags: flags, changed: make(chan struct{}),
		Client: &http.Client{Timeout: Timeout(), Transport: &http.Transport{MaxIdleConnsPerHost: 512}},
	}
	tb.Cleanup(func() {
		if p := in.Last(); p != nil {
			in.Kill(p)
			if tb.Failed() {
				tb.Logf("the last process's log:\n%s", &p.Log)
			}
		}
		in.Client.CloseIdleConnections()
	})
	return in
}

// Start starts the service without waiting for it. Every process listens on a new port, because
// another program may have taken the last port.
func (in *Instance) Start() *Process {
	in.TB.Helper()
	args := slices.Concat(in.Wrapper, []string{in.Binary}, in.Args("serve"))
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = Environment()
	return in.Launch(cmd)
}

// Args returns the arguments of a command with the flags of serve on the instance's data.
func (in *Instance) Args(command string) []string {
	return append([]string{command, "--data", in.Data, "--listen", "127.0.0.1:0", "--tls", "off",
		"--allow-http", "--allow-destination", "127.0.0.0/8", "--rate-limit", "0"}, in.Flags...)
}

// Launch starts a command that runs the service on the instance's data.
func (in *Instance) Launch(cmd *exec.Cmd) *Process {
	in.TB.Helper()
	p := &Process{URL: make(chan string, 1), Standby: make(chan string, 1), Exited: make(chan struct{}), Started: time.Now()}
	cmd.Stderr = &p.Log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		in.TB.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		in.TB.Fatal(err)
	}
	p.process = cmd.Process
	in.mu.Lock()
	p.Number = len(in.processes)
	in.processes = append(in.processes, p)
	in.mu.Unlock()
	go func() {
		defer close(p.Exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			switch f := strings.Fields(lines.Text()); {
			case len(f) == 2 && f[0] == "API":
				replaceValue(p.URL, f[1])
			case len(f) > 1 && f[0] == "Standby":
				replaceValue(p.Standby, strings.TrimSuffix(f[1], ","))
			}
		}
		cmd.Wait()
		p.Ended = time.Now()
		p.Status = cmd.ProcessState.ExitCode()
	}()
	return p
}

// replaceValue replaces the value in c, which has capacity one and no other sender.
func replaceValue(c chan string, value string) {
	select {
	case <-c:
	default:
	}
	c <- value
}

// AwaitStandby waits until the process is a standby that could take over.
func (in *Instance) AwaitStandby(p *Process) {
	in.TB.Helper()
	var base string
	select {
	case base = <-p.Standby:
	case <-p.Exited:
		in.TB.Fatalf("the node ended with status %d:\n%s", p.Status, &p.Log)
	case <-time.After(Timeout()):
		in.TB.Fatal("the node did not become a standby")
	}
	var text string
	WaitFor(in.TB, "a standby that could take over", func() bool {
		resp, err := in.Client.Get(base + "/readyz")
		if err != nil {
			return false
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		text = string(body)
		return err == nil && resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(text, `"can_take_over":true`)
	})
}

// AwaitReady waits until the process accepts events. It returns false if the
// process ended first.
func (in *Instance) AwaitReady(p *Process) bool {
	in.TB.Helper()
	deadline := time.After(Timeout())
	var base string
	select {
	case base = <-p.URL:
	case <-p.Exited:
		return false
	case <-deadline:
		in.TB.Fatal("the service did not print its URL")
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := in.Client.Get(base + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				p.Ready = time.Now()
				in.SetURL(base)
				return true
			}
		}
		select {
		case <-tick.C:
		case <-p.Exited:
			return false
		case <-deadline:
			in.TB.Fatalf("the service did not become ready: %v", err)
		}
	}
}

// AwaitServing waits until the process accepts requests and publishes its URL,
// even if it cannot store anything yet. It returns false if the process ended
// first.
func (in *Instance) AwaitServing(p *Process) bool {
	in.TB.Helper()
	select {
	case base := <-p.URL:
		in.SetURL(base)
		return true
	case <-p.Exited:
		return false
	case <-time.After(Timeout()):
		in.TB.Fatal("the service did not print its URL")
		return false
	}
}

// MustStart starts the service and waits until it is ready.
func (in *Instance) MustStart() *Process {
	in.TB.Helper()
	p := in.Start()
	if !in.AwaitReady(p) {
		in.TB.Fatalf("the service ended at its start, with status %d:\n%s", p.Status, &p.Log)
	}
	return p
}

// SetURL sets the URL that AwaitURL returns; "" makes callers wait.
func (in *Instance) SetURL(base string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.url = base
	close(in.changed)
	in.changed = make(chan struct{})
}

// AwaitURL returns the base URL of the service as soon as it is ready, and false
// when ctx has ended.
func (in *Instance) AwaitURL(ctx context.Context) (string, bool) {
	for {
		in.mu.Lock()
		base, changed := in.url, in.changed
		in.mu.Unlock()
		if base != "" {
			return base, ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", false
		}
	}
}

// Serving returns the URL of the ready process, "" without one.
func (in *Instance) Serving() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.url
}

// URL returns the base URL of the ready process. It fails the test if none is.
func (in *Instance) URL() string {
	in.TB.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.url == "" {
		in.TB.Fatal("no process of the service is ready")
	}
	return in.url
}

// Processes returns all processes of the instance, oldest first.
func (in *Instance) Processes() []*Process {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.processes)
}

// Last returns the newest process, nil if none was started.
func (in *Instance) Last() *Process {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.processes) == 0 {
		return nil
	}
	return in.processes[len(in.processes)-1]
}

// Kill ends a process with SIGKILL, if it has not ended, and waits for it.
func (in *Instance) Kill(p *Process) {
	in.SetURL("")
	p.process.Kill()
	<-p.Exited
}

// Stop ends a process with SIGTERM and returns its exit status.
func (in *Instance) Stop(p *Process) int {
	in.TB.Helper()
	in.SetURL("")
	if err := p.Signal(syscall.SIGTERM); err != nil {
		in.TB.Fatal(err)
	}
	p.Wait(in.TB)
	return p.Status
}

// MustStop is Stop, and fails the test unless the exit status is 0.
func (in *Instance) MustStop(p *Process) {
	in.TB.Helper()
	if status := in.Stop(p); status != ExitOK {
		in.TB.Fatalf("exit status %d after SIGTERM, want %d:\n%s", status, ExitOK, &p.Log)
	}
}

// Command runs a command of the binary and returns its combined output.
func (in *Instance) Command(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout())
	defer cancel()
	cmd := exec.CommandContext(ctx, in.Binary, args...)
	cmd.Env = Environment()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Token creates a program token with all scopes, using the command line.
func (in *Instance) Token(program string, flags ...string) string {
	in.TB.Helper()
	return in.createToken(append([]string{"--program", program, "--user", "tester", "--scope",
		"webhooks.read,webhooks.write,events.read,events.write"}, flags...)...)
}

// PlatformToken creates a platform token, using the command line.
func (in *Instance) PlatformToken(flags ...string) string {
	in.TB.Helper()
	return in.createToken(append([]string{"--user", "ops", "--scope", "platform"}, flags...)...)
}

// Create creates an installation unless one exists: it starts and stops the service, without the
// replica and the lease of in.Flags.
func (in *Instance) Create() {
	in.TB.Helper()
	if _, err := os.Stat(filepath.Join(in.Data, "service.db")); err == nil {
		return
	}
	var flags []string
	if i := slices.Index(in.Flags, "--secret-key-file"); i >= 0 {
		flags = in.Flags[i : i+2]
	}
	first := NewInstance(in.TB, in.Binary, in.Data, flags...)
	p := first.Start()
	if !first.AwaitServing(p) {
		in.TB.Fatalf("the first start: exit status %d\n%s", p.Status, &p.Log)
	}
	first.MustStop(p)
}

// createToken creates a token, and an installation if none exists.
func (in *Instance) createToken(flags ...string) string {
	in.TB.Helper()
	in.Create()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout())
	defer cancel()
	cmd := exec.CommandContext(ctx, in.Binary, append([]string{"token", "create", "--data", in.Data}, flags...)...)
	cmd.Env = Environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		in.TB.Fatalf("token create: %v\n%s", err, &stderr)
	}
	return strings.TrimSpace(string(out))
}
