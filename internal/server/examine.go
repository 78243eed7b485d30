package server

import (
	"context"
	"fmt"
	"time"

	"service/internal/certs"
	"service/store"
	"service/store/replica"
)

// examineTime limits the check of the database in a running server.
const examineTime = 3 * time.Second

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
		all = append(all, s.standbys.findings(time.Now())...)
	}
	return append(append(all, deliveries), certs.Findings(s.certificates.Certificates(), time.Now())...)
}

// examineLease checks that the lease of this service is valid.
func (s *Server) examineLease() store.Finding {
	f := store.Finding{Check: "lease", Level: store.LevelOK, Detail: fmt.Sprintf("held by this service, generation %d", s.lease.Generation())}
	failure := s.lease.Failure()
	switch {
	case !s.lease.Valid():
		f.Level, f.Detail = store.LevelFail, "expired: the service does not accept or send anything"
		f.Advice = "The service resumes when it can renew the lease, and follows if another node has taken over."
	case failure != nil:
		f.Level = store.LevelWarn
		f.Advice = "The service stops accepting and sending events when the lease ends."
	}
	if failure != nil {
		f.Detail += fmt.Sprintf("; the last renewal failed: %v", failure)
		f.Advice = replica.CauseOf(failure).Remedy() + " " + f.Advice
	}
	return f
}
