package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/julienschmidt/httprouter"

	"service/webhook"
)

// request is one request on its way through the chain. It belongs to the
// goroutine that serves it.
type request struct {
	api    *API
	w      http.ResponseWriter // for its deadlines; API.write alone writes
	http   *http.Request
	ctx    context.Context // ends with the client's interest, or after API.timeout
	id     string
	route  *route
	params httprouter.Params

	token      *webhook.Token // once it is known; nil on routes that ask for none
	query      webhook.ListQuery
	quota      quota  // of the program, once it is known and has a limit
	retryAfter string // with CodeRateLimited, and a CodeConflict that passes: the Retry-After header
	allow      string // with CodeMethodNotAllowed: the Allow header

	// What route.find has found.
	subscription *webhook.Subscription
	delivery     *webhook.Delivery
	event        *webhook.Event
	eventType    *webhook.EventType
	replay       *webhook.Replay
	incident     *webhook.Incident
	bulkRun      *webhook.BulkRun

	key *webhook.IdempotencyKey // of the answer that is to be kept, or nil

	acknowledged bool // the handler has waited until its answer may be given, see API.acknowledge

	body    *bytes.Buffer // given back by release
	unread  bool          // the body has not been read to its end
	started bool          // a part of the body was read
	discard bool          // the rest of the body is read after the response
}

// bounded is a context with a deadline. It starts a timer only when a goroutine
// waits for it, which most requests do without, those that publish among them. Its
// parent has no deadline. The owner must call end when it no longer needs it.
type bounded struct {
	context.Context
	deadline time.Time

	begin sync.Once
	timed atomic.Pointer[timed] // nil until a goroutine waits
}

type timed struct {
	context.Context
	cancel context.CancelFunc
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bounded) Done() <-chan struct{} {
	b.begin.Do(func() {
		var t timed
		t.Context, t.cancel = context.WithDeadline(b.Context, b.deadline)
		b.timed.Store(&t)
	})
	return b.timed.Load().Done()
}

func (b *bounded) Err() error {
	if t := b.timed.Load(); t != nil {
		return t.Err()
	}
	if err := b.Context.Err(); err != nil || time.Now().Before(b.deadline) {
		return err
	}
	return context.DeadlineExceeded
}

// Value lets a context that is made of this one find the one with the timer.
func (b *bounded) Value(key any) any {
	if t := b.timed.Load(); t != nil {
		return t.Value(key)
	}
	return b.Context.Value(key)
}

func (b *bounded) end() {
	if t := b.timed.Load(); t != nil {
		t.cancel()
	}
}

// program is the scope of everything the request may see.
func (req *request) program() string { return req.token.ProgramID }

// judge checks a request and has it handled. The order is the same for all:
// who asks (401), whether it is too often (429), whether they may (403), whether
// the record exists (404), then what they ask for (415, 413, 400). So no
// client learns more than it may.
func (a *API) judge(req *request) (ans answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			err = panicked{p, debug.Stack()}
		}
	}()
	if scope := req.route.scope; !req.free() {
		if err := a.authenticate(req); err != nil {
			return ans, err
		}
		if scope != scopeAny && !req.token.Allows(scope) {
			return ans, webhook.NewError(webhook.CodeForbidden, "The access token lacks the scope "+string(scope)+".")
		}
	}
	if req.route.find != nil {
		if err := req.route.find(req); err != nil {
			return ans, err
		}
	}
	var invalid *webhook.Error
	if req.query, invalid = req.route.query.parse(req.http.URL.RawQuery); invalid != nil {
		return ans, invalid
	}
	if invalid = req.route.query.list.CheckEvents(&req.query, a.catalog); invalid != nil {
		return ans, invalid
	}
	return req.route.handle(req)
}

// acknowledge waits until an answer may say that something is stored, see
// [store.Store.Acknowledge]. Every success of a request that may write says so, and so
// does an error that depends on what is stored: that a record is gone, for example,
// which the request before has deleted. The error is the one to answer with.
func (a *API) acknowledge(req *request, err error) error {
	if method := req.http.Method; method == http.MethodGet || method == http.MethodHead || req.token == nil || req.acknowledged {
		return err
	}
	if err != nil {
		var e *webhook.Error
		if !errors.As(err, &e) || e.Code != webhook.CodeNotFound && e.Code != webhook.CodeConflict && e.Code != webhook.CodePrecondition {
			return err
		}
	}
	if late := a.store.Acknowledge(req.http.Context()); late != nil {
		return late
	}
	return err
}

// authenticate returns the token that the request carries.
func (a *API) token(req *request) (*webhook.Token, error) {
	values := req.http.Header["Authorization"]
	if len(values) == 0 {
		return nil, webhook.NewError(webhook.CodeUnauthenticated, "An access token is required: Authorization: Bearer <token>.")
	}
	scheme, secret, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") {
		return nil, webhook.NewError(webhook.CodeUnauthenticated, "The Authorization header must be, once, Bearer and an access token.")
	}
	return a.store.Tokens().Authenticate(req.ctx, strings.Trim(secret, " "))
}

// readUntil bounds the time that reads of the body may take; the zero time is
// no bound. A writer that knows no deadlines has none.
func (req *request) readUntil(t time.Time) {
	_ = http.NewResponseController(req.w).SetReadDeadline(t)
}

// writeUntil bounds the time that the answer may take to be read; the zero time
// is no bound.
func (req *request) writeUntil(t time.Time) {
	_ = http.NewResponseController(req.w).SetWriteDeadline(t)
}

// release gives back what the request has borrowed.
func (req *request) release() {
	if req.body != nil {
		req.api.putBuffer(req.body)
		req.body = nil
	}
}

// maxPooledBuffer bounds what one large body keeps in memory, in bytes.
const maxPooledBuffer = 256 << 10

// buffer returns an empty buffer; putBuffer takes it back.
func (a *API) buffer() *bytes.Buffer {
	if b, ok := a.buffers.Get().(*bytes.Buffer); ok {
		b.Reset()
		return b
	}
	return bytes.NewBuffer(make([]byte, 0, 1024))
}

func (a *API) putBuffer(b *bytes.Buffer) {
	if b.Cap() <= maxPooledBuffer {
		a.buffers.Put(b)
	}
}
