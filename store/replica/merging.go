package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/superfly/ltx"
)

// mergeSize is the maximum size in bytes of an object that is merged from others.
const mergeSize = 8 << 20

// mergingClient is the client of a follower. It presents consecutive small objects of
// level 0 as one, because Litestream fsyncs the copy twice per object, and a primary
// that acknowledges after uploads creates 40 objects per second. The following goroutine
// owns it.
type mergingClient struct {
	*checkedClient
	// onOpen is called with the first and last transaction of an object before its
	// content is returned, and onClose after that content was closed.
	onOpen  func(first, last ltx.TXID) error
	onClose func()
	// onList is called after the objects of level 0 were listed, with the time before the
	// listing and whether there were none.
	onList func(asked time.Time, none bool)
	merged map[ltx.TXID][]*ltx.FileInfo // merged objects of the last listing, by last transaction
}

func newMergingClient(
	client *checkedClient, onOpen func(first, last ltx.TXID) error, onClose func(),
	onList func(asked time.Time, none bool),
) *mergingClient {
	return &mergingClient{checkedClient: client, onOpen: onOpen, onClose: onClose, onList: onList}
}

// openedObject calls onClose after it was closed.
type openedObject struct {
	io.ReadCloser
	onClose func()
}

func (o openedObject) Close() error {
	defer o.onClose()
	return o.ReadCloser.Close()
}

// LTXFiles implements [litestream.ReplicaClient]. Its timeout is stallTimeout, because the
// S3 client has none.
func (c *mergingClient) LTXFiles(ctx context.Context, level int, seek ltx.TXID, useMetadata bool) (ltx.FileIterator, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stallTimeout, fmt.Errorf("the replica did not list its objects within %s", stallTimeout))
	defer cancel()
	asked := time.Now()
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
	c.onList(asked, len(all) == 0)
	return ltx.NewFileInfoSliceIterator(c.merge(all)), nil
}

// merge returns files, with each run of consecutive small ones replaced by one.
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
func (c *mergingClient) OpenLTXFile(
	ctx context.Context, level int, minTXID, maxTXID ltx.TXID, offset, size int64,
) (content io.ReadCloser, err error) {
	if files := c.merged[maxTXID]; level == 0 && len(files) > 0 && files[0].MinTXID == minTXID {
		content, err = c.openMerged(ctx, files)
	} else {
		content, err = c.checkedClient.OpenLTXFile(ctx, level, minTXID, maxTXID, offset, size)
	}
	if err != nil {
		return nil, err
	}
	if err := c.onOpen(minTXID, maxTXID); err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return openedObject{content, c.onClose}, nil
}

// openMerged returns the content of an object with the changes of all files. It reads
// several files concurrently.
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
	merging.HeaderFlags = ltx.HeaderFlagNoChecksum // like Litestream's own objects
	if err := merging.Compact(ctx); err != nil {
		return nil, err
	}
	return io.NopCloser(&content), nil
}
