package webhook

import (
	"errors"
	"strings"
)

// Code is the kind of an [Error]. Package api maps each to its HTTP status and title.
type Code string

const (
	CodeInvalid          Code = "invalid"             // a request that is malformed or breaks a rule
	CodeUnauthenticated  Code = "unauthenticated"     // no token, or an invalid one
	CodeForbidden        Code = "forbidden"           // the token lacks a scope
	CodeNotFound         Code = "not_found"           // no such record in this program
	CodeMethodNotAllowed Code = "method_not_allowed"  // the path exists, but not with this method
	CodeTimeout          Code = "timeout"             // the service took longer than --request-timeout
	CodeRequestTimeout   Code = "request_timeout"     // the client took too long to send the request
	CodeConflict         Code = "conflict"            // an identifier is taken, or the record's state does not allow the operation
	CodePrecondition     Code = "precondition_failed" // If-Match or If-None-Match is not met
	CodeTooLarge         Code = "too_large"           // the body exceeds its limit
	CodeUnsupportedMedia Code = "unsupported_media"   // the body has an unsupported media type or encoding
	CodeRateLimited      Code = "rate_limited"        // too many requests from a program, or from an address without a token
	CodeURITooLong       Code = "uri_too_long"        // path and query exceed their limit
	CodeHeaderTooLarge   Code = "header_too_large"    // the headers exceed their limit
	CodeUnavailable      Code = "unavailable"         // the service cannot store, read or acknowledge now
	CodeInternal         Code = "internal"            // an error of the service
)

var codes = [...]Code{
	CodeInvalid, CodeUnauthenticated, CodeForbidden, CodeNotFound, CodeMethodNotAllowed,
	CodeTimeout, CodeRequestTimeout, CodeConflict, CodePrecondition, CodeTooLarge, CodeUnsupportedMedia,
	CodeRateLimited, CodeURITooLong, CodeHeaderTooLarge, CodeUnavailable, CodeInternal,
}

// Codes returns every [Code], for exhaustive tests.
func Codes() []Code { return codes[:] }

// Error is an error worded for the caller, usually about the caller's mistake. It
// contains no secrets and nothing from other programs. The API returns it in the spec's
// error envelope (section 7.1); the command line prints it on one line.
type Error struct {
	Code        Code
	Detail      string
	Validations []Validation // only with CodeInvalid
}

// Validation describes one invalid parameter (spec, section 7.1).
type Validation struct {
	Code      string `json:"code"` // one of the Invalid… constants
	Detail    string `json:"detail"`
	Parameter string `json:"parameter"` // a path: url, events[1].name, page[size]
}

// The codes of a [Validation]. The reference at /docs explains them (api/openapi.yaml).
const (
	InvalidRequired           = "required"
	InvalidType               = "invalid_type"
	InvalidFormat             = "invalid_format"
	InvalidValue              = "invalid_value"
	InvalidUnknownField       = "unknown_field"
	InvalidUnknownEvent       = "unknown_event"
	InvalidTooLong            = "too_long"
	InvalidTooMany            = "too_many"
	InvalidTooLarge           = "too_large"
	InvalidDuplicate          = "duplicate"
	InvalidBlockedDestination = "blocked_destination"
)

func (e *Error) Error() string {
	if len(e.Validations) == 0 {
		return e.Detail
	}
	var b strings.Builder
	b.WriteString(e.Detail)
	for i, v := range e.Validations {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteByte(' ')
		b.WriteString(v.Parameter)
		b.WriteString(": ")
		b.WriteString(v.Detail)
	}
	return b.String()
}

// CodeOf returns the code of the *[Error] that err is or wraps, "" for nil and any other error.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// NewError returns an error with a detail for the caller.
func NewError(code Code, detail string) *Error { return &Error{Code: code, Detail: detail} }

// Invalid returns a CodeInvalid error for the validations, nil if there are none.
func Invalid(validations ...Validation) *Error {
	if len(validations) == 0 {
		return nil
	}
	detail := "One parameter is not valid."
	if len(validations) > 1 {
		detail = "Several parameters are not valid."
	}
	return &Error{Code: CodeInvalid, Detail: detail, Validations: validations}
}

// NotFound returns the error for a record that does not exist, or belongs to
// another program: callers cannot tell the two apart (spec, section 7.2).
func NotFound(noun string) *Error {
	return &Error{Code: CodeNotFound, Detail: "There is no such " + noun + "."}
}

// NoProgram returns the error for a program that does not exist.
func NoProgram(id string) *Error { return NewError(CodeNotFound, "There is no program "+id+".") }
