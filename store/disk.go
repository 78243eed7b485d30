package store

import (
	"context"
	"fmt"
	"math"
	"time"

	"service/internal/durable"
	"service/store/sqlite"
	"service/webhook"
)

// AutoFreeDisk as Config.MinFreeDisk reserves a twentieth of the file system but at most 256
// MiB, and at least 16 MiB or a quarter of it, whichever is less.
const AutoFreeDisk = -1

const (
	autoShare = 20
	autoMax   = 256 << 20
	// On a small disk, reserve what the WAL may need, up to a quarter.
	autoMin      = 16 << 20
	autoMinShare = 4
	// diskCheckInterval is how long the result of a check is used.
	diskCheckInterval = 100 * time.Millisecond
)

// disk checks the free space. While it is below the minimum, events are refused, so that the
// rest is available to record the results of those already accepted.
type disk struct {
	dir string
	min int64 // bytes; AutoFreeDisk, or 0 for no minimum

	// Owned by the leader of the writer.
	checked time.Time
	low     bool
}

// check returns how many bytes are free, the minimum, and whether the disk is too full for
// events. scan reads a row of the database. If the free space is unknown, the disk is not too
// full.
func (d *disk) check(scan sqlite.ScanRow) (room, minFree int64, low bool) {
	if d.min == 0 {
		return 0, 0, false
	}
	room, size, err := durable.FreeSpace(d.dir)
	if minFree = d.min; minFree == AutoFreeDisk {
		minFree = max(min(size/autoShare, autoMax), min(size/autoMinShare, autoMin))
	}
	if err != nil || room >= minFree {
		return room, minFree, false
	}
	var unused int64
	if scan(selectUnused, nil, &unused) != nil {
		unused = 0
	}
	return room, minFree, tooFull(room, unused, minFree)
}

// selectUnused returns the size of the free pages in the database file in bytes.
const selectUnused = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"

// tooFull reports whether to refuse events. The database file shrinks late or never, so the
// pages that retention frees count as free space. The WAL still needs space outside of it: a
// quarter of the minimum.
func tooFull(room, unused, minFree int64) bool { return room < minFree/4 || room+unused < minFree }

// room returns an error for publishers while the disk is nearly full or the WAL is too long. It
// is called within a write.
func (s *core) room(t *tx) error {
	d := &s.disk
	if now := time.Now(); now.Sub(d.checked) >= diskCheckInterval {
		room, minFree, low := d.check(t.Scan)
		switch {
		case low && !d.low:
			s.logger.Error("disk nearly full; rejecting events until space is freed", "free", room, "minimum", minFree)
		case d.low && !low:
			s.logger.Info("disk space recovered; accepting events again", "free", room, "minimum", minFree)
		}
		d.checked, d.low = now, low
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

// Disk is the state of the disk that contains the data directory.
type Disk struct {
	Free, Size int64 // bytes
	MinFree    int64 // minimum free bytes to accept events, of which three quarters may be free pages of the database; 0 for no minimum
	Low        bool  // less is free, and events are rejected
}

// diskOf returns the state of the disk of a directory. scan reads a row of the database. If the
// free space is unknown, it counts as plenty.
func diskOf(dir string, minFree int64, scan sqlite.ScanRow) Disk {
	d := disk{dir: dir, min: minFree}
	room, size, err := durable.FreeSpace(dir)
	if err != nil {
		room = math.MaxInt64 / 4
	}
	_, need, low := d.check(scan)
	return Disk{Free: room, Size: size, MinFree: need, Low: low}
}

// Disk returns the state of the disk that contains the data directory.
func (s Figures) Disk() (Disk, error) {
	room, size, err := durable.FreeSpace(s.disk.dir)
	if err != nil {
		return Disk{}, fmt.Errorf("store: disk: %w", err)
	}
	_, minFree, low := s.disk.check(s.scanNow)
	return Disk{Free: room, Size: size, MinFree: minFree, Low: low}, nil
}
