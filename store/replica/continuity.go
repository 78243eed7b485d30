package replica

import (
	"bytes"
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
	// of it must not write there too.
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

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

// identify returns what tells a directory from a copy of it: 0 for unknown.
func identify(dir string) (device, inode uint64, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, 0, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev), st.Ino, nil
	}
	return 0, 0, nil
}

// baselineNode marks, as an LTX file's node, a file that says only where the
// write-ahead log continues a position. It has no changes and is never uploaded.
const baselineNode = 0x62617365

// logState is the newest local LTX file of a database, seen with its write-ahead log.
type logState struct {
	at       ltx.TXID // 0 for none
	baseline bool     // it has the position alone
	proven   bool     // the log has every change after it
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
	s.proven, err = continues(dec, wal)
	return s, err
}

// continues reports whether a write-ahead log goes on where an LTX file ends. The
// header of the file has been decoded.
func continues(dec *ltx.Decoder, wal io.ReaderAt) (bool, error) {
	h := dec.Header()
	salts, err := readSalts(wal)
	if err != nil || salts != [2]uint32{h.WALSalt1, h.WALSalt2} {
		return false, ignoreEnd(err)
	}
	end := h.WALOffset + h.WALSize
	if end <= litestream.WALHeaderSize {
		return true, nil // nothing of this log was in the file
	}
	frame := make([]byte, litestream.WALFrameHeaderSize+int(h.PageSize))
	if _, err := wal.ReadAt(frame, end-int64(len(frame))); err != nil {
		return false, ignoreEnd(err) // a power cut may have shortened the log
	}
	if binary.BigEndian.Uint32(frame[8:]) != salts[0] || binary.BigEndian.Uint32(frame[12:]) != salts[1] {
		return false, nil
	}
	// The frame itself must be the one that was copied: the log may have lost its
	// end and have got another.
	data := make([]byte, h.PageSize)
	for {
		var page ltx.PageHeader
		if err := dec.DecodePage(&page, data); errors.Is(err, io.EOF) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		if page.Pgno == binary.BigEndian.Uint32(frame) {
			return bytes.Equal(data, frame[litestream.WALFrameHeaderSize:]), nil
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

// removeBaseline removes a file of writeBaseline once a later one exists: the
// compaction of level 0 must not read it.
func removeBaseline(path string, s logState) error {
	if !s.baseline {
		return nil
	}
	err := os.Remove(litestream.NewDB(path).LTXPath(0, s.at, s.at))
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
// have written to the database since but [sqlite.WriteLogged]. The write-ahead log
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
