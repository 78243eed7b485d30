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

// Fence makes the store depend on a lease that is held. While the lease is not
// valid every write fails, so that nothing is accepted and no attempt is counted.
// Fence is called once, before anything is accepted or sent.
func (s *Store) Fence(l *replica.Lease) error { return s.fence(l.Generation(), l.Valid) }

// fence is [Store.Fence] for a lease of the given generation, which valid
// reports on.
func (s *core) fence(generation int64, valid func() bool) error {
	err := s.writer.do(func(t *tx) error {
		return t.Exec("INSERT INTO settings (name, value) VALUES ('"+leaseSetting+"', ?1) ON CONFLICT DO UPDATE SET value = ?1", []byte(strconv.FormatInt(generation, 10)))
	})
	if err != nil {
		return err
	}
	s.writer.lease.Store(&valid)
	if s.replication != nil {
		s.replication.Fence(valid)
	}
	return nil
}

// MaySend reports whether an attempt that has been counted may be made now.
func (s Queues) MaySend() bool { return s.writer.leased() }
