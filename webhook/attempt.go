package webhook

import "time"

// Result is the outcome of an attempt (spec, sections 2.2 and 3).
type Result string

const (
	ResultSuccess   Result = "success"
	ResultFailed    Result = "failed"
	ResultRetryable Result = "retryable"
)

// ErrorCode is why an attempt got no usable response.
type ErrorCode string

const (
	ErrorNone        ErrorCode = ""
	ErrorTimeout     ErrorCode = "timeout"     // no response within the attempt timeout
	ErrorDNS         ErrorCode = "dns"         // the host name has no address, or one that the egress guard forbids
	ErrorConnect     ErrorCode = "connect"     // no connection, or it broke before a response
	ErrorTLS         ErrorCode = "tls"         // no verified TLS connection
	ErrorBlocked     ErrorCode = "blocked"     // the egress guard forbids the address in the URL
	ErrorProtocol    ErrorCode = "protocol"    // not an HTTP response
	ErrorInterrupted ErrorCode = "interrupted" // the service stopped during the attempt
)

var errorDetails = map[ErrorCode]string{
	ErrorTimeout: "The endpoint did not respond within the attempt timeout.",
	ErrorDNS:     "The host name of the URL could not be resolved to an address that deliveries may be sent to.",
	ErrorConnect: "The connection failed, or was closed before a response arrived.",
	ErrorTLS: "The TLS connection failed. Often the endpoint does not send its intermediate certificate. Its certificate may also be " +
		"expired, for another name, or not publicly trusted, or it requires a client certificate.",
	ErrorBlocked:     "The URL has an address that deliveries may not be sent to.",
	ErrorProtocol:    "The endpoint's response was not valid HTTP/1.1.",
	ErrorInterrupted: "The service stopped during this attempt; it is unknown whether the endpoint received it.",
}

// ErrorCodes returns every error code but ErrorNone.
func ErrorCodes() []ErrorCode {
	return []ErrorCode{ErrorTimeout, ErrorDNS, ErrorConnect, ErrorTLS, ErrorBlocked, ErrorProtocol, ErrorInterrupted}
}

// Detail describes the error for partners. It is the same for every cause of a
// code, so it reveals nothing about the operator's network.
func (c ErrorCode) Detail() string { return errorDetails[c] }

// MaxStoredBody is how many bytes of a response body are stored for admins.
const MaxStoredBody = 16 << 10

// Attempt is one HTTP request made for a delivery, and its result.
type Attempt struct {
	Number         int    // 1 to MaxAttempts
	URL            string // target of the request; "" if unknown, after many changes of the subscription's URL
	StartedAt      time.Time
	Duration       time.Duration
	Result         Result
	ResponseStatus int       // 0 without a response
	Error          ErrorCode // ErrorNone with a response

	// ErrorFact is the cause of Error for admins, such as "connection refused"; ""
	// if unknown.
	ErrorFact string

	// Phases are the durations of the attempt's parts, for admins.
	Phases Phases

	// Only for admins. If partners could read responses, every URL field could be
	// used to look into a private network.
	ResponseHeader    string // as received, one line each
	ResponseBody      []byte // the first MaxStoredBody bytes
	ResponseTruncated bool   // the body was longer
	ResponseRemoved   bool   // there was a response, but its headers and body are no longer stored

	// RetryAfter is the wait that a 429 or 503 asked for, 0 for none.
	RetryAfter time.Duration
}

// Phases are the consecutive parts of an attempt; zero if a part did not happen.
// The first three are zero on a reused connection. The rest of the attempt's
// duration was spent on reading the response, or on what failed.
type Phases struct {
	DNS       time.Duration // until the host was resolved
	Connect   time.Duration // until a TCP connection was made
	TLS       time.Duration // until the TLS handshake was complete
	FirstByte time.Duration // from then to the first byte of the response
}

// Classify returns the result of an attempt (spec, section 3). Where the spec is
// silent: no response is retryable like a 5xx, and a forbidden address in the URL is final.
func Classify(status int, err ErrorCode) Result {
	switch {
	case err == ErrorBlocked:
		return ResultFailed
	case err != ErrorNone:
		return ResultRetryable
	case status >= 200 && status <= 299:
		return ResultSuccess
	case status >= 500 && status <= 599:
		return ResultRetryable
	default:
		return ResultFailed
	}
}
