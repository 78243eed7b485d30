package dispatcher

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// planRunner plays plans, each on a data directory copied from one empty database.
type planRunner struct {
	dir      string
	template string
	platform string // token
	seen     tally
}

func newPlanRunner(t *testing.T) *planRunner {
	t.Helper()
	st := &planRunner{dir: memoryDir(t)}
	st.template = filepath.Join(st.dir, "template")
	synctest.Test(t, func(t *testing.T) { // so that it contains no time in the future
		s, err := store.Open(context.Background(), store.Config{Dir: st.template})
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range simulatedPrograms {
			if _, _, err := storetest.CreateToken(context.Background(), s,
				webhook.NewToken{ProgramID: program, UserID: "u", Scopes: webhook.Scopes()}); err != nil {
				t.Fatal(err)
			}
		}
		if _, st.platform, err = storetest.CreateToken(context.Background(), s,
			webhook.NewToken{UserID: "u", Scopes: []webhook.Scope{webhook.ScopePlatform}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return st
}

// play plays a plan on a new data directory.
func (st *planRunner) play(t *testing.T, name string, p *plan) *violation {
	dir := filepath.Join(st.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"service.db", "secret.key"} {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(st.template, name)); err != nil {
			t.Fatal(err)
		}
	}
	return play(t, dir, st.platform, p, &st.seen)
}

// copyFile lets the kernel copy.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// planSeries plays plans, several in parallel, until one breaks a promise.
type planSeries struct {
	runner *planRunner
	gen    *rapid.Generator[plan]
	seeds  []uint64 // of each plan

	next, played atomic.Int64

	mu     sync.Mutex
	failed int        // index of the first plan that broke a promise, -1 for none
	found  *violation // the violation of that plan
}

func (r *planSeries) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed >= 0
}

// play plays plans until the series ends.
func (r *planSeries) play(t *testing.T) {
	for {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.seeds) || r.ended() {
			return
		}
		number := r.seeds[i]
		p := r.gen.Example(int(number))
		// The fake time of a bubble may stop for ever.
		watchdog := time.AfterFunc(maxPlanTime, func() {
			panic(fmt.Sprintf("plan %d broke a promise: %s: it did not end within %s\n%s", number, promiseIdle, maxPlanTime,
				rerunCommand(number)))
		})
		b := r.runner.play(t, fmt.Sprint("plan", i), &p)
		watchdog.Stop()
		if b == nil {
			r.played.Add(1)
			continue
		}
		r.mu.Lock()
		if r.failed < 0 || i < r.failed {
			r.failed, r.found = i, b
		}
		r.mu.Unlock()
	}
}

// maxPlanTime limits the real time of one plan, to many times the usual time.
const maxPlanTime = 5 * time.Minute

// rerunCommand returns the command that plays a plan again.
func rerunCommand(plan uint64) string {
	return fmt.Sprintf("to play the plan again: go test ./dispatcher -run '^TestSimulation$' -simulation.seed=%d -simulation.plans=1", plan)
}

// shrink shows the smallest plan that rapid finds for the same violation.
func (st *planRunner) shrink(t *testing.T, gen *rapid.Generator[plan], seed uint64, found *violation) {
	for name, value := range map[string]string{"rapid.seed": fmt.Sprint(seed), "rapid.checks": "5", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	t.Run("smallest", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			p := gen.Draw(rt, "plan")
			n++
			if b := st.play(t, fmt.Sprint("shrunk", n), &p); b != nil && b.promise == found.promise {
				rt.Logf("%s\n%s", b.detail, p)
				rt.Fatal(b.promise)
			}
		})
	})
}
