package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"service/api"
	"service/internal/certs"
	"service/internal/control"
	"service/store"
	"service/store/datadir"
	"service/store/doctor"
	"service/store/replica"
	"service/web"
	"service/webhook"
)

// Standby is a node that does not hold the lease. It listens on the addresses of the service,
// follows the replica, and acquires the lease on a command or after the primary's lease has ended.
type Standby struct {
	listeners
	data       *datadir.Standby
	lease      *replica.Lease
	node       *replica.Node // used by one goroutine at a time
	promotions chan *promotion
	handler    http.Handler

	mu      sync.Mutex
	primary string // the last seen owner of the lease
	noted   string // the owner recorded in the data directory
	proof   error  // why the bucket cannot be read and written, nil if it can
	waiting string // what the node waits for while it does not follow, "" for nothing
	lacks   error  // the local files that this node lacks, nil for none
	warning string // the local files that differ without harm to events, "" for none

	checked    chan struct{} // closed once the bucket was checked for the first time
	intactNext time.Time     // of the next check of all pages; used by one goroutine at a time
}

// openStandby locks the data directory and opens the listeners. The caller must call run.
func openStandby(ctx context.Context, cfg *Config) (_ *Standby, err error) {
	if err := cfg.checkLocal(); err != nil {
		return nil, err
	}
	b := &Standby{listeners: listeners{cfg: cfg}, promotions: make(chan *promotion), proof: errUnproven, checked: make(chan struct{})}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.data, err = datadir.OpenStandby(cfg.Dir, cfg.Replica, cfg.SecretKeyFile, cfg.Logger); err != nil {
		return nil, err
	}
	if b.lease, err = cfg.newLease(ctx); err != nil {
		return nil, err
	}
	if b.node, err = b.lease.NewNode(); err != nil {
		return nil, err
	}
	if err := b.listeners.open(ctx, b.copied); err != nil {
		return nil, err
	}
	registry, err := newRegistry(cfg.Version)
	if err != nil {
		return nil, err
	}
	registry.MustRegister(nodeCollector{cfg, b.figures})
	b.handler = api.NewStandby(api.StandbyConfig{
		Status: b.status, Page: web.NewStandby(cfg.Version, b.page), IsAsset: web.IsAsset, Registry: registry,
		MayReadMetrics: b.data.MayReadMetrics,
	})
	if !cfg.TLS || len(cfg.TrustedProxies) > 0 {
		b.handler = &proxyHandler{trusted: cfg.TrustedProxies, handler: b.handler, insecure: b.handler}
	}
	return b, nil
}

// copied configures the certificates of the domains: those of the copy, which only the primary
// orders and renews, and one of the local CA.
func (b *Standby) copied(cc *certs.Config) {
	cc.Copy, cc.Hosts = b.data.LoadCertificate, append(cc.Hosts, b.cfg.Domains...)
}

// URL returns the base URL of the listener, without a trailing slash.
func (b *Standby) URL() string { return b.localURL }

// close releases the resources of a standby that is not running.
func (b *Standby) close() {
	b.listeners.close()
	if b.data != nil {
		b.data.Close()
	}
}

// run stands by until it is time to take over. It returns the opened server, or nil if ctx ends
// first.
func (b *Standby) run(ctx context.Context) (*Server, error) {
	admin, err := control.Listen(ctx, b.cfg.Dir)
	if err != nil {
		b.close()
		return nil, err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, running := errgroup.WithContext(serving)
	b.goServe(running, g, admin)
	await, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(running, cancel)() // a listener failed
	requests, err := b.await(await)
	if err != nil || await.Err() != nil {
		stop()
		err = errors.Join(err, g.Wait(), b.data.Close())
		if b.lease.Valid() {
			err = errors.Join(err, b.lease.Release(context.WithoutCancel(ctx)))
		}
		return nil, err
	}
	return b.takeOver(ctx, requests, func() error {
		stop()
		return g.Wait()
	})
}

// goServe starts the listeners in g. They stop with running.
func (b *Standby) goServe(running context.Context, g *errgroup.Group, admin net.Listener) {
	logger := b.cfg.Logger
	errorLog := slog.NewLogLogger(serverLog{logger.Handler()}, slog.LevelWarn)
	for _, l := range []net.Listener{b.public, b.plain} {
		if l != nil {
			s := newHTTPServer(b.handler, b.cfg.RequestTimeout)
			s.ErrorLog = errorLog
			g.Go(func() error { return Serve(running, s, l, 0) })
		}
	}
	if b.certificates != nil {
		g.Go(func() error { return b.certificates.Run(running) })
	}
	commands := &api.StandbyOwner{
		Promote: b.requestPromotion, Examine: b.examine, Logger: logger,
		Refusal: func() string { s := b.status(); return s.Detail() },
	}
	g.Go(func() error {
		return Serve(running, &http.Server{Handler: commands.Handler(), ErrorLog: errorLog}, admin, 10*time.Second)
	})
	ready := func(context.Context) error { return nil }
	g.Go(func() error { return notify(running, "Standby, following "+b.cfg.Replica.Target(), ready, 0, logger) })
}

// await returns once this node has acquired the lease, with the promotions that requested it, or
// when ctx ends.
func (b *Standby) await(ctx context.Context) (requests []*promotion, err error) {
	if b.data.HasDatabase() {
		claimed, err := b.claim(ctx)
		if claimed != nil || err != nil || ctx.Err() != nil {
			return claimed, err
		}
	}
	b.wait("")
	g, following := errgroup.WithContext(ctx)
	following, stop := context.WithCancel(following)
	defer stop()
	g.Go(func() error { return b.data.Follow(following) })
	g.Go(func() error { return b.keepProving(following) })
	g.Go(func() error {
		defer stop()
		requests, err = b.awaitTakeover(following)
		return err
	})
	return requests, g.Wait()
}

// Intervals of the proof that this node can take over: after a success and after a failure.
const (
	proofInterval = time.Minute
	proofRetry    = 5 * time.Second
)

// errUnproven is the proof before a node's first check of the bucket.
var errUnproven = errors.New("it has not checked the bucket yet")

// keepProving renews the proof until ctx ends. It always returns nil.
func (b *Standby) keepProving(ctx context.Context) error {
	for {
		pause := proofInterval
		if b.prove(ctx) != nil {
			pause = proofRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// prove checks that this node can read and write the bucket, and that the bucket respects
// conditions; otherwise the node does not acquire the lease. It writes the node's sign of life, and
// logs changes. It also checks the node's own state, see proveLocal.
func (b *Standby) prove(ctx context.Context) error {
	b.proveLocal(ctx)
	s := b.status()
	reason := b.adminReason(s)
	if errors.Is(b.bucketProof(), errUnproven) {
		reason = ""
	}
	err := b.node.Write(ctx, replica.NodeState{
		LagSeconds: s.LagSeconds, CanTakeOver: reason == "", Reason: reason, Warning: s.Warning, OldData: s.OldData,
	})
	if ctx.Err() != nil {
		return err
	}
	b.mu.Lock()
	before := b.proof
	b.proof = err
	b.mu.Unlock()
	unproven, cause := errors.Is(before, errUnproven), replica.CauseOf(err)
	if unproven {
		close(b.checked)
	}
	switch {
	case err != nil && (unproven || cause != replica.CauseOf(before)):
		b.cfg.Logger.Error("this node cannot take over: the bucket cannot be used, will retry", "cause", cause, "error", err)
	case err == nil && before != nil && !unproven:
		b.cfg.Logger.Info("the bucket can be used again")
	}
	return err
}

// bucketProof returns why the bucket cannot be read and written, nil if it can.
func (b *Standby) bucketProof() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proof
}

// wait records and logs what the node waits for.
func (b *Standby) wait(what string) {
	if b.setWaiting(what) && what != "" {
		b.cfg.Logger.Warn("standing by", "reason", what)
	}
}

// setWaiting records what the node waits for, and reports whether that has changed.
func (b *Standby) setWaiting(what string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed, b.waiting = b.waiting != what, what
	return changed
}

// takeOver starts the server, see start, and renews the lease while it starts. If the lease is
// lost, the start ends and everything it has opened is closed, as when a running server loses the
// lease.
func (b *Standby) takeOver(ctx context.Context, requests []*promotion, stop func() error) (s *Server, err error) {
	starting, cancel := context.WithCancel(ctx)
	defer cancel()
	renewing, stopRenewing := context.WithCancel(ctx)
	defer stopRenewing()
	renewed, lost := make(chan error, 1), make(chan struct{})
	go func() {
		err := b.lease.KeepAlive(renewing)
		if err != nil {
			close(lost)
			cancel()
		}
		renewed <- err
	}()
	err = limitTeardown(lost, func() (err error) {
		s, err = b.start(starting, requests, stop)
		stopRenewing()
		switch lost := <-renewed; {
		case lost != nil:
			if s != nil {
				s.Close()
			}
			return errors.Join(fmt.Errorf("%w: %w", errLeaseLost, lost), err)
		case err != nil:
			return errors.Join(err, b.lease.Release(context.WithoutCancel(ctx)))
		}
		return nil
	})
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil && !errors.Is(err, errTeardown):
		return nil, nil // a signal during a start is a normal shutdown
	}
	return nil, err
}

// start makes the copy the database, unless the node has a database already, closes the listeners
// with stop, and opens the server. It reports the result to all promotions.
func (b *Standby) start(ctx context.Context, requests []*promotion, stop func() error) (*Server, error) {
	late, ended := make(chan struct{}), make(chan struct{})
	defer close(ended)
	var promoted promotionResult
	go func() { // a promotion that is requested during the takeover gets the same result
		for {
			select {
			case p := <-b.promotions:
				<-late
				p.done <- promoted
			case <-ended:
				return
			}
		}
	}()
	promoted.state, promoted.err = b.promote(ctx)
	close(late)
	for _, p := range requests {
		p.done <- promoted
	}
	if err := errors.Join(promoted.err, stop(), b.data.Close()); err != nil {
		return nil, err
	}
	return b.openPromoted(ctx)
}

// promote makes the copy the database, and returns the time of its newest change. It does nothing
// if the node has a database, or if the replica is empty.
func (b *Standby) promote(ctx context.Context) (time.Time, error) {
	logger := b.cfg.Logger
	if b.data.HasDatabase() {
		return time.Now(), nil
	}
	began := time.Now()
	y, err := b.data.Promote(ctx)
	if errors.Is(err, replica.ErrEmpty) && !b.data.HasCopy() {
		logger.Warn("the replica is empty; beginning with an empty database", "replica", b.cfg.Replica.Target())
		return time.Now(), nil
	} else if err != nil {
		return y.State, err
	}
	atomic.AddInt64(&b.cfg.takeovers, 1)
	// Changes that the old primary accepted after this state are only on its disk.
	logger.Warn("standby is now the primary", "state", webhook.FormatTime(y.State), "seconds_ago", int(time.Since(y.State).Seconds()),
		"bytes", y.Bytes, "took", time.Since(began).Round(time.Millisecond))
	return y.State, nil
}

// openPromoted opens the server. The promotion unlocks the data directory.
func (b *Standby) openPromoted(ctx context.Context) (*Server, error) {
	return retryLocked(ctx, lockWait, func() (*Server, error) { return open(ctx, b.cfg, b.lease) })
}

// seen records the owner of the lease.
func (b *Standby) seen(state replica.LeaseState) {
	host := state.Host()
	b.mu.Lock()
	if b.primary = host; state.Released {
		b.primary = ""
	}
	note := b.primary != "" && b.primary != b.noted
	if note {
		b.noted = b.primary
	}
	b.mu.Unlock()
	if note {
		if err := b.data.NotePrimary(host); err != nil {
			b.cfg.Logger.Warn("failed to write down where the primary is", "error", err)
		}
	}
}

// status returns the status of the node for /readyz and commands.
func (b *Standby) status() api.StandbyStatus {
	y := b.data.State()
	b.mu.Lock()
	s := api.StandbyStatus{Primary: b.primary, Reason: b.waiting, Warning: b.warning}
	b.mu.Unlock()
	if !y.Current.IsZero() {
		lag := math.Round(time.Since(y.Current).Seconds()*1000) / 1000
		s.LagSeconds = &lag
	}
	if s.Reason == "" {
		s.Reason = b.cannotTakeOver(context.Background(), false)
	}
	s.CanTakeOver = s.Reason == ""
	all, err := datadir.ListReplaced(b.cfg.Dir)
	if err != nil {
		s.OldData = []string{err.Error()}
	}
	for _, old := range all {
		s.OldData = append(s.OldData, old.String())
	}
	return s
}

// adminReason returns the reason of a status, including the bucket's error.
func (b *Standby) adminReason(s api.StandbyStatus) string {
	b.mu.Lock()
	waiting := b.waiting
	b.mu.Unlock()
	if s.CanTakeOver || waiting != "" {
		return s.Reason
	}
	return b.cannotTakeOver(context.Background(), true)
}

// cannotTakeOver returns why the node cannot serve, "" if it can. Only admins see file names and
// the bucket's error; for others the error is one word.
func (b *Standby) cannotTakeOver(ctx context.Context, admin bool) string {
	err, proof := b.data.CheckServable(ctx), b.bucketProof()
	switch {
	case proof != nil && (admin || errors.Is(proof, errUnproven) || errors.Is(proof, replica.ErrUnconditional)):
		return "It cannot take over: " + proof.Error()
	case proof != nil:
		return "It cannot take over: it cannot use the bucket (" + string(replica.CauseOf(proof)) + ")"
	case err == nil:
		b.mu.Lock()
		defer b.mu.Unlock()
		switch {
		case b.lacks == nil:
			return ""
		case admin:
			return "It cannot take over: " + b.lacks.Error()
		}
		return "It cannot take over: it lacks event types of the primary, or a file of its data directory is invalid"
	case errors.Is(err, store.ErrKey) && !errors.Is(err, fs.ErrPermission):
		b.mu.Lock()
		advice := "copy secret.key from " + cmp.Or(b.primary, "the primary")
		b.mu.Unlock()
		if !errors.Is(err, fs.ErrNotExist) { // the primary's key was rotated
			advice = err.Error() + ": " + advice
		}
		return "It cannot take over: " + advice
	case errors.Is(err, replica.ErrNoCopy):
		return "It cannot take over: it has no complete copy yet"
	}
	return "It cannot take over: " + err.Error()
}

// page returns the status for the page.
func (b *Standby) page() web.StandbyPage {
	s := b.status()
	y := web.StandbyPage{Primary: s.Primary, CanTakeOver: s.CanTakeOver, Reason: s.Reason, Warning: s.Warning, OldData: s.OldData}
	if s.LagSeconds != nil {
		y.Lag = fmt.Sprintf("%.1f s", *s.LagSeconds)
	}
	return y
}

// StandbyCheck is the name of the check that only a standby reports.
const StandbyCheck = "standby"

// examine returns findings about the standby's copy of the database.
func (b *Standby) examine() []doctor.Finding {
	from, s := b.cfg.Replica.Target(), b.status()
	f := doctor.Finding{Check: StandbyCheck, Level: doctor.LevelOK}
	switch y := b.data.State(); {
	case y.Err != "":
		f.Level, f.Advice = doctor.LevelFail, "Check the replica. A takeover now would start with the data that the "+
			"standby has; if objects are damaged, it does not take over."
		f.Detail = fmt.Sprintf("running, but failed to follow the replica %s: %s", from, y.Err)
	case !y.Following:
		f.Level, f.Advice = doctor.LevelWarn, "Wait until the copy is complete."
		f.Detail = "running, copying the replica " + from
	default:
		f.Detail = fmt.Sprintf("running, following the replica %s; newest change copied at %s", from, webhook.FormatTime(y.Added))
	}
	all := []doctor.Finding{f}
	if reason := b.adminReason(s); reason != "" {
		all = append(all, doctor.Finding{Check: "takeover", Level: doctor.LevelFail, Detail: reason,
			Advice: strings.TrimSpace(replica.CauseOf(b.bucketProof()).Remedy() +
				" Until this is resolved, this node does not take over from the primary.")})
	}
	if s.Warning != "" {
		all = append(all, doctor.Finding{Check: "local files", Level: doctor.LevelWarn, Detail: s.Warning})
	}
	for _, old := range s.OldData {
		all = append(all, doctor.Finding{Check: "old data", Level: doctor.LevelWarn, Detail: old})
	}
	return all
}
