package store

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strconv"

	"service/store/replica"
)

// leaseSetting holds the generation of the lease that the data was last written
// under.
const leaseSetting = "lease"

// LeaseGeneration returns the generation of the lease that the data was last
// written under, 0 for none, as [replica.Lease.Acquire] takes it. Data that was
// just restored is the newest: it has [math.MaxInt64].
func (s *Store) LeaseGeneration(ctx context.Context) (generation int64, err error) {
	err = s.writer.do(func(t *tx) error {
		var text []byte
		err := t.Scan("SELECT value FROM settings WHERE name = '"+restoredSetting+"'", nil, &text)
		if err == nil {
			generation = math.MaxInt64
			return nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		err = t.Scan("SELECT value FROM settings WHERE name = '"+leaseSetting+"'", nil, &text)
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

// Lease is what the store, and who sends its deliveries, ask of a lease; see
// [replica.Lease].
type Lease struct {
	Valid func() bool            // reports whether the lease is valid now
	Held  func() context.Context // returns a context that ends when the lease does
}

// Fence makes the store depend on a lease that is held, of the given generation.
// While the lease is not valid every write fails, so that nothing is accepted and
// no attempt is counted. Fence is called once, before anything is accepted or sent.
func (s *Store) Fence(generation int64, l Lease) error { return s.fence(generation, l) }

func (s *core) fence(generation int64, l Lease) error {
	err := s.writer.do(func(t *tx) error {
		return t.Exec("INSERT INTO settings (name, value) VALUES ('"+leaseSetting+"', ?1) ON CONFLICT DO UPDATE SET value = ?1", []byte(strconv.FormatInt(generation, 10)))
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

// LeaseExpired reports whether a write failed because the store's lease is not
// valid.
func LeaseExpired(err error) bool { return errors.Is(err, replica.ErrLeaseExpired) }

// MaySend reports whether bytes of an attempt that has been counted may be sent
// now.
func (s Queues) MaySend() bool { return s.writer.leased() }

// Held returns a context that ends when the lease does: attempts in flight must
// end then. It is nil if the store needs no lease.
func (s Queues) Held() context.Context {
	if l := s.writer.lease.Load(); l != nil {
		return l.Held()
	}
	return nil
}
