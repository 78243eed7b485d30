package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"service/internal/control"
	"service/webhook"
)

var (
	crashKills = flag.Int("crash.kills", 30, "how often TestEndToEnd kills the service")
	crashSeed  = flag.Uint64("crash.seed", 0, "the seed of TestEndToEnd's chaos; 0 draws one")
)

// goesOnWithin is how soon after the restart of the service an interrupted
// attempt must have been made again. The promise is a second; the rest is for
// a test machine that is busy with other things. What was measured is logged.
const goesOnWithin = 2 * time.Second

// testInterrupted kills the service in the middle of each attempt of one
// delivery: each time the delivery goes on, the same in id and bytes, and
// after the fifth attempt it is at its end.
func testInterrupted(t *testing.T, binary string) {
	type request struct {
		id   string
		body []byte
		at   time.Time
	}
	arrived := make(chan request)
	hold := make(chan struct{})
	receiver := listenLoopback(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(body, []byte(`"name":"ping"`)) {
			return
		}
		select {
		case arrived <- request{r.Header.Get("X-Service-Delivery"), body, time.Now()}:
		case <-hold:
		}
		select {
		case <-r.Context().Done():
		case <-hold:
		}
	}))
	t.Cleanup(func() { close(hold) })

	in := newInstance(t, binary, t.TempDir(), "--retry-schedule", "1h,1h,1h,1h", "--log-level", "warn")
	token := in.token("acme")
	run := in.mustStart()
	base, _ := in.await(t.Context())
	subscription := in.subscribe(token, newSubscription{URL: receiver, Events: eventList("content_updated")})
	event := map[string]any{"name": "content_updated", "version": "1", "content_id": 7}
	if status, err := in.call(t.Context(), token, "POST", base+"/v2/events", event, nil); err != nil || status != http.StatusCreated {
		t.Fatalf("publish: status %d, %v", status, err)
	}

	var first request
	var slowest time.Duration // from the start of the process
	for attempt := 1; attempt <= webhook.MaxAttempts; attempt++ {
		select {
		case r := <-arrived:
			if attempt == 1 {
				first = r
			} else {
				slowest = max(slowest, r.at.Sub(run.started))
			}
			if r.id != first.id || !bytes.Equal(r.body, first.body) {
				t.Errorf("attempt %d: got delivery %s\n%s\nwant %s\n%s", attempt, r.id, r.body, first.id, first.body)
			}
		case <-time.After(goesOnWithin):
			t.Fatalf("attempt %d was not made within %s of the restart", attempt, goesOnWithin)
		}
		in.kill(run)
		run = in.mustStart()
	}
	t.Logf("an interrupted attempt arrived again at most %s after the service was started again", slowest.Round(time.Millisecond))

	d, _, err := get[deliveryRead](in, token, "/v2/webhooks/subscriptions/"+subscription+"/deliveries/"+first.id)
	if err != nil {
		t.Fatal(err)
	}
	if d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureAttemptsExhausted || len(d.Attempts) != webhook.MaxAttempts {
		t.Errorf("after %d interrupted attempts: got status %s (%s), %d attempts; want failed (attempts_exhausted), %[1]d attempts",
			webhook.MaxAttempts, d.Status, d.FailureReason, len(d.Attempts))
	}
	for i, a := range d.Attempts {
		if a.Number != i+1 || a.Error.Code != webhook.ErrorInterrupted || a.ResponseStatus != 0 {
			t.Errorf("attempt %d: got %+v, want it interrupted", i+1, a)
		}
	}
	// It has failed already; a sixth attempt would have been made by the end.
	if status := in.stop(run); status != exitDone {
		t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
	select {
	case r := <-arrived:
		t.Errorf("delivery %s arrived a sixth time", r.id)
	default:
	}
}

// testKill kills the service with SIGKILL at random moments, while publishers
// publish and receivers receive.
func testKill(t *testing.T, binary string) {
	c := newChaos(t, binary, t.TempDir())
	c.run(*crashKills, func(r *serviceRun) { c.in.kill(r) })
	for _, fault := range c.faults() {
		t.Error(fault)
	}
	c.finish()
}

// The receivers of the chaos, one of each kind for each program.
const (
	healthy = "healthy" // answers 200 at once
	flaky   = "flaky"   // answers 500 now and then
	slow    = "slow"    // answers 200 after a while
	hanging = "hanging" // does not answer, until it is repaired at the end
)

var wantedBy = map[string][]string{
	healthy: {"content_published", "content_updated", "channel_archived"},
	flaky:   {"content_published"},
	slow:    {"content_updated"},
	hanging: {"channel_archived"},
}

const (
	chaosInFlight = 4 // deliveries in flight per subscription
	chaosPings    = 4 // pings in flight per subscription, at the most
	chaosPace     = 15 * time.Millisecond
	slowness      = 20 * time.Millisecond
	flakiness     = 5 // of so many requests one is refused
)

// chaos is a service that dies over and over, with those who use it, and a
// ledger of all that was acknowledged and all that arrived.
type chaos struct {
	t        testing.TB
	in       *instance
	rng      *rand.Rand // of the goroutine that strikes
	seed     uint64
	programs []*chaosProgram

	repaired chan struct{} // closed: the hanging receivers answer
	disk     bool          // the disk can be written to whenever the power is on

	mu        sync.Mutex
	dark      bool                  // the power is off: nothing that the service says counts
	events    map[string]*published // by id
	batches   [][]string            // ids that were published all or nothing
	made      []*registered
	arrivals  map[string]*arrived // by delivery id
	requests  map[string]int      // by receiver
	refused   int                 // requests that were right
	surprises []string            // what must not happen, seen while running
}

type chaosProgram struct {
	id, token     string
	subscriptions map[string]string // kind → id
}

// published is an event that a publisher has sent.
type published struct {
	program string
	name    string
	number  int // in a field of the event, so that it can be told whole
	acked   bool
}

// registered is a subscription and a token that were acknowledged.
type registered struct {
	program      *chaosProgram
	subscription string // "" if it was not acknowledged
	url          string
	token        string // the same
}

// arrived is a delivery as its receiver saw it.
type arrived struct {
	subscription string
	sum          [sha256.Size]byte
	events       []string
	times        int // requests that began to arrive while the power was on
	ok           int // of these, answered 200
	// answered says whether any request was answered 200, even one that came
	// when the power was about to go: what the service recorded of it in the
	// last moment before may well have reached the disk.
	answered bool
}

// newChaos starts the service on a data directory, with two programs.
func newChaos(t testing.TB, binary, data string, flags ...string) *chaos {
	t.Helper()
	c := &chaos{
		t: t, seed: *crashSeed, repaired: make(chan struct{}), disk: true,
		events: make(map[string]*published), arrivals: make(map[string]*arrived), requests: make(map[string]int),
	}
	if c.seed == 0 {
		c.seed = rand.Uint64()
	}
	t.Logf("-crash.seed %d", c.seed)
	c.rng = rand.New(rand.NewPCG(c.seed, 0))
	c.in = newInstance(t, binary, data, append(flags, "--retry-schedule", "20ms,40ms,80ms,160ms", "--attempt-timeout", "500ms",
		"--max-in-flight", fmt.Sprint(chaosInFlight), "--max-subscriptions", "0", "--batch-size", "200", "--grace", "2s", "--log-level", "warn")...)
	base := listenLoopback(t, c)
	for _, id := range []string{"acme", "beta"} {
		c.programs = append(c.programs, &chaosProgram{id: id, token: c.in.token(id), subscriptions: make(map[string]string)})
	}
	c.in.mustStart()
	for _, p := range c.programs {
		for kind, names := range wantedBy {
			p.subscriptions[kind] = c.in.subscribe(p.token, newSubscription{URL: base + "/" + p.id + "/" + kind, Events: eventList(names...)})
		}
	}
	t.Cleanup(c.repair)
	return c
}

func (c *chaos) repair() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.repaired:
	default:
		close(c.repaired)
	}
}

// work has everybody work until the returned function is called, which returns
// when they are at rest.
func (c *chaos) work() (rest func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for i, p := range c.programs {
		for j := range 3 {
			rng := rand.New(rand.NewPCG(c.seed, uint64(10*i+j+1)))
			working.Go(func() { c.publish(ctx, p, rng) })
		}
		rng := rand.New(rand.NewPCG(c.seed, uint64(10*i)+100))
		working.Go(func() { c.register(ctx, p, rng) })
	}
	return func() {
		cancel()
		working.Wait()
	}
}

// settle gives everybody some time to work without a strike, puts them to
// rest, repairs the hanging receivers, and waits until all the work is done.
func (c *chaos) settle(rest func()) {
	c.t.Helper()
	<-time.After(200 * time.Millisecond)
	rest()
	c.repair()
	c.drain()
}

// run has the service struck so many times, at random moments, with everybody
// at work, and leaves it running, everybody at rest and all the work done.
func (c *chaos) run(strikes int, strike func(*serviceRun)) {
	c.t.Helper()
	rest := c.work()
	defer rest()
	run := c.in.last()
	for n := range strikes {
		var after time.Duration
		if n%4 == 3 { // during the start
			after = time.Duration(c.rng.IntN(60)) * time.Millisecond
		} else {
			if run.ready.IsZero() && !c.in.awaitReady(run) {
				c.t.Fatalf("strike %d: the service ended at its start, with status %d:\n%s", n, run.status, &run.log)
			}
			after = time.Duration(20+c.rng.IntN(380)) * time.Millisecond
		}
		select {
		case <-time.After(after):
		case <-run.exited:
			c.t.Fatalf("strike %d: the service ended by itself, with status %d:\n%s", n, run.status, &run.log)
		}
		strike(run)
		if bytes.Contains(run.log.Bytes(), []byte("panic")) {
			c.t.Fatalf("run %d:\n%s", run.number, &run.log)
		}
		run = c.in.start()
	}
	if !c.in.awaitReady(run) {
		c.t.Fatalf("the service ended at its last start, with status %d:\n%s", run.status, &run.log)
	}
	c.settle(rest)
}

// publish publishes events until ctx ends: singly, in arrays and in lines. What
// was not acknowledged is published again by the same ids, or left in doubt.
func (c *chaos) publish(ctx context.Context, p *chaosProgram, rng *rand.Rand) {
	tick := time.NewTicker(chaosPace)
	defer tick.Stop()
	var body any
	var ids []string
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if body == nil {
			body, ids = c.compose(p, rng)
		}
		base, ok := c.in.await(ctx)
		if !ok {
			return
		}
		status, err := c.in.call(context.WithoutCancel(ctx), p.token, "POST", base+"/v2/events", body, nil)
		switch {
		case status == http.StatusCreated:
			c.acknowledge(ids)
			body = nil
		case err == nil && !c.mayRefuse(status):
			c.surprise("publishing %s: status %d", ids, status)
			body = nil
		case rng.IntN(2) == 0:
			body = nil
		}
	}
}

// compose makes up to eight new events, and enters them into the ledger.
func (c *chaos) compose(p *chaosProgram, rng *rand.Rand) (body any, ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []json.RawMessage
	for range 1 + rng.IntN(8) {
		names := wantedBy[healthy]
		e := &published{program: p.id, name: names[rng.IntN(len(names))], number: len(c.events)}
		if e.name == "channel_archived" && rng.IntN(4) > 0 {
			e.name = names[0] // for the hanging receiver a few are enough
		}
		id := uuid.NewString()
		c.events[id] = e
		ids = append(ids, id)
		all = append(all, e.json(id))
	}
	switch rng.IntN(3) {
	case 0:
		// Lines are stored as they come: not all or nothing.
		lines := ndjson{}
		for _, e := range all {
			lines = append(append(lines, e...), '\n')
		}
		return lines, ids
	case 1:
		c.batches = append(c.batches, ids)
		return map[string]any{"events": all}, ids
	}
	for _, id := range ids[1:] {
		delete(c.events, id)
	}
	return []byte(all[0]), ids[:1]
}

// json is the event as it is published, and as it must be found again.
func (e *published) json(id string) []byte {
	own := fmt.Sprintf(`"content_id":%d,"channel_ids":[%[1]d,2]`, e.number)
	switch e.name {
	case "content_updated":
		own = fmt.Sprintf(`"content_id":%d`, e.number)
	case "channel_archived":
		own = fmt.Sprintf(`"channel_id":%d,"channel_name":%q`, e.number, strings.Repeat("n", e.number%50))
	}
	return fmt.Appendf(nil, `{"id":"%s","timestamp":"2026-03-14T08:24:48.644Z","name":"%s","version":"1",%s}`, id, e.name, own)
}

// mayRefuse says whether a status is one that the service may refuse a request
// with that is right, and counts it. It must be the one that says to try again;
// but while the power is off it may be any that blames the service.
func (c *chaos) mayRefuse(status int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused++
	return status == http.StatusServiceUnavailable || c.dark && status >= 500
}

func (c *chaos) acknowledge(ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.events[id].acked = c.events[id].acked || !c.dark
	}
}

// darken says whether the power is off.
//
// A kernel that stops a file system may report an fsync that is under way as
// done although it is not. The service then acknowledges and sends what a
// machine without power could not have. So what it says after the power has
// gone is held to one promise alone: not to send anything wrong.
func (c *chaos) darken(dark bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dark = dark
}

func (c *chaos) surprise(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.surprises = append(c.surprises, fmt.Sprintf(format, args...))
}

// register creates subscriptions and tokens until ctx ends.
func (c *chaos) register(ctx context.Context, p *chaosProgram, rng *rand.Rand) {
	healthyURL := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(20+rng.IntN(60)) * time.Millisecond):
		}
		base, ok := c.in.await(ctx)
		if !ok {
			return
		}
		if healthyURL == "" {
			var answer struct{ Data struct{ URL string } }
			status, err := c.in.call(ctx, p.token, "GET", base+"/v2/webhooks/subscriptions/"+p.subscriptions[healthy], nil, &answer)
			if err != nil || status != http.StatusOK {
				continue
			}
			healthyURL = answer.Data.URL
		}
		made := &registered{program: p, url: fmt.Sprintf("%s?n=%d", healthyURL, rng.Uint64())}
		var answer struct{ Data struct{ ID string } }
		status, err := c.in.call(context.WithoutCancel(ctx), p.token, "POST", base+"/v2/webhooks/subscriptions",
			newSubscription{URL: made.url, Events: eventList("content_deleted")}, &answer)
		switch {
		case status == http.StatusCreated && err == nil:
			made.subscription = answer.Data.ID
		case err == nil && !c.mayRefuse(status):
			c.surprise("creating a subscription: status %d", status)
		}
		if admin, err := control.Dial(ctx, c.in.data); err == nil {
			_, secret, err := admin.CreateToken(ctx, webhook.NewToken{ProgramID: p.id, UserID: "chaos", Scopes: []webhook.Scope{webhook.ScopeWebhooksRead}})
			if err == nil {
				made.token = secret
			}
			admin.Close()
		}
		c.mu.Lock()
		if !c.dark {
			c.made = append(c.made, made)
		}
		c.mu.Unlock()
	}
}

// ServeHTTP is every receiver: /PROGRAM/KIND.
func (c *chaos) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	id := r.Header.Get("X-Service-Delivery")
	body, err := io.ReadAll(r.Body)

	c.mu.Lock()
	a := c.arrivals[id]
	if a == nil {
		a = &arrived{subscription: r.Header.Get("X-Service-Subscription")}
		c.arrivals[id] = a
	}
	counts := !c.dark
	if counts {
		a.times++
	}
	c.requests[r.URL.Path]++
	refused := kind == flaky && c.requests[r.URL.Path]%flakiness == 0
	c.mu.Unlock()
	if err != nil {
		return // the service was killed while it was sending
	}

	var delivery struct {
		ID           string `json:"delivery_id"`
		Subscription string `json:"subscription_id"`
		Program      string `json:"program_id"`
		Events       []struct{ ID string }
	}
	if err := json.Unmarshal(body, &delivery); err != nil {
		c.surprise("the body of delivery %s is not JSON: %v", id, err)
	}
	if delivery.ID != id || delivery.Subscription != r.Header.Get("X-Service-Subscription") || delivery.Program != r.Header.Get("X-Service-Program") {
		c.surprise("the headers of delivery %s name other ids than its body, %s", id, body)
	}
	sum := sha256.Sum256(body)
	if len(delivery.Events) == 0 {
		c.surprise("delivery %s arrived without events", id)
	}
	c.mu.Lock()
	switch {
	case a.events == nil:
		a.sum = sum
		for _, e := range delivery.Events {
			a.events = append(a.events, e.ID)
		}
	case a.sum != sum:
		c.surprises = append(c.surprises, fmt.Sprintf("delivery %s arrived with other bytes than before", id))
	}
	c.mu.Unlock()

	switch {
	case refused:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case kind == slow:
		select {
		case <-time.After(slowness):
		case <-r.Context().Done():
		}
	case kind == hanging:
		select {
		case <-c.repaired:
		case <-r.Context().Done():
			return
		}
	}
	c.mu.Lock()
	a.answered = true
	if counts {
		a.ok++
	}
	c.mu.Unlock()
}

// drain waits until every event in the log has been put into its deliveries and
// nothing is under way any more, for a bounded time: what is then not right,
// or cannot be read at all, is found by faults.
func (c *chaos) drain() {
	c.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, p := range c.programs {
		events, err := feed[webhook.EventRef](c.in, p.token, "/v2/events")
		if err != nil {
			return
		}
		for kind, id := range p.subscriptions {
			for {
				if done, err := c.drained(p, id, events, wantedBy[kind]); err != nil {
					return
				} else if done {
					break
				}
				select {
				case <-tick.C:
				case <-deadline:
					return
				}
			}
		}
	}
}

// drained says whether the subscription's deliveries are at their end, with
// all of the events in them that have one of the names.
func (c *chaos) drained(p *chaosProgram, subscription string, events []webhook.EventRef, names []string) (bool, error) {
	deliveries, err := feed[deliveryRead](c.in, p.token, "/v2/webhooks/subscriptions/"+subscription+"/deliveries")
	if err != nil {
		return false, err
	}
	within := make(map[string]bool)
	for _, d := range deliveries {
		if !d.Status.Final() {
			return false, nil
		}
		for _, e := range d.Events {
			within[e.ID] = true
		}
	}
	return !slices.ContainsFunc(events, func(e webhook.EventRef) bool {
		return slices.Contains(names, e.Name) && !within[e.ID]
	}), nil
}

// faults compares what the service says with the ledger, once it has drained,
// and returns every broken promise.
func (c *chaos) faults() (faults []string) {
	c.t.Helper()
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	c.mu.Lock()
	defer c.mu.Unlock()
	faults = append(faults, c.surprises...)

	stats := struct{ acked, inDoubt, deliveries, repeated, interrupted, exhausted, again, forced int }{}
	var slowest time.Duration
	stored := make(map[string]map[string]int) // by program, the seq of each event
	for _, p := range c.programs {
		events, err := feed[json.RawMessage](c.in, p.token, "/v2/events")
		if err != nil {
			fault("%v", err)
		}
		seqs := make(map[string]int)
		stored[p.id] = seqs
		for i, raw := range events {
			var e struct {
				ID  string
				Seq int
			}
			if err := json.Unmarshal(raw, &e); err != nil {
				c.t.Fatal(err)
			}
			if want := len(events) - i; e.Seq != want {
				fault("program %s: event %s has seq %d in place %d of the log", p.id, e.ID, e.Seq, want)
			}
			seqs[e.ID] = e.Seq
			sent := c.events[e.ID]
			if sent == nil || sent.program != p.id {
				fault("program %s has event %s, which was not published to it", p.id, e.ID)
				continue
			}
			if want := bytes.TrimSuffix(sent.json(e.ID), []byte("}")); !bytes.HasPrefix(raw, want) {
				fault("event %s is not whole:\n got %s\nwant %s…", e.ID, raw, want)
			}
		}
	}
	lost := 0
	for id, e := range c.events {
		_, found := stored[e.program][id]
		switch {
		case e.acked && !found:
			lost++
		case e.acked:
			stats.acked++
		case found:
			stats.inDoubt++
		}
	}
	if lost > 0 {
		fault("of the %d events that were acknowledged, %d are not there", lost+stats.acked, lost)
	}
	for _, ids := range c.batches {
		there := 0
		for _, id := range ids {
			if _, ok := stored[c.events[id].program][id]; ok {
				there++
			}
		}
		if there != 0 && there != len(ids) {
			fault("of %d events that were published together, %d are there", len(ids), there)
		}
	}

	known := make(map[string]bool) // deliveries
	for _, p := range c.programs {
		for kind, subscription := range p.subscriptions {
			path := "/v2/webhooks/subscriptions/" + subscription + "/deliveries"
			deliveries, err := feed[deliveryRead](c.in, p.token, path)
			if err != nil {
				fault("an acknowledged subscription to the %s receiver: %v", kind, err)
			}
			stats.deliveries += len(deliveries)
			in := make(map[string]int) // of how many deliveries an event is part
			cut := make(map[int]int)   // interrupted attempts of each run
			for _, d := range deliveries {
				known[d.ID] = true
				a := c.arrivals[d.ID]
				if a == nil {
					a = &arrived{}
				}
				if d.AttemptsMade > webhook.MaxAttempts || a.times > d.AttemptsMade {
					fault("delivery %s arrived %d times, in %d attempts", d.ID, a.times, d.AttemptsMade)
				}
				switch {
				case !d.Status.Final():
					fault("delivery %s to the %s receiver is still %s after %d attempts", d.ID, kind, d.Status, d.AttemptsMade)
				case d.Status == webhook.StatusSuccess && !a.answered:
					fault("delivery %s is a success, but was never answered 200", d.ID)
				case d.Status == webhook.StatusFailed && d.FailureReason != webhook.FailureAttemptsExhausted:
					fault("delivery %s failed: %s", d.ID, d.FailureReason)
				case d.Status == webhook.StatusFailed:
					stats.exhausted++
				}
				last := 0
				var ids []string
				for _, e := range d.Events {
					ids = append(ids, e.ID)
					if e.Name == webhook.EventPing {
						continue
					}
					in[e.ID]++
					if seq := stored[p.id][e.ID]; seq <= last {
						fault("delivery %s has event %s out of accept order", d.ID, e.ID)
					} else {
						last = seq
					}
				}
				if a.events != nil && (!slices.Equal(a.events, ids) || a.subscription != subscription) {
					fault("delivery %s arrived for subscription %s with %s, and is remembered for %s with %s", d.ID, a.subscription, a.events, subscription, ids)
				}
				if d.AttemptsMade == 1 && a.times <= 1 && d.Status == webhook.StatusSuccess {
					continue
				}

				stats.repeated++
				one, _, err := get[deliveryRead](c.in, p.token, path+"/"+d.ID)
				if err != nil {
					fault("%v", err)
					continue
				}
				unanswered, interrupted := 0, 0
				for i, at := range one.Attempts {
					if at.Number != i+1 {
						fault("delivery %s: attempt %d stands in place %d", d.ID, at.Number, i+1)
					}
					if at.Error.Code != webhook.ErrorNone {
						unanswered++
					}
					if at.Error.Code != webhook.ErrorInterrupted {
						continue
					}
					interrupted++
					cut[c.runAt(at.StartedAt)]++
					if kind == healthy && i+1 < len(one.Attempts) {
						slowest = max(slowest, c.waited(at.StartedAt, one.Attempts[i+1].StartedAt))
					}
				}
				if len(one.Attempts) != one.AttemptsMade {
					fault("delivery %s has %d attempts, of which %d are remembered", d.ID, one.AttemptsMade, len(one.Attempts))
				}
				stats.interrupted += interrupted
				// It may arrive again after a 200 only when the service
				// could not know of the 200: no more often than attempts
				// were interrupted, which is bounded below by what was in
				// flight, or ended at their timeout.
				if a.ok > 1+unanswered {
					fault("delivery %s was answered 200 %d times, with %d attempts that had no answer", d.ID, a.ok, unanswered)
				}
				if a.ok > 1 {
					stats.again += a.ok - 1
					stats.forced += min(a.ok-1, interrupted)
				}
			}
			for run, n := range cut {
				if run < 0 || run == len(c.in.runs)-1 {
					fault("%d attempts to the %s receiver were interrupted although nothing struck", n, kind)
				}
				if n > chaosInFlight+chaosPings {
					fault("run %d: %d attempts to the %s receiver were in flight, want at most %d", run, n, kind, chaosInFlight+chaosPings)
				}
			}
			for id, seq := range stored[p.id] {
				want := 0
				if slices.Contains(wantedBy[kind], c.events[id].name) {
					want = 1
				}
				if in[id] != want {
					fault("event %d of program %s is in %d deliveries to the %s receiver, want %d", seq, p.id, in[id], kind, want)
				}
			}
		}
	}
	for _, m := range c.made {
		if m.subscription != "" {
			path := "/v2/webhooks/subscriptions/" + m.subscription
			s, _, err := get[struct{ URL string }](c.in, m.program.token, path)
			if err != nil || s.URL != m.url {
				fault("the acknowledged subscription %s: got %q, %v; want %q", m.subscription, s.URL, err, m.url)
			}
			pings, _, err := get[[]deliveryRead](c.in, m.program.token, path+"/deliveries")
			if err != nil || len(pings) != 1 || len(pings[0].Events) != 1 || pings[0].Events[0].Name != webhook.EventPing {
				fault("the pings of the acknowledged subscription %s: got %+v, %v; want one", m.subscription, pings, err)
			}
			for _, d := range pings {
				known[d.ID] = true
				if a := c.arrivals[d.ID]; d.Status == webhook.StatusSuccess && (a == nil || !a.answered) {
					fault("ping %s is a success, but was never answered 200", d.ID)
				}
			}
		}
		if m.token != "" {
			if _, _, err := get[json.RawMessage](c.in, m.token, "/v2/webhooks/subscriptions"); err != nil {
				fault("a token that was acknowledged: %v", err)
			}
		}
	}
	for id, a := range c.arrivals {
		if a.times > webhook.MaxAttempts {
			fault("delivery %s arrived %d times", id, a.times)
		}
		if !known[id] && a.times > 0 && c.ours(a.subscription) {
			fault("delivery %s arrived, but is not remembered", id)
		}
	}
	if c.disk && slowest > goesOnWithin {
		fault("an interrupted attempt was made again only %s after the service was started again", slowest)
	}
	c.t.Logf("%d runs; %d events acknowledged, %d stored but not acknowledged; %d deliveries, %d of them in more than one attempt, %d attempts interrupted, %d deliveries failed for good, %d times one arrived again after a 200, %d of these after an interruption; %d subscriptions and tokens; interrupted attempts to the healthy receivers were made again at most %s after the service was started again",
		len(c.in.runs), stats.acked, stats.inDoubt, stats.deliveries, stats.repeated, stats.interrupted, stats.exhausted, stats.again, stats.forced, len(c.made), slowest.Round(time.Millisecond))
	return faults
}

// ours says whether the subscription's creation was acknowledged.
func (c *chaos) ours(subscription string) bool {
	for _, p := range c.programs {
		for _, id := range p.subscriptions {
			if id == subscription {
				return true
			}
		}
	}
	return slices.ContainsFunc(c.made, func(m *registered) bool { return m.subscription == subscription })
}

// runAt returns the number of the run that was alive at a time, -1 for none.
func (c *chaos) runAt(at time.Time) int {
	return slices.IndexFunc(c.in.runs, func(r *serviceRun) bool {
		// The service writes milliseconds.
		return at.After(r.started.Add(-time.Millisecond)) && (r.ended.IsZero() || at.Before(r.ended))
	})
}

// waited returns for how long the service had been running again, after the
// run of one attempt had ended, when it made the next.
func (c *chaos) waited(attempt, next time.Time) (d time.Duration) {
	for _, r := range c.in.runs {
		if r.started.Before(attempt) || next.Before(r.started) {
			continue
		}
		end := next
		if !r.ended.IsZero() && r.ended.Before(next) {
			end = r.ended
		}
		d += end.Sub(r.started)
	}
	return d
}

// finish ends the service as an operator would, and has SQLite look through
// the whole database.
func (c *chaos) finish() {
	c.t.Helper()
	if status := c.in.stop(c.in.last()); status != exitDone {
		c.t.Errorf("exit status %d after SIGTERM, want %d", status, exitDone)
	}
	found, err := databaseFaults(c.in.data)
	if err != nil {
		c.t.Error(err)
	}
	for _, fault := range found {
		c.t.Error(fault)
	}
}
