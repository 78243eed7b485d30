package server

import (
	"context"
	"fmt"
	"time"

	"service/internal/certs"
	"service/store/doctor"
	"service/store/replica"
)

// examineTime limits the check of the database in a running server.
const examineTime = 3 * time.Second

// examine checks the running service. It checks the database for at most the duration reading, or
// not at all if reading is 0.
func (s *Server) examine(ctx context.Context, reading time.Duration) []doctor.Finding {
	all := s.store.Examine(ctx, reading)
	deliveries := doctor.Finding{Check: "deliveries", Level: doctor.LevelOK, Detail: "the dispatcher is running"}
	if err := s.delivering(); err != nil {
		deliveries.Level, deliveries.Detail, deliveries.Advice = doctor.LevelFail, err.Error(), "Check the log."
	}
	if s.lease != nil {
		all = append(all, s.examineLease())
		all = append(all, s.standbys.findings(time.Now())...)
	}
	return append(append(all, deliveries), certs.Findings(s.certificates.Certificates(), time.Now())...)
}

// examineLease checks that the lease of this service is valid.
func (s *Server) examineLease() doctor.Finding {
	f := doctor.Finding{Check: "lease", Level: doctor.LevelOK,
		Detail: fmt.Sprintf("held by this service, generation %d", s.lease.Generation())}
	failure := s.lease.Failure()
	switch {
	case !s.lease.Valid():
		f.Level, f.Detail = doctor.LevelFail, "expired: the service does not accept or send anything"
		f.Advice = "The service resumes when it can renew the lease, and follows if another node has taken over."
	case failure != nil:
		f.Level = doctor.LevelWarn
		f.Advice = "The service stops accepting and sending events when the lease ends."
	}
	if failure != nil {
		f.Detail += fmt.Sprintf("; the last renewal failed: %v", failure)
		f.Advice = replica.CauseOf(failure).Remedy() + " " + f.Advice
	}
	return f
}
