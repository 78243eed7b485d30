package replica

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
	"service/internal/durable"
	"service/test/harness"
)

// source is a snapshot as Litestream writes it: a header, followed by much data.
type source struct {
	io.Reader
	closed chan struct{}
}

func (s source) Close() error {
	close(s.closed)
	return nil
}

// While a bucket accepts nothing of a snapshot, the database is still read to the end,
// because no checkpoint can run before.
func TestSlowBucket(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	r := openReplicated(t, dir, b.config(t, dir))
	r.await("up to date", upToDate)
	c, ok := r.current().replica.Client.(*spoolClient)
	if !ok {
		t.Fatal("the snapshot is uploaded directly, want a spool")
	}

	ctx, cancel := context.WithCancel(context.Background())
	delay := func(*http.Request) { <-ctx.Done() }
	b.delay.Store(&delay)
	header, err := (&ltx.Header{
		Version: ltx.Version, Flags: ltx.HeaderFlagNoChecksum, PageSize: 4096, Commit: 1,
		MinTXID: 1, MaxTXID: 7, Timestamp: time.Now().UnixMilli(),
	}).MarshalBinary()
	must(t, err)
	const size = 64 << 20 // more than the S3 client buffers
	copied := source{io.MultiReader(bytes.NewReader(header), io.LimitReader(zeros{}, size)), make(chan struct{})}
	sent := make(chan error, 1)
	go func() {
		_, err := c.WriteLTXFile(ctx, litestream.SnapshotLevel, 1, 7, copied)
		sent <- err
	}()
	select {
	case <-copied.closed:
	case <-time.After(harness.Timeout()):
		t.Error("reading the database waits for the bucket")
	}
	cancel()
	if err := <-sent; err == nil {
		t.Error("got no error, want one")
	}
	b.delay.Store(nil)
	left, err := filepath.Glob(filepath.Join(metaPath(filepath.Join(dir, "service.db")), "*"+durable.TempSuffix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("got files %v, %v, want none", left, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
