// Package datadir works on the files of a data directory that no store has open: it restores,
// inspects and compacts the database there, reads the data of a service that no longer runs, and
// keeps a standby's copy until it becomes the database.
//
// Everything that changes a data directory holds its lock. After a crash, the next process that opens
// the directory finds either the old files or the new ones, see [Restoration].
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"service/store/commits"
	"service/store/keyring"
	"service/store/sqlite"
)

// Database is the name of the database; SQLite adds -wal and -shm.
const Database = "service.db"

// Commits is the file with the number of the database's commits.
const Commits = Database + commits.Suffix

// CheckFiles is [sqlite.CheckFiles] for the database in a data directory.
func CheckFiles(dir string) error {
	_, err := os.Stat(filepath.Join(dir, keyring.FileName)) // the key file is created after the schema
	return sqlite.CheckFiles(filepath.Join(dir, Database), err == nil)
}

// CheckKeyFile checks the key file that the operator configured for a data directory, which may
// not exist yet; "" for none. It changes nothing, and does not check that the key belongs to the
// database. The error wraps [keyring.ErrKey].
func CheckKeyFile(dir, name string) error {
	_, err := os.Stat(filepath.Join(dir, Database))
	return keyring.CheckFile(dir, name, err == nil)
}

// ReadKeys returns the content of a key file for [Inspect]: of the file name, or of the one in the
// data directory if name is "". The error wraps [keyring.ErrKey], and fs.ErrNotExist if the file
// does not exist.
func ReadKeys(dir, name string) ([]byte, error) {
	file := &keyring.File{Path: filepath.Join(dir, keyring.FileName)}
	if name != "" {
		file = &keyring.File{Path: name, Named: true}
	}
	keys, err := file.Read()
	if err != nil {
		return nil, err
	}
	return keyring.Format(keys), nil
}

// NoDataError means that a data directory contains no database.
type NoDataError struct {
	Dir     string
	Standby bool   // a standby was the last to run in it
	Primary string // where that standby last saw the primary, "" for nowhere
}

func (e *NoDataError) Error() string {
	switch {
	case e.Primary != "":
		return fmt.Sprintf("there is no data in %s: it was last a standby of the primary on %s", e.Dir, e.Primary)
	case e.Standby:
		return fmt.Sprintf("there is no data in %s: it was last a standby", e.Dir)
	}
	return "there is no data in " + e.Dir
}

// maxPrimary is the maximum length of the host that CheckData reads, in bytes.
const maxPrimary = 256

// CheckData returns a [*NoDataError] if a data directory contains no database, nil if it contains one
// or is not readable.
func CheckData(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, Database)); !errors.Is(err, fs.ErrNotExist) || isRestoring(dir) {
		return nil
	}
	e := &NoDataError{Dir: dir}
	if _, err := os.Stat(filepath.Join(dir, StandbyFolder)); err == nil {
		e.Standby = true
		host, _ := os.ReadFile(filepath.Join(dir, StandbyFolder, primaryFile)) // the advice works without it
		e.Primary = strings.TrimSpace(string(host[:min(len(host), maxPrimary)]))
	}
	return e
}
