package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/webhook"
)

// maxGone is how often a restore plans again because an object was deleted.
const maxGone = 10

// intactClient is a client that lists no object that is known to be damaged.
type intactClient struct {
	litestream.ReplicaClient
	damaged []*damagedError
	// layers are the terms of the replica, the newest first: a damaged object of
	// one may be intact in an earlier one.
	layers []*termLayer
	found  []string // what was damaged, in words
	gone   int      // how often an object was listed, and could not be opened
	// newest is the newest transaction in any listing, also of a damaged object.
	newest ltx.TXID
	// listedTimes has the listings give the times of the objects' uploads, which
	// need no request for each object, even when exact ones are asked for.
	listedTimes bool
}

// LTXFiles implements [litestream.ReplicaClient]. An object that was replaced since
// it was found damaged is listed when its size differs.
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

// newIntactClient returns a client of a replica. The client must not be used
// otherwise.
func newIntactClient(client litestream.ReplicaClient) *intactClient {
	c := &intactClient{ReplicaClient: client}
	t, _ := client.(*termClient)
	for ; t != nil; t = t.parent {
		l := &termLayer{ReplicaClient: t.ReplicaClient, left: map[string]bool{}}
		t.ReplicaClient = l
		c.layers = append(c.layers, l)
	}
	return c
}

// noteDamage leaves the object that err is about out of further listings, and
// reports whether err says that one is damaged. A copy of it in an earlier term is
// listed instead.
func (c *intactClient) noteDamage(err error) bool {
	var damaged *damagedError
	if !errors.As(err, &damaged) {
		return false
	}
	if text := damaged.Error(); !slices.Contains(c.found, text) {
		c.found = append(c.found, text)
	}
	for _, l := range c.layers {
		// It is unknown which term the object was read from. The next read of it
		// is from one of those that remain.
		if l.leaveOut(damaged.info) {
			return true
		}
	}
	c.damaged = append(c.damaged, damaged)
	return true
}

// termLayer is the own objects of a term, without those that are left out.
type termLayer struct {
	litestream.ReplicaClient

	mu   sync.Mutex
	left map[string]bool // by objectName
}

// leaveOut leaves an object out, and reports whether it was not before.
func (l *termLayer) leaveOut(f *ltx.FileInfo) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.left[objectName(f)]
	l.left[objectName(f)] = true
	return !known
}

func (l *termLayer) isLeftOut(f *ltx.FileInfo) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left[objectName(f)]
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
	return ltx.NewFileInfoSliceIterator(slices.DeleteFunc(all, l.isLeftOut)), nil
}

// OpenLTXFile implements [litestream.ReplicaClient].
func (l *termLayer) OpenLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, offset, size int64) (io.ReadCloser, error) {
	if l.isLeftOut(&ltx.FileInfo{Level: level, MinTXID: minTXID, MaxTXID: maxTXID}) {
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

// longest returns the objects that make the newest state that intact objects can
// make. The error wraps [litestream.ErrTxNotAvailable] when there is none.
func (c *intactClient) longest(ctx context.Context) ([]*ltx.FileInfo, error) {
	c.listedTimes = true
	defer func() { c.listedTimes = false }()
	// Without a time a plan fails when there is a gap behind it.
	future := time.Now().AddDate(100, 0, 0)
	return litestream.CalcRestorePlan(ctx, c, 0, future, slog.New(slog.DiscardHandler))
}

// restoreFrom writes the newest state of a replica, or unless at is zero the newest
// before at, to a new file at path. When an object is damaged it restores the same
// state from others, and returns what it has left out. The error wraps
// [litestream.ErrTxNotAvailable] when there is no such state; an error for people
// names the damaged objects, and the command that restores the newest state for
// which there are intact ones.
func restoreFrom(ctx context.Context, client litestream.ReplicaClient, path string, at time.Time) (newest *ltx.FileInfo, damaged []string, err error) {
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
			return nil, nil, err // the replica is empty, or has nothing before at
		case err != nil || plan[len(plan)-1].MaxTXID < target:
			return nil, nil, c.unreachable(ctx, target)
		}
		err = writePlan(ctx, c, plan, path)
		if err == nil {
			return plan[len(plan)-1], c.found, nil
		}
		if err := c.leaveOut(ctx, err); err != nil {
			return nil, nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, nil, err
		}
	}
}

// planTo returns the objects that make the state with the transaction target, or
// when it is 0 the newest before at.
func (c *intactClient) planTo(ctx context.Context, target ltx.TXID, at time.Time) ([]*ltx.FileInfo, error) {
	if at.IsZero() {
		return c.longest(ctx)
	}
	if target != 0 {
		at = time.Time{}
	}
	// With at this may take long: it reads the metadata of every object.
	return litestream.CalcRestorePlan(ctx, c, target, at, slog.New(slog.DiscardHandler))
}

// leaveOut has the next plan do without the object that err is about. It returns
// err when it is about none.
func (c *intactClient) leaveOut(ctx context.Context, err error) error {
	if c.noteDamage(err) {
		return nil
	}
	var gone *goneError
	if !errors.As(err, &gone) {
		return err
	}
	if c.gone++; c.gone > maxGone {
		return err
	}
	// A service that runs deletes an object some time after it was merged into
	// another.
	listed, err := c.ReplicaClient.LTXFiles(ctx, gone.info.Level, gone.info.MinTXID, false)
	if err != nil {
		return err
	}
	for listed.Next() {
		if f := listed.Item(); f.MinTXID == gone.info.MinTXID && f.MaxTXID == gone.info.MaxTXID {
			c.noteDamage(&damagedError{gone.info, "it is listed, and does not exist"})
		}
	}
	return errors.Join(listed.Err(), listed.Close())
}

// unreachableError says that no intact objects make a state.
type unreachableError struct{ error }

func unreachablef(format string, args ...any) *unreachableError {
	return &unreachableError{fmt.Errorf(format, args...)}
}

// unreachable returns an error that says why no intact objects make the state with
// the transaction target, and what can be restored instead.
func (c *intactClient) unreachable(ctx context.Context, target ltx.TXID) *unreachableError {
	why := fmt.Sprintf("objects are missing from the replica, which has transactions up to %s", target)
	if len(c.found) > 0 {
		why = strings.Join(c.found, "; ") + "; no intact object holds the same transactions"
	}
	last, at, err := c.newestIntact(ctx)
	if errors.Is(err, litestream.ErrTxNotAvailable) {
		return unreachablef("%s, and nothing else can be restored: use a backup (service restore --from FILE), or the data directory of the primary", why)
	} else if err != nil {
		return unreachablef("%s; what can be restored is unknown: %w", why, err)
	}
	return unreachablef("%s; the newest state that can be restored is that of %s: service restore --at %s", why, webhook.FormatTime(last), webhook.FormatTime(at))
}

// newestIntact returns the time of the newest state that intact objects can make,
// and a time shortly after it, before which it is the newest.
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

// damagedRecord says what can be done about the record of a term that cannot be
// parsed.
func damagedRecord(number int64, err error) error {
	if errors.As(err, new(*json.SyntaxError)) || errors.As(err, new(*json.UnmarshalTypeError)) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it is damaged: %w; a complete term can be restored from its own path, which ends with %s: service restore --from URL", err, termPath("", number))
	}
	return err
}
