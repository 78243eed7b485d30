package cli

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"time"

	"service/webhook"
)

// maxStreamLine is the maximum length of a line of an event stream in bytes, longer than the record of
// any event.
const maxStreamLine = 2*webhook.MaxEventBytes + 64<<10

// errLongLine means that a line has more than maxStreamLine bytes.
var errLongLine = errors.New("the server sent a line that is too long")

// streamEvent is one event of an event stream. An event without data has only an ID.
type streamEvent struct {
	name, id string
	data     []byte // nil for none
}

// eventStream reads server-sent events, as the HTML standard defines them.
type eventStream struct{ in *bufio.Reader }

// newEventStream returns a reader of the events in r. It calls silent when a read lasts longer than
// limit.
func newEventStream(r io.Reader, limit time.Duration, silent func()) eventStream {
	return eventStream{bufio.NewReaderSize(&timedReader{r, limit, silent}, maxStreamLine)}
}

// next returns the next event. An event that the end of the stream cuts off is lost.
func (s eventStream) next() (e streamEvent, err error) {
	for {
		line, err := s.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return e, errLongLine
		}
		if err != nil {
			return e, err
		}
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "": // a comment, or the end of an event
			if len(line) == 0 && (e.name != "" || e.id != "" || e.data != nil) {
				return e, nil
			}
		case "event":
			e.name = string(value)
		case "id":
			e.id = string(value)
		case "data":
			if e.data != nil {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
		}
	}
}

// timedReader calls silent when a read lasts longer than limit.
type timedReader struct {
	r      io.Reader
	limit  time.Duration
	silent func()
}

func (t *timedReader) Read(p []byte) (int, error) {
	timer := time.AfterFunc(t.limit, t.silent)
	defer timer.Stop()
	return t.r.Read(p)
}
