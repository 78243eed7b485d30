package cli

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// Reasons why TestFirstHour does not run a block.
const (
	needsHost     = "names a host or a bucket that does not exist"
	needsSystem   = "changes the system: packages, units, files below /etc and /var"
	needsFile     = "names a file that the reader has"
	needsBrowser  = "opens a browser"
	needsTerminal = "asks for confirmation in a terminal"
	testedByTyped = "run by a test of its own"
)

// typedBlocks are the shell blocks of README.md, CONTRIBUTING.md and docs/ by file and first line.
// why is "" for blocks that TestFirstHour runs as typed, in this order, otherwise the reason why it
// does not.
var typedBlocks = []struct{ file, begin, why string }{
	{"CONTRIBUTING.md", "make build", ""},
	{"README.md", "./service serve --allow-http", ""},
	{"README.md", "./service listen", ""},
	{"README.md", "umask 077", ""},
	{"README.md", "api /webhooks/subscriptions -d", ""},
	{"README.md", "./service listen --secret-file", ""},
	{"README.md", "api /events", ""},
	{"README.md", "./service listen --pull", ""},
	{"README.md", "api /webhooks/subscriptions/$ID/deliveries", ""},
	{"README.md", "api /webhooks/subscriptions/$ID/ping", ""},
	{"README.md", "./service portal-link", ""},
	{"docs/operations.md", "./service token create --user prometheus", ""},

	{"README.md", "./service serve --domain", needsHost},
	{"README.md", "./service serve --litestream", testedByTyped},
	{"docs/admins.md", "service audit list", needsFile},
	{"docs/admins.md", "service audit verify --data ./data --expect", needsFile},
	{"docs/adopt.md", "printf 'whsec_", needsFile},
	{"docs/alerts.md", "service serve --smtp-host", needsHost},
	{"docs/apply.md", "service apply", needsFile},
	{"docs/event-types.md", "curl -H", needsHost},
	{"docs/event-types.md", "jq '{schema", needsHost},
	{"docs/failover.md", "service serve --litestream", testedByTyped},
	{"docs/failover.md", "rsync", testedByTyped},
	{"docs/failover.md", "service salvage", testedByTyped},
	{"docs/failover.md", "mkdir -m 700 drill", testedByTyped},
	{"docs/failover.md", "curl --insecure", testedByTyped},
	{"docs/failover.md", "service restore", needsHost},
	{"docs/gallery.md", "go test ./test/browser", needsBrowser},
	{"docs/operations.md", "apt install", needsSystem},
	{"docs/operations.md", "systemctl stop service-webhooks\nsudo -u service-webhooks service-webhooks restore", needsSystem},
	{"docs/operations.md", "install -m 0755", needsSystem},
	{"docs/operations.md", "docker compose", needsSystem},
	{"docs/operations.md", "service-webhooks backup create", needsSystem},
	{"docs/operations.md", "service backup create", needsFile},
	{"docs/operations.md", "systemctl stop service-webhooks\nsudo -u service-webhooks service-webhooks compact", needsSystem},
	{"docs/operations.md", "install -m 0644", needsSystem},
	{"docs/portal.md", "service portal-link", needsHost},
	{"docs/portal.md", "curl -X PUT", needsHost},
	{"docs/programs.md", "(umask 077", needsHost},
	{"docs/programs.md", "curl -X DELETE", needsHost},
	{"docs/programs.md", "service program export", needsFile},
	{"docs/programs.md", "service program move", needsHost},
	{"docs/runbook.md", "service doctor", needsSystem},
	{"docs/runbook.md", "service restore --force", needsSystem},
	{"docs/scale.md", "haproxy -c", needsSystem},
	{"docs/scale.md", "service serve --listen", needsHost},
	{"docs/secrets.md", "mv data/secret.key", needsSystem},
	{"docs/secrets.md", "service key rotate", needsTerminal},
	{"docs/secrets.md", "(umask 077", needsSystem},
}

// shellBlocks returns the shell blocks of a Markdown file, without indentation.
func shellBlocks(t *testing.T, file string) (blocks []string) {
	t.Helper()
	text := string(harness.Read(t, harness.Path(file)))
	for _, found := range regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```").FindAllStringSubmatch(text, -1) {
		indent := len(found[1]) - len(strings.TrimLeft(found[1], " "))
		blocks = append(blocks, regexp.MustCompile(fmt.Sprintf("(?m)^ {%d}", indent)).ReplaceAllString(found[1], ""))
	}
	return blocks
}

// typedBlock returns the index in typedBlocks of the longest beginning of a block, or -1.
func typedBlock(file, block string) int {
	best := -1
	for i, b := range typedBlocks {
		if b.file == file && strings.HasPrefix(block, b.begin) && (best < 0 || len(b.begin) > len(typedBlocks[best].begin)) {
			best = i
		}
	}
	return best
}

// TestBlocksAreListed checks that typedBlocks contains exactly the existing blocks.
func TestBlocksAreListed(t *testing.T) {
	files, err := filepath.Glob(harness.Path("docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = "docs/" + filepath.Base(files[i])
	}
	used := make([]int, len(typedBlocks))
	for _, file := range append(files, "README.md", "CONTRIBUTING.md") {
		for _, block := range shellBlocks(t, file) {
			if i := typedBlock(file, block); i >= 0 {
				used[i]++
			} else {
				t.Errorf("%s has a block that typedBlocks does not list:\n%s", file, block)
			}
		}
	}
	for i, n := range used {
		if n != 1 {
			t.Errorf("typedBlocks: %d blocks of %s begin with %q, want 1", n, typedBlocks[i].file, typedBlocks[i].begin)
		}
	}
}

// TestFirstHour clones the repository, builds it, starts the demo, and runs the walk-through and
// other commands of the documentation as typed. It reports the seconds of each step, and uses the
// ports of the documentation.
//
// It needs bash, curl, git, jq and make (requirement walkthrough).
func TestFirstHour(t *testing.T) {
	harness.Long(t)
	for _, tool := range []string{"bash", "curl", "git", "jq", "make"} {
		harness.Tool(t, "walkthrough", tool)
	}
	for _, address := range []string{"127.0.0.1:8443", "127.0.0.1:9000"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			harness.Unavailable(t, "walkthrough", err)
		}
		l.Close()
	}
	h := &firstHour{t: t, dir: filepath.Join(t.TempDir(), "service")}
	h.step("git clone", func() {
		if err := harness.Exec("git", "clone", "--quiet", harness.Root(), h.dir); err != nil {
			t.Fatal(err)
		}
	})
	h.step("make build", func() {
		build := h.command("make build")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
	h.step("make run, until the demo prints a link", func() {
		demo := h.background("make run")
		demo.await("/sign-in/")
		demo.stop()
	})
	shell := h.shell()
	var receiver *background
	for i, b := range typedBlocks {
		if b.why != "" || b.file == "CONTRIBUTING.md" {
			continue
		}
		blocks := shellBlocks(t, b.file)
		block := blocks[slices.IndexFunc(blocks, func(block string) bool { return typedBlock(b.file, block) == i })]
		h.step(strings.TrimSpace(strings.SplitN(block, "\n", 2)[0]), func() {
			switch {
			case strings.HasPrefix(block, "./service serve"):
				h.background(block).await("API  ")
			case strings.HasPrefix(block, "./service listen --pull"):
				puller := h.background(block)
				puller.await("content_published")
				puller.stop()
			case strings.HasPrefix(block, "./service listen"):
				if receiver != nil {
					receiver.stop()
				}
				receiver = h.background(block)
				receiver.await("127.0.0.1:9000")
			default:
				shell.run(block)
			}
		})
	}
	receiver.await("content_published")
	receiver.await("signature verified")
	if strings.Contains(receiver.out.String(), "WRONG") {
		t.Errorf("the receiver rejected a signature:\n%s", receiver.out)
	}
	h.step("git status", func() { shell.run("test -z \"$(git status --porcelain)\" || { git status; false; }\n") })
	h.step("signing.secret is private", func() { shell.run("test \"$(stat -c %a signing.secret)\" = 600\n") })
	t.Logf("%6.1f s in all", h.total.Seconds())
}

// firstHour runs commands in a clone of the repository.
type firstHour struct {
	t     *testing.T
	dir   string
	total time.Duration
}

// step runs a step and logs how long it took.
func (h *firstHour) step(name string, run func()) {
	h.t.Helper()
	begin := time.Now()
	run()
	took := time.Since(begin)
	h.total += took
	h.t.Logf("%6.1f s  %s", took.Seconds(), name)
}

// command returns a bash command in the clone, with the binary in the path, as in an installation.
func (h *firstHour) command(text string) *exec.Cmd {
	cmd := exec.Command("bash", "-c", "PATH=$PWD:$PATH\n"+text)
	cmd.Dir, cmd.Env = h.dir, harness.Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// typedOutput is the output of a process so far. It is safe for concurrent use.
type typedOutput struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *typedOutput) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *typedOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// background is a terminal with one running command.
type background struct {
	t    *testing.T
	out  *typedOutput
	stop func() // as Ctrl-C does
}

func (h *firstHour) background(text string) *background {
	h.t.Helper()
	cmd, out := h.command(text), new(typedOutput)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		cmd.Wait() // the status of an interrupted command says nothing
	})
	h.t.Cleanup(stop)
	return &background{h.t, out, stop}
}

func (b *background) await(text string) {
	b.t.Helper()
	harness.WaitFor(b.t, fmt.Sprintf("%q in the output", text), func() bool { return strings.Contains(b.out.String(), text) })
}

// typedShell is a terminal in which blocks are typed one after another.
type typedShell struct {
	t   *testing.T
	in  io.Writer
	out *typedOutput
	n   int // of blocks so far
}

func (h *firstHour) shell() *typedShell {
	h.t.Helper()
	cmd, out := h.command("exec bash"), new(typedOutput)
	cmd.Stdout, cmd.Stderr = out, out
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &typedShell{t: h.t, in: in, out: out}
}

// run types a block and waits until each of its lines has succeeded.
func (s *typedShell) run(block string) {
	s.t.Helper()
	s.n++
	end := fmt.Sprintf("block %d ended with ", s.n)
	fmt.Fprintf(s.in, "set -o pipefail; trap 'failed=1' ERR; failed=0\n%secho '%s'$failed\n", block, end)
	harness.WaitFor(s.t, "the end of "+block, func() bool { return strings.Contains(s.out.String(), end) })
	if !strings.Contains(s.out.String(), end+"0\n") {
		s.t.Fatalf("failed:\n%s\noutput:\n%s", block, s.out)
	}
}
