package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// term is the part of a replica that one data directory wrote without interruption. Its
// files have their own prefix, to which no other service writes. So a replaced service that
// does not know it yet cannot change the files that its successor restores from.
//
// The current term is the one with the highest number. It continues its parent: the parent's
// files up to ParentTXID belong to it, and later files of the parent do not.
//
// The zero term is none: the replica is empty.
type term struct {
	Number int64 `json:"term"`   // at least 1
	Parent int64 `json:"parent"` // 0 for none
	// ParentTXID is the last transaction that the term has in common with its parent, or
	// 0.
	ParentTXID ltx.TXID `json:"parent_txid"`
	// Snapshot is set if the term begins with a snapshot of the whole database instead of
	// the parent's files, because it was not proven that the database continues them.
	Snapshot bool `json:"snapshot"`
	// Complete is set if the newest state can be restored from the term's own files. The
	// parent is then needed only for older states.
	Complete bool      `json:"complete"`
	Began    time.Time `json:"began"` // when the term was claimed, by the clock of the service
	Nonce    string    `json:"nonce"` // random; distinguishes terms with the same number in two buckets
}

// none reports whether t is no term.
func (t term) none() bool { return t.Number == 0 }

// termName is the name of the object with the record of a term, under its prefix.
const termName = "term.json"

// errTermTaken means that another service has begun a term with this number.
var errTermTaken = errors.New("another service has begun a term of the replica at the same time")

// errTermEnded means that another service has begun a later term.
var errTermEnded = errors.New("another service has begun a later term in this replica: " +
	"one service at a time may write to it, and a restore uses the later term")

// ErrUnreleased means that the replica has files that an unreleased version wrote.
var ErrUnreleased = errors.New("the replica has files of an unreleased version, which wrote no terms, and this binary cannot read them: " +
	"use the binary that wrote them, or another path")

// newestTerm returns the current term, or none if none has begun.
func newestTerm(ctx context.Context, at location) (term, error) { return termAt(ctx, at, noTime) }

// errTermPath means that the path of a replica is the path of one of its terms. The term can be
// restored from it.
var errTermPath = errors.New("the path is that of a term of a replica; use the path of the replica")

// checkPlain returns an error if a replica without a term contains files: errTermPath, or
// else [ErrUnreleased].
func checkPlain(ctx context.Context, at location) error {
	switch files, ofTerm, err := at.plain(ctx); {
	case err != nil:
		return fmt.Errorf("list the replica's files: %w", err)
	case !files:
		return nil
	case ofTerm:
		return errTermPath
	}
	return ErrUnreleased
}

// termAt returns the term that was current at a time, or none. A zero time means now.
func termAt(ctx context.Context, at location, when time.Time) (term, error) {
	numbers, err := at.terms(ctx)
	if err != nil {
		return term{}, fmt.Errorf("list the replica's terms: %w", err)
	}
	for _, number := range slices.Backward(numbers) {
		// An interrupted removal may have left a term without its record.
		t, err := readTerm(ctx, at, number)
		if !errors.Is(err, errNoTerm) && (err != nil || when.IsZero() || t.Began.Before(when)) {
			return t, err
		}
	}
	if len(numbers) > 0 && !when.IsZero() {
		return term{}, nil
	}
	return term{}, checkPlain(ctx, at)
}

// readTerm reads and checks the record of a term.
func readTerm(ctx context.Context, at location, number int64) (term, error) {
	if number == 0 {
		return term{}, errNoTerm
	}
	text, err := at.read(ctx, number, termName)
	var t term
	switch {
	case err == nil && text == nil:
		err = errNoTerm
	case err == nil:
		err = json.Unmarshal(text, &t)
	}
	if err != nil {
		return term{}, fmt.Errorf("read %s/%s of the replica: %w", termPath("", number), termName, damagedRecord(number, err))
	}
	if t.Number != number || t.Parent < 0 || t.Parent >= number {
		return term{}, fmt.Errorf("the object %s/%s of the replica is damaged: it is for term %d with parent %d",
			termPath("", number), termName, t.Number, t.Parent)
	}
	return t, nil
}

// claim creates a term. The error is errTermTaken if a term with its number exists.
func claim(ctx context.Context, at location, t term) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return at.claim(ctx, t.Number, append(text, '\n'))
}

// writeTerm replaces the record of a term of this service.
func writeTerm(ctx context.Context, at location, t term) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return at.write(ctx, t.Number, termName, append(text, '\n'))
}

// openTerm returns a client of a term's files. With history, it includes the files of the
// parent that only older states need.
func openTerm(ctx context.Context, at location, t term, history bool) (*termClient, error) {
	own, err := at.client(t.Number)
	if err != nil {
		return nil, err
	}
	c := &termClient{ReplicaClient: own, number: t.Number}
	if t.Parent == 0 || t.Complete && !history {
		return c, nil
	}
	before, err := readTerm(ctx, at, t.Parent)
	if err == nil {
		c.parent, err = openTerm(ctx, at, before, history)
	}
	if errors.Is(err, errNoTerm) && t.Complete {
		return c, nil // retention has deleted the parent or one of its ancestors
	} else if err != nil {
		return nil, err
	}
	c.upTo = t.ParentTXID
	return c, nil
}

// ignoreNoTerm returns err unless it is errNoTerm.
func ignoreNoTerm(err error) error {
	if errors.Is(err, errNoTerm) {
		return nil
	}
	return err
}

// position returns the newest transaction that can be restored from a client's files, and
// the newest transaction in any file. Both are 0 if there are no files.
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
