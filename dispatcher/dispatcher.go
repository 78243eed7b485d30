// Package dispatcher creates deliveries from the event log, sends their attempts
// through package client, and records the results.
//
// It guarantees that:
//
//   - an attempt is counted on disk before its first byte is sent;
//   - a delivery is sent at most [webhook.MaxAttempts] times, crashes included,
//     with the same ID and the same bytes each time;
//   - a subscription never uses more than its own slots;
//   - an attempt ends within its timeout, whatever the receiver does. The receiver is
//     the partner's server behind a subscription's URL.
//
// Terms (docs/glossary.md lists them all):
//
//   - A queue is the state of one subscription (subscriptionQueue, queue.go). Its cursor
//     is its position in the event log: every event up to it is in a delivery or did not
//     match. Its interests are the event names that it selects, each for a range of the log.
//   - A slot is the right to have one delivery in flight. A queue has MaxInFlight slots,
//     unless its subscription sets another number, the dispatcher MaxConnections. Pings
//     have slots of their own.
//   - A claim is a delivery whose next attempt has been counted in the store.
//   - A credit is the permission to make one claim ([store.Credit], credit.go).
//   - A queue is failing while its circuit breaker is open ([webhook.HealthPolicy]). It
//     then sends only probes, which are single attempts at intervals. While a probe is
//     due, the breaker is half-open.
//
// A queue that has work, and that has not used up its own slots, waits in the run queue
// of its priority for one of the dispatcher's slots (schedule.go). With the slot, a worker
// spends a credit to claim a delivery, sends it and records the result (slot.go,
// attempt.go). One loop, [Dispatcher.Run], updates the queues when the store changes or a
// timer expires.
//
// An idle queue offers its credit to the store, which spends it in the commit of the next
// event: this is inline delivery, and saves a commit. Spending of offers is paused while a
// waiting queue may take a free slot.
package dispatcher

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"service/dispatcher/client"
	"service/store"
	"service/store/watch"
	"service/webhook"
)

// Config configures a Dispatcher. New replaces a zero value with the default named below.
type Config struct {
	Store  *store.Store
	Logger *slog.Logger // nil discards the log

	RetryPolicy    webhook.RetryPolicy  // default webhook.DefaultRetryPolicy
	HealthPolicy   webhook.HealthPolicy // the zero value disables the circuit breaker
	AttemptTimeout time.Duration        // limit of one attempt, from dialing to the end of the response; default 10 s
	MaxInFlight    int                  // maximum deliveries in flight per subscription; default 8
	MaxConnections int                  // maximum deliveries in flight in total, excluding pings; default 512
	BatchSize      int                  // maximum events per delivery; default 100
	BatchWindow    time.Duration        // how long the first event for an idle subscription waits for more; default 0

	// Destinations are the addresses that subscriptions may target: the public
	// internet and what the operator permits in addition.
	Destinations webhook.Destinations
	// Own lists the addresses that this service listens on. They are always
	// blocked, even if Destinations permits them. An unspecified address (0.0.0.0,
	// ::) stands for its port on every address of this machine.
	Own []netip.AddrPort
	// AllowHTTP permits http:// URLs. Without it, deliveries to an existing http://
	// subscription are blocked.
	AllowHTTP bool
	// Alerts is the --alert-url, in addition to the store's alert channels; nil for
	// none.
	Alerts *AlertTarget
	// SMTP is the mail server for email channels; the zero value disables email.
	SMTP SMTP
	// BaseURL is the URL of the admin UI, for links in alerts; "" for no link.
	BaseURL string
	// RootCAs verify the receivers' certificates; nil means the system's.
	RootCAs *x509.CertPool
	// Grace is how long attempts in flight may continue after the context of Run
	// ends; default 10 s.
	Grace time.Duration
	// Metrics is the registry for the dispatcher's metrics; nil for none.
	Metrics *prometheus.Registry
}

const (
	// Pings have their own slots, so a subscription whose receiver is busy or hangs
	// can still be tested.
	maxPings         = 64
	maxPingsPerQueue = 4

	// storeRetryWait is the pause of all claims after the store has failed.
	storeRetryWait = time.Second
	// suspendTime is the pause of one subscription's claims after one of its
	// records was unusable.
	suspendTime = time.Minute

	// yieldEvery is how many queues a loop visits before it releases d.mu for a moment, since an
	// event name may have any number of subscriptions.
	yieldEvery = 128
)

// Dispatcher sends deliveries while Run is running.
type Dispatcher struct {
	cfg      Config // never changes after New
	store    *store.Store
	logger   *slog.Logger
	client   *client.Client
	metrics  *metrics
	credits  *store.Credits               // counts slots in use, excluding pings, and contains the offered credits
	leaseCtx atomic.Pointer[leaseContext] // the newest; nil before the first attempt under a lease

	entered func(from, to phase) // called for each change of a phase, for tests; may be nil
	running atomic.Bool
	wakeup  chan struct{} // makes the loop of Run check the queues again
	alerts  chan struct{} // an alert is ready to send
	workers sync.WaitGroup

	staleLimits map[string]struct{} // programs whose limit must be read; owned by the loop of Run

	mu          sync.Mutex // guards the fields below
	stopping    bool
	queues      map[string]*subscriptionQueue   // by subscription ID
	interested  map[watch.EventKey]*queueSet    // the queues that select an event
	filtered    map[*subscriptionQueue]struct{} // the queues with a filter
	passedBy    time.Time                       // when the cursors that have passed events are stored; zero for none
	programs    map[string]*program             // by ID
	limits      map[string]int                  // deliveries in flight, of programs with a limit
	pings       pingSlots
	timers      timers
	reloads     []*subscriptionQueue // queues in phaseReloadPending
	pausedUntil time.Time            // no claims until then: the store failed
	restoreHold bool                 // no claims except pings, while a store.Hold exists after a restore
}

// New returns a Dispatcher for the deliveries of cfg.Store. It does nothing until
// Run is called.
func New(cfg Config) *Dispatcher {
	cfg.AttemptTimeout = cmp.Or(cfg.AttemptTimeout, 10*time.Second)
	cfg.MaxInFlight = cmp.Or(cfg.MaxInFlight, 8)
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, 512)
	cfg.BatchSize = cmp.Or(cfg.BatchSize, 100)
	cfg.Grace = cmp.Or(cfg.Grace, 10*time.Second)
	cfg.RetryPolicy = cmp.Or(cfg.RetryPolicy, webhook.DefaultRetryPolicy())
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	d := &Dispatcher{
		cfg: cfg, store: cfg.Store, logger: cfg.Logger, client: client.New(cfg.client()), metrics: newMetrics(),
		credits:     store.NewCredits(cfg.MaxConnections),
		wakeup:      make(chan struct{}, 1),
		alerts:      make(chan struct{}, 1),
		queues:      make(map[string]*subscriptionQueue),
		interested:  make(map[watch.EventKey]*queueSet),
		filtered:    make(map[*subscriptionQueue]struct{}),
		programs:    make(map[string]*program),
		limits:      make(map[string]int),
		staleLimits: make(map[string]struct{}),
		pings:       pingSlots{programs: make(map[string]*programPings)},
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(collector{d})
	}
	return d
}

// client returns the configuration of package client. It keeps at most
// MaxConnections connections open between attempts.
func (cfg *Config) client() *client.Config {
	return &client.Config{
		Timeout: cfg.AttemptTimeout, MaxIdle: cfg.MaxConnections, Destinations: cfg.Destinations, Own: cfg.Own,
		AllowHTTP: cfg.AllowHTTP, RootCAs: cfg.RootCAs, MaySend: cfg.Store.Queues().MaySend, Logger: cfg.Logger,
	}
}

// Ready reports whether Run is sending deliveries.
func (d *Dispatcher) Ready() bool { return d.running.Load() }

// Run sends deliveries until ctx ends. It then starts no more attempts, waits for
// those in flight up to the grace period, and returns nil once all are recorded.
func (d *Dispatcher) Run(ctx context.Context) error {
	watcher := d.store.Watch()
	defer watcher.Close()
	queues, err := d.resume(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}

	// sendCtx is the context of all attempts. It outlives ctx by up to Config.Grace.
	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer d.client.CloseIdle()

	_, hold := d.store.Holds().Current()
	d.mu.Lock()
	d.restoreHold = hold
	for _, stored := range queues {
		q := &subscriptionQueue{Queue: stored}
		q.restoreRejected(stored)
		if stored.Unusable != nil {
			d.queues[stored.SubscriptionID] = q
			d.reschedule(q, phaseStale, time.Now())
			continue
		}
		d.install(q)
	}
	d.mu.Unlock()
	d.workers.Go(func() { d.receiveInline(sendCtx) })
	d.store.Queues().SetCredits(d.credits)
	d.running.Store(true)
	d.workers.Go(func() { d.sendAlerts(ctx, sendCtx) })

	d.loop(ctx, sendCtx, watcher)

	d.running.Store(false)
	d.mu.Lock()
	d.stopping = true
	stored := d.storePassed(time.Now())
	d.mu.Unlock()
	d.credits.Close()
	stored()
	// Attempts still in flight after the grace period are cancelled and recorded as
	// interrupted.
	cut := time.AfterFunc(d.cfg.Grace, cancel)
	defer cut.Stop()
	if lease := d.store.Queues().LeaseContext(); lease != nil {
		// Without the lease nothing can be recorded. The next start, or the standby
		// that takes over, records these attempts as interrupted.
		defer context.AfterFunc(lease, cancel)()
	}
	d.workers.Wait()
	return nil
}

// resume records the attempts that the last run left in flight as interrupted, and
// reads all subscriptions. While the store is unavailable it retries until ctx
// ends, which is not an error.
func (d *Dispatcher) resume(ctx context.Context) ([]*store.Queue, error) {
	interrupted := 0
	err := d.untilAvailable(ctx, "storage is not writable: deliveries start when it recovers", func() (err error) {
		interrupted, err = d.store.Queues().RecoverInterrupted(d.cfg.RetryPolicy)
		return err
	})
	switch {
	case store.Unavailable(err):
		return nil, nil // ctx ended
	case err != nil:
		return nil, fmt.Errorf("dispatcher: recover interrupted attempts: %w", err)
	}
	if interrupted > 0 {
		d.logger.Info("recorded attempts interrupted by the last shutdown or crash", "count", interrupted)
	}
	var queues []*store.Queue
	err = d.untilAvailable(ctx, "storage is not readable: deliveries start when it recovers", func() (err error) {
		if err := d.readAllLimits(ctx); err != nil {
			return err
		}
		queues, err = d.store.Queues().All(ctx)
		return err
	})
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("dispatcher: read subscriptions: %w", err)
	}
	return queues, nil
}

// untilAvailable calls do until it returns nil or an error that does not mean that the store
// is unavailable, or until ctx ends. It logs the first such error with message, and the end
// of the outage, and returns the last result.
func (d *Dispatcher) untilAvailable(ctx context.Context, message string, do func() error) error {
	var o outage
	for {
		err := do()
		if err == nil {
			o.end(d.logger, "storage recovered: starting deliveries")
		}
		if !store.Unavailable(err) || ctx.Err() != nil {
			return err
		}
		o.failed(d.logger, message, err)
		select {
		case <-time.After(storeRetryWait):
		case <-ctx.Done():
			return err
		}
	}
}

// loop updates the queues when the store changes, a timer expires or a worker wakes
// it, until ctx ends.
func (d *Dispatcher) loop(ctx, sendCtx context.Context, watcher *watch.Watcher) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	released := d.store.Holds().Released()
	for {
		d.readLimits(ctx, nil)
		d.reload(ctx, time.Now())
		d.mu.Lock()
		now := time.Now() // after the reload, during which workers rescheduled queues
		if len(d.reloads) > 0 && !now.Before(d.pausedUntil) {
			d.wake()
		}
		d.expire(now)
		if !d.passedBy.IsZero() && !now.Before(d.passedBy) {
			d.workers.Go(d.storePassed(now))
		}
		d.dispatch(sendCtx, now)
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
		case <-d.wakeup:
		case <-watcher.C:
			changes := watcher.Take()
			d.readLimits(ctx, changes.Programs)
			d.apply(changes)
		case <-released:
			released = nil
			d.mu.Lock()
			d.restoreHold = false
			d.mu.Unlock()
		}
	}
}

// apply updates the queues for committed changes.
func (d *Dispatcher) apply(changes watch.Changes) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, n := time.Now(), 0
	next := func() {
		if n++; n%yieldEvery == 0 {
			d.yield()
		}
	}
	for id := range changes.Subscriptions {
		next()
		q := d.queues[id]
		if q == nil {
			q = &subscriptionQueue{Queue: &store.Queue{SubscriptionID: id}}
			d.queues[id] = q
		}
		d.reschedule(q, phaseStale, now)
	}
	var past []passing
	for key, seq := range changes.Events {
		past = d.applyEvents(key, seq, past, next, now)
	}
	for _, p := range past { // once the events of all names are known
		next()
		d.pass(p.queue, p.seq, now)
	}
	if changes.Alerts {
		select {
		case d.alerts <- struct{}{}:
		default: // sendAlerts already has a wakeup pending
		}
	}
	for id := range changes.Queued {
		next()
		if q := d.queues[id]; q != nil {
			// The change does not say whether a ping or a delivery was queued; a
			// claim finds out.
			q.nextDue, q.nextPing = now, now
			d.reschedule(q, q.phase, now)
		}
	}
}

// applyEvents tells the queues that select the events of a key that there are some up to seq, and adds
// to past the queues whose filters exclude them. It calls next for every queue. The caller holds d.mu.
func (d *Dispatcher) applyEvents(key watch.EventKey, seq int64, past []passing, next func(), now time.Time) []passing {
	queues := d.interested[key]
	examine := queues.examine(d.store, key, seq)
	for q := range queues.all {
		next()
		in := q.Interest(queues.name, seq)
		if seq <= q.wantedSeq || in == nil {
			continue
		}
		newest := seq
		if in.Filter != nil {
			newest = examine(in)
		}
		if newest <= q.wantedSeq {
			past = append(past, passing{q, seq})
			continue
		}
		if q.wantedSeq <= q.readSeq {
			q.notBefore = now.Add(d.cfg.BatchWindow)
		}
		q.wantedSeq = newest
		q.notePublished(key.Name)
		d.reschedule(q, q.phase, now)
	}
	return past
}

// yield unlocks d.mu for a moment so that waiting goroutines can lock it. The
// caller holds d.mu. Queues may have been changed, added or removed when yield
// returns.
func (d *Dispatcher) yield() {
	d.mu.Unlock()
	runtime.Gosched()
	d.mu.Lock()
}

// reload reads the changed subscriptions from the store.
func (d *Dispatcher) reload(ctx context.Context, now time.Time) {
	d.mu.Lock()
	if now.Before(d.pausedUntil) {
		d.mu.Unlock()
		return
	}
	queues := d.reloads
	d.reloads = nil
	for _, q := range queues {
		d.reschedule(q, phaseReloading, now)
	}
	d.mu.Unlock()

	for _, q := range queues {
		fresh, err := d.store.Queues().Get(ctx, q.SubscriptionID)
		d.mu.Lock()
		switch {
		case webhook.CodeOf(err) == webhook.CodeNotFound:
			d.remove(q)
		case err != nil && (ctx.Err() != nil || store.Unavailable(err)):
			if ctx.Err() == nil {
				d.storeFailed(err)
			}
			d.reschedule(q, phaseReloadPending, now)
		case err != nil:
			d.pauseClaims(q, q.SubscriptionID, err)
			d.reschedule(q, phaseUnusable, time.Now())
		default:
			d.uninstall(q)
			q.update(fresh, time.Now())
			d.install(q)
		}
		d.mu.Unlock()
	}
}

// install adds a queue that was just read and indexes it by the events it selects.
// The caller holds d.mu.
func (d *Dispatcher) install(q *subscriptionQueue) {
	d.queues[q.SubscriptionID] = q
	d.join(q)
	for i := range q.Interests {
		in := &q.Interests[i]
		key := watch.EventKey{ProgramID: q.ProgramID, Name: in.Name}
		if d.interested[key] == nil {
			d.interested[key] = &queueSet{name: in.Name}
		}
		d.interested[key].add(q)
		in.Name = d.interested[key].name
	}
	if q.Filtered() {
		d.filtered[q] = struct{}{}
	}
	q.readSeq, q.wantedSeq, q.hasReplay = q.Seen, q.Wanted, q.Replaying
	q.splitting = q.splitting || q.Splitting // a delivery may have failed since the queue was read
	q.nextDue, q.nextPing = earliest(q.nextDue, q.NextDue), earliest(q.nextPing, q.NextPing)
	d.reschedule(q, phaseCurrent, time.Now())
}

// uninstall removes the queue from the index by event. The caller holds d.mu.
func (d *Dispatcher) uninstall(q *subscriptionQueue) {
	delete(d.filtered, q)
	for _, in := range q.Interests {
		key := watch.EventKey{ProgramID: q.ProgramID, Name: in.Name}
		all := d.interested[key]
		if all == nil {
			continue
		}
		if all.remove(q); all.len() == 0 {
			delete(d.interested, key)
			d.credits.Forget(key)
		}
	}
}

// remove drops the queue of a deleted subscription. Its attempts in flight continue
// to their end. The caller holds d.mu.
func (d *Dispatcher) remove(q *subscriptionQueue) {
	d.uninstall(q)
	d.reschedule(q, phaseDeleted, time.Now())
	delete(d.queues, q.SubscriptionID)
	d.leave(q)
}

// storeFailed pauses all claims for storeRetryWait: no attempt may be sent that cannot be
// counted and recorded. The caller holds d.mu.
func (d *Dispatcher) storeFailed(err error) {
	now := time.Now()
	if now.After(d.pausedUntil) {
		if errors.Is(err, store.ErrUnavailable) {
			d.logger.Debug("storage is not available: pausing deliveries", "error", err) // the store logs an outage of its disk, once
		} else {
			d.logger.Error("failed to read or record deliveries (not a full disk): pausing them", "error", err)
		}
	}
	d.pausedUntil = now.Add(storeRetryWait)
	d.credits.Pause(true)
	d.wake()
}

// wake makes the loop of Run check the queues again.
func (d *Dispatcher) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}
