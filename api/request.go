package api

import (
	"bytes"
	"context"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/julienschmidt/httprouter"

	"service/store"
	"service/webhook"
)

// request is one request. It belongs to the goroutine that serves it.
type request struct {
	api    *API
	w      http.ResponseWriter // for its deadlines; only API.write writes to it
	http   *http.Request
	ctx    context.Context // ends when the client disconnects, or after API.timeout
	id     string
	route  *route
	params httprouter.Params

	token      *webhook.Token // nil before authentication, and on routes that need none
	programID  string         // see program
	query      webhook.ListQuery
	quota      quota  // of the program or the platform token; zero without a limit
	retryAfter string // the Retry-After header of CodeRateLimited and of a temporary CodeConflict
	allow      string // the Allow header of CodeMethodNotAllowed

	// Set by route.find.
	subscription *webhook.Subscription
	delivery     *webhook.Delivery
	event        *webhook.Event
	eventType    *webhook.EventType
	replay       *webhook.Replay
	incident     *webhook.Incident
	bulkRun      *webhook.BulkRun
	tenant       *webhook.Program // that the path names; not the one that the request acts in

	key *webhook.IdempotencyKey // under which the response is stored, or nil

	move            *webhook.ProgramMove // set if the request is forwarded, see API.forward
	targetRequestID string               // of the installation that it was forwarded to

	invalid *webhook.Error // the error of a 400, for the log

	acknowledged bool // the handler has done the work of API.acknowledge

	leave func() // releases what the handler holds, after the response; nil for nothing

	body    *bytes.Buffer // from API.buffer, returned by release
	unread  bool          // the body has not been read completely
	started bool          // part of the body was read
	discard bool          // read the rest of the body after the response
}

// bounded is a context with a deadline that starts a timer only when a goroutine waits for it. Most
// requests, including publishes, need no timer. The parent must have no deadline. The owner must
// call end.
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

// Err compares the time itself while no timer runs.
func (b *bounded) Err() error {
	if t := b.timed.Load(); t != nil {
		return t.Err()
	}
	if err := b.Context.Err(); err != nil || time.Now().Before(b.deadline) {
		return err
	}
	return context.DeadlineExceeded
}

// Value lets a derived context find the context with the timer.
func (b *bounded) Value(key any) any {
	if t := b.timed.Load(); t != nil {
		return t.Value(key)
	}
	return b.Context.Value(key)
}

// end stops the timer, if there is one.
func (b *bounded) end() {
	if t := b.timed.Load(); t != nil {
		t.cancel()
	}
}

// program returns the program that the request may access: the token's, or the one that a platform
// token selected, "" if it selected none.
func (req *request) program() string { return req.programID }

// process checks a request and calls its handler. The order of checks is the same for
// all routes, so no client learns more than it may: token (401), rate limit (429), program
// and scope (400, 403, 404), record (404), then query and body (415, 413, 400).
func (a *API) process(req *request) (ans answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			err = panicked{p, debug.Stack()}
		}
	}()
	switch scope := req.route.scope; {
	case scope == scopeOwner:
		req.token, req.ctx = ownerToken(), store.ForLists(req.http.Context(), "") // without a deadline
		req.readUntil(time.Time{})
	case !req.needsNoToken():
		if err := a.authenticate(req); err != nil {
			return ans, err
		}
		if scope != scopeAny && !req.token.Allows(scope) {
			return ans, webhook.NewError(webhook.CodeForbidden, "The access token lacks the scope "+string(scope)+".")
		}
		if req.program() == "" && req.token.Platform() && scope != scopeAny && scope != webhook.ScopePlatform {
			return ans, webhook.Invalid(webhook.Validation{
				Code: webhook.InvalidRequired, Parameter: programHeader, Detail: "is required with a platform token: the ID of a program",
			})
		}
		req.ctx = req.reading()
	}
	defer func() { err = a.overtaken(req, err) }()
	if req.route.find != nil {
		if err := req.route.find(req); err != nil {
			return ans, err
		}
	}
	var invalid *webhook.Error
	if req.query, invalid = req.route.query.parse(req.http.URL.RawQuery); invalid != nil {
		return ans, invalid
	}
	if err := a.checkEvents(req); err != nil {
		return ans, err
	}
	return req.route.handle(req)
}

// reading returns the context for the reads of a request whose program is known: programs take
// turns, and lists and records by ID do not wait for each other.
func (req *request) reading() context.Context {
	if req.route.query.list != nil {
		return store.ForLists(req.ctx, req.program())
	}
	return store.ForLookups(req.ctx, req.program())
}

// checkEvents rejects event names in filters that neither the catalog nor the program knows. The
// program's log and subscriptions may contain names of removed event types.
func (a *API) checkEvents(req *request) error {
	list := req.route.query.list
	unknown, _ := list.UnknownEvents(&req.query, a.catalog, nil)
	if unknown == nil {
		return nil
	}
	used, err := a.store.EventTypes().Used(req.ctx, req.program(), unknown)
	if err != nil {
		return err
	}
	if _, invalid := list.UnknownEvents(&req.query, a.catalog, used); invalid != nil {
		return invalid
	}
	return nil
}

// overtaken returns the error of a request whose program was frozen for a move in the meantime. A
// read may have seen only some of the program's records, or none.
func (a *API) overtaken(req *request, err error) error {
	if req.program() == "" {
		return err
	}
	move := a.store.Programs().Move(req.program())
	if move == nil {
		return err
	}
	method := req.http.Method
	if err == nil && (method == http.MethodGet || method == http.MethodHead) || webhook.CodeOf(err) == webhook.CodeNotFound {
		if move.Forwards {
			return webhook.NewError(webhook.CodeUnavailable, "The program "+req.program()+" has moved to another installation during "+
				"the request. Retry the request.")
		}
		return move.Unavailable(req.program())
	}
	return err
}

// acknowledge waits until a response may reveal what is stored, see
// [store.Replica.Acknowledge]. This applies to every success of a request that may write,
// and to errors that depend on stored records, such as a 404 after a deletion. It returns
// the error to respond with.
func (a *API) acknowledge(req *request, err error) error {
	if method := req.http.Method; method == http.MethodGet || method == http.MethodHead || req.token == nil || req.acknowledged {
		return err
	}
	code := webhook.CodeOf(err)
	if err != nil && code != webhook.CodeNotFound && code != webhook.CodeConflict && code != webhook.CodePrecondition {
		return err
	}
	if late := a.store.Replica().Acknowledge(req.http.Context()); late != nil {
		return late
	}
	return err
}

// token returns the token of the request.
func (a *API) token(req *request) (*webhook.Token, error) {
	if req.owner() {
		return ownerToken(), nil
	}
	values := req.http.Header["Authorization"]
	if len(values) == 0 {
		return nil, webhook.NewError(webhook.CodeUnauthenticated, "An access token is required: Authorization: Bearer <token>.")
	}
	scheme, secret, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") {
		return nil, webhook.NewError(webhook.CodeUnauthenticated, "The request must have one Authorization header: Bearer <token>.")
	}
	return a.store.Tokens().Authenticate(req.ctx, strings.Trim(secret, " "))
}

// readUntil sets the deadline for reads of the body; the zero time is none. It does nothing if the
// ResponseWriter does not support deadlines.
func (req *request) readUntil(t time.Time) {
	_ = http.NewResponseController(req.w).SetReadDeadline(t)
}

// writeUntil sets the deadline for writing the response; the zero time is none.
func (req *request) writeUntil(t time.Time) {
	_ = http.NewResponseController(req.w).SetWriteDeadline(t)
}

// release returns the buffer of the request, and calls leave.
func (req *request) release() {
	if req.leave != nil {
		req.leave()
	}
	if req.body != nil {
		req.api.putBuffer(req.body)
		req.body = nil
	}
}

// maxPooledBuffer is the largest buffer that is kept for reuse, in bytes.
const maxPooledBuffer = 256 << 10

// buffer returns an empty buffer, to be returned with putBuffer.
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
