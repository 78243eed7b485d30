package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"service/internal/apply"
	"service/internal/control"
	"service/internal/terminal"
	"service/webhook"
)

// Limits of one request. A chunk is sent when it is full or when no further line has
// arrived yet, so that a slow source is published without delay.
const (
	maxChunkLines  = 1000
	maxChunkBytes  = 1 << 20
	maxLineBytes   = 2 * webhook.MaxEventBytes // allows white space; the server limits the event itself
	maxAPIResponse = 64 << 20                  // longer than a page of events
)

// publisher posts events as NDJSON. It gives every event an ID before it sends the event, so that a
// retry adds no event twice.
type publisher struct {
	api      apiConn
	retryFor time.Duration // how long to retry one chunk
	minWait  time.Duration // the first wait; it doubles up to maxWait
	maxWait  time.Duration
	progress *terminal.Progress

	// stableIDs is the path of the input. An event without an ID gets an ID derived from the path
	// and the event's line. If stableIDs is empty, events get random IDs.
	stableIDs string

	tally     tally
	withoutID int // events that had no ID
}

// tally counts the events that the server has acknowledged and stored.
type tally struct {
	accepted int
	added    int // accepted events that the server did not have yet
}

func (t tally) String() string {
	if t.accepted == t.added {
		return webhook.Count(t.accepted, "event") + " accepted"
	}
	return fmt.Sprintf("%s accepted, of which %d already existed", webhook.Count(t.accepted, "event"), t.accepted-t.added)
}

// chunk is the events of one request.
type chunk struct {
	body  bytes.Buffer
	ends  []int // the end of each event in body
	lines []int // the line of each event in the input, from 1
}

func (c *chunk) add(event []byte, line int) {
	c.body.Write(event)
	c.body.WriteByte('\n')
	c.ends = append(c.ends, c.body.Len())
	c.lines = append(c.lines, line)
}

func (c *chunk) reset() {
	c.body.Reset()
	c.ends, c.lines = c.ends[:0], c.lines[:0]
}

// publish posts every line of r in order. It stops at the first invalid line, after publishing the
// lines before it.
func (p *publisher) publish(ctx context.Context, r io.Reader) error {
	in := bufio.NewReaderSize(r, maxChunkBytes)
	var c chunk
	for line := 1; ; line++ {
		text, err := in.ReadSlice('\n')
		if len(text) > maxLineBytes { // even if the buffer is full without a line end
			detail := fmt.Sprintf("longer than %d KiB; an event may have %d KiB", maxLineBytes>>10, webhook.MaxEventBytes>>10)
			return p.flush(ctx, &c, lineError{line, detail})
		}
		if err != nil && err != io.EOF {
			return p.flush(ctx, &c, err)
		}
		ended := err == io.EOF
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff")) // byte order mark
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			event, given, err := withID(text, func() string { return p.newID(line, text) })
			if err != nil {
				return p.flush(ctx, &c, lineError{line, err.Error()})
			}
			if !given {
				p.withoutID++
			}
			c.add(event, line)
		}
		if ended {
			return p.flush(ctx, &c, nil)
		}
		waiting, _ := in.Peek(in.Buffered())
		if len(c.lines) == maxChunkLines || c.body.Len() > maxChunkBytes-maxLineBytes || bytes.IndexByte(waiting, '\n') < 0 {
			if err := p.flush(ctx, &c, nil); err != nil {
				return err
			}
		}
	}
}

// flush sends a chunk and resets it. On success it returns readErr, the error that ended the
// reading.
func (p *publisher) flush(ctx context.Context, c *chunk, readErr error) error {
	if len(c.lines) == 0 {
		return readErr
	}
	defer c.reset()
	err := p.send(ctx, c.body.Bytes())
	var bad refusedEvent
	if !errors.As(err, &bad) || bad.index >= len(c.lines) {
		if err == nil {
			return readErr
		}
		return fmt.Errorf("%s: %w", lineRange(c.lines), err)
	}
	// Send the events before the refused one again to be sure that they are published. Their IDs
	// make that idempotent.
	if bad.index > 0 {
		if err := p.send(ctx, c.body.Bytes()[:c.ends[bad.index-1]]); err != nil {
			return fmt.Errorf("%s: %w", lineRange(c.lines[:bad.index]), err)
		}
	}
	return lineError{c.lines[bad.index], bad.detail}
}

// lineRange names the lines of an error, at least one.
func lineRange(lines []int) string {
	if len(lines) == 1 {
		return fmt.Sprintf("line %d", lines[0])
	}
	return fmt.Sprintf("lines %d to %d", lines[0], lines[len(lines)-1])
}

// send posts events until the server accepts or refuses them, or retryFor has passed.
func (p *publisher) send(ctx context.Context, body []byte) error {
	giveUp, wait := time.Now().Add(p.retryFor), newBackoff(p.minWait, p.maxWait)
	for {
		err := p.post(ctx, body)
		var temporary apply.Temporary
		if err == nil || !errors.As(err, &temporary) || ctx.Err() != nil {
			return err
		}
		pause := wait.next(temporary.After)
		if time.Now().Add(pause).After(giveUp) {
			return fmt.Errorf("%w; gave up after %s", err, formatDuration(p.retryFor))
		}
		p.progress.Note("%v; retrying in %s", err, pause)
		if pauseFor(ctx, pause) != nil {
			return fmt.Errorf("%w; interrupted", err)
		}
	}
}

// post sends one request.
func (p *publisher) post(ctx context.Context, body []byte) error {
	resp, b, err := p.api.do(ctx, http.MethodPost, "/v2/events", "application/x-ndjson", bytes.NewReader(body))
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusCreated {
		var result struct {
			Data struct{ Accepted, Added int }
		}
		if err := json.Unmarshal(b, &result); err != nil {
			return fmt.Errorf("invalid response of the server: %w", err)
		}
		p.tally.accepted += result.Data.Accepted
		p.tally.added += result.Data.Added
		p.progress.Show("%s accepted", webhook.Count(p.tally.accepted, "event"))
		return nil
	}
	err = responseError(resp, b)
	if isTemporary(resp.StatusCode) {
		return apply.Temporary{Err: err, After: retryAfter(resp, time.Now())}
	}
	return err
}

// isTemporary reports whether a retry may get another status.
func isTemporary(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// transportError describes an error of the transport. The error is temporary unless the
// command was interrupted, the certificate is not trusted or the server does not use TLS.
func transportError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	err = control.WithoutURL(err)
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("the server's certificate is not trusted: %w; "+
			"if it has a local CA, set --ca to the ca.pem of its data directory", cert.Err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the server does not use HTTPS; check --url")
	}
	return apply.Temporary{Err: fmt.Errorf("failed to reach the server: %w", err)}
}

// responseError converts an error response of the API. If the response names an event, the
// error is a refusedEvent.
func responseError(resp *http.Response, body []byte) error {
	problem, err := apply.ReadError(resp, body)
	if err != nil {
		return err
	}
	refused := refusedEvent{index: -1}
	for _, v := range problem.Validations {
		index, field, ok := eventParameter(v.Parameter)
		detail := v.Detail
		if field != "" {
			detail = field + " " + v.Detail
		}
		switch {
		case !ok:
		case refused.index < 0 || index < refused.index:
			refused = refusedEvent{index, detail}
		case index == refused.index:
			refused.detail += "; " + detail
		}
	}
	if m := eventDetailPattern.FindStringSubmatch(problem.Detail); m != nil && len(problem.Validations) == 0 {
		if index, err := strconv.Atoi(m[1]); err == nil {
			refused = refusedEvent{index, m[2]}
		}
	}
	if refused.index >= 0 {
		refused.detail = countedPattern.ReplaceAllString(refused.detail, "")
		return refused
	}
	return fmt.Errorf("the server responded %s: %s", resp.Status, problem.Detail)
}

var (
	eventParameterPattern = regexp.MustCompile(`^events\[(\d{1,9})\]\.?(.*)$`)
	// A duplicate ID is not a validation error of a parameter; the detail begins with the index of
	// the event.
	eventDetailPattern = regexp.MustCompile(`(?s)^events\[(\d{1,9})\] (.*)$`)
	// The server's count covers one request only, so it is removed.
	countedPattern = regexp.MustCompile(` (No event was|The first( \d+)? events? (was|were)) accepted\.$`)
)

// eventParameter parses a parameter such as events[16].name.
func eventParameter(s string) (index int, field string, ok bool) {
	m := eventParameterPattern.FindStringSubmatch(s)
	if m == nil {
		return 0, "", false
	}
	index, err := strconv.Atoi(m[1])
	return index, m[2], err == nil
}

// retryAfter returns the wait in the Retry-After header, 0 if there is none.
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	s := resp.Header.Get("Retry-After")
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// newID returns an ID for an event without one.
func (p *publisher) newID(line int, text []byte) string {
	if p.stableIDs == "" {
		return webhook.NewID()
	}
	return webhook.DerivedID(p.stableIDs, strconv.Itoa(line), string(text))
}

// repeatNote warns that publishing the same input again would duplicate events, or returns "".
func (p *publisher) repeatNote() string {
	if p.withoutID == 0 || p.tally.added == 0 || p.stableIDs != "" {
		return ""
	}
	return "publishing this input again duplicates its events without an id (for a file, --stable-ids prevents that)"
}

// withID returns the event with an ID: its own if present, otherwise the result of newID.
func withID(event []byte, newID func() string) (_ []byte, given bool, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(event, &fields); err != nil || fields == nil {
		if err == nil || json.Valid(event) {
			return nil, false, errors.New("not a JSON object")
		}
		return nil, false, fmt.Errorf("not JSON: %w", err)
	}
	if _, ok := fields["id"]; ok {
		return event, true, nil
	}
	id := `{"id":"` + newID() + `"`
	if len(fields) > 0 {
		id += ","
	}
	return append([]byte(id), event[1:]...), false, nil
}

// lineError is an error in a line of the input.
type lineError struct {
	line   int
	detail string
}

func (e lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.detail) }

// refusedEvent is the server's error about one event.
type refusedEvent struct {
	index  int // in the request, from 0
	detail string
}

func (e refusedEvent) Error() string { return fmt.Sprintf("event %d: %s", e.index, e.detail) }
