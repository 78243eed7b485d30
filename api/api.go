// Package api serves the /v2 API that partners call, and /healthz, /readyz and
// /metrics.
//
// It guarantees that
//
//   - every response has the envelope of the spec, even after a panic
//   - a 201 is sent only when the data is on disk
//   - a token cannot read, guess or change records of another program
//   - tokens, credentials and query values are never logged
//
// Handlers return an answer or an error, and only [API.write] writes a response.
// routes.go lists the routes, error.go the mapping of errors to statuses, and
// request.go the order of checks.
package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/julienschmidt/httprouter"
	"github.com/prometheus/client_golang/prometheus"

	"service/internal/move"
	"service/internal/ratelimit"
	"service/store"
	"service/webhook"
)

// Config configures an API.
type Config struct {
	// Store is required, and must stay open until the last request has been
	// served.
	Store *store.Store

	// Catalog contains the event types that can be published and subscribed to.
	// Required.
	Catalog *webhook.Catalog

	// Rules are the operator's rules for subscriptions. If its Catalog is nil,
	// the Catalog of this Config is used.
	Rules webhook.SubscriptionRules

	// Metrics is the registry that /metrics exports. The API adds its own
	// metrics. Nil exports only those.
	Metrics *prometheus.Registry

	// Logger logs every request (at info; at debug for /healthz, /readyz and
	// /metrics) and every internal error (at error). Nil logs nothing.
	Logger *slog.Logger

	// Ready returns an error if the rest of the process is not ready; the store
	// is checked separately. It must return quickly. /readyz shows the error without a token, so
	// the error must not contain anything confidential. Nil is
	// always ready.
	Ready func() error

	// Moves receives programs that move here. Required for the routes of moves.
	Moves *move.Target

	// MaxSubscriptions is the maximum number of subscriptions of a program
	// without a limit of its own; 0 is no limit.
	MaxSubscriptions int

	// BatchSize is the maximum number of events in a delivery, by which a dry
	// run of a replay computes the number of deliveries. 0 is DefaultBatchSize.
	BatchSize int

	// RateLimit is the maximum number of requests of a program in any 60
	// seconds, unless the program has a limit of its own; 0 is no limit.
	RateLimit int

	// PlatformRateLimit is the maximum number of requests of a platform token in
	// any 60 seconds, not counting requests that select a program; 0 is no limit.
	PlatformRateLimit int

	// BaseURL is the address of the API that the reference shows, without a
	// trailing slash; "" is https://service.example.
	BaseURL string

	// Receiving has settings that the reference and the guide for receivers show. Its BaseURL is not used.
	Receiving webhook.Receiving

	// RequestTimeout bounds a request: 504 when its work takes longer, 408 when its body takes
	// longer to arrive. A stream of events (application/x-ndjson) may take any time; for it,
	// RequestTimeout bounds the silence between two reads and the work on each chunk. 0 is
	// DefaultRequestTimeout.
	RequestTimeout time.Duration
}

// DefaultRequestTimeout is the default of Config.RequestTimeout.
const DefaultRequestTimeout = 30 * time.Second

// DefaultBatchSize is the default of Config.BatchSize.
const DefaultBatchSize = 100

// API serves every request. Its methods do what all routes share: authentication, limits, responses
// and logging. The handlers of a noun's routes are functions in its file.
type API struct {
	store             *store.Store
	catalog           *webhook.Catalog
	rules             webhook.SubscriptionRules
	logger            *slog.Logger
	ready             func() error
	baseURL           string
	maxSubscriptions  int
	batchSize         int
	timeout           time.Duration
	rateLimit         int // default of programs, 0 for no limit
	platformRateLimit int // 0 for no limit
	moves             *move.Target
	programLimiter    *rateLimiter
	platformLimiter   *rateLimiter
	invalidTokens     *ratelimit.Limiter
	waiting           ratelimit.Slots[string]    // requests that wait for events, by program
	inFlight          ratelimit.Slots[[2]string] // idempotency keys of the requests in flight, by token and key
	life              context.Context            // ends with EndWaits
	endLife           context.CancelFunc
	forwarder         *forwarder
	metrics           *metrics
	registry          *prometheus.Registry // includes metrics
	scraping          chan struct{}        // a semaphore: one scrape at a time

	documents *documents

	router  *httprouter.Router // only for Lookup, which neither redirects nor recovers
	methods []string           // every method that a route has

	putPatterns map[string]string // of the routes that PUT a record of a list, by the path of the list
	buffers     sync.Pool         // of *bytes.Buffer, for request and response bodies
	lines       sync.Pool         // of *[]byte, of lineBuffer bytes
}

// New returns the handler of /v2/…, /healthz, /readyz and /metrics. Other paths get a
// 404 in the envelope. It matches paths as they were sent, including escapes, so
// requests must reach it without a redirect to a cleaned path. RemoteAddr must be the
// address of the client, not of a proxy.
func New(cfg Config) *API {
	a := newAPI(cfg)
	a.handle(routes())
	return a
}

// Insecure rejects a request that came over plain HTTP. It ignores the token, which others may have
// read.
func (a *API) Insecure(w http.ResponseWriter, r *http.Request) {
	a.Refuse(w, r, webhook.NewError(webhook.CodeForbidden,
		"This is plain HTTP, which others can read. Use https://, and revoke a token that was sent in this way."))
}

// Refuse responds to a request with an error.
func (a *API) Refuse(w http.ResponseWriter, r *http.Request, e *webhook.Error) {
	a.serve(refusal(e), w, r, nil)
}

// Run renders the documents that contain the catalog in advance, so that no client waits for them,
// until ctx ends. Run is optional.
func (a *API) Run(ctx context.Context) error {
	a.documents.run(ctx)
	return nil
}

func newAPI(cfg Config) *API {
	a := &API{
		store: cfg.Store, catalog: cfg.Catalog, rules: cfg.Rules, ready: cfg.Ready, moves: cfg.Moves,
		logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), invalidTokens: ratelimit.New(maxAddresses), forwarder: newForwarder(),
		metrics: newMetrics(), registry: cmp.Or(cfg.Metrics, prometheus.NewRegistry()), scraping: make(chan struct{}, 1),
		maxSubscriptions: cfg.MaxSubscriptions, batchSize: cmp.Or(cfg.BatchSize, DefaultBatchSize),
		timeout: cmp.Or(cfg.RequestTimeout, DefaultRequestTimeout),
		baseURL: cmp.Or(cfg.BaseURL, exampleBaseURL), rateLimit: cfg.RateLimit, platformRateLimit: cfg.PlatformRateLimit,
		programLimiter: newRateLimiter(programPolicy), platformLimiter: newRateLimiter(platformPolicy),
	}
	a.life, a.endLife = context.WithCancel(context.Background())
	a.metrics.limited.exists = func(id string) bool {
		p, err := a.store.Programs().Get(context.Background(), id)
		return err == nil && p.ErasingSince.IsZero() || err != nil && webhook.CodeOf(err) != webhook.CodeNotFound
	}
	a.registry.MustRegister(a.metrics)
	a.rules.Catalog = cmp.Or(a.rules.Catalog, a.catalog)
	if a.ready == nil {
		a.ready = func() error { return nil }
	}
	shown := settings{
		cfg.Receiving, a.rateLimit, a.platformRateLimit, a.maxSubscriptions, a.timeout,
	}
	shown.BaseURL = a.baseURL
	a.documents = newDocuments(a.catalog, shown)
	return a
}

// ServeHTTP finds the request's route and serves it.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e := oversized(r); e != nil {
		a.Refuse(w, r, e)
		return
	}
	// The escaped path: an ID that contains %2F is an unknown ID, never another route.
	path := r.URL.EscapedPath()
	if serve, params, _ := a.router.Lookup(r.Method, path); serve != nil {
		serve(w, r, params)
		return
	}
	a.serve(a.unrouted(path), w, r, nil)
}

// serve handles a request, writes its response and logs it.
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
	status, size := a.respond(req)
	took := time.Since(start)
	a.metrics.request(rt, status, took)
	a.logRequest(req, status, size, took)
	req.discardBody()
}

// respond handles a request and writes its response.
func (a *API) respond(req *request) (status, size int) {
	ans, err := a.process(req)
	if req.move != nil {
		return a.forward(req)
	}
	return a.write(req, ans, a.acknowledge(req, err))
}

// logRequest logs a request. From the client's input it logs only the method, whose characters
// net/http has checked, and what the detail of a 400 quotes.
func (a *API) logRequest(req *request, status, size int, took time.Duration) {
	level := slog.LevelInfo
	if req.route.quiet {
		level = slog.LevelDebug
	}
	if !a.logger.Enabled(req.ctx, level) {
		return
	}
	attrs := [13]slog.Attr{
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
		attrs[7], attrs[8], attrs[9] = slog.String("program", req.program()), slog.String("user", t.UserID), slog.String("token", t.ID)
		n = 10
	}
	if req.move != nil {
		attrs[10], attrs[11] = slog.String("forwarded_to", req.move.URL), slog.String("target_request_id", req.targetRequestID)
		n = 12
	}
	if req.invalid != nil {
		attrs[n] = slog.String("reason", reasonOf(req.invalid))
		n++
	}
	a.logger.LogAttrs(req.ctx, level, "request", attrs[:n]...)
}

// maxReason bounds the reason of a 400 in the log, in bytes.
const maxReason = 500

// reasonOf returns what is wrong with a request, for the log.
func reasonOf(e *webhook.Error) string {
	if len(e.Validations) == 0 {
		return e.Detail
	}
	var faults []string
	for _, v := range e.Validations {
		faults = append(faults, v.Parameter+" "+v.Detail)
	}
	return webhook.Shorten(strings.Join(faults, "; "), maxReason)
}
