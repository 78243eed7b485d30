// Package chaos keeps a service busy while a test strikes it, and then compares
// what the service has stored with a ledger of everything that was acknowledged
// and everything that arrived.
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
	Healthy = "healthy" // answers 200 at once
	Flaky   = "flaky"   // answers 500 now and then
	Slow    = "slow"    // answers 200 after a while
	Hanging = "hanging" // does not answer until it is repaired at the end
)

// wantedBy lists the events that each kind of receiver subscribes to.
var wantedBy = map[string][]string{
	Healthy: {"content_published", "content_updated", "channel_archived"},
	Flaky:   {"content_published"},
	Slow:    {"content_updated"},
	Hanging: {"channel_archived"},
}

const (
	maxInFlight = 4 // deliveries in flight per subscription
	maxPings    = 4 // pings in flight per subscription
	pace        = 15 * time.Millisecond
	slowAnswer  = 20 * time.Millisecond
	flakyEvery  = 5 // of so many requests the flaky receiver refuses one
	resumeBound = 2 * time.Second
)

// ResumeWithin returns how soon after the service is ready again an interrupted
// attempt must be made again. The promise is a second; the rest is for a machine
// that is busy with other things.
func ResumeWithin() time.Duration { return harness.Scale(resumeBound) }

// Chaos is a service with publishers and receivers at work, and their ledger.
type Chaos struct {
	Instance *harness.Instance
	Rand     *rand.Rand // of the goroutine that strikes
	Seed     uint64
	Programs []*Program
	// UnreliableDisk says that the disk may refuse writes while the service
	// runs, so that an interrupted attempt may have to wait.
	UnreliableDisk bool

	tb       testing.TB
	repaired chan struct{} // closed: the hanging receivers answer

	mu         sync.Mutex
	powerOff   bool                // nothing that the service says counts
	events     map[string]*event   // by id
	batches    [][]string          // ids that were published all or nothing
	registered []*registration     // in the order of their creation
	arrivals   map[string]*arrival // by delivery id
	requests   map[string]int      // by receiver
	refused    int                 // valid requests that the service refused
	violations []string            // of what must not happen, seen while running
}

// Program is a program with a token of all scopes and its subscriptions.
type Program struct {
	ID, Token     string
	Subscriptions map[string]string // kind of receiver → id
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
	base := harness.Listen(tb, c)
	for _, id := range []string{"acme", "beta"} {
		c.Programs = append(c.Programs, &Program{ID: id, Token: c.Instance.Token(id), Subscriptions: make(map[string]string)})
	}
	c.Instance.MustStart()
	for _, p := range c.Programs {
		for kind, names := range wantedBy {
			p.Subscriptions[kind] = c.Instance.Subscribe(p.Token, harness.Subscription{URL: base + "/" + p.ID + "/" + kind, Events: harness.Events(names...)})
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

// Start starts the publishers. The returned function stops them and waits until
// they have stopped.
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

// Settle lets the publishers work undisturbed for a while, stops them, repairs
// the hanging receivers, and waits until all deliveries have ended.
func (c *Chaos) Settle(stop func()) {
	c.tb.Helper()
	<-time.After(200 * time.Millisecond)
	stop()
	c.repair()
	c.drain()
}

// Run strikes the service so many times at random moments, with the publishers
// at work, starts it again after each strike, and settles.
func (c *Chaos) Run(strikes int, strike func(*harness.Process)) {
	c.tb.Helper()
	in := c.Instance
	stop := c.Start()
	defer stop()
	p := in.Last()
	for n := range strikes {
		var after time.Duration
		if n%4 == 3 { // during the start
			after = time.Duration(c.Rand.IntN(60)) * time.Millisecond
		} else {
			if p.Ready.IsZero() && !in.AwaitReady(p) {
				c.tb.Fatalf("strike %d: the service ended at its start, with status %d:\n%s", n, p.Status, &p.Log)
			}
			after = time.Duration(20+c.Rand.IntN(380)) * time.Millisecond
		}
		select {
		case <-time.After(after):
		case <-p.Exited:
			c.tb.Fatalf("strike %d: the service ended by itself, with status %d:\n%s", n, p.Status, &p.Log)
		}
		strike(p)
		if bytes.Contains(p.Log.Bytes(), []byte("panic")) {
			c.tb.Fatalf("process %d:\n%s", p.Number, &p.Log)
		}
		p = in.Start()
	}
	if !in.AwaitReady(p) {
		c.tb.Fatalf("the service ended at its last start, with status %d:\n%s", p.Status, &p.Log)
	}
	c.Settle(stop)
}

// SetPower says whether the power is on.
//
// A kernel that shuts a file system down may report an fsync in progress as done
// although it is not. The service then acknowledges and sends what a machine
// without power could not have. So after the power has gone the service is held
// to one promise only: to send nothing wrong.
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

// Check reports every broken promise as an error of the test.
func (c *Chaos) Check() {
	c.tb.Helper()
	for _, fault := range c.Faults() {
		c.tb.Error(fault)
	}
}

// Finish ends the service with SIGTERM, and has SQLite check the whole database.
func (c *Chaos) Finish() {
	c.tb.Helper()
	if status := c.Instance.Stop(c.Instance.Last()); status != harness.ExitOK {
		c.tb.Errorf("exit status %d after SIGTERM, want %d", status, harness.ExitOK)
	}
	for _, fault := range harness.DatabaseFaults(c.tb, c.Instance.Data) {
		c.tb.Error(fault)
	}
}
