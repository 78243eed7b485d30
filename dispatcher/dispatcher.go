// Package dispatcher forms deliveries from the event log, sends their attempts by
// package client, and records the result of each.
//
// It guarantees that an attempt is counted, on disk, before its first byte is
// sent; that a delivery is sent at most [webhook.MaxAttempts] times, crashes
// included, with the same id and the same bytes each time; that a subscription
// never uses more than its own slots; and that an attempt ends within its
// timeout, whatever the server at the other end does.
package dispatcher

import (
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
	// Alerts is where alerts are sent beside the channels of the store; nil: nowhere.
	Alerts *AlertTarget
	// SMTP is the mail server for channels of email; the zero value is none.
	SMTP SMTP
	// BaseURL is where the admin UI is reached, for links in alerts; "" for none.
	BaseURL string
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
	maxPings         = 64
	maxPingsPerQueue = 4

	// storeRetryWait is how long nothing is claimed after the store has failed.
	storeRetryWait = time.Second
	// suspendTime is how long nothing is claimed for a subscription after one of
	// its own records could not be used.
	suspendTime = time.Minute

	// portion is how many queues are looked at before others may have the lock: a
	// name may have any number of subscriptions.
	yieldEvery = 128
)

// Dispatcher sends deliveries while Run runs.
type Dispatcher struct {
	cfg      Config
	store    *store.Store
	logger   *slog.Logger
	client   *client.Client
	metrics  *metrics
	credits  *store.Credits               // the slots, pings aside, and what is offered
	leaseCtx atomic.Pointer[leaseContext] // the newest; nil before the first attempt under a lease

	running    atomic.Bool
	shares     [priorities]int // see shares
	lowReserve int             // slots that priorities after priorityIdle get in any case; see nextPriority
	wakeup     chan struct{}   // the loop of Run should look at the queues again
	alerts     chan struct{}   // there is an alert to send
	workers    sync.WaitGroup

	mu          sync.Mutex
	stopping    bool
	queues      map[string]*subscriptionQueue // by subscription id
	interested  map[store.EventKey]*subscribers
	ready       [priorities]runQueue // queues that have a job and may use a slot
	nextTurn    priority             // whose run queue is next
	pings       pingSlots
	timers      timers
	reloads     []*subscriptionQueue // those in phaseListed
	lowInFlight int                  // slots given to priorities after priorityIdle
	pausedUntil time.Time            // nothing is claimed before this: the store failed
	restoreHold bool                 // nothing but pings is claimed until the store releases it
}

// New returns a dispatcher of the store's deliveries.
func New(cfg Config) *Dispatcher {
	setDefault(&cfg.AttemptTimeout, 10*time.Second)
	setDefault(&cfg.MaxInFlight, 8)
	setDefault(&cfg.MaxConnections, 512)
	setDefault(&cfg.BatchSize, 100)
	setDefault(&cfg.Grace, 10*time.Second)
	setDefault(&cfg.RetryPolicy, webhook.DefaultRetryPolicy())
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Dispatcher{
		cfg: cfg, store: cfg.Store, logger: cfg.Logger, client: client.New(cfg.client()), metrics: newMetrics(),
		credits:    store.NewCredits(cfg.MaxConnections),
		shares:     shares(cfg.MaxConnections),
		lowReserve: max(1, cfg.MaxConnections/8),
		wakeup:     make(chan struct{}, 1),
		alerts:     make(chan struct{}, 1),
		queues:     make(map[string]*subscriptionQueue),
		interested: make(map[store.EventKey]*subscribers),
		pings:      pingSlots{programs: make(map[string]*programPings)},
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
		AllowHTTP: cfg.AllowHTTP, RootCAs: cfg.RootCAs, MaySend: cfg.Store.Queues().MaySend, Logger: cfg.Logger,
	}
}

func setDefault[T comparable](field *T, value T) {
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
	queues, err := d.resume(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}

	sendCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer d.client.CloseIdle()

	_, held := d.store.Held()
	d.mu.Lock()
	d.restoreHold = held
	for _, l := range queues {
		q := &subscriptionQueue{Queue: l}
		q.restoreRejected(l)
		if l.Unusable != nil {
			d.queues[l.SubscriptionID] = q
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
	d.mu.Unlock()
	d.credits.Close()
	// Attempts that have not ended by then are cut off and recorded as interrupted.
	cut := time.AfterFunc(d.cfg.Grace, cancel)
	defer cut.Stop()
	if held := d.store.Queues().Held(); held != nil {
		// Without the lease nothing can be recorded any more. The next start finds
		// the attempts interrupted, and so does a service that takes over.
		defer context.AfterFunc(held, cancel)()
	}
	d.workers.Wait()
	return nil
}

// resume records the attempts that the end of the last run interrupted, and
// reads the subscriptions. While the store is unavailable it waits, until ctx
// ends, which is no error.
func (d *Dispatcher) resume(ctx context.Context) ([]*store.Queue, error) {
	interrupted := 0
	err := d.untilAvailable(ctx, "the store cannot be written; deliveries wait until it can", func() (err error) {
		interrupted, err = d.store.Queues().RecoverInterrupted(d.cfg.RetryPolicy)
		return err
	})
	switch {
	case store.Unavailable(err):
		return nil, nil // ctx has ended
	case err != nil:
		return nil, fmt.Errorf("dispatcher: recover: %w", err)
	}
	if interrupted > 0 {
		d.logger.Info("deliveries were interrupted by the end of the last run and go on", "count", interrupted)
	}
	var queues []*store.Queue
	err = d.untilAvailable(ctx, "the store cannot be read; deliveries wait until it can", func() (err error) {
		queues, err = d.store.Queues().All(ctx)
		return err
	})
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("dispatcher: read the subscriptions: %w", err)
	}
	return queues, nil
}

// untilAvailable calls do until it fails for no reason that may pass by itself,
// or until ctx ends. It logs the message for each failure, and returns the error
// of the last call.
func (d *Dispatcher) untilAvailable(ctx context.Context, message string, do func() error) error {
	for {
		err := do()
		if !store.Unavailable(err) || ctx.Err() != nil {
			return err
		}
		d.logger.Error(message, "error", err)
		select {
		case <-time.After(storeRetryWait):
		case <-ctx.Done():
			return err
		}
	}
}

// loop updates the queues by what happens: changes in the store, and time.
func (d *Dispatcher) loop(ctx, sendCtx context.Context, watcher *store.Watcher) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	released := d.store.Released()
	for {
		d.reload(ctx, time.Now())
		d.mu.Lock()
		now := time.Now() // a reload takes time, in which queues were scheduled
		if len(d.reloads) > 0 && !now.Before(d.pausedUntil) {
			d.wake()
		}
		d.expire(now)
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
			d.apply(watcher.Take())
		case <-released:
			released = nil
			d.mu.Lock()
			d.restoreHold = false
			d.mu.Unlock()
		}
	}
}

// apply updates the queues by what was committed.
func (d *Dispatcher) apply(changes store.Changes) {
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
	for key, seq := range changes.Events {
		for q := range d.interested[key].all {
			next()
			if seq <= q.wanted || !q.Wants(key.Name, seq) {
				continue
			}
			if q.wanted <= q.seen {
				q.notBefore = now.Add(d.cfg.BatchWindow)
			}
			q.wanted = seq
			q.notePublished(key.Name)
			d.reschedule(q, q.phase, now)
		}
	}
	if changes.Alerts {
		select {
		case d.alerts <- struct{}{}:
		default: // it has not looked since the last
		}
	}
	for id := range changes.Queued {
		next()
		if q := d.queues[id]; q != nil {
			// Which kind was queued is not told; a claim finds out.
			q.nextDue, q.nextPing = now, now
			d.reschedule(q, q.phase, now)
		}
	}
}

// yield lets those who wait for the lock have it. The caller holds d.mu, and holds
// it again afterwards; queues may have been changed, added or removed by then.
func (d *Dispatcher) yield() {
	d.mu.Unlock()
	runtime.Gosched()
	d.mu.Lock()
}

// reload reads the subscriptions that have changed.
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
		case isNotFound(err):
			d.remove(q)
		case err != nil && (ctx.Err() != nil || store.Unavailable(err)):
			if ctx.Err() == nil {
				d.storeFailed(err)
			}
			d.reschedule(q, phaseReloadPending, now)
		case err != nil:
			d.claimFailed(q, q.SubscriptionID, err)
			d.reschedule(q, phaseUnusable, time.Now())
		default:
			d.uninstall(q)
			q.update(fresh, time.Now())
			d.install(q)
		}
		d.mu.Unlock()
	}
}

func isNotFound(err error) bool {
	var e *webhook.Error
	return errors.As(err, &e) && e.Code == webhook.CodeNotFound
}

// install adds a queue that was read, and indexes it by the events that it wants.
// The caller holds d.mu.
func (d *Dispatcher) install(q *subscriptionQueue) {
	d.queues[q.SubscriptionID] = q
	for _, in := range q.Interests {
		key := store.EventKey{ProgramID: q.ProgramID, Name: in.Name}
		if d.interested[key] == nil {
			d.interested[key] = &subscribers{}
		}
		d.interested[key].add(q)
	}
	q.seen, q.wanted, q.hasReplay = q.Seen, q.Wanted, q.Replaying
	q.nextDue, q.nextPing = earliest(q.nextDue, q.NextDue), earliest(q.nextPing, q.NextPing)
	d.reschedule(q, phaseCurrent, time.Now())
}

func (d *Dispatcher) uninstall(q *subscriptionQueue) {
	for _, in := range q.Interests {
		key := store.EventKey{ProgramID: q.ProgramID, Name: in.Name}
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

// remove drops a queue whose subscription was deleted. Attempts in flight go on
// until they end. The caller holds d.mu.
func (d *Dispatcher) remove(q *subscriptionQueue) {
	d.uninstall(q)
	d.reschedule(q, phaseDeleted, time.Now())
	delete(d.queues, q.SubscriptionID)
}

// storeFailed pauses claiming: nothing is sent that could not be recorded.
// The caller holds d.mu.
func (d *Dispatcher) storeFailed(err error) {
	now := time.Now()
	if now.After(d.pausedUntil) {
		level := slog.LevelError
		if errors.Is(err, store.ErrUnavailable) {
			level = slog.LevelDebug // of its disk the store tells itself, once and not each second
		}
		d.logger.Log(context.Background(), level, "the store failed; deliveries are held until it answers again", "error", err)
	}
	d.pausedUntil = now.Add(storeRetryWait)
	d.credits.Pause(true)
	d.wake()
}

func (d *Dispatcher) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}
