// Package schema contains the schema of the database, and the names of the settings that several
// packages use.
package schema

import (
	_ "embed"

	"service/store/sqlite"
)

// Version is the version of the schema. It increases with every change of schema.sql, which
// a test checks. Databases of lower versions are rejected, unless Current has migrations for them.
// Versions below 100 were never released.
const Version = 115

// Script creates the tables and indexes of an empty database.
//
//go:embed schema.sql
var Script string

// Current is the schema of this binary.
var Current = &sqlite.Schema{Version: Version, Script: Script}

// Settings, which are rows of the table of that name.
const (
	// Continued marks a database that was restored since it was last open. The value names what was
	// restored.
	Continued = "audit_continued"
	// Restored is stored in a database that service restore restored, until its deliveries are
	// released.
	Restored = "restored"
	// RestoredNewest marks data that was restored as the newest, whatever the lease it was written
	// under. The first write under a new lease removes it.
	RestoredNewest = "restored_newest"
	// Lease is the lease generation under which the data was last written.
	Lease = "lease"
	// LocalFiles contains the digests of the primary's local files, for standbys.
	LocalFiles = "local_files"
)

// Set stores a setting: its name is ?1 and its value ?2.
const Set = "INSERT INTO settings (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value"

// Get reads a setting, nil if it is not set.
func Get(scan sqlite.ScanRow, name string) (value []byte, err error) {
	err = scan("SELECT value FROM settings WHERE name = ?", []any{name}, &value)
	return value, sqlite.NoRows(err, nil)
}

// BeginEpochs begins an epoch of the log of the program ?1, NULL for all programs, that may have lost
// its newest events. [DropEpochs] follows. A program that has moved away keeps its epochs where it is.
const BeginEpochs = `INSERT INTO log_epochs (program_id, num, id, head)
	SELECT p.id, coalesce((SELECT max(num) FROM log_epochs WHERE program_id = p.id), 0) + 1, random() >> 11,
		coalesce((SELECT max(seq) FROM events WHERE program_id = p.id), 0)
	FROM programs p WHERE (?1 IS NULL OR p.id = ?1)
	AND p.id NOT IN (SELECT program_id FROM program_states WHERE state IN ('erasing', 'moved'))`

// DropEpochs drops all but the newest 100 epochs of the logs of BeginEpochs. A cursor from an earlier
// epoch then continues at the beginning of the log.
const DropEpochs = `DELETE FROM log_epochs WHERE (?1 IS NULL OR program_id = ?1)
	AND num <= (SELECT max(num) FROM log_epochs n WHERE n.program_id = log_epochs.program_id) - 100`
