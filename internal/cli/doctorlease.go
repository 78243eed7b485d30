package cli

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"service/internal/server"
	"service/store"
	"service/store/replica"
)

const leaseCheck = "lease"

// bucketWait is how long the doctor waits for the bucket.
const bucketWait = 5 * time.Second

// eventTypes looks at the operator's own event types. A server that runs has read
// them at its start, so a file that was broken since stops only the next one.
func (d *diagnosis) eventTypes(dir string) {
	catalog, err := server.LoadCatalog(dir)
	if err != nil {
		d.add(store.LevelFail, "event types", "Correct the file, or move it out of the folder: service serve does not start with it.", "%v", err)
		return
	}
	d.ok("event types", "%d, all of them right", len(catalog.Types()))
}

// replicaFile looks at whether the replica's configuration is for this database.
func (d *diagnosis) replicaFile(s *server.Config) {
	if err := s.Replica.CheckDatabase(filepath.Join(s.Dir, "service.db")); err != nil && !errors.Is(err, fs.ErrNotExist) { // serve makes the directory
		d.add(store.LevelFail, "replica", "Name this database there, or another data directory by --data, or another file by --litestream; service serve does not start with this one.", "%v", err)
	}
}

// lease looks at whether service serve could take the lease, or may go without.
// No server runs on the data directory; known and err are what [store.KnownLease]
// returned for it.
func (d *diagnosis) lease(ctx context.Context, s *server.Config, known int64, err error) {
	if err == nil {
		if s.Lease == 0 {
			known = math.MaxInt64 // what wants no lease is not compared with it
		}
		err = prospect(ctx, s, known)
	}
	switch {
	case errors.Is(err, store.ErrLocked): // by a process that another check names
	case errors.Is(err, replica.ErrLeaseStale):
		d.add(store.LevelFail, leaseCheck, "Follow the replica: service standby --force. Events that only this data has are published by service salvage.", "%v; what is in %s is old", err, s.Dir)
	case errors.Is(err, replica.ErrLeaseHeld) && s.Lease == 0:
		d.add(store.LevelFail, leaseCheck, "Follow that service with service standby, or configure a replica of its own. If it is gone for good, start this one with --lease.", "%v; service serve refuses to write to its replica %s", err, s.Replica.Target())
	case errors.Is(err, replica.ErrLeaseHeld):
		d.add(store.LevelWarn, leaseCheck, "service serve watches it for a whole lease: it takes over from a service that is gone, and refuses beside one that serves; service standby follows that.", "%v", err)
	case err != nil && s.Lease != 0:
		d.add(store.LevelFail, leaseCheck, "See to the bucket: service serve does not start before it can read and write the lease there.", "%v", err)
	case err == nil && s.Lease != 0:
		d.ok(leaseCheck, "it can be taken")
	}
}

// prospect returns nil when the lease can be taken at once, or when none is
// wanted and no service holds it.
func prospect(ctx context.Context, s *server.Config, known int64) error {
	ctx, cancel := context.WithTimeout(ctx, bucketWait)
	defer cancel()
	l, err := replica.NewLease(ctx, replica.LeaseConfig{Replica: s.Replica, Dir: s.Dir, TTL: s.Lease})
	if err != nil {
		return err
	}
	return l.Prospect(ctx, known)
}
