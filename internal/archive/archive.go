// Package archive reads and writes backups. A backup is a tar archive of
//
//	service.db           a consistent copy of the database
//	ca.pem               the certificate of the local CA, if there is one
//	event_types/         the operator's own event types
//	keys.age             secret.key, alert.secret and ca.key, if they exist: a tar archive,
//	                     encrypted with a passphrase in the age format
//
// manifest.json        the list of files with checksums. It is the last file, so a truncated
// archive lacks it
//
// The process with the open database creates a [Source]. [Write] creates the archive from the
// output of the Source, and may run in another process.
package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"filippo.io/age"
)

// Names of files in an archive. They have the same names in the data directory.
const (
	// Database is the name of the database in an archive.
	Database = "service.db"
	// SecretKeyFile is the name of the secret key among the encrypted keys.
	SecretKeyFile = "secret.key"
	// EventTypesDir is the directory of the operator's own event types.
	EventTypesDir = "event_types"

	caFile         = "ca.pem"
	caKeyFile      = "ca.key"
	alertFile      = "alert.secret"
	encryptedFile  = "keys.age"
	manifestFile   = "manifest.json"
	manifestFormat = 1
)

// maxFileBytes limits each file of an archive, except the database.
const maxFileBytes = 4 << 20

// plainName matches the names of unencrypted files other than the database.
var plainName = regexp.MustCompile(`^(ca\.pem|event_types/[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}\.json)$`)

// keyNames are the names of the encrypted files.
var keyNames = []string{SecretKeyFile, alertFile, caKeyFile}

// Manifest describes the contents of an archive.
type Manifest struct {
	Format        int       `json:"format"`
	Version       string    `json:"service_version"`
	SQLiteVersion string    `json:"sqlite_version"`
	Schema        int       `json:"schema"`
	CreatedAt     time.Time `json:"created_at"`
	Files         []File    `json:"files"`
}

// File is a file of an archive.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// HasKeys reports whether the archive includes the encrypted keys.
func (m *Manifest) HasKeys() bool { return m.has(encryptedFile) }

func (m *Manifest) has(name string) bool {
	return slices.ContainsFunc(m.Files, func(f File) bool { return f.Name == name })
}

// content is a file in memory.
type content struct {
	name string
	data []byte
}

// add adds a file to a tar archive.
func add(t *tar.Writer, name string, size int64, at time.Time, r io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at.Truncate(time.Second)}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(t, r)
	return err
}

// addAll adds files in memory to a tar archive.
func addAll(t *tar.Writer, files []content, at time.Time) error {
	for _, f := range files {
		if err := add(t, f.name, int64(len(f.data)), at, bytes.NewReader(f.data)); err != nil {
			return err
		}
	}
	return nil
}

// send writes files in memory, and the database at path, as a tar archive.
func send(w io.Writer, files []content, at time.Time, name, path string, size int64) error {
	t := tar.NewWriter(w)
	if err := addAll(t, files, at); err != nil {
		return err
	}
	db, err := os.Open(path)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := add(t, name, size, at, db); err != nil {
		return err
	}
	return t.Close()
}

// maxScryptWork is the largest work factor of a passphrase that is accepted when reading: 1 GiB.
const maxScryptWork = 20

// encrypt returns a writer that encrypts with a passphrase.
func encrypt(w io.Writer, passphrase string) (io.WriteCloser, error) {
	to, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return nil, err
	}
	to.SetWorkFactor(scryptWork)
	return age.Encrypt(w, to)
}

// decrypt returns a reader of data that was encrypted with a passphrase. wrong is the error for
// another passphrase.
func decrypt(r io.Reader, passphrase string, wrong error, damaged func(error) error) (io.Reader, error) {
	identity, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	identity.SetMaxWorkFactor(maxScryptWork)
	opened, err := age.Decrypt(r, identity)
	switch {
	case errors.As(err, new(*age.NoIdentityMatchError)):
		return nil, wrong
	case err != nil:
		return nil, damaged(err)
	}
	return opened, nil
}
