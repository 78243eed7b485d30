package replica

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// termClient is a client of the files that belong to a term: its own files, and those of its
// parent up to the transaction that the term continues. It writes and deletes only the
// term's own files.
type termClient struct {
	litestream.ReplicaClient             // of the term's own files
	number                   int64       // of the term
	parent                   *termClient // nil for none
	upTo                     ltx.TXID    // the last transaction of the parent that belongs to the term
}

// Init implements [litestream.ReplicaClient].
func (c *termClient) Init(ctx context.Context) error {
	err := c.ReplicaClient.Init(ctx)
	if err == nil && c.parent != nil {
		err = c.parent.Init(ctx)
	}
	return err
}

// SetLogger implements [litestream.ReplicaClient]. It does nothing, because the clients are
// shared and return everything they log as errors.
func (c *termClient) SetLogger(*slog.Logger) {}

// LTXFiles implements [litestream.ReplicaClient]. A file that is in the term and in its
// parent was copied, and is listed once.
func (c *termClient) LTXFiles(ctx context.Context, level int, seek ltx.TXID, useMetadata bool) (ltx.FileIterator, error) {
	own, err := c.ReplicaClient.LTXFiles(ctx, level, seek, useMetadata)
	if err != nil || c.parent == nil || seek > c.upTo {
		return own, err
	}
	files, err := ltx.SliceFileIterator(own)
	if err != nil {
		return nil, err
	}
	inherited, err := c.parent.LTXFiles(ctx, level, seek, useMetadata)
	if err != nil {
		return nil, err
	}
	copied := make(map[[2]ltx.TXID]bool, len(files))
	for _, f := range files {
		copied[[2]ltx.TXID{f.MinTXID, f.MaxTXID}] = true
	}
	for inherited.Next() {
		f := inherited.Item()
		if f.MaxTXID <= c.upTo && !copied[[2]ltx.TXID{f.MinTXID, f.MaxTXID}] {
			files = append(files, f)
		}
	}
	if err := inherited.Close(); err != nil {
		return nil, err
	}
	return ltx.NewFileInfoSliceIterator(files), nil
}

// OpenLTXFile implements [litestream.ReplicaClient].
func (c *termClient) OpenLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, offset, size int64) (io.ReadCloser, error) {
	f, err := c.ReplicaClient.OpenLTXFile(ctx, level, minTXID, maxTXID, offset, size)
	if errors.Is(err, os.ErrNotExist) && c.parent != nil && maxTXID <= c.upTo {
		return c.parent.OpenLTXFile(ctx, level, minTXID, maxTXID, offset, size)
	}
	return f, err
}

// source returns the number of the term that contains a file. The error wraps
// [os.ErrNotExist] if no term does.
func (c *termClient) source(ctx context.Context, f *ltx.FileInfo) (int64, error) {
	for {
		r, err := c.ReplicaClient.OpenLTXFile(ctx, f.Level, f.MinTXID, f.MaxTXID, 0, ltx.HeaderSize)
		if err == nil {
			return c.number, r.Close()
		}
		if !errors.Is(err, os.ErrNotExist) || c.parent == nil || f.MaxTXID > c.upTo {
			return 0, err
		}
		c = c.parent
	}
}
