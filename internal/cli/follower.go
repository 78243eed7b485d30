package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"time"

	"service/api"
	"service/internal/apply"
	"service/webhook"
)

// follower reads the events of a subscription from a stream of the API, from a cursor on, and handles
// one after the other. It saves the cursor after each, so that none is skipped, and no more than the
// last is repeated.
type follower struct {
	apiConn
	from   string // where to begin without a cursor; "" for now
	cursor *cursorFile

	minWait, maxWait time.Duration // between two streams
	silence          time.Duration // of a stream that is given up

	forward *eventForwarder // nil to print only
	print   func(*arrival)
	note    func(format string, args ...any) // prints a line for the developer

	followed bool // there was a stream
}

// run follows the subscription until ctx ends, and then returns nil. Any other failure of the server or
// the network is retried; an error says what the developer has to do.
func (w *follower) run(ctx context.Context) error {
	checked := w.forward == nil
	wait := newBackoff(w.minWait, w.maxWait)
	for {
		var err error
		began, before := time.Now(), w.cursor.cursor
		if !checked {
			err = w.checkHeaders(ctx)
			checked = err == nil
		}
		if err == nil {
			err = w.stream(ctx)
		}
		var temporary apply.Temporary
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.As(err, &temporary):
			return err
		}
		if w.cursor.cursor != before || time.Since(began) > w.maxWait {
			wait = newBackoff(w.minWait, w.maxWait)
		}
		pause := wait.next(temporary.After)
		w.note("%v; trying again in %s", err, pause)
		if pauseFor(ctx, pause) != nil {
			return nil
		}
	}
}

// path returns the path of the subscription in the API.
func (w *follower) path() string { return "/v2/webhooks/subscriptions/" + w.cursor.subscription }

// read reads the record of the subscription.
func (w *follower) read(ctx context.Context, into any) error {
	resp, body, err := w.do(ctx, http.MethodGet, w.path(), "", nil)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return w.refusal(resp, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("invalid response of the server: %w", err)
	}
	return nil
}

const lastEventID = "Last-Event-ID"

// refusal returns the error of a response of the API.
func (w *follower) refusal(resp *http.Response, body []byte) error {
	problem, err := apply.ReadError(resp, body)
	if err == nil {
		err = fmt.Errorf("the server responded %s: %w", resp.Status, problem)
	}
	switch {
	case isTemporary(resp.StatusCode):
		return apply.Temporary{Err: err, After: retryAfter(resp, time.Now())}
	case problem == nil:
	case resp.StatusCode == http.StatusNotFound && w.followed:
		return fmt.Errorf("the subscription %s was deleted: it has no more events", w.cursor.subscription)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the program of the token has no subscription %s", w.cursor.subscription)
	case len(problem.Validations) == 1 && problem.Validations[0].Parameter == lastEventID:
		return fmt.Errorf("the server does not know the cursor in %s: it is from another program or installation; to begin with new events, "+
			"delete the file or choose another with --cursor-file", w.cursor.path)
	}
	return err
}

// errSilence ends a stream whose connection is dead.
var errSilence = errors.New("the server sent nothing for a minute")

// stream follows one stream until it ends. The error is an [apply.Temporary] if another one can continue.
func (w *follower) stream(ctx context.Context) error {
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	headers := map[string]string{"Accept": "text/event-stream", lastEventID: w.cursor.cursor}
	resp, err := w.open(reading, http.MethodGet, w.eventsPath(), headers, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIResponse))
		if err != nil {
			return transportError(reading, err)
		}
		return w.refusal(resp, body)
	}
	if media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || media != "text/event-stream" {
		return fmt.Errorf("the server does not send a stream of events but %q; check --url", resp.Header.Get("Content-Type"))
	}
	if w.followed {
		w.note("Connected again.")
	}
	w.followed = true
	in := newEventStream(resp.Body, w.silence, func() { cancel(errSilence) })
	for ctx.Err() == nil {
		e, err := in.next()
		switch {
		case err == io.EOF:
			return apply.Temporary{Err: errors.New("the server ended the stream")}
		case err == errLongLine:
			return err
		case context.Cause(reading) == errSilence:
			return apply.Temporary{Err: errSilence}
		case err != nil:
			return apply.Temporary{Err: fmt.Errorf("the stream broke off: %w", err)}
		}
		if err := w.handle(ctx, resp.Header.Get("X-Program-Id"), &e); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// handle handles one event of the stream, and then saves its cursor.
func (w *follower) handle(ctx context.Context, program string, e *streamEvent) error {
	switch {
	case e.name == "error":
		var record struct{ Error struct{ Code int } }
		if err := json.Unmarshal(e.data, &record); err != nil || record.Error.Code == 0 {
			return apply.Temporary{Err: errors.New("the server ended the stream with an error")}
		}
		code := record.Error.Code
		return w.refusal(&http.Response{StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code))}, e.data)
	case e.name == "truncated":
		w.note("Warning: events after the cursor were removed, because they are older than the retention of the service. They are lost " +
			"to this command; it continues with the oldest event.")
	case e.name == "" && e.data != nil:
		if err := w.event(ctx, program, e.data); err != nil {
			return err
		}
	}
	if e.id == "" {
		return nil
	}
	return w.cursor.save(e.id)
}

// event prints or forwards an event, which the API has sent as a record.
func (w *follower) event(ctx context.Context, program string, record []byte) error {
	event, ok := api.DeliveredEvent(record)
	var ref webhook.EventRef
	if err := json.Unmarshal(event, &ref); err != nil || !ok {
		return errors.New("the server sent an event that cannot be read; check --url")
	}
	subscription := w.cursor.subscription
	a := &arrival{
		ReceivedAt: webhook.FormatTime(time.Now()), SubscriptionID: subscription, ProgramID: program,
		DeliveryID: webhook.DerivedID("pull", subscription, ref.ID), // if it is repeated, the bytes are the same
		Events:     []webhook.EventRef{ref}, Times: 1, pulled: true,
	}
	a.raw = webhook.AppendBody(nil, a.DeliveryID, a.SubscriptionID, a.ProgramID, [][]byte{event})
	a.Body = a.raw
	if w.forward != nil {
		return w.forward.send(ctx, a)
	}
	w.print(a)
	return nil
}

// backoff is a sequence of waits that double from one to the next, with jitter.
type backoff struct{ wait, max time.Duration }

func newBackoff(first, last time.Duration) *backoff { return &backoff{first, last} }

// next returns the next wait, which is at least the given one.
func (b *backoff) next(least time.Duration) time.Duration {
	wait := max(b.wait/2+rand.N(b.wait/2+1), least)
	b.wait = min(2*b.wait, b.max)
	return wait.Round(time.Millisecond)
}

// pauseFor waits, and returns the error of ctx if that ends first.
func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
