package web

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"service/store"
	"service/webhook"
)

func notFound(*request) (answer, error) {
	return answer{}, &problem{
		status: http.StatusNotFound,
		title:  "There is no such page",
		text:   "The address may be mistyped, or what it showed is gone.",
	}
}

// problem is an error that is told to the visitor in full.
type problem struct {
	status      int
	title, text string
	command     string // what helps, to be typed into a terminal, "" for nothing
	after       string // what is to be said below the command
	allow       string // with 405
	again       bool   // trying again may help

	retryAfter time.Duration // with 429 and 503
}

func (p *problem) Error() string { return fmt.Sprintf("%d: %s", p.status, p.title) }

// invalid is [webhook.Invalid] as an error that is nil for none.
func invalid(v []webhook.Validation) error {
	if e := webhook.Invalid(v...); e != nil {
		return e
	}
	return nil
}

// busy turns the refusal to hash a password into a problem.
func busy(err error) error {
	if !errors.As(err, new(errBusy)) {
		return err
	}
	return &problem{status: http.StatusServiceUnavailable, title: "Try again in a few seconds", text: "Too many are signing in at this moment. Nothing was done.", retryAfter: 2 * time.Second}
}

// unwritable turns the failure to write into a problem.
func unwritable(err error) error {
	if !store.Unavailable(err) {
		return err
	}
	return &problem{status: http.StatusServiceUnavailable, title: "This cannot be stored just now", text: "The service cannot write to its disk, and nothing was done. Make room on it, and try again.", retryAfter: 10 * time.Second}
}

// isMistake says whether an error is the caller's.
func isMistake(err error) bool {
	var e *webhook.Error
	return errors.As(err, &e)
}

// mistake turns what the store refused into a problem, and leaves other errors
// as they are.
func mistake(err error) error {
	var e *webhook.Error
	if !errors.As(err, &e) {
		return err
	}
	status := http.StatusUnprocessableEntity
	switch e.Code {
	case webhook.CodeNotFound:
		status = http.StatusNotFound
	case webhook.CodeConflict:
		status = http.StatusConflict
	}
	return &problem{status: status, title: "This cannot be done", text: e.Error()}
}
