package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/a-h/templ"
)

const (
	maxStreams  = 64               // at a time; a further one is told to come back
	streamLife  = 10 * time.Minute // after which the browser connects again, and its session is looked at again
	streamQuiet = 15 * time.Second // without a word, after which a comment keeps proxies from closing it
	streamAsks  = 10 * time.Second // after which the next word is preceded by a look at the session
)

// stream sends a page what is new, as server-sent events. The handler that has
// it runs in the request's own goroutine, and ends when Context does: the
// visitor has left, the service stops, or the stream's life is over, after
// which the browser asks again from the last id that it has seen. Sending fails
// when the session has ended.
type stream struct {
	ctx    context.Context
	lastID string // of the event that the browser has seen last, "" for none: text from outside
	to     *patient
	wrote  time.Time // when something was written last

	signedIn func() (bool, error) // nil for anyone
	asked    time.Time            // when that was asked last
}

// errSignedOut ends a stream.
var errSignedOut = errors.New("the session has ended")

// Context ends with the stream.
func (s *stream) Context() context.Context { return s.ctx }

// send sends HTML under an id, from which a browser that was cut off goes on.
// An element with an id of its own takes the place of the one with that id on
// the page; the others become the first of the list that the page marks with
// data-live-list (see ui.Table).
func (s *stream) send(id string, c templ.Component) error {
	var b bytes.Buffer
	if err := c.Render(s.ctx, &b); err != nil {
		return err
	}
	var out strings.Builder
	if id != "" {
		fmt.Fprintf(&out, "id: %s\n", id)
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		out.WriteString("data: " + strings.ReplaceAll(line, "\r", " ") + "\n")
	}
	out.WriteString("\n")
	return s.write(out.String())
}

// idle sends a comment, which keeps proxies from closing the stream.
func (s *stream) idle() error { return s.write(":\n\n") }

// pause waits for d. Its error is that of the context.
func (s *stream) pause(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// await waits until something is received from changes and is reports true. It
// sends comments while the stream is quiet. Its error is that of the context, or
// of sending.
func (s *stream) await(changes <-chan struct{}, is func() bool) error {
	quiet := time.NewTimer(time.Until(s.wrote.Add(streamQuiet)))
	defer quiet.Stop()
	for {
		select {
		case <-changes:
			if is() {
				return nil
			}
		case <-quiet.C:
			if err := s.idle(); err != nil {
				return err
			}
			quiet.Reset(streamQuiet)
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

func (s *stream) write(text string) error {
	if now := time.Now(); s.signedIn != nil && now.Sub(s.asked) >= streamAsks {
		in, err := s.signedIn()
		if err != nil {
			return err
		}
		if !in {
			return errSignedOut
		}
		s.asked = now
	}
	s.wrote = time.Now()
	if _, err := s.to.Write([]byte(text)); err != nil {
		return err
	}
	return s.to.ctl.Flush()
}

// follow runs a stream until it ends.
func (w *Web) follow(rw http.ResponseWriter, r *request, run func(*stream) error) {
	select {
	case w.streams <- struct{}{}:
		defer func() { <-w.streams }()
	default:
		rw.Header().Set("Retry-After", "30")
		http.Error(rw, "Too many pages are being watched.", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	defer context.AfterFunc(w.life, cancel)()
	rw.Header().Set("Content-Type", "text/event-stream")
	s := &stream{ctx: ctx, lastID: r.Header.Get("Last-Event-ID"), to: &patient{rw, http.NewResponseController(rw)}, asked: time.Now()}
	if r.admin != "" {
		s.signedIn = func() (bool, error) { return w.sessions.findUnnoted(r) }
	}
	if err := s.idle(); err != nil {
		return
	}
	if err := run(s); err != nil && ctx.Err() == nil && !errors.Is(err, errSignedOut) {
		w.log(r, err)
	}
}

// EndStreams ends the streams that pages follow, and those to come. It is to be
// called when the service begins to stop, which would wait for them otherwise.
func (w *Web) EndStreams() { w.endLife() }
