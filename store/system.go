package store

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"service/store/counters"
	"service/store/datadir"
	"service/store/doctor"
	"service/store/schema"
	"service/webhook"
)

// System is the state of the store.
type System struct {
	SQLite string // version of the library
	Schema int    // version of the database's schema
	Path   string // of the database

	Database int64 // bytes
	WAL      int64 // bytes of the write-ahead log
	Free     int64 // bytes of free pages, which are reused

	counters.Summary       // since Open
	Swept            Swept // since Open
}

// System returns the state of the store. Its cost does not depend on the number of stored records.
func (s Figures) System(ctx context.Context) (y System, err error) {
	y.Path = filepath.Join(s.dir, datadir.Database)
	y.Swept = s.Swept()
	for file, size := range map[string]*int64{y.Path: &y.Database, y.Path + "-wal": &y.WAL} {
		// Stat does not open the file, so SQLite's locks are safe.
		if info, err := os.Stat(file); err == nil {
			*size = info.Size()
		}
	}
	var pages, size int64
	err = s.db.Scan(ctx, "SELECT sqlite_version(), (SELECT user_version FROM pragma_user_version), (SELECT freelist_count "+
		"FROM pragma_freelist_count), (SELECT page_size FROM pragma_page_size)", nil, &y.SQLite, &y.Schema, &pages, &size)
	if err != nil {
		return y, err
	}
	y.Free = pages * size
	y.Summary, err = s.metrics.Summarize()
	return y, err
}

// Records returns all programs, subscriptions, tokens and admins, ordered by kind and then by
// creation.
func (s *Store) Records(ctx context.Context) ([]datadir.Record, error) {
	_, each := s.db.Reads(ctx)
	return datadir.ReadRecords(each)
}

// SetLocalFiles stores the digests of this node's files if they have changed.
func (s *Store) SetLocalFiles(ctx context.Context, files datadir.LocalFiles) error {
	text, err := json.Marshal(files)
	if err != nil {
		return err
	}
	scan, _ := s.db.Reads(ctx)
	old, err := schema.Get(scan, schema.LocalFiles)
	if err != nil || string(old) == string(text) {
		return err
	}
	return s.writer.do(func(t *tx) error { return t.Exec(schema.Set, schema.LocalFiles, text) })
}

// Forecast predicts the size of the database if events keep arriving as in the last day.
func (s Figures) Forecast(ctx context.Context) (doctor.Forecast, error) {
	scan, _ := s.db.Reads(ctx)
	u, err := doctor.MeasureUsage(scan, filepath.Join(s.dir, datadir.Database), s.clock.Now(), s.retention)
	if err != nil {
		return doctor.Forecast{}, err
	}
	disk, _ := doctor.DiskOf(s.dir, s.disk.Min, scan)
	return doctor.Predict(u, disk, s.retention), nil
}

// Examine checks the data that this process has open. It reads the database for at most the
// given time, which should be a few seconds, since no checkpoint can run during that; 0
// skips that check.
func (s *Store) Examine(ctx context.Context, reading time.Duration) []doctor.Finding {
	o := doctor.Running{
		Config: doctor.Config{Dir: s.dir, MinFreeDisk: s.disk.Min, Retention: s.retention},
		DB:     s.db, File: s.keys.File(), Clock: s.clock, NotReady: s.Check(ctx), Unused: s.unusedTypes,
	}
	if status := s.Replica().Status(); status.State != ReplicaOff {
		o.Status = &status
	}
	return o.Examine(ctx, reading)
}

// Stats returns the statistics of attempts, see [pending.Stats.Read].
func (s Figures) Stats(ctx context.Context, programID, subscriptionID string, span time.Duration,
	from, to time.Time) ([]webhook.Stat, error) {
	return s.stats.Read(ctx, s.db, programID, subscriptionID, span, from, to)
}

// Stats returns the statistics of each of the subscriptions, see [pending.Stats.ReadEach].
func (s Subscriptions) Stats(ctx context.Context, subs []webhook.Subscription, span time.Duration,
	from, to time.Time) (map[string][]webhook.Stat, error) {
	return s.stats.ReadEach(ctx, s.db, subs, span, from, to)
}
