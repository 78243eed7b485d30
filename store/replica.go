package store

import (
	"context"
	"errors"

	"service/store/replica"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// ReplicaState is the state of the replica.
type ReplicaState = replica.State

// The states of the replica.
const (
	ReplicaOff     ReplicaState = "off" // no replica is configured
	ReplicaOpening              = replica.StateOpening
	ReplicaRunning              = replica.StateRunning
	ReplicaFailing              = replica.StateFailing
)

// ReplicaStatus is the status of the replica.
type ReplicaStatus = replica.Status

// Status returns the status of the replica. It does no I/O.
func (s Replica) Status() ReplicaStatus {
	if s.replication == nil {
		return ReplicaStatus{State: ReplicaOff}
	}
	return s.replication.Status()
}

// Run keeps the replica up to date until ctx ends, and retries after failures. It always
// returns nil. [Store.Close] uploads the last changes.
func (s Replica) Run(ctx context.Context) error {
	if s.replication != nil {
		s.replication.Run(ctx)
	}
	return nil
}

// beforeBatch is the hook [sqlite.Hooks].BeforeBatch.
func (s *core) beforeBatch(t *sqlite.Tx) {
	truncate := s.truncate.Load()
	if s.replication != nil {
		s.replication.BeforeBatch(t)
		s.truncate.Store(truncate && !s.replication.TruncateWAL(t))
	} else {
		s.walLimit.BeforeBatch(t)
		s.truncate.Store(truncate && !t.TruncateWAL())
	}
}

// truncateWAL removes overwritten data from the WAL, and reports whether it could. It cannot
// while a long read uses the WAL.
func (s *core) truncateWAL() bool {
	for range 2 {
		s.truncate.Store(true)
		err := s.writer.do(func(*tx) error { return nil })
		if !s.truncate.Swap(false) && err == nil {
			return true
		}
	}
	return false
}

// rejectLongWAL returns an error for publishers while the WAL is too long.
func (s *core) rejectLongWAL() error {
	if s.replication != nil && s.replication.WALTooLong() {
		return webhook.NewError(webhook.CodeUnavailable,
			"The write-ahead log of the service is too long, because replication cannot keep up. Events are rejected until it is shorter. Try "+
				"again later.")
	}
	return nil
}

// continueAudit records, once after a restore, from which entry the audit log continues.
func (s *core) continueAudit() error {
	return s.writer.do(func(t *tx) error {
		from, err := schema.Get(t.Scan, schema.Continued)
		if err != nil || from == nil {
			return err
		}
		return errors.Join(t.Exec("DELETE FROM settings WHERE name = '"+schema.Continued+"'"), t.people.ContinueAudit(string(from)))
	})
}
