package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"service/store"
	"service/webhook"
)

const (
	// maxWaiting is how many requests of a program may wait for events, streams included.
	maxWaiting = 64

	// waitRetry is the Retry-After of a request beyond maxWaiting, in seconds.
	waitRetry = "5"

	// streamIdle is the silence after which a stream sends a comment, to keep proxies from closing the
	// connection.
	streamIdle = 15 * time.Second

	mediaEvents  = "text/event-stream"
	lastEventID  = "Last-Event-ID"
	pageCursor   = "page[cursor]"
	streamAccept = "Accept"
)

// logMeta is the meta of a page of a log.
type logMeta struct {
	feedMeta
	Truncated bool `json:"truncated"`
}

// logRecords are the events of a page of a log.
type logRecords struct{ *store.LogPage }

// append appends the record of an event. In the log of a subscription it has a status.
func (r logRecords) append(dst []byte, i int) []byte {
	return r.Events[i].AppendLogged(dst, string(r.Statuses[i]))
}

func (r logRecords) appendJSON(dst []byte) []byte { return appendList(dst, len(r.Events), r.append) }

// EndWaits ends all waits for events and all streams, including those that begin later. Call it
// when the service starts to shut down.
func (a *API) EndWaits() { a.endLife() }

// pullEvents serves a page of the program's log, or of the events in it that are for a subscription, in
// ascending order.
func pullEvents(req *request) (answer, error) {
	p := &puller{req: req, query: req.query}
	req.leave = p.end
	if req.streams() {
		return p.stream()
	}
	var wait waiting
	if req.query.Wait > 0 {
		timer := time.NewTimer(req.query.Wait)
		defer timer.Stop()
		wait.over = timer.C
	}
	page, err := p.next(&wait)
	return answer{data: logRecords{page}, meta: logMeta{newFeedMeta(&req.query, page.Next), page.Truncated}}, err
}

// streams reports whether a request asks for a stream of events.
func (req *request) streams() bool {
	if req.http.Method == http.MethodHead {
		return false
	}
	for _, value := range req.http.Header[streamAccept] {
		for part := range strings.SplitSeq(value, ",") {
			if got, _, err := mime.ParseMediaType(part); err == nil && got == mediaEvents {
				return true
			}
		}
	}
	return false
}

// puller reads a log for one request.
type puller struct {
	req    *request
	query  webhook.ListQuery  // of the next page
	waiter *store.Waiter      // nil until the request may wait
	waits  bool               // it counts towards maxWaiting
	cancel context.CancelFunc // of the context after a wait
}

// end releases what the puller holds.
func (p *puller) end() {
	if p.waiter != nil {
		p.waiter.Close()
	}
	if p.waits {
		p.req.api.waiting.Leave(p.req.program())
	}
	if p.cancel != nil {
		p.cancel()
	}
}

// waiting says how a request waits for events; the zero value does not.
type waiting struct {
	over <-chan time.Time // ends the wait of a request
	idle func() error     // for a stream: called after each streamIdle
}

// next returns the next page. At the end of the log it waits for an event. It does not read a part
// of the log again in which it found no events.
func (p *puller) next(wait *waiting) (page *store.LogPage, err error) {
	req, events := p.req, p.req.api.store.Events()
	defer func() {
		// After a move this installation has neither the log nor the subscription any more.
		if err != nil && req.api.store.Programs().Move(req.program()) != nil {
			err = webhook.NewError(webhook.CodeUnavailable, "The program "+req.program()+
				" moved to another installation during the request. Send the request again.")
		}
	}()
	if wait.over == nil && wait.idle == nil {
		return pointer(events.Pull(req.ctx, req.program(), req.subscription, &p.query))
	}
	for again := true; again; {
		if p.waiter == nil || p.waiter.Changed() {
			if err := p.register(); err != nil {
				return &store.LogPage{}, err
			}
		}
		page, err = pointer(events.Pull(req.ctx, req.program(), req.subscription, &p.query))
		if err != nil {
			break
		}
		p.query.Cursor = cmp.Or(page.Next, p.query.Cursor)
		if again = len(page.Events) == 0 && page.Head && !page.Truncated; again {
			again, err = p.wait(wait)
		}
		if err != nil {
			break
		}
	}
	return page, err
}

// register subscribes the request to changes, and checks its token and its records again.
func (p *puller) register() error {
	for req := p.req; ; {
		if p.waiter != nil {
			p.waiter.Close()
		}
		registered := req.subscription
		p.waiter = req.api.store.Events().Await(req.program(), req.token.ID, registered, &p.query)
		err := p.check()
		if err != nil || registered == nil || registered.Revision == req.subscription.Revision {
			return err // otherwise it may have other names
		}
	}
}

func pointer(page store.LogPage, err error) (*store.LogPage, error) { return &page, err }

// wait waits until there may be events, or until the request must be checked again. It returns
// false when the wait is over.
func (p *puller) wait(wait *waiting) (again bool, err error) {
	if err := p.take(); err != nil {
		return false, err
	}
	var expired, idle <-chan time.Time
	if at := p.req.token.ExpiresAt; !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		expired = timer.C
	}
	if wait.idle != nil {
		ticker := time.NewTicker(streamIdle)
		defer ticker.Stop()
		idle = ticker.C
	}
	client := p.req.http.Context()
	for {
		select {
		case <-p.waiter.C:
		case <-expired:
			return false, errors.Join(p.renew(), p.check())
		case <-wait.over:
			return false, nil
		case <-p.req.api.life.Done():
			return false, nil
		case <-client.Done():
			return false, client.Err()
		case <-idle:
			if err := wait.idle(); err != nil {
				return false, err
			}
			continue
		}
		return true, p.renew()
	}
}

// take counts the request towards maxWaiting, or returns an error.
func (p *puller) take() error {
	if p.waits {
		return nil
	}
	if p.waits = p.req.api.waiting.Take(p.req.program(), maxWaiting); !p.waits {
		p.req.retryAfter = waitRetry
		return webhook.NewError(webhook.CodeRateLimited, fmt.Sprintf("%d requests of the program already wait for events. Try again in %s s, "+
			"or send the request without wait.", maxWaiting, waitRetry))
	}
	p.req.writeUntil(time.Time{}) // until the response
	return nil
}

// renew gives the work after a wait its own timeout.
func (p *puller) renew() error {
	if p.cancel != nil {
		p.cancel()
	}
	req := p.req
	ctx := store.ForLists(req.http.Context(), req.program())
	req.ctx, p.cancel = context.WithTimeout(ctx, req.api.timeout)
	return req.ctx.Err()
}

// check checks the token and the records of the request again.
func (p *puller) check() error {
	req := p.req
	token, err := req.api.token(req)
	if err != nil {
		return err
	}
	req.token = token
	if err := req.api.selectProgram(req); err != nil || req.route.find == nil {
		return err
	}
	return req.route.find(req)
}

// stream returns the answer that sends events as they are published, until the client disconnects.
func (p *puller) stream() (answer, error) {
	req := p.req
	if !req.route.query.list.Followed(&p.query) {
		return answer{}, webhook.Invalid(webhook.Validation{Code: webhook.InvalidValue, Parameter: streamAccept,
			Detail: mediaEvents + " needs the ascending order and no upper bound of the time of acceptance"})
	}
	if id := req.http.Header.Get(lastEventID); id != "" {
		p.query.Cursor = id
	}
	p.query.Size = webhook.MaxPageSize
	page, err := p.next(&waiting{})
	if err == nil {
		err = p.take()
	}
	if err != nil {
		var e *webhook.Error
		if req.http.Header.Get(lastEventID) != "" && errors.As(err, &e) && len(e.Validations) == 1 && e.Validations[0].Parameter == pageCursor {
			v := e.Validations[0]
			v.Parameter, v.Detail = lastEventID, "must be the id of an event of an earlier stream of this log"
			err = webhook.Invalid(v)
		}
		return answer{}, err
	}
	return answer{events: func(w io.Writer) error { return p.follow(w, page) }}, nil
}

// follow sends the events of a page, and of the pages that follow.
func (p *puller) follow(w io.Writer, page *store.LogPage) error {
	var b bytes.Buffer
	send := func() error {
		defer b.Reset()
		p.req.writeUntil(time.Now().Add(writeTimeout(b.Len())))
		_, err := w.Write(b.Bytes())
		return errors.Join(err, http.NewResponseController(p.req.w).Flush())
	}
	wait := waiting{idle: func() error {
		b.WriteString(":\n\n")
		return send()
	}}
	for {
		if page.Truncated {
			b.WriteString("event: truncated\ndata: {}\n\n")
		}
		records := logRecords{page}
		at := ""
		for i := range page.Events {
			at = page.Cursor(page.Events[i].Seq)
			b.WriteString("id: " + at + "\ndata: ")
			b.Write(records.append(b.AvailableBuffer(), i))
			b.WriteString("\n\n")
		}
		if page.Next != at {
			b.WriteString("id: " + page.Next + "\n\n") // no event, only how far the log was read
		}
		err := send()
		p.query.Cursor = page.Next
		if err == nil {
			err = p.renew()
		}
		if err == nil {
			page, err = p.next(&wait)
		}
		if err != nil || p.req.api.life.Err() != nil {
			return err
		}
	}
}

// sendEvents sends a stream of events. An error that the client did not cause ends the stream with
// an error event.
func (a *API) sendEvents(req *request, send func(io.Writer) error) {
	header := req.w.Header()
	header.Set("X-Request-Id", req.id)
	header.Set("Content-Type", mediaEvents)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Accel-Buffering", "no") // nginx would keep events until it has several KB
	header.Set(programHeader, req.program())
	header.Set("X-User-Id", req.token.UserID)
	a.quotaHeader(header, req)
	req.readUntil(time.Time{})
	if err := send(req.w); err != nil && req.http.Context().Err() == nil {
		var b bytes.Buffer
		b.WriteString("event: error\ndata: ")
		if render(&b, newErrorRecord(a.problem(req, err))) == nil {
			b.WriteString("\n\n")
			_, _ = req.w.Write(b.Bytes())
		}
	}
}
