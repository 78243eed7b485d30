package server

import (
	"context"
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
	return append(append(all, deliveries), certs.Findings(s.certificates.Certificates(), time.Now())...)
}
