package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/webhook"
)

// maxReplans is how often a restore makes a new plan because an object was deleted.
const maxReplans = 10

// intactClient is a client that does not list objects that are known to be damaged.
type intactClient struct {
	litestream.ReplicaClient
	damaged []*damagedError
	// layers are the replica's terms, newest first. An object that is damaged in
	// one term may be intact in an earlier one.
	layers  []*termLayer
	found   []string // descriptions of the damaged objects
	missing int      // how often a listed object could not be opened
	// newest is the newest transaction in any listing, including damaged objects.
	newest ltx.TXID
	// listedTimes makes listings return the times of uploads, even when exact times
	// are requested: exact times need one request per object.
	listedTimes bool
}

// LTXFiles implements [litestream.ReplicaClient]. It lists a damaged object again if its
// size has changed, because it was replaced.
func (c *intactClient) LTXFiles(ctx context.Context, level int, seek ltx.TXID, useMetadata bool) (ltx.FileIterator, error) {
	files, err := c.list(ctx, level, seek, useMetadata && !c.listedTimes)
	if err != nil {
		return nil, err
	}
	return ltx.NewFileInfoSliceIterator(files), nil
}

// list returns the intact objects of a level.
func (c *intactClient) list(ctx context.Context, level int, seek ltx.TXID, useMetadata bool) (intact []*ltx.FileInfo, err error) {
	files, err := c.ReplicaClient.LTXFiles(ctx, level, seek, useMetadata)
	if err != nil {
		return nil, err
	}
	for files.Next() {
		f := *files.Item()
		c.newest = max(c.newest, f.MaxTXID)
		if !c.isDamaged(&f) {
			intact = append(intact, &f)
		}
	}
	return intact, errors.Join(files.Err(), files.Close())
}

// newIntactClient returns a client of a replica. It modifies client, which must not be
// used otherwise.
func newIntactClient(client litestream.ReplicaClient) *intactClient {
	c := &intactClient{ReplicaClient: client}
	t, _ := client.(*termClient)
	for ; t != nil; t = t.parent {
		l := &termLayer{ReplicaClient: t.ReplicaClient, excluded: map[string]bool{}}
		t.ReplicaClient = l
		c.layers = append(c.layers, l)
	}
	return c
}

// noteDamage excludes a damaged object from further listings, and lists a copy of it in
// an earlier term instead, if there is one. It reports whether err is about a damaged
// object.
func (c *intactClient) noteDamage(err error) bool {
	var damaged *damagedError
	if !errors.As(err, &damaged) {
		return false
	}
	if text := damaged.Error(); !slices.Contains(c.found, text) {
		c.found = append(c.found, text)
	}
	for _, l := range c.layers {
		// It is unknown from which term the object was read. The next read uses one
		// of the remaining terms.
		if l.exclude(damaged.info) {
			return true
		}
	}
	c.damaged = append(c.damaged, damaged)
	return true
}

// termLayer is a client of a term's own objects, without the excluded ones.
type termLayer struct {
	litestream.ReplicaClient

	mu       sync.Mutex
	excluded map[string]bool // by objectName
}

// exclude excludes an object. It returns false if the object was excluded already.
func (l *termLayer) exclude(f *ltx.FileInfo) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.excluded[objectName(f)]
	l.excluded[objectName(f)] = true
	return !known
}

func (l *termLayer) isExcluded(f *ltx.FileInfo) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.excluded[objectName(f)]
}

// LTXFiles implements [litestream.ReplicaClient].
func (l *termLayer) LTXFiles(ctx context.Context, level int, seek ltx.TXID, useMetadata bool) (ltx.FileIterator, error) {
	files, err := l.ReplicaClient.LTXFiles(ctx, level, seek, useMetadata)
	if err != nil {
		return nil, err
	}
	all, err := ltx.SliceFileIterator(files)
	if err != nil {
		return nil, err
	}
	return ltx.NewFileInfoSliceIterator(slices.DeleteFunc(all, l.isExcluded)), nil
}

// OpenLTXFile implements [litestream.ReplicaClient].
func (l *termLayer) OpenLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, offset, size int64) (io.ReadCloser, error) {
	if l.isExcluded(&ltx.FileInfo{Level: level, MinTXID: minTXID, MaxTXID: maxTXID}) {
		return nil, os.ErrNotExist
	}
	return l.ReplicaClient.OpenLTXFile(ctx, level, minTXID, maxTXID, offset, size)
}

// isDamaged reports whether an object is known to be damaged.
func (c *intactClient) isDamaged(f *ltx.FileInfo) bool {
	for _, d := range c.damaged {
		if d.info.Level == f.Level && d.info.MinTXID == f.MinTXID && d.info.MaxTXID == f.MaxTXID && d.info.Size == f.Size {
			return true
		}
	}
	return false
}

// longest returns the plan of the newest state that can be restored from intact objects.
// The error wraps [litestream.ErrTxNotAvailable] if there is none.
func (c *intactClient) longest(ctx context.Context) ([]*ltx.FileInfo, error) {
	c.listedTimes = true
	defer func() { c.listedTimes = false }()
	// Without a time, a plan fails if a gap follows it.
	future := time.Now().AddDate(100, 0, 0)
	return litestream.CalcRestorePlan(ctx, c, 0, future, quiet)
}

// restoreFrom writes the newest state of a replica to a new file at path, or the newest
// state before at unless at is zero. If objects are damaged, it restores the same state
// from others and describes the damaged ones. The error wraps
// [litestream.ErrTxNotAvailable] if there is no such state. If the state needs damaged
// objects, the error names them and the command that restores the newest intact state.
func restoreFrom(
	ctx context.Context, client litestream.ReplicaClient, path string, at time.Time,
) (newest *ltx.FileInfo, damaged []string, err error) {
	c := newIntactClient(client)
	var target ltx.TXID // the newest transaction of the state; 0 until it is known
	for {
		plan, err := c.planTo(ctx, target, at)
		if err != nil && !errors.Is(err, litestream.ErrTxNotAvailable) {
			return nil, nil, err
		}
		if target == 0 && at.IsZero() {
			target = c.newest
		} else if target == 0 && len(plan) > 0 {
			target = plan[len(plan)-1].MaxTXID
		}
		switch {
		case target == 0:
			return nil, nil, err // the replica is empty or contains nothing before at
		case err != nil || plan[len(plan)-1].MaxTXID < target:
			return nil, nil, c.unreachable(ctx, target)
		}
		err = writePlan(ctx, c, plan, path)
		if err == nil {
			return plan[len(plan)-1], c.found, nil
		}
		if err := c.exclude(ctx, err); err != nil {
			return nil, nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, nil, err
		}
	}
}

// planTo returns the plan of the state at the transaction target, or of the newest state
// before at if target is 0.
func (c *intactClient) planTo(ctx context.Context, target ltx.TXID, at time.Time) ([]*ltx.FileInfo, error) {
	if at.IsZero() {
		return c.longest(ctx)
	}
	if target != 0 {
		at = time.Time{}
	}
	// With a time this can take long, because it reads the metadata of every object.
	return litestream.CalcRestorePlan(ctx, c, target, at, quiet)
}

// exclude excludes the object that err is about from the next plan. It returns err if
// err is not about an object.
func (c *intactClient) exclude(ctx context.Context, err error) error {
	if c.noteDamage(err) {
		return nil
	}
	var missing *missingError
	if !errors.As(err, &missing) {
		return err
	}
	if c.missing++; c.missing > maxReplans {
		return err
	}
	// A running service deletes an object some time after a compaction merged it.
	listed, err := c.ReplicaClient.LTXFiles(ctx, missing.info.Level, missing.info.MinTXID, false)
	if err != nil {
		return err
	}
	for listed.Next() {
		if f := listed.Item(); f.MinTXID == missing.info.MinTXID && f.MaxTXID == missing.info.MaxTXID {
			c.noteDamage(&damagedError{missing.info, "it is listed but does not exist"})
		}
	}
	return errors.Join(listed.Err(), listed.Close())
}

// unreachableError means that a state cannot be restored from intact objects.
type unreachableError struct{ error }

func unreachablef(format string, args ...any) *unreachableError {
	return &unreachableError{fmt.Errorf(format, args...)}
}

// unreachable returns an error that says why the state at the transaction target cannot
// be restored, and what can be restored instead.
func (c *intactClient) unreachable(ctx context.Context, target ltx.TXID) *unreachableError {
	why := fmt.Sprintf("objects are missing from the replica, which has transactions up to %s", target)
	if len(c.found) > 0 {
		why = strings.Join(c.found, "; ") + "; no intact object has the same transactions"
	}
	last, at, err := c.newestIntact(ctx)
	if errors.Is(err, litestream.ErrTxNotAvailable) {
		return unreachablef("%s, and no other state can be restored: "+
			"use a backup (service restore --from FILE) or the data directory of the primary", why)
	} else if err != nil {
		return unreachablef("%s; failed to find out what can be restored: %w", why, err)
	}
	return unreachablef("%s; the newest state that can be restored is from %s: service restore --at %s",
		why, webhook.FormatTime(last), webhook.FormatTime(at))
}

// newestIntact returns the time of the newest state that can be restored from intact
// objects, and the argument for --at that selects it.
func (c *intactClient) newestIntact(ctx context.Context) (last, at time.Time, err error) {
	plan, err := c.longest(ctx)
	if err != nil {
		return last, at, err
	}
	header, err := litestream.FetchLTXHeader(ctx, c.ReplicaClient, plan[len(plan)-1])
	if err != nil {
		return last, at, err
	}
	at = time.UnixMilli(header.Timestamp + 1)
	if plan, err = c.planTo(ctx, 0, at); err != nil {
		return last, at, err
	}
	return plan[len(plan)-1].CreatedAt, at, nil
}

// damagedRecord returns err. If err means that the record of a term cannot be parsed, it
// adds advice.
func damagedRecord(number int64, err error) error {
	if errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it is damaged: %w; a complete term can be restored from its own path, which ends with %s: "+
			"service restore --from URL", err, termPath("", number))
	}
	return err
}
