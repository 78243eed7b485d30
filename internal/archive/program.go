package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store"
	"service/webhook"
)

// An export of a program is a file of
//
//	a line of JSON       the header, with the number of the format
//	an age stream        encrypted with a passphrase: a tar archive, see below
//	32 bytes             the SHA-256 of everything before
//
// The tar archive is what [ProgramSource.Send] writes:
//
//	program.json         the header again
//	event_types.json     the schemas of the event types that the program uses, by name
//	secret.key           decrypts the secrets in the database
//	program.db           a database that contains only the program
const (
	ProgramFormat   = 1 // version of the format
	programKind     = "program"
	programFile     = "program.json"
	eventTypesFile  = "event_types.json"
	programDatabase = "program.db"

	maxHeaderLine     = 4096
	maxEventTypeBytes = 64 << 20
)

// ProgramHeader describes an export.
type ProgramHeader struct {
	Kind      string    `json:"kind"`
	Format    int       `json:"format"`
	Version   string    `json:"service_version"`
	Schema    int       `json:"schema"`
	ProgramID string    `json:"program_id"`
	CreatedAt time.Time `json:"created_at"` // everything written before that time is included
	Bytes     int64     `json:"bytes"`      // of the database
}

// ProgramSource is the content of an export, in the process with the open database.
type ProgramSource struct {
	Header ProgramHeader
	export *store.ProgramExport
	types  []byte
}

// NewProgramSource exports a program of a store. The caller must call Close.
func NewProgramSource(ctx context.Context, st *store.Store, catalog *webhook.Catalog, r *ProgramRequest,
	version string) (*ProgramSource, error) {
	x, err := st.Programs().Export(ctx, r.ProgramID, r.Copies)
	if err != nil {
		return nil, err
	}
	return NewSourceOf(x, catalog, version)
}

// NewSourceOf returns the source of an export, which it owns. The caller must call Close.
func NewSourceOf(x *store.ProgramExport, catalog *webhook.Catalog, version string) (*ProgramSource, error) {
	types := make(EventTypes)
	for _, name := range x.Names {
		if t, ok := catalog.Type(name); ok {
			types[name] = t.Schema
		}
	}
	s := &ProgramSource{Header: ProgramHeader{
		Kind: programKind, Format: ProgramFormat, Version: version, Schema: x.Schema, ProgramID: x.ProgramID,
		CreatedAt: x.At.Truncate(time.Millisecond), Bytes: x.Bytes,
	}, export: x}
	var err error
	if s.types, err = json.Marshal(types); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// ProgramRequest contains the options of an export.
type ProgramRequest struct {
	ProgramID string `json:"program_id"`
	// Copies is the number of database-sized files that the export adds to the disk of the data
	// directory.
	Copies int `json:"copies"`
}

// Close removes the files of the source.
func (s *ProgramSource) Close() error { return s.export.Remove() }

// Send writes the source as a tar archive. The archive contains the key of its secrets: the reader
// must encrypt the archive, or be as trusted as the service.
func (s *ProgramSource) Send(w io.Writer) error {
	about, err := json.Marshal(s.Header)
	if err != nil {
		return err
	}
	files := []content{{programFile, about}, {eventTypesFile, s.types}, {SecretKeyFile, s.export.Key}}
	return send(w, files, s.Header.CreatedAt, programDatabase, s.export.Path, s.export.Bytes)
}

// WriteProgram writes an export from the output of [ProgramSource.Send]. Before it writes the
// database, it calls room, which may return an error.
func WriteProgram(w io.Writer, from io.Reader, passphrase string, room func(bytes int64) error) (*ProgramHeader, error) {
	var seen bytes.Buffer // what was read of from to get the header
	h, err := readProgramHeader(tar.NewReader(io.TeeReader(from, &seen)))
	if err != nil {
		return nil, err
	}
	if err := room(h.Bytes); err != nil {
		return nil, err
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	hashed := io.MultiWriter(w, sum)
	if _, err := hashed.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	encrypting, err := encrypt(hashed, passphrase)
	if err != nil {
		return nil, err
	}
	// An incomplete source lacks the end of its tar archive.
	whole := tar.NewReader(io.TeeReader(io.MultiReader(&seen, from), encrypting))
	names := []string{programFile, eventTypesFile, SecretKeyFile, programDatabase}
	for _, name := range names {
		f, err := whole.Next()
		if err == nil && f.Name != name {
			err = fmt.Errorf("%q instead of %q", f.Name, name)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, whole)
		}
		if err != nil {
			return nil, fmt.Errorf("the export is incomplete: %w", err)
		}
	}
	if _, err := whole.Next(); err != io.EOF {
		return nil, errors.Join(errors.New("the export is incomplete"), err)
	}
	if err := encrypting.Close(); err != nil {
		return nil, err
	}
	_, err = w.Write(sum.Sum(nil))
	return h, err
}

// readProgramHeader reads the first file of a source.
func readProgramHeader(t *tar.Reader) (*ProgramHeader, error) {
	f, err := t.Next()
	switch {
	case err != nil:
		return nil, damagedProgramf("%v", err)
	case f.Name != programFile || f.Size > maxHeaderLine:
		return nil, damagedProgramf("it begins with %q", f.Name)
	}
	text, err := io.ReadAll(t)
	if err != nil {
		return nil, damagedProgramf("%v", err)
	}
	return parseProgramHeader(text)
}

// errDamagedProgram means that a file is not an export or is damaged.
var errDamagedProgram = errors.New("not a complete export of a program")

func damagedProgramf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamagedProgram, fmt.Sprintf(format, args...))
}

func parseProgramHeader(text []byte) (*ProgramHeader, error) {
	h := new(ProgramHeader)
	if err := json.Unmarshal(text, h); err != nil || h.Kind != programKind {
		return nil, damagedProgramf("it has no header")
	}
	switch {
	case h.Format > ProgramFormat:
		return nil, fmt.Errorf("an export in format %d: use a newer version of service (this one supports format %d)", h.Format, ProgramFormat)
	case h.Format != ProgramFormat:
		return nil, damagedProgramf("its format is %d", h.Format)
	}
	return h, nil
}

// ProgramFile is a verified export.
type ProgramFile struct {
	Header ProgramHeader
	f      io.ReadSeeker
	begin  int64 // of the encrypted part
	size   int64 // of the encrypted part
}

// VerifyProgram reads an export completely and compares its checksum.
func VerifyProgram(ctx context.Context, f io.ReadSeeker) (*ProgramFile, error) {
	total, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReaderSize(contextReader{ctx, f}, 1<<16)
	line, err := readLine(buffered)
	if err != nil {
		return nil, err
	}
	h, err := parseProgramHeader(line)
	if err != nil {
		return nil, err
	}
	p := &ProgramFile{Header: *h, f: f, begin: int64(len(line)) + 1}
	if p.size = total - p.begin - sha256.Size; p.size < 0 {
		return nil, damagedProgramf("it ends within the header")
	}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	sum.Write(append(line, '\n'))
	if _, err := io.CopyN(sum, buffered, p.size); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(buffered, want); err != nil {
		return nil, err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return nil, damagedProgramf("its checksum is wrong: it was cut or changed")
	}
	return p, nil
}

// readLine reads the header without its newline.
func readLine(r *bufio.Reader) ([]byte, error) {
	for n := 1; n <= maxHeaderLine; n++ {
		b, err := r.Peek(n)
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if b[n-1] == '\n' {
			line := bytes.Clone(b[:n-1])
			_, err := r.Discard(n)
			return line, err
		}
	}
	return nil, damagedProgramf("it has no header")
}

// errProgramPassphrase means that the passphrase does not decrypt the export.
var errProgramPassphrase = errors.New("wrong passphrase for this export")

// Open decrypts the export. The result is the output of [ProgramSource.Send].
func (p *ProgramFile) Open(ctx context.Context, passphrase string) (io.Reader, error) {
	if _, err := p.f.Seek(p.begin, io.SeekStart); err != nil {
		return nil, err
	}
	return decrypt(contextReader{ctx, io.LimitReader(p.f, p.size)}, passphrase, errProgramPassphrase, func(err error) error {
		return damagedProgramf("%v", err)
	})
}

// ReceivedProgram is an export whose database is a file in the data directory.
type ReceivedProgram struct {
	Header ProgramHeader
	Path   string // of the database
	Key    []byte // secret
	Types  EventTypes
}

// ReceiveProgram reads the output of [ProgramSource.Send]. Before it writes the database, it
// calls room, which may return an error. The caller must call Remove.
func ReceiveProgram(ctx context.Context, from io.Reader, dir string, room func(bytes int64) error) (_ *ReceivedProgram, err error) {
	t := tar.NewReader(contextReader{ctx, from})
	h, err := readProgramHeader(t)
	if err != nil {
		return nil, err
	}
	p := &ReceivedProgram{Header: *h}
	for _, part := range []struct {
		name string
		use  func([]byte) error
	}{
		{eventTypesFile, func(text []byte) error { return json.Unmarshal(text, &p.Types) }},
		{SecretKeyFile, func(text []byte) error { p.Key = text; return nil }},
	} {
		f, err := t.Next()
		if err != nil || f.Name != part.name || f.Size > maxEventTypeBytes {
			return nil, damagedProgramf("it lacks %s", part.name)
		}
		text, err := io.ReadAll(t)
		if err == nil {
			err = part.use(text)
		}
		if err != nil {
			return nil, damagedProgramf("%s: %v", part.name, err)
		}
	}
	f, err := t.Next()
	if err != nil || f.Name != programDatabase || f.Size != h.Bytes {
		return nil, damagedProgramf("it lacks %s", programDatabase)
	}
	if err := room(h.Bytes); err != nil {
		return nil, err
	}
	db, err := durable.CreateTemp(filepath.Join(dir, Database+".import"))
	if err != nil {
		return nil, err
	}
	p.Path = db.Name()
	_, err = io.Copy(db, t)
	if err = errors.Join(err, db.Close()); err == nil {
		if _, end := t.Next(); end != io.EOF {
			err = damagedProgramf("it does not end after %s", programDatabase)
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.Remove())
	}
	return p, nil
}

// Remove removes the database.
func (p *ReceivedProgram) Remove() error { return os.Remove(p.Path) }
