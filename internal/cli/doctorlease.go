package cli

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"service/internal/server"
	"service/store"
	"service/store/doctor"
	"service/store/replica"
)

const (
	leaseCheck  = "lease"
	writerCheck = "other service"
)

// bucketWait is how long the doctor waits for the bucket.
const bucketWait = 5 * time.Second

// eventTypes checks the operator's own event types. A running server read them at its
// start, so a file that has been damaged since then only breaks the next start.
func (d *diagnosis) eventTypes(dir string) {
	catalog, err := server.LoadCatalog(dir)
	if err != nil {
		d.add(doctor.LevelFail, "event types",
			doctor.Remedy(err, "Correct the file or move it out of the directory. service serve does not start with it."), "%v", err)
		return
	}
	d.ok("event types", "%d, all valid", len(catalog.Types()))
}

// replicaFile checks that the replica's configuration is for this database. The data
// directory may not exist yet: serve creates it.
func (d *diagnosis) replicaFile(s *server.Config) {
	if err := s.Replica.CheckDatabase(filepath.Join(s.Dir, "service.db")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.add(doctor.LevelFail, "replica",
			"Change the path in the configuration, or set --data or --litestream. service serve does not start like this.", "%v", err)
	}
}

// writer checks whether service serve may run without a lease, or would find another service
// writing to its replica. No server is running.
func (d *diagnosis) writer(ctx context.Context, s *server.Config) {
	ctx, cancel := context.WithTimeout(ctx, bucketWait)
	defer cancel()
	err := replica.CheckUnleased(ctx, s.Replica)
	if err == nil {
		err = replica.CheckWriter(ctx, s.Replica, s.Dir)
	}
	switch {
	case errors.Is(err, replica.ErrLeaseHeld):
		d.add(doctor.LevelFail, leaseCheck,
			"Start this one with --lease, to follow that service or to take over from it, or configure a separate replica.",
			"%v; service serve refuses to write to its replica %s", err, s.Replica.Target())
	case errors.Is(err, replica.ErrWriting):
		d.add(doctor.LevelWarn, writerCheck,
			"service serve watches the other service for 30 s, and does not start if it is alive. To replace it, stop it first. "+
				"For a drill, start this one with --litestream off.",
			"%v, unless it was killed", err)
	}
}

// lease checks whether service serve could take the lease. No server is running; known and err
// are the results of [datadir.KnownLease] for the data directory.
func (d *diagnosis) lease(ctx context.Context, s *server.Config, known int64, err error) {
	if err == nil {
		err = prospect(ctx, s, known)
	}
	switch {
	case errors.Is(err, store.ErrLocked): // another check reports the process with the lock
	case errors.Is(err, replica.ErrLeaseStale):
		d.add(doctor.LevelWarn, leaseCheck,
			"Start it: it follows the new primary. Data that only this directory has is kept, for service salvage.",
			"%v; the data in %s is out of date", err, s.Dir)
	case errors.Is(err, replica.ErrLeaseHeld):
		d.add(doctor.LevelWarn, leaseCheck,
			"service serve waits for one lease duration. It takes over if the other service is gone, and follows it otherwise.",
			"%v", err)
	case err != nil:
		d.add(doctor.LevelFail, leaseCheck,
			"Check the bucket. service serve does not start until it can read and write the lease there.", "%v", err)
	default:
		d.ok(leaseCheck, "available")
	}
}

// prospect returns nil if the service can take the lease at once.
func prospect(ctx context.Context, s *server.Config, known int64) error {
	ctx, cancel := context.WithTimeout(ctx, bucketWait)
	defer cancel()
	l, err := replica.NewLease(ctx, replica.LeaseConfig{Replica: s.Replica, Dir: s.Dir, TTL: s.Lease})
	if err != nil {
		return err
	}
	return l.CheckAcquire(ctx, known)
}
