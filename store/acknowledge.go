package store

import (
	"context"
	"errors"
	"time"

	"service/store/replica"
	"service/webhook"
)

// newReplication returns the replication of the database at path, nil if none is configured.
func (s *core) newReplication(cfg *Config, path string) *replica.Replication {
	if cfg.Replica == nil {
		return nil
	}
	r := replica.NewReplication(cfg.Replica, path, s.db.Writer(), s.logger)
	r.Measure(s.metrics.Upload)
	if cfg.AcknowledgeTimeout > 0 {
		r.Acknowledge(cfg.AcknowledgeTimeout)
	}
	if cfg.VerifyReplica > 0 {
		s.verifyReplica(r, cfg)
	}
	return r
}

// Acknowledge waits until everything committed so far may be acknowledged. With an
// AcknowledgeTimeout, that is once the replica contains it, no matter which request wrote it;
// if that takes longer, Acknowledge returns a *webhook.Error. Without one, it returns
// immediately. It always fails if the lease has ended since the write, for example while the
// machine was suspended: the next holder may lack the write.
func (s Replica) Acknowledge(ctx context.Context) error {
	if !s.writer.leased() {
		return errUnleased()
	}
	if s.AcknowledgeTimeout() == 0 {
		return nil
	}
	commits := s.db.Writer().Commits()
	if s.replication.Covered(commits) {
		return nil
	}
	began := time.Now()
	s.metrics.Acknowledging.Inc()
	defer s.metrics.Acknowledging.Dec()
	err := s.replication.Await(ctx, commits)
	switch {
	case errors.Is(err, replica.ErrNotAcknowledged):
		s.metrics.Unacknowledged.Inc()
		return errNotAcknowledged()
	case err == nil:
		s.metrics.Acknowledged.Observe(time.Since(began).Seconds())
	}
	return err
}

// Await waits until everything committed so far is in the replica, even without an
// AcknowledgeTimeout and however long that takes. Without a replica it returns immediately. The
// error is a *webhook.Error if the lease has ended since, as in [Replica.Acknowledge].
func (s Replica) Await(ctx context.Context) error {
	if s.replication != nil {
		if err := s.replication.AwaitUpload(ctx, s.db.Writer().Commits()); err != nil {
			return err
		}
	}
	if !s.writer.leased() {
		return errUnleased()
	}
	return nil
}

// errUnleased returns the error for a write that the next holder of the lease may lack.
func errUnleased() *webhook.Error {
	return webhook.NewError(webhook.CodeUnavailable, "The change is stored on this host, but it is not acknowledged: this host lost its "+
		"lease, and another may have taken over without the change. Send the request again: with the same event id or "+
		"Idempotency-Key, it takes effect once.")
}

// errNotAcknowledged returns the error for a write that is not in the replica yet.
func errNotAcknowledged() *webhook.Error {
	return webhook.NewError(webhook.CodeUnavailable, "The change is stored on this host, but it is not acknowledged: it is "+
		"not in the replica yet. Send the request again: with the same event id or Idempotency-Key, it takes effect once.")
}

// AcknowledgeTimeout returns the longest time that [Replica.Acknowledge] waits, 0 if it does not
// wait.
func (s Replica) AcknowledgeTimeout() time.Duration {
	if s.replication == nil {
		return 0
	}
	return s.replication.AcknowledgeTimeout()
}

// Commit is a position in the order of all commits, see [Store.LastCommit].
type Commit int64

// LastCommit returns the newest commit. Every write that has returned is in that commit or an
// earlier one.
func (s *Store) LastCommit() Commit { return Commit(s.db.Writer().Commits()) }

// Acknowledged reports whether everything up to a commit may be acknowledged, see
// [Replica.Acknowledge]. It does not wait.
func (s Replica) Acknowledged(c Commit) bool {
	return s.writer.leased() && (s.AcknowledgeTimeout() == 0 || s.replication.Covered(int64(c)))
}
