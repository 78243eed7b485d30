package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"service/store/doctor"
	"service/store/replica"
	"service/webhook"
)

const (
	// standbyKnown is how long a standby counts as part of this installation after its last sign of
	// life.
	standbyKnown = 7 * 24 * time.Hour
	// standbySilent is the maximum time since the last sign of life of a running standby: two signs
	// of life may be lost.
	standbySilent = 3 * proofInterval
	// standbysTimeout limits one reading of all signs of life.
	standbysTimeout = 10 * time.Second
)

// standbyWatch reads the signs of life that the standbys of this primary write to the bucket. They
// are input from outside.
type standbyWatch struct {
	read   func(ctx context.Context) ([]replica.NodeState, error)
	logger *slog.Logger

	told bool // the log records that no standby could take over

	mu    sync.Mutex
	nodes []replica.NodeState // as last read, of the last days
	err   error               // of the last reading
}

// newStandbyWatch returns a watch over the standbys of a replica.
func newStandbyWatch(cfg *replica.Config, logger *slog.Logger) *standbyWatch {
	return &standbyWatch{
		read: func(ctx context.Context) ([]replica.NodeState, error) { return replica.Nodes(ctx, cfg) }, logger: logger,
	}
}

// run reads the signs of life as often as standbys write them, until ctx ends. It always returns
// nil.
func (w *standbyWatch) run(ctx context.Context) error {
	for {
		w.look(ctx, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(proofInterval):
		}
	}
}

// look reads the signs of life once, and logs when no standby is left that could take over.
func (w *standbyWatch) look(ctx context.Context, now time.Time) {
	bounded, cancel := context.WithTimeout(ctx, standbysTimeout)
	defer cancel()
	nodes, err := w.read(bounded)
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	if w.err = err; err == nil {
		w.nodes = nil
		for _, n := range nodes {
			if now.Sub(n.SeenAt) <= standbyKnown {
				w.nodes = append(w.nodes, n)
			}
		}
	}
	w.mu.Unlock()
	c := w.counts(now)
	none := c.ready == 0 && c.unable+c.silent > 0
	switch {
	case none && !w.told:
		w.logger.Warn("no standby can take over; service doctor says why", "unable", c.unable, "silent", c.silent)
	case !none && w.told:
		w.logger.Info("a standby can take over again")
	}
	w.told = none
}

// standbyCounts counts standbys by state.
type standbyCounts struct{ ready, unable, silent int }

// counts returns the number of standbys in each state.
func (w *standbyWatch) counts(now time.Time) (c standbyCounts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		switch {
		case now.Sub(n.SeenAt) > standbySilent:
			c.silent++
		case !n.CanTakeOver:
			c.unable++
		default:
			c.ready++
		}
	}
	return c
}

// alive returns the hosts of the running standbys, none for a nil watch. If the bucket cannot be
// read, it returns those of the last reading.
func (w *standbyWatch) alive(ctx context.Context) (hosts []string) {
	if w == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, standbysTimeout)
	defer cancel()
	nodes, err := w.read(ctx)
	if err != nil {
		w.mu.Lock()
		nodes = w.nodes
		w.mu.Unlock()
	}
	now := time.Now()
	for _, n := range nodes {
		if now.Sub(n.SeenAt) <= standbySilent {
			hosts = append(hosts, webhook.Shorten(n.Host, 64))
		}
	}
	return hosts
}

// findings describes the standbys of the last days, and a failure to read their signs of life.
func (w *standbyWatch) findings(now time.Time) (all []doctor.Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		all = append(all, doctor.Finding{
			Check: StandbyCheck + "s", Level: doctor.LevelWarn, Detail: w.err.Error(), Advice: replica.CauseOf(w.err).Remedy(),
		})
	}
	return append(all, standbyFindings(w.nodes, now)...)
}

// standbyFindings describes the signs of life of standbys, which are input from outside.
func standbyFindings(nodes []replica.NodeState, now time.Time) (all []doctor.Finding) {
	for _, n := range nodes {
		ago := max(now.Sub(n.SeenAt), 0)
		if ago > standbyKnown {
			continue
		}
		f := doctor.Finding{Check: StandbyCheck + " " + webhook.Shorten(n.Host, 64), Level: doctor.LevelOK, Detail: "can take over"}
		switch {
		case ago > standbySilent:
			f.Level, f.Detail = doctor.LevelWarn, fmt.Sprintf("was last seen %s ago", ago.Round(time.Minute))
			f.Advice = "Start the service on it, or remove its object in nodes/ of the replica if the machine is gone."
		case !n.CanTakeOver:
			f.Level, f.Detail = doctor.LevelWarn, webhook.Shorten(n.Reason, 500)
			f.Advice = "Until this is resolved, that node does not take over."
		case n.LagSeconds != nil:
			f.Detail += fmt.Sprintf("; its copy was complete %.1f s before its last sign of life", *n.LagSeconds)
		}
		if n.Warning != "" && f.Level == doctor.LevelOK {
			f.Level, f.Detail = doctor.LevelWarn, f.Detail+". "+webhook.Shorten(n.Warning, 500)
		}
		all = append(all, f)
		for i, old := range n.OldData {
			if i == 3 {
				break
			}
			all = append(all, doctor.Finding{Check: f.Check, Level: doctor.LevelWarn, Detail: webhook.Shorten(old, 500),
				Advice: "See After a failover in docs/failover.md."})
		}
	}
	return all
}
