package store

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

// ErrMissing says that the database lacks commits that it once had: its
// write-ahead log was removed, or an older copy was put in its place. SQLite
// would take it for whole.
var ErrMissing = errors.New("commits are missing")

// commitsFile is the name of the file beside a database that says how many
// commits it has.
const commitsFile = databaseFile + "-commits"

// commitsSetting is the same within the database.
const commitsSetting = "commits"

// commitCount counts the commits of the database: in the database, as a part of
// each commit, and after the commit in a file. So the file never says more than
// what is on disk, and what it says is at most the commit behind that was cut off
// by a kill. It is not synced: after a power cut it may be further behind.
//
// A database that has fewer commits than the file says has lost some. Restoring
// one removes the file, with all else that belongs to the replaced database.
type commitCount struct {
	path   string
	logger *slog.Logger

	// Owned by the leader of the writer.
	file   *os.File // nil when it cannot be written
	last   int64    // the newest commit
	next   int64    // of the transaction under way, last when it has written nothing
	record []byte   // what was last written to the file
}

// recordLength is the length of the file: 20 digits, a blank, the CRC-32 of the
// digits in hexadecimal, and an end of line. It fits into a sector, which a disk
// writes as a whole.
const recordLength = 20 + 1 + 8 + 1

// commitsRecord returns the content of the file, which it builds in b.
func commitsRecord(b []byte, n int64) []byte {
	b = append(b[:0], "00000000000000000000 00000000\n"...)
	for i := 19; n > 0; i, n = i-1, n/10 {
		b[i] += byte(n % 10)
	}
	for i, sum := 28, crc32.ChecksumIEEE(b[:20]); i > 20; i, sum = i-1, sum>>4 {
		b[i] = "0123456789abcdef"[sum&0xf]
	}
	return b
}

// readCommits returns how many commits a database has had, as its file says, and
// 0 when the file is not there or is not whole.
func readCommits(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	digits, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || string(text) != string(commitsRecord(nil, n)) {
		return 0, nil
	}
	return n, nil
}

// storedCommits returns how many commits a database says it has, 0 for one that
// has never counted.
func storedCommits(scan func(query string, dest ...any) error) (int64, error) {
	var text []byte
	var any bool // the whole schema may have been in the log
	if err := scan("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'settings')", &any); err != nil || !any {
		return 0, err
	}
	err := scan("SELECT value FROM settings WHERE name = '"+commitsSetting+"'", &text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// checkCommits compares a database with its file. The error wraps [ErrMissing]
// when the database has lost commits.
func checkCommits(ctx context.Context, path string, db *sql.DB) error {
	want, err := readCommits(path + "-commits")
	if err != nil || want == 0 {
		return err
	}
	have, err := storedCommits(func(query string, dest ...any) error { return db.QueryRowContext(ctx, query).Scan(dest...) })
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	if have >= want {
		return nil
	}
	return fmt.Errorf("%w: %s has %d of %d commits: its write-ahead log %s-wal was removed, or an older copy was put in its place; nothing was changed: put the log back, or restore the data directory from its replica or a backup; to go on without what is missing, remove %s-commits",
		ErrMissing, path, have, want, path, path)
}

// openCommits begins to count, after the last commit of the database.
func openCommits(path string, scan func(query string, dest ...any) error, logger *slog.Logger) (*commitCount, error) {
	last, err := storedCommits(scan)
	if err != nil {
		return nil, err
	}
	c := &commitCount{path: path + "-commits", logger: logger, last: last, next: last}
	// One that is there is written in place, which works on a full disk too.
	if info, err := os.Stat(c.path); err != nil || info.Size() != recordLength {
		if err := durable.WriteFile(c.path, commitsRecord(nil, last), 0o600); err != nil {
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

func (c *commitCount) write() {
	c.record = commitsRecord(c.record, c.last)
	if _, err := c.file.WriteAt(c.record, 0); err != nil {
		c.fail(err)
	}
}

// fail notes that the file cannot be written: a lost log would not be noticed,
// which is no reason to stop.
func (c *commitCount) fail(err error) {
	c.logger.Warn("the commits cannot be counted in a file of their own: a write-ahead log that is lost would not be noticed", "error", err)
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// count is the hook [sqlite.Hooks].Stamp.
func (c *commitCount) count(t *sqlite.Tx) error {
	c.next = c.last + 1
	value := strconv.AppendInt(nil, c.next, 10)
	n, err := t.Affected("UPDATE settings SET value = ?1 WHERE name = '"+commitsSetting+"'", value)
	if err == nil && n == 0 {
		err = t.Exec("INSERT INTO settings (name, value) VALUES ('"+commitsSetting+"', ?1)", value)
	}
	return err
}

// committed notes that the transaction is on disk.
func (c *commitCount) committed() {
	if c.next == c.last {
		return
	}
	if c.last = c.next; c.file != nil {
		c.write()
	}
}

// undone notes that the transaction is not stored.
func (c *commitCount) undone() { c.next = c.last }

// close closes the file. No write may be under way.
func (c *commitCount) close() error {
	if c == nil || c.file == nil {
		return nil
	}
	return c.file.Close()
}
