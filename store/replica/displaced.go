package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

var (
	// ErrForeign means that a database was not written to this replica.
	ErrForeign = errors.New("the data does not belong to this replica")
	// ErrUndecided means that another service has the lease and has not begun its term, so
	// that it is unknown what that term continues.
	ErrUndecided = errors.New("the new primary has not written to the replica yet")
)

// UnknownChanges is the number of changes if it cannot be determined.
const UnknownChanges = -1

// Position is a position in a replica that a database has exactly: it contains every change up
// to it, and none after it.
type Position struct {
	Replica string   `json:"replica"` // see [Config.Target]
	Term    int64    `json:"term"`
	Nonce   string   `json:"nonce"`
	TXID    ltx.TXID `json:"txid"`
}

// Compare compares the database at path, which no process has open, with a replica to which
// another service may write now. It returns the position of the database if the replica
// contains it. Otherwise changes is the number of transactions that only the database
// contains, or [UnknownChanges]. displaced says that another service has acquired the lease
// since the database was written.
//
// The error wraps [ErrForeign] if the database was not written to this replica, and
// [ErrUndecided] if displaced is set and the other service has not begun its term.
func Compare(ctx context.Context, cfg *Config, path string, displaced bool) (p Position, changes int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	last, err := readRecord(path)
	if err != nil {
		return p, 0, err
	}
	if last.Term == 0 {
		return p, UnknownChanges, nil
	}
	at, err := cfg.location(ctx)
	if err != nil {
		return p, 0, err
	}
	current, err := newestTerm(ctx, at)
	if err != nil {
		return p, 0, err
	}
	found, err := readTerm(ctx, at, last.Term)
	switch {
	case errors.Is(err, errNoTerm) && last.Replica == cfg.Target() && last.Term < current.Number:
		return p, UnknownChanges, nil // retention has removed the term
	case errors.Is(err, errNoTerm), err == nil && found.Nonce != last.Nonce:
		return p, 0, fmt.Errorf("%w: it was written to %s in term %d (%s), which is not in %s",
			ErrForeign, last.Replica, last.Term, last.Nonce, cfg.Target())
	case err != nil:
		return p, 0, err
	case displaced && current.Number == last.Term:
		return p, 0, ErrUndecided
	}
	upTo, err := branch(ctx, at, current, last)
	if err != nil {
		return p, 0, err
	}
	wal, err := readWALState(path)
	if err != nil {
		return p, 0, err
	}
	if !wal.proven || upTo == 0 {
		return p, UnknownChanges, nil
	}
	after, err := wal.commitsAfter(path)
	if err != nil {
		return p, 0, err
	}
	if wal.at > upTo || after > 0 {
		return p, int64(wal.at) - int64(min(wal.at, upTo)) + after, nil
	}
	return Position{cfg.Target(), last.Term, last.Nonce, wal.at}, 0, nil
}

// branch returns the last transaction that the current term has in common with the term of a
// record and that can be restored, or 0.
func branch(ctx context.Context, at location, current term, last record) (ltx.TXID, error) {
	if current.Number != last.Term {
		return commonPosition(ctx, at, current, last)
	}
	client, err := openTerm(ctx, at, current, false)
	if err != nil {
		return 0, err
	}
	newest, _, err := position(ctx, client)
	return newest, err
}

// commitsAfter returns the number of transactions in the WAL of the database at path after
// the position of s, which must be proven.
func (s walState) commitsAfter(path string) (n int64, err error) {
	wal, err := os.Open(litestream.NewDB(path).WALPath())
	if err != nil {
		return 0, ignoreNoFile(err)
	}
	defer wal.Close()
	frames, err := litestream.NewWALReader(wal, quiet)
	if err != nil {
		return 0, ignoreEnd(err)
	}
	data := make([]byte, frames.PageSize())
	for {
		_, commit, err := frames.ReadFrame(context.Background(), data)
		if errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return 0, err
		}
		if commit > 0 && frames.Offset() >= s.end {
			n++
		}
	}
}

// Adopt makes the database at path, which has exactly the position p and no WAL, a copy that
// a [Follower] continues.
func (p Position) Adopt(path string) error {
	if err := os.RemoveAll(metaPath(path)); err != nil {
		return err
	}
	if err := writeRecord(path, record{Replica: p.Replica, Term: p.Term, Nonce: p.Nonce, Applied: p.TXID}); err != nil {
		return err
	}
	return litestream.WriteTXIDFile(path, p.TXID)
}

// Empty reports whether no term of a replica has begun.
func Empty(ctx context.Context, cfg *Config) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	at, err := cfg.location(ctx)
	if err != nil {
		return false, err
	}
	t, err := newestTerm(ctx, at)
	return err == nil && t.none(), err
}
