package sqlite

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// ErrDamaged says that the database is damaged: what it holds cannot be
// trusted, and nothing more is written to it.
var ErrDamaged = errors.New("the database is damaged")

// damage is the first error since the database was opened that says it is
// damaged.
type damage struct {
	once  sync.Once
	found chan struct{} // closed when there is one
	err   error         // set before
}

func newDamage() *damage { return &damage{found: make(chan struct{})} }

// observe returns err, and remembers it when [IsCorrupt] holds for it.
func (d *damage) observe(err error) error {
	if err != nil && IsCorrupt(err) {
		d.once.Do(func() {
			d.err = err
			close(d.found)
		})
	}
	return err
}

// observed returns what was remembered, nil for nothing.
func (d *damage) observed() error {
	select {
	case <-d.found:
		return d.err
	default:
		return nil
	}
}

func damaged(path, what string) error {
	return fmt.Errorf("%w: %s (%s); it was left untouched: restore the data directory from a copy", ErrDamaged, path, what)
}

// CheckFiles refuses, before SQLite opens it, a database that SQLite would
// accept in silence although commits of it are lost: it takes an empty file for
// a new database, and a write-ahead log with a damaged middle for one that ends
// there. Initialized says that the database had a schema once, and so may not be
// empty. The error wraps [ErrDamaged].
func CheckFiles(path string, initialized bool) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if info.Size() == 0 && initialized {
		return damaged(path, "the file is empty, and has a key")
	}
	f, err := os.Open(path + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	what, err := walDamage(f)
	if err == nil && what != "" {
		err = damaged(path+"-wal", what)
	}
	return err
}

const (
	walHeader      = 32
	walFrameHeader = 24
	walMagic       = 0x377f0682 // the lowest bit says big-endian checksums
	walVersion     = 3007000
)

// walDamage reads SQLite's log (see "WAL File Format" in its documentation) and
// says what is wrong with it, "" for nothing.
//
// A log ends at its first frame that is not whole: after a power cut that is
// part of the one commit that was under way. But each commit was fsynced before
// the next was begun. So when two commits on end follow behind such a frame,
// the frame was whole once, and what it held is lost. Damage to the last two
// commits cannot be told from a power cut.
func walDamage(f io.Reader) (string, error) {
	r := bufio.NewReaderSize(f, 1<<20)
	var header [walHeader]byte
	if _, err := io.ReadFull(r, header[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "", nil // nothing was committed to it
	} else if err != nil {
		return "", err
	}
	if _, err := r.Peek(1); errors.Is(err, io.EOF) {
		return "", nil
	}
	word := func(b []byte, i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	size := word(header[:], 2)
	order := binary.ByteOrder(binary.LittleEndian)
	if word(header[:], 0)&1 == 1 {
		order = binary.BigEndian
	}
	// The header is fsynced before the first frame is written.
	sum := walSum(order, [2]uint32{}, header[:24])
	switch {
	case word(header[:], 0)&^1 != walMagic, word(header[:], 1) != walVersion,
		size < 512 || size > 1<<16 || size&(size-1) != 0, sum != [2]uint32{word(header[:], 6), word(header[:], 7)}:
		return "its header is not one", nil
	}
	salt := [2]uint32{word(header[:], 4), word(header[:], 5)}
	frame := make([]byte, walFrameHeader+size)
	whole := true // every frame until now
	commits := 0  // behind the first that is not, on end
	for n := 1; ; n++ {
		if _, err := io.ReadFull(r, frame); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		stored := [2]uint32{word(frame, 4), word(frame, 5)}
		sum = walSum(order, walSum(order, sum, frame[:8]), frame[walFrameHeader:])
		// Frames with another salt are left over from before SQLite last restarted the log.
		fits := sum == stored && salt == [2]uint32{word(frame, 2), word(frame, 3)}
		switch {
		case !fits:
			whole, commits = false, 0
		case !whole && word(frame, 1) != 0:
			if commits++; commits == 2 {
				return fmt.Sprintf("a commit before frame %d is not whole", n), nil
			}
		}
		sum = stored
	}
}

// walSum continues a checksum of SQLite's log. len(b) is a multiple of 8.
func walSum(order binary.ByteOrder, s [2]uint32, b []byte) [2]uint32 {
	for ; len(b) >= 8; b = b[8:] {
		s[0] += order.Uint32(b) + s[1]
		s[1] += order.Uint32(b[4:]) + s[0]
	}
	return s
}
