package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"service/internal/certs"
	"service/store"
	"service/store/replica"
)

// examine checks the running service. It checks the database for at most the given time, or
// not at all if that is 0.
func (s *Server) examine(ctx context.Context, reading time.Duration) []store.Finding {
	all := s.store.Examine(ctx, reading)
	deliveries := store.Finding{Check: "deliveries", Level: store.LevelOK, Detail: "the dispatcher is running"}
	if err := s.delivering(); err != nil {
		deliveries.Level, deliveries.Detail, deliveries.Advice = store.LevelFail, err.Error(), "Check the log."
	}
	if s.lease != nil {
		all = append(all, s.examineLease())
		all = append(all, s.examineStandbys(ctx)...)
	}
	return append(append(all, deliveries), certs.Findings(s.certificates.Certificates(), time.Now())...)
}

// examineLease checks that the lease of this service is valid.
func (s *Server) examineLease() store.Finding {
	if !s.lease.Valid() {
		return store.Finding{
			Check: "lease", Level: store.LevelFail, Detail: "expired: the service does not accept or send anything",
			Advice: "Check the bucket. The service resumes when it can renew the lease, and follows if another node has taken over.",
		}
	}
	return store.Finding{
		Check: "lease", Level: store.LevelOK, Detail: fmt.Sprintf("held by this service, generation %d", s.lease.Generation()),
	}
}

const (
	// standbyKnown is how long ago a standby may have been seen to be one of this installation.
	standbyKnown = 7 * 24 * time.Hour
	// standbySilent is how long ago a standby that runs was seen at most: two signs of life may be
	// lost.
	standbySilent = 3 * proofInterval
)

// examineStandbys returns findings about the standbys of the last days, from their signs of life in
// the bucket.
func (s *Server) examineStandbys(ctx context.Context) (all []store.Finding) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	nodes, err := replica.Nodes(ctx, s.cfg.Replica)
	if err != nil {
		return []store.Finding{{Check: StandbyCheck + "s", Level: store.LevelWarn, Detail: err.Error(), Advice: "Check the bucket."}}
	}
	return standbyFindings(nodes, time.Now())
}

// standbyFindings describes the signs of life of standbys, which are input from outside.
func standbyFindings(nodes []replica.NodeState, now time.Time) (all []store.Finding) {
	for _, n := range nodes {
		ago := max(now.Sub(n.SeenAt), 0)
		if ago > standbyKnown {
			continue
		}
		f := store.Finding{Check: StandbyCheck + " " + shorten(n.Host, 64), Level: store.LevelOK, Detail: "can take over"}
		switch {
		case ago > standbySilent:
			f.Level, f.Detail = store.LevelWarn, fmt.Sprintf("was last seen %s ago", ago.Round(time.Minute))
			f.Advice = "Start the service on it, or remove its object in nodes/ of the replica if the machine is gone."
		case !n.CanTakeOver:
			f.Level, f.Detail = store.LevelWarn, shorten(n.Reason, 500)
			f.Advice = "Until this is resolved, that node does not take over."
		case n.LagSeconds != nil:
			f.Detail += fmt.Sprintf("; its copy was complete %.1f s before its last sign of life", *n.LagSeconds)
		}
		all = append(all, f)
		for i, old := range n.OldData {
			if i == 3 {
				break
			}
			all = append(all, store.Finding{Check: f.Check, Level: store.LevelWarn, Detail: shorten(old, 500),
				Advice: "See After a failover in docs/operations.md."})
		}
	}
	return all
}

// shorten returns at most the first n bytes of a text from outside.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}
