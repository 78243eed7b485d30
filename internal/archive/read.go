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

	"filippo.io/age"
)

// errDamaged says that a file is no backup, or a damaged one.
var errDamaged = errors.New("it is not a whole backup")

func damagedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamaged, fmt.Sprintf(format, args...))
}

// Archive is a backup that was read and is whole.
type Archive struct {
	Manifest
	Bytes int64 // of all its files

	encrypted []byte // keys.age, nil for none
}

// Read reads an archive and writes its files into the folder dir, except for the
// encrypted keys. Every file is as long as the manifest says, and has its checksum.
// An archive that is damaged or was made by a newer binary is an error.
func Read(ctx context.Context, r io.Reader, dir string) (*Archive, error) {
	a := &Archive{}
	var got []File
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return nil, damagedf("it ends before its %s", manifestFile)
		case errors.Is(err, tar.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, damagedf("%v", err)
		case err != nil:
			return nil, err
		case h.Typeflag != tar.TypeReg || h.Size < 0:
			return nil, damagedf("%q is not a file", h.Name)
		case h.Name != Database && h.Size > maxFileBytes:
			return nil, damagedf("%q has %d bytes", h.Name, h.Size)
		case slices.ContainsFunc(got, func(f File) bool { return f.Name == h.Name }):
			return nil, damagedf("%q is there twice", h.Name)
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

// readFile reads one file of the archive, and returns its checksum.
func (a *Archive) readFile(name string, r io.Reader, dir string) (sum string, err error) {
	hash := sha256.New()
	switch {
	case name == encryptedFile:
		a.encrypted, err = io.ReadAll(io.TeeReader(r, hash))
	case name == Database, plainName.MatchString(name):
		err = extract(filepath.Join(dir, filepath.FromSlash(name)), r, hash)
	default:
		return "", damagedf("there is %q in it, which this binary does not know", name)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "", damagedf("it ends within %s", name)
	}
	return hex.EncodeToString(hash.Sum(nil)), err
}

// readManifest reads the manifest, which is the archive's last file.
func (a *Archive) readManifest(ctx context.Context, t *tar.Reader) error {
	text, err := io.ReadAll(contextReader{ctx, t})
	if err == nil {
		err = json.Unmarshal(text, &a.Manifest)
	}
	if err != nil {
		return damagedf("%s: %v", manifestFile, err)
	}
	if rest, err := t.Next(); err == nil {
		return damagedf("%q stands after the end", rest.Name)
	}
	return nil
}

// check compares the files that were read with the manifest.
func (a *Archive) check(got []File) error {
	if a.Format != manifestFormat {
		return damagedf("it has format %d, and this binary knows format %d: use a newer binary", a.Format, manifestFormat)
	}
	if len(got) != len(a.Files) || !a.has(Database) {
		return damagedf("it holds %d files, and its %s names %d", len(got), manifestFile, len(a.Files))
	}
	for i, f := range got {
		if f != a.Files[i] {
			return damagedf("%s is not what %s says", f.Name, manifestFile)
		}
	}
	return nil
}

// extract creates a file with what r reads, for this user alone.
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

// errPassphrase says that a passphrase does not open the keys.
var errPassphrase = errors.New("the passphrase does not open the keys of this backup")

// OpenKeys decrypts the keys and returns them by their names. Keys that belong to
// another backup are an error.
func (a *Archive) OpenKeys(passphrase string) (map[string][]byte, error) {
	keys, err := a.decrypt(passphrase)
	if err != nil {
		return nil, err
	}
	var with Manifest // of the archive when the keys were encrypted
	if err := json.Unmarshal(keys[manifestFile], &with); err != nil {
		return nil, damagedf("%s: %v", encryptedFile, err)
	}
	delete(keys, manifestFile)
	i := 0
	for _, f := range a.Files {
		if f.Name == encryptedFile {
			continue
		}
		if i >= len(with.Files) || with.Files[i] != f {
			return nil, damagedf("%s is not the one that its keys were sealed with", f.Name)
		}
		i++
	}
	if i != len(with.Files) {
		return nil, damagedf("files are missing that were there when its keys were sealed")
	}
	for name := range keys {
		if !slices.Contains(keyNames, name) {
			return nil, damagedf("there is %q among its keys, which this binary does not know", name)
		}
	}
	return keys, nil
}

// decrypt returns the files in keys.age by their names.
func (a *Archive) decrypt(passphrase string) (map[string][]byte, error) {
	identity, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	identity.SetMaxWorkFactor(maxScryptWork)
	opened, err := age.Decrypt(bytes.NewReader(a.encrypted), identity)
	if err != nil {
		var none *age.NoIdentityMatchError
		if errors.As(err, &none) {
			return nil, errPassphrase
		}
		return nil, damagedf("%s: %v", encryptedFile, err)
	}
	files := make(map[string][]byte)
	for t := tar.NewReader(opened); ; {
		h, err := t.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, damagedf("%s: %v", encryptedFile, err)
		}
		if files[h.Name], err = io.ReadAll(t); err != nil {
			return nil, damagedf("%s: %v", encryptedFile, err)
		}
	}
}
