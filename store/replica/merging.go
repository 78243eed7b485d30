package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/superfly/ltx"
)

// mergeSize is the most bytes of objects that are merged into one.
const mergeSize = 8 << 20

// mergingClient is the client of a follower. It lists consecutive small objects of
// level 0 as one: Litestream flushes the copy to disk twice for each object, and a
// primary that acknowledges after the upload makes 40 a second. It belongs to the
// goroutine that follows.
type mergingClient struct {
	*checkedClient
	// opening is called before the content of an object is returned, with its first
	// and its last transaction.
	opening func(first, last ltx.TXID) error
	merged  map[ltx.TXID][]*ltx.FileInfo // by their last transaction, of the last listing
}

func newMergingClient(client *checkedClient, opening func(first, last ltx.TXID) error) *mergingClient {
	return &mergingClient{checkedClient: client, opening: opening}
}

// LTXFiles implements [litestream.ReplicaClient]. It does not wait for longer than
// stallTimeout, since the client of S3 waits for a response for ever.
func (c *mergingClient) LTXFiles(ctx context.Context, level int, seek ltx.TXID, useMetadata bool) (ltx.FileIterator, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stallTimeout, fmt.Errorf("the replica did not list its objects within %s", stallTimeout))
	defer cancel()
	files, err := c.checkedClient.LTXFiles(ctx, level, seek, useMetadata)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil || level != 0 {
		return files, err
	}
	all, err := ltx.SliceFileIterator(files)
	if err != nil {
		return nil, err
	}
	return ltx.NewFileInfoSliceIterator(c.merge(all)), nil
}

// merge returns files with one in the place of those that are merged.
func (c *mergingClient) merge(files []*ltx.FileInfo) []*ltx.FileInfo {
	c.merged = make(map[ltx.TXID][]*ltx.FileInfo)
	var merged []*ltx.FileInfo
	for len(files) > 0 {
		one, n := *files[0], 1
		for n < len(files) && max(files[0].Size, files[n].Size) <= readAheadSize &&
			one.Size+files[n].Size <= mergeSize && one.MaxTXID+1 == files[n].MinTXID {
			one.MaxTXID, one.CreatedAt, one.Size = files[n].MaxTXID, files[n].CreatedAt, one.Size+files[n].Size
			n++
		}
		if n > 1 {
			c.merged[one.MaxTXID] = files[:n]
		}
		merged = append(merged, &one)
		files = files[n:]
	}
	return merged
}

// OpenLTXFile implements [litestream.ReplicaClient].
func (c *mergingClient) OpenLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, offset, size int64) (content io.ReadCloser, err error) {
	if files := c.merged[maxTXID]; level == 0 && len(files) > 0 && files[0].MinTXID == minTXID {
		content, err = c.openMerged(ctx, files)
	} else {
		content, err = c.checkedClient.OpenLTXFile(ctx, level, minTXID, maxTXID, offset, size)
	}
	if err != nil {
		return nil, err
	}
	if err := c.opening(minTXID, maxTXID); err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return content, nil
}

// openMerged returns the content of one object that has the changes of files. It
// reads several at a time.
func (c *mergingClient) openMerged(ctx context.Context, files []*ltx.FileInfo) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	small := newPrefetch(ctx, c.ReplicaClient, files)
	sources := make([]io.Reader, len(files))
	for i, f := range files {
		data, _, err := small.next(ctx, i)
		if err == nil {
			err = decodeObject(f, bytes.NewReader(data), noSink)
		}
		if err != nil {
			c.noteDamage(err)
			return nil, err
		}
		sources[i] = bytes.NewReader(data)
	}
	var content bytes.Buffer
	merging, err := ltx.NewCompactor(&content, sources)
	if err != nil {
		return nil, err
	}
	merging.HeaderFlags = ltx.HeaderFlagNoChecksum // as Litestream's own objects
	if err := merging.Compact(ctx); err != nil {
		return nil, err
	}
	return io.NopCloser(&content), nil
}
