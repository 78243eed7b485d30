// Package chaos puts load on a service while a test disturbs it, for example by killing it. Then it
// compares the stored data with a ledger of everything that the service acknowledged and everything
// that arrived.
package chaos

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"service/test/harness"
)

var seed = flag.Uint64("chaos.seed", 0, "seed of the random choices of a test; 0 chooses one")

// The kinds of receivers. Each program has one of each.
const (
	Healthy = "healthy" // responds 200 at once
	Flaky   = "flaky"   // responds 500 now and then
	Slow    = "slow"    // responds 200 after a while
	Hanging = "hanging" // does not respond until Settle repairs it
)

// wantedBy lists the events that each kind of receiver subscribes to.
var wantedBy = map[string][]string{
	Healthy: {"content_published", "content_updated", "channel_archived"},
	Flaky:   {"content_published"},
	Slow:    {"content_updated"},
	Hanging: {"channel_archived"},
}

const (
	maxInFlight  = 4 // deliveries in flight per subscription
	maxPings     = 4 // pings in flight per subscription
	pace         = 15 * time.Millisecond
	slowAnswer   = 20 * time.Millisecond
	flakyEvery   = 5 // the flaky receiver responds 500 to one of this many requests
	resumeBound  = 2 * time.Second
	strikeWithin = 200 // steps of the load between a start and a strike, at most
	settleAfter  = 100 // steps of the load after the last strike
)

// ResumeWithin returns how soon after a restart the service must repeat an interrupted
// attempt: one second as documented, and more for a busy machine. Tests check it only
// without -short.
func ResumeWithin() time.Duration { return harness.Scale(resumeBound) }

// Chaos is a service with publishers, receivers and their ledger.
type Chaos struct {
	Instance *harness.Instance
	Rand     *rand.Rand // only for the goroutine of the test
	Seed     uint64
	Programs []*Program
	// UnreliableDisk means that writes may fail while the service runs, so that the
	// repetition of an interrupted attempt may be late.
	UnreliableDisk bool

	tb       testing.TB
	base     string        // URL of the receivers
	repaired chan struct{} // closed when the hanging receivers may respond

	mu         sync.Mutex
	powerOff   bool                // ignore what the service acknowledges
	events     map[string]*event   // by ID
	batches    [][]string          // IDs that were published together
	registered []*registration     // in order of creation
	arrivals   map[string]*arrival // by delivery ID
	requests   map[string]int      // by receiver
	refused    int                 // number of valid requests that the service refused
	steps      int                 // number of completed publisher requests, and of requests that receivers got
	violations []string            // broken promises seen during the load
}

// Program is a program with a token of all scopes and its subscriptions.
type Program struct {
	ID, Token     string
	Subscriptions map[string]string // kind of receiver → ID
}

// New starts the service on a data directory, with two programs.
func New(tb testing.TB, binary, data string, flags ...string) *Chaos {
	tb.Helper()
	c := &Chaos{
		tb: tb, Seed: *seed, repaired: make(chan struct{}),
		events: make(map[string]*event), arrivals: make(map[string]*arrival), requests: make(map[string]int),
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	tb.Logf("-chaos.seed %d", c.Seed)
	c.Rand = rand.New(rand.NewPCG(c.Seed, 0))
	c.Instance = harness.NewInstance(tb, binary, data, append(flags, "--retry-schedule", "20ms,40ms,80ms,160ms", "--attempt-timeout", "500ms",
		"--max-in-flight", fmt.Sprint(maxInFlight), "--max-subscriptions", "0", "--batch-size", "200", "--grace", "2s", "--log-level", "warn")...)
	c.base = harness.Listen(tb, c)
	for _, id := range []string{"acme", "beta"} {
		c.Programs = append(c.Programs, &Program{ID: id, Token: c.Instance.Token(id), Subscriptions: make(map[string]string)})
	}
	c.Instance.MustStart()
	for _, p := range c.Programs {
		for kind, names := range wantedBy {
			p.Subscriptions[kind] = c.Instance.Subscribe(p.Token, harness.Subscription{URL: c.base + "/" + p.ID + "/" + kind,
				Events: harness.Events(names...)})
		}
	}
	tb.Cleanup(c.repair)
	return c
}

func (c *Chaos) repair() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.repaired:
	default:
		close(c.repaired)
	}
}

// Start starts the publishers. The returned function stops them and waits for them.
func (c *Chaos) Start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for i, p := range c.Programs {
		for j := range 3 {
			rng := rand.New(rand.NewPCG(c.Seed, uint64(10*i+j+1)))
			working.Go(func() { c.publish(ctx, p, rng) })
		}
		rng := rand.New(rand.NewPCG(c.Seed, uint64(10*i)+100))
		working.Go(func() { c.register(ctx, p, rng) })
	}
	return func() {
		cancel()
		working.Wait()
	}
}

// Steps returns how many steps the load has made: requests of publishers that ended in any way, and
// requests that receivers got.
func (c *Chaos) Steps() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}

func (c *Chaos) step() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps++
}

// AwaitSteps waits until the load has made n more steps. It returns false if the process ends
// first.
func (c *Chaos) AwaitSteps(p *harness.Process, n int) bool {
	c.tb.Helper()
	alive, end := true, c.Steps()+n
	harness.WaitFor(c.tb, "the load to go on", func() bool {
		select {
		case <-p.Exited:
			alive = false
		default:
		}
		return !alive || c.Steps() >= end
	})
	return alive
}

// Settle lets the publishers work undisturbed, stops them, repairs the hanging receivers, and waits
// until all deliveries have ended.
func (c *Chaos) Settle(stop func()) {
	c.tb.Helper()
	c.AwaitSteps(c.Instance.Last(), settleAfter)
	stop()
	c.repair()
	c.drain()
}

// Run calls strike after random numbers of load steps, or while the service starts. It restarts the
// service each time, and settles at the end.
func (c *Chaos) Run(strikes int, strike func(*harness.Process)) {
	c.tb.Helper()
	in := c.Instance
	stop := c.Start()
	defer stop()
	p := in.Last()
	for n := range strikes {
		alive := true
		if n%4 == 3 { // while the service starts
			alive = harness.AwaitWork(c.tb, p, time.Duration(c.Rand.IntN(60))*time.Millisecond)
		} else {
			if p.Ready.IsZero() && !in.AwaitReady(p) {
				c.tb.Fatalf("before strike %d: the service did not start: exit status %d\n%s", n, p.Status, &p.Log)
			}
			alive = c.AwaitSteps(p, 1+c.Rand.IntN(strikeWithin))
		}
		if !alive {
			c.tb.Fatalf("before strike %d: the service exited by itself with status %d:\n%s", n, p.Status, &p.Log)
		}
		strike(p)
		if bytes.Contains(p.Log.Bytes(), []byte("panic")) {
			c.tb.Fatalf("process %d:\n%s", p.Number, &p.Log)
		}
		p = in.Start()
	}
	if !in.AwaitReady(p) {
		c.tb.Fatalf("after the last strike: the service did not start: exit status %d\n%s", p.Status, &p.Log)
	}
	c.Settle(stop)
}

// SetPower records whether the power is on.
//
// A kernel that shuts down a file system may report an fsync in progress as done. The
// service then acknowledges and sends what a machine without power could not. So while
// the power is off, Chaos only checks that the service sends nothing wrong.
func (c *Chaos) SetPower(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.powerOff = !on
}

// Refused returns how many valid requests the service refused.
func (c *Chaos) Refused() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

func (c *Chaos) violation(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, fmt.Sprintf(format, args...))
}

// Check reports every broken promise as a test error.
func (c *Chaos) Check() {
	c.tb.Helper()
	for _, fault := range c.Faults() {
		c.tb.Error(fault)
	}
}

// Finish stops the service with SIGTERM and checks the whole database with SQLite.
func (c *Chaos) Finish() {
	c.tb.Helper()
	if status := c.Instance.Stop(c.Instance.Last()); status != harness.ExitOK {
		c.tb.Errorf("exit status after SIGTERM: got %d, want %d", status, harness.ExitOK)
	}
	for _, fault := range harness.DatabaseFaults(c.tb, c.Instance.Data) {
		c.tb.Error(fault)
	}
}
