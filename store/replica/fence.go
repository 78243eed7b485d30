package replica

import (
	"context"
	"io"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// fencedClient is a client that rejects changes of the replica while fenced returns true. It
// checks immediately before every write and delete request. Otherwise a process that is
// suspended while another service takes over the lease would continue to compact and prune
// when it wakes up.
//
// A request that the kernel accepted before the process was suspended cannot be undone.
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

// fencedReader is the content of a file during its upload. It fails as soon as the lease
// has expired, so that the upload never completes.
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

// Close closes the content if it is an [io.Closer]. A client may call it to end the
// goroutine that produces the content.
func (r *fencedReader) Close() error {
	if c, ok := r.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
