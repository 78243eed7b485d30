// Package commits counts the commits of a database in the database and in a file next to it, so that a
// lost write-ahead log is noticed.
package commits

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"service/internal/durable"
	"service/store/sqlite"
)

// ErrMissing reports that the database lacks commits that it once had: its WAL was removed, or
// an older copy was put in its place. SQLite does not detect this.
var ErrMissing = errors.New("commits are missing")

// Suffix is the difference between the name of the file and that of its database.
const Suffix = "-commits"

// setting is the setting in the database with the same count.
const setting = "commits"

// Count counts the commits of one database: in the database, as part of each commit, and
// after the commit in a file. The file is therefore never ahead of the database, and at most
// one commit behind after a kill. It is not synced, so it may be further behind after a power
// loss.
//
// A database with fewer commits than the file records has lost some. A restore removes the
// file with everything else that belongs to the replaced database.
type Count struct {
	path   string
	logger *slog.Logger

	// Owned by the leader of the writer.
	file   *os.File // nil when it cannot be written
	last   int64    // the newest commit
	next   int64    // the commit of the current transaction, or last if it has written nothing
	record []byte   // last content of the file
}

// recordLength is the length of the file: 20 digits, a space, the CRC-32 of the digits in
// hexadecimal, a newline. It fits into one sector, which a disk writes atomically.
const recordLength = 20 + 1 + 8 + 1

// Record returns the content of the file, built in b.
func Record(b []byte, n int64) []byte {
	b = append(b[:0], "00000000000000000000 00000000\n"...)
	for i := 19; n > 0; i, n = i-1, n/10 {
		b[i] += byte(n % 10)
	}
	for i, sum := 28, crc32.ChecksumIEEE(b[:20]); i > 20; i, sum = i-1, sum>>4 {
		b[i] = "0123456789abcdef"[sum&0xf]
	}
	return b
}

// Read returns the commit count in the file at path, 0 if the file is missing or
// incomplete.
func Read(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	digits, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || string(text) != string(Record(nil, n)) {
		return 0, nil
	}
	return n, nil
}

// Stored returns the commit count in a database, 0 if it has none.
func Stored(scan func(query string, dest ...any) error) (int64, error) {
	var text []byte
	var any bool // the whole schema may have been in the lost WAL
	if err := scan("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'settings')", &any); err != nil || !any {
		return 0, err
	}
	err := scan("SELECT value FROM settings WHERE name = '"+setting+"'", &text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// Check compares the commit counts of a database and its file. The error wraps
// [ErrMissing] if the database has lost commits.
func Check(ctx context.Context, path string, db *sql.DB) error {
	want, err := Read(path + Suffix)
	if err != nil || want == 0 {
		return err
	}
	have, err := Stored(func(query string, dest ...any) error { return db.QueryRowContext(ctx, query).Scan(dest...) })
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	if have >= want {
		return nil
	}
	return fmt.Errorf("%w: %s has %d of %d commits: its write-ahead log %s-wal was removed, or an older copy was put in its place; "+
		"nothing was changed: put the log back, or restore the data directory from its replica or a backup; "+
		"to continue without the missing commits, remove %s-commits",
		ErrMissing, path, have, want, path, path)
}

// CheckOrphaned checks the path of a database that does not exist. The error wraps [ErrMissing] if
// there are a write-ahead log and a commit count: they belong to a database that was removed, and the
// log may contain its newest commits. An interrupted restore leaves a log alone.
func CheckOrphaned(path string) error {
	commits, err := Read(path + Suffix)
	if err != nil || commits == 0 {
		return err
	}
	info, err := os.Stat(path + "-wal")
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	} else if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s does not exist, but its write-ahead log %s-wal does, which may have the newest of %d commits; "+
		"nothing was changed: put the database back, or restore the data directory with service restore, which keeps the log; "+
		"to begin without it, move %s-wal elsewhere", ErrMissing, path, path, commits, path)
}

// Open starts counting after the last commit of the database.
func Open(path string, scan func(query string, dest ...any) error, logger *slog.Logger) (*Count, error) {
	last, err := Stored(scan)
	if err != nil {
		return nil, err
	}
	c := &Count{path: path + Suffix, logger: logger, last: last, next: last}
	// An existing file is overwritten in place, which works even on a full disk.
	if info, err := os.Stat(c.path); err != nil || info.Size() != recordLength {
		if err := durable.WriteFile(c.path, Record(nil, last), 0o600); err != nil {
			c.fail(err)
			return c, nil
		}
	}
	if c.file, err = os.OpenFile(c.path, os.O_WRONLY, 0); err != nil {
		c.fail(err)
		return c, nil
	}
	c.write()
	return c, nil
}

// write writes the count to the file in place.
func (c *Count) write() {
	c.record = Record(c.record, c.last)
	if _, err := c.file.WriteAt(c.record, 0); err != nil {
		c.fail(err)
	}
}

// fail logs that the file cannot be written. The service continues, but would not notice a lost
// WAL.
func (c *Count) fail(err error) {
	c.logger.Warn("failed to write the commit count file; a lost write-ahead log would go unnoticed", "error", err)
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// Stamp is the hook [sqlite.Hooks].Stamp: it writes the count into the transaction.
func (c *Count) Stamp(t *sqlite.Tx) error {
	c.next = c.last + 1
	value := strconv.AppendInt(nil, c.next, 10)
	n, err := t.Affected("UPDATE settings SET value = ?1 WHERE name = '"+setting+"'", value)
	if err == nil && n == 0 {
		err = t.Exec("INSERT INTO settings (name, value) VALUES ('"+setting+"', ?1)", value)
	}
	return err
}

// Committed advances the count after a commit.
func (c *Count) Committed() {
	if c.next == c.last {
		return
	}
	if c.last = c.next; c.file != nil {
		c.write()
	}
}

// Undone resets the count after a rollback.
func (c *Count) Undone() { c.next = c.last }

// Close closes the file. No write may be in progress.
func (c *Count) Close() error {
	if c == nil || c.file == nil {
		return nil
	}
	return c.file.Close()
}
