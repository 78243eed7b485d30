package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
)

// writer writes an archive and adds the files to the manifest.
type writer struct {
	tar      *tar.Writer
	manifest *Manifest
}

func (w *writer) add(name string, size int64, r io.Reader) error {
	sum := sha256.New()
	if err := add(w.tar, name, size, w.manifest.CreatedAt, io.TeeReader(r, sum)); err != nil {
		return err
	}
	w.manifest.Files = append(w.manifest.Files, File{name, size, hex.EncodeToString(sum.Sum(nil))})
	return nil
}

// Write creates an archive from the output of [Source.Send] and returns its manifest. It
// encrypts the keys, if there are any, with the passphrase. Before it writes the database, it
// calls room, which may return an error.
func Write(w io.Writer, from io.Reader, passphrase string, room func(bytes int64) error) (*Manifest, error) {
	in, m := tar.NewReader(from), new(Manifest)
	if _, err := in.Next(); err != nil {
		return nil, err
	}
	if err := json.NewDecoder(in).Decode(m); err != nil {
		return nil, err
	}
	out := writer{tar.NewWriter(w), m}
	keys, err := out.copyFiles(in, room)
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		encrypted, err := encryptKeys(keys, m, passphrase)
		if err != nil {
			return nil, err
		}
		if err := out.add(encryptedFile, int64(len(encrypted)), bytes.NewReader(encrypted)); err != nil {
			return nil, err
		}
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := addAll(out.tar, []content{{manifestFile, append(text, '\n')}}, m.CreatedAt); err != nil {
		return nil, err
	}
	return m, out.tar.Close()
}

// copyFiles copies the files of a source, the database last. It returns the keys instead of copying
// them.
func (w *writer) copyFiles(in *tar.Reader, room func(bytes int64) error) (keys []content, err error) {
	for done := false; !done; {
		h, err := in.Next()
		if err != nil {
			return nil, err
		}
		switch {
		case h.Name == Database:
			if err = room(h.Size); err == nil {
				err = w.add(h.Name, h.Size, in)
			}
			done = true
		case plainName.MatchString(h.Name):
			err = w.add(h.Name, h.Size, in)
		default:
			var data []byte
			data, err = io.ReadAll(in)
			keys = append(keys, content{h.Name, data})
		}
		if err != nil {
			return nil, err
		}
	}
	if _, err := in.Next(); err != io.EOF { // Send has failed
		return nil, errors.Join(errors.New("the backup is incomplete"), err)
	}
	return keys, nil
}

// encryptKeys encrypts the keys, along with the manifest so far. That proves to a reader with
// the passphrase that the database belongs to the keys.
func encryptKeys(keys []content, m *Manifest, passphrase string) ([]byte, error) {
	about, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	encrypting, err := encrypt(&b, passphrase)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(encrypting)
	if err := addAll(t, append(keys, content{manifestFile, about}), m.CreatedAt); err != nil {
		return nil, err
	}
	if err := errors.Join(t.Close(), encrypting.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
