package store

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/internal/durable"
)

// spooled is a replica whose copies of the whole database are written to the
// disk first, and sent from there. While Litestream makes such a copy the
// write-ahead log cannot be shortened: so that is for as long as the disk takes,
// and not the replica. Where there is little room they are sent as they are made.
type spooled struct {
	litestream.ReplicaClient
	path string // of the database, beside which the copy is written
}

// WriteLTXFile implements [litestream.ReplicaClient].
func (c *spooled) WriteLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, r io.Reader) (*ltx.FileInfo, error) {
	if level != litestream.SnapshotLevel || !c.room() {
		return c.ReplicaClient.WriteLTXFile(ctx, level, minTXID, maxTXID, r)
	}
	f, err := durable.CreateTemp(filepath.Join(metaPath(c.path), "snapshot"))
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was read, and is no more
	// Without a name it goes when it is closed, by a crash too.
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	_, err = io.Copy(f, r)
	if closer, ok := r.(io.Closer); ok {
		err = errors.Join(err, closer.Close())
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	return c.ReplicaClient.WriteLTXFile(ctx, level, minTXID, maxTXID, f)
}

// room says whether a copy leaves at least as much free as it takes.
func (c *spooled) room() bool {
	info, err := os.Stat(c.path)
	if err != nil {
		return false
	}
	free, err := FreeDisk(metaPath(c.path))
	return err == nil && free > 2*info.Size()
}
