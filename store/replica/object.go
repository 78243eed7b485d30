package replica

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

const (
	// stallTimeout is how long a read of an object may return nothing.
	stallTimeout = 30 * time.Second
	// readAttempts is the maximum number of attempts of a read. The first retry is
	// after readRetry.
	readAttempts = 4
	readRetry    = 250 * time.Millisecond

	// minObjectSize is the size of the smallest valid object: a header, the end of the
	// pages, the end of the page index with its length, and a trailer.
	minObjectSize = ltx.HeaderSize + ltx.PageHeaderSize + minIndexSize
	minIndexSize  = 1 + 8 + ltx.TrailerSize
)

// damagedError means that the content of an object in a replica is damaged.
type damagedError struct {
	info   *ltx.FileInfo
	reason string
}

func (e *damagedError) Error() string {
	return "the object " + objectName(e.info) + " is damaged: " + e.reason
}

// missingError means that an object does not exist in a replica.
type missingError struct{ info *ltx.FileInfo }

func (e *missingError) Error() string {
	return "the object " + objectName(e.info) + " does not exist"
}

// objectName returns the name of an object relative to the path of its term, as in a
// bucket.
func objectName(info *ltx.FileInfo) string {
	return fmt.Sprintf("%04x/%s", info.Level, ltx.FormatFilename(info.MinTXID, info.MaxTXID))
}

// objectSink receives the content of objects.
type objectSink struct {
	header func(ltx.Header) error
	// page receives a page of the database. data is valid only during the call.
	page func(info *ltx.FileInfo, pgno uint32, data []byte) error
}

// noSink discards the content of objects.
var noSink = objectSink{
	func(ltx.Header) error { return nil },
	func(*ltx.FileInfo, uint32, []byte) error { return nil },
}

// decodeObject reads an object from r, checks it against its name and checksum, and passes
// its content to sink. The error is a *damagedError if the content is invalid; sink may have
// received pages before the error.
func decodeObject(info *ltx.FileInfo, r io.Reader, sink objectSink) error {
	counted := &countingReader{r: r}
	dec := ltx.NewDecoder(counted)
	damaged := func(format string, args ...any) error {
		if counted.err != nil && !errors.Is(counted.err, errShort) {
			return counted.err
		}
		return &damagedError{info, fmt.Sprintf(format, args...)}
	}
	if info.Size < minObjectSize {
		return damaged("it has %d bytes, fewer than the minimum of %d", info.Size, minObjectSize)
	}
	if err := dec.DecodeHeader(); err != nil {
		return damaged("header: %v", err)
	}
	header := dec.Header()
	if header.MinTXID != info.MinTXID || header.MaxTXID != info.MaxTXID {
		return damaged("it contains the transactions %s to %s", header.MinTXID, header.MaxTXID)
	}
	if err := sink.header(header); err != nil {
		return err
	}
	data := make([]byte, header.PageSize)
	for {
		var p ltx.PageHeader
		err := dec.DecodePage(&p, data)
		if errors.Is(err, io.EOF) {
			break // the end of the pages, or of the object
		} else if err != nil {
			return damaged("pages: %v", err)
		}
		if err := sink.page(info, p.Pgno, data); err != nil {
			return err
		}
	}
	// Close would panic without at least a checksum.
	if info.Size-counted.n < minIndexSize {
		return damaged("it is incomplete")
	}
	if err := dec.Close(); err != nil {
		return damaged("end: %v", err)
	}
	return nil
}

// countingReader counts the bytes that are read, and keeps an error other than EOF.
type countingReader struct {
	r   io.Reader
	n   int64
	err error
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// errShort means that an object is shorter than its listed size.
var errShort = errors.New("it is incomplete")

// objectReader reads an object. If the connection is lost, it reconnects and continues. The
// error is a *missingError if the object does not exist.
type objectReader struct {
	ctx    context.Context
	client litestream.ReplicaClient
	info   *ltx.FileInfo

	body   io.ReadCloser // nil for none
	cancel context.CancelFunc
	stall  *time.Timer // cancels the request of body
	offset int64
	failed int // consecutive attempts that read nothing
}

func newObjectReader(ctx context.Context, client litestream.ReplicaClient, info *ltx.FileInfo) *objectReader {
	return &objectReader{ctx: ctx, client: client, info: info}
}

// Read implements [io.Reader].
func (r *objectReader) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), r.info.Size-r.offset)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	for {
		n, err := r.readOnce(p)
		r.offset += int64(n)
		if n > 0 {
			r.failed = 0
			return n, nil
		}
		r.failed++
		switch {
		case r.ctx.Err() != nil:
			return 0, context.Cause(r.ctx)
		case errors.Is(err, os.ErrNotExist):
			return 0, &missingError{r.info}
		case errors.Is(err, io.EOF) && r.failed > 1:
			return 0, errShort
		case r.failed == readAttempts:
			return 0, fmt.Errorf("read the object %s: %w", objectName(r.info), err)
		}
		_ = sleep(r.ctx, readRetry<<(r.failed-1)) // the next read returns the error
	}
}

// readOnce reads from the body, which it opens if necessary and closes after an error.
func (r *objectReader) readOnce(p []byte) (n int, err error) {
	if r.body == nil {
		ctx, cancel := context.WithCancel(r.ctx)
		stall := time.AfterFunc(stallTimeout, cancel)
		body, err := r.client.OpenLTXFile(ctx, r.info.Level, r.info.MinTXID, r.info.MaxTXID, r.offset, 0)
		if err != nil {
			stall.Stop()
			cancel()
			return 0, err
		}
		r.body, r.cancel, r.stall = body, cancel, stall
	}
	r.stall.Reset(stallTimeout)
	n, err = r.body.Read(p)
	r.stall.Stop()
	if err != nil {
		r.Close()
	}
	return n, err
}

// Close ends the request.
func (r *objectReader) Close() {
	if r.body != nil {
		r.stall.Stop()
		r.cancel()
		_ = r.body.Close() // the caller needs no more of it
		r.body = nil
	}
}

const (
	// Objects up to readAheadSize bytes are read ahead, readAhead at a time: a plan may
	// have hundreds, each of which is a request.
	readAhead     = 16
	readAheadSize = 1 << 20
)

// readObjects passes the content of objects to sink, in order.
func readObjects(ctx context.Context, client litestream.ReplicaClient, files []*ltx.FileInfo, sink objectSink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	small := newPrefetch(ctx, client, files)
	for i, f := range files {
		data, ok, err := small.next(ctx, i)
		switch {
		case err != nil:
		case ok:
			err = decodeObject(f, bytes.NewReader(data), sink)
		default:
			r := newObjectReader(ctx, client, f)
			err = decodeObject(f, bufio.NewReaderSize(r, 64<<10), sink)
			r.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prefetch reads small objects ahead.
type prefetch struct {
	contents []chan content // nil for an object that is not read ahead
	slots    chan struct{}
}

// content is the content of an object, or the error of reading it.
type content struct {
	data []byte
	err  error
}

// newPrefetch begins to read the small objects of files, until ctx ends.
func newPrefetch(ctx context.Context, client litestream.ReplicaClient, files []*ltx.FileInfo) *prefetch {
	p := &prefetch{contents: make([]chan content, len(files)), slots: make(chan struct{}, readAhead)}
	for i, f := range files {
		if f.Size <= readAheadSize {
			p.contents[i] = make(chan content, 1)
		}
	}
	go func() {
		for i, f := range files {
			if p.contents[i] == nil {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case p.slots <- struct{}{}:
			}
			go func() {
				r := newObjectReader(ctx, client, f)
				defer r.Close()
				data, err := io.ReadAll(r)
				if errors.Is(err, errShort) {
					err = nil // decodeObject reports it
				}
				p.contents[i] <- content{data, err}
			}()
		}
	}()
	return p
}

// next returns the content of files[i], or false if it is not read ahead. It must be called
// for each file in order.
func (p *prefetch) next(ctx context.Context, i int) ([]byte, bool, error) {
	if p.contents[i] == nil {
		return nil, false, nil
	}
	select {
	case <-ctx.Done():
		return nil, true, context.Cause(ctx)
	case c := <-p.contents[i]:
		<-p.slots
		return c.data, true, c.err
	}
}
