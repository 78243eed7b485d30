package archive

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
	"os"
	"path/filepath"
	"slices"
)

// errDamaged means that a file is not a backup or is damaged.
var errDamaged = errors.New("not a complete backup")

func damagedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamaged, fmt.Sprintf(format, args...))
}

// Archive is a verified backup.
type Archive struct {
	Manifest
	Bytes int64 // of all its files

	encrypted []byte // keys.age, nil for none
}

// Read extracts an archive into the directory dir, except for the encrypted keys. It verifies sizes
// and checksums. A damaged archive, or one written by a newer version, is an error.
func Read(ctx context.Context, r io.Reader, dir string) (*Archive, error) {
	a := &Archive{}
	var got []File
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return nil, damagedf("it ends before %s", manifestFile)
		case errors.Is(err, tar.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, damagedf("%v", err)
		case err != nil:
			return nil, err
		case h.Typeflag != tar.TypeReg || h.Size < 0:
			return nil, damagedf("%q is not a regular file", h.Name)
		case h.Name != Database && h.Size > maxFileBytes:
			return nil, damagedf("%q has %d bytes", h.Name, h.Size)
		case slices.ContainsFunc(got, func(f File) bool { return f.Name == h.Name }):
			return nil, damagedf("duplicate file %q", h.Name)
		}
		if h.Name == manifestFile {
			if err := a.readManifest(ctx, t); err != nil {
				return nil, err
			}
			return a, a.check(got)
		}
		sum, err := a.readFile(h.Name, contextReader{ctx, t}, dir)
		if err != nil {
			return nil, err
		}
		got = append(got, File{h.Name, h.Size, sum})
		a.Bytes += h.Size
	}
}

// readFile extracts one file and returns its checksum.
func (a *Archive) readFile(name string, r io.Reader, dir string) (sum string, err error) {
	hash := sha256.New()
	switch {
	case name == encryptedFile:
		a.encrypted, err = io.ReadAll(io.TeeReader(r, hash))
	case name == Database, plainName.MatchString(name):
		err = extract(filepath.Join(dir, filepath.FromSlash(name)), r, hash)
	default:
		return "", damagedf("unknown file %q", name)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "", damagedf("it ends within %s", name)
	}
	return hex.EncodeToString(hash.Sum(nil)), err
}

// readManifest reads the manifest, the last file of the archive.
func (a *Archive) readManifest(ctx context.Context, t *tar.Reader) error {
	text, err := io.ReadAll(contextReader{ctx, t})
	if err == nil {
		err = json.Unmarshal(text, &a.Manifest)
	}
	if err != nil {
		return damagedf("%s: %v", manifestFile, err)
	}
	if rest, err := t.Next(); err == nil {
		return damagedf("%q is after the end", rest.Name)
	}
	return nil
}

// check compares the extracted files with the manifest.
func (a *Archive) check(got []File) error {
	if a.Format != manifestFormat {
		return damagedf("its format %d is not supported: use a newer version of service (this one supports format %d)",
			a.Format, manifestFormat)
	}
	if len(got) != len(a.Files) || !a.has(Database) {
		return damagedf("it has %d files, but %s lists %d", len(got), manifestFile, len(a.Files))
	}
	for i, f := range got {
		if f != a.Files[i] {
			return damagedf("%s does not match %s", f.Name, manifestFile)
		}
	}
	return nil
}

// extract creates a file with the content of r, accessible only to this user.
func extract(name string, r io.Reader, sum hash.Hash) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.TeeReader(r, sum))
	return errors.Join(err, f.Close())
}

// contextReader is a reader that fails once ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// errPassphrase means that the passphrase does not decrypt the keys.
var errPassphrase = errors.New("wrong passphrase for the keys of this backup")

// OpenKeys decrypts the keys and returns them by name. Keys of another backup are an error.
func (a *Archive) OpenKeys(passphrase string) (map[string][]byte, error) {
	keys, err := a.decrypt(passphrase)
	if err != nil {
		return nil, err
	}
	var inner Manifest // from the time when the keys were encrypted
	if err := json.Unmarshal(keys[manifestFile], &inner); err != nil {
		return nil, damagedf("%s: %v", encryptedFile, err)
	}
	delete(keys, manifestFile)
	i := 0
	for _, f := range a.Files {
		if f.Name == encryptedFile {
			continue
		}
		if i >= len(inner.Files) || inner.Files[i] != f {
			return nil, damagedf("%s and the keys are from different backups", f.Name)
		}
		i++
	}
	if i != len(inner.Files) {
		return nil, damagedf("it lacks files that the keys were encrypted with")
	}
	for name := range keys {
		if !slices.Contains(keyNames, name) {
			return nil, damagedf("unknown key %q", name)
		}
	}
	return keys, nil
}

// decrypt returns the files in keys.age by name.
func (a *Archive) decrypt(passphrase string) (map[string][]byte, error) {
	damaged := func(err error) error { return damagedf("%s: %v", encryptedFile, err) }
	opened, err := decrypt(bytes.NewReader(a.encrypted), passphrase, errPassphrase, damaged)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for t := tar.NewReader(opened); ; {
		h, err := t.Next()
		if err == io.EOF {
			return files, nil
		}
		if err == nil {
			files[h.Name], err = io.ReadAll(t)
		}
		if err != nil {
			return nil, damaged(err)
		}
	}
}
