package replica

import (
	"context"
	"io"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// fencedClient is a client that changes nothing in the replica while fenced
// reports true. It checks immediately before every request that writes or
// deletes, no matter who makes it: Litestream's own compaction and retention run on
// goroutines of their own, and would go on in a process that was stopped while
// another service took over the lease.
//
// A request that the kernel had accepted before the process was stopped cannot
// be taken back.
type fencedClient struct {
	litestream.ReplicaClient
	fenced func() bool
}

// WriteLTXFile implements [litestream.ReplicaClient].
func (c *fencedClient) WriteLTXFile(ctx context.Context, level int, minTXID, maxTXID ltx.TXID, r io.Reader) (*ltx.FileInfo, error) {
	if c.fenced() {
		return nil, ErrLeaseExpired
	}
	return c.ReplicaClient.WriteLTXFile(ctx, level, minTXID, maxTXID, &fencedReader{r, c.fenced})
}

// DeleteLTXFiles implements [litestream.ReplicaClient].
func (c *fencedClient) DeleteLTXFiles(ctx context.Context, files []*ltx.FileInfo) error {
	if c.fenced() {
		return ErrLeaseExpired
	}
	return c.ReplicaClient.DeleteLTXFiles(ctx, files)
}

// DeleteAll implements [litestream.ReplicaClient].
func (c *fencedClient) DeleteAll(ctx context.Context) error {
	if c.fenced() {
		return ErrLeaseExpired
	}
	return c.ReplicaClient.DeleteAll(ctx)
}

// fencedReader is the content of a file that is being written. It fails as soon
// as the lease has expired, so that the file is never completed.
type fencedReader struct {
	io.Reader
	fenced func() bool
}

func (r *fencedReader) Read(p []byte) (int, error) {
	if r.fenced() {
		return 0, ErrLeaseExpired
	}
	n, err := r.Reader.Read(p)
	if r.fenced() {
		return 0, ErrLeaseExpired
	}
	return n, err
}

// Close closes the content, if it can be closed: a client may do so to end the
// goroutine that produces it.
func (r *fencedReader) Close() error {
	if c, ok := r.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
