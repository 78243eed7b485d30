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

// The bounds of a stream of lines, in bytes.
const (
	lineBuffer = 128 << 10                 // what is read at once
	maxLine    = 2 * webhook.MaxEventBytes // room for white space; the event itself is measured too
	maxChunk   = 1 << 20                   // events that are stored together, about
)

// linesRecord is what a stream of events came to.
type linesRecord struct {
	Accepted int `json:"accepted"` // events that are stored, or were already
	Added    int `json:"added"`    // of these, those that were not there before
}

// partial is an error that came after some of a stream's events were stored.
type partial struct {
	error
	accepted int
}

func (p partial) Unwrap() error { return p.error }

// sentence tells the client from where to go on.
func (p partial) sentence() string {
	switch p.accepted {
	case 0:
		return "No event was accepted."
	case 1:
		return "The first event was accepted."
	}
	return fmt.Sprintf("The first %d events were accepted.", p.accepted)
}

// chunkMark is a chunk that is stored and not known to be acknowledged.
type chunkMark struct {
	accepted int // events of the stream up to its end
	commit   store.Commit
	stored   time.Time
}

// lineAcks follows how many events of a stream may be acknowledged. The stream does
// not wait for the replica at each chunk, only at its end.
type lineAcks struct {
	req   *request
	count int         // events that may be acknowledged
	marks []chunkMark // in order
}

// stored notes how many events are stored by now. The error says that the
// replica does not take earlier ones.
func (l *lineAcks) stored(done *linesRecord) error {
	s := l.req.api.store
	if l.look(); len(l.marks) > 0 && time.Since(l.marks[0].stored) > s.AcknowledgeTimeout() {
		if late := s.Acknowledge(l.req.http.Context()); late != nil {
			return late
		}
	}
	if commit := s.LastCommit(); s.Acknowledged(commit) {
		l.count, l.marks = done.Accepted, l.marks[:0]
	} else {
		l.marks = append(l.marks, chunkMark{done.Accepted, commit, time.Now()})
	}
	return nil
}

// look counts the chunks that may be acknowledged by now.
func (l *lineAcks) look() {
	for len(l.marks) > 0 && l.req.api.store.Acknowledged(l.marks[0].commit) {
		l.count, l.marks = l.marks[0].accepted, l.marks[1:]
	}
}

// end waits until the rest may be acknowledged, unless the error of the stream says
// that this takes too long. It returns the error of the stream, nil for none, and with
// it how many events were accepted.
func (l *lineAcks) end(err error) error {
	l.req.acknowledged = true
	if l.look(); len(l.marks) > 0 {
		if late := l.req.api.store.Acknowledge(l.req.http.Context()); late != nil {
			err = late
		}
		if l.look(); err == nil {
			return nil
		}
	}
	if err == nil {
		return nil
	}
	return partial{err, l.count}
}

// publishLines publishes a stream of events, one a line. They are stored in
// chunks: what has arrived, up to MaxPublishEvents. Each is on disk before
// more is read. The stream ends at the first line that is not right, with all
// before it stored.
func (h eventHandlers) publishLines(req *request) (answer, error) {
	buffer, ok := h.api.lines.Get().(*[]byte)
	if !ok {
		b := make([]byte, lineBuffer)
		buffer = &b
	}
	defer h.api.lines.Put(buffer)
	req.writeUntil(time.Time{})  // the server's bound on requests as a whole is not for a stream
	req.ctx = req.http.Context() // the time of the stream as a whole is not bounded
	lines := lineReader{src: stream{req}, buf: *buffer}
	var done linesRecord
	acks := lineAcks{req: req}
	chunk := make([]webhook.Event, 0, 64)
	trace := webhook.ParseTrace(req.http.Header[webhook.TraceHeader])
	size := 0
	for number := 1; ; number++ { // of the line, blank ones included
		text, err := lines.next()
		if len(text) <= maxLine { // else it is refused as it is
			text = bytes.TrimSpace(text)
		}
		if err == nil && len(text) > 0 {
			at := fmt.Sprintf("events[%d]", done.Accepted+len(chunk))
			e, invalid := h.api.catalog.NewEvent(text, at, time.Now())
			if invalid != nil {
				err = lineError(invalid, at, number)
			} else {
				e.Trace = trace
				chunk = append(chunk, e)
				size += len(e.JSON)
			}
		}
		if err == nil && lines.ready() && len(chunk) < webhook.MaxPublishEvents && size < maxChunk {
			continue
		}
		if len(chunk) > 0 {
			// The events before a line that is wrong are stored all the same.
			failed := cmp.Or(h.publishChunk(req, chunk, &done), acks.stored(&done))
			if failed != nil {
				return answer{}, acks.end(failed)
			}
			clear(chunk) // the store holds on to what it needs
			chunk, size = chunk[:0], 0
		}
		switch {
		case err == io.EOF && done.Accepted == 0:
			req.bodyRead()
			return answer{}, webhook.Invalid(webhook.Validation{Code: webhook.InvalidRequired, Parameter: "events", Detail: "must hold at least one event"})
		case err == io.EOF:
			req.bodyRead()
			return answer{status: http.StatusCreated, data: done}, acks.end(nil)
		case err != nil:
			return answer{}, acks.end(err)
		}
	}
}

// publishChunk stores a chunk and counts it. When an id of it is taken, it
// stores the events before that one.
func (h eventHandlers) publishChunk(req *request, chunk []webhook.Event, done *linesRecord) error {
	ctx, cancel := context.WithTimeout(req.ctx, h.api.timeout)
	added, err := h.api.store.Events().Publish(ctx, req.program(), chunk)
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
		return webhook.NewError(e.Code, fmt.Sprintf("events[%d] is refused: %s", done.Accepted, e.Detail))
	}
	// Which of them it is takes about log2 steps to find out.
	half := len(chunk) / 2
	if err := h.publishChunk(req, chunk[:half], done); err != nil {
		return err
	}
	return h.publishChunk(req, chunk[half:], done)
}

// lineError makes an error of a line name the event as its parameter, also when
// the line is no JSON at all, and say which line it is.
func lineError(e *webhook.Error, at string, number int) *webhook.Error {
	if len(e.Validations) == 0 {
		e = webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidFormat, Parameter: at, Detail: strings.TrimPrefix(e.Detail, at+" "),
		})
	}
	e.Detail = fmt.Sprintf("Line %d of the stream is not right. %s", number, e.Detail)
	return e
}

// stream is the body of a request that may take any time, as long as there is
// never silence for longer than API.timeout.
type stream struct{ req *request }

func (s stream) Read(p []byte) (int, error) {
	s.req.started = true
	s.req.readUntil(time.Now().Add(s.req.api.timeout))
	n, err := s.req.http.Body.Read(p)
	if err != nil && err != io.EOF {
		err = readError(err)
	}
	return n, err
}

// lineReader reads lines that end with a line feed, the last perhaps without.
type lineReader struct {
	src        io.Reader
	buf        []byte
	start, end int   // buf[start:end] was read and not yet returned
	seen       int   // there is no line feed in buf[start:seen]
	err        error // of src
}

// next returns the next line, which is valid until the following call. Of a
// line longer than maxLine it may be a part, itself longer than that. After the
// last line it returns io.EOF. One that another error has cut off is not
// returned.
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

func (l *lineReader) take(end, terminator int) []byte {
	line := l.buf[l.start:end]
	l.start = end + terminator
	l.seen = l.start
	return line
}

func (l *lineReader) makeRoom() {
	buf := l.buf
	if l.start == 0 { // one line fills it
		buf = make([]byte, 2*len(l.buf))
	}
	l.end = copy(buf, l.buf[l.start:l.end])
	l.seen -= l.start
	l.start, l.buf = 0, buf
}

// ready says whether the next line has arrived as a whole.
func (l *lineReader) ready() bool {
	return l.err != nil || bytes.IndexByte(l.buf[l.seen:l.end], '\n') >= 0
}
