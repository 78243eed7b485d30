// Package archive reads and writes backups. A backup is a tar archive of
//
//	service.db           a consistent copy of the database
//	ca.pem               the certificate that clients trust, if there is one
//	event_types/         the operator's own event types
//	keys.age             secret.key, alert.secret and ca.key, as far as they exist,
//	                     encrypted with a passphrase: a tar archive in the age format
//	manifest.json        what the archive holds, with checksums. It is the last file,
//	                     so a truncated archive has none
//
// The process that has the database open makes a [Source]; [Write], perhaps in
// another process, makes the archive of what the Source sends.
package archive

import (
	"archive/tar"
	"regexp"
	"slices"
	"time"
)

// The names of an archive's files, which are also those of the data directory.
const (
	// Database is the name of the database in an archive.
	Database = "service.db"
	// SecretKeyFile is the name of the secret key among the encrypted keys.
	SecretKeyFile = "secret.key"
	// EventTypesDir is the folder of the operator's own event types.
	EventTypesDir = "event_types"

	caFile         = "ca.pem"
	caKeyFile      = "ca.key"
	alertFile      = "alert.secret"
	encryptedFile  = "keys.age"
	manifestFile   = "manifest.json"
	manifestFormat = 1
)

// maxFileBytes bounds each file of an archive but the database.
const maxFileBytes = 4 << 20

// plainName matches the names of the files that are neither the database nor
// encrypted.
var plainName = regexp.MustCompile(`^(ca\.pem|event_types/[a-z][a-z0-9_]{0,63}\.json)$`)

// keyNames are the names of the encrypted files.
var keyNames = []string{SecretKeyFile, alertFile, caKeyFile}

// Manifest describes the content of an archive.
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

// HasKeys reports whether the archive holds the encrypted keys.
func (m *Manifest) HasKeys() bool { return m.has(encryptedFile) }

func (m *Manifest) has(name string) bool {
	return slices.ContainsFunc(m.Files, func(f File) bool { return f.Name == name })
}

// content is a file in memory.
type content struct {
	name string
	data []byte
}

func tarHeader(name string, size int64, at time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at.Truncate(time.Second)}
}
