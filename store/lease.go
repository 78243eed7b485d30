package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"service/store/datadir"
	"service/store/replica"
	"service/store/schema"
	"service/webhook"
)

// WrittenGeneration returns the lease generation under which the data was last written, even if
// the data was restored; 0 for none.
func (s Replica) WrittenGeneration(ctx context.Context) (generation int64, err error) {
	var text []byte
	err = s.db.Scan(ctx, "SELECT value FROM settings WHERE name = '"+schema.Lease+"'", nil, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// Generation returns the lease generation under which the data was last written, 0 for none, for
// [replica.Lease.Acquire]. For data that was just restored, it returns [datadir.NewestData].
func (s Replica) Generation(ctx context.Context) (generation int64, err error) {
	err = s.writer.do(func(t *tx) error {
		var text []byte
		err := t.Scan("SELECT value FROM settings WHERE name = '"+schema.RestoredNewest+"'", nil, &text)
		if err == nil {
			generation = datadir.NewestData
			return nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		err = t.Scan("SELECT value FROM settings WHERE name = '"+schema.Lease+"'", nil, &text)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		generation, err = strconv.ParseInt(string(text), 10, 64)
		return err
	})
	return generation, err
}

// Lease is the part of [replica.Lease] that the store and the dispatcher use.
type Lease struct {
	Valid   func() bool            // reports whether the lease is valid now
	Context func() context.Context // returns a context that ends when the lease does
	Failure func() error           // returns why the last renewal failed, nil if it did not; may be nil
}

// Fence makes the store depend on a lease of the given generation: while the lease is not
// valid, every write fails, so nothing is accepted and no attempt is counted. Call Fence
// once, before anything is accepted or sent.
func (s Replica) Fence(generation int64, l Lease) error { return s.fence(generation, l) }

func (s *core) fence(generation int64, l Lease) error {
	err := s.writer.do(func(t *tx) error {
		if err := t.Exec("DELETE FROM settings WHERE name = '" + schema.RestoredNewest + "'"); err != nil {
			return err
		}
		return t.Exec(schema.Set, schema.Lease, []byte(strconv.FormatInt(generation, 10)))
	})
	if err != nil {
		return err
	}
	s.writer.lease.Store(&l)
	if s.replication != nil {
		s.replication.Fence(l.Valid)
	}
	return nil
}

// errExpired returns the error of a service whose lease has ended, with the cause in one word.
func (l *Lease) errExpired() error {
	why := ""
	if l.Failure != nil {
		if cause := replica.CauseOf(l.Failure()); cause != "" {
			why = " (" + string(cause) + ")"
		}
	}
	return webhook.NewError(webhook.CodeUnavailable, "The lease of this service has ended because it could not be renewed in the bucket of "+
		"the replica"+why+". Another host may have taken over, so nothing is accepted or sent until this host has the lease again.")
}

// LeaseExpired reports whether a write failed because the lease is not valid.
func LeaseExpired(err error) bool { return errors.Is(err, replica.ErrLeaseExpired) }

// MaySend reports whether bytes of a counted attempt may be sent now.
func (s Queues) MaySend() bool { return s.writer.leased() }

// LeaseContext returns a context that ends with the lease; attempts in flight must end with it. It is
// nil if the store needs no lease.
func (s Queues) LeaseContext() context.Context {
	if l := s.writer.lease.Load(); l != nil {
		return l.Context()
	}
	return nil
}
