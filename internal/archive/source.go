package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"service/store"
)

// Request contains the options of a backup.
type Request struct {
	Keys   bool `json:"keys"`   // include the keys
	Copies int  `json:"copies"` // number of copies of the database that must fit on the data directory's disk
}

// Source is the content of a backup: a snapshot of the database, and files of the data directory.
type Source struct {
	snapshot *store.Snapshot
	manifest Manifest // without Files
	plain    []content
	keys     []content // secret
}

// NewSource takes a snapshot of a store and reads the other files. version is the version of the
// binary. The caller must call Close.
func NewSource(ctx context.Context, st *store.Store, r *Request, version string) (_ *Source, err error) {
	sqlite, err := store.SQLiteVersion()
	if err != nil {
		return nil, err
	}
	s := Source{manifest: Manifest{Format: manifestFormat, Version: version, SQLiteVersion: sqlite}}
	if r.Keys { // without ca.key, the CA's certificate is useless
		if err := read(&s.plain, st.Dir(), caFile); err != nil {
			return nil, err
		}
	}
	types, err := os.ReadDir(filepath.Join(st.Dir(), EventTypesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range types {
		if name := EventTypesDir + "/" + f.Name(); plainName.MatchString(name) {
			if err := read(&s.plain, st.Dir(), name); err != nil {
				return nil, err
			}
		}
	}
	if s.snapshot, err = st.Snapshot(ctx, r.Copies); err != nil {
		return nil, err
	}
	if r.Keys {
		s.keys = append(s.keys, content{SecretKeyFile, s.snapshot.Keys})
		for _, name := range keyNames[1:] {
			if err := read(&s.keys, st.Dir(), name); err != nil {
				return nil, errors.Join(err, s.Close())
			}
		}
	}
	s.manifest.Schema, s.manifest.CreatedAt = s.snapshot.Schema, s.snapshot.At.Truncate(time.Millisecond)
	return &s, nil
}

// read appends a file of the data directory to files, if it exists.
func read(files *[]content, dir, name string) error {
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(data) > maxFileBytes {
		err = fmt.Errorf("%s is larger than %d bytes", f.Name(), maxFileBytes)
	}
	*files = append(*files, content{name, data})
	return err
}

// Bytes returns the size of the database.
func (s *Source) Bytes() int64 { return s.snapshot.Bytes }

// Close removes the snapshot.
func (s *Source) Close() error { return s.snapshot.Remove() }

// Send writes the source as a tar archive for [Write], in this process or at the other end of
// the control socket. The keys are not encrypted. The first file is the manifest without
// Files, the last is the database.
func (s *Source) Send(w io.Writer) error {
	about, err := json.Marshal(s.manifest)
	if err != nil {
		return err
	}
	files := slices.Concat([]content{{manifestFile, about}}, s.plain, s.keys)
	return send(w, files, s.manifest.CreatedAt, Database, s.snapshot.Path, s.snapshot.Bytes)
}
