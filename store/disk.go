package store

import (
	"context"
	"fmt"
	"math"
	"syscall"
	"time"

	"service/webhook"
)

// AutoFreeDisk as Config.MinFreeDisk keeps a twentieth of the file system free,
// or 256 MiB where that is less; but at least 16 MiB, or a quarter of it.
const AutoFreeDisk = -1

const (
	autoShare = 20
	autoMost  = 256 << 20
	// On a small disk as much is kept as the write-ahead log may need, if that
	// is no more than a quarter.
	autoLeast      = 16 << 20
	autoLeastShare = 4
	// diskLooked is how long the last look at the disk holds.
	diskLooked = 100 * time.Millisecond
)

// disk watches how much room there is. Events are refused while it is less than
// least, so that what is left is for recording what becomes of those that were
// accepted.
type disk struct {
	dir   string
	least int64 // bytes; AutoFreeDisk, or 0 for none

	// Owned by the leader of the writer.
	looked time.Time
	low    bool
}

// free returns how many bytes this process can still write, and the size of
// the file system.
func free(dir string) (free, size int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}

// FreeDisk returns how many bytes this process can still write to the disk of a
// folder.
func FreeDisk(dir string) (int64, error) {
	room, _, err := free(dir)
	return room, err
}

// look returns how many bytes are free, how many must be, and whether that is
// not so; scan reads a row of the database. A file system that does not say has
// room.
func (d *disk) look(scan func(query string, args []any, dest ...any) error) (room, least int64, low bool) {
	if d.least == 0 {
		return 0, 0, false
	}
	room, size, err := free(d.dir)
	if least = d.least; least == AutoFreeDisk {
		least = max(min(size/autoShare, autoMost), min(size/autoLeastShare, autoLeast))
	}
	if err != nil || room >= least {
		return room, least, false
	}
	var unused int64
	if scan(selectUnused, nil, &unused) != nil {
		unused = 0
	}
	return room, least, tooFull(room, unused, least)
}

// selectUnused returns how many bytes of the database's file are free.
const selectUnused = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"

// tooFull says whether no event is to be accepted. The file of the database becomes
// smaller late or never: where it is what has filled the disk, the room that
// retention makes is within it, and unused. But the write-ahead log needs room
// beside it, a quarter of what must be free.
func tooFull(room, unused, least int64) bool { return room < least/4 || room+unused < least }

// room returns an error for publishers while there is little room on the disk.
// It is called within a write.
func (s *core) room(t *tx) error {
	d := &s.disk
	if now := time.Now(); now.Sub(d.looked) >= diskLooked {
		room, least, low := d.look(t.Scan)
		switch {
		case low && !d.low:
			s.logger.Error("the disk is nearly full: no event is accepted until there is room", "free", room, "least", least)
		case d.low && !low:
			s.logger.Info("the disk has room again: events are accepted", "free", room, "least", least)
		}
		d.looked, d.low = now, low
	}
	if d.low {
		return errLowDisk()
	}
	return s.rejectLongWAL()
}

func errLowDisk() *webhook.Error {
	return webhook.NewError(webhook.CodeUnavailable, "The disk of the service is nearly full: no event is accepted until its operator has made room. Try again later.")
}

func (s *core) scanNow(query string, args []any, dest ...any) error {
	return s.db.Scan(context.Background(), query, args, dest...)
}

// Disk is the state of the disk that the data directory is on.
type Disk struct {
	Free, Size int64 // bytes
	Least      int64 // so much must be free for events to be accepted, three quarters of it perhaps within the database; 0 for no limit
	Low        bool  // it is not, and none is accepted
}

// diskOf returns the state of the disk of a directory; scan reads a row of the
// database. A file system that does not say has room.
func diskOf(dir string, least int64, scan func(query string, args []any, dest ...any) error) Disk {
	d := disk{dir: dir, least: least}
	room, size, err := free(dir)
	if err != nil {
		room = math.MaxInt64 / 4
	}
	_, need, low := d.look(scan)
	return Disk{Free: room, Size: size, Least: need, Low: low}
}

// Disk returns the state of the disk.
func (s *Store) Disk() (Disk, error) {
	room, size, err := free(s.disk.dir)
	if err != nil {
		return Disk{}, fmt.Errorf("store: disk: %w", err)
	}
	_, least, low := s.disk.look(s.scanNow)
	return Disk{Free: room, Size: size, Least: least, Low: low}, nil
}
