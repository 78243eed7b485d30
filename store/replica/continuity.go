package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/internal/durable"
)

// A database continues a position of the replica when nothing can have been
// written to it that is not in the write-ahead log behind that position. The
// proof is in the log's header: SQLite gives it other salts (random numbers)
// whenever it begins the log again, and frames cannot leave the log without that.
// So a log with the salts of the position has every later change. Where the proof
// fails, the whole database is copied.

// recordName is the name of the file that says which term the files in
// Litestream's directory beside a database belong to.
const recordName = "term.json"

// record is the content of that file.
type record struct {
	Replica string `json:"replica"` // see [Config.Target]
	Term    int64  `json:"term"`
	Nonce   string `json:"nonce"`
	// Own is set when this data directory began the term. Otherwise the database
	// was restored from the term.
	Own bool `json:"own"`
	// Device and Inode are those of the data directory that began the term: a copy
	// of it must not write there too. A copy of a whole disk has the same; Boot, the
	// id of the machine's boot, is another one there.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Boot   string `json:"boot"`
	// Applied is the newest transaction of which a follower has written something
	// to its copy; the copy's position is recorded later.
	Applied ltx.TXID `json:"applied,omitempty"`
}

// place tells a directory from a copy of it.
type place struct {
	device, inode uint64 // 0 for unknown
	boot          string
}

func (r record) place() place { return place{r.Device, r.Inode, r.Boot} }

// readRecord returns the record beside a database, zero for none.
func readRecord(path string) (r record, err error) {
	text, err := os.ReadFile(filepath.Join(metaPath(path), recordName))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	} else if err != nil {
		return r, err
	}
	if json.Unmarshal(text, &r) != nil {
		return record{}, nil // it proves nothing
	}
	return r, nil
}

// writeRecord replaces the record beside a database.
func writeRecord(path string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(metaPath(path), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(metaPath(path), recordName), append(text, '\n'), 0o600)
}

// identify returns the place of a directory.
func identify(dir string) (place, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return place{}, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return place{uint64(st.Dev), st.Ino, bootID()}, nil
	}
	return place{}, nil
}

// baselineNode marks, as an LTX file's node, a file that says only where the
// write-ahead log continues a position. It has no changes and is never uploaded.
const baselineNode = 0x62617365

// logState is the newest local LTX file of a database, seen with its write-ahead log.
type logState struct {
	at       ltx.TXID // 0 for none
	baseline bool     // it has the position alone
	proven   bool     // the log has every change after it
	salts    [2]uint32
}

// readLog returns the state of the write-ahead log of the database at path.
func readLog(path string) (s logState, err error) {
	db := litestream.NewDB(path)
	pos, err := db.Pos()
	if err != nil || pos.TXID == 0 {
		return s, nil //nolint:nilerr // a damaged file proves nothing
	}
	s.at = pos.TXID
	f, err := os.Open(db.LTXPath(0, pos.TXID, pos.TXID))
	if err != nil {
		return s, err
	}
	defer f.Close()
	dec := ltx.NewDecoder(f)
	if err := dec.DecodeHeader(); err != nil {
		return s, err
	}
	s.baseline = dec.Header().NodeID == baselineNode
	wal, err := os.Open(db.WALPath())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	} else if err != nil {
		return s, err
	}
	defer wal.Close()
	if s.salts, err = readSalts(wal); err != nil {
		return s, ignoreEnd(err)
	}
	s.proven, err = continues(dec, wal, s.salts)
	return s, err
}

// errLogChanged says that the log was begun again after it was examined.
var errLogChanged = errors.New("another program has written to the database, or moved its write-ahead log, while the replica was opened")

// checkNext returns errLogChanged when Litestream has not read the log that was
// examined: what that had at its end would be missing.
func (s logState) checkNext(db *litestream.DB) error {
	f, err := os.Open(db.LTXPath(0, s.at+1, s.at+1))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was committed after the position
	} else if err != nil {
		return err
	}
	defer f.Close()
	dec := ltx.NewDecoder(f)
	if err := dec.DecodeHeader(); err != nil {
		return err
	}
	if h := dec.Header(); s.salts != [2]uint32{h.WALSalt1, h.WALSalt2} {
		return errLogChanged
	}
	return nil
}

// continues reports whether a write-ahead log, whose header has salts, goes on
// where an LTX file ends. The header of the file has been decoded.
func continues(dec *ltx.Decoder, wal io.ReaderAt, salts [2]uint32) (bool, error) {
	h := dec.Header()
	from, end := h.WALOffset, h.WALOffset+h.WALSize
	frame := litestream.WALFrameHeaderSize + int64(h.PageSize)
	switch salts {
	case [2]uint32{h.WALSalt1, h.WALSalt2}:
		if end <= litestream.WALHeaderSize {
			return true, nil // nothing of this log was in the file
		}
		// A power cut may have taken a part of the log, and later frames its place.
		// Each frame has the checksum of all before it.
		log, err := litestream.NewWALReader(wal, quiet)
		if err != nil {
			return false, ignoreEnd(err)
		}
		return samePages(dec, wal, log, from, end)
	case [2]uint32{h.WALSalt1 + 1, salts[1]}:
		// SQLite has begun the log again once: it counts in the first salt, and the
		// second is random. The whole log was in the database then. Where the last
		// frame of the file is left, and was the last, nothing followed it.
		if end < litestream.WALHeaderSize+2*frame || from >= end {
			return false, nil
		}
		log, err := litestream.NewWALReaderWithOffset(context.Background(), wal, end-frame, h.WALSalt1, h.WALSalt2, quiet)
		if err != nil {
			return false, nil //nolint:nilerr // the frames before are overwritten
		}
		same, err := samePages(dec, wal, log, end-frame, end)
		if err != nil || !same {
			return false, err
		}
		next := make([]byte, litestream.WALFrameHeaderSize)
		if _, err := wal.ReadAt(next, end); err != nil {
			return errors.Is(err, io.EOF), ignoreEnd(err)
		}
		return saltsOf(next) != [2]uint32{h.WALSalt1, h.WALSalt2}, nil
	}
	return false, nil
}

// samePages reports whether log has valid frames up to end, and an LTX file the
// pages of those behind from.
func samePages(dec *ltx.Decoder, wal io.ReaderAt, log *litestream.WALReader, from, end int64) (bool, error) {
	data := make([]byte, dec.Header().PageSize)
	if log.PageSize() != uint32(len(data)) {
		return false, nil
	}
	newest := map[uint32]int64{} // frames
	for last := int64(0); last+litestream.WALFrameHeaderSize+int64(len(data)) < end; {
		pgno, _, err := log.ReadFrame(context.Background(), data)
		if err != nil {
			return false, ignoreEnd(err)
		}
		if last = log.Offset(); last >= from && pgno <= dec.Header().Commit {
			newest[pgno] = last
		}
	}
	frame := make([]byte, len(data))
	for {
		var page ltx.PageHeader
		if err := dec.DecodePage(&page, data); errors.Is(err, io.EOF) {
			return len(newest) == 0, nil
		} else if err != nil {
			return false, err
		}
		at, ok := newest[page.Pgno]
		if !ok {
			continue
		}
		delete(newest, page.Pgno)
		if _, err := wal.ReadAt(frame, at+litestream.WALFrameHeaderSize); err != nil {
			return false, ignoreEnd(err)
		}
		if !bytes.Equal(data, frame) {
			return false, nil
		}
	}
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// readSalts returns the salts of a write-ahead log. The error is [io.EOF] when it
// is empty.
func readSalts(wal io.ReaderAt) (salts [2]uint32, err error) {
	header := make([]byte, litestream.WALHeaderSize)
	if _, err := wal.ReadAt(header, 0); err != nil {
		return salts, err
	}
	return [2]uint32{binary.BigEndian.Uint32(header[16:]), binary.BigEndian.Uint32(header[20:])}, nil
}

// saltsOf returns the salts of a frame with its header.
func saltsOf(frame []byte) [2]uint32 {
	return [2]uint32{binary.BigEndian.Uint32(frame[8:]), binary.BigEndian.Uint32(frame[12:])}
}

// writeBaseline replaces the local LTX files of the database at path by one that
// gives the database's file, without its write-ahead log, the position at. The
// log must not be empty.
func writeBaseline(path string, at ltx.TXID) (err error) {
	db := litestream.NewDB(path)
	if err := os.RemoveAll(db.LTXDir()); err != nil {
		return err
	}
	wal, err := os.Open(db.WALPath())
	if err != nil {
		return err
	}
	defer wal.Close()
	salts, err := readSalts(wal)
	if err != nil {
		return fmt.Errorf("read the header of the write-ahead log: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	first := make([]byte, 100)
	if _, err := f.ReadAt(first, 0); err != nil {
		return err
	}
	size := uint32(binary.BigEndian.Uint16(first[16:]))
	if size == 1 {
		size = 65536
	}
	page := make([]byte, size)
	if _, err := f.ReadAt(page, 0); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	enc, err := ltx.NewEncoder(&text)
	if err != nil {
		return err
	}
	header := ltx.Header{
		Version: ltx.Version, Flags: ltx.HeaderFlagNoChecksum, PageSize: size, Commit: uint32(info.Size() / int64(size)),
		MinTXID: at, MaxTXID: at, Timestamp: time.Now().UnixMilli(), NodeID: baselineNode,
		WALOffset: litestream.WALHeaderSize, WALSalt1: salts[0], WALSalt2: salts[1],
	}
	err = enc.EncodeHeader(header)
	if err == nil {
		err = enc.EncodePage(ltx.PageHeader{Pgno: 1}, page)
	}
	if err == nil {
		err = enc.Close()
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(db.LTXLevelDir(0), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(db.LTXPath(0, at, at), text.Bytes(), 0o600)
}

// removeBaseline removes a file of writeBaseline once a later one exists, and
// reports whether one is left. The compaction of level 0 must not read it.
func removeBaseline(db *litestream.DB) (left bool, err error) {
	entries, err := os.ReadDir(db.LTXLevelDir(0))
	if err != nil {
		return false, ignoreNoFile(err)
	}
	var files []ltx.TXID // in increasing order
	for _, e := range entries {
		if minTXID, _, err := ltx.ParseFilename(e.Name()); err == nil {
			files = append(files, minTXID)
		}
	}
	if len(files) == 0 {
		return false, nil
	}
	name := db.LTXPath(0, files[0], files[0]) // all others were written after it
	f, err := os.Open(name)
	if err != nil {
		return false, ignoreNoFile(err)
	}
	defer f.Close()
	dec := ltx.NewDecoder(f)
	if err := dec.DecodeHeader(); err != nil || dec.Header().NodeID != baselineNode {
		return false, err
	}
	if len(files) == 1 {
		return true, nil
	}
	return false, ignoreNoFile(os.Remove(name))
}

// ignoreNoFile returns err unless it says that a file does not exist.
func ignoreNoFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Origin is the position of a replica that a copy of its database was restored
// to.
type Origin struct {
	replica string
	term    term
	at      ltx.TXID
}

// Continue has a replication of the database at path, which was restored to o,
// continue the replica there instead of copying the whole database. Nothing may
// have written to the database since but [sqlite.WriteToWAL]. The write-ahead log
// and Litestream's directory beside the database belong to it then.
func (o Origin) Continue(path string) error {
	if err := os.RemoveAll(metaPath(path)); err != nil {
		return err
	}
	if o.at < 2 {
		return nil // the file would have to be a snapshot
	}
	if err := writeBaseline(path, o.at); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // SQLite has removed the log: there is no proof
		}
		return err
	}
	return writeRecord(path, record{Replica: o.replica, Term: o.term.Number, Nonce: o.term.Nonce})
}
