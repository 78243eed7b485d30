package webhook

import "strings"

// Code says what kind of mistake of the caller an [Error] is. The HTTP status
// and the title of each stand in one table, in package api.
type Code string

const (
	CodeInvalid          Code = "invalid"             // a request that is malformed or breaks a rule
	CodeUnauthenticated  Code = "unauthenticated"     // no token, or one that identifies no user
	CodeForbidden        Code = "forbidden"           // the token lacks a scope
	CodeNotFound         Code = "not_found"           // no such record in this program
	CodeMethodNotAllowed Code = "method_not_allowed"  // the path exists, the method does not
	CodeTimeout          Code = "timeout"             // the service took too long
	CodeRequestTimeout   Code = "request_timeout"     // the client took too long to send its request
	CodeConflict         Code = "conflict"            // an identifier is taken
	CodePrecondition     Code = "precondition_failed" // the record is not the one the request was meant for
	CodeTooLarge         Code = "too_large"           // the body is over its limit
	CodeUnsupportedMedia Code = "unsupported_media"   // the body is of another media type
	CodeRateLimited      Code = "rate_limited"        // too many requests of a program, or of an address without a token
	CodeURITooLong       Code = "uri_too_long"        // the path and the query are over their limit
	CodeHeaderTooLarge   Code = "header_too_large"    // the header is over its limit
	CodeUnavailable      Code = "unavailable"         // the service cannot store anything just now
	CodeInternal         Code = "internal"            // a fault of the service
)

var codes = [...]Code{
	CodeInvalid, CodeUnauthenticated, CodeForbidden, CodeNotFound, CodeMethodNotAllowed,
	CodeTimeout, CodeRequestTimeout, CodeConflict, CodePrecondition, CodeTooLarge, CodeUnsupportedMedia,
	CodeRateLimited, CodeURITooLong, CodeHeaderTooLarge, CodeUnavailable, CodeInternal,
}

// Codes returns every [Code] there is, for the tests that must not forget one.
func Codes() []Code { return codes[:] }

// Error is the caller's mistake, worded for the caller: it holds no secret and
// nothing of another program. The API shows it as the spec's error envelope
// (section 7.1); the command line prints it as one line.
type Error struct {
	Code        Code
	Detail      string
	Validations []Validation // only with CodeInvalid
}

// Validation names one parameter that broke a rule (spec, section 7.1).
type Validation struct {
	Code      string `json:"code"` // one of the Invalid… constants
	Detail    string `json:"detail"`
	Parameter string `json:"parameter"` // a path: url, events[1].name, page[size]
}

// The validation codes.
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

// NewError returns an error of the given code with a detail for the caller.
func NewError(code Code, detail string) *Error { return &Error{Code: code, Detail: detail} }

// Invalid returns a CodeInvalid error for the parameters that broke a rule.
// It returns nil when there are none.
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

// NotFound returns the error for a record that is not there, or is there in
// another program: the two cannot be told apart (spec, section 7.2).
func NotFound(noun string) *Error {
	return &Error{Code: CodeNotFound, Detail: "There is no such " + noun + "."}
}
