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

	"service/store"
)

const (
	maxStreams  = 64               // concurrent, for admins and for partners each; more get 503
	maxInPortal = 16               // concurrent, per program, for its partners
	streamLife  = 10 * time.Minute // the browser then reconnects
	streamIdle  = 15 * time.Second // a comment is sent then, to keep proxies from closing the connection
	streamCheck = 10 * time.Second // the session is then checked before the next write
)

// stream sends server-sent events to a page. Its handler runs in the goroutine of the request until
// Context ends: the browser disconnected, the service is shutting down, or the stream exceeded
// streamLife. The browser then reconnects with the last ID that it received. Sending fails once the
// session has ended.
type stream struct {
	ctx     context.Context
	lastID  string // last event that the browser received, "" for none; text from outside
	to      *deadlineWriter
	wroteAt time.Time // time of the last write

	stillSignedIn func() (bool, error) // nil without a session
	checkedAt     time.Time            // time of the last check
}

// errSignedOut ends a stream whose session has ended.
var errSignedOut = errors.New("the session has ended")

// Context returns a context that ends with the stream.
func (s *stream) Context() context.Context { return s.ctx }

// send sends HTML with an ID, from which a reconnecting browser continues. An element with an ID
// replaces the one on the page; other elements are inserted at the top of the list marked with
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

// idle sends a comment to keep proxies from closing the stream.
func (s *stream) idle() error { return s.write(":\n\n") }

// pause waits for d. It returns the context's error if that ends first.
func (s *stream) pause(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// await waits until changes receives a value for which is returns true. It sends comments while the
// stream is quiet. It returns the error of the context, or of sending.
func (s *stream) await(changes <-chan struct{}, is func() bool) error {
	quiet := time.NewTimer(time.Until(s.wroteAt.Add(streamIdle)))
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
			quiet.Reset(streamIdle)
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

func (s *stream) write(text string) error {
	if now := time.Now(); s.stillSignedIn != nil && now.Sub(s.checkedAt) >= streamCheck {
		in, err := s.stillSignedIn()
		if err != nil {
			return err
		}
		if !in {
			return errSignedOut
		}
		s.checkedAt = now
	}
	s.wroteAt = time.Now()
	if _, err := s.to.Write([]byte(text)); err != nil {
		return err
	}
	return s.to.ctl.Flush()
}

// streamHeaders sets the headers of a stream. They make a proxy in front pass each event on at
// once: nginx would keep events until it has several KB.
func streamHeaders(h http.Header) {
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
}

// follow runs a stream until it ends.
func (w *Web) follow(rw http.ResponseWriter, r *request, run func(*stream) error) {
	if r.Method == http.MethodHead {
		streamHeaders(rw.Header())
		return // a normal end leaves the connection reusable
	}
	leave, ok := w.takeStream(r)
	if !ok {
		rw.Header().Set("Retry-After", "30")
		http.Error(rw, "Too many pages receive live updates.", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	defer context.AfterFunc(w.life, cancel)()
	streamHeaders(rw.Header())
	s := &stream{ctx: ctx, lastID: r.Header.Get("Last-Event-ID"), to: &deadlineWriter{rw, http.NewResponseController(rw)},
		checkedAt: time.Now()}
	if r.admin != "" {
		// After a change of role the browser reconnects and receives what the new role may see.
		role := r.session.Role
		s.stillSignedIn = func() (bool, error) {
			found, err := w.sessions.find(r, false)
			return found && r.session.Role == role, err
		}
	}
	if r.portal.in() {
		s.stillSignedIn = func() (bool, error) {
			_, good, err := w.store.Portal().Session(r.Context(), r.portal.secret)
			return good, err
		}
	}
	if err := s.idle(); err != nil {
		return
	}
	if err := run(s); err != nil && ctx.Err() == nil && !errors.Is(err, errSignedOut) && !errors.Is(err, store.ErrBusy) {
		w.log(r, err)
	}
}

// takeStream takes a slot for a stream, which leave frees, and reports whether a slot was free.
// Partners cannot take the slots of admins, and the partners of one program cannot take all partner
// slots.
func (w *Web) takeStream(r *request) (leave func(), ok bool) {
	slots := w.streams
	if r.portal.in() {
		slots = w.portalStreams
		if !w.perProgram.Take(r.portal.program.ID, maxInPortal) {
			return nil, false
		}
	}
	leaveProgram := func() {
		if r.portal.in() {
			w.perProgram.Leave(r.portal.program.ID)
		}
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots; leaveProgram() }, true
	default:
		leaveProgram()
		return nil, false
	}
}

// EndStreams ends all streams, including later ones. Call it when the service starts to shut down,
// which would otherwise wait for them.
func (w *Web) EndStreams() { w.endLife() }
