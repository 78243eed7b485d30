// Package dispatcher is the post office: it forms deliveries from the event
// log, sends their attempts, and records what came of each.
//
// It guarantees that an attempt is counted, on disk, before its first byte is
// sent; that a delivery is sent at most [webhook.MaxAttempts] times, crashes
// included, with the same id and the same bytes each time; that a subscription
// never uses more than its own slots; and that an attempt ends within its
// timeout, whatever the server at the other end does.
package dispatcher

import (
	"container/heap"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"service/dispatcher/client"
	"service/store"
	"service/webhook"
)

// Config is the operator's choice of how deliveries are made. New fills in the
// defaults of zero values.
type Config struct {
	Store  *store.Store
	Logger *slog.Logger

	RetryPolicy    webhook.RetryPolicy
	HealthPolicy   webhook.HealthPolicy // the zero value: no subscription is ever failing
	AttemptTimeout time.Duration        // one attempt, from dialling to the end of the answer; default 10 s
	MaxInFlight    int                  // deliveries in flight per subscription; default 8
	MaxConnections int                  // deliveries in flight in all, pings aside; default 512
	BatchSize      int                  // events in one delivery at the most; default 100
	BatchWindow    time.Duration        // how long the first event for an idle subscription waits for company; default 0

	// Destinations are the addresses outside the public internet that may be
	// called; none by default.
	Destinations webhook.Destinations
	// Own are the addresses that this service itself listens on. They are
	// refused, also where Destinations allows them. An unspecified one
	// (0.0.0.0, ::) is its port on every address of this machine.
	Own []netip.AddrPort
	// AllowHTTP lets deliveries go to http:// URLs. Without it one that was
	// subscribed while it was allowed is blocked.
	AllowHTTP bool
	// Alerts is where alerts are sent; nil: nowhere.
	Alerts *AlertTarget
	// RootCAs verify the subscribers' certificates; nil is the system's.
	RootCAs *x509.CertPool
	// Grace is how long attempts in flight may go on after Run was told to
	// end; default 10 s.
	Grace time.Duration
	// Metrics is where the dispatcher's metrics are registered; nil is nowhere.
	Metrics *prometheus.Registry
}

const (
	// Pings have slots of their own, so that a busy or hanging subscriber can
	// still be tested.
	maxPings        = 64
	maxPingsPerLane = 4

	// pause is how long nothing is claimed after the store has failed.
	pause = time.Second
	// laneHold is how long nothing is claimed for a lane after one of its own
	// records could not be used.
	laneHold = time.Minute
)

// Dispatcher sends deliveries while Run runs.
type Dispatcher struct {
	cfg     Config
	store   *store.Store
	logger  *slog.Logger
	client  *client.Client
	metrics *metrics

	running atomic.Bool
	shares  [ranks]int    // of the slots; see take
	rests   int           // the same
	nudge   chan struct{} // the loop of Run should look at the lanes again
	alerts  chan struct{} // there is an alert to send
	workers sync.WaitGroup

	mu       sync.Mutex
	stopping bool
	lanes    map[string]*lane // by subscription id
	wanting  map[store.EventKey]map[*lane]struct{}
	lines    [ranks]queue // lanes that have work and a free slot of their own, in turn
	next     rank         // whose line comes next
	pings    queue        // lanes that have a ping to send
	timers   timers
	reloads  []*lane // lanes to be read again, none being formed from
	inFlight int     // pings aside
	rest     int     // those of inFlight that were given to ranks behind rankProven
	pinging  int
	paused   time.Time // nothing is claimed before this
	held     bool      // nothing but pings is claimed until the store releases it
}

// New returns a dispatcher of the store's deliveries.
func New(cfg Config) *Dispatcher {
	defaults(&cfg.AttemptTimeout, 10*time.Second)
	defaults(&cfg.MaxInFlight, 8)
	defaults(&cfg.MaxConnections, 512)
	defaults(&cfg.BatchSize, 100)
	defaults(&cfg.Grace, 10*time.Second)
	defaults(&cfg.RetryPolicy, webhook.DefaultRetryPolicy())
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Dispatcher{
		cfg: cfg, store: cfg.Store, logger: cfg.Logger, client: client.New(cfg.client()), metrics: newMetrics(),
		shares:  shares(cfg.MaxConnections),
		rests:   max(1, cfg.MaxConnections/8),
		nudge:   make(chan struct{}, 1),
		alerts:  make(chan struct{}, 1),
		lanes:   make(map[string]*lane),
		wanting: make(map[store.EventKey]map[*lane]struct{}),
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(collector{d})
	}
	return d
}

// client returns the part of the configuration that an attempt needs. No more
// connections are kept open between attempts than there may be attempts.
func (cfg *Config) client() *client.Config {
	return &client.Config{
		Timeout: cfg.AttemptTimeout, MaxIdle: cfg.MaxConnections, Destinations: cfg.Destinations, Own: cfg.Own,
		AllowHTTP: cfg.AllowHTTP, RootCAs: cfg.RootCAs, Logger: cfg.Logger,
	}
}

func defaults[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Ready says whether deliveries are being made.
func (d *Dispatcher) Ready() bool { return d.running.Load() }

// Run makes deliveries until ctx ends. Then it starts no more, lets those in
// flight end within the grace period, and returns nil when each is recorded.
func (d *Dispatcher) Run(ctx context.Context) error {
	watcher := d.store.Watch()
	defer watcher.Close()
	interrupted, err := d.store.RecoverInterrupted(d.cfg.RetryPolicy)
	for ; store.Unavailable(err); interrupted, err = d.store.RecoverInterrupted(d.cfg.RetryPolicy) {
		d.logger.Error("the store cannot be written; deliveries wait until it can", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("dispatcher: recover: %w", err)
	}
	if interrupted > 0 {
		d.logger.Info("deliveries were interrupted by the end of the last run and go on", "count", interrupted)
	}
	lanes, err := d.store.Lanes(ctx)
	for ; ctx.Err() == nil && store.Unavailable(err); lanes, err = d.store.Lanes(ctx) {
		d.logger.Error("the store cannot be read; deliveries wait until it can", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("dispatcher: read the subscriptions: %w", err)
	}

	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer d.client.CloseIdle()

	_, held := d.store.Held()
	d.mu.Lock()
	d.held = held
	for _, l := range lanes {
		if l.Unusable != nil {
			d.lanes[l.SubscriptionID] = &lane{Lane: l}
			d.requestReload(d.lanes[l.SubscriptionID])
			continue
		}
		d.install(&lane{Lane: l})
	}
	d.mu.Unlock()
	d.store.FormEarly(func(a *store.Accepted) { d.early(sending, a) })
	defer d.store.FormEarly(nil)
	d.running.Store(true)
	if d.cfg.Alerts != nil {
		d.workers.Go(func() { d.sendAlerts(ctx, sending) })
	}

	d.loop(ctx, sending, watcher)

	d.running.Store(false)
	d.mu.Lock()
	d.stopping = true
	d.mu.Unlock()
	// What has not ended by then is cut off and recorded as interrupted.
	cut := time.AfterFunc(d.cfg.Grace, cancel)
	defer cut.Stop()
	d.workers.Wait()
	return nil
}

// loop tells the lanes what happens: changes in the store, and time.
func (d *Dispatcher) loop(ctx, sending context.Context, watcher *store.Watcher) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	released := d.store.Released()
	for {
		d.reload(ctx, time.Now())
		d.mu.Lock()
		now := time.Now() // a reload takes time, and lanes were scheduled meanwhile
		if len(d.reloads) > 0 && !now.Before(d.paused) {
			d.poke()
		}
		d.expire(now)
		d.pump(sending, now)
		if at := d.nextTime(now); at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(at))
		}
		d.mu.Unlock()

		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.nudge:
		case <-watcher.C:
			d.apply(watcher.Take())
		case <-released:
			released = nil
			d.mu.Lock()
			d.held = false
			d.mu.Unlock()
		}
	}
}

// apply tells the lanes what was committed.
func (d *Dispatcher) apply(changes store.Changes) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for id := range changes.Subscriptions {
		l := d.lanes[id]
		if l == nil {
			l = &lane{Lane: &store.Lane{SubscriptionID: id}}
			d.lanes[id] = l
		}
		d.requestReload(l)
	}
	for key, seq := range changes.Events {
		for l := range d.wanting[key] {
			if seq <= l.wanted || !l.Wants(key.Name, seq) {
				continue
			}
			if l.wanted <= l.seen {
				l.notBefore = now.Add(d.cfg.BatchWindow)
			}
			l.wanted = seq
			d.schedule(l, now)
		}
	}
	if changes.Alerts {
		select {
		case d.alerts <- struct{}{}:
		default: // it has not looked since the last
		}
	}
	for id := range changes.Queued {
		if l := d.lanes[id]; l != nil {
			// Which kind was queued is not told; a claim finds out.
			l.nextDue, l.nextPing = now, now
			d.schedule(l, now)
		}
	}
}

// requestReload has the loop read a lane again as soon as no delivery is being
// formed from it: until then its cursor in the store is moving. Owns d.mu.
func (d *Dispatcher) requestReload(l *lane) {
	l.stale = true
	if l.forming == 0 && !l.reloading {
		l.reloading = true
		d.reloads = append(d.reloads, l)
		d.poke()
	}
}

// reload reads the lanes that have changed.
func (d *Dispatcher) reload(ctx context.Context, now time.Time) {
	d.mu.Lock()
	if now.Before(d.paused) {
		d.mu.Unlock()
		return
	}
	lanes := d.reloads
	d.reloads = nil
	for _, l := range lanes {
		l.stale = false // a change from now on asks for another read
	}
	d.mu.Unlock()

	for _, l := range lanes {
		fresh, err := d.store.Lane(ctx, l.SubscriptionID)
		gone := isNotFound(err)
		d.mu.Lock()
		l.reloading = false
		switch {
		case gone:
			d.remove(l)
		case err != nil && (ctx.Err() != nil || store.Unavailable(err)):
			if ctx.Err() == nil {
				d.storeFailed(err)
			}
			d.requestReload(l)
		case err != nil:
			// Its record cannot be used: schedule asks for another read then.
			d.claimFailed(l, l.SubscriptionID, err)
			l.stale = true
			d.schedule(l, time.Now())
		default:
			d.uninstall(l)
			l.begin(fresh, now)
			d.install(l)
			if l.stale {
				d.requestReload(l)
			}
		}
		d.mu.Unlock()
	}
}

func isNotFound(err error) bool {
	var e *webhook.Error
	return errors.As(err, &e) && e.Code == webhook.CodeNotFound
}

// install makes a lane known under what it wants. Owns d.mu.
func (d *Dispatcher) install(l *lane) {
	d.lanes[l.SubscriptionID] = l
	for _, in := range l.Interests {
		key := store.EventKey{ProgramID: l.ProgramID, Name: in.Name}
		if d.wanting[key] == nil {
			d.wanting[key] = make(map[*lane]struct{})
		}
		d.wanting[key][l] = struct{}{}
	}
	l.seen, l.wanted, l.replays = l.Seen, l.Wanted, l.Replaying
	l.nextDue, l.nextPing = earliest(l.nextDue, l.NextDue), earliest(l.nextPing, l.NextPing)
	d.schedule(l, time.Now())
}

func (d *Dispatcher) uninstall(l *lane) {
	for _, in := range l.Interests {
		key := store.EventKey{ProgramID: l.ProgramID, Name: in.Name}
		delete(d.wanting[key], l)
		if len(d.wanting[key]) == 0 {
			delete(d.wanting, key)
		}
	}
}

// remove forgets a lane whose subscription was deleted. Attempts in flight end
// by themselves. Owns d.mu.
func (d *Dispatcher) remove(l *lane) {
	d.uninstall(l)
	l.gone = true
	if l.timer.queued() {
		heap.Remove(&d.timers, l.timer.index())
		l.timer.at = time.Time{}
	}
	delete(d.lanes, l.SubscriptionID)
}

// storeFailed pauses claiming: nothing is sent that could not be recorded.
// Owns d.mu.
func (d *Dispatcher) storeFailed(err error) {
	now := time.Now()
	if now.After(d.paused) {
		level := slog.LevelError
		if errors.Is(err, store.ErrUnavailable) {
			level = slog.LevelDebug // of its disk the store tells itself, once and not each second
		}
		d.logger.Log(context.Background(), level, "the store failed; deliveries are held until it answers again", "error", err)
	}
	d.paused = now.Add(pause)
	d.poke()
}

func (d *Dispatcher) poke() {
	select {
	case d.nudge <- struct{}{}:
	default:
	}
}

// pump gives free slots to the lanes that have work, one after the other. Owns
// d.mu.
func (d *Dispatcher) pump(sending context.Context, now time.Time) {
	for {
		j, ok := d.take(now)
		if !ok {
			return
		}
		d.workers.Add(1)
		go d.work(sending, j, nil)
	}
}

// job is a slot that was given to a lane, and what it is for.
type job struct {
	lane *lane
	id   string // of the subscription
	kind jobKind
	rank rank // that the slot was given to
}

type jobKind int

const (
	jobForm   jobKind = iota // the next delivery from the log
	jobDue                   // a delivery that is due again
	jobReplay                // the next delivery of a replay
	jobPing
)

// take reserves a slot for the next lane in turn, from one line after the
// other. Each rank leaves some slots to those before it: however many slots
// hanging servers hold, one that answers finds one free. And those that answer
// may be so many that they could take every slot: so up to d.rests of them go
// to the rest in any case, and what waits there, a retry say, gets on as well.
// Owns d.mu.
func (d *Dispatcher) take(now time.Time) (job, bool) {
	if d.stopping || now.Before(d.paused) {
		return job{}, false
	}
	for d.pinging < maxPings && d.pings.len() > 0 {
		l := d.pings.pop()
		l.pingQueued = false
		if !l.hasPing(now) {
			d.schedule(l, now) // later, then
			continue
		}
		d.pinging++
		l.pinging++
		l.nextPing = time.Time{}
		return job{lane: l, id: l.SubscriptionID, kind: jobPing}, true
	}
	if d.held {
		return job{}, false
	}
	for {
		r, ok := d.line()
		if !ok {
			return job{}, false
		}
		l := d.lines[r].pop()
		l.queued[r] = false
		if l.rank(now) != r {
			d.schedule(l, now) // in another line, then
			continue
		}
		kind, ok := l.work(now, &d.cfg)
		if !ok {
			d.schedule(l, now) // later, then
			continue
		}
		d.inFlight++
		l.inFlight++
		d.next = (r + 1) % ranks
		if r > rankProven {
			d.rest++
		}
		switch kind {
		case jobDue:
			l.nextDue = time.Time{}
		case jobReplay:
			l.replaying = true
		default:
			l.reading = true
			l.forming++
		}
		d.schedule(l, now)
		return job{lane: l, id: l.SubscriptionID, kind: kind, rank: r}, true
	}
}

// line returns the next line that may be given a slot. Owns d.mu.
func (d *Dispatcher) line() (rank, bool) {
	if d.inFlight >= d.cfg.MaxConnections {
		return 0, false
	}
	for i := range ranks {
		r := (d.next + i) % ranks
		if d.lines[r].len() > 0 && (d.inFlight < d.shares[r] || r > rankProven && d.rest < d.rests) {
			return r, true
		}
	}
	return 0, false
}

// work makes the attempt of a job, which may have been counted already, and then
// that of the next in turn, until there is none.
func (d *Dispatcher) work(sending context.Context, j job, claim *store.Claim) {
	defer d.workers.Done()
	for ok := true; ok; claim = nil {
		if claim == nil {
			claim = d.claim(sending, j)
		}
		var next time.Time
		var result webhook.Result
		if claim != nil {
			next, result = d.attempt(sending, j.lane, claim)
		}
		d.mu.Lock()
		now := time.Now()
		if claim != nil && j.kind != jobPing {
			j.lane.ended(j.kind, result, now, &d.cfg)
		}
		d.release(j, next, now)
		j, ok = d.take(now)
		d.pump(sending, now)
		d.mu.Unlock()
	}
}

// release gives a slot back. next is when the delivery is due again, zero for
// never. Owns d.mu.
func (d *Dispatcher) release(j job, next, now time.Time) {
	l := j.lane
	if j.kind == jobPing {
		d.pinging--
		l.pinging--
		l.nextPing = earliest(l.nextPing, next)
	} else {
		d.inFlight--
		l.inFlight--
		if j.rank > rankProven {
			d.rest--
		}
		l.nextDue = earliest(l.nextDue, next)
	}
	d.schedule(l, now)
}

// claim counts the attempt of a job in the store; nil when there was none to make.
func (d *Dispatcher) claim(ctx context.Context, j job) *store.Claim {
	switch j.kind {
	case jobForm:
		return d.form(ctx, j)
	case jobReplay:
		return d.replay(ctx, j)
	}
	claim, next, err := d.store.ClaimDue(ctx, j.id, j.kind == jobPing)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		next = d.claimFailed(j.lane, j.id, err) // when, is not known: look again then
	}
	if j.kind == jobPing {
		j.lane.nextPing = earliest(j.lane.nextPing, next)
	} else {
		j.lane.nextDue = earliest(j.lane.nextDue, next)
	}
	now := time.Now()
	d.schedule(j.lane, now)
	d.pump(ctx, now) // more may be due, and need not wait for this attempt
	return claim
}

// claimFailed holds claims back after one that failed: all of them when the
// store cannot be read or written; otherwise those of this lane, since another
// record than its own is not to blame. It returns until when. Owns d.mu.
func (d *Dispatcher) claimFailed(l *lane, id string, err error) time.Time {
	if store.Unavailable(err) {
		d.storeFailed(err)
		return d.paused
	}
	l.held = time.Now().Add(laneHold)
	d.logger.Error("a subscription's deliveries are held for a while", "subscription", id, "error", err)
	return l.held
}

// form makes the next delivery of a lane from the log.
func (d *Dispatcher) form(ctx context.Context, j job) *store.Claim {
	l := j.lane
	// reading makes this goroutine the owner of l.Lane's cursor.
	d.mu.Lock()
	newest := l.wanted
	d.mu.Unlock()
	waiting, err := d.store.Waiting(ctx, l.Lane, newest, d.cfg.BatchSize, webhook.MaxDeliveryBytes)
	var forming *store.Forming
	if err == nil && len(waiting.Seqs) > 0 {
		forming = d.store.Form(l.Lane, &waiting)
	} else if err == nil {
		l.Seen = waiting.To
	}
	d.mu.Lock()
	now := time.Now()
	l.reading = false
	l.seen = l.Seen
	d.schedule(l, now)
	d.pump(ctx, now)
	d.mu.Unlock()

	var claim *store.Claim
	if forming != nil {
		claim, err = forming.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.formed(j, err)
	return claim
}

// formed notes that a delivery of a lane was stored, or was not. Owns d.mu.
func (d *Dispatcher) formed(j job, err error) {
	l := j.lane
	l.forming--
	switch {
	case errors.Is(err, store.ErrStale):
		l.stale = true
	case err != nil:
		d.claimFailed(l, j.id, err)
		l.stale = true
	}
	if l.stale && l.forming == 0 {
		d.requestReload(l)
	}
}

// replay makes the next delivery of a lane's replay, if the next piece of the
// log holds one.
func (d *Dispatcher) replay(ctx context.Context, j job) *store.Claim {
	l := j.lane
	d.mu.Lock()
	from := l.Lane
	d.mu.Unlock()
	claim, more, err := d.store.StepReplay(ctx, from, d.cfg.BatchSize, webhook.MaxDeliveryBytes)
	d.mu.Lock()
	defer d.mu.Unlock()
	l.replaying = false
	switch {
	case errors.Is(err, store.ErrStale):
		d.requestReload(l)
	case err != nil:
		d.claimFailed(l, j.id, err)
	case l.Lane == from: // else the lane was read after the step, and knows better
		l.replays = more
	}
	now := time.Now()
	d.schedule(l, now)
	d.pump(ctx, now)
	return claim
}

// attempt sends a claimed delivery, records what came of it, and returns when
// it is due again, and the attempt's result.
func (d *Dispatcher) attempt(ctx context.Context, l *lane, c *store.Claim) (time.Time, webhook.Result) {
	d.mu.Lock()
	to, gone := l.Lane, l.gone
	d.mu.Unlock()
	if !gone && c.Revision != to.Revision {
		// The subscription has changed since the lane was read: what was
		// acknowledged, a new URL say, holds for this attempt already.
		fresh, err := d.store.Lane(ctx, c.SubscriptionID)
		switch {
		case err == nil:
			to = fresh
		case !isNotFound(err) && ctx.Err() == nil:
			d.logger.Error("an attempt was not made, since its subscription could not be read", "delivery", c.ID, "error", err)
		}
		gone = err != nil // as far as this attempt can know
	}
	var a webhook.Attempt
	if gone || !d.store.MaySend() {
		a = notSent(c.Number, time.Now())
	} else {
		a = d.send(ctx, to, c)
		d.metrics.attempt(&a)
		if !c.AcceptedAt.IsZero() && c.Number == 1 {
			d.metrics.lag.Observe(max(0, a.StartedAt.Sub(c.AcceptedAt).Seconds()))
		}
		if !c.AcceptedAt.IsZero() && a.Result == webhook.ResultSuccess {
			d.metrics.delivered.Observe(max(0, a.StartedAt.Add(a.Duration).Sub(c.AcceptedAt).Seconds()))
		}
	}
	step := d.cfg.RetryPolicy.After(&a, time.Now(), rand.Float64())
	for {
		step, err := d.store.Record(c, &a, step, d.cfg.HealthPolicy)
		if err == nil {
			d.log(c, &a, step)
			return step.NextAttemptAt, a.Result
		}
		d.mu.Lock()
		again := d.claimFailed(l, c.SubscriptionID, err)
		d.mu.Unlock()
		// The slot stays taken until the result is stored. At the end of the
		// process it is given up: the next start finds the attempt interrupted.
		select {
		case <-time.After(time.Until(again)):
		case <-ctx.Done():
			return time.Time{}, a.Result
		}
	}
}

// send makes one attempt.
func (d *Dispatcher) send(ctx context.Context, to *store.Lane, c *store.Claim) webhook.Attempt {
	return d.guard(c.ID, c.Number, func() webhook.Attempt {
		size := 192
		for _, e := range c.Events {
			size += len(e) + 1
		}
		return d.client.Send(ctx, &client.Request{
			DeliveryID: c.ID, SubscriptionID: c.SubscriptionID, ProgramID: c.ProgramID,
			URL: to.URL, Authorization: to.Authorization, Secrets: to.SigningSecrets(time.Now()), Number: c.Number, Trace: c.Trace,
			Body: webhook.AppendBody(make([]byte, 0, size), c.ID, c.SubscriptionID, c.ProgramID, c.Events),
		})
	})
}

// guard makes an attempt. A panic in it costs this attempt, and nothing else.
func (d *Dispatcher) guard(id string, number int, send func() webhook.Attempt) (a webhook.Attempt) {
	started := time.Now()
	defer func() {
		if p := recover(); p != nil {
			d.logger.Error("panic in an attempt", "delivery", id, "panic", p, "stack", string(debug.Stack()))
			a = notSent(number, started)
		}
	}()
	return send()
}

// notSent is an attempt that was counted, but not made or not made to its end.
func notSent(number int, started time.Time) webhook.Attempt {
	return webhook.Attempt{
		Number: number, StartedAt: started, Duration: time.Since(started),
		Result: webhook.ResultRetryable, Error: webhook.ErrorInterrupted,
	}
}

// log writes one line an attempt: nothing in it is the subscriber's but numbers.
func (d *Dispatcher) log(c *store.Claim, a *webhook.Attempt, step webhook.Step) {
	if !d.logger.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	attributes := append(outcome(a),
		slog.String("program", c.ProgramID), slog.String("subscription", c.SubscriptionID), slog.String("delivery", c.ID),
		slog.Int("number", c.Number), slog.Int("events", len(c.Events)), slog.Bool("ping", c.Ping),
		slog.String("status", string(step.Status)))
	if step.FailureReason != webhook.FailureNone {
		attributes = append(attributes, slog.String("failure_reason", string(step.FailureReason)))
	}
	if !step.NextAttemptAt.IsZero() {
		attributes = append(attributes, slog.String("next_attempt_at", webhook.FormatTime(step.NextAttemptAt)))
	}
	if c.Trace != "" {
		attributes = append(attributes, slog.String("trace", c.Trace.ID()))
	}
	for _, phase := range [...]struct {
		name string
		took time.Duration
	}{{"dns", a.Phases.DNS}, {"connect", a.Phases.Connect}, {"tls", a.Phases.TLS}, {"first_byte", a.Phases.FirstByte}} {
		if phase.took > 0 {
			attributes = append(attributes, slog.Duration(phase.name, phase.took))
		}
	}
	d.logger.LogAttrs(context.Background(), slog.LevelInfo, "attempt", attributes...)
}

// outcome says for a log what came of an attempt.
func outcome(a *webhook.Attempt) []slog.Attr {
	attributes := make([]slog.Attr, 0, 20)
	attributes = append(attributes, slog.String("result", string(a.Result)), slog.Duration("duration", a.Duration))
	if a.ResponseStatus != 0 {
		attributes = append(attributes, slog.Int("response_status", a.ResponseStatus))
	}
	if a.Error != webhook.ErrorNone {
		attributes = append(attributes, slog.String("error", string(a.Error)))
	}
	return attributes
}
