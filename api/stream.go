package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"service/store"
	"service/webhook"
)

// The limits of a stream, in bytes.
const (
	lineBuffer = 128 << 10                 // read at once
	maxLine    = 2 * webhook.MaxEventBytes // including white space; the event has its own limit
	maxChunk   = 1 << 20                   // events stored in one write, approximately
)

// streamRecord is the result of a stream of events.
type streamRecord struct {
	Accepted int `json:"accepted"` // events that are stored, including those that existed before
	Added    int `json:"added"`    // events among them that are new
}

// partial is the error of a stream of which some events were stored.
type partial struct {
	error
	accepted int
}

func (p partial) Unwrap() error { return p.error }

// sentence tells the client where to continue.
func (p partial) sentence() string {
	switch p.accepted {
	case 0:
		return "No event was accepted."
	case 1:
		return "The first event was accepted."
	}
	return fmt.Sprintf("The first %d events were accepted.", p.accepted)
}

// chunkMark is a stored chunk that may not be acknowledged yet.
type chunkMark struct {
	accepted int // events of the stream up to and including the chunk
	commit   store.Commit
	stored   time.Time
}

// streamAcks counts the events of a stream that may be acknowledged. The stream waits for the
// replica only at its end, not after each chunk.
type streamAcks struct {
	req   *request
	count int         // events that may be acknowledged
	marks []chunkMark // in order
}

// stored records how many events are stored. It returns an error if the replica has not
// received earlier ones in time.
func (l *streamAcks) stored(done *streamRecord) error {
	s := l.req.api.store
	if l.update(); len(l.marks) > 0 && time.Since(l.marks[0].stored) > s.Replica().AcknowledgeTimeout() {
		if late := s.Replica().Acknowledge(l.req.http.Context()); late != nil {
			return late
		}
	}
	if commit := s.LastCommit(); s.Replica().Acknowledged(commit) {
		l.count, l.marks = done.Accepted, l.marks[:0]
	} else {
		l.marks = append(l.marks, chunkMark{done.Accepted, commit, time.Now()})
	}
	return nil
}

// update counts the chunks that may be acknowledged now.
func (l *streamAcks) update() {
	for len(l.marks) > 0 && l.req.api.store.Replica().Acknowledged(l.marks[0].commit) {
		l.count, l.marks = l.marks[0].accepted, l.marks[1:]
	}
}

// end waits until the remaining events may be acknowledged or the wait times out. err is
// the error of the stream, or nil. The returned error includes the number of accepted
// events.
func (l *streamAcks) end(err error) error {
	l.req.acknowledged = true
	if l.update(); len(l.marks) > 0 {
		if late := l.req.api.store.Replica().Acknowledge(l.req.http.Context()); late != nil {
			err = late
		}
		if l.update(); err == nil {
			return nil
		}
	}
	if err == nil {
		return nil
	}
	return partial{err, l.count}
}

// publishStream stores a stream of events, one per line, in chunks of what has arrived, up to
// MaxPublishEvents. Each chunk is on disk before more is read. The first invalid line ends the
// stream; all events before it are stored.
func publishStream(req *request) (answer, error) {
	buffer, ok := req.api.lines.Get().(*[]byte)
	if !ok {
		b := make([]byte, lineBuffer)
		buffer = &b
	}
	defer req.api.lines.Put(buffer)
	req.writeUntil(time.Time{})  // the server's write timeout does not apply to a stream
	req.ctx = req.http.Context() // the duration of a stream is not bounded
	lines := lineReader{src: stream{req}, buf: *buffer}
	var done streamRecord
	acks := streamAcks{req: req}
	chunk, numbers := make([]webhook.Event, 0, 64), make([]int, 0, 64) // numbers of their lines
	trace := webhook.ParseTrace(req.http.Header[webhook.TraceHeader])
	size := 0
	for number := 1; ; number++ { // of the line, including blank ones
		text, err := lines.next()
		if len(text) <= maxLine { // otherwise NewEvent rejects it
			text = bytes.TrimSpace(text)
		}
		if err == nil && len(text) > 0 {
			at := fmt.Sprintf("events[%d]", done.Accepted+len(chunk))
			e, invalid := req.api.catalog.NewEvent(text, at, time.Now())
			if invalid != nil {
				err = lineError(invalid, at, number)
			} else {
				e.Trace = trace
				chunk, numbers = append(chunk, e), append(numbers, number)
				size += len(e.JSON)
			}
		}
		if err == nil && lines.ready() && len(chunk) < webhook.MaxPublishEvents && size < maxChunk {
			continue
		}
		if len(chunk) > 0 {
			// Events before an invalid line are stored.
			failed := cmp.Or(publishChunk(req, chunk, numbers, &done), acks.stored(&done))
			if failed != nil {
				return answer{}, acks.end(failed)
			}
			clear(chunk) // the store keeps what it needs
			chunk, numbers, size = chunk[:0], numbers[:0], 0
		}
		switch {
		case err == io.EOF && done.Accepted == 0:
			req.bodyRead()
			return answer{}, webhook.Invalid(webhook.Validation{
				Code: webhook.InvalidRequired, Parameter: "events", Detail: "must contain at least one event",
			})
		case err == io.EOF:
			req.bodyRead()
			return answer{status: http.StatusCreated, data: done}, acks.end(nil)
		case err != nil:
			return answer{}, acks.end(err)
		}
	}
}

// publishChunk stores a chunk and counts its events. If an ID in it is taken, publishChunk stores
// the events before that one. numbers are the line numbers of the events.
func publishChunk(req *request, chunk []webhook.Event, numbers []int, done *streamRecord) error {
	ctx, cancel := context.WithTimeout(req.ctx, req.api.timeout)
	added, err := req.api.store.Events().Publish(ctx, req.program(), chunk)
	cancel()
	if err == nil {
		done.Accepted += len(chunk)
		done.Added += added
		return nil
	}
	var e *webhook.Error
	if !errors.As(err, &e) || e.Code != webhook.CodeConflict {
		return err
	}
	if len(chunk) == 1 {
		return webhook.NewError(e.Code, fmt.Sprintf("Line %d of the stream: events[%d] was rejected: %s",
			numbers[0], done.Accepted, e.Detail))
	}
	// Find the event by bisection.
	half := len(chunk) / 2
	if err := publishChunk(req, chunk[:half], numbers[:half], done); err != nil {
		return err
	}
	return publishChunk(req, chunk[half:], numbers[half:], done)
}

// lineError adds the line number to an error. An error without a parameter, such as invalid JSON,
// gets the event as its parameter.
func lineError(e *webhook.Error, at string, number int) *webhook.Error {
	if len(e.Validations) == 0 {
		e = webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidFormat, Parameter: at, Detail: strings.TrimPrefix(e.Detail, at+" "),
		})
	}
	e.Detail = fmt.Sprintf("Line %d of the stream is invalid. %s", number, e.Detail)
	return e
}

// stream reads a body of any duration. Each read may take up to API.timeout.
type stream struct{ req *request }

// Read sets a new read deadline for each call.
func (s stream) Read(p []byte) (int, error) {
	s.req.started = true
	s.req.readUntil(time.Now().Add(s.req.api.timeout))
	n, err := s.req.http.Body.Read(p)
	if err != nil && err != io.EOF {
		err = readError(err)
	}
	return n, err
}

// lineReader reads lines that end with a line feed, except perhaps the last.
type lineReader struct {
	src        io.Reader
	buf        []byte
	start, end int   // buf[start:end] was read and not returned yet
	seen       int   // buf[start:seen] contains no line feed
	err        error // of src
}

// next returns the next line, which is valid until the following call. If the line is longer than
// maxLine, next may return only a part, itself longer than maxLine. After the last line it returns
// io.EOF. It does not return a line that a read error has cut off.
func (l *lineReader) next() ([]byte, error) {
	for {
		if i := bytes.IndexByte(l.buf[l.seen:l.end], '\n'); i >= 0 {
			return l.take(l.seen+i, 1), nil
		}
		l.seen = l.end
		switch {
		case l.end-l.start > maxLine:
			return l.take(l.end, 0), nil
		case l.err == io.EOF && l.start < l.end:
			return l.take(l.end, 0), nil
		case l.err != nil:
			return nil, l.err
		}
		if l.end == len(l.buf) {
			l.makeRoom()
		}
		var n int
		n, l.err = l.src.Read(l.buf[l.end:])
		l.end += n
	}
}

// take returns the line up to end and skips its terminator.
func (l *lineReader) take(end, terminator int) []byte {
	line := l.buf[l.start:end]
	l.start = end + terminator
	l.seen = l.start
	return line
}

// makeRoom moves the unread bytes to the front, or doubles the buffer if one line fills it.
func (l *lineReader) makeRoom() {
	buf := l.buf
	if l.start == 0 { // one line fills the buffer
		buf = make([]byte, 2*len(l.buf))
	}
	l.end = copy(buf, l.buf[l.start:l.end])
	l.seen -= l.start
	l.start, l.buf = 0, buf
}

// ready reports whether the next line has arrived completely.
func (l *lineReader) ready() bool {
	return l.err != nil || bytes.IndexByte(l.buf[l.seen:l.end], '\n') >= 0
}
