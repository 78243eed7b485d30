package sqlite

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
)

// pages reads pages as the last commit left them: from the WAL, or from the database file if the WAL does
// not have them.
type pages struct {
	file   *os.File // of the database, owned by the guard
	wal    string   // its path
	number uint64   // of the transaction in which frames was read
	size   int      // of a page, in bytes
	salt   [8]byte  // of the WAL that frames is of
	frames map[uint32]int64
	end    int64 // of the last commit in the WAL
}

// Page reads a page of the database into page, which it enlarges as needed. The page is as the last commit
// left it: changes of this transaction are not in it, be they of this write or of one that shares the
// transaction.
func (t *Tx) Page(n uint32, page []byte) (_ []byte, err error) {
	p := &t.w.pages
	if p.number != t.number {
		if err := p.update(); err != nil {
			return nil, err
		}
		p.number = t.number
	}
	if cap(page) < p.size {
		page = make([]byte, p.size)
	}
	page = page[:p.size]
	if at, ok := p.frames[n]; ok {
		wal, err := os.Open(p.wal)
		if err != nil {
			return nil, err
		}
		_, err = wal.ReadAt(page, at+walFrameHeader)
		return page, errors.Join(err, wal.Close())
	}
	_, err = p.file.ReadAt(page, int64(n-1)*int64(p.size))
	return page, err
}

// update reads which pages the WAL has. It reads only what is new, unless SQLite has restarted the WAL.
// Nothing else writes to the WAL, since the transaction has begun.
func (p *pages) update() error {
	var head [walHeader]byte
	if _, err := p.file.ReadAt(head[:], 0); err != nil {
		return err
	}
	if p.size = int(binary.BigEndian.Uint16(head[16:])); p.size == 1 {
		p.size = 1 << 16
	}
	wal, err := os.Open(p.wal)
	if err != nil {
		return err
	}
	defer wal.Close()
	if _, err := wal.ReadAt(head[:], 0); errors.Is(err, io.EOF) {
		p.frames, p.end = nil, 0
		return nil
	} else if err != nil {
		return err
	}
	if salt := [8]byte(head[16:24]); p.frames == nil || salt != p.salt {
		p.frames, p.salt, p.end = make(map[uint32]int64), salt, walHeader
	}
	some := make(map[uint32]int64) // of a commit
	for at := p.end; ; {
		var frame [walFrameHeader]byte
		if _, err := wal.ReadAt(frame[:], at); errors.Is(err, io.EOF) || err == nil && [8]byte(frame[8:16]) != p.salt {
			return nil
		} else if err != nil {
			return err
		}
		some[binary.BigEndian.Uint32(frame[:])] = at
		at += walFrameHeader + int64(p.size)
		if binary.BigEndian.Uint32(frame[4:]) != 0 { // the last one of a commit
			for n, at := range some {
				p.frames[n] = at
			}
			clear(some)
			p.end = at
		}
	}
}
