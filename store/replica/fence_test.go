package replica

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/superfly/ltx"
)

// After the lease expires while Litestream is open, no compaction, snapshot or deletion
// changes the bucket.
func TestFencedReplica(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	r := openReplicated(t, dir, b.config(t, dir))
	var expired atomic.Bool
	r.Fence(func() bool { return !expired.Load() })
	r.await("up to date", upToDate)
	s := r.current()
	for range 3 {
		r.insert(100)
		r.awaitSent(s)
	}
	var changes atomic.Int64
	count := func(req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			changes.Add(1)
		}
	}
	b.delay.Store(&count)
	ctx := context.Background()
	work := []struct {
		name string
		do   func() error
	}{
		{"compaction", func() error { _, err := s.db.Compact(ctx, 1); return err }},
		{"a snapshot", func() error { _, err := s.db.Snapshot(ctx); return err }},
		{"a deletion", func() error {
			files, err := ownFiles(ctx, s, 0)
			if err != nil {
				return err
			}
			return s.replica.Client.DeleteLTXFiles(ctx, files[:1])
		}},
		{"the record of the term", func() error { return r.markComplete(ctx, s) }},
		{"the deletion of everything", func() error { return s.replica.Client.DeleteAll(ctx) }},
	}
	expired.Store(true)
	for _, w := range work {
		wantError(t, w.name+", expired", w.do(), ErrLeaseExpired)
	}
	if n := changes.Load(); n != 0 {
		t.Errorf("expired: got %d requests that change the bucket, want 0", n)
	}
	expired.Store(false)
	for _, w := range work[:4] {
		wantError(t, w.name+", valid", w.do(), nil)
	}
	if changes.Load() == 0 {
		t.Error("valid: got no requests that change the bucket, want some")
	}
}

// If the lease expires during the upload of a file, the file never appears in the replica.
func TestFencedUpload(t *testing.T) {
	b := newBucket(t)
	dir := t.TempDir()
	client, err := b.config(t, dir).settings.newClient(nil)
	must(t, err)
	header, err := (&ltx.Header{
		Version: ltx.Version, Flags: ltx.HeaderFlagNoChecksum, PageSize: 4096, Commit: 1,
		MinTXID: 1, MaxTXID: 1, Timestamp: time.Now().UnixMilli(),
	}).MarshalBinary()
	must(t, err)
	for _, expires := range []bool{true, false} {
		var expired atomic.Bool
		c := &fencedClient{client, expired.Load}
		body := io.MultiReader(bytes.NewReader(header), readerFunc(func(p []byte) (int, error) {
			expired.Store(expires)
			return 0, io.EOF
		}))
		_, err := c.WriteLTXFile(t.Context(), 0, 1, 1, body)
		files, listErr := client.LTXFiles(t.Context(), 0, 0, false)
		if listErr != nil {
			t.Fatal(listErr)
		}
		there := files.Next()
		files.Close()
		if expires && (!errors.Is(err, ErrLeaseExpired) || there) || !expires && (err != nil || !there) {
			t.Errorf("lease expires: %t: got %v and a file: %t", expires, err, there)
		}
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A service without a lease changes nothing in a bucket in which another service holds the
// lease, until the lease is released.
func TestReplicaWithoutLease(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	wantError(t, "no lease", CheckUnleased(t.Context(), b.config(t, t.TempDir())), nil)
	other := newLease(t, b, t.TempDir(), time.Hour)
	must(t, other.Acquire(t.Context(), 0))
	var changes atomic.Int64
	count := func(req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			changes.Add(1)
		}
	}
	b.delay.Store(&count)
	dir := t.TempDir()
	cfg := b.config(t, dir)
	wantError(t, "lease held", CheckUnleased(t.Context(), cfg), ErrLeaseHeld)
	r := openReplicated(t, dir, cfg)
	r.insert(100)
	r.await("failing", func(s Status) bool { return s.State == StateFailing })
	wantNumber(t, "requests that change the bucket while the lease is held", changes.Load(), 0)
	must(t, other.Release(t.Context()))
	wantError(t, "lease released", CheckUnleased(t.Context(), cfg), nil)
	r.await("up to date", upToDate)
	wantNumber(t, "rows restored", restoredRows(t, cfg), 1)
	b.down.Store(true)
	if err := CheckUnleased(t.Context(), cfg); err == nil || errors.Is(err, ErrLeaseHeld) {
		t.Errorf("unreachable bucket: got %v, want an error other than %v", err, ErrLeaseHeld)
	}
}
