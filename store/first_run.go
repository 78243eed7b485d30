package store

import (
	"context"

	"service/store/record"
	"service/store/sqlite"
)

// FirstRun is the progress of setting up a new installation.
type FirstRun struct {
	ProgramID      string // of the newest subscription, or else of the newest token; "" without either
	Token          bool   // a token exists that is not revoked
	SubscriptionID string // the newest, "" without any
	Delivered      bool   // an event other than a ping was delivered
}

// firstRunDeliveries is the maximum number of deliveries in a first run. An installation
// with more counts as set up, so its deliveries are not searched.
const firstRunDeliveries = 500

const (
	// At most firstRunDeliveries rows.
	selectAnyDelivered = `SELECT EXISTS (SELECT 1 FROM deliveries WHERE status = 'success'
		AND (ping IS NULL OR CAST(ping AS TEXT) ->> '$.name' <> 'ping'))`
	selectNewestToken = "SELECT program_id FROM tokens WHERE revoked_at IS NULL AND program_id IS NOT NULL " +
		"ORDER BY created_at DESC, id DESC LIMIT 1"
	selectNewestSubscription = "SELECT id, program_id FROM subscriptions WHERE deleted_at IS NULL ORDER BY created_at DESC, id DESC LIMIT 1"
)

// FirstRun reads the progress of the setup. Once an event was delivered, only Delivered is
// set, and the read costs the same whatever is stored.
func (s *Store) FirstRun(ctx context.Context) (r FirstRun, err error) {
	var newest int64
	if err := s.db.Scan(ctx, record.SelectNewestNum, nil, &newest); err != nil {
		return r, err
	}
	if r.Delivered = newest > firstRunDeliveries; r.Delivered {
		return r, nil
	}
	if err := s.db.Scan(ctx, selectAnyDelivered, nil, &r.Delivered); err != nil || r.Delivered {
		return r, err
	}
	if err := sqlite.NoRows(s.db.Scan(ctx, selectNewestToken, nil, &r.ProgramID), nil); err != nil {
		return r, err
	}
	r.Token = r.ProgramID != ""
	return r, sqlite.NoRows(s.db.Scan(ctx, selectNewestSubscription, nil, &r.SubscriptionID, &r.ProgramID), nil)
}
