package server

import (
	"context"
	"fmt"
	"time"

	"service/internal/certs"
	"service/store"
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
	}
	return append(append(all, deliveries), certs.Findings(s.certificates.Certificates(), time.Now())...)
}

// examineLease checks that the lease of this service is valid.
func (s *Server) examineLease() store.Finding {
	if !s.lease.Valid() {
		return store.Finding{
			Check: "lease", Level: store.LevelFail, Detail: "expired: the service does not accept or send anything",
			Advice: "Check the bucket. The service resumes when it can renew the lease, and exits if another one has taken over.",
		}
	}
	return store.Finding{
		Check: "lease", Level: store.LevelOK, Detail: fmt.Sprintf("held by this service, generation %d", s.lease.Generation()),
	}
}
