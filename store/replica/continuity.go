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

// A database continues a position of the replica if the WAL contains every change after
// that position. The proof is in the header of the WAL: it has salts (random numbers)
// that SQLite changes whenever it restarts the WAL, and only a restart overwrites
// frames. A WAL with the salts of the position therefore contains every later change. If
// there is no such proof, the whole database is uploaded.

// recordName is the name of a file in Litestream's directory next to the database. It
// says which term the files in that directory belong to.
const recordName = "term.json"

// record is the content of that file.
type record struct {
	Replica string `json:"replica"` // see [Config.Target]
	Term    int64  `json:"term"`
	Nonce   string `json:"nonce"`
	// Own is set if this data directory began the term. Otherwise the database was
	// restored from the term.
	Own bool `json:"own"`
	// dirID identifies the data directory that began the term, because a copy of it must
	// not write to the term.
	dirID
	// Applied is the newest transaction of which a follower may have written a part to
	// its copy. The position of the copy is recorded later.
	Applied ltx.TXID `json:"applied,omitempty"`
}

// dirID distinguishes a data directory from its copies.
type dirID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"` // 0 for unknown
	// Boot is the ID of the machine's boot, "" for unknown. It distinguishes a copy of the whole
	// disk. The process IDs and inodes of another boot are meaningless.
	Boot string `json:"boot"`
}

// in reports whether the record belongs to the data directory itself, not to one that it was copied
// from.
func (r record) in(dir string) (bool, error) {
	here, err := identifyDir(dir)
	return here.Inode != 0 && r.dirID == here, err
}

// readRecord returns the record of a database, or a zero record.
func readRecord(path string) (record, error) {
	return readState[record](filepath.Join(metaPath(path), recordName))
}

// readState reads a JSON file. The value is zero if there is none, or if the file has another
// format, which proves nothing.
func readState[T any](name string) (v T, err error) {
	text, err := os.ReadFile(name)
	if err != nil || json.Unmarshal(text, &v) != nil {
		return *new(T), ignoreNoFile(err)
	}
	return v, nil
}

// writeState replaces a JSON file. It is fsynced.
func writeState(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(name, append(text, '\n'), 0o600)
}

// writeRecord replaces the record of a database.
func writeRecord(path string, r record) error {
	if err := os.MkdirAll(metaPath(path), 0o700); err != nil {
		return err
	}
	return writeState(filepath.Join(metaPath(path), recordName), r)
}

// identifyDir returns the ID of a directory.
func identifyDir(dir string) (dirID, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return dirID{}, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return dirID{uint64(st.Dev), st.Ino, bootID()}, nil
	}
	return dirID{}, nil
}

// baselineNode is the node ID of a baseline: an LTX file that only records at which
// position the WAL continues. It contains no changes and is never uploaded.
const baselineNode = 0x62617365

// walState describes the newest local LTX file of a database and its WAL.
type walState struct {
	at       ltx.TXID // position of the file; 0 for none
	baseline bool     // the file is a baseline
	proven   bool     // the WAL contains every change after the position
	end      int64    // offset in the WAL after the last frame of the file, if proven
	salts    [2]uint32
}

// readWALState returns the state of the WAL of the database at path.
func readWALState(path string) (s walState, err error) {
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
	if err != nil {
		return s, ignoreNoFile(err)
	}
	defer wal.Close()
	if s.salts, err = readSalts(wal); err != nil {
		return s, ignoreEnd(err)
	}
	s.proven, err = continues(dec, wal, s.salts)
	if h := dec.Header(); s.salts == [2]uint32{h.WALSalt1, h.WALSalt2} { // else the WAL was restarted
		s.end = h.WALOffset + h.WALSize
	}
	return s, err
}

// errWALChanged means that the WAL was restarted after readWALState.
var errWALChanged = errors.New("another program has written to the database, or checkpointed its WAL, while the replica was opened")

// checkNext returns errWALChanged if Litestream has read another WAL than readWALState.
// The last changes of the earlier WAL would then be missing in the replica.
func (s walState) checkNext(db *litestream.DB) error {
	h, err := readHeader(db.LTXPath(0, s.at+1, s.at+1))
	if err != nil {
		return ignoreNoFile(err) // without the file, nothing was committed after the position
	}
	if s.salts != [2]uint32{h.WALSalt1, h.WALSalt2} {
		return errWALChanged
	}
	return nil
}

// readHeader returns the header of an LTX file.
func readHeader(name string) (h ltx.Header, err error) {
	f, err := os.Open(name)
	if err != nil {
		return h, err
	}
	defer f.Close()
	dec := ltx.NewDecoder(f)
	err = dec.DecodeHeader()
	return dec.Header(), err
}

// continues reports whether a WAL with the given salts continues where an LTX file ends.
// The header of the LTX file must be decoded already.
func continues(dec *ltx.Decoder, wal io.ReaderAt, salts [2]uint32) (bool, error) {
	h := dec.Header()
	from, end := h.WALOffset, h.WALOffset+h.WALSize
	frame := litestream.WALFrameHeaderSize + int64(h.PageSize)
	switch salts {
	case [2]uint32{h.WALSalt1, h.WALSalt2}:
		if end <= litestream.WALHeaderSize {
			return true, nil // the file has no frames of this WAL
		}
		// A power cut may have removed frames, and later frames may have replaced them.
		// The checksum of each frame covers all frames before it.
		frames, err := litestream.NewWALReader(wal, quiet)
		if err != nil {
			return false, ignoreEnd(err)
		}
		return samePages(dec, wal, frames, from, end)
	case [2]uint32{h.WALSalt1 + 1, salts[1]}:
		// SQLite has restarted the WAL once: it increments the first salt, and the
		// second is random. The whole WAL was checkpointed before. If the last frame of
		// the LTX file is still there, and was the last of the old WAL, nothing followed.
		if end < litestream.WALHeaderSize+2*frame || from >= end {
			return false, nil
		}
		frames, err := litestream.NewWALReaderWithOffset(context.Background(), wal, end-frame, h.WALSalt1, h.WALSalt2, quiet)
		if err != nil {
			return false, nil //nolint:nilerr // the earlier frames are overwritten
		}
		same, err := samePages(dec, wal, frames, end-frame, end)
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

// samePages reports whether the WAL has valid frames up to the offset end, and an LTX
// file has the same pages as the frames from the offset from on.
func samePages(dec *ltx.Decoder, wal io.ReaderAt, frames *litestream.WALReader, from, end int64) (bool, error) {
	data := make([]byte, dec.Header().PageSize)
	if frames.PageSize() != uint32(len(data)) {
		return false, nil
	}
	newest := map[uint32]int64{} // offset of the newest frame of each page
	for last := int64(0); last+litestream.WALFrameHeaderSize+int64(len(data)) < end; {
		pgno, _, err := frames.ReadFrame(context.Background(), data)
		if err != nil {
			return false, ignoreEnd(err)
		}
		if last = frames.Offset(); last >= from && pgno <= dec.Header().Commit {
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

// ignoreEnd returns err unless it is an end of file.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// readSalts returns the salts of a WAL. The error is [io.EOF] if the WAL is empty.
func readSalts(wal io.ReaderAt) (salts [2]uint32, err error) {
	header := make([]byte, litestream.WALHeaderSize)
	if _, err := wal.ReadAt(header, 0); err != nil {
		return salts, err
	}
	return [2]uint32{binary.BigEndian.Uint32(header[16:]), binary.BigEndian.Uint32(header[20:])}, nil
}

// saltsOf returns the salts in the header of a frame.
func saltsOf(frame []byte) [2]uint32 {
	return [2]uint32{binary.BigEndian.Uint32(frame[8:]), binary.BigEndian.Uint32(frame[12:])}
}

// writeBaseline replaces the local LTX files of the database at path with a baseline. It
// records that the database file, without its WAL, is at the position at. The WAL must
// not be empty.
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
		return fmt.Errorf("read the header of the WAL: %w", err)
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

// removeBaseline removes a baseline once a later LTX file exists, and reports whether
// the baseline is still needed. The compaction of level 0 must not read it.
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
	name := db.LTXPath(0, files[0], files[0]) // a baseline is the oldest file
	if h, err := readHeader(name); err != nil || h.NodeID != baselineNode {
		return false, ignoreNoFile(err)
	}
	if len(files) == 1 {
		return true, nil
	}
	return false, ignoreNoFile(os.Remove(name))
}

// ignoreNoFile returns err unless it is [fs.ErrNotExist].
func ignoreNoFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Origin is the position of a replica at which a database was restored.
type Origin struct {
	replica string
	term    term
	at      ltx.TXID
}

// Continue records that the database at path was restored at o, so that its replication
// continues there instead of uploading the whole database. Since the restore, only
// [sqlite.WriteToWAL] may have written to the database. Continue replaces Litestream's
// directory next to the database.
func (o Origin) Continue(path string) error {
	if err := os.RemoveAll(metaPath(path)); err != nil {
		return err
	}
	if o.at < 2 {
		return nil // transaction 1 must be a snapshot
	}
	if err := writeBaseline(path, o.at); err != nil {
		return ignoreNoFile(err) // SQLite may have deleted the WAL, so there is no proof
	}
	return writeRecord(path, record{Replica: o.replica, Term: o.term.Number, Nonce: o.term.Nonce})
}
