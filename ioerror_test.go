package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var ioErrorRounds = flag.Int("ioerror.rounds", 6, "in how many runs of the service TestEndToEnd makes its system calls fail")

// ioErrors are the ways in which writing to a disk fails. fsync fails without
// having been done, and a write without having written anything.
var ioErrors = []struct{ calls, errno string }{
	{"fsync,fdatasync", "EIO"},
	{"pwrite64", "EIO"},
	{"pwrite64", "ENOSPC"},
	{"fsync,fdatasync,pwrite64", "EIO"},
}

// ioErrorEvery is every how many calls of a thread one fails, in the order of
// the runs.
var ioErrorEvery = []int{7, 29, 2, 50, 11, 3, 101, 5, 17, 211}

// testIOErrors has every Nth fsync and write of the service fail, for a range
// of N, while publishers publish and receivers receive. Each run ends with
// SIGTERM or SIGKILL, in turn; one may also end at its start, if that is what a
// failing disk has left it, and the next goes on. What was acknowledged is
// there in the end, and what was sent is remembered.
//
// It needs strace. Where it cannot run it is skipped, or fails if the
// environment variable SERVICE_TEST_REQUIRE has strace among its words.
func testIOErrors(t *testing.T, binary string) {
	if why := straceUnavailable(); why != "" {
		if required("strace") {
			t.Fatalf("failing disks are required, and cannot be tested here: %s", why)
		}
		t.Skipf("FAILING DISKS ARE NOT TESTED: %s", why)
	}
	c := newChaos(t, binary, t.TempDir())
	c.disk = false
	c.in.kill(c.in.last())
	rest := c.work()
	defer rest()
	injected, unborn := 0, 0
	for round := range *ioErrorRounds {
		fault := ioErrors[round%len(ioErrors)]
		every := ioErrorEvery[round%len(ioErrorEvery)]
		if round >= len(ioErrorEvery) {
			every = ioErrorEvery[c.rng.IntN(len(ioErrorEvery))]
		}
		what := fmt.Sprintf("run %d, every %d. %s %s", round, every, fault.calls, fault.errno)
		log := filepath.Join(t.TempDir(), "strace")
		c.in.under = []string{"strace", "-D", "-f", "--seccomp-bpf", "-qq", "-e", "signal=none", "-o", log, "-e", "trace=" + fault.calls,
			"-e", fmt.Sprintf("inject=%s:error=%s:when=%d+%d", fault.calls, fault.errno, every, every)}
		run := c.in.start()
		served := c.in.awaitServing(run)
		if served {
			select {
			case <-time.After(time.Duration(800+c.rng.IntN(800)) * time.Millisecond):
			case <-run.exited:
				t.Fatalf("%s: the service ended by itself, with status %d:\n%s", what, run.status, &run.log)
			}
		}
		if round%2 == 0 {
			c.in.setBase("")
			run.process.Signal(syscall.SIGTERM) // it may have ended already
			select {
			case <-run.exited:
			case <-time.After(30 * time.Second):
				t.Fatalf("%s: the service did not end on SIGTERM", what)
			}
		} else {
			c.in.kill(run)
		}
		if !served {
			unborn++
			if !bytes.Contains(run.log.Bytes(), []byte("service: ")) {
				t.Errorf("%s: the service ended at its start without a word: %s", what, &run.log)
			}
		}
		if round%2 == 0 && run.status != exitDone && run.status != exitFailed || bytes.Contains(run.log.Bytes(), []byte("panic")) {
			t.Errorf("%s: exit status %d\n%s", what, run.status, &run.log)
		}
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		n := bytes.Count(b, []byte("(INJECTED)"))
		if n == 0 {
			t.Logf("%s: none failed", what)
		}
		injected += n
	}
	c.in.under = nil
	c.in.mustStart()
	c.settle(rest)
	t.Logf("%d calls failed; %d requests were refused; %d runs ended at their start", injected, c.refused, unborn)
	if injected == 0 || c.refused == 0 {
		t.Errorf("%d calls failed, and %d requests were refused: nothing was tested", injected, c.refused)
	}
	for _, fault := range c.faults() {
		t.Error(fault)
	}
	c.finish()
}

// awaitServing waits until the run takes requests, and tells everybody where,
// though it may not be ready to store anything. It returns false when the run
// has ended before.
func (in *instance) awaitServing(r *serviceRun) bool {
	in.tb.Helper()
	select {
	case base := <-r.base:
		in.setBase(base)
		return true
	case <-r.exited:
		return false
	case <-time.After(30 * time.Second):
		in.tb.Fatal("the service did not say where it is")
		return false
	}
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

// required says whether tests of a kind must not be skipped.
func required(word string) bool {
	return slices.Contains(strings.Split(os.Getenv("SERVICE_TEST_REQUIRE"), ","), word)
}
