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
	// stallTimeout is the longest time that a read of an object may return
	// nothing.
	stallTimeout = 30 * time.Second
	// readAttempts is how often a read that fails is tried in a row.
	readAttempts = 4
	readRetry    = 250 * time.Millisecond

	// minObjectSize is the size of the smallest valid object: a header, the end
	// of the pages, the end of the page index with its length, and a trailer.
	minObjectSize = ltx.HeaderSize + ltx.PageHeaderSize + minIndexSize
	minIndexSize  = 1 + 8 + ltx.TrailerSize
)

// damagedError says that an object of a replica does not hold what was written to
// it.
type damagedError struct {
	info   *ltx.FileInfo
	reason string
}

func (e *damagedError) Error() string {
	return "the object " + objectName(e.info) + " is damaged: " + e.reason
}

// goneError says that a replica does not have an object.
type goneError struct{ info *ltx.FileInfo }

func (e *goneError) Error() string {
	return "the object " + objectName(e.info) + " does not exist"
}

// objectName returns the name of an object below the path of its replica, as a
// bucket has it.
func objectName(info *ltx.FileInfo) string {
	return fmt.Sprintf("%04x/%s", info.Level, ltx.FormatFilename(info.MinTXID, info.MaxTXID))
}

// objectSink receives the content of objects.
type objectSink struct {
	header func(ltx.Header) error
	// page receives a page of the database. The data is valid during the call.
	page func(info *ltx.FileInfo, pgno uint32, data []byte) error
}

// noSink ignores the content of objects.
var noSink = objectSink{
	func(ltx.Header) error { return nil },
	func(*ltx.FileInfo, uint32, []byte) error { return nil },
}

// decodeObject passes the content of the object that r reads to sink, and checks
// the object against its checksum and its name. The error is a *damagedError when
// its content is invalid; pages may have been passed before.
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
		return damaged("it has %d bytes, and the smallest has %d", info.Size, minObjectSize)
	}
	if err := dec.DecodeHeader(); err != nil {
		return damaged("its header: %v", err)
	}
	header := dec.Header()
	if header.MinTXID != info.MinTXID || header.MaxTXID != info.MaxTXID {
		return damaged("it holds the transactions %s to %s", header.MinTXID, header.MaxTXID)
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
			return damaged("its pages: %v", err)
		}
		if err := sink.page(info, p.Pgno, data); err != nil {
			return err
		}
	}
	// Close expects at least a checksum.
	if info.Size-counted.n < minIndexSize {
		return damaged("it is incomplete")
	}
	if err := dec.Close(); err != nil {
		return damaged("its end: %v", err)
	}
	return nil
}

// countingReader counts the bytes that are read, and keeps an error that is not
// the end.
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

// errShort says that an object is shorter than its listing says.
var errShort = errors.New("it is incomplete")

// objectReader reads an object. It continues where it was when the connection is
// lost. The error is a *goneError when there is no such object.
type objectReader struct {
	ctx    context.Context
	client litestream.ReplicaClient
	info   *ltx.FileInfo

	body   io.ReadCloser // nil for none
	cancel context.CancelFunc
	stall  *time.Timer // ends the request of body
	offset int64
	failed int // attempts in a row that read nothing
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
			return 0, &goneError{r.info}
		case errors.Is(err, io.EOF) && r.failed > 1:
			return 0, errShort
		case r.failed == readAttempts:
			return 0, fmt.Errorf("the object %s cannot be read: %w", objectName(r.info), err)
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(readRetry << (r.failed - 1)):
		}
	}
}

// readOnce reads from the open body, or opens one. After an error there is none.
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
		_ = r.body.Close() // it was read as far as it is needed
		r.body = nil
	}
}

const (
	// Objects up to readAheadSize are read before they are needed, readAhead at a
	// time: a plan may have hundreds, and each is a request.
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

// prefetch reads small objects before they are needed.
type prefetch struct {
	contents []chan content // nil for an object that is not read ahead
	slots    chan struct{}
}

// content is that of an object.
type content struct {
	data []byte
	err  error
}

// newPrefetch begins to read the small ones of files until ctx ends.
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
					err = nil // decodeObject finds out
				}
				p.contents[i] <- content{data, err}
			}()
		}
	}()
	return p
}

// next returns the content of files[i], and false when it is not read ahead. It is
// called for each in order.
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
