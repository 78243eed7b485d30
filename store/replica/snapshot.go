package replica

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/internal/durable"
)

// spoolClient is a client that writes snapshots to the local disk before it uploads them. No
// checkpoint can run while Litestream reads the database for a snapshot; with the spool,
// this time depends on the local disk and not on the upload. If the disk has little free
// space, snapshots are uploaded directly.
type spoolClient struct {
	litestream.ReplicaClient
	path string // of the database; the spool file is in Litestream's directory
}

// WriteLTXFile implements [litestream.ReplicaClient].
func (c *spoolClient) WriteLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, r io.Reader) (*ltx.FileInfo, error) {
	if level != litestream.SnapshotLevel || !c.hasSpace() {
		return c.ReplicaClient.WriteLTXFile(ctx, level, minTXID, maxTXID, r)
	}
	f, err := durable.CreateTemp(filepath.Join(metaPath(c.path), "snapshot"))
	if err != nil {
		return nil, err
	}
	defer f.Close() // its error does not matter, since the file is deleted
	// The disk space of a deleted file is freed when the file is closed, even by a crash.
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

// hasSpace reports whether the disk has free space for more than two copies of the
// database.
func (c *spoolClient) hasSpace() bool {
	info, err := os.Stat(c.path)
	if err != nil {
		return false
	}
	var fs syscall.Statfs_t
	err = syscall.Statfs(metaPath(c.path), &fs)
	return err == nil && int64(fs.Bavail)*int64(fs.Bsize) > 2*info.Size()
}
