package store

import (
	"fmt"
	"syscall"
	"time"

	"service/webhook"
)

// AutoFreeDisk as Config.MinFreeDisk keeps a twentieth of the file system free,
// or 256 MiB where that is less.
const AutoFreeDisk = -1

const (
	autoShare = 20
	autoMost  = 256 << 20
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

// look returns how many bytes are free, how many must be, and whether that is
// not so. A file system that does not say has room.
func (d *disk) look() (room, least int64, low bool) {
	if d.least == 0 {
		return 0, 0, false
	}
	room, size, err := free(d.dir)
	if least = d.least; least == AutoFreeDisk {
		least = min(size/autoShare, autoMost)
	}
	return room, least, err == nil && room < least
}

// room returns an error for publishers while there is little room on the disk.
// It is called within a write.
func (s *Store) room() error {
	d := &s.disk
	if now := time.Now(); now.Sub(d.looked) >= diskLooked {
		room, least, low := d.look()
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
	return nil
}

func errLowDisk() *webhook.Error {
	return webhook.NewError(webhook.CodeUnavailable, "The disk of the service is nearly full: no event is accepted until its operator has made room. Nothing was stored; try again later.")
}

// Disk is the state of the disk that the data directory is on.
type Disk struct {
	Free, Size int64 // bytes
	Least      int64 // so much must be free for events to be accepted; 0 for no limit
	Low        bool  // it is not, and none is accepted
}

// Disk returns the state of the disk.
func (s *Store) Disk() (Disk, error) {
	room, size, err := free(s.disk.dir)
	if err != nil {
		return Disk{}, fmt.Errorf("store: disk: %w", err)
	}
	_, least, low := s.disk.look()
	return Disk{Free: room, Size: size, Least: least, Low: low}, nil
}
