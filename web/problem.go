package web

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"service/store"
	"service/web/hashing"
	"service/web/ui"
	"service/webhook"
)

// notFound handles paths without a page.
func notFound(*request) (response, error) {
	return response{}, &problem{
		status: http.StatusNotFound,
		title:  "Page not found",
		text:   "Check the address for a typo. The record may also have been removed.",
	}
}

// problem is an error that the visitor sees in full.
type problem struct {
	status      int
	title, text string
	command     string // command that solves the problem, "" for none
	after       string // the text below the command
	allow       string // with 405
	again       bool   // a retry may help
	public      bool   // for visitors who are not admins: without a link to sign in

	retryAfter time.Duration // with 429 and 503
}

func (p *problem) Error() string { return fmt.Sprintf("%d: %s", p.status, p.title) }

// validationError is [webhook.Invalid] as an error; nil without validations.
func validationError(v []webhook.Validation) error {
	if e := webhook.Invalid(v...); e != nil {
		return e
	}
	return nil
}

// unavailableRetry is the Retry-After while the store cannot write, or another service does not respond.
const unavailableRetry = 10 * time.Second

// tooBusy returns the problem of hashing.ErrBusy, and other errors unchanged.
func tooBusy(err error) error {
	if !errors.Is(err, hashing.ErrBusy) {
		return err
	}
	return &problem{status: http.StatusServiceUnavailable, title: "Try again in a few seconds",
		text: "Too many sign-ins are in progress. Nothing was changed.", retryAfter: 2 * time.Second}
}

// unavailable returns the problem of a store that cannot write.
func unavailable(err error) *problem {
	p := &problem{status: http.StatusServiceUnavailable, title: "The change cannot be stored",
		text: "The service cannot write to its disk. Nothing was changed. Free disk space and try again.", retryAfter: unavailableRetry}
	if store.LeaseExpired(err) {
		p.text = "The service cannot renew its lease (only the instance that holds it may run), because the replica's bucket is unreachable. " +
			"Nothing was changed. Another instance may have taken over. Try again when the bucket is reachable."
	}
	return p
}

// done is the response to a form: a redirect with a note of what was done.
func done(location, text string) (response, error) {
	return response{location: location, note: &ui.Note{Kind: ui.NoteSuccess, Text: text}}, nil
}

// saved is done after a write; err says why nothing was changed.
func saved(err error, location, text string) (response, error) {
	if err != nil {
		return response{}, asProblem(err)
	}
	return done(location, text)
}

// isCallerError reports whether err is a *webhook.Error, a mistake of the caller.
func isCallerError(err error) bool {
	var e *webhook.Error
	return errors.As(err, &e)
}

// asProblem returns the problem of a *webhook.Error, and other errors unchanged.
func asProblem(err error) error {
	var e *webhook.Error
	if !errors.As(err, &e) {
		return err
	}
	status, title := http.StatusUnprocessableEntity, "The action is not possible"
	switch e.Code {
	case webhook.CodeNotFound:
		status, title = http.StatusNotFound, "Not found"
	case webhook.CodeConflict:
		status = http.StatusConflict
	case webhook.CodeRateLimited:
		status, title = http.StatusTooManyRequests, "Too many requests"
	}
	return &problem{status: status, title: title, text: e.Error()}
}
