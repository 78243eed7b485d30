package datadir

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"service/store/commits"
	"service/store/dictionary"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// OldData is the data directory of a service that no longer runs, such as a primary that a
// standby has replaced. The methods only read it, and change none of its files.
type OldData struct {
	// Warning describes which part of the data cannot be read, "" if all of it can.
	Warning string

	db           *sqlite.Offline
	lock         *sqlite.DirLock
	dictionaries dictionary.Set
}

// OpenOldData locks a data directory and opens its database for reading. The error wraps
// [sqlite.ErrLocked] if a process has it open. The caller must call Close.
func OpenOldData(ctx context.Context, dir string) (_ *OldData, err error) {
	if err := CheckData(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, Database)
	o := new(OldData)
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	if o.lock, err = sqlite.LockDirReadOnly(dir); err != nil {
		return nil, err
	}
	switch err := CheckFiles(dir); {
	case errors.Is(err, sqlite.ErrDamaged):
		o.Warning = err.Error() // rows before the damage can still be read
	case err != nil:
		return nil, err
	}
	if o.db, err = sqlite.OpenOffline(path); err != nil {
		return nil, err
	}
	var version int
	if err := o.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if err := schema.Current.Check(path, version); err != nil {
		return nil, err
	}
	if err := commits.Check(ctx, path, o.db.DB); errors.Is(err, commits.ErrMissing) && o.Warning == "" {
		o.Warning = err.Error()
	}
	return o, o.dictionaries.Read(o.each(ctx))
}

// Close releases the data directory.
func (o *OldData) Close() error {
	var errs []error
	if o.db != nil {
		errs = append(errs, o.db.Close())
	}
	if o.lock != nil {
		errs = append(errs, o.lock.Close())
	}
	return errors.Join(errs...)
}

func (o *OldData) each(ctx context.Context) sqlite.EachRow {
	_, each := sqlite.ReadsOf(ctx, o.db.DB)
	return each
}

// Programs returns the IDs of all programs in ascending order.
func (o *OldData) Programs(ctx context.Context) (all []string, err error) {
	err = o.each(ctx)("SELECT id FROM programs ORDER BY id", nil, sqlite.Into(&all))
	return all, err
}

// OldEvent is an event in [OldData].
type OldEvent struct {
	Seq        int64
	ID         string
	ReceivedAt time.Time
}

// EventsAfter returns the next events of a program after seq but for erased ones, at most limit.
func (o *OldData) EventsAfter(ctx context.Context, programID string, seq int64, limit int) (events []OldEvent, err error) {
	err = o.each(ctx)("SELECT seq, id, received_at FROM events WHERE program_id = ? AND seq > ? AND erased_at IS NULL "+
		"ORDER BY seq LIMIT ?",
		[]any{programID, seq, limit}, func(scan func(...any) error) error {
			var e OldEvent
			err := scan(&e.Seq, &e.ID, (*sqlite.Time)(&e.ReceivedAt))
			events = append(events, e)
			return err
		})
	return events, err
}

// SalvagedEvent is an event to publish again.
type SalvagedEvent struct {
	JSON  []byte        `json:"json"` // as it was delivered
	Trace webhook.Trace `json:"trace,omitempty"`
}

const (
	selectOldEvent = `SELECT id, json, traceparent, EXISTS (
			SELECT 1 FROM delivery_events x CROSS JOIN deliveries d ON d.num = x.delivery
			WHERE x.program_id = e.program_id AND x.seq = e.seq AND d.status = 'success')
		FROM events e WHERE program_id = ?1 AND seq = ?2`
	selectOldDelivered = `SELECT EXISTS (SELECT 1 FROM events e CROSS JOIN subscriptions s ON s.program_id = e.program_id
			CROSS JOIN delivered r ON r.subscription_id = s.id AND r.name = e.name
		WHERE e.program_id = ?1 AND e.seq = ?2 AND r.first_seq <= ?2 AND r.last_seq >= ?2)`
)

// Event returns an event, and whether a receiver has already accepted it.
func (o *OldData) Event(ctx context.Context, programID string, seq int64) (e SalvagedEvent, delivered bool, err error) {
	var id string
	err = o.db.QueryRowContext(ctx, selectOldEvent, programID, seq).Scan(&id, &e.JSON, sqlite.OrZero(&e.Trace), &delivered)
	if err == nil {
		e.JSON, err = o.dictionaries.Unpack(id, e.JSON)
	}
	if err == nil && !delivered {
		err = o.db.QueryRowContext(ctx, selectOldDelivered, programID, seq).Scan(&delivered)
	}
	return e, delivered, err
}

// Records is store.Records for the old data.
func (o *OldData) Records(ctx context.Context) ([]Record, error) {
	return ReadRecords(o.each(ctx))
}

// Record is the part of a record other than an event that is compared between two services. It
// contains no secret.
type Record struct {
	Kind      string    `json:"kind"` // program, subscription, token or admin
	ID        string    `json:"id"`
	ProgramID string    `json:"program_id,omitempty"`
	Label     string    `json:"label,omitempty"` // a name for admins
	CreatedAt time.Time `json:"created_at"`
	Revision  int64     `json:"revision,omitempty"` // incremented by every change
	Ended     bool      `json:"ended,omitempty"`    // deleted, or revoked
}

// ReadRecords runs the queries of all kinds of records with each.
func ReadRecords(each sqlite.EachRow) ([]Record, error) {
	var all []Record
	for _, kind := range [...]struct{ name, query string }{
		{"program", "SELECT id, id, '', created_at, 0, 0 FROM programs ORDER BY created_at, id"},
		{"subscription", "SELECT id, program_id, url, created_at, revision, deleted_at IS NOT NULL FROM subscriptions ORDER BY created_at, id"},
		{"token", "SELECT id, coalesce(program_id, ''), hint || '… of user ' || user_id, created_at, 0, revoked_at IS NOT NULL FROM tokens " +
			"ORDER BY created_at, id"},
		{"admin", "SELECT id, '', email, created_at, 0, 0 FROM admins ORDER BY created_at, id"},
	} {
		err := each(kind.query, nil, func(scan func(...any) error) error {
			r := Record{Kind: kind.name}
			err := scan(&r.ID, &r.ProgramID, &r.Label, (*sqlite.Time)(&r.CreatedAt), &r.Revision, &r.Ended)
			if kind.name == "subscription" {
				r.Label = webhook.WithoutQuery(r.Label)
			}
			all = append(all, r)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Difference is a record that differs on an old primary from that on the new one.
type Difference struct {
	Record
	What string // "created", "changed" or "ended"
}

// CompareRecords returns the records that were changed on the old primary only: those that exist
// only there, have a higher revision there, or have ended there but not here. Changes made here
// are omitted.
func CompareRecords(old, present []Record) (all []Difference) {
	type key struct{ kind, id string }
	here := make(map[key]Record, len(present))
	for _, r := range present {
		here[key{r.Kind, r.ID}] = r
	}
	for _, r := range old {
		now, ok := here[key{r.Kind, r.ID}]
		switch {
		case !ok && r.Ended:
		case !ok:
			all = append(all, Difference{r, "created"})
		case r.Ended && !now.Ended:
			all = append(all, Difference{r, "ended"})
		case r.Revision > now.Revision && !now.Ended:
			all = append(all, Difference{r, "changed"})
		}
	}
	return all
}
