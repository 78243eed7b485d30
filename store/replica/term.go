package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// term is one tenure of a replica: what one data directory wrote without a
// break. Its files are under a prefix of their own, into which nobody else
// writes. So a service that has been replaced, and does not know it yet, cannot
// change what its successor restores from.
//
// The current term is the one with the highest number. Its position continues
// that of its parent: the files of the parent up to ParentTXID belong to it, and
// what the parent wrote later never does.
//
// Term 0 is the replica's own path, as written by versions without terms. It has
// no record, and no parent.
type term struct {
	Number int64 `json:"term"`
	Parent int64 `json:"parent"`
	// ParentTXID is the last transaction that the term has in common with its
	// parent; 0 for none.
	ParentTXID ltx.TXID `json:"parent_txid"`
	// Snapshot is set when the term begins with a snapshot of the whole database,
	// in place of the parent's files: it could not be shown that the database
	// continues them.
	Snapshot bool `json:"snapshot"`
	// Complete is set when the newest state can be restored from the term's own
	// files. The parent is then needed for older states alone.
	Complete bool `json:"complete"`
	// Began is when the term was claimed, by the clock of the service; zero in a
	// record of an earlier version.
	Began time.Time `json:"began"`
	Nonce string    `json:"nonce"` // tells terms with the same number in two buckets apart
}

// termName is the name of the object with the record of a term, under its prefix.
const termName = "term.json"

// errTermTaken says that another service has begun a term of this number.
var errTermTaken = errors.New("another service has begun a term of the replica at the same time")

// errTermEnded says that another service has begun a later term.
var errTermEnded = errors.New("another service has begun a later term in this replica: it belongs to one service at a time, and a restore takes the later term")

// newestTerm returns the current term; term 0 when none has begun.
func newestTerm(ctx context.Context, at location) (term, error) {
	numbers, err := at.terms(ctx)
	if err != nil {
		return term{}, fmt.Errorf("list the terms of the replica: %w", err)
	}
	for _, number := range slices.Backward(numbers) {
		// A removal that was cut off may have left a term without its record.
		if t, err := readTerm(ctx, at, number); !errors.Is(err, errNoTerm) {
			return t, err
		}
	}
	return term{}, nil
}

// termAt returns the term that was the current one at a time.
func termAt(ctx context.Context, at location, when time.Time) (term, error) {
	numbers, err := at.terms(ctx)
	if err != nil {
		return term{}, fmt.Errorf("list the terms of the replica: %w", err)
	}
	for _, number := range slices.Backward(numbers) {
		if t, err := readTerm(ctx, at, number); !errors.Is(err, errNoTerm) && (err != nil || t.Began.Before(when)) {
			return t, err
		}
	}
	return term{}, nil
}

// readTerm reads the record of a term, and checks it.
func readTerm(ctx context.Context, at location, number int64) (term, error) {
	if number == 0 {
		return term{}, nil
	}
	t, err := at.readTerm(ctx, number)
	if err != nil {
		return term{}, fmt.Errorf("read %s/%s of the replica: %w", termPath("", number), termName, damagedRecord(number, err))
	}
	if t.Number != number || t.Parent < 0 || t.Parent >= number {
		return term{}, fmt.Errorf("the object %s/%s of the replica is damaged: it names term %d with parent %d", termPath("", number), termName, t.Number, t.Parent)
	}
	return t, nil
}

// openTerm returns a client of a term's files. With history it also has the
// parent's files that are needed for older states only.
func openTerm(ctx context.Context, at location, t term, history bool) (*termClient, error) {
	own, err := at.client(t.Number)
	if err != nil {
		return nil, err
	}
	c := &termClient{ReplicaClient: own, number: t.Number}
	if t.Number == 0 || t.Complete && !history {
		return c, nil
	}
	before, err := readTerm(ctx, at, t.Parent)
	if err == nil {
		c.parent, err = openTerm(ctx, at, before, history)
	}
	if errors.Is(err, errNoTerm) && t.Complete {
		return c, nil // the retention has removed the parent, or what that needs
	} else if err != nil {
		return nil, err
	}
	c.upTo = t.ParentTXID
	return c, nil
}

// ignoreNoTerm returns err unless it says that a term does not exist.
func ignoreNoTerm(err error) error {
	if errors.Is(err, errNoTerm) {
		return nil
	}
	return err
}

// position returns the newest transaction that can be restored from a client's
// files, and the newest in any of them; 0 for none.
func position(ctx context.Context, client litestream.ReplicaClient) (newest, any ltx.TXID, err error) {
	c := &intactClient{ReplicaClient: client}
	plan, err := c.longest(ctx)
	if errors.Is(err, litestream.ErrTxNotAvailable) {
		return 0, c.newest, nil
	} else if err != nil {
		return 0, 0, err
	}
	return plan[len(plan)-1].MaxTXID, c.newest, nil
}

// reaches reports whether a transaction can be restored from a client's files.
func reaches(ctx context.Context, c litestream.ReplicaClient, tx ltx.TXID) (bool, error) {
	_, err := litestream.CalcRestorePlan(ctx, c, tx, noTime, quiet)
	if errors.Is(err, litestream.ErrTxNotAvailable) {
		return false, nil
	}
	return err == nil, err
}
