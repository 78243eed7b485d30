package disk

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"service/test/harness"
	"service/test/harness/chaos"
)

var ioErrorRounds = flag.Int("ioerror.rounds", 6, "in how many processes of the service TestIOErrors makes system calls fail")

// ioErrors are the ways in which writing to a disk fails: an fsync fails without
// syncing, a write without writing.
var ioErrors = []struct{ calls, errno string }{
	{"fsync,fdatasync", "EIO"},
	{"pwrite64", "EIO"},
	{"pwrite64", "ENOSPC"},
	{"fsync,fdatasync,pwrite64", "EIO"},
}

// ioErrorEvery says, for each round, that one of how many calls of a thread fails.
var ioErrorEvery = []int{7, 29, 2, 50, 11, 3, 101, 5, 17, 211}

// TestIOErrors makes every Nth fsync and write of the service fail, for a range of N,
// under load, and ends each process with SIGTERM or SIGKILL. A process may also fail to
// start. At the end every acknowledged event and everything sent must be stored.
//
// It needs strace (requirement strace).
func TestIOErrors(t *testing.T) {
	harness.Long(t)
	if why := straceUnavailable(); why != "" {
		harness.Unavailable(t, "strace", why)
	}
	c := chaos.New(t, harness.Build(t), t.TempDir())
	c.UnreliableDisk = true
	c.Instance.Kill(c.Instance.Last())
	stop := c.Start()
	defer stop()
	e := &ioErrorRun{t: t, c: c}
	for round := range *ioErrorRounds {
		e.round(round)
	}
	c.Instance.Wrapper = nil
	c.Instance.MustStart()
	c.Settle(stop)
	t.Logf("%d calls failed, %d requests refused, %d processes did not start", e.injected, c.Refused(), e.notServed)
	if e.injected == 0 || c.Refused() == 0 {
		t.Errorf("%d calls failed, %d requests refused: the test checked nothing", e.injected, c.Refused())
	}
	c.Check()
	c.Finish()
}

// ioErrorRun counts what its rounds did.
type ioErrorRun struct {
	t                   *testing.T
	c                   *chaos.Chaos
	injected, notServed int
}

// round runs one process of the service under strace, which makes calls fail.
func (e *ioErrorRun) round(round int) {
	t, in := e.t, e.c.Instance
	fault := ioErrors[round%len(ioErrors)]
	every := ioErrorEvery[round%len(ioErrorEvery)]
	if round >= len(ioErrorEvery) {
		every = ioErrorEvery[e.c.Rand.IntN(len(ioErrorEvery))]
	}
	what := fmt.Sprintf("round %d, every %d. %s %s", round, every, fault.calls, fault.errno)
	log := filepath.Join(t.TempDir(), "strace")
	in.Wrapper = []string{"strace", "-D", "-f", "--seccomp-bpf", "-qq", "-e", "signal=none", "-o", log, "-e", "trace=" + fault.calls,
		"-e", fmt.Sprintf("inject=%s:error=%s:when=%d+%d", fault.calls, fault.errno, every, every)}
	p := in.Start()
	served := in.AwaitServing(p)
	if served && !e.c.AwaitSteps(p, 100+e.c.Rand.IntN(300)) {
		t.Fatalf("%s: the service exited by itself with status %d:\n%s", what, p.Status, &p.Log)
	}
	orderly := round%2 == 0
	if orderly {
		in.SetURL("")
		p.Signal(syscall.SIGTERM) // it may have exited already
		p.Wait(t)
	} else {
		in.Kill(p)
	}
	if !served {
		e.notServed++
		if !bytes.Contains(p.Log.Bytes(), []byte("service: ")) {
			t.Errorf("%s: the service did not start and logged no error: %s", what, &p.Log)
		}
	}
	if orderly && p.Status != harness.ExitOK && p.Status != harness.ExitFailed || bytes.Contains(p.Log.Bytes(), []byte("panic")) {
		t.Errorf("%s: got exit status %d\n%s", what, p.Status, &p.Log)
	}
	n := bytes.Count(harness.Read(t, log), []byte("(INJECTED)"))
	if n == 0 {
		t.Logf("%s: no call failed", what)
	}
	e.injected += n
}

// straceUnavailable returns why strace cannot make system calls fail here, or "".
func straceUnavailable() string {
	out, err := exec.Command("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", os.DevNull, "-e", "trace=fsync", "-e",
		"inject=fsync:error=EIO", "true").CombinedOutput()
	if err != nil {
		return strings.TrimSpace(fmt.Sprintf("strace: %v %s", err, out))
	}
	return ""
}
