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
	"time"

	"service/test/harness"
	"service/test/harness/chaos"
)

var ioErrorRounds = flag.Int("ioerror.rounds", 6, "in how many processes of the service TestIOErrors makes system calls fail")

// ioErrors are the ways in which writing to a disk fails. fsync fails without
// having been done, and a write without having written anything.
var ioErrors = []struct{ calls, errno string }{
	{"fsync,fdatasync", "EIO"},
	{"pwrite64", "EIO"},
	{"pwrite64", "ENOSPC"},
	{"fsync,fdatasync,pwrite64", "EIO"},
}

// ioErrorEvery is every how many calls of a thread one fails, in the order of
// the rounds.
var ioErrorEvery = []int{7, 29, 2, 50, 11, 3, 101, 5, 17, 211}

// TestIOErrors makes every Nth fsync and write of the service fail, for a range
// of N, while publishers publish and receivers receive. Each process ends with
// SIGTERM or SIGKILL, in turn; one may also end at its start, if a failing disk
// leaves it no choice, and the next goes on. What was acknowledged is there in
// the end, and what was sent is stored.
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
	t.Logf("%d calls failed; %d requests were refused; %d processes ended at their start", e.injected, c.Refused(), e.notServed)
	if e.injected == 0 || c.Refused() == 0 {
		t.Errorf("%d calls failed, and %d requests were refused: nothing was tested", e.injected, c.Refused())
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
	if served {
		select {
		case <-time.After(time.Duration(800+e.c.Rand.IntN(800)) * time.Millisecond):
		case <-p.Exited:
			t.Fatalf("%s: the service ended by itself, with status %d:\n%s", what, p.Status, &p.Log)
		}
	}
	orderly := round%2 == 0
	if orderly {
		in.SetURL("")
		p.Signal(syscall.SIGTERM) // it may have ended already
		p.Wait(t)
	} else {
		in.Kill(p)
	}
	if !served {
		e.notServed++
		if !bytes.Contains(p.Log.Bytes(), []byte("service: ")) {
			t.Errorf("%s: the service ended at its start without an error message: %s", what, &p.Log)
		}
	}
	if orderly && p.Status != harness.ExitOK && p.Status != harness.ExitFailed || bytes.Contains(p.Log.Bytes(), []byte("panic")) {
		t.Errorf("%s: exit status %d\n%s", what, p.Status, &p.Log)
	}
	n := bytes.Count(harness.Read(t, log), []byte("(INJECTED)"))
	if n == 0 {
		t.Logf("%s: none failed", what)
	}
	e.injected += n
}

// straceUnavailable says why strace cannot make system calls fail here, "" if
// it can.
func straceUnavailable() string {
	out, err := exec.Command("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", os.DevNull, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "true").CombinedOutput()
	if err != nil {
		return strings.TrimSpace(fmt.Sprintf("strace: %v %s", err, out))
	}
	return ""
}
