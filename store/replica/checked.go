package replica

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// checkedClient is a client that checks an object before it returns its content. Unless
// listsDamaged is set, it does not list objects that it has found damaged.
//
// Without the check, Litestream would apply a part of the pages of a damaged object to a
// copy, because it applies an object while it reads it. Its compaction would panic on an
// object that ends right after its pages.
type checkedClient struct {
	litestream.ReplicaClient
	listsDamaged bool
	found        func(error) // called once per damaged object

	mu     sync.Mutex
	intact intactClient
	listed map[int][]*ltx.FileInfo // the last listing of each level
}

func newCheckedClient(client litestream.ReplicaClient, found func(error)) *checkedClient {
	return &checkedClient{ReplicaClient: client, found: found, intact: intactClient{ReplicaClient: client}, listed: map[int][]*ltx.FileInfo{}}
}

// LTXFiles implements [litestream.ReplicaClient].
func (c *checkedClient) LTXFiles(ctx context.Context, level int, seek ltx.TXID, useMetadata bool) (ltx.FileIterator, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	files, err := c.intact.list(ctx, level, seek, useMetadata)
	if err != nil {
		return nil, err
	}
	c.listed[level] = files
	return ltx.NewFileInfoSliceIterator(slices.Clone(files)), nil
}

// OpenLTXFile implements [litestream.ReplicaClient]. The error is a *damagedError if
// the object is damaged.
func (c *checkedClient) OpenLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, offset, size int64) (io.ReadCloser, error) {
	info := c.find(level, minTXID, maxTXID)
	if info == nil || offset != 0 || size != 0 { // never for a follower
		return c.ReplicaClient.OpenLTXFile(ctx, level, minTXID, maxTXID, offset, size)
	}
	var content bytes.Buffer
	r := newObjectReader(ctx, c.ReplicaClient, info)
	defer r.Close()
	var source io.Reader = r
	small := info.Size <= readAheadSize
	if small {
		source = io.TeeReader(r, &content)
	}
	if err := decodeObject(info, source, noSink); err != nil {
		c.noteDamage(err)
		return nil, err
	}
	if small {
		return io.NopCloser(&content), nil
	}
	return c.ReplicaClient.OpenLTXFile(ctx, level, minTXID, maxTXID, 0, 0)
}

// find returns an object as it was last listed, or nil.
func (c *checkedClient) find(level int, minTXID, maxTXID ltx.TXID) *ltx.FileInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.listed[level] {
		if f.MinTXID == minTXID && f.MaxTXID == maxTXID {
			return f
		}
	}
	return nil
}

// noteDamage reports a damaged object and excludes it from further listings.
func (c *checkedClient) noteDamage(err error) {
	var damaged *damagedError
	if !errors.As(err, &damaged) {
		return
	}
	c.mu.Lock()
	known := slices.Contains(c.intact.found, damaged.Error())
	if !c.listsDamaged {
		c.intact.noteDamage(err)
	} else if !known {
		c.intact.found = append(c.intact.found, damaged.Error())
	}
	c.mu.Unlock()
	if !known {
		c.found(err)
	}
}

// hasDamage reports whether an object was found damaged.
func (c *checkedClient) hasDamage() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.intact.damaged) > 0
}

// continues returns nil if the intact objects lead to a newer state than transaction at, and
// otherwise an *unreachableError. target is the newest transaction of the replica.
func (c *checkedClient) continues(ctx context.Context, at, target ltx.TXID) error {
	c.mu.Lock()
	intact := intactClient{ReplicaClient: c.ReplicaClient, damaged: c.intact.damaged, found: c.intact.found}
	c.mu.Unlock()
	switch plan, err := intact.longest(ctx); {
	case err != nil && !errors.Is(err, litestream.ErrTxNotAvailable):
		return err
	case err == nil && plan[len(plan)-1].MaxTXID > at:
		return nil
	}
	return intact.unreachable(ctx, target)
}
