package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"filippo.io/age"

	"service/internal/certs"
	"service/store"
)

// A backup is a tar archive of
//
//	service.db           a consistent copy of the database
//	ca.pem               the certificate that clients trust, if there is one
//	event_types/         the operator's own event types
//	keys.age             secret.key, alert.secret and ca.key, as far as they are there,
//	                     sealed with a passphrase: a tar archive in the age format
//	manifest.json        what is in it, with checksums: the last, so that an archive
//	                     that was cut off has none
const (
	archiveDatabase = "service.db"
	archiveKeys     = "keys.age"
	archiveManifest = "manifest.json"
	archiveFormat   = 1
	secretKeyFile   = "secret.key"
	eventTypesDir   = "event_types"
)

// maxArchived bounds each file of an archive but the database, in bytes.
const maxArchived = 4 << 20

// scryptWork is the cost of a passphrase: 2^17 steps take 128 MiB of memory and
// about half a second, and so must each guess. maxScryptWork is what is read of
// archives that were made elsewhere: 1 GiB.
const (
	scryptWork    = 17
	maxScryptWork = 20
)

// plainName are the names of an archive's files beside the three above. Each is
// the name of the file in the data directory.
var plainName = regexp.MustCompile(`^(ca\.pem|event_types/[a-z][a-z0-9_]{0,63}\.json)$`)

// keyNames are the names of the sealed files.
var keyNames = []string{secretKeyFile, alertSecretFile, certs.CAKeyFile}

// manifest says what an archive holds.
type manifest struct {
	Format        int            `json:"format"`
	Version       string         `json:"service_version"`
	SQLiteVersion string         `json:"sqlite_version"`
	Schema        int            `json:"schema"`
	CreatedAt     time.Time      `json:"created_at"`
	Files         []manifestFile `json:"files"`
}

type manifestFile struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func (m *manifest) has(name string) bool {
	for _, f := range m.Files {
		if f.Name == name {
			return true
		}
	}
	return false
}

// backupSource is what a backup is made of: a snapshot, and files of the data
// directory.
type backupSource struct {
	snapshot *store.Snapshot
	manifest manifest // without its files
	plain    []sourceFile
	keys     []sourceFile // secret
}

type sourceFile struct {
	name    string
	content []byte
}

// newBackupSource takes a snapshot of a store, and the files beside it. The caller
// must call Close.
func newBackupSource(ctx context.Context, st *store.Store, r *backupRequest) (_ *backupSource, err error) {
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return nil, err
	}
	var s backupSource
	read := func(to *[]sourceFile, name string) error {
		f, err := os.Open(filepath.Join(st.Dir(), filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		defer f.Close()
		content, err := io.ReadAll(io.LimitReader(f, maxArchived+1))
		if err == nil && len(content) > maxArchived {
			err = fmt.Errorf("%s is larger than %d bytes", f.Name(), maxArchived)
		}
		*to = append(*to, sourceFile{name, content})
		return err
	}
	if r.Keys { // the certificate is of no use without its key
		if err := read(&s.plain, certs.CAFile); err != nil {
			return nil, err
		}
	}
	types, err := os.ReadDir(filepath.Join(st.Dir(), eventTypesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range types {
		if name := eventTypesDir + "/" + f.Name(); plainName.MatchString(name) {
			if err := read(&s.plain, name); err != nil {
				return nil, err
			}
		}
	}
	if s.snapshot, err = st.Snapshot(ctx, r.Copies); err != nil {
		return nil, err
	}
	if r.Keys {
		s.keys = append(s.keys, sourceFile{secretKeyFile, s.snapshot.Keys})
		for _, name := range keyNames[1:] {
			if err := read(&s.keys, name); err != nil {
				return nil, errors.Join(err, s.Close())
			}
		}
	}
	s.manifest = manifest{Format: archiveFormat, Version: version(), SQLiteVersion: sqlite, Schema: s.snapshot.Schema, CreatedAt: s.snapshot.At.Truncate(time.Millisecond)}
	return &s, nil
}

// Close removes the snapshot.
func (s *backupSource) Close() error { return s.snapshot.Remove() }

// send writes the source as a tar archive, keys and all in the clear: it is for
// [writeArchive] in this process, or at the other end of the admin socket. Its
// first file is the manifest without files, and the database the last.
func (s *backupSource) send(w io.Writer) error {
	t := tar.NewWriter(w)
	add := func(name string, content []byte) error {
		if err := t.WriteHeader(tarHeader(name, int64(len(content)), s.manifest.CreatedAt)); err != nil {
			return err
		}
		_, err := t.Write(content)
		return err
	}
	about, err := json.Marshal(s.manifest)
	if err == nil {
		err = add(archiveManifest, about)
	}
	for _, f := range append(s.plain, s.keys...) {
		if err == nil {
			err = add(f.name, f.content)
		}
	}
	if err != nil {
		return err
	}
	db, err := os.Open(s.snapshot.Path)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := t.WriteHeader(tarHeader(archiveDatabase, s.snapshot.Bytes, s.manifest.CreatedAt)); err != nil {
		return err
	}
	if _, err := io.Copy(t, db); err != nil {
		return err
	}
	return t.Close()
}

func tarHeader(name string, size int64, at time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at.Truncate(time.Second)}
}

// archiveWriter writes an archive, and takes down what it writes.
type archiveWriter struct {
	tar      *tar.Writer
	manifest *manifest
}

func (w *archiveWriter) add(name string, size int64, content io.Reader) error {
	if err := w.tar.WriteHeader(tarHeader(name, size, w.manifest.CreatedAt)); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(w.tar, io.TeeReader(content, sum)); err != nil {
		return err
	}
	w.manifest.Files = append(w.manifest.Files, manifestFile{name, size, hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// writeArchive makes an archive of what [backupSource.send] has written. room is asked
// whether there is room for the database before it is written.
func writeArchive(w io.Writer, from io.Reader, passphrase string, room func(bytes int64) error) (*manifest, error) {
	in, out := tar.NewReader(from), archiveWriter{tar: tar.NewWriter(w)}
	if _, err := in.Next(); err != nil {
		return nil, err
	}
	var m manifest
	if err := json.NewDecoder(in).Decode(&m); err != nil {
		return nil, err
	}
	out.manifest = &m
	var keys []sourceFile
	done := false
	for !done {
		h, err := in.Next()
		if err != nil {
			return nil, err
		}
		switch name := h.Name; {
		case name == archiveDatabase:
			if err := room(h.Size); err != nil {
				return nil, err
			}
			if err := out.add(name, h.Size, in); err != nil {
				return nil, err
			}
			done = true
		case plainName.MatchString(name):
			if err := out.add(name, h.Size, in); err != nil {
				return nil, err
			}
		default:
			content, err := io.ReadAll(in)
			if err != nil {
				return nil, err
			}
			keys = append(keys, sourceFile{name, content})
		}
	}
	if _, err := in.Next(); err != io.EOF { // it was sent to its end
		return nil, errors.Join(errors.New("the backup was cut off"), err)
	}
	if len(keys) > 0 {
		sealed, err := sealKeys(keys, &m, passphrase)
		if err != nil {
			return nil, err
		}
		if err := out.add(archiveKeys, int64(len(sealed)), bytes.NewReader(sealed)); err != nil {
			return nil, err
		}
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := out.tar.WriteHeader(tarHeader(archiveManifest, int64(len(text)+1), m.CreatedAt)); err != nil {
		return nil, err
	}
	if _, err := out.tar.Write(append(text, '\n')); err != nil {
		return nil, err
	}
	return &m, out.tar.Close()
}

// sealKeys seals the keys, and with them the manifest so far: whoever knows the
// passphrase can tell that the database is the one that they belong to.
func sealKeys(keys []sourceFile, m *manifest, passphrase string) ([]byte, error) {
	about, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	to, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return nil, err
	}
	to.SetWorkFactor(scryptWork)
	var b bytes.Buffer
	sealing, err := age.Encrypt(&b, to)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(sealing)
	for _, f := range append(keys, sourceFile{archiveManifest, about}) {
		if err := t.WriteHeader(tarHeader(f.name, int64(len(f.content)), m.CreatedAt)); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.Close(), sealing.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// errArchive says that a file is no backup, or one that is damaged.
var errArchive = errors.New("it is not a whole backup")

func damagedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errArchive, fmt.Sprintf(format, args...))
}

// archive is a backup that was read and found whole.
type archive struct {
	manifest
	bytes  int64  // of all its files
	sealed []byte // keys.age, nil for none
}

// readArchive reads an archive and puts its files into a folder, but for the
// sealed keys. Every file is as long as the manifest says, and has its checksum.
func readArchive(ctx context.Context, r io.Reader, dir string) (*archive, error) {
	a := &archive{}
	var got []manifestFile
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return nil, damagedf("it ends before its %s", archiveManifest)
		case errors.Is(err, tar.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, damagedf("%v", err)
		case err != nil:
			return nil, err
		case h.Typeflag != tar.TypeReg || h.Size < 0:
			return nil, damagedf("%q is not a file", h.Name)
		case h.Name != archiveDatabase && h.Size > maxArchived:
			return nil, damagedf("%q has %d bytes", h.Name, h.Size)
		}
		content := reading{ctx, t}
		if h.Name == archiveManifest {
			text, err := io.ReadAll(content)
			if err == nil {
				err = json.Unmarshal(text, &a.manifest)
			}
			if err != nil {
				return nil, damagedf("%s: %v", archiveManifest, err)
			}
			if rest, err := t.Next(); err == nil {
				return nil, damagedf("%q stands after the end", rest.Name)
			}
			break
		}
		for _, f := range got {
			if f.Name == h.Name {
				return nil, damagedf("%q is there twice", h.Name)
			}
		}
		sum := sha256.New()
		switch {
		case h.Name == archiveKeys:
			a.sealed, err = io.ReadAll(io.TeeReader(content, sum))
		case h.Name == archiveDatabase, plainName.MatchString(h.Name):
			err = extract(filepath.Join(dir, filepath.FromSlash(h.Name)), content, sum)
		default:
			return nil, damagedf("there is %q in it, which this binary does not know", h.Name)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, damagedf("it ends within %s", h.Name)
		} else if err != nil {
			return nil, err
		}
		got = append(got, manifestFile{h.Name, h.Size, hex.EncodeToString(sum.Sum(nil))})
		a.bytes += h.Size
	}
	if a.Format != archiveFormat {
		return nil, damagedf("it has format %d, and this binary knows format %d: use a newer binary", a.Format, archiveFormat)
	}
	if len(got) != len(a.Files) || !a.has(archiveDatabase) {
		return nil, damagedf("it holds %d files, and its %s names %d", len(got), archiveManifest, len(a.Files))
	}
	for i, f := range got {
		if f != a.Files[i] {
			return nil, damagedf("%s is not what %s says", f.Name, archiveManifest)
		}
	}
	return a, nil
}

// extract makes a file of the content, for this user alone.
func extract(name string, content io.Reader, sum hash.Hash) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.TeeReader(content, sum))
	return errors.Join(err, f.Close())
}

// reading is a reader that heeds a context.
type reading struct {
	ctx context.Context
	r   io.Reader
}

func (r reading) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// errPassphrase says that a passphrase does not open the keys.
var errPassphrase = errors.New("the passphrase does not open the keys of this backup")

// open returns the sealed keys by their names. It tells keys of another backup.
func (a *archive) open(passphrase string) (map[string][]byte, error) {
	as, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	as.SetMaxWorkFactor(maxScryptWork)
	opened, err := age.Decrypt(bytes.NewReader(a.sealed), as)
	if err != nil {
		var none *age.NoIdentityMatchError
		if errors.As(err, &none) {
			return nil, errPassphrase
		}
		return nil, damagedf("%s: %v", archiveKeys, err)
	}
	keys := make(map[string][]byte)
	for t := tar.NewReader(opened); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, damagedf("%s: %v", archiveKeys, err)
		}
		if keys[h.Name], err = io.ReadAll(t); err != nil {
			return nil, damagedf("%s: %v", archiveKeys, err)
		}
	}
	var sealedWith manifest
	if err := json.Unmarshal(keys[archiveManifest], &sealedWith); err != nil {
		return nil, damagedf("%s: %v", archiveKeys, err)
	}
	delete(keys, archiveManifest)
	i := 0
	for _, f := range a.Files {
		if f.Name == archiveKeys {
			continue
		}
		if i >= len(sealedWith.Files) || sealedWith.Files[i] != f {
			return nil, damagedf("%s is not the one that its keys were sealed with", f.Name)
		}
		i++
	}
	if i != len(sealedWith.Files) {
		return nil, damagedf("files are missing that were there when its keys were sealed")
	}
	for name := range keys {
		if !slices.Contains(keyNames, name) {
			return nil, damagedf("there is %q among its keys, which this binary does not know", name)
		}
	}
	return keys, nil
}
