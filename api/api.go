// Package api serves the /v2 API that partners call, and /healthz, /readyz and
// /metrics.
//
// It guarantees that every answer has the spec's envelope, whatever went
// wrong; that what was answered 201 is on disk; that nothing of one program can
// be seen, guessed or changed with a token of another; and that no token,
// credential or query value is ever logged.
//
// Handlers return an answer or an error; [API.write] alone writes. The routes
// stand in routes.go, what an error becomes in error.go, and the order of the
// checks in request.go.
package api

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/julienschmidt/httprouter"
	"github.com/prometheus/client_golang/prometheus"

	"service/store"
	"service/webhook"
)

// Config is what the API works with.
type Config struct {
	// Store is where everything is kept. Required; it must stay open until
	// the last request has been answered.
	Store *store.Store

	// Catalog holds the event types that can be published and subscribed to.
	// Required.
	Catalog *webhook.Catalog

	// Rules are the operator's rules for subscriptions. Its Catalog may be
	// nil: it is the one above then.
	Rules webhook.SubscriptionRules

	// Metrics is what /metrics shows. The API adds its own. Nil is those
	// alone.
	Metrics *prometheus.Registry

	// Logger receives a line for every request (level info; debug for
	// /healthz, /readyz and /metrics), and one for every fault of the service (level
	// error). Nil logs nothing.
	Logger *slog.Logger

	// Ready says whether the rest of the process is ready: nil, or what is
	// not. /readyz, which asks no token, shows the error's text, so it must
	// be fit for anybody to read. It must be quick. That the store answers is
	// checked without it. Nil is always ready.
	Ready func() error

	// MaxSubscriptions is how many subscriptions a program may have; 0 is no
	// limit.
	MaxSubscriptions int

	// BatchSize is how many events the dispatcher puts into one delivery at
	// the most; it is what the deliveries of a replay are counted by. 0 is
	// DefaultBatchSize.
	BatchSize int

	// RateLimit is how many requests a program may make in any 60 seconds; 0
	// is no limit.
	RateLimit int

	// BaseURL is what the reference gives as the address of the API, without a
	// final slash; "" is https://service.example.
	BaseURL string

	// RequestTimeout bounds a request in two ways: it is answered 504 when
	// its work takes longer, and 408 when its body takes longer to arrive. A
	// stream of events (application/x-ndjson) may take any time; there it
	// bounds the silence between two pieces of the stream, and the work of
	// each piece. 0 is DefaultRequestTimeout.
	RequestTimeout time.Duration
}

// DefaultRequestTimeout is the RequestTimeout of a Config that names none.
const DefaultRequestTimeout = 30 * time.Second

// DefaultBatchSize is the BatchSize of a Config that names none.
const DefaultBatchSize = 100

// API is the handler of every request. Its methods are what all routes share: who
// asks, how often, what is answered and logged. What a route does is a method of
// the type for its noun, subscriptionHandlers for instance.
type API struct {
	store            *store.Store
	catalog          *webhook.Catalog
	rules            webhook.SubscriptionRules
	logger           *slog.Logger
	ready            func() error
	maxSubscriptions int
	batchSize        int
	timeout          time.Duration
	inFlight         inFlightKeys
	limiter          *rateLimiter // nil: no limit
	invalidTokens    *invalidTokenLimiter
	metrics          *metrics
	registry         *prometheus.Registry // that metrics are in too
	scraping         chan struct{}        // holds the one scrape that is in flight

	document  func() *file // the contract
	reference func() *file // the contract as a page to read

	router  *httprouter.Router // asked with Lookup alone, which neither redirects nor recovers
	methods []string           // those that some route has
	buffers sync.Pool          // of *bytes.Buffer: bodies and answers
	lines   sync.Pool          // of *[]byte, of lineBuffer bytes
}

// New returns the handler of /v2/…, /healthz, /readyz and /metrics; any other path is
// answered 404 in the envelope. It judges paths as they were sent, escapes
// included, so requests must reach it without a redirect to a cleaned path.
// Their RemoteAddr must be the client's, not that of a proxy.
func New(cfg Config) *API {
	a := newAPI(cfg)
	a.handle(a.routes())
	return a
}

// Insecure refuses a request that has come in the clear, whatever it asks for:
// it looks at no token, which anybody on the way may have read.
func (a *API) Insecure(w http.ResponseWriter, r *http.Request) {
	a.serve(refusal(webhook.NewError(webhook.CodeForbidden, "This is plain HTTP, which anybody on the way can read: use https://. A token that was sent like this should be revoked.")), w, r, nil)
}

func newAPI(cfg Config) *API {
	a := &API{
		store: cfg.Store, catalog: cfg.Catalog, rules: cfg.Rules, logger: cfg.Logger, ready: cfg.Ready,
		maxSubscriptions: cfg.MaxSubscriptions, timeout: cfg.RequestTimeout, invalidTokens: newInvalidTokenLimiter(),
		metrics: newMetrics(), registry: cfg.Metrics, scraping: make(chan struct{}, 1),
	}
	if a.registry == nil {
		a.registry = prometheus.NewRegistry()
	}
	a.registry.MustRegister(a.metrics)
	if a.rules.Catalog == nil {
		a.rules.Catalog = a.catalog
	}
	if a.logger == nil {
		a.logger = slog.New(slog.DiscardHandler)
	}
	if a.ready == nil {
		a.ready = func() error { return nil }
	}
	if cfg.RateLimit > 0 {
		a.limiter = newRateLimiter(cfg.RateLimit)
	}
	a.document, a.reference = documents(a.catalog, cfg.BaseURL)
	if a.batchSize = cfg.BatchSize; a.batchSize == 0 {
		a.batchSize = DefaultBatchSize
	}
	if a.timeout == 0 {
		a.timeout = DefaultRequestTimeout
	}
	return a
}

// ServeHTTP finds the request's route and serves it.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e := oversized(r); e != nil {
		a.serve(refusal(e), w, r, nil)
		return
	}
	// The escaped path: an id that holds %2F is an unknown id, never another route.
	path := r.URL.EscapedPath()
	if serve, params, _ := a.router.Lookup(r.Method, path); serve != nil {
		serve(w, r, params)
		return
	}
	a.serve(a.unrouted(path), w, r, nil)
}

// serve takes a request through the chain: it is judged and handled, answered
// and logged, each in one place.
func (a *API) serve(rt *route, w http.ResponseWriter, r *http.Request, params httprouter.Params) {
	start := time.Now()
	ctx := &bounded{Context: r.Context(), deadline: start.Add(a.timeout)}
	defer ctx.end()
	req := &request{w: w, http: r, ctx: ctx, id: webhook.NewID(), route: rt, params: params, api: a}
	defer req.release()
	if r.ContentLength != 0 { // -1: not known
		req.readUntil(start.Add(a.timeout))
		req.unread = true
	}
	ans, err := a.judge(req)
	err = a.acknowledge(req, err)
	status, size := a.write(req, ans, err)
	took := time.Since(start)
	a.metrics.request(rt, status, took)
	a.logRequest(req, status, size, took)
	req.discardBody()
}

// logRequest writes the line of a request: nothing in it is the client's but
// the method, whose alphabet net/http has checked.
func (a *API) logRequest(req *request, status, size int, took time.Duration) {
	level := slog.LevelInfo
	if req.route.quiet {
		level = slog.LevelDebug
	}
	if !a.logger.Enabled(req.ctx, level) {
		return
	}
	attrs := [10]slog.Attr{
		slog.String("method", req.http.Method),
		slog.String("route", req.route.pattern),
		slog.Int("status", status),
		slog.Duration("duration", took),
		slog.Int("bytes", size),
		slog.String("request_id", req.id),
		slog.String("remote", req.http.RemoteAddr),
	}
	n := 7
	if t := req.token; t != nil {
		attrs[7], attrs[8], attrs[9] = slog.String("program", t.ProgramID), slog.String("user", t.UserID), slog.String("token", t.ID)
		n = 10
	}
	a.logger.LogAttrs(req.ctx, level, "request", attrs[:n]...)
}
