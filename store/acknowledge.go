package store

import (
	"context"
	"errors"
	"time"

	"service/store/replica"
	"service/webhook"
)

// newReplication returns the replication of the database at path, nil for none.
func (s *core) newReplication(cfg *Config, path string) *replica.Replication {
	if cfg.Replica == nil {
		return nil
	}
	r := replica.NewReplication(cfg.Replica, path, s.db.Writer(), s.logger)
	r.Measure(s.metrics.upload)
	if cfg.AcknowledgeTimeout > 0 {
		r.Acknowledge(cfg.AcknowledgeTimeout)
	}
	if cfg.VerifyReplica > 0 {
		s.verifyReplica(r, cfg)
	}
	return r
}

// Acknowledge waits until all that was committed so far may be acknowledged. With an
// AcknowledgeTimeout that is once the replica has it, no matter who wrote it; the error is a
// *webhook.Error when that takes longer. Without, every write that has returned may
// be, and Acknowledge does nothing; unless the lease has ended since, as after the
// suspension of the machine: its successor may not have the write.
func (s *Store) Acknowledge(ctx context.Context) error {
	if !s.writer.leased() {
		return webhook.NewError(webhook.CodeUnavailable, "The record is stored on this host, but its lease ended before it could be acknowledged: another may have taken over, without the record. Send the request again: with the same event id, or the same Idempotency-Key, it takes effect once.")
	}
	if s.AcknowledgeTimeout() == 0 {
		return nil
	}
	commits := s.db.Writer().Commits()
	if s.replication.Covered(commits) {
		return nil
	}
	began := time.Now()
	s.metrics.acknowledging.Inc()
	defer s.metrics.acknowledging.Dec()
	err := s.replication.Await(ctx, commits)
	switch {
	case errors.Is(err, replica.ErrNotAcknowledged):
		s.metrics.unacknowledged.Inc()
		return errNotAcknowledged()
	case err == nil:
		s.metrics.acknowledged.Observe(time.Since(began).Seconds())
	}
	return err
}

// errNotAcknowledged returns the error of a write that the replica does not have.
func errNotAcknowledged() *webhook.Error {
	return webhook.NewError(webhook.CodeUnavailable, "The record is stored on this host, but its replica does not have it yet, so it is not acknowledged. Send the request again: with the same event id, or the same Idempotency-Key, it takes effect once.")
}

// AcknowledgeTimeout returns how long [Store.Acknowledge] waits at most; 0 when it
// does not wait.
func (s *Store) AcknowledgeTimeout() time.Duration {
	if s.replication == nil {
		return 0
	}
	return s.replication.AcknowledgeTimeout()
}

// Commit is a moment in the order of all writes, see [Store.LastCommit].
type Commit int64

// LastCommit returns the newest commit, which has every write that has returned.
func (s *Store) LastCommit() Commit { return Commit(s.db.Writer().Commits()) }

// Acknowledged reports whether what was written up to a commit may be acknowledged,
// see [Store.Acknowledge]. It does not wait.
func (s *Store) Acknowledged(c Commit) bool {
	return s.writer.leased() && (s.AcknowledgeTimeout() == 0 || s.replication.Covered(int64(c)))
}
