package store

import (
	"context"
	"fmt"
	"time"

	"service/store/doctor"
	"service/webhook"
)

// diskCheckInterval is how long the result of a check is used.
const diskCheckInterval = 100 * time.Millisecond

// diskChecked is the result of the last check. The leader of the writer owns it.
type diskChecked struct {
	at  time.Time
	low bool
}

// room returns an error for publishers while the disk is nearly full or the WAL is too long. It
// is called within a write.
func (s *core) room(t *tx) error {
	d := &s.diskChecked
	if now := time.Now(); now.Sub(d.at) >= diskCheckInterval {
		room, minFree, low := s.disk.Check(t.Scan)
		switch {
		case low && !d.low:
			s.logger.Error("disk nearly full; rejecting events until space is freed", "free", room, "minimum", minFree)
		case d.low && !low:
			s.logger.Info("disk space recovered; accepting events again", "free", room, "minimum", minFree)
		}
		d.at, d.low = now, low
	}
	if d.low {
		return errLowDisk()
	}
	return s.rejectLongWAL()
}

// errLowDisk returns the error of a publish while the disk is nearly full.
func errLowDisk() *webhook.Error {
	return webhook.NewError(webhook.CodeUnavailable,
		"The disk of the service is nearly full. Events are rejected until the operator frees space. Try again later.")
}

// scanNow reads a row through a reader, outside of any request.
func (s *core) scanNow(query string, args []any, dest ...any) error {
	return s.db.Scan(context.Background(), query, args, dest...)
}

// Disk returns the state of the disk that contains the data directory.
func (s Figures) Disk() (doctor.Disk, error) {
	d, err := doctor.DiskOf(s.dir, s.disk.Min, s.scanNow)
	if err != nil {
		return doctor.Disk{}, fmt.Errorf("store: disk: %w", err)
	}
	return d, nil
}
