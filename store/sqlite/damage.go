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

// ErrDamaged means that the database is damaged. Its content cannot be trusted, and
// nothing more is written to it.
var ErrDamaged = errors.New("the database is damaged")

// corruption stores the first error that reported corruption since the database was opened.
// It is safe for concurrent use.
type corruption struct {
	once  sync.Once
	found chan struct{} // closed after err is set
	err   error
}

func newCorruption() *corruption { return &corruption{found: make(chan struct{})} }

// record returns err. It keeps the first err for which [IsCorrupt] reports true.
func (c *corruption) record(err error) error {
	if err != nil && IsCorrupt(err) {
		c.once.Do(func() {
			c.err = err
			close(c.found)
		})
	}
	return err
}

// recorded returns the error that was kept, or nil.
func (c *corruption) recorded() error {
	select {
	case <-c.found:
		return c.err
	default:
		return nil
	}
}

// damagedError returns an error that wraps [ErrDamaged]. what describes the damage.
func damagedError(path, what string) error {
	return fmt.Errorf("%w: %s (%s); nothing more is written to it: restore the data directory from a replica or backup",
		ErrDamaged, path, what)
}

// CheckFiles finds lost commits that SQLite would not report. It must run before
// SQLite opens the database. SQLite treats an empty file as a new database, and a WAL
// that is damaged in the middle as one that ends there. initialized says that the
// database has had a schema and therefore must not be empty. The error wraps
// [ErrDamaged].
func CheckFiles(path string, initialized bool) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if info.Size() == 0 && initialized {
		return damagedError(path, "the file is empty, but it had a schema before")
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
		err = damagedError(path+"-wal", what)
	}
	return err
}

// Sizes are in bytes.
const (
	walHeader      = 32
	walFrameHeader = 24
	walMagic       = 0x377f0682 // the lowest bit is set for big-endian checksums
	walVersion     = 3007000
)

// walDamage reads a WAL (see "WAL File Format" in SQLite's documentation) and
// describes its damage, or returns "".
//
// SQLite ignores everything from the first invalid frame on. After a power cut, that
// frame belongs to the last commit, which was in progress. Since each commit is
// fsynced before the next begins, an invalid frame that is followed by two valid
// commits in a row was valid once: its commit is lost. One valid commit after it is not
// enough, since the frames of the last commit reach the disk in any order. Damage to the last two
// commits can look like a power cut and is then not reported.
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
	// The header is fsynced before the first frame is written, so a power cut cannot leave
	// an invalid header before a frame.
	sum := walSum(order, [2]uint32{}, header[:24])
	switch {
	case word(header[:], 0)&^1 != walMagic, word(header[:], 1) != walVersion,
		size < 512 || size > 1<<16 || size&(size-1) != 0, sum != [2]uint32{word(header[:], 6), word(header[:], 7)}:
		return "the WAL header is invalid", nil
	}
	salt := [2]uint32{word(header[:], 4), word(header[:], 5)}
	frame := make([]byte, walFrameHeader+size)
	intact := true // all frames so far are valid
	commits := 0   // valid commits in a row since the last invalid frame
	for n := 1; ; n++ {
		if _, err := io.ReadFull(r, frame); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		stored := [2]uint32{word(frame, 4), word(frame, 5)}
		sum = walSum(order, walSum(order, sum, frame[:8]), frame[walFrameHeader:])
		// Frames with another salt are left over from before SQLite last restarted the WAL.
		valid := sum == stored && salt == [2]uint32{word(frame, 2), word(frame, 3)}
		switch {
		case !valid:
			intact, commits = false, 0
		case !intact && word(frame, 1) != 0: // the last frame of a commit
			if commits++; commits == 2 {
				return fmt.Sprintf("a commit before frame %d of the WAL is damaged", n), nil
			}
		}
		sum = stored // checksums are chained: a frame can be valid after an invalid one
	}
}

// walSum continues the checksum s of a WAL over b. len(b) must be a multiple of 8.
func walSum(order binary.ByteOrder, s [2]uint32, b []byte) [2]uint32 {
	for ; len(b) >= 8; b = b[8:] {
		s[0] += order.Uint32(b) + s[1]
		s[1] += order.Uint32(b[4:]) + s[0]
	}
	return s
}
