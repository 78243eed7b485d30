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
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"service/internal/terminal"
	"service/webhook"
)

// The bounds of one request. A chunk goes out when it is full, and also when no
// further line has arrived yet: a slow source is not held up.
const (
	maxChunkLines = 1000
	maxChunkBytes = 1 << 20
	maxLineBytes  = 2 * webhook.MaxEventBytes // room for white space; the server measures the event itself
	maxAPIAnswer  = 4 << 20
)

// publisher posts events as NDJSON. Every event has an id before it is first
// sent, so that one that is sent again adds nothing twice.
type publisher struct {
	client   *http.Client
	url      string
	token    string
	retryFor time.Duration // how long one chunk is tried again
	minWait  time.Duration // the first wait; it doubles up to maxWait
	maxWait  time.Duration
	progress *terminal.Progress

	// stableIDs names the file that the ids of events without one are derived from,
	// together with their line; "" gives them random ids.
	stableIDs string

	tally   tally
	without int // events that had no id
}

// tally counts events that the server has acknowledged: they are on its disk.
type tally struct {
	accepted int
	added    int // of these, those that were not there before
}

func (t tally) String() string {
	if t.accepted == t.added {
		return webhook.Count(t.accepted, "event") + " accepted"
	}
	return fmt.Sprintf("%s accepted, %d of them already there", webhook.Count(t.accepted, "event"), t.accepted-t.added)
}

// chunk is what one request carries.
type chunk struct {
	body  bytes.Buffer
	ends  []int // where each event of body ends
	lines []int // the number of each event's line in the input, from 1
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

// publish posts every line of r in order. It ends at the first line that is
// not right, with all before it published.
func (p *publisher) publish(ctx context.Context, r io.Reader) error {
	in := bufio.NewReaderSize(r, maxChunkBytes)
	var c chunk
	for line := 1; ; line++ {
		text, err := in.ReadSlice('\n')
		if len(text) > maxLineBytes { // also when the buffer is full without an end of line
			return p.flush(ctx, &c, lineError{line, fmt.Sprintf("longer than %d KiB; an event may have %d KiB", maxLineBytes>>10, webhook.MaxEventBytes>>10)})
		}
		if err != nil && err != io.EOF {
			return p.flush(ctx, &c, err)
		}
		ended := err == io.EOF
		if line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff")) // some editors begin a file so
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			event, given, err := withID(text, func() string { return p.newID(line, text) })
			if err != nil {
				return p.flush(ctx, &c, lineError{line, err.Error()})
			}
			if !given {
				p.without++
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

// flush sends a chunk and empties it. It returns its own error, or else then:
// what ended the reading after the chunk.
func (p *publisher) flush(ctx context.Context, c *chunk, then error) error {
	if len(c.lines) == 0 {
		return then
	}
	defer c.reset()
	err := p.send(ctx, c.body.Bytes())
	var bad refusedEvent
	if !errors.As(err, &bad) || bad.index >= len(c.lines) {
		if err == nil {
			return then
		}
		return fmt.Errorf("lines %d to %d: %w", c.lines[0], c.lines[len(c.lines)-1], err)
	}
	// The events before the refused one are sent on their own, so that it is
	// certain that they are published: their ids make it harmless.
	if bad.index > 0 {
		if err := p.send(ctx, c.body.Bytes()[:c.ends[bad.index-1]]); err != nil {
			return fmt.Errorf("lines %d to %d: %w", c.lines[0], c.lines[bad.index-1], err)
		}
	}
	return lineError{c.lines[bad.index], bad.detail}
}

// send posts events until the server has taken or refused them, or retryFor is
// over.
func (p *publisher) send(ctx context.Context, body []byte) error {
	giveUp := time.Now().Add(p.retryFor)
	wait := p.minWait
	for {
		err := p.post(ctx, body)
		var again tryAgain
		if err == nil || !errors.As(err, &again) || ctx.Err() != nil {
			return err
		}
		pause := max(wait/2+rand.N(wait/2+1), again.after)
		if time.Now().Add(pause).After(giveUp) {
			return fmt.Errorf("%w; gave up after %s", err, formatDuration(p.retryFor))
		}
		p.progress.Note("%v; trying again in %s", err, pause.Round(time.Millisecond))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w; interrupted", err)
		}
		wait = min(2*wait, p.maxWait)
	}
}

// post makes one request.
func (p *publisher) post(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	req.Header.Set("Authorization", "Bearer "+p.token)
	resp, err := p.client.Do(req)
	if err != nil {
		return unreachable(ctx, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIAnswer))
	if err != nil {
		return unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusCreated {
		var answer struct {
			Data struct{ Accepted, Added int }
		}
		if err := json.Unmarshal(b, &answer); err != nil {
			return fmt.Errorf("the server's answer cannot be read: %w", err)
		}
		p.tally.accepted += answer.Data.Accepted
		p.tally.added += answer.Data.Added
		p.progress.Show("%s accepted", webhook.Count(p.tally.accepted, "event"))
		return nil
	}
	err = refusal(resp, b)
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return tryAgain{err, retryAfter(resp, time.Now())}
	}
	return err
}

// unreachable judges an error of the transport: all but a certificate that is
// not trusted, and the end of the command, may pass.
func unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err // the rest repeats the URL
	}
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("the server's certificate is not trusted: %w; for a server with a local CA give --ca and the ca.pem of its data directory", cert.Err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the server does not speak HTTPS; is --url right?")
	}
	return tryAgain{error: fmt.Errorf("the server cannot be reached: %w", err)}
}

// refusal reads an error answer of the API.
func refusal(resp *http.Response, body []byte) error {
	var answer struct {
		Error struct {
			Title       string
			Detail      string
			Validations []webhook.Validation
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error.Title == "" {
		return fmt.Errorf("the server answered %s; is --url right?", resp.Status)
	}
	refused := refusedEvent{index: -1}
	for _, v := range answer.Error.Validations {
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
	if m := eventDetailPattern.FindStringSubmatch(answer.Error.Detail); m != nil && len(answer.Error.Validations) == 0 {
		if index, err := strconv.Atoi(m[1]); err == nil {
			refused = refusedEvent{index, m[2]}
		}
	}
	if refused.index >= 0 {
		refused.detail = countedPattern.ReplaceAllString(refused.detail, "")
		return refused
	}
	return fmt.Errorf("the server answered %s: %s", resp.Status, answer.Error.Detail)
}

var (
	eventParameterPattern = regexp.MustCompile(`^events\[(\d{1,9})\]\.?(.*)$`)
	// An event whose id is taken is no mistake of one parameter; the error begins
	// with the event's place.
	eventDetailPattern = regexp.MustCompile(`(?s)^events\[(\d{1,9})\] (.*)$`)
	// The server counts the events of its request, which is only a part of ours.
	countedPattern = regexp.MustCompile(` (No event was|The first( \d+)? events? (was|were)) accepted\.$`)
)

// eventParameter reads a parameter such as events[16].name.
func eventParameter(s string) (index int, field string, ok bool) {
	m := eventParameterPattern.FindStringSubmatch(s)
	if m == nil {
		return 0, "", false
	}
	index, err := strconv.Atoi(m[1])
	return index, m[2], err == nil
}

// retryAfter returns the wait that an answer asks for, 0 if none.
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

// newID returns an id for an event without one.
func (p *publisher) newID(line int, text []byte) string {
	if p.stableIDs == "" {
		return webhook.NewID()
	}
	return webhook.DerivedID(p.stableIDs, strconv.Itoa(line), string(text))
}

// repetition says what publishing the same input again would do, "" if it adds
// nothing.
func (p *publisher) repetition() string {
	if p.without == 0 || p.tally.added == 0 || p.stableIDs != "" {
		return ""
	}
	return "publishing this input again adds its events without an id again (--stable-ids prevents that for a file)"
}

// withID returns the event with an id: its own, if given, or one of newID.
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

// lineError says what is wrong with a line of the input.
type lineError struct {
	line   int
	detail string
}

func (e lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.detail) }

// refusedEvent is an event that the server did not take.
type refusedEvent struct {
	index  int // within the request, from 0
	detail string
}

func (e refusedEvent) Error() string { return fmt.Sprintf("event %d: %s", e.index, e.detail) }

// tryAgain is an error that may pass, not before the given wait.
type tryAgain struct {
	error
	after time.Duration
}

func (e tryAgain) Unwrap() error { return e.error }
