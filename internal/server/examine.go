package server

import (
	"context"
	"fmt"
	"time"

	"service/internal/certs"
	"service/store"
)

// examine looks at the running service from within. The database is read
// through for at most the given time, 0 for not.
func (s *Server) examine(ctx context.Context, reading time.Duration) []store.Finding {
	all := s.store.Examine(ctx, reading)
	deliveries := store.Finding{Check: "deliveries", Level: store.LevelOK, Detail: "they are being made"}
	if err := s.delivering(); err != nil {
		deliveries.Level, deliveries.Detail, deliveries.Advice = store.LevelFail, err.Error(), "See the log."
	}
	if s.lease != nil {
		all = append(all, s.examineLease())
	}
	return append(append(all, deliveries), certs.Findings(s.certificates.Certificates(), time.Now())...)
}

// examineLease says whether this service may accept and send by its lease.
func (s *Server) examineLease() store.Finding {
	if !s.lease.Valid() {
		return store.Finding{
			Check: "lease", Level: store.LevelFail, Detail: "it has ended: nothing is accepted or sent",
			Advice: "See to the bucket: the service goes on when it can renew the lease, and ends when another one has taken over.",
		}
	}
	return store.Finding{Check: "lease", Level: store.LevelOK, Detail: fmt.Sprintf("this service holds it, generation %d", s.lease.Generation())}
}
