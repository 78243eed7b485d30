package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"service/store"
	"service/webhook"
)

// kind is the HTTP status and title of an error code.
type kind struct {
	status int
	title  string
}

// kinds is the table of codes, statuses and titles (spec, section 7.2).
var kinds = map[webhook.Code]kind{
	webhook.CodeInvalid:          {http.StatusBadRequest, "Bad Request"},
	webhook.CodeUnauthenticated:  {http.StatusUnauthorized, "Unauthenticated"},
	webhook.CodeForbidden:        {http.StatusForbidden, "Forbidden"},
	webhook.CodeNotFound:         {http.StatusNotFound, "Not Found"},
	webhook.CodeMethodNotAllowed: {http.StatusMethodNotAllowed, "Method Not Allowed"},
	webhook.CodeRequestTimeout:   {http.StatusRequestTimeout, "Incomplete Request"},
	webhook.CodeConflict:         {http.StatusConflict, "Conflict"},
	webhook.CodePrecondition:     {http.StatusPreconditionFailed, "Precondition Failed"},
	webhook.CodeTooLarge:         {http.StatusRequestEntityTooLarge, "Content Too Large"},
	webhook.CodeUnsupportedMedia: {http.StatusUnsupportedMediaType, "Unsupported Media Type"},
	webhook.CodeRateLimited:      {http.StatusTooManyRequests, "Too Many Requests"},
	webhook.CodeURITooLong:       {http.StatusRequestURITooLong, "URI Too Long"},
	webhook.CodeHeaderTooLarge:   {http.StatusRequestHeaderFieldsTooLarge, "Request Header Fields Too Large"},
	webhook.CodeInternal:         {http.StatusInternalServerError, "Internal server error"},
	webhook.CodeUnavailable:      {http.StatusServiceUnavailable, "Service Unavailable"},
	webhook.CodeTimeout:          {http.StatusGatewayTimeout, "Request timeout"},
}

// retryAfter is the Retry-After of every 503, in seconds.
const retryAfter = "5"

// retryRedelivery is the Retry-After of a 429 for too many open redeliveries, in seconds. It is a
// guess: when a redelivery ends is unknown.
const retryRedelivery = "30"

// retryDryRun is the Retry-After of a 409 for too many dry runs, in seconds. No dry run takes
// longer.
const retryDryRun = "2"

// problem returns the error to respond with. Internal errors are logged here, once, and
// their details are not returned.
func (a *API) problem(req *request, err error) *webhook.Error {
	var e *webhook.Error
	var p panicked
	switch ended := req.ctx.Err(); {
	case errors.As(err, &e):
		if errors.Is(err, store.ErrDryRuns) {
			req.retryAfter = retryDryRun
			a.store.Reject(req.ctx, req.program())
		}
	case errors.Is(err, store.ErrUnavailable):
		// The store logs an outage of the disk itself, once and not for each request.
		a.logFault(req, slog.LevelDebug, "storage is not writable", err)
		e = webhook.NewError(webhook.CodeUnavailable, "The service cannot store anything at the moment. Try again later.")
	case errors.Is(err, store.ErrBusy):
		a.store.Reject(req.ctx, req.program())
		e = webhook.NewError(webhook.CodeUnavailable, "Too many requests of the program are waiting to read lists. Send fewer at a time.")
	case store.Unavailable(err):
		a.logError(req, "storage is not readable", err)
		e = webhook.NewError(webhook.CodeUnavailable, "The service cannot read its data at the moment. Try again later.")
	case errors.Is(err, context.DeadlineExceeded), ended == context.DeadlineExceeded && !errors.As(err, &p):
		e = webhook.NewError(webhook.CodeTimeout, fmt.Sprintf("The request took longer than %s.", a.timeout))
	case errors.Is(err, context.Canceled), ended == context.Canceled && !errors.As(err, &p):
		// The client has disconnected, or the service is shutting down.
		e = webhook.NewError(webhook.CodeUnavailable, "The request was cancelled.")
	default:
		a.logError(req, "internal error", err)
		e = webhook.NewError(webhook.CodeInternal, "The service failed. Give the request ID "+req.id+" to the operator.")
	}
	if req.owner() && !errors.As(err, new(*webhook.Error)) && !errors.As(err, &p) {
		e = webhook.NewError(e.Code, err.Error()) // the owner can read the log
	}
	var part partial
	if errors.As(err, &part) {
		e = &webhook.Error{Code: e.Code, Detail: e.Detail + " " + part.sentence(), Validations: e.Validations}
	}
	return e
}

func (a *API) logError(req *request, message string, err error) {
	a.logFault(req, slog.LevelError, message, err)
}

// logFault logs an internal error with its request. Client input does not appear in it.
func (a *API) logFault(req *request, level slog.Level, message string, err error) {
	a.logger.LogAttrs(req.ctx, level, message,
		slog.String("error", err.Error()),
		slog.String("method", req.http.Method),
		slog.String("route", req.route.pattern),
		slog.String("request_id", req.id))
}

// panicked is the error of a handler that panicked.
type panicked struct {
	value any
	stack []byte
}

func (p panicked) Error() string { return fmt.Sprintf("panic: %v\n%s", p.value, p.stack) }

// errorRecord is the envelope of an error (spec, section 7.1).
type errorRecord struct {
	Error struct {
		Code        int                  `json:"code"`
		Title       string               `json:"title"`
		Detail      string               `json:"detail"`
		Validations []webhook.Validation `json:"validations,omitempty"`
	} `json:"error"`
}

func newErrorRecord(e *webhook.Error) errorRecord {
	k := kinds[e.Code]
	var r errorRecord
	r.Error.Code, r.Error.Title, r.Error.Detail, r.Error.Validations = k.status, k.title, e.Detail, e.Validations
	return r
}
