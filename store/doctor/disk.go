package doctor

import (
	"math"

	"service/internal/durable"
	"service/store/sqlite"
)

// AutoFreeDisk as Config.MinFreeDisk reserves a twentieth of the file system but at most 256
// MiB, and at least 16 MiB or a quarter of it, whichever is less.
const AutoFreeDisk = -1

const (
	autoShare = 20
	autoMax   = 256 << 20
	// On a small disk, reserve the space that the WAL may need, up to a quarter.
	autoMin      = 16 << 20
	autoMinShare = 4
)

// FreeSpace checks the free space. While it is below the minimum, events are refused, so that the
// rest is available to record the results of events already accepted.
type FreeSpace struct {
	Dir string
	Min int64 // bytes; AutoFreeDisk, or 0 for no minimum
}

// Check returns how many bytes are free, the minimum, and whether the disk is too full for
// events. scan reads a row of the database. If the free space is unknown, the disk is not too
// full.
func (d *FreeSpace) Check(scan sqlite.ScanRow) (room, minFree int64, low bool) {
	if d.Min == 0 {
		return 0, 0, false
	}
	room, size, err := durable.FreeSpace(d.Dir)
	if minFree = d.Min; minFree == AutoFreeDisk {
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
// pages that retention frees count as free space. The WAL still needs space outside of the
// file: a quarter of the minimum.
func tooFull(room, unused, minFree int64) bool { return room < minFree/4 || room+unused < minFree }

// Disk is the state of the disk that contains the data directory.
type Disk struct {
	Free, Size int64 // bytes
	MinFree    int64 // minimum free bytes to accept events, of which three quarters may be free pages of the database; 0 for no minimum
	Low        bool  // less is free, and events are rejected
}

// DiskOf returns the state of the disk of a directory. scan reads a row of the database, which may not
// exist. If the free space is unknown, it counts as plenty.
func DiskOf(dir string, minFree int64, scan sqlite.ScanRow) (Disk, error) {
	d := FreeSpace{Dir: dir, Min: minFree}
	room, size, err := durable.FreeSpace(dir)
	if err != nil {
		room = math.MaxInt64 / 4
	}
	_, need, low := d.Check(scan)
	return Disk{Free: room, Size: size, MinFree: need, Low: low}, err
}
